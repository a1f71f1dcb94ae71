"""The published experiment's first table, protein_goterm (16,803 rows), whole and by block, against psycopg.

Published for the original middleware, as multiples of a direct JDBC read: 38 synchronous, 75 in blocks of 120 rows,
1,500 by tuple. The goals are for the time to the last byte, synchronous and pulled alike; what decoding into a table
adds stands beside them.
"""

from __future__ import annotations

from typing import Any

import psycopg

import dai
from perf.blocks import pipeline, pulled
from perf.harness import Report, measured, median, ratio, shown
from perf.world import World

ROWS = 16_803
SQL = "select * from protein_goterm"


def run(world: World, rounds: int) -> Report:
    report = Report("goterm", f"protein_goterm: {ROWS:,} rows through the service and directly")
    resource = dai.connect(world.resource("pg"))
    rounds = max(rounds, 9)
    with psycopg.connect(world.postgres.url) as direct:
        peer = "psycopg fetchall, open connection"
        cases = {
            peer: lambda: _fetchall(direct),
            "WebRowSet, synchronous, to the last byte": lambda: drained(resource.query(SQL, format="webrowset")),
            "WebRowSet, synchronous, decoded": lambda: whole(resource.query(SQL, format="webrowset")),
            "Arrow, synchronous, into a table": lambda: whole(resource.query(SQL)),
            "WebRowSet, pulled in blocks of 100, to the last byte": lambda: received(resource, SQL, 100),
            "WebRowSet, pulled in blocks of 100, decoded": lambda: _pulled(resource, 100),
            "WebRowSet, pulled in blocks of 1,000, to the last byte": lambda: received(resource, SQL, 1000),
            "WebRowSet, pulled in blocks of 1,000, decoded": lambda: _pulled(resource, 1000),
        }
        seconds = measured(cases, rounds, warm=2)
    report.text(
        f"PostgreSQL, warm, medians of {rounds} rounds. Pulled: a session is made, a document run in it, one "
        "request a block, and the session ended."
    )
    report.table(
        ["case", "time", "ratio"],
        [[case, shown(median(took)), f"{ratio(seconds, case, peer):.2f}"] for case, took in seconds.items()],
    )
    for case, limit in (
        ("WebRowSet, synchronous, to the last byte", 3),
        ("WebRowSet, pulled in blocks of 100, to the last byte", 15),
        ("WebRowSet, pulled in blocks of 1,000, to the last byte", 4),
    ):
        report.goal(f"{case} / psycopg", ratio(seconds, case, peer), limit)
    return report


def _fetchall(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(SQL)
        assert len(cursor.fetchall()) == ROWS


def drained(result: Any) -> None:
    for _ in result.chunks():
        continue


def whole(result: Any) -> None:
    assert result.arrow().num_rows == ROWS


def received(resource: Any, sql: str, size: int) -> None:
    with resource.session() as session:
        resource.perform(pipeline(sql, size, "webrowset"), session=session.id).check()
        assert sum(1 for _ in session.pull("out")) == -(-ROWS // size)


def _pulled(resource: Any, size: int) -> None:
    pulled(resource, pipeline(SQL, size, "webrowset"), ROWS)
