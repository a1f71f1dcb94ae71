"""A query on evaluators in this process, over sources that a test holds."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from sqlglot import exp

from dai.errors import DataError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import Join, Project, column
from dqp.runtimes.flight.client import fetch
from dqp.runtimes.flight.server import FlightPort, Ticket
from tests.dqp.doubles import Double, batch, catalog_of, execution, numbers, remote
from tests.dqp.in_process import InProcess, Told, in_process
from tests.processes import until

TREE = Join(
    remote(numbers("a"), "a_"),
    remote(numbers("b"), "b_"),
    "inner",
    exp.EQ(this=column("a_id"), expression=column("b_id")),
)


def rows(sql: str, cancellation: Cancellation) -> Stream:
    return Stream(batch(1, 0).schema, iter([batch(1, 10)]))


def ask(runtime: InProcess) -> tuple[pa.Table, int]:
    """The answer and the number of its attempt."""
    with execution() as running:
        return runtime.run(TREE, list("abcd"), ["INTEGER", "BIGINT"] * 2, None, running).table(), running.attempt


def claims(port: FlightPort, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many consumers have presented tickets at the port."""
    actual: list[object] = []
    claim = port._claim

    def counted(*given: object) -> object:
        actual.append(given)
        return claim(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(port, "_claim", counted)
    return lambda: len(actual)


def test_a_database_may_work_for_long_before_its_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it asks again and again, and gives nobody up."""
    released = threading.Event()

    def late(sql: str, cancellation: Cancellation) -> Stream:
        assert released.wait(100)
        return rows(sql, cancellation)

    with in_process(catalog_of(Double("a", late), Double("b", rows))) as runtime, ThreadPoolExecutor(1) as pool:

        def impatient(address: str, ticket: Ticket, *, cancellation: Cancellation, tls: object) -> Stream:
            (port,) = [each.evaluator.port for each in runtime.told if each.address == address]
            until(lambda: port._expected)
            return fetch(address, ticket, cancellation=cancellation, timeout=0.0)

        monkeypatch.setattr("dqp.runtimes.flight.client.TURN", 0.02)
        monkeypatch.setattr("dqp.runtimes.attempt.fetch", impatient)
        here = claims(runtime.port, monkeypatch)
        there = [claims(each.evaluator.port, monkeypatch) for each in runtime.told]
        asked = pool.submit(ask, runtime)
        try:
            until(lambda: asked.done() or (here() > 5 and any(each() > 5 for each in there)))
        finally:
            released.set()
        actual, attempt = asked.result()
        assert (sorted(actual["a"].to_pylist()), attempt) == (list(range(1, 11)), 1)


def test_the_reason_of_a_failure_is_known_before_an_evaluator_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever still reads there hears from then on that the exchange was withdrawn, which is no reason."""
    heard = threading.Event()
    run = Told.run

    def reluctant(self: Told, *given: Any, **more: Any) -> Iterator[Any]:
        try:
            with closing(run(self, *given, **more)) as running:  # type: ignore[type-var]
                yield from running
        finally:
            assert heard.wait(100)

    text = exp.DPipe(this=exp.Literal.string("x"), expression=column("a_id"))
    tree = Project(TREE, (("n", exp.cast(text, "INT")),))
    with in_process(catalog_of(Double("a", rows), Double("b", rows))) as runtime, execution() as running:

        def late(address: str, ticket: Ticket, *, cancellation: Cancellation, tls: object) -> Stream:
            (port,) = [each.evaluator.port for each in runtime.told if each.address == address]
            until(lambda: port._withdrawn or cancellation.cancelled)
            try:
                return fetch(address, ticket, cancellation=cancellation)
            finally:
                heard.set()

        monkeypatch.setattr(Told, "run", reluctant)
        monkeypatch.setattr("dqp.runtimes.attempt.fetch", late)
        with pytest.raises(DataError, match="Could not convert"):
            runtime.run(tree, ["n"], ["INTEGER"], None, running)
