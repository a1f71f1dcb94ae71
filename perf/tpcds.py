"""TPC-DS over up to four products, against DuckDB with its scanners and chDB on the same databases.

Nobody tuned a query or a placement: what counts as much as the mean is that no query takes much longer than the best
peer, and that all end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from perf.federated_world import Urls
from perf.harness import Report, warm_runs
from perf.placements import CHDB, DUCKDB, HOW, TPC, measure
from perf.world import World
from tests.tpcds import PLACEMENTS, Generated, generated, load
from tests.tpch import Placement, spread

MOST_ROUNDS = 2
RANDOM = "random"
"""How the name of a random placement begins; the whole is its seed."""


def run(world: World, rounds: int) -> Report:
    rounds = min(rounds, MOST_ROUNDS)
    report = Report("tpcds", f"TPC-DS at scale {world.scale:g} over PostgreSQL, MariaDB, SQLite and DuckDB")
    report.text(
        f"{warm_runs(rounds)} in which all took turns, until the whole answer was there in Arrow, and the "
        f"first run; {HOW} {TPC} Ties that LIMIT cuts are decided by all columns."
    )
    with generated(world.scale) as content:
        compare(report, "TPC-DS", world, PLACEMENTS, content, rounds, peers=(DUCKDB, CHDB))
    return report


def compare(
    report: Report,
    benchmark: str,
    world: World,
    placements: Mapping[str, Placement],
    content: Generated,
    rounds: int,
    *,
    peers: Sequence[str],
) -> None:
    """Adds to the report the queries of this benchmark that are wanted, over each placement that is."""
    queries = {query: sql for query, sql in content.queries.items() if not world.queries or query in world.queries}
    for name in world.placements or placements:
        if name.startswith(RANDOM):
            placement = spread(next(iter(placements.values())), name)
        elif name in placements:
            placement = placements[name]
        else:
            continue
        with databases(world, f"{report.name}_{name}", placement, content) as (urls, theirs):
            where = dict.fromkeys(peers, theirs)
            measure(report, benchmark, name, urls, queries, placement, rounds, peers=where)


@contextmanager
def databases(world: World, database: str, placement: Placement, content: Generated) -> Iterator[tuple[Urls, Urls]]:
    """The tables in databases of this name, until the block ends: alias to URL, for us and for the peers, whose DuckDB
    is of another version and has a file of its own."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        file = Path(directory)
        urls = {"lite": f"sqlite:///{file / 'lite.sqlite'}", "duck": f"duckdb:///{file / 'duck.duckdb'}"}
        for alias, server in (("pg", world.postgres), ("maria", world.mariadb)):
            urls[alias] = server.create_database(database)
            stack.callback(server.drop_database, database)
        urls = {alias: urls[alias] for alias in sorted(set(placement.values()))}
        load(placement, urls, content)
        with psycopg.connect(urls["pg"], autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")  # autovacuum is off in these servers
        peers = dict(urls)
        if "duck" in urls:
            content.gather(file / "peers.duckdb", [table for table, alias in placement.items() if alias == "duck"])
            peers["duck"] = f"duckdb:///{file / 'peers.duckdb'}"
        yield urls, peers
