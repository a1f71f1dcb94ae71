"""Where the time of a query goes: 100 to 1 M rows of ``mixed``, stage by stage, beside the bare drivers.

The service times its stages itself and counts them in ``/metrics``; the difference that one request makes is read
there. *Validate* lasts from the first byte of the perform document to the pipeline that is ready to run; *parse* is the
part of it that reads the XML, timed here with the same parser. *Execute* lasts until the database has accepted the
statement, *fetch* is waiting for its tuples, *encode* what the format adds. *Send* is what the client sees beyond
these until it has the last byte: HTTP, hand-over between threads, the socket. Connections are pooled, so *connect* is
nothing; a direct driver connects each time, as a script does, and its *execute* brings the whole result over
(mysqlclient turns it into Python values there as well, psycopg in *fetch*).
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import MySQLdb
import psycopg
from lxml import etree

import dai
from dai.client import Resource, activity, document, element
from perf.harness import Report, legend_below, median, shown
from perf.world import World

ROWS = (100, 300, 1_000, 3_000, 10_000, 1_000_000)
STAGES = ("validate", "parse", "connect", "execute", "fetch", "encode", "send")
ENCODERS = {"WebRowSet": ("sqlResultsToXML", "webRowSet"), "Arrow": ("sqlResultsToArrow", "arrow")}
FEW = 3
"""Rounds for the largest number of rows."""
Stages = dict[str, float]


def run(world: World, rounds: int) -> Report:
    report = Report("stages", "Time per stage")
    report.text((__doc__ or "").split("\n\n", 1)[1].replace("``", "`").strip())
    report.text(
        f"Medians of {rounds} rounds ({min(rounds, FEW)} for 1 M rows), warm, in milliseconds; *whole* is the "
        "request as the client sees it; what medians add up to may differ a little."
    )
    bars: dict[int, dict[str, Stages]] = {}
    with _cases(world) as cases:
        for count in sorted({min(rows, world.mixed_rows) for rows in ROWS}):
            bars[count] = _measured(cases, count, min(rounds, FEW) if count == max(ROWS) else rounds)
            report.text(f"## {count:,} rows")
            report.table(
                ["", *STAGES, "whole"],
                [
                    [case, *(_milliseconds(stages.get(stage)) for stage in STAGES), shown(stages["whole"])]
                    for case, stages in bars[count].items()
                ],
            )
    down = -(-len(bars) // 3)
    report.plot("stages", lambda panels: _draw(panels, bars), "time per stage and number of rows", panels=(down, 3))
    return report


def _measured(cases: dict[str, Callable[[str], Stages]], count: int, rounds: int) -> dict[str, Stages]:
    """Median of each stage; the cases take turns."""
    sql = f"select * from mixed limit {count}"
    measured: dict[str, list[Stages]] = {case: [] for case in cases}
    for number in range(rounds + 1):
        for case, run_once in cases.items():
            stages = run_once(sql)
            if number:
                measured[case].append(stages)
    return {
        case: {stage: median([each[stage] for each in each_round]) for stage in each_round[0]}
        for case, each_round in measured.items()
    }


@contextmanager
def _cases(world: World) -> Iterator[dict[str, Callable[[str], Stages]]]:
    resources = {"PostgreSQL": dai.connect(world.resource("pg")), "MariaDB": dai.connect(world.resource("maria"))}
    cases: dict[str, Callable[[str], Stages]] = {
        "psycopg": lambda sql: _direct(sql, lambda: psycopg.connect(world.postgres.dsn)),
        "mysqlclient": lambda sql: _direct(sql, lambda: MySQLdb.connect(**world.mariadb.dsn)),
    }
    for product, resource in resources.items():
        for form in ENCODERS:
            cases[f"{product}, {form}"] = _service(world.service, resource, form)
    try:
        yield cases
    finally:
        for resource in resources.values():
            resource.close()


def _direct(sql: str, connect: Callable[[], Any]) -> Stages:
    stages: Stages = {}
    began = time.perf_counter()
    with _lapped(stages, "connect"):
        connection = connect()
    try:
        with connection.cursor() as cursor:
            with _lapped(stages, "execute"):
                cursor.execute(sql)
            with _lapped(stages, "fetch"):
                cursor.fetchall()
        stages["whole"] = time.perf_counter() - began
    finally:
        connection.close()
    return stages


def _service(base: str, resource: Resource, form: str) -> Callable[[str], Stages]:
    def run_once(sql: str) -> Stages:
        perform = _document(sql, form)
        stages: Stages = {}
        with _lapped(stages, "parse"):
            etree.fromstring(perform)
        before = _counted(base)
        with _lapped(stages, "whole"):
            for _ in resource.perform(perform, "document").chunks():
                continue
        # A request is counted when it has ended on the other side, a moment after its last byte is here.
        while (after := _counted(base))["requests"] == before["requests"]:
            time.sleep(0.001)
        spent = {stage: after.get(stage, 0.0) - before.get(stage, 0.0) for stage in after if stage != "requests"}
        stages |= spent | {"connect": 0.0, "validate": spent["validate"] - stages["parse"]}
        stages["send"] = max(0.0, stages["whole"] - sum(spent.values()))
        return stages

    return run_once


def _counted(base: str) -> dict[str, float]:
    """The service's counters: seconds by stage, and the number of perform documents as ``requests``."""
    with urllib.request.urlopen(f"{base}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    counters = {"requests": 0.0}
    for line in lines:
        name, _, value = line.rpartition(" ")
        if name.startswith("dai_stage_seconds_total"):
            counters[name.split('"')[1]] = float(value)
        elif name.startswith("dai_requests_total") and "/perform" in name:
            counters["requests"] += float(value)
    return counters


def _document(sql: str, form: str) -> bytes:
    encoder, result = ENCODERS[form]
    return document(
        activity("sqlQueryStatement", element("expression", sql), element("resultStream", name="tuples"), name="query"),
        activity(encoder, element("resultSet", from_="tuples"), element(result, name="document"), name="encode"),
    )


@contextmanager
def _lapped(stages: Stages, stage: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    stages[stage] = time.perf_counter() - began


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:,.0f}"


def _draw(panels: list[Any], bars: dict[int, dict[str, Stages]]) -> None:
    for axes, (count, cases) in zip(panels, bars.items(), strict=False):
        left = dict.fromkeys(cases, 0.0)
        for stage in STAGES:
            widths = [stages.get(stage, 0.0) * 1e3 for stages in cases.values()]
            axes.barh(list(cases), widths, left=list(left.values()), label=stage)
            left = {case: left[case] + width for case, width in zip(cases, widths, strict=True)}
        whole = [stages["whole"] * 1e3 for stages in cases.values()]
        axes.plot(whole, list(cases), "k|", markersize=12, label="whole")
        axes.invert_yaxis()
        axes.set(title=f"{count:,} rows", xlabel="ms")
    most = max(bars)
    service, driver = (bars[most][case]["whole"] for case in ("PostgreSQL, Arrow", "psycopg"))
    title = f"{most:,} rows as Arrow through the service take {service / driver:.2f} times as long as by psycopg"
    panels[0].figure.suptitle(f"{title}: less is better", fontsize=11, x=0.01, ha="left")
    legend_below(panels[0])
    for axes in panels[len(bars) :]:
        axes.set_axis_off()
