"""Evaluators as actors on a Ray cluster that exists: Ray places, watches and restarts them, and sees no tuples.

``evaluators = ["ray:127.0.0.1:6379"]`` joins the cluster at that address, ``["ray:auto"]`` the one on this machine,
``["ray://127.0.0.1:10001"]`` goes through a Ray client's port; ``?evaluators=N`` says how many actors (one a node
unless given). Tasks are never retried by Ray: a stream that is repeated could have another order. Evaluators on Ray
have no TLS, so their exchanges are on loopback and all nodes have to be on this machine. Ray's own ports are the
responsibility of the cluster's operator: Ray's tokens do not encrypt.
"""

from __future__ import annotations

import importlib.util
import socket
import threading
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from dai.client.http.problems import from_problem
from dai.errors import ConfigurationError, DaiError, MissingDependencyError
from dai.streams.cancellation import Cancellation
from dai.streams.tracing import arrived
from dqp.execution.service_calls import Operation
from dqp.runtimes.attempt import RemoteEvaluator, evaluator_lost
from dqp.runtimes.distributed import LIVENESS_TIMEOUT, Distributed
from dqp.runtimes.evaluator import Evaluator, Work
from dqp.runtimes.wire import Task, decoded, encoded
from dqp.settings import LOOPBACK, EvaluatorSettings, FederationSettings

THREADS = 64
"""Calls that an actor answers at once: each query has one that waits for reports."""
CONNECT_SECONDS = 5.0
START_SECONDS = 60.0
"""How long the cluster may take to start an actor."""
_REFUSED = 1_000
"""Most names that are remembered of work that was ended before it began."""
_LOST = (RayActorError, GetTimeoutError)
_WHY = "Evaluators on Ray have no TLS, so their exchanges are on loopback only: "


class Ray(Distributed):
    """Joins the cluster when it is created; when it is closed, it ends its actors and leaves the cluster.
    ConfigurationError where there is none."""

    def join(self, settings: FederationSettings) -> Sequence[RayEvaluator]:
        if len(settings.evaluators) != 1:
            raise ConfigurationError(
                "evaluators must be one address of a Ray cluster.", hint='evaluators = ["ray:auto"]'
            )
        address, _, query = settings.evaluators[0].partition("?")
        address = address if address.startswith("ray://") else address.partition(":")[2] or "auto"
        self._joined = not ray.is_initialized()
        if self._joined:
            _check(address)
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False)
            except (ConnectionError, RayError, RuntimeError, ValueError) as error:
                raise ConfigurationError(
                    f"There is no Ray cluster at {address}.",
                    hint="Does it have a node on this machine, with the same versions of Ray and Python?",
                ) from error
        try:
            nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
            hosts = [each["NodeManagerAddress"] for each in nodes if each["Alive"]]
            others = sorted({each for each in hosts if not here(each)})
            if others:
                raise ConfigurationError(
                    f"The Ray cluster has nodes on other machines: {', '.join(others)}.",
                    hint=f"{_WHY}join a cluster whose nodes are all on this machine.",
                )
            wanted = parse_qs(query).get("evaluators", ["0"])[0]
            number = (int(wanted) if wanted.isdigit() else 0) or len(hosts)
            own = settings_of(settings, self._operations)
            return tuple(RayEvaluator(f"ray evaluator {at}", own) for at in range(1, number + 1))
        except BaseException:
            self._leave()
            raise

    def close(self) -> None:
        super().close()
        self._leave()

    def _leave(self) -> None:
        if self._joined:
            ray.shutdown()


def settings_of(settings: FederationSettings, operations: Mapping[str, Operation]) -> EvaluatorSettings:
    """Of the evaluators of a federation: they may ask what it names, and nothing else."""
    services = tuple(url for each in settings.sources for url in (each.url, *each.replicas) if url is not None)
    services += tuple(each.url for each in operations.values() if each.url is not None)
    services += () if settings.replica_service is None else settings.replica_service.services
    python = tuple(each.python for each in operations.values() if each.python is not None)
    return EvaluatorSettings(memory_bytes=settings.memory_bytes, python=python, sources=(*LOOPBACK, *services))


