"""TPC-DS over up to four products, against DuckDB with its scanners and chDB on the same databases.

Nobody tuned a query or a placement: what counts as much as the mean is that no query takes much longer than the best
peer, and that all end.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import psycopg

from dai.errors import CancelledError
from perf.federated_world import Urls, services
from perf.harness import Report, median, shown
from perf.peers import Peer, PeerError, PeerTimeoutError
from perf.plots import count, ranked
from perf.sides import PATIENCE, US, Us, agree
from perf.world import World
from tests.tpcds import PLACEMENTS, Generated, generated, load
from tests.tpch import qualified

MOST_ROUNDS = 2
DUCKDB, CHDB = "DuckDB", "chDB"
FACTOR, MORE = 1.2, 0.1
"""Our time is at most so many times that of the best peer and so many seconds more."""
Sides = Mapping[str, Us | Peer]


@dataclass
class Times:
    """Of one query, by side: seconds of the ``first`` run and of the ``warm`` ones; infinite where it did not end."""

    first: dict[str, float] = field(default_factory=dict)
    warm: dict[str, list[float]] = field(default_factory=dict)

    def of(self, side: str) -> float:
        return median(self.warm[side])

    def best(self) -> str:
        """The fastest peer."""
        return min((side for side in self.warm if side != US), key=self.of, default="")

    def slow(self) -> bool:
        return bool(self.best()) and self.of(US) > FACTOR * self.of(self.best()) + MORE


def run(world: World, rounds: int) -> Report:
    rounds = min(rounds, MOST_ROUNDS)
    report = Report("tpcds", f"TPC-DS at scale {world.scale:g} over PostgreSQL, MariaDB, SQLite and DuckDB")
    report.text(
        f"Medians of {rounds} warm runs in which all took turns, until the whole answer was there in Arrow, and the "
        f"first run. The sides' answers are compared; whoever is not done after {PATIENCE:.0f} s is stopped and counts "
        "with that time (chDB: twice the time of DuckDB and 5 s). Ties that LIMIT cuts are decided by all columns. "
        "Ours: a data service in front of each database, HTTP on loopback. Keys are declared and statistics taken, "
        "there is no other index."
    )
    with generated(world.scale) as content:
        for name in world.placements or PLACEMENTS:
            with databases(world, name, content) as (urls, peers), ExitStack() as stack:
                sides = _sides(stack, urls, peers, report)
                times, notes = _asked(sides, PLACEMENTS[name], content, world.queries, rounds)
            _told(report, name, times, [*sides], notes)
    return report


@contextmanager
def databases(world: World, name: str, content: Generated) -> Iterator[tuple[Urls, Urls]]:
    """The placement of this name, until the block ends: alias to URL, for us and for the peers, whose DuckDB is of
    another version and has a file of its own."""
    placement = PLACEMENTS[name]
    database = f"tpcds_{name}"
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


def _sides(stack: ExitStack, urls: Urls, peers: Urls, report: Report) -> Sides:
    sides: dict[str, Us | Peer] = {US: stack.enter_context(Us(stack.enter_context(services(urls))))}
    for name, program, settings in (
        (DUCKDB, "duckdb_scanners", {}),
        (CHDB, "chdb_engines", {"join_use_nulls": 1, "query_plan_join_swap_table": "'true'"}),
    ):
        try:
            sides[name] = stack.enter_context(Peer(program, peers, settings))
        except PeerError as error:
            report.text(f"{name} takes no part: {str(error).splitlines()[0]}")
    return sides


def _asked(
    sides: Sides, placement: Mapping[str, str], content: Generated, queries: Sequence[str], rounds: int
) -> tuple[dict[str, Times], list[str]]:
    asked, notes = {}, []
    for query in queries or content.queries:
        sql = qualified(content.queries[query], placement)
        times = asked[query] = Times()
        for name, side in sides.items():
            side.patience = PATIENCE if name != CHDB else 2 * min(times.first.get(DUCKDB, PATIENCE), PATIENCE) + 5
            began = time.perf_counter()
            try:
                side.run(sql)
                times.first[name] = time.perf_counter() - began
                if name != US and math.isfinite(times.first[US]):
                    agree(US, sides[US].result(), name, side.result())
            except (CancelledError, PeerTimeoutError):
                times.first[name] = math.inf
                notes.append(f"{query}: {name} was stopped after {side.patience:.0f} s")
            except PeerError as error:
                notes.append(f"{query}: {name} cannot: {str(error).splitlines()[0][:200]}")
            except AssertionError as error:
                del times.first[name]
                notes.append(f"{query}: {name} answers otherwise and is left out: {str(error)[:200]}")
        ended = [name for name, seconds in times.first.items() if math.isfinite(seconds)]
        times.warm = {name: [sides[name].patience or PATIENCE] for name in times.first if name not in ended}
        for _ in range(rounds):
            for name in ended:
                began = time.perf_counter()
                try:
                    sides[name].run(sql)
                except (CancelledError, PeerTimeoutError):
                    notes.append(f"{query}: {name} was stopped in a warm run")
                times.warm.setdefault(name, []).append(time.perf_counter() - began)
        print(query, *(f"{name} {shown(times.of(name))}" for name in times.warm), flush=True)
    return asked, notes


def _told(report: Report, name: str, times: Mapping[str, Times], sides: Sequence[str], notes: Sequence[str]) -> None:
    placement = PLACEMENTS[name]
    where = {
        alias: ", ".join(table for table, at in placement.items() if at == alias) for alias in set(placement.values())
    }
    report.text(f"## {name}\n\n" + "; ".join(f"`{alias}`: {names}" for alias, names in sorted(where.items())) + ".")
    peered = {query: each for query, each in times.items() if each.best()}
    shared = {query: each for query, each in times.items() if DUCKDB in each.warm}
    report.table(
        ["query", *(f"{side}, first" for side in sides), *sides, "ours / best peer"],
        [
            [
                query,
                *(shown(each.first[side]) if side in each.first else "–" for side in sides),
                *(shown(each.of(side)) if side in each.warm else "–" for side in sides),
                f"{each.of(US) / each.of(each.best()):.2f}" if each.best() else "–",
            ]
            for query, each in times.items()
        ],
    )
    report.text(
        "Sums over the queries that DuckDB answers too: "
        + "; ".join(
            f"{side} {shown(sum(each.of(side) for each in shared.values()))} warm, "
            f"{shown(sum(min(each.first[side], PATIENCE) for each in shared.values()))} first"
            for side in (US, DUCKDB)
        )
        + "."
    )
    slow = [query for query, each in times.items() if each.slow()]
    report.text(f"Above {FACTOR:g} x the best peer + {MORE:g} s: {', '.join(slow) or 'none'}.")
    if notes:
        report.text("\n".join(f"- {note}" for note in notes))
    if not peered:
        report.text("No peer took part (perf/peers/install installs them), so nothing is compared.")
        return
    report.plot(f"tpcds-{name}", lambda axes: _draw(axes, peered), f"our time over the best peer's, {name}")
    ratios = [each.of(US) / each.of(each.best()) for each in peered.values()]
    report.goal(f"{name}: geometric mean of ours / best peer", geometric_mean(ratios), 0.35)
    report.goal(
        f"{name}: sum of ours / sum of the best peers'",
        sum(each.of(US) for each in peered.values()) / sum(each.of(each.best()) for each in peered.values()),
        0.5,
    )
    report.goal(f"{name}: queries above {FACTOR:g} x the best peer + {MORE:g} s", len(slow), 0)
    unfinished = [query for query, each in times.items() if math.isinf(each.first[US])]
    report.goal(f"{name}: queries that do not end", len(unfinished), 0)


def _draw(axes: Any, times: Mapping[str, Times]) -> None:
    ratios = {query: each.of(US) / each.of(each.best()) for query, each in times.items()}
    title = f"dqp is faster than the best other system in {count(ratios)} queries of TPC-DS"
    label = "time of dqp / time of the best other system: less is better"
    ranked(axes, ratios, title=title, label=label, named=[query for query, each in ratios.items() if each > FACTOR])
