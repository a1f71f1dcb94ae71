"""An evaluator in this process: what it runs, what it refuses, what it leaves behind."""

import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dai.client.http.problems import from_problem
from dai.config import RoleConfig
from dai.errors import CancelledError, ConfigurationError, DataError, DeniedError, NotAQueryError, StatementError
from dai.service.resources import ROLES
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.errors import EvaluatorLostError, OperationError
from dqp.execution.fragment import Body, Called, Tuples
from dqp.execution.service_calls import Operation
from dqp.runtimes.evaluator import Evaluator
from dqp.runtimes.flight.client import fetch, health
from dqp.runtimes.flight.server import FlightPort, Ticket
from dqp.runtimes.wire import Input, Received, RemoteInput, Task, decoded, encoded
from dqp.settings import LOOPBACK, EvaluatorSettings, within
from tests.processes import until


@pytest.fixture
def evaluator() -> Iterator[Evaluator]:
    evaluator = Evaluator(EvaluatorSettings(python=("math:sqrt",)))
    yield evaluator
    evaluator.close()
    assert not [each.name for each in threading.enumerate() if each.name.startswith(("dqp-fragment", "dqp-arriving"))]


def task(name: str, sql: str, inputs: Mapping[str, Input] | None = None, **more: Any) -> Task:
    defaults = {"coordinator": "127.0.0.1:1", **more}
    return Task(query="q", attempt=1, name=name, token="secret", body=Body(sql, inputs or {}), **defaults)


def numbers(count: int) -> Tuples:
    return Tuples(pa.table({"k": pa.array(range(count), pa.int64())}))


def read(evaluator: Evaluator, given: Task, partition: int = 0) -> Stream:
    return fetch(evaluator.port.address, given.ticket(partition), cancellation=Cancellation())


def test_fragments_read_from_each_other(evaluator: Evaluator) -> None:
    bucket = "CAST(k % 2 AS INTEGER)"
    first = task("0.0", "SELECT k, sum(k) OVER () AS s FROM i1", {"i1": numbers(10)}, partitions=2, bucket=bucket)
    halves = []
    for half in (0, 1):
        told = Received(((evaluator.port.address, first.ticket(half)),))
        sql = 'SELECT count(*) AS n, typeof(any_value(s)) AS t FROM "input x1"'
        halves.append(task(f"1.{half}", sql, {"x1": told}))
    work = evaluator.begin([first, *halves], Cancellation())
    assert [read(evaluator, each).table().to_pylist() for each in halves] == [[{"n": 5, "t": "HUGEINT"}]] * 2
    reports = list(work.reports())[-1]
    assert all(each["ended"] and each["problem"] is None for each in reports)
    assert [each["measures"][""]["rows"] for each in reports] == [10, 1, 1]
    work.close()
    until(lambda: not any(evaluator.state()[each] for each in ("tickets", "readers", "works")))


def test_an_operation_call(evaluator: Evaluator) -> None:
    operation = Operation(name="root", types=(pa.float64(),), result=pa.float64(), python="math:sqrt")
    called = Called(operation, Body("SELECT k, k AS a FROM i1", {"i1": numbers(5)}), 1, "r")
    given = task("0.0", 'SELECT sum(r * r) AS s FROM "input c1"', {"c1": called})
    work = evaluator.begin([given], Cancellation())
    assert read(evaluator, given).table().to_pydict() == {"s": [pytest.approx(10.0)]}
    work.close()


def test_a_failing_call_is_the_error_of_its_fragment(evaluator: Evaluator) -> None:
    """And not that the rows below it were left unread."""
    operation = Operation(name="root", types=(pa.float64(),), result=pa.float64(), python="math:sqrt")
    called = Called(operation, Body("SELECT k, -k AS a FROM i1", {"i1": numbers(100_000)}), 1, "r")
    given = task("0.0", 'SELECT sum(r) AS s FROM "input c1"', {"c1": called})
    work = evaluator.begin([given], Cancellation())
    with pytest.raises(OperationError, match="The function root failed"):
        read(evaluator, given).table()
    report_list = next(each for each in work.reports() if each[0]["ended"])
    assert isinstance(from_problem(report_list[0]["problem"]), OperationError)
    work.close()


