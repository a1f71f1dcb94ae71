"""The block-size curve of the published experiment: protein_goterm and protein_interaction, 1 to 10,000 rows a block.

Every mode ends with the rows in the caller's hand, block by block: a direct reader fetches N rows a round trip through
a server-side cursor; the service streams blocks of N rows at once (synchronous) or hands out one block a request
(pulled), or ten. Where a block size would take more than ``MOST_BLOCKS`` blocks only the first rows are read, and the
time is scaled up to the whole table. A federation that reads the same resource has the modes once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import psycopg

import dai
from dai.client import Resource, activity, document, element
from perf.harness import Report, measured, median, shown
from perf.plots import blocks
from perf.world import World, service

TABLES = {"protein_goterm": 16_803, "protein_interaction": 4_716}
SIZES = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)
MOST_BLOCKS = 1_000
DIRECT = ("direct, local socket", "direct, TCP")
PEER = "direct, TCP, fetchall"
FORMATS = {"webrowset": "WebRowSet", "csv": "CSV", "arrow": "Arrow"}
ENCODERS = {
    "webrowset": ("sqlResultsToXML", "webRowSet"),
    "csv": ("sqlResultsToCSV", "csv"),
    "arrow": ("sqlResultsToArrow", "arrow"),
}
TOGETHER = 10
FEDERATED = "federation, "
THROUGH = ("synchronous, WebRowSet", "synchronous, Arrow", "pulled, WebRowSet", "pulled, Arrow")
"""The modes that a federation has, too."""
COLOURS = {"WebRowSet": "tab:red", "CSV": "tab:green", "Arrow": "tab:blue"}


def run(world: World, rounds: int) -> Report:
    report = Report("blocks", "The block-size curve")
    report.text(
        f"PostgreSQL, warm, medians of {rounds} rounds. Time until all rows of the table are in the caller's hand, "
        "block by block. *Direct* is psycopg with a server-side cursor, one `FETCH` of N rows a block; its `fetchall` "
        "without blocks is the measure of the ratios (medians of the rounds' ratios). *Synchronous* is one request "
        "whose result streams in blocks of N rows; *pulled* is a session, an `outputStream` and one request a block; "
        f"*pulled by {TOGETHER}* asks for {TOGETHER} blocks a request. All of these are decoded into record batches."
    )
    report.text(
        f"Beyond {MOST_BLOCKS:,} blocks (*) only the first {MOST_BLOCKS:,} blocks are read and the time is scaled to "
        "the whole table, the price of opening included: those figures are upper bounds."
    )
    report.text(
        "Published for the original middleware, as multiples of a direct JDBC read of protein_goterm: 38 synchronous, "
        "75 in blocks of 120 rows, 1,500 by tuple."
    )
    report.text(
        "*Federation* is the same through a federation in the service, whose one source is the resource of the other "
        "modes: how many rows a block has then concerns only what leaves the federation."
    )
    with ExitStack() as stack:
        base, _ = stack.enter_context(service({"pg": world.postgres.url}, {"lab": {"pg": {"resource": "pg"}}}))
        alone, lab = (stack.enter_context(closing(dai.connect(f"{base}/{name}"))) for name in ("pg", "lab"))
        direct = stack.enter_context(_connections(world))
        for table, rows in TABLES.items():
            seconds, ratios = _curve(direct, alone, lab, table, rows, rounds)
            _report(report, table, rows, seconds, ratios)
    return report


def _report(
    report: Report, table: str, rows: int, seconds: dict[str, dict[int, float]], ratios: dict[str, dict[int, float]]
) -> None:
    report.text(f"## {table}: {rows:,} rows")
    alone = {mode: figures for mode, figures in seconds.items() if not mode.startswith(FEDERATED)}
    report.plot(f"blocks-{table}", partial(_draw, seconds=alone), f"time against block size, {table}")
    both = {mode: figures for mode, figures in seconds.items() if mode.removeprefix(FEDERATED) in THROUGH}
    report.plot(f"blocks-{table}-federated", partial(_draw, seconds=both), f"a federation and the service, {table}")
    for heading, figures, text in (("time", seconds, shown), ("ratio to fetchall", ratios, _ratio)):
        report.table(
            [heading, *(f"{size:,}" + ("*" if size * MOST_BLOCKS < rows else "") for size in SIZES)],
            [[mode, *(text(figures[mode][size]) for size in SIZES)] for mode in figures],
        )


def _curve(
    direct: dict[str, psycopg.Connection[Any]], alone: Resource, lab: Resource, table: str, rows: int, rounds: int
) -> tuple[dict[str, dict[int, float]], dict[str, dict[int, float]]]:
    """Median seconds for the whole table, and ratios to the peer, by mode and block size."""
    seconds: dict[str, dict[int, float]] = {}
    ratios: dict[str, dict[int, float]] = {}
    for size in SIZES:
        read = min(rows, size * MOST_BLOCKS)
        limit = "" if read == rows else f" limit {read}"
        peer: Callable[[], None] = partial(fetchall, direct[DIRECT[1]], f"select * from {table}", rows)
        modes = _modes(direct, alone, f"select * from {table}{limit}", size, read)
        federated = _modes({}, lab, f"select * from pg.{table}{limit}", size, read)
        through = {f"{FEDERATED}{mode}": federated[mode] for mode in THROUGH}
        took = measured({PEER: peer, **modes, **through}, rounds)
        for mode, each in took.items():
            scale = 1.0 if mode == PEER else rows / read
            seconds.setdefault(mode, {})[size] = median(each) * scale
            over = [mine * scale / peer for mine, peer in zip(each, took[PEER], strict=True)]
            ratios.setdefault(mode, {})[size] = median(over)
    return seconds, ratios


def _modes(
    direct: dict[str, psycopg.Connection[Any]], resource: Resource, sql: str, size: int, rows: int
) -> dict[str, Callable[[], None]]:
    cases: dict[str, Callable[[], None]] = {
        mode: partial(fetched, connection, sql, size, rows) for mode, connection in direct.items()
    }
    for form, name in FORMATS.items():
        cases[f"synchronous, {name}"] = partial(synchronous, resource, sql, size, form, rows)
    for form, name in FORMATS.items():
        cases[f"pulled, {name}"] = partial(pulled, resource, pipeline(sql, size, form), rows)
    joined = partial(pulled, resource, pipeline(sql, size, "webrowset"), rows, TOGETHER)
    cases[f"pulled by {TOGETHER}, WebRowSet"] = joined
    return cases


def pipeline(sql: str, size: int, form: str) -> bytes:
    """Query, encode, blocks of ``size`` rows, the session's stream ``out``."""
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
        activity("outputStream", element("fromLocal", from_="blocks"), name="out"),
    )


