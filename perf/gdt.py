"""deliverToGDT from one service to another, beside one service to a client in the same format.

Both services are processes of their own. The reader at the other service reads the stream to its end and keeps nothing:
the client that drops the bytes of an end point does so, too. ``python -m perf.gdt [--rows N] [--rounds N]`` runs this
benchmark over PostgreSQL alone.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dai
from dai.client import Resource, activity, document, element
from perf.blocks import ENCODERS, SIZES, TABLES
from perf.harness import Report, measured, median, ratio, shown
from perf.memory import GOAL_MIB, MIB, SQL, WARM_ROWS, resident
from perf.plots import blocks
from perf.world import World
from tests.processes import ServiceProcess
from tests.servers.postgresql import PostgresServer

FORMATS = {"arrow": "Arrow", "webrowset": "WebRowSet"}
GOAL = 0.5
BLOCKSIZE = 10_000
CURVE_TABLE = "protein_goterm"
MOST_BLOCKS = 1_000
PAUSE = 0.02


def run(world: World, rounds: int) -> Report:
    return delivered(world.postgres.url, world.mixed_rows * 35, rounds, curve=True)


def delivered(database: str, rows: int, rounds: int, *, curve: bool) -> Report:
    report = Report("gdt", f"{rows:,} rows from one service to another")
    report.text(
        f"PostgreSQL, `{SQL % rows}`, blocks of {BLOCKSIZE:,} rows; as WebRowSet a quarter of the rows, with about "
        "as many bytes. *deliverToGDT*: until the activity is done, which is when the other service has read all. "
        "*Client*: pulled from a session in the same blocks and the same format by a client that drops them. "
        f"Medians of {rounds} rounds, taken in turn. Memory: the most that each service has above what "
        "it has before a delivery. As many bytes arrive as the client gets (checked)."
    )
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        target = ServiceProcess(Path(directory) / "target", {"pg": database}, workers=1)
        stack.callback(target.stop)
        target.start()
        source = ServiceProcess(
            Path(directory) / "source", {"pg": database}, workers=1, delivery=[f"{target.url}/sessions"]
        )
        stack.callback(source.stop)
        source.start()
        here, there = dai.connect(f"{source.url}/pg"), dai.connect(f"{target.url}/pg")
        for form in FORMATS:
            deliver(here, there, SQL % WARM_ROWS, BLOCKSIZE, form)
        table = []
        for form, name in FORMATS.items():
            sql = SQL % (rows if form == "arrow" else rows // 4)
            size = pull(here, sql, BLOCKSIZE, form)
            with growth(source, target) as grown:
                arrived = deliver(here, there, sql, BLOCKSIZE, form)
            if abs(arrived - size) > size / 1000:  # rows do not always come in the same batches
                raise AssertionError(f"{name}: {arrived:,} bytes arrived, a client gets {size:,}")
            cases: dict[str, Callable[[], object]] = {
                "deliverToGDT": partial(deliver, here, there, sql, BLOCKSIZE, form),
                "client": partial(pull, here, sql, BLOCKSIZE, form),
            }
            took = measured(cases, rounds, warm=0)
            speed = ratio(took, "client", "deliverToGDT")
            seconds = {case: median(each) for case, each in took.items()}
            table.append(
                [name, f"{size / MIB:,.0f}", shown(seconds["deliverToGDT"]), shown(seconds["client"]), f"{speed:.2f}"]
                + [f"{each:.0f}" for each in grown]
            )
            report.goal(f"{name}: throughput over that to a client", speed, GOAL, at_least=True)
            for end, each in zip(("source", "target"), grown, strict=True):
                report.goal(f"{name}: growth of the {end}, MiB", each, GOAL_MIB)
        report.table(
            ["format", "MiB", "deliverToGDT", "client", "throughput, ratio", "source grew, MiB", "target grew, MiB"],
            table,
        )
        if curve:
            _curve(report, here, there, rounds)
        here.close()
        there.close()
    return report


def _curve(report: Report, here: Resource, there: Resource, rounds: int) -> None:
    rows = TABLES[CURVE_TABLE]
    report.text(
        f"## {CURVE_TABLE}: {rows:,} rows, by block size\n\nBeyond {MOST_BLOCKS:,} blocks only the first "
        f"{MOST_BLOCKS:,} are delivered, and the time is scaled to the whole table."
    )
    seconds: dict[str, dict[int, float]] = {}
    for size in SIZES:
        part = min(rows, size * MOST_BLOCKS)
        sql = f"select * from {CURVE_TABLE} limit {part}"
        cases: dict[str, Callable[[], object]] = {}
        for form, name in FORMATS.items():
            cases[f"deliverToGDT, {name}"] = partial(deliver, here, there, sql, size, form)
            cases[f"pulled by a client, {name}"] = partial(pull, here, sql, size, form)
        for case, took in measured(cases, rounds).items():
            seconds.setdefault(case, {})[size] = median(took) * rows / part
    report.plot("gdt-blocks", partial(_draw, seconds=seconds), f"time against block size, {CURVE_TABLE}")
    report.table(
        ["time", *(f"{size:,}" for size in SIZES)],
        [[case, *(shown(by_size[size]) for size in SIZES)] for case, by_size in seconds.items()],
    )


def _draw(axes: Any, seconds: dict[str, dict[int, float]]) -> None:
    for case, by_size in seconds.items():
        colour = "tab:blue" if case.endswith("Arrow") else "tab:red"
        style = "-" if case.startswith("deliver") else ":"
        axes.plot(list(by_size), list(by_size.values()), style, color=colour, marker=".", label=case)
    over = [
        each / seconds[case.replace("deliverToGDT", "pulled by a client")][size]
        for case, by_size in seconds.items()
        for size, each in by_size.items()
        if case.startswith("deliver")
    ]
    blocks(axes, f"Delivering to another service takes {median(over):.1f} times as long as pulling (median)")
    axes.legend(fontsize="small")


def _blocks(sql: str, size: int, form: str, *ends: Any) -> bytes:
    encoder, result = ENCODERS[form]
    return document(
        activity("sqlQueryStatement", element("expression", sql), element("resultStream", name="tuples"), name="query"),
        activity(encoder, element("resultSet", from_="tuples"), element(result, name="encoded"), name="encode"),
        activity(
            "blockAggregator",
            element("input", from_="encoded"),
            element("blocksize", size=size),
            element("output", name="blocks"),
            name="aggregate",
        ),
        *ends,
    )


def pull(here: Resource, sql: str, size: int, form: str) -> int:
    """The bytes that a client pulls."""
    end = activity("outputStream", element("fromLocal", from_="blocks"), name="out")
    with here.session() as session:
        here.perform(_blocks(sql, size, form, end), session=session.id).check()
        return sum(len(block) for block in session.pull("out"))


READ = document(activity("inputStream", element("toLocal", name="came"), name="in"))


def deliver(here: Resource, there: Resource, sql: str, size: int, form: str) -> int:
    """Until the delivery is done, the other service having read all; the bytes that it read."""
    with there.session() as session, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_dropped, there, session.id)
        url = f"{there.service.url}/sessions/{session.id}"
        target = element("toGDT", url, streamId="in", mode="block")
        end = activity("deliverToGDT", element("fromLocal", from_="blocks"), target, name="deliver")
        here.perform(_blocks(sql, size, form, end))
        return reading.result()


def _dropped(there: Resource, session: str) -> int:
    return sum(len(chunk) for chunk in there.perform(READ, session=session, output="came").chunks())


@contextmanager
def growth(*services: ServiceProcess) -> Iterator[list[float]]:
    """The most that each service has above what it has now, in MiB."""
    processes = [each.process for each in services if each.process is not None]
    before = [resident(each) for each in processes]
    grown = [0.0] * len(processes)
    over = threading.Event()

    def sample() -> None:
        while not over.wait(PAUSE):
            for place, each in enumerate(processes):
                grown[place] = max(grown[place], (resident(each) - before[place]) / MIB)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield grown
    finally:
        over.set()
        sampler.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m perf.gdt", description=__doc__)
    parser.add_argument("--rows", type=int, default=35_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with PostgresServer() as server:
        print(delivered(server.url, options.rows, options.rounds, curve=False).write())
