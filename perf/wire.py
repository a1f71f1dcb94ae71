"""Bytes on the wire: every format in every content coding, for the demo tables and 100,000 rows of ``mixed``.

What is counted is the body of the reply as it travels, before the client takes its coding off; what is timed is the
whole request, to the last decompressed byte. On loopback bytes cost nothing: the column *at 100 Mbit/s* adds what they
would cost on such a line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import dai
from dai import formats
from dai.client import Resource, activity, document, element
from perf.harness import Report, legend_below, measured, median, shown
from perf.world import World

FORMATS = ("webrowset", "csv", "arrow", "arrow, zstd buffers", "parquet", "json")
CODINGS = ("identity", "gzip", "zstd")
MIXED_ROWS = 100_000
LINE = 100e6 / 8
"""Bytes a second of the line that the last column imagines."""


@dataclass(frozen=True)
class Case:
    table: str
    sql: str
    rows: int


def run(world: World, rounds: int) -> Report:
    report = Report("wire", "Bytes on the wire")
    mixed = min(MIXED_ROWS, world.mixed_rows)
    tables = [
        Case("littleblackbook", "select * from littleblackbook", 10_000),
        Case("protein_goterm", "select * from protein_goterm", 16_803),
        Case("protein_interaction", "select * from protein_interaction", 4_716),
        Case("mixed", f"select * from mixed limit {mixed}", mixed),
    ]
    report.text(
        f"PostgreSQL, blocks of the service's own choice, medians of {rounds} rounds. Bytes of the body as it travels; "
        "time to the last decompressed byte at a client on loopback, and what it would be if the bytes had to pass a "
        "line of 100 Mbit/s as well (the two added)."
    )
    curves: dict[str, dict[tuple[str, str], float]] = {}
    with ExitStack() as stack:
        resources = {coding: dai.connect(world.resource("pg"), compression=coding) for coding in CODINGS}
        for resource in resources.values():
            stack.callback(resource.close)
        for case in tables:
            received, seconds = _measured(resources, case, rounds)
            plain = received["csv", "identity"]
            report.text(f"## {case.table}: {case.rows:,} rows")
            report.table(
                ["format", "coding", "bytes", "bytes a row", "of plain CSV", "time", "at 100 Mbit/s"],
                [
                    [
                        *(form, coding, f"{size:,}", f"{size / case.rows:.1f}", f"{size / plain:.2f}"),
                        *(shown(seconds[form, coding]), shown(seconds[form, coding] + size / LINE)),
                    ]
                    for (form, coding), size in received.items()
                ],
            )
            curves[case.table] = {key: size / case.rows for key, size in received.items()}
    report.plot("wire", lambda axes: _draw(axes, curves), "bytes a row by format and coding", panels=(2, 2))
    return report


def _measured(
    resources: Mapping[str, Resource], case: Case, rounds: int
) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], float]]:
    received: dict[tuple[str, str], int] = {}
    calls: dict[str, Callable[[], None]] = {}
    keys: dict[str, tuple[str, str]] = {}
    for form in FORMATS:
        for coding in CODINGS:
            keys[f"{form} {coding}"] = form, coding
            calls[f"{form} {coding}"] = _call(resources[coding], case, form, (form, coding), received)
    seconds = measured(calls, rounds)
    return received, {keys[name]: median(took) for name, took in seconds.items()}


def _call(
    resource: Resource, case: Case, form: str, key: tuple[str, str], received: dict[tuple[str, str], int]
) -> Callable[[], None]:
    compressed = _compressed(case.sql)

    def call() -> None:
        if form in formats.FORMATS:
            result = resource.query(case.sql, format=form)
        else:
            result = resource.perform(compressed, "document")
        for _ in result.chunks():
            continue
        received[key] = result.received

    return call


def _compressed(sql: str) -> bytes:
    """Arrow whose buffers are compressed: any Arrow reader takes them, also where no HTTP client could."""
    return document(
        activity("sqlQueryStatement", element("expression", sql), element("resultStream", name="tuples"), name="query"),
        activity(
            "sqlResultsToArrow",
            element("resultSet", from_="tuples"),
            element("arrow", name="document"),
            name="encode",
            compression="zstd",
        ),
    )


def _draw(panels: list[Any], curves: dict[str, dict[tuple[str, str], float]]) -> None:
    height = 0.8 / len(CODINGS)
    for axes, (table, sizes) in zip(panels, curves.items(), strict=True):
        for number, coding in enumerate(CODINGS):
            places = [place + (number - 1) * height for place in range(len(FORMATS))]
            axes.barh(places, [sizes[form, coding] for form in FORMATS], height, label=coding)
        axes.set_yticks(range(len(FORMATS)), FORMATS)
        axes.invert_yaxis()
        axes.set(title=table, xlabel="bytes a row")
    left = [max(sizes["webrowset", "zstd"] / sizes["webrowset", "identity"] for sizes in curves.values())]
    title = f"zstd leaves at most {max(left):.0%} of the bytes of WebRowSet: less is better"
    panels[0].figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    legend_below(panels[0], "content coding")
