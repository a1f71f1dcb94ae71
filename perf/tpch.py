"""TPC-H over two databases, beside DuckDB with its scanners and chDB on the same databases.

The larger tables are in PostgreSQL and the rest in MariaDB, then the other way round. Answers are compared with those
of DuckDB on the whole data as well, all in one place.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb

from perf.federated_world import TPCH, make_tpch
from perf.harness import Report, warm_runs
from perf.placements import HOW, PEERS, TPC, measure
from perf.world import World
from tests.tpch import PLACEMENTS, QUERIES, tables

MOST_ROUNDS = 3


def run(world: World, rounds: int) -> Report:
    rounds = min(rounds, MOST_ROUNDS)
    report = Report("tpch", f"TPC-H at scale {world.scale:g} over PostgreSQL and MariaDB")
    report.text(
        f"{warm_runs(rounds)} in which all took turns, until the whole answer was there in Arrow, and the "
        f"first run; {HOW} {TPC} Our answers are equal to those of DuckDB with the whole data in one "
        "place. DuckDB takes part with its default settings and without parallel scans of PostgreSQL's pages "
        "(`pg_use_ctid_scan`), which make it join in another order."
    )
    queries = {query: sql for query, sql in QUERIES.items() if not world.queries or query in world.queries}
    content = tables(world.scale)
    with duckdb.connect() as connection:
        for name, table in content.items():
            connection.register(name, table)
        right = {query: connection.sql(sql).to_arrow_table() for query, sql in queries.items()}
    for name in world.placements or TPCH:
        if name not in PLACEMENTS:
            continue
        with tempfile.TemporaryDirectory() as directory:
            urls = make_tpch(world.postgres, world.mariadb, name, content, Path(directory))
            try:
                measure(
                    report,
                    "TPC-H",
                    name,
                    urls,
                    queries,
                    PLACEMENTS[name],
                    rounds,
                    peers=dict.fromkeys(PEERS, urls),
                    right=right,
                )
            finally:
                world.postgres.drop_database(f"tpch_{name}")
                world.mariadb.drop_database(f"tpch_{name}")
    return report
