"""An evaluator: runs the fragments that a coordinator gives it and hands their rows to whoever has the ticket.

Each task runs in a thread of its own, on one DuckDB for all queries. Its inputs are fetched by further threads, from
data services, from the ports of other processes, through operation calls; its rows wait in an ``Outbox`` for readers.
Its own settings limit what a coordinator can make it do: the services that it may ask, the Python functions that it may
call. A coordinator whose connection breaks has gone; one that is silent is asked whether it lives, and its fragments
end when it does not say so for long: nothing is kept for a process that has stopped, or is behind a network that has
parted.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from dai.errors import ClosedError, DeniedError, UnreachableError
from dai.streams.cancellation import Cancellation
from dai.streams.waiting import Condition
from dqp.catalog.heartbeat import AFTER, Heartbeat
from dqp.catalog.sources.configured import options_of
from dqp.catalog.sources.service import ServiceSource
from dqp.errors import EvaluatorLostError
from dqp.execution.engine import Engine
from dqp.execution.fragment import Body, Called
from dqp.runtimes.flight.client import health
from dqp.runtimes.flight.server import FlightPort, is_loopback
from dqp.runtimes.task import TaskRun
from dqp.runtimes.wire import Received, RemoteInput, Task
from dqp.settings import EvaluatorSettings, within

BEAT = 1.0
"""Seconds between two reports of work that goes on: what a coordinator takes for a sign of life."""
ANSWER = 3.0
"""Seconds in which a coordinator has to answer when it is asked whether it lives."""
_KEPT = 256
"""Resources whose connections are kept, and coordinators."""
_PORT = re.compile(r"(\[[\w:.%-]+\]|[\w.-]+):[0-9]{1,5}")
"""Nothing else is an address: for gRPC ``127.0.0.1:1@host`` is one of ``host``."""


class Evaluator:
    """Listens from the start; ConfigurationError where it cannot. Thread-safe."""

    def __init__(self, settings: EvaluatorSettings = EvaluatorSettings()) -> None:
        self.settings = settings
        self.tls = settings.tls if settings.tls.certificate is not None else None
        """Of exchanges, if they have any."""
        self.port = FlightPort(
            settings.flight_host, settings.flight_port, tls=self.tls, keep_freed_memory=settings.keep_freed_memory
        )
        directory = None if settings.directory is None else str(settings.directory)
        self.engine = Engine(memory_bytes=settings.memory_bytes, directory=directory)
        self._sources: dict[str, ServiceSource] = {}
        self._coordinators: dict[str, Heartbeat] = {}
        self._lock = threading.Lock()
        self._works: set[Work] = set()

    def begin(self, tasks: Sequence[Task], cancellation: Cancellation) -> Work:
        """Begins the tasks, which belong to one attempt of one query. DeniedError for what the settings do not allow;
        nothing has begun then."""
        for each in tasks:
            self._check_port(each.coordinator)
            self._check(each.body)
        work = Work(self, tasks, cancellation)
        with self._lock:
            self._works.add(work)
        try:
            work.begin()
        except BaseException:
            work.close()
            raise
        return work

    def ended(self, work: Work) -> None:
        with self._lock:
            self._works.discard(work)

    def state(self) -> Mapping[str, Any]:
        with self._lock:
            works = len(self._works)
        return {**self.port.health(), "address": self.port.address, "works": works}

    def source(self, alias: str, address: str) -> ServiceSource:
        """The resource at an address, with its connections."""
        with self._lock:
            source = self._sources.get(address)
            if source is None:
                while len(self._sources) >= _KEPT:
                    self._sources.pop(next(iter(self._sources))).close()
                source = ServiceSource(alias, address, options=options_of(self.settings.tls))
                self._sources[address] = source
            return source

    def coordinator(self, address: str) -> Heartbeat:
        """The coordinator whose Flight port has the address."""

        def ask() -> None:
            try:
                health(address, timeout=ANSWER, tls=self.tls)
            except EvaluatorLostError as error:
                raise UnreachableError(error.detail) from error

        with self._lock:
            heartbeat = self._coordinators.get(address)
            if heartbeat is None:
                while len(self._coordinators) >= _KEPT:
                    self._coordinators.pop(next(iter(self._coordinators)))
                after = min(AFTER, self.settings.liveness_timeout)
                heartbeat = Heartbeat(ask, "The coordinator", patience=self.settings.liveness_timeout, after=after)
                self._coordinators[address] = heartbeat
            return heartbeat

    def _check(self, body: Body) -> None:
        for each in body.inputs.values():
            if isinstance(each, RemoteInput):
                for _, address, _ in each.places:
                    self._check_address(address)
            elif isinstance(each, Received):
                for address, _ in each.tickets:
                    self._check_port(address)
            elif isinstance(each, Called):
                self._check(each.below)
                function = each.operation.python
                if each.operation.url is not None:
                    self._check_address(each.operation.url)
                if function is not None and function not in self.settings.python:
                    raise DeniedError(
                        f"This evaluator does not call the Python function {function}.",
                        hint="Its operator can allow it: python in [roles.evaluator].",
                    )

    def _check_port(self, address: str) -> None:
        if not _PORT.fullmatch(address):
            raise DeniedError(f"{address[:60]!r} is not the address of a port for exchanges.")
        if self.tls is None and not is_loopback(address.rpartition(":")[0].strip("[]")):
            raise DeniedError(f"An evaluator without TLS does not read from {address}.")

    def _check_address(self, address: str) -> None:
        if not any(within(address, each) for each in self.settings.sources):
            raise DeniedError(
                f"This evaluator does not send requests to {address}.",
                hint="Its operator can allow it: sources in [roles.evaluator].",
            )

    def close(self) -> None:
        with self._lock:
            works = list(self._works)
        for each in works:
            each.close()
        self.port.close()
        self.engine.close()
        for source in self._sources.values():
            source.close()


class Work:
    """The tasks of one attempt of a query on one evaluator. Close it: what still runs stops, and nothing of it is left
    when that returns."""

    def __init__(self, evaluator: Evaluator, tasks: Sequence[Task], cancellation: Cancellation) -> None:
        self._evaluator, self.tasks = evaluator, tasks
        self._given, self._cancellation = cancellation, Cancellation(cancellation.span)
        self._attempts = {(each.query, each.attempt) for each in tasks}
        self._runs = [TaskRun(evaluator, each, self._cancellation, self._tell) for each in tasks]
        self._threads = [threading.Thread(target=each, name="dqp-fragment", daemon=True) for each in self._runs]
        self._changed = Condition()
        self._news = True  # says that the work has begun, for which a coordinator waits
        self._held = ExitStack()

    def begin(self) -> None:
        self._held.enter_context(self._given.on_cancel(self._stop))
        for query, attempt in self._attempts:
            self._evaluator.port.expect(query, attempt)
        for address in {each.coordinator for each in self.tasks}:
            silent = Cancellation()
            self._held.enter_context(silent.on_cancel(self._forsaken))
            self._held.enter_context(self._evaluator.coordinator(address).waiting(silent))
        for each in self._threads:
            each.start()

    def _stop(self) -> None:
        self._cancellation.cancel(self._given.cause)

    def _forsaken(self) -> None:
        seconds = self._evaluator.settings.liveness_timeout
        self._given.cancel(
            EvaluatorLostError(
                f"The coordinator gave no sign of life for {seconds:g} s; its fragments were stopped.",
                hint="Run the query again.",
            )
        )

    def _tell(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def reports(self) -> Iterator[list[dict[str, Any]]]:
        """How every task stands: at once, when one has ended, and at least every BEAT seconds; at last when all have.
        After a failure that is when the coordinator has ended the work: until then, readers are told the reason. Raises
        the cancellation's cause."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._news, self._given, BEAT)
                self._news = False
            self._given.check()
            over = all(each.ended and not each.failed for each in self._runs)
            yield [each.report() for each in self._runs]
            if over:
                return

    def close(self) -> None:
        self._cancellation.cancel(ClosedError("The query has ended."))
        self._held.close()
        for each in self._threads:
            if each.ident is not None:  # has begun
                each.join()
        for query, attempt in self._attempts:
            self._evaluator.port.withdraw(query, attempt)
        self._evaluator.ended(self)
