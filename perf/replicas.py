"""Replica location by the published method: look-ups, additions and deletions of single names by callers of the
original's protocol, each with a connection and one request at a time; bulk requests of 1,000 names; updates of an
index. The catalog has a million mappings.

``python -m perf.replicas [--mappings N] [--seconds S] [--rounds N]`` runs it without the databases of the others.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import PIPE
from subprocess import run as run_process
from typing import Any

import pyarrow as pa

from dai.config import ReplicasConfig
from dai.replicas.filters import Filter, arrow
from dai.replicas.replicas import Remote
from perf.harness import Report, median, shown
from perf.world import World
from tests.processes import ServiceProcess
from tests.servers import free_port

CONNECTIONS = (1, 10, 100)
PUBLISHED = {"query": 2100.0, "add": 84.0, "delete": 570.0}
"""A second, through the original server with a database that flushes (add) and one that does not."""
PUBLISHED_UPDATE, PUBLISHED_SIX = 831.0, 5102.0
PUBLISHED_FILTER = 18.4
CATALOGS = (1, 10, 100)
"""Whose filters an index has."""
BULK = 1000
LOAD = """
import asyncio, itertools, json, random, sys, time
import uvloop

kind, port, connections, seconds, mappings, seed, left = sys.argv[1], *map(int, sys.argv[2:])
random.seed(seed)
BULK = 1000

def bulk():
    # all mappings, in no order; made before the time is taken
    numbers = list(range(mappings))
    random.shuffle(numbers)
    for at in range(0, mappings, BULK):
        pairs = (
            f"lfn://bench/{number:07d}\\0https://host{number % 100}.example.org/{number}\\0"
            for number in numbers[at : at + BULK]
        )
        yield f"lrc_create_bulk\\0{''.join(pairs)}\\0".encode()

large = iter([*bulk()]) if kind == "bulk" else None
names = [f"lfn://bench/{random.randrange(mappings):07d}" for _ in range(50_000)]
turns, fresh = itertools.cycle(names), itertools.count(seed * 10_000_000)
ENDS = {"query": b"\\0\\0", "index": b"\\0\\0", "bulk": b"\\0\\0"}

def request():
    if kind == "query":
        return f"lrc_get_pfn\\0{next(turns)}\\x000\\x000\\0".encode()
    if kind == "bulk":
        return next(large)
    if kind == "index":
        return f"rli_get_lrc\\0{next(turns)}\\x000\\x000\\0".encode()
    number = next(fresh)
    return f"lrc_{'create' if kind == 'add' else 'delete'}\\0new://{number}\\0at://{number}\\0".encode()

