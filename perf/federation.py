"""Four joins of a table in PostgreSQL with one in MariaDB, against everything else that joins them in one line.

We reach both databases through a data service each, over HTTP on loopback; the peers connect to the databases
themselves. A peer's settings are those with which it was fastest; where no one setting is, it takes part twice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from perf.federated_world import make_big, services
from perf.harness import Report, median, ratio, shown
from perf.peers import Peer, PeerError
from perf.peers.postgres_foreign import PostgresForeign
from perf.plots import count, dots
from perf.sides import US, Side, Us, compared
from perf.world import World

QUERIES = {
    "Q1": "select count(*), sum(b.amt), count(distinct s.name) from pg.big10 b join maria.small2 s on b.k = s.id",
    "Q2": "select count(*), sum(b.v) from maria.big10 b join pg.small2 s on b.k = s.id where b.flag",
    "Q3": "select substr(a.s1,1,6) g, count(*), sum(a.amt), max(b.s2) from pg.big10 a join maria.big10 b "
    "on a.id = b.id group by 1 order by 1 limit 5",
    "Q3, one group": "select substr(a.s1,7,5) g, count(*), sum(a.amt), max(b.s2) from pg.big10 a join maria.big10 b "
    "on a.id = b.id group by 1 order by 1 limit 5",
    "Q4": "select count(*), min(a.name), max(b.name) from pg.small2 a join maria.small2 b on a.id = b.id",
}
LIMIT = 1.0
"""Our time in that of the fastest peer, at most."""
ROWS = 2
"""``big10`` has so many times the rows of ``mixed``."""


def run(world: World, rounds: int) -> Report:
    rows = ROWS * world.mixed_rows
    report = Report("federation", f"Joins of PostgreSQL with MariaDB: {rows:,} and 16,803 rows")
    urls = make_big(world.postgres, world.mariadb, rows)
    try:
        with ExitStack() as stack:
            sides: dict[str, Side] = {US: stack.enter_context(Us(stack.enter_context(services(urls))))}
            peers: dict[str, Callable[[], Peer | PostgresForeign]] = {
                "DuckDB": lambda: Peer("duckdb_scanners", urls),
                "DuckDB, no ctid scan": lambda: Peer("duckdb_scanners", urls, {"pg_use_ctid_scan": "false"}),
                "chDB": lambda: Peer("chdb_engines", urls, {"query_plan_join_swap_table": "'true'"}),
                "PostgreSQL": lambda: PostgresForeign(world.postgres, urls),
            }
            absent = []
            for name, connect in peers.items():
                try:
                    sides[name] = peer = connect()
                    stack.callback(peer.close)
                except PeerError as error:
                    absent.append(f"{name} takes no part: {str(error).splitlines()[0]}")
            if len(sides) == 1:
                raise PeerError("; ".join(absent))
            seconds = _measured(report, sides, rounds, absent)
    finally:
        for server in (world.postgres, world.mariadb):
            server.drop_database("big")
        world.postgres.drop_database("foreign_tables")
    report.plot("federation", lambda axes: _draw(axes, list(sides), seconds), "dqp beside each other system, a query")
    return report


def _measured(
    report: Report, sides: dict[str, Side], rounds: int, absent: list[str]
) -> dict[str, dict[str, list[float]]]:
    seconds, notes, lines = {}, list(absent), []
    for name, sql in QUERIES.items():
        seconds[name], remarks = compared(sides, sql, rounds)
        notes += [f"{name}: {remark}" for remark in remarks]
        best = min((side for side in seconds[name] if side != US), key=lambda side: median(seconds[name][side]))
        to_best = ratio(seconds[name], US, best)
        lines.append([name, *(_shown(seconds[name], side) for side in sides), best, f"{to_best:.2f}"])
        report.goal(f"{name}: ours / best peer ({best})", to_best, LIMIT)
    products = "; ".join(f"{name}: {side.product}" for name, side in sides.items() if name != US)
    report.text(
        f"Medians of {rounds} warm rounds in which all took turns, until the whole answer was there in Arrow; the "
        "answers are equal. Ours: dqp in one process, a data service in front of each database, HTTP on loopback. "
        f"{products}. The ratio is the median of the rounds' ratios."
    )
    report.table(["query", *sides, "best peer", "ours / best"], lines)
    report.text("\n".join(f"- {name}: `{sql}`" for name, sql in QUERIES.items()))
    report.text(
        "`s1` begins with one of 50,000 numbers, so that the first groups of Q3 are few rows and whoever notices may "
        "skip the others. With one group nothing can be skipped: all of both tables meets."
    )
    if notes:
        report.text("\n".join(f"- {note}" for note in notes))
    return seconds


def _shown(seconds: dict[str, list[float]], side: str) -> str:
    return shown(median(seconds[side])) if side in seconds else "–"


def _draw(axes: Any, sides: list[str], seconds: dict[str, dict[str, list[float]]]) -> None:
    rows = {
        name: {side: ratio(took, US, side) for side in sides if side in took and side != US}
        for name, took in seconds.items()
    }
    best = {name: max(ratios.values()) for name, ratios in rows.items() if ratios}
    title = f"dqp is faster than every other system in {count(best)} joins of PostgreSQL with MariaDB"
    dots(axes, rows, title=title, label="time of dqp / time of the other system: less is better")