def fetchall(connection: psycopg.Connection[Any], sql: str, rows: int) -> None:
    with connection.cursor() as cursor:
        _expect(len(cursor.execute(sql.encode()).fetchall()), rows)


def fetched(connection: psycopg.Connection[Any], sql: str, size: int, rows: int) -> None:
    with connection.transaction(), connection.cursor("blocks") as cursor:
        cursor.execute(sql.encode())
        total = 0
        while block := cursor.fetchmany(size):
            total += len(block)
    _expect(total, rows)


def synchronous(resource: Resource, sql: str, size: int, form: str, rows: int) -> None:
    _expect(sum(block.num_rows for block in resource.query(sql, blocksize=size, format=form)), rows)


def pulled(resource: Resource, perform: bytes, rows: int, together: int = 1) -> None:
    with resource.session() as session:
        resource.perform(perform, session=session.id).check()
        _expect(sum(block.num_rows for block in session.pull("out", together).result()), rows)


def _expect(count: int, rows: int) -> None:
    if count != rows:
        raise AssertionError(f"{count} rows instead of {rows}")


@contextmanager
def _connections(world: World) -> Iterator[dict[str, psycopg.Connection[Any]]]:
    with ExitStack() as stack:
        dsns = (world.postgres.socket_dsn, world.postgres.dsn)
        yield {
            mode: stack.enter_context(psycopg.connect(dsn, autocommit=True))
            for mode, dsn in zip(DIRECT, dsns, strict=True)
        }


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _draw(axes: Any, seconds: dict[str, dict[int, float]]) -> None:
    for mode, by_size in seconds.items():
        colour = next((colour for name, colour in COLOURS.items() if mode.endswith(name)), "black")
        if mode == PEER:
            axes.axhline(median(list(by_size.values())), color="grey", linestyle=":", label=mode)
            continue
        style = {"direct, l": "--", "synchron": "--", "pulled by": ":"}
        line = next((kind for start, kind in style.items() if mode.removeprefix(FEDERATED).startswith(start)), "-")
        marker = "s" if mode.startswith(FEDERATED) else "."
        axes.plot(list(by_size), list(by_size.values()), line, color=colour, marker=marker, markersize=5, label=mode)
    blocks(axes, _finding(seconds))
    axes.legend(fontsize="small", ncols=2)


def _finding(seconds: dict[str, dict[int, float]]) -> str:
    if PEER in seconds:
        over = {mode: seconds[mode][1_000] / seconds[PEER][1_000] for mode in ("synchronous, Arrow", "pulled, Arrow")}
        one, many = (f"{over[mode]:.1f}" for mode in over)
        return f"In blocks of 1,000 rows Arrow takes {one} times fetchall streamed, {many} times pulled"
    ratios = [
        each / seconds[mode.removeprefix(FEDERATED)][size]
        for mode, by_size in seconds.items()
        for size, each in by_size.items()
        if mode.startswith(FEDERATED)
    ]
    return f"Through a federation blocks take {median(ratios):.2f} times as long as from the service (median)"
