"""Evaluators in this process, so that a test can hold what they wait for."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dai.streams.cancellation import Cancellation
from dqp.catalog.catalog import Catalog
from dqp.planning.distribution.spreading import Thresholds
from dqp.runtimes.attempt import RemoteEvaluator
from dqp.runtimes.distributed import Distributed
from dqp.runtimes.evaluator import Evaluator
from dqp.runtimes.wire import Task
from dqp.settings import FederationSettings

ALWAYS = Thresholds(split_rows=1e9, broadcast_bytes=0.0, spread_seconds=0.0)
"""Fragments exchange rows, and each statement is read whole: a double gives the same rows for every part of it."""


class Told(RemoteEvaluator):
    """An evaluator as its coordinator sees it, called without a network."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.evaluator = Evaluator()

    @property
    def address(self) -> str:
        return self.evaluator.port.address

    def run(self, tasks: Sequence[Task], cancellation: Cancellation, **_: Any) -> Iterator[Sequence[Mapping[str, Any]]]:
        own = Cancellation()
        with cancellation.on_cancel(lambda: own.cancel(cancellation.cause)):
            work = self.evaluator.begin(tasks, own)
            try:
                yield []
                yield from work.reports()
            finally:
                work.close()

    def ask(self) -> tuple[str, str | None]:
        raise AssertionError("its address is known")

    def close(self) -> None:
        self.evaluator.close()


class InProcess(Distributed):
    """Two evaluators."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog, FederationSettings(), thresholds=ALWAYS)

    def join(self, settings: FederationSettings) -> Sequence[Told]:
        self.told = (Told("one"), Told("two"))
        return self.told


@contextmanager
def in_process(catalog: Catalog) -> Iterator[InProcess]:
    """Nothing of its queries may be left when it ends."""
    in_process = InProcess(catalog)
    try:
        yield in_process
        assert in_process.port.health()["tickets"] == 0
        assert not any(each.evaluator.state()["works"] for each in in_process.told)
    finally:
        in_process.close()
