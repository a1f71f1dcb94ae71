"""Memory of the service against the rows that pass through it: it should not depend on them, nor on the block size.

Each case has a service process of its own, so that what one case leaves in the allocators does not hide what the next
needs. Its resident set (children included) is sampled while a client reads the result to its last byte; the growth is
the peak over what the process held after it had answered a small query of the same form.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

import dai
from perf.harness import Report, legend_below
from perf.world import World, service

FORMATS = ("webrowset", "csv", "arrow", "parquet", "json")
SIZES = (100, 10_000, 1_000_000)
ROWS_TO_MIXED = 10
"""10 M rows where the large table has one million."""
WARM_ROWS = 20_000
PAUSE = 0.02
GOAL_MIB = 150.0
STOPPED_SECONDS = 10.0
STOPPED_BLOCK = 100_000
MIB = float(1 << 20)
SQL = (
    "select i as id, i * 0.5::float8 as value, 'row number ' || i as name "
    "from (select generate_series(1, %d) as i) as numbers"
)
COLOURS = ("tab:blue", "tab:orange", "tab:green")


@dataclass
class Trace:
    """``points``: (fraction of the bytes received, MiB above the start) in order of time."""

    seconds: float = 0.0
    received: int = 0
    peak: float = 0.0
    points: list[tuple[int, float]] = field(default_factory=list)


def run(world: World, rounds: int) -> Report:
    rows = world.mixed_rows * ROWS_TO_MIXED
    report = Report("memory", f"Memory of the service while {rows:,} rows pass through")
    report.text(
        f"PostgreSQL, `{SQL % rows}`, read to the last byte by a client that keeps nothing. Growth of the resident "
        f"set of the service process (peak, sampled every {PAUSE * 1e3:.0f} ms) over what it was after {WARM_ROWS:,} "
        "rows of the same form; a fresh process for each case. One run each: memory does not vary as time does."
    )
    traces: dict[tuple[str, int], Trace] = {}
    for form in FORMATS:
        for size in SIZES:
            with _fresh(world) as (resource, process, _):
                _drain(resource.query(SQL % WARM_ROWS, format=form, blocksize=size))
                traces[form, size] = _traced(resource.query(SQL % rows, format=form, blocksize=size), process)
    report.table(
        ["format", *(f"blocks of {size:,}: MiB" for size in SIZES), *(f"blocks of {size:,}: rows/s" for size in SIZES)],
        [
            [
                form,
                *(f"{traces[form, size].peak:.0f}" for size in SIZES),
                *(f"{rows / traces[form, size].seconds:,.0f}" for size in SIZES),
            ]
            for form in FORMATS
        ],
    )
    report.plot("memory", lambda panels: _draw(panels, traces, rows), "memory against rows", panels=(2, 3))
    for form in FORMATS:
        worst = max(SIZES, key=lambda size: traces[form, size].peak)
        report.goal(f"{form}: growth, MiB (worst: blocks of {worst:,})", traces[form, worst].peak, GOAL_MIB)
    _stopped_clients(world, rows, report)
    return report


@contextmanager
def _fresh(world: World) -> Iterator[tuple[dai.client.Resource, psutil.Process, str]]:
    """A service of its own: the resource, the process, the service's address."""
    with service({"pg": world.postgres.url}) as (base, process):
        resource = dai.connect(f"{base}/pg")
        try:
            yield resource, process, base
        finally:
            resource.close()


def _drain(result: Any) -> None:
    for _ in result.chunks():
        continue


def _traced(result: Any, process: psutil.Process) -> Trace:
    trace = Trace()
    began = time.perf_counter()
    with _sampled(process, result, trace):
        _drain(result)
    trace.seconds, trace.received = time.perf_counter() - began, result.received
    return trace


@contextmanager
def _sampled(process: psutil.Process, result: Any, trace: Trace) -> Iterator[None]:
    start = resident(process)
    over = threading.Event()

    def sample() -> None:
        while not over.wait(PAUSE):
            grown = (resident(process) - start) / MIB
            trace.peak = max(trace.peak, grown)
            trace.points.append((result.received, grown))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield
    finally:
        over.set()
        sampler.join()


def resident(process: psutil.Process) -> int:
    """Bytes resident of a process and its children."""
    total = 0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += each.memory_info().rss
    return total


def _stopped_clients(world: World, rows: int, report: Report) -> None:
    """A client that reads the first bytes of a long result, nothing for ten seconds, and then the rest: all of it."""
    sql = SQL % rows
    table = []
    for form in ("webrowset", "csv", "arrow"):
        with _fresh(world) as (resource, process, _):
            _drain(resource.query(SQL % WARM_ROWS, format=form))
            result = resource.query(sql, format=form, blocksize=STOPPED_BLOCK)
            chunks = result.chunks()
            start = resident(process)
            next(chunks)
            time.sleep(STOPPED_SECONDS / 5)
            early = (resident(process) - start) / MIB
            time.sleep(STOPPED_SECONDS * 4 / 5)
            late = (resident(process) - start) / MIB
            for _ in chunks:
                continue
        block = result.received / rows * STOPPED_BLOCK / MIB
        table.append([form, f"{block:.1f}", f"{early:.1f}", f"{late:.1f}", f"{late / block:.1f}"])
        report.goal(f"client stopped for 10 s, {form}: growth in its last 8 s, blocks", (late - early) / block, 0.1)
    report.text(
        f"## A client that stops reading\n\nBlocks of {STOPPED_BLOCK:,} rows; the client reads the first bytes, then "
        f"nothing for {STOPPED_SECONDS:.0f} s, then the rest. What the service holds meanwhile, as growth of its "
        "resident set: the encoded block on its way, and whatever was being made for the next (tuples fetched ahead, "
        "working memory of the encoder)."
    )
    report.table(
        ["format", "one block, MiB", "growth after 2 s, MiB", "after 10 s, MiB", "in blocks"],
        table,
    )


def _draw(panels: list[Any], traces: dict[tuple[str, int], Trace], rows: int) -> None:
    for axes, form in zip(panels, FORMATS, strict=False):
        for size, colour in zip(SIZES, COLOURS, strict=True):
            trace = traces[form, size]
            passed = [received / trace.received * rows / 1e6 for received, _ in trace.points]
            axes.plot(passed, [grown for _, grown in trace.points], color=colour, linewidth=1, label=f"{size:,}")
        axes.axhline(GOAL_MIB, color="grey", linestyle=":")
        axes.set(title=form, xlabel="million rows received", ylabel="MiB above the start", ylim=(0, None))
    legend_below(panels[0], "rows a block")
    for axes in panels[len(FORMATS) :]:
        axes.set_axis_off()
