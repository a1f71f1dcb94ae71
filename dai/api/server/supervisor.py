"""Several processes that serve: starts them, hands connections to them, replaces one that dies, and stops them.

The supervisor answers no request. It accepts connections and gives each to the worker that has the fewest. A worker
that dies takes its connections and its running requests with it; what waits in its inbox is for the one that takes its
place. If the supervisor dies, the workers end at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url

from dai.api.server import memory
from dai.api.workers.member import one_process, shared_resources
from dai.api.workers.peers import ACCEPTED, WAKE, Inbox
from dai.api.workers.table import Table
from dai.config import Config
from dai.config.service import MOST_WORKERS
from dai.service.state.store import Store
from dai.streams import machine
from dai.streams.cancellation import SETTLE_SECONDS

log = logging.getLogger("dai.api")

RESTARTS_SECONDS = 60.0
"""A worker that died in so many seconds before makes the next start of its place wait: twice as long each time."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
ACCEPT_AT_ONCE = 64
RETRY_SECONDS = 0.01
LOOK_SECONDS = 1.0
LEAST_LOOKS = 5
"""At a worker that does not answer, before it is killed."""
READY = b"+"
WHY_BYTES = 1 << 16
"""Of the reason why a worker cannot serve, at most."""
spawn = asyncio.create_subprocess_exec
"""How a worker is started, which tests do in a cheaper way."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is told at its start, through its standard input."""

    config: Config
    number: int
    workers: int
    token: str
    table: int
    inboxes: tuple[tuple[int, int], ...]
    counters: Path
    shared: frozenset[str]
    ready: int
    """Where the worker writes READY once it answers requests, or why it cannot."""


def ending_seconds(config: Config) -> float:
    """In which a process ends after it was told to."""
    return math.ceil(config.service.grace) + 2 * SETTLE_SECONDS + 1


