"""TPC-H over two databases, against DuckDB with its scanners on the same databases.

The larger tables are in PostgreSQL and the rest in MariaDB, then the other way round. Answers are compared with those
of DuckDB on the whole data as well, all in one place.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import duckdb
import pyarrow as pa

from perf.federated_world import TPCH, make_tpch, services
from perf.harness import Report, median, ratio, shown
from perf.peers import Peer
from perf.plots import count, dots
from perf.sides import US, Side, Us, agree, compared
from perf.world import World
from tests.tpch import PLACEMENTS, QUERIES, qualified, tables

MOST_ROUNDS = 3
CTID, NO_CTID = "DuckDB", "DuckDB, no ctid scan"


def run(world: World, rounds: int) -> Report:
    rounds = min(rounds, MOST_ROUNDS)
    report = Report("tpch", f"TPC-H at scale {world.scale:g} over PostgreSQL and MariaDB")
    report.text(
        f"Medians of {rounds} warm rounds in which all took turns, until the whole answer was there in Arrow. All "
        "answers are equal, and equal to those of DuckDB with the whole data in one place. Ours: a data service in "
        "front of each database, HTTP on loopback. DuckDB takes part with its default settings and without parallel "
        "scans of PostgreSQL's pages (`pg_use_ctid_scan`), which make it join in another order."
    )
    content = tables(world.scale)
    expected = _whole(content)
    for name in TPCH:
        with tempfile.TemporaryDirectory() as directory:
            urls = make_tpch(world.postgres, world.mariadb, name, content, Path(directory))
            try:
                _placed(report, name, urls, expected, rounds)
            finally:
                world.postgres.drop_database(f"tpch_{name}")
                world.mariadb.drop_database(f"tpch_{name}")
    return report


def _whole(content: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The answers of DuckDB on the whole data."""
    with duckdb.connect() as connection:
        for name, table in content.items():
            connection.register(name, table)
        return {name: connection.sql(sql).to_arrow_table() for name, sql in QUERIES.items()}


def _placed(report: Report, name: str, urls: Any, expected: dict[str, pa.Table], rounds: int) -> None:
    placement = PLACEMENTS[name]
    seconds: dict[str, dict[str, list[float]]] = {}
    notes: list[str] = []
    with ExitStack() as stack:
        sides: dict[str, Side] = {
            US: stack.enter_context(Us(stack.enter_context(services(urls)))),
            CTID: stack.enter_context(Peer("duckdb_scanners", urls)),
            NO_CTID: stack.enter_context(Peer("duckdb_scanners", urls, {"pg_use_ctid_scan": "false"})),
        }
        for query, sql in QUERIES.items():
            seconds[query], remarks = compared(sides, qualified(sql, placement), rounds)
            notes += [f"- {query}: {remark}" for remark in remarks]
            assert len(seconds[query]) == len(sides), remarks
            agree(US, sides[US].result(), "DuckDB on the whole data", expected[query])
    means = {side: geometric_mean(median(took[side]) for took in seconds.values()) for side in sides}
    peer = min((CTID, NO_CTID), key=lambda side: means[side])
    where = {alias: ", ".join(table for table, at in placement.items() if at == alias) for alias in urls}
    report.text(f"## {name}\n\n" + "; ".join(f"`{alias}`: {names}" for alias, names in where.items()) + ".")
    report.table(
        ["query", *sides, f"ours / {peer}"],
        [
            [query, *(shown(median(took[side])) for side in sides), f"{ratio(took, US, peer):.2f}"]
            for query, took in seconds.items()
        ]
        + [["geometric mean", *(shown(mean) for mean in means.values()), f"{means[US] / means[peer]:.2f}"]],
    )
    if notes:
        report.text("\n".join(notes))
    report.plot(f"tpch-{name}", lambda axes: _draw(axes, seconds, list(sides)), f"dqp beside DuckDB, {name}", height=6)
    report.goal(
        f"{name}: geometric mean of ours / {peer}",
        geometric_mean(ratio(took, US, peer) for took in seconds.values()),
        1.0,
    )


def _draw(axes: Any, seconds: dict[str, dict[str, list[float]]], sides: list[str]) -> None:
    peers = [side for side in sides if side != US]
    ratios = {query: max(ratio(took, US, side) for side in peers) for query, took in seconds.items()}
    title = f"dqp is faster than DuckDB with its scanners in {count(ratios)} queries of TPC-H"
    label = "time of dqp / time of DuckDB, with the better setting: less is better"
    dots(axes, {query: {"ratio": each} for query, each in ratios.items()}, title=title, label=label)