def _check(address: str) -> None:
    """ConfigurationError if the cluster cannot be joined: Ray itself would try for minutes, and waits forever if the
    cluster has no node on this machine."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    host = host.strip("[]")
    if port.isdigit():
        if here(host) is False:
            raise ConfigurationError(
                f"The Ray cluster at {address} is on another machine.",
                hint=f"{_WHY}run the federation on the machine of the cluster.",
            )
        if address.startswith("ray://") and importlib.util.find_spec("grpc") is None:
            raise MissingDependencyError("A ray:// address needs Ray's client.", hint="pip install 'ray[client]'")
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except OSError as error:
            raise ConfigurationError(f"There is no Ray cluster at {address}.") from error


def here(host: str) -> bool | None:
    """Whether it is an address of this machine: nobody can listen on another's. None where there is no such name."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in addresses:
        with suppress(OSError), socket.socket(family, kind, protocol) as one:
            one.bind(address)
            return True
    return False


class RayEvaluator(RemoteEvaluator):
    """One actor."""

    def __init__(self, name: str, settings: EvaluatorSettings) -> None:
        super().__init__(name)
        options = {"num_cpus": 0, "max_concurrency": THREADS, "max_restarts": -1, "max_task_retries": 0}
        self.actor: Any = ray.remote(Actor).options(**options, scheduling_strategy="SPREAD").remote(settings)

    def ask(self) -> tuple[str, str | None]:
        state = self._get(self.actor.state.remote(), START_SECONDS)
        return state["address"], state.get("instance")

    def _get(self, reference: Any, seconds: float) -> Any:
        try:
            return ray.get(reference, timeout=seconds)
        except _LOST as error:
            self._address = None
            raise evaluator_lost(self.name) from error

    def run(
        self, tasks: Sequence[Task], cancellation: Cancellation, *, waits: bool
    ) -> Iterator[Sequence[Mapping[str, Any]]]:
        del waits  # an actor has a turn for all
        work = uuid.uuid4().hex
        try:
            span = cancellation.span
            headers = {} if span is None else dict(span.headers)
            problem = self._get(self.actor.begin.remote(work, encoded(tasks), headers), LIVENESS_TIMEOUT)
            if problem is not None:
                raise from_problem(problem)
            yield []
            while True:
                cancellation.check()
                answer = self._get(self.actor.report.remote(work), LIVENESS_TIMEOUT)
                if answer is None:
                    raise evaluator_lost(self.name)
                reports, over = answer
                yield reports
                if over:
                    return
        finally:
            self.actor.end.remote(work)

    def close(self) -> None:
        ray.kill(self.actor)


class Actor:
    """An evaluator in a process of Ray's. Errors travel as problem documents."""

    def __init__(self, settings: EvaluatorSettings) -> None:
        self._evaluator = Evaluator(settings)
        self._lock = threading.Lock()
        self._works: dict[str, tuple[Work, Iterator[Sequence[Mapping[str, Any]]]]] = {}
        self._refused: deque[str] = deque(maxlen=_REFUSED)

    def state(self) -> Mapping[str, Any]:
        return self._evaluator.state()

    def begin(self, name: str, tasks: str, trace: Mapping[str, str]) -> Mapping[str, Any] | None:
        """Begins work under a name that was never used; the problem, if there is one. ``trace``: the headers of its
        span."""
        span = arrived((each.encode(), value.encode()) for each, value in trace.items())
        try:
            work = self._evaluator.begin(decoded(tasks), Cancellation(span))
        except DaiError as error:
            return error.problem()
        with self._lock:
            ended = name in self._refused
            if not ended:
                self._works[name] = (work, work.reports())
        if ended:
            work.close()
        return None

    def report(self, work: str) -> tuple[Sequence[Mapping[str, Any]], bool] | None:
        """The next report; whether it is the last. None for work that an actor before this one had: Ray has begun it
        anew."""
        with self._lock:
            running = self._works.get(work)
        if running is None:
            return None
        reports = next(running[1], None)
        return ([], True) if reports is None else (reports, False)

    def end(self, work: str) -> None:
        """Ends work, also work that has not begun: its coordinator may have given up on an actor that had stopped."""
        with self._lock:
            running = self._works.pop(work, None)
            if running is None:
                self._refused.append(work)
        if running is not None:
            running[0].close()
