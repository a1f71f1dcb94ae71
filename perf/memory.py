"""Memory of the service against the rows that pass through it: it should not depend on them, nor on the block size.

Each case has a service process of its own, so that what one case leaves in the allocators does not hide what the next
needs. Its resident set (children included) is sampled while a client reads the result to its last byte; the growth is
the peak over what the process held after it had answered a small query of the same form.
"""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

import dai
from dai.client import Resource
from perf.blocks import pipeline
from perf.harness import Report
from perf.plots import dots
from perf.world import World, service

FORMATS = ("webrowset", "csv", "arrow", "parquet", "json")
PULLED = ("webrowset", "csv", "arrow")
SIZES = (100, 10_000, 1_000_000)
PULLED_SIZES = SIZES[1:]
ROWS_TO_MIXED = 10
"""10 M rows where the large table has one million."""
WARM_ROWS = 20_000
PAUSE = 0.02
GOAL_MIB = 150.0
STOPPED_SECONDS = 10.0
GOAL_BLOCKS = 2.0
MIB = float(1 << 20)
SQL = (
    "select i as id, i * 0.5::float8 as value, 'row number ' || i as name "
    "from (select generate_series(1, %d) as i) as numbers"
)


@dataclass
class Trace:
    """``points``: bytes received so far and MiB above the start, in order of time."""

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
    whole = {(form, size): _traced(world, "synchronous", form, size, rows) for form in FORMATS for size in SIZES}
    pulled = {(form, size): _traced(world, "pulled", form, size, rows) for form in PULLED for size in PULLED_SIZES}
    report.text("## One request")
    _tabulated(report, whole, FORMATS, SIZES, rows)
    peaks = {case: trace.peak for case, trace in whole.items()}
    report.plot("memory", lambda axes: _draw(axes, peaks, rows), "memory of the service by format and block size")
    report.text("## Pulled block by block\n\nA block is handed out whole, so one at least is in memory.")
    _tabulated(report, pulled, PULLED, PULLED_SIZES, rows)
    for mode, traces in (("", whole), ("pulled, ", pulled)):
        for form in dict.fromkeys(form for form, _ in traces):
            size = max((size for name, size in traces if name == form), key=lambda size: traces[form, size].peak)
            report.goal(f"{mode}{form}: growth, MiB (blocks of {size:,})", traces[form, size].peak, GOAL_MIB)
    _stopped_clients(world, rows, report)
    return report


def _tabulated(
    report: Report,
    traces: dict[tuple[str, int], Trace],
    formats: Sequence[str],
    sizes: Sequence[int],
    rows: int,
) -> None:
    report.table(
        ["format", *(f"blocks of {size:,}: MiB" for size in sizes), *(f"blocks of {size:,}: rows/s" for size in sizes)],
        [
            [
                form,
                *(f"{traces[form, size].peak:.0f}" for size in sizes),
                *(f"{rows / traces[form, size].seconds:,.0f}" for size in sizes),
            ]
            for form in formats
        ],
    )


@contextmanager
def _fresh(world: World) -> Iterator[tuple[Resource, psutil.Process]]:
    """A service of its own."""
    with service({"pg": world.postgres.url}) as (base, process):
        resource = dai.connect(f"{base}/pg")
        try:
            yield resource, process
        finally:
            resource.close()


@contextmanager
def _bytes(resource: Resource, mode: str, form: str, size: int, rows: int) -> Iterator[tuple[Iterator[bytes], Any]]:
    """The bytes of a result as they come, and what counts them as ``received``."""
    sql = SQL % rows
    if mode == "synchronous":
        result = resource.query(sql, format=form, blocksize=size)
        yield result.chunks(), result
        return
    with resource.session() as session:
        resource.perform(pipeline(sql, size, form), session=session.id).check()
        pull = session.pull("out")
        yield iter(pull), pull


def _drain(resource: Resource, mode: str, form: str, size: int, rows: int) -> None:
    with _bytes(resource, mode, form, size, rows) as (chunks, _):
        for _ in chunks:
            continue


def _traced(world: World, mode: str, form: str, size: int, rows: int) -> Trace:
    trace = Trace()
    with _fresh(world) as (resource, process):
        _drain(resource, mode, form, size, WARM_ROWS)
        began = time.perf_counter()
        with _bytes(resource, mode, form, size, rows) as (chunks, counting), _sampled(process, counting, trace):
            for _ in chunks:
                continue
        trace.seconds, trace.received = time.perf_counter() - began, counting.received
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
    table = []
    for mode in ("synchronous", "pulled"):
        for form in PULLED:
            for size in PULLED_SIZES:
                early, late, blocks = _stopped(world, mode, form, size, rows)
                shown = f"{blocks}" if blocks is not None else "-"
                table.append([mode, form, f"{size:,}", f"{early:.1f}", f"{late:.1f}", shown])
                report.goal(f"client stopped, {mode}, {form}, blocks of {size:,}: MiB", late, GOAL_MIB)
                if blocks is not None:
                    report.goal(f"client stopped, {mode}, {form}, blocks of {size:,}: blocks held", blocks, GOAL_BLOCKS)
    report.text(
        "## A client that stops reading\n\nThe client reads the first bytes (pulled: the first block), then nothing "
        f"for {STOPPED_SECONDS:.0f} s, then the rest. What the service holds meanwhile: the growth of its resident set "
        "(everything counts, also tuples fetched ahead, the encoder's working memory and what allocators have not "
        "given back) and, of a pulled stream, the blocks that wait in it."
    )
    report.table(["mode", "format", "rows a block", "after 2 s, MiB", "after 10 s, MiB", "blocks that wait"], table)


def _stopped(world: World, mode: str, form: str, size: int, rows: int) -> tuple[float, float, int | None]:
    """MiB of growth after 2 and after 10 seconds, and the blocks that wait in the stream."""
    with _fresh(world) as (resource, process):
        _drain(resource, mode, form, size, WARM_ROWS)
        start = resident(process)
        with _bytes(resource, mode, form, size, rows) as (chunks, _):
            next(chunks)
            time.sleep(STOPPED_SECONDS / 5)
            early = (resident(process) - start) / MIB
            time.sleep(STOPPED_SECONDS * 4 / 5)
            late = (resident(process) - start) / MIB
            blocks = _waiting(resource) if mode == "pulled" else None
            for _ in chunks:
                continue
    return early, late, blocks


def _waiting(resource: Resource) -> int:
    """As the service's own metrics say."""
    with urllib.request.urlopen(f"{resource.service.url}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("dai_stream_blocks "))))


def _draw(axes: Any, peaks: Mapping[tuple[str, int], float], rows: int) -> None:
    by_form = {form: {f"blocks of {size:,}": peaks[form, size] for size in SIZES} for form in FORMATS}
    most = max(peaks.values())
    title = f"{rows / 1e6:g} million rows pass through at most {most:.0f} MiB, whatever the format and the block size"
    label = f"MiB above the start; the line: the goal of {GOAL_MIB:g}. Less is better"
    dots(axes, by_form, title=title, label=label, mark=GOAL_MIB, log=False)