def test_the_first_error_is_reported_and_told_to_readers(evaluator: Evaluator) -> None:
    given = task("0.0", "SELECT nothing FROM i1", {"i1": numbers(1)})
    work = evaluator.begin([given], Cancellation())
    with pytest.raises(StatementError, match="nothing"):
        read(evaluator, given)
    reports = work.reports()
    actual = next(each for each in reports if each[0]["ended"])
    assert isinstance(from_problem(actual[0]["problem"]), StatementError)
    work.close()


_FORGED = "CREATE MACRO upper(x) AS 'FORGED'"


@pytest.mark.parametrize(
    ("sql", "more"),
    [
        (_FORGED, {}),
        (f"{_FORGED}; SELECT 'a' AS u", {}),
        (f"SELECT 'a' AS u) AS t; {_FORGED}; SELECT u FROM (SELECT 'a' AS u", {}),
        ("SELECT 'a' AS u", {"bucket": f"1; {_FORGED}; SELECT 1", "partitions": 2}),
        ("SELECT 'a' AS u", {"types": (f"VARCHAR) AS t; {_FORGED}; SELECT CAST('a' AS VARCHAR",), "names": ("u",)}),
    ],
)
def test_a_statement_that_is_not_one_select_leaves_nothing(
    evaluator: Evaluator, sql: str, more: Mapping[str, Any]
) -> None:
    given = task("0.0", sql, **more)
    work = evaluator.begin([given], Cancellation())
    with pytest.raises((StatementError, DataError)):
        read(evaluator, given)
    work.close()
    later = task("0.0", "SELECT upper(a) AS u FROM i1", {"i1": Tuples(pa.table({"a": ["a"]}))})
    later = replace(later, query="q2")
    work = evaluator.begin([later], Cancellation())
    assert read(evaluator, later).table().to_pydict() == {"u": ["A"]}
    work.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM register_external_resource('a', 'b', MAP(['a'], ['b']))",
        "SELECT * FROM system.main.\"Register_External_Resource\" /* */ ('a', 'b', MAP(['a'], ['b']))",
        "SELECT * FROM query('SELECT * FROM register_' || 'external_resource(''a'', ''b'', MAP([''a''], [''b'']))')",
        "SELECT * FROM destroy_external_resource('query', 'SELECT 1')",
    ],
)
def test_nothing_is_registered_for_other_queries(evaluator: Evaluator, sql: str) -> None:
    given = task("0.0", sql)
    work = evaluator.begin([given], Cancellation())
    with pytest.raises(StatementError, match="runs SQL from a text"):
        read(evaluator, given)
    work.close()
    later = replace(task("0.0", "SELECT count(*) AS n FROM duckdb_external_resources()"), query="q2")
    work = evaluator.begin([later], Cancellation())
    assert read(evaluator, later).table().to_pydict() == {"n": [0]}
    work.close()


def test_a_table_may_be_called_like_a_function_that_runs_a_text(evaluator: Evaluator) -> None:
    given = task("0.0", "WITH query(a) AS (SELECT 1) SELECT a AS query FROM query")
    work = evaluator.begin([given], Cancellation())
    assert read(evaluator, given).table().to_pydict() == {"query": [1]}
    work.close()