def possible_workers(config: Config) -> int:
    """How many workers serve. If the configuration says no number: as many as the machine has cores and each pool has
    pairs of connections, if every worker can have every resource. If it says one that is impossible, the log says why.
    0: the process serves by itself, without a supervisor."""
    asked, resources = config.service.workers, config.resources
    workers = asked or min(MOST_WORKERS, machine.cores(), *(each.pool_size // 2 for each in resources.values()))
    if workers <= 1:
        if not asked:
            why = "there is one core" if machine.cores() <= 1 else "a pool_size is less than 4"
            log.info("one process serves", extra={"why": why})
        return 0
    state = make_url(config.service.state)
    shared = shared_resources(config, workers)
    why, instead = "", 0
    if not sys.platform.startswith("linux"):
        why = "several processes need Linux"
    elif state.get_backend_name() == "sqlite" and state.database in (None, "", ":memory:"):
        why = "service.state is in memory, which processes cannot share"
    elif config.replicas.catalog is not None:
        why = "a replica location index is in the memory of one process"
    elif not shared:
        single = [name for name, each in resources.items() if one_process(each)]
        names = ", ".join(sorted([*single, *config.federations, *config.roles]))
        why = f"only one process can have the resources ({names})" if names else "pool_size is less than the workers"
        instead = 1
    elif not asked and (len(shared) < len(resources) or config.federations or config.roles):
        why = "only one process can have some of the resources"
    if not why:
        return workers
    if not asked:
        log.info("one process serves", extra={"why": why})
        return 0
    log.warning("one process serves, not several", extra={"workers": workers, "why": why})
    return instead


class Supervisor:
    """Of ``workers`` workers that share a listening socket's connections."""

    def __init__(self, config: Config, workers: int, listening: socket.socket) -> None:
        self._config, self._workers, self._listening = config, workers, listening
        self._table = Table.create(workers)
        self._inboxes = [Inbox.create() for _ in range(workers)]
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._handed = [0] * workers
        self._turn = 0
        self._announced = False
        self._stopping = asyncio.Event()
        self._ready: set[int] = set()
        self._ending: set[int] = set()
        """Workers that were told to end, because they have a statement that cannot be stopped."""
        self._status = 0
        self._why: set[bytes] = set()
        """What workers have said why they cannot serve, which others may say, too."""

    def run(self, announce: Callable[[], None]) -> int:
        """Until a signal; the exit status of the service. ``announce`` is called once all workers answer."""
        with ExitStack() as opened:
            store = Store(self._config.service.state, self._config.service.name)
            opened.callback(store.close)
            store.lease.claim()
            assert store.lease.token is not None
            self._token = store.lease.token
            self._counters = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="dai-metrics-")))
            asyncio.run(self._serve(announce))
        return self._status

    async def _serve(self, announce: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopping.set)
        if self._config.service.tls is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._listening.listen(2048)
        self._listening.setblocking(False)
        places = [asyncio.ensure_future(self._keep(number, announce)) for number in range(self._workers)]
        stopped = asyncio.ensure_future(self._stopping.wait())
        looking = asyncio.ensure_future(self._look_for_stuck())
        try:
            await asyncio.wait([stopped, *places], return_when=asyncio.FIRST_COMPLETED)
        finally:
            looking.cancel()
            self._stopping.set()
            loop.remove_reader(self._listening)
            self._listening.close()
            await self._stop()
            await asyncio.gather(*places)

    async def _look_for_stuck(self) -> None:
        """Has a worker replaced that has a statement which cannot be stopped, or that does nothing any more."""
        seconds = ending_seconds(self._config)
        seen: dict[int, float] = {}
        looks = dict.fromkeys(range(self._workers), 0)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            alive, stuck = self._table.column("alive"), self._table.column("stuck")
            for number in range(self._workers):
                silent = number in self._ready and seen.get(number) == alive[number]
                looks[number] = looks[number] + 1 if silent else 0
                seen[number] = alive[number]
                most = self._config.limits.stuck_seconds / LOOK_SECONDS
                if most and looks[number] > max(LEAST_LOOKS, most):
                    log.error("a worker does not answer and is killed", extra={"worker": number})
                    looks[number] = 0
                    self._end(number, self._processes[number], self._processes[number].kill)
            for number in [each for each in self._ready - self._ending if stuck[each]]:
                process = self._processes[number]
                log.error("a worker has statements that cannot be stopped and ends", extra={"worker": number})
                self._ending.add(number)
                for after, end in ((0.0, process.terminate), (seconds + SETTLE_SECONDS, process.kill)):
                    asyncio.get_running_loop().call_later(after, self._end, number, process, end)

    def _end(self, number: int, process: asyncio.subprocess.Process, end: Callable[[], None]) -> None:
        if self._processes.get(number) is process:
            with suppress(ProcessLookupError):
                end()

    def _reload(self) -> None:
        """The workers read their certificate again."""
        for number in self._ready:
            with suppress(ProcessLookupError):
                self._processes[number].send_signal(signal.SIGHUP)

    async def _stop(self) -> None:
        for process in list(self._processes.values()):
            with suppress(ProcessLookupError):
                process.terminate()
        waiting = [asyncio.ensure_future(process.wait()) for process in self._processes.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=self._config.service.grace + 2 * SETTLE_SECONDS + 5)
        for process in list(self._processes.values()):
            log.warning("a worker did not end and is killed", extra={"worker": process.pid})
            with suppress(ProcessLookupError):
                process.kill()

    async def _keep(self, number: int, announce: Callable[[], None]) -> None:
        """Has a process in one place until the service stops."""
        deaths: list[float] = []
        while not self._stopping.is_set():
            process = await self._start(number, announce)
            status = await process.wait()
            del self._processes[number]
            was_ready = number in self._ready
            self._ready.discard(number)
            self._ending.discard(number)
            if self._stopping.is_set():
                return
            if not was_ready and not deaths:
                # the configuration is wrong, as the worker has said
                self._status = status if status > 0 else 1
                self._stopping.set()
                return
            self._table.clear(number)
            for inbox in self._inboxes:
                inbox.send(WAKE)
            now = time.monotonic()
            deaths = [*(each for each in deaths if now - each < RESTARTS_SECONDS), now]
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (len(deaths) - 1))
            log.error("a worker died and is replaced", extra={"worker": number, "status": status, "pause": pause})
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _start(self, number: int, announce: Callable[[], None]) -> asyncio.subprocess.Process:
        reading, writing = os.pipe()
        inboxes = tuple(each.descriptors for each in self._inboxes)
        orders = Orders(
            self._config,
            number,
            self._workers,
            self._token,
            self._table.descriptor,
            inboxes,
            self._counters,
            shared_resources(self._config, self._workers),
            writing,
        )
        process = await spawn(
            *(sys.executable, "-P", "-m", "dai.api.server.worker"),
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, **memory.ALLOCATORS, "PROMETHEUS_MULTIPROC_DIR": str(self._counters)},
            process_group=0,
            pass_fds=(writing, self._table.descriptor, *(each for pair in inboxes for each in pair)),
        )
        self._processes[number] = process
        if self._stopping.is_set():  # too late for ``_stop`` to know it
            process.terminate()
        os.close(writing)
        assert process.stdin is not None
        with suppress(ConnectionError):
            process.stdin.write(pickle.dumps(orders))
            await process.stdin.drain()
        asyncio.get_running_loop().add_reader(reading, self._heard, number, reading, announce)
        return process

    def _heard(self, number: int, reading: int, announce: Callable[[], None]) -> None:
        """A worker answers requests, or has ended before, and may have said why."""
        asyncio.get_running_loop().remove_reader(reading)
        said = os.read(reading, WHY_BYTES)
        os.close(reading)
        if said not in (READY, b"", *self._why):
            self._why.add(said)
            print(said.decode(errors="replace"), file=sys.stderr)
        if said != READY or self._stopping.is_set():
            return
        self._ready.add(number)
        if not self._announced and len(self._ready) == self._workers:
            self._announced = True
            announce()
        if self._announced:
            self._listen()

    def _listen(self) -> None:
        if not self._stopping.is_set():
            asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            if not self._ready - self._ending:
                asyncio.get_running_loop().remove_reader(self._listening)
                return
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.error("no connection can be accepted", exc_info=error)
                self._listen_later()
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._hand_over(connection)

    def _hand_over(self, connection: socket.socket) -> None:
        with connection:
            open_now, accepted = self._table.column("connections"), self._table.column("accepted")
            self._turn += 1
            fewest = sorted(
                self._ready - self._ending,
                key=lambda each: (
                    open_now[each] + self._handed[each] - accepted[each],
                    (each - self._turn) % self._workers,
                ),
            )
            for number in fewest:
                if self._inboxes[number].send(ACCEPTED, b"", connection.fileno()):
                    self._handed[number] += 1
                    return
        log.warning("a connection was refused: every worker is busy with others")
        self._listen_later()

    def _listen_later(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)
        loop.call_later(RETRY_SECONDS, self._listen)