class Caller(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.read, self.greeted = transport, b"", False

    def ask(self):
        global left
        left -= 1
        self.transport.write(request())

    def data_received(self, data):
        global done
        self.read += data
        if not self.greeted:
            self.greeted, self.read = True, b""
            connected.append(self)
            if len(connected) == connections:
                all_here.set()
            return
        if not self.read.startswith(b"0\\0") or (kind == "bulk" and len(self.read) > 3):
            failed.append(self.read)
        elif not self.read.endswith(ENDS.get(kind, b"\\0")):
            return
        self.read = b""
        done += 1
        if left and time.perf_counter() < until:
            self.ask()
        else:
            connected.remove(self)
            if not connected:
                over.set()

async def load():
    global connected, all_here, over, until, done, failed
    connected, failed, all_here, over, done = [], [], asyncio.Event(), asyncio.Event(), 0
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(Caller, "127.0.0.1", port)
    await all_here.wait()
    began = time.perf_counter()
    until = began + seconds
    for each in list(connected):
        each.ask()
    await over.wait()
    took = time.perf_counter() - began
    return {"rate": done / took, "done": done, "failed": len(failed), "first": str(failed[:1])}

print(json.dumps(uvloop.run(load())))
"""


def run(world: World, rounds: int) -> Report:
    return located(1_000_000, 5, min(rounds, 3))


def rate(
    kind: str, port: int, connections: int, seconds: int, mappings: int, seed: int, most: int = 1 << 40
) -> tuple[float, int]:
    """Requests a second, from another process, and how many there were; at most ``most``."""
    arguments = [kind, port, connections, seconds, mappings, seed, most]
    ended = run_process([sys.executable, "-c", LOAD, *map(str, arguments)], stdout=PIPE, check=True)
    said = json.loads(ended.stdout)
    assert not said["failed"], said
    return float(said["rate"]), int(said["done"])


def located(mappings: int, seconds: int, rounds: int) -> Report:
    report = Report("replicas", f"Replica location: {mappings:,} mappings")
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        more = f'[replicas]\ncatalog = "sqlite:///replicas.db"\nrpc_port = {port}'
        service = ServiceProcess(Path(directory), {}, workers=1, more=more).start()
        try:
            bulk = filled(port, mappings, 1)
            rate("query", port, 1, 1, mappings, 1, most=1)  # whoever looks into the file sees what readers see
            single(report, port, mappings, seconds, rounds, bare(Path(directory) / "replicas.db", mappings))
        finally:
            service.stop()
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        more = f'[replicas]\ncatalog = "sqlite:///replicas.db"\nrpc_port = {port}'
        service = ServiceProcess(Path(directory), {}, workers=1, more=more).start()
        try:
            several = filled(port, mappings, 10)
            report.text(
                f"Bulk: {BULK:,} new names a request, in no order, into a catalog that grows to {mappings:,}: "
                f"{bulk:,.0f} names/s by one connection, {several:,.0f} by 10; all on the disk when answered."
            )
            report.goal("bulk add, names/s, 1 connection", bulk, 50_000, at_least=True)
            report.goal("bulk add, names/s, 10 connections", several, 50_000, at_least=True)
            one, six = updates(report, service.url, mappings)
            built = filters(report, service.url, port, mappings, seconds, rounds)
            took = {
                "full update": (one, PUBLISHED_UPDATE),
                "six at once": (six, PUBLISHED_SIX),
                "filter built": (built, PUBLISHED_FILTER),
            }
            report.plot(
                "replicas_updates", lambda axes: _bars(axes, took), "seconds of updates and of a filter, and published"
            )
        finally:
            service.stop()
    return report


def name(number: int) -> str:
    return f"lfn://bench/{number:07d}"


def filled(port: int, mappings: int, connections: int) -> float:
    """Fills the catalog in no order by bulk requests; names a second."""
    requests, _ = rate("bulk", port, connections, 3600, mappings, 7, mappings // BULK)
    return requests * BULK


def bare(database: Path, mappings: int) -> float:
    """Look-ups a second in the same file by SQLite alone, in one thread."""
    connection = sqlite3.connect(database)
    numbers = [name(random.randrange(mappings)) for _ in range(20_000)]
    began = time.perf_counter()
    for each in numbers:
        assert connection.execute("select target from dai_mappings where logical = ?", (each,)).fetchall()
    took = time.perf_counter() - began
    connection.close()
    return len(numbers) / took


def single(report: Report, port: int, mappings: int, seconds: int, rounds: int, bare_rate: float) -> None:
    rates: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds):
        for connections in CONNECTIONS:
            # what is deleted are the names that were added just before
            seed = 1 + number * len(CONNECTIONS) + CONNECTIONS.index(connections)
            added = 1 << 40
            for kind in PUBLISHED:
                measured, added = rate(kind, port, connections, seconds, mappings, seed, added)
                rates.setdefault((kind, connections), []).append(measured)
                added = added if kind == "add" else 1 << 40
    report.text(
        f"Requests a second through the server, SQLite, by connections with one request at a time each; medians of "
        f"{rounds} rounds of {seconds} s. An addition is answered when it is on the disk. The callers are another "
        f"process on the same cores. SQLite alone, in one thread without a network: {bare_rate:,.0f} look-ups/s."
    )
    rows = [
        [kind, *(f"{median(rates[kind, connections]):,.0f}" for connections in CONNECTIONS), f"{PUBLISHED[kind]:,.0f}"]
        for kind in PUBLISHED
    ]
    report.table(["operation", *(f"{each} connections" for each in CONNECTIONS), "published"], rows)
    report.plot("replicas", lambda axes: _drawn(axes, rates), "requests a second by connections, beside the published")
    for connections in CONNECTIONS[1:]:
        report.goal(
            f"look-ups/s, {connections} connections", median(rates["query", connections]), 12_000, at_least=True
        )
        report.goal(
            f"durable additions/s, {connections} connections", median(rates["add", connections]), 5_000, at_least=True
        )


def _drawn(axes: Any, rates: dict[tuple[str, int], list[float]]) -> None:
    for number, kind in enumerate(PUBLISHED):
        figures = [median(rates[kind, connections]) for connections in CONNECTIONS]
        axes.plot(CONNECTIONS, figures, marker="o", color=f"C{number}", label=kind)
        axes.axhline(PUBLISHED[kind], color=f"C{number}", linestyle=":", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="connections", ylabel="requests a second (more is better)")
    axes.set_xticks(CONNECTIONS, [str(each) for each in CONNECTIONS])
    axes.set_title("A replica catalog answers several times the published rates (dotted)")
    axes.grid(alpha=0.3)
    axes.legend()


def _bars(axes: Any, took: dict[str, tuple[float, float]]) -> None:
    places = range(len(took))
    for number, (label, shift) in enumerate((("here", -0.2), ("published", 0.2))):
        figures = [each[number] for each in took.values()]
        bars = axes.bar([at + shift for at in places], figures, 0.4, label=label)
        axes.bar_label(bars, [f"{each:,.3g}" if each < 1000 else f"{each:,.0f}" for each in figures])
    axes.set(yscale="log", ylabel="seconds (less is better)")
    axes.set_xticks(places, [*took])
    axes.set_title("Updates of an index and a filter take a fraction of the published times")
    axes.margins(y=0.1)
    axes.legend()


def _portions(mappings: int) -> Iterator[Sequence[str]]:
    for at in range(0, mappings, 10_000):
        yield [name(each) for each in range(at, min(at + 10_000, mappings))]


def updates(report: Report, url: str, mappings: int) -> tuple[float, float]:
    """Seconds of one, and of six at once."""

    def send(number: int) -> None:
        remote = Remote(url, ReplicasConfig())
        remote.names(f"https://catalog{number}", mappings, _portions(mappings), 3600)
        remote.close()

    one = _took(lambda: send(0))
    with ThreadPoolExecutor(6) as pool:
        six = _took(lambda: list(pool.map(send, range(6))))
    report.text("All names of a catalog sent to an index, over HTTP:")
    rows = [
        ["one catalog", shown(one), f"{PUBLISHED_UPDATE:,.0f} s"],
        ["six catalogs at once", shown(six), f"{PUBLISHED_SIX:,.0f} s"],
    ]
    report.table(["update", "took", "published"], rows)
    report.goal(f"full update of {mappings:,} names, s", one, 10)
    report.goal("six full updates at once, s", six, 60)
    remote = Remote(url, ReplicasConfig())
    for number in range(6):
        remote.withdraw(f"https://catalog{number}")
    remote.close()
    return one, six


def _took(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _made(names: pa.Array, made: list[Filter]) -> None:
    made.append(Filter.of(names))


def filters(report: Report, url: str, port: int, mappings: int, seconds: int, rounds: int) -> float:
    """Seconds in which that of all names is made."""
    rows, built = [], 0.0
    for count in (mappings, 5 * mappings):
        names = arrow([name(each) for each in range(count)])
        made: list[Filter] = []
        took = statistics.median(_took(partial(_made, names, made)) for _ in range(3))
        wrong = sum(f"other://{each}" in made[0] for each in range(100_000)) / 100_000
        sent = made[0].to_bytes()
        rows.append([f"{count:,}", shown(took), f"{len(sent) / 1e6:.2f} MB", f"{wrong:.2%}"])
        if count == mappings:
            built = took
            report.goal("filter of all names, s", took, 1)
            report.goal("names in error, share", wrong, 0.01)
    report.text(f"Filters (published: {PUBLISHED_FILTER} s for a million names):")
    report.table(["names", "made in", "size", "in error"], rows)
    remote = Remote(url, ReplicasConfig())
    names = Filter.of(arrow([name(each) for each in range(mappings)]))
    remote.filter("https://catalog0", names, 3600)
    rates: dict[int, list[float]] = {each: [] for each in CATALOGS}
    empty = Filter.empty(mappings)
    for _ in range(rounds):
        there = 1
        for count in CATALOGS:
            for at in range(there, count):
                empty.bits[:] = 0
                empty.bits[at :: 2 * CATALOGS[-1]] = 0xFF  # its own bits, few of them those of a name asked for
                remote.filter(f"https://catalog{at}", empty, 3600)
            there = count
            rates[count].append(rate("index", port, 10, seconds, mappings, 3)[0])
        for at in range(1, there):
            remote.withdraw(f"https://catalog{at}")
    remote.close()
    share = statistics.median(b / a for a, b in zip(rates[1], rates[CATALOGS[-1]], strict=True))
    said = ", ".join(f"{median(rates[count]):,.0f}/s with {count}" for count in CATALOGS)
    report.text(f"Look-ups in an index by 10 connections, by filters of {mappings:,} names that it has: {said}.")
    report.goal(f"look-up rate with {CATALOGS[-1]} filters / with one", share, 0.7, at_least=True)
    return built


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.replicas", description=__doc__)
    parser.add_argument("--mappings", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(located(options.mappings, options.seconds, options.rounds).write())


if __name__ == "__main__":
    main()
