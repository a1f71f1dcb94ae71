"""A federation with evaluators, the points of its queries, and what is killed or stopped at them.

``python -m tests.faults.evaluated`` goes through all combinations, or those whose name has all the words that it is
given, and prints what came of them; ``test_evaluated_killed`` has a part of them.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa

from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dqp.algebra.operators import Remote
from dqp.coordinator import Coordinator
from dqp.execution.execution import Execution
from dqp.planning.distribution.spreading import Thresholds
from dqp.runtimes.flight.client import health
from dqp.runtimes.service import Service
from dqp.settings import load
from tests.faults.federation import (
    ROWS,
    SOON,
    WIDTH,
    Query,
    Side,
    large,
    leftovers,
    reduced,
    rest,
    right_or_clear,
    soon,
    streamed,
    threads,
    two_sides,
)
from tests.faults.gates import Gate
from tests.processes import ServiceProcess, until

ALWAYS = Thresholds(split_rows=0.0, broadcast_bytes=1 << 10, spread_seconds=0.0)
"""Every query has several fragments, however small."""
EXCHANGE = 4 << 20
"""Bytes that an output of a fragment holds before it spills, or holds its producer."""
ROLE = f"memory_bytes = 300_000_000\nexchange_bytes = {EXCHANGE}\nbuffer_bytes = {2 * EXCHANGE}"
BIG = ROWS * WIDTH
"""Bytes of the table ``big``, at least."""
HELD_BACK = 30.0
"""Seconds that first rows are waited for."""
LOST_AFTER = 60.0
"""Seconds until what has been continued has cleaned up by itself; a bound, mostly it takes one or two."""


@dataclass
class World:
    """Two databases behind services, a gate before each service, and two evaluators."""

    sides: Mapping[str, Side]
    gates: Mapping[str, Gate]
    evaluators: Sequence[ServiceProcess]
    seconds: dict[str, float] = field(default_factory=dict)

    def urls(self) -> dict[str, str]:
        return {alias: f"http://127.0.0.1:{gate.port}/resources/{alias}" for alias, gate in self.gates.items()}

    @contextmanager
    def federation(self, urls: Mapping[str, Any] | None = None, **settings: Any) -> Iterator[Coordinator]:
        """A coordinator in this process, which spreads all that it can."""
        sources = {
            alias: {"url": each} if isinstance(each, str) else each for alias, each in (urls or self.urls()).items()
        }
        loaded = load({"sources": sources, "evaluators": [each.url for each in self.evaluators], **settings})
        coordinator = Coordinator(loaded)
        coordinator.runtime.close()
        coordinator.use(
            coordinator.catalog,
            Service(coordinator.catalog, loaded, operations=coordinator.operations, thresholds=ALWAYS),
        )
        try:
            yield coordinator
            until(lambda: not threads(), SOON)
            assert not leftovers()
            assert health(coordinator.runtime.port.address, timeout=SOON)["tickets"] == 0
        finally:
            coordinator.close()

    def begin(self) -> None:
        """Starts what does not run."""
        for side in self.sides.values():
            side.begin()
        for each in self.evaluators:
            if each.process is None:
                each.start()


@contextmanager
def world(directory: Path, sides: Mapping[str, Side], keys: str = "") -> Iterator[World]:
    """Evaluators with their files in ``directory``, and with further keys."""
    with ExitStack() as stack:
        for each in sides.values():
            each.begin()
        gates = {alias: stack.enter_context(Gate(each.service.port)) for alias, each in sides.items()}
        evaluators = []
        for number in (1, 2):
            place = directory / f"evaluator{number}"
            role = {"evaluator": f'directory = "{place / "spill"}"\n{ROLE}\n{keys}'}
            started = ServiceProcess(place, {}, roles=role)
            place.mkdir()
            stack.callback(started.stop)
            evaluators.append(started.start())
        yield World(sides, gates, evaluators)


def spilled(evaluator: ServiceProcess) -> int:
    """Bytes in the temporary files of its processes, which have no names."""
    total = 0
    for each in (file for process in evaluator.processes() for file in Path("/proc").glob(f"{process.pid}/fd/*")):
        with suppress(OSError):
            if str(each.readlink()).startswith(str(evaluator.directory / "spill")):
                total += each.stat().st_size
    return total


def remains(evaluator: ServiceProcess) -> list[str]:
    """Fragments, outboxes, readers and temporary files; nothing when it is at rest."""
    state = httpx.get(f"{evaluator.url}/resources/evaluator", timeout=SOON).json()
    actual = [f"{evaluator.url}: {state[each]} {each}" for each in ("works", "tickets", "readers") if state[each]]
    files = [*(evaluator.directory / "spill").rglob("*")]
    actual += [f"{evaluator.url}: {each.name}" for each in files if not each.name.startswith("duckdb_temp")]
    return actual + ([f"{evaluator.url}: {size} bytes"] if (size := spilled(evaluator)) else [])


def at_rest(evaluator: ServiceProcess) -> bool:
    return not remains(evaluator)


# --- who is ended ------------------------------------------------------------------------------------------------


class Victim:
    """``kind``: evaluator 1 or 2, or service or database of a side (``alias``); ``how``: killed or stopped (SIGKILL,
    SIGSTOP)."""

    def __init__(self, world: World, kind: str, alias: str, how: str) -> None:
        self._world, self.kind, self.alias, self._how = world, kind, alias, how
        self.gone = False
        self._stopped: list[psutil.Process] = []

    @property
    def named(self) -> str:
        """What an error has to say."""
        return self._ended.url if isinstance(self._ended, ServiceProcess) and self._evaluator else self.alias

    @property
    def _evaluator(self) -> bool:
        return self.kind.startswith("evaluator")

    @property
    def _ended(self) -> Any:
        if self._evaluator:
            return self._world.evaluators[int(self.kind[-1]) - 1]
        side = self._world.sides[self.alias]
        return side.service if self.kind == "service" else side.database.server

    def __call__(self) -> None:
        self.gone = True
        if self._how == "killed":
            self._ended.kill()
            return
        process = psutil.Process(self._ended.process.pid)
        self._stopped = [process, *process.children(recursive=True)]
        for each in self._stopped:
            with suppress(psutil.NoSuchProcess):
                each.suspend()

    def back(self) -> None:
        """Continued, or started again."""
        for each in reversed(self._stopped):
            with suppress(psutil.NoSuchProcess):
                each.resume()
        self._stopped = []
        self._world.begin()

    def left(self) -> list[str]:
        """What is not at rest where it still runs."""
        world = self._world
        actual = [each for one in world.evaluators if one is not self._ended for each in remains(one)]
        # What a stopped evaluator has begun to read is there until it goes on: Flight cannot take back what it writes.
        held = self._evaluator and self._how == "stopped"
        actual = [each for each in actual if not (held and each.endswith(" readers"))]
        others = [side for alias, side in world.sides.items() if self._evaluator or alias != self.alias]
        actual += [f"side {each.alias}" for each in ([] if held else others) if not each.idle]
        if self.kind == "service" and self._how == "killed" and world.sides[self.alias].database.at_work:
            actual.append(f"statements of {self.alias}")
        return actual


# --- at which points ---------------------------------------------------------------------------------------------


@dataclass
class Asked:
    """A query under way in a thread."""

    world: World
    coordinator: Coordinator
    query: Query
    execution: Execution | None = None
    answer: Future[pa.Table] = field(default_factory=Future)

    def begin(self) -> None:
        threading.Thread(target=self._ask, daemon=True).start()

    def _begun(self, execution: Execution) -> None:
        self.execution = execution

    def _ask(self) -> None:
        try:
            self.answer.set_result(self.open().table())
        except BaseException as error:  # noqa: BLE001 - for who asked
            self.answer.set_exception(error)

    def open(self) -> Any:
        return self.coordinator.start(self.query.sql, cancellation=Cancellation(), begun=self._begun)[0]

    def rows(self, alias: str) -> int:
        """That have come from a source, as far as evaluators have reported."""
        if self.execution is None:
            return 0
        actual = self.execution.measurements()
        return sum(each.rows for each in actual if isinstance(each.key, Remote) and each.key.source == alias)


def _held(alias: str, *words: str, after: int = 0) -> Callable[[Asked, Victim], None]:
    """The victim ends while answers of the source are held at a point."""

    def work(asked: Asked, victim: Victim) -> None:
        gate = asked.world.gates[alias]
        reached = gate.shut(*words, after=after)
        asked.begin()
        assert reached.wait(SOON), asked.answer.exception(0) if asked.answer.done() else "the point was never reached"
        victim()
        gate.open()

    return work


def _planning(asked: Asked, victim: Victim) -> None:
    victim()
    asked.begin()


def _planned(asked: Asked, victim: Victim) -> None:
    asked.coordinator.plan(asked.query.sql)
    victim()
    asked.begin()


def _exchanging(asked: Asked, victim: Victim) -> None:
    """One input of the join is held, so that the exchange of the other one fills."""
    gate = asked.world.gates["maria"]
    reached = gate.shut("/query ", "big", after=BIG // 20)
    asked.begin()
    assert reached.wait(SOON)
    until(lambda: asked.rows("pg") * WIDTH > 2 * EXCHANGE, SOON)
    victim()
    gate.open()


def _spilling(asked: Asked, victim: Victim) -> None:
    gate = asked.world.gates["maria"]
    reached = gate.shut("/query ", "big", after=BIG // 20)
    asked.begin()
    assert reached.wait(SOON)
    until(lambda: sum(map(spilled, asked.world.evaluators)) > 0, SOON)
    victim()
    gate.open()


def _handing_out(asked: Asked, victim: Victim) -> None:
    """When the first rows are there. DuckDB may hold them back for as long as a source gives no more (``unending``):
    then the victim ends before them."""
    given, ended = threading.Event(), threading.Event()

    def work() -> None:
        try:
            stream = asked.open()
            first = next(stream)
            assert first.num_rows
            given.set()
            assert ended.wait(SOON)
            asked.answer.set_result(rest(first, stream))
        except BaseException as error:  # noqa: BLE001 - for who asked
            asked.answer.set_exception(error)
        finally:
            given.set()

    threading.Thread(target=work, daemon=True).start()
    given.wait(HELD_BACK)
    victim()
    ended.set()


def _closing(asked: Asked, victim: Victim) -> None:
    stream = asked.open()
    assert next(stream).num_rows
    victim()
    soon(stream.close)
    asked.answer.set_result(None)


POINTS: Mapping[str, tuple[Callable[[str, str], Query], Callable[[Asked, Victim], None]]] = {
    "planning": (streamed, _planning),
    "describing": (streamed, _held("pg", "/schema")),
    "planned": (streamed, _planned),
    "build fetched": (streamed, _held("maria", "/query ", "small")),
    "statement started": (large, _held("pg", "/query ", "big")),
    "first batch": (large, _held("pg", "/query ", "big", after=1 << 17)),
    "mid-scan": (large, _held("pg", "/query ", "big", after=BIG // 2)),
    "exchange filled": (large, _exchanging),
    "outbox spilling": (large, _spilling),
    "last batch": (streamed, _held("pg", "/query ", "big", after=BIG * 19 // 20)),
    "handing out": (streamed, _handing_out),
    "closing": (streamed, _closing),
}
"""Of each the query, over ``pg`` (the probe side) and ``maria``, and how to get there."""
VICTIMS = ("evaluator 1", "evaluator 2", "service pg", "service maria", "database pg", "database maria")


def run(world: World, point: str, who: str, how: str, query: Callable[[str, str], Query] | None = None) -> str:
    """Asks (the query of the point unless another is given), ends the victim at the point, and checks all that has to
    hold. What came: "right", or the error."""
    kind, _, alias = who.partition(" ")
    victim = Victim(world, who if kind == "evaluator" else kind, alias, how)
    world.begin()
    make, reach = POINTS[point]
    came = "right"
    began = time.monotonic()
    try:
        with world.federation() as coordinator:
            asked = Asked(world, coordinator, (query or make)("pg", "maria"))
            reach(asked, victim)
            ended = time.monotonic()
            assert victim.gone
            try:
                if point == "closing":
                    asked.answer.result(SOON)
                else:
                    error = right_or_clear(lambda: asked.answer.result(SOON), asked.query, victim.named)
                    came = "right" if error is None else f"{type(error).__name__}: {error.detail}"
                world.seconds["answer"] = time.monotonic() - ended
                with suppress(AssertionError):
                    until(lambda: not threads(), SOON)
                assert not threads(), (came, threads())
                assert not leftovers()
                try:
                    world.seconds["survivors"] = until(lambda: not victim.left(), SOON)
                except AssertionError:
                    raise AssertionError(f"{came}; left: {victim.left()}") from None
            finally:
                for gate in world.gates.values():
                    gate.open()
                victim.back()
            world.seconds["clean"] = until(lambda: all(map(at_rest, world.evaluators)), LOST_AFTER)
            until(lambda: all(each.idle for each in world.sides.values()), LOST_AFTER)
            until(lambda: _answered(coordinator), SOON)
    finally:
        world.seconds["all"] = time.monotonic() - began
    return came


def _answered(coordinator: Coordinator) -> bool:
    """All goes on as before; a source that was away is asked again after a while only."""
    query = reduced("pg", "maria")
    try:
        table = soon(lambda: coordinator.query(query.sql, cancellation=Cancellation()).table())
    except DaiError:
        return False
    assert query.right(table)
    return True


def main(words: Sequence[str]) -> int:
    failed = 0
    place = tempfile.TemporaryDirectory
    with (
        place() as directory,
        place() as own,
        two_sides(Path(directory)) as sides,
        world(Path(directory), sides) as setting,
    ):
        tempfile.tempdir = own  # of what is made from here on something would be left
        for point, who, how in product(POINTS, VICTIMS, ("killed", "stopped")):
            name = f"{point}: {who} {how}"
            if not all(each in name for each in words):
                continue
            setting.seconds.clear()
            try:
                actual = run(setting, point, who, how)
            except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - shown, and the others go on
                failed += 1
                actual = f"FAILED {type(error).__name__}: {error}"
            times = " ".join(f"{each}={seconds:.1f}" for each, seconds in setting.seconds.items())
            print(f"{name} | {actual} | {times}".replace("\n", " "), flush=True)
    return failed


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main(sys.argv[1:]))