def test_work_whose_threads_cannot_begin_leaves_nothing(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first fragments went on, and it counted as running for ever."""
    begin, begun = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if thread.name == "dqp-fragment":
            if begun:
                raise RuntimeError("can't start new thread")
            begun.append(thread)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError):
        evaluator.begin(
            [task(name, "SELECT k FROM i1", {"i1": numbers(2000)}) for name in ("0.0", "0.1")], Cancellation()
        )
    assert not begun[0].is_alive()
    assert not any(evaluator.state()[each] for each in ("tickets", "works"))


def test_a_reader_that_leaves_ends_its_fragment(evaluator: Evaluator) -> None:
    given = task("0.0", "SELECT unnest(range(100000)) AS v, k FROM i1", {"i1": numbers(2000)})
    work = evaluator.begin([given], Cancellation())
    with read(evaluator, given) as stream:
        next(stream)
    (last,) = [each[0] for each in work.reports()][-1:]
    assert last["ended"]
    assert last["problem"] is None
    work.close()


def test_that_work_has_begun_is_said_at_once(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator waits for it before it asks the next evaluator."""
    monkeypatch.setattr("dqp.runtimes.evaluator.BEAT", 3600.0)
    work = evaluator.begin([task("0.0", "SELECT k FROM i1", {"i1": numbers(2000)})], Cancellation())
    assert not next(work.reports())[0]["ended"]  # nobody reads it
    work.close()


def test_cancelling_ends_everything(evaluator: Evaluator) -> None:
    cancellation = Cancellation()
    given = task("0.0", "SELECT k FROM i1", {"i1": numbers(2000)})  # nobody reads it
    work = evaluator.begin([given], cancellation)
    reports = work.reports()
    next(reports)
    cancellation.cancel()
    with pytest.raises(CancelledError):
        list(reports)
    work.close()
    until(lambda: evaluator.state()["tickets"] == 0)


def test_the_fragments_of_a_silent_coordinator_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has stopped: its kernel still takes what it is sent."""
    rows_came = threading.Event()

    def asked(address: str, timeout: float, tls: object) -> dict[str, Any]:
        assert rows_came.wait(60)
        return health(address, timeout=0.1)

    monkeypatch.setattr("dqp.runtimes.evaluator.health", asked)
    evaluator = Evaluator(EvaluatorSettings(liveness_timeout=0.2))
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = f"127.0.0.1:{stopped.getsockname()[1]}"
        given = task("0.0", "SELECT unnest(range(100000)) AS v, k FROM i1", {"i1": numbers(2000)}, coordinator=address)
        work = evaluator.begin([given], Cancellation())
        with read(evaluator, given) as stream:
            next(stream)
            rows_came.set()
            with pytest.raises(EvaluatorLostError, match="coordinator"):
                list(work.reports())
            with pytest.raises(EvaluatorLostError, match="coordinator"):
                list(stream)
        work.close()
    until(lambda: not any(evaluator.state()[each] for each in ("tickets", "readers", "works")))
    evaluator.close()


def test_a_coordinator_that_lives_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []
    with FlightPort() as port:
        told = port.health

        def health() -> dict[str, Any]:
            asked.append(None)
            return told()

        monkeypatch.setattr(port, "health", health)
        monkeypatch.setattr("dqp.runtimes.evaluator.AFTER", 0.25)
        evaluator = Evaluator(EvaluatorSettings(liveness_timeout=4.0))
        given = task("0.0", "SELECT k FROM i1", {"i1": numbers(2000)}, coordinator=port.address)
        work = evaluator.begin([given], Cancellation())
        until(lambda: len(asked) > 17)  # longer than the time-out
        assert read(evaluator, given).table().num_rows == 2000
        list(work.reports())
        work.close()
        evaluator.close()


def test_work_that_was_cancelled_before_it_began_leaves_nothing(evaluator: Evaluator) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(CancelledError):
        evaluator.begin([task("0.0", "SELECT k FROM i1", {"i1": numbers(1)})], cancellation)
    assert not evaluator.state()["works"]


def test_what_is_not_allowed_is_refused(evaluator: Evaluator) -> None:
    ticket = Ticket("q", 1, "9.9", 0, "t")
    operation = Operation(name="root", types=(pa.float64(),), result=pa.float64(), python="os:system")
    elsewhere = Operation(name="root", types=(pa.float64(),), result=pa.float64(), url="http://example.org/root")
    body = Body("SELECT 1 AS a")
    for given, text in (
        (RemoteInput((("pg", "http://example.org/resources/pg", "SELECT 1"),), (("a", "INTEGER"),)), "does not send"),
        (Received((("192.0.2.1:99", ticket),)), "does not read from"),
        (Called(operation, body, 0, "r"), "does not call"),
        (Called(elsewhere, body, 0, "r"), "does not send"),
        (Called(Operation(name="r", types=(pa.int64(),), result=pa.int64(), python="math:sqrt"),
                Body("", {"x": Received((("10.0.0.1:1", ticket),))}), 0, "r"), "does not read from"),
    ):  # fmt: skip
        with pytest.raises(DeniedError, match=text):
            evaluator.begin([task("0.0", "SELECT 1", {"x": given})], Cancellation())
    with pytest.raises(DeniedError, match="does not read from"):
        evaluator.begin([task("0.0", "SELECT 1", coordinator="192.0.2.1:99")], Cancellation())
    for address in ("127.0.0.1:1@192.0.2.1", "localhost:1@[::1]", "127.0.0.1:1/", "127.0.0.1:", "127.0.0.1"):
        with pytest.raises(DeniedError, match="is not the address of a port"):
            evaluator.begin([task("0.0", "SELECT 1", coordinator=address)], Cancellation())
    assert evaluator.state()["works"] == 0


@pytest.mark.parametrize(
    "tasks",
    [
        [task("0.0", "SELECT 1 AS a", partitions=100_000_000)],
        [task("0.0", "SELECT 1 AS a", copies=100_000_000, broadcast=True)],
        [task("0.0", "SELECT 1 AS a", partitions=-5, copies=-5)],
        [task("0.0", "SELECT 1 AS a", partitions=0)],
        [task("0.0", "SELECT 1 AS a")] * 2_000,
    ],
    ids=["partitions", "copies", "negative", "none", "tasks"],
)
def test_a_document_of_few_bytes_takes_no_gigabytes(tasks: list[Task]) -> None:
    with pytest.raises(DataError):
        decoded(encoded(tasks))


def test_an_operation_has_no_threads_without_end() -> None:
    operation = Operation(name="root", types=(pa.float64(),), result=pa.float64(), python="math:sqrt")
    called = Called(operation, Body("SELECT k, k AS a FROM i1", {"i1": numbers(5)}), 1, "r")
    text = encoded([task("0.0", "SELECT 1 AS a", {"c1": called})])
    assert '"concurrent":4' in text
    with pytest.raises(ConfigurationError, match="at most 1000"):
        decoded(text.replace('"concurrent":4', '"concurrent":100000'))


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("http://127.0.0.1:8080/resources/pg", True),
        ("http://localhost/resources/pg", True),
        ("http://127.0.0.1.example.org/resources/pg", False),
        ("http://127.0.0.1:x@example.org/", False),
        ("https://127.0.0.1/resources/pg", True),
        ("https://example.org/resources/pg", False),
        ("http://example.org/resources/pg", False),
    ],
)
def test_loopback_is_allowed(address: str, allowed: bool) -> None:
    assert any(within(address, each) for each in LOOPBACK) is allowed


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("http://a:81/resources/pg", True),
        ("http://a:81/resources/pg/more", True),
        ("http://a:81/resources/pg2", False),
        ("http://a:81/resources/pg/../maria", False),
        ("http://a:81/resources/pg/%2e%2E/maria", False),
        ("http://a:81/resources/pg/..;x/maria", False),
        ("http://a:81/resources/pg/..%5Cmaria", False),
        ("http://a:82/resources/pg", False),
        ("http://a/resources/pg", False),
        ("http://[x]/resources/pg", False),
        ("http://a:8x/resources/pg", False),
    ],
)
def test_a_prefix_with_port_and_path(address: str, allowed: bool) -> None:
    assert within(address, "http://a:81/resources/pg") is allowed


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"flight_host": "0.0.0.0"}, "beyond loopback an evaluator needs TLS"),
        ({"memory_bytes": -1}, "0 or more"),
        ({"memory_bytes": 99_999_999}, "roles.evaluator.memory_bytes must be at least 100_000_000"),
        ({"memory": 1}, "has no key 'memory'"),
        ({"sources": [5]}, "list of texts"),
        ({"liveness_timeout": 0.0}, "roles.evaluator.liveness_timeout must be more than 0"),
    ],
)
def test_a_role_that_cannot_be(content: Mapping[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        ROLES["evaluator"](RoleConfig(name="evaluator", content=content))


def test_the_resource_has_no_tables() -> None:
    driver = ROLES["evaluator"](RoleConfig(name="evaluator"))
    with pytest.raises(NotAQueryError):
        driver.query("select 1", cancellation=Cancellation())
    assert driver.tables() == ()
    assert driver.properties()["flight"].startswith("127.0.0.1:")
    driver.close()
