"""The queries of a benchmark over one placement of its tables: ours beside other systems on the same databases.

What counts as much as the mean is that no query takes much longer than the best peer, and that all end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

import pyarrow as pa

from dai.errors import CancelledError
from perf.federated_world import Urls, services
from perf.harness import Report, median, shown
from perf.peers import Peer, PeerError, PeerTimeoutError
from perf.plots import count, ranked
from perf.sides import PATIENCE, US, Us, agree
from tests.tpch import Placement, qualified

DUCKDB, NO_CTID, CHDB = "DuckDB", "DuckDB, no ctid scan", "chDB"
PEERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    DUCKDB: ("duckdb_scanners", {}),
    NO_CTID: ("duckdb_scanners", {"pg_use_ctid_scan": "false"}),
    CHDB: ("chdb_engines", {"join_use_nulls": 1, "query_plan_join_swap_table": "'true'"}),
}
"""Program and settings. Without parallel scans of PostgreSQL's pages DuckDB joins in another order."""
FACTOR, MORE = 1.2, 0.1
"""Our time is at most so many times that of the best peer and so many seconds more."""
HOW = (
    f"the answers are compared; whoever is not done after {PATIENCE:.0f} s is stopped and counts with that time. Ours: "
    "a data service in front of each database, HTTP on loopback."
)
TPC = (
    "chDB is stopped after twice the time of DuckDB and 5 s. Keys are declared and statistics taken, there is no other "
    "index."
)
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


def measure(
    report: Report,
    benchmark: str,
    name: str,
    urls: Urls,
    queries: Mapping[str, str],
    placement: Placement,
    rounds: int,
    *,
    peers: Mapping[str, Urls],
    right: Mapping[str, pa.Table] | None = None,
) -> None:
    """Adds to the report the ``queries`` of this benchmark over the placement of this name.

    ``urls`` and ``peers`` say where the databases are, for us and for each peer. The first answer of each side is
    compared with ours (a peer that differs is left out), and ours with ``right``, where given (AssertionError).
    """
    with ExitStack() as stack:
        sides: dict[str, Us | Peer] = {US: stack.enter_context(Us(stack.enter_context(services(urls))))}
        for peer, where in peers.items():
            program, settings = PEERS[peer]
            try:
                sides[peer] = stack.enter_context(Peer(program, where, settings))
            except PeerError as error:
                report.text(f"{peer} takes no part: {str(error).splitlines()[0]}")
        notes: list[str] = []
        times = {}
        for query, sql in queries.items():
            times[query] = _asked(sides, query, qualified(sql, placement), rounds, notes, (right or {}).get(query))
    _reported(report, benchmark, name, placement, times, [*sides], notes)


def _asked(sides: Sides, query: str, sql: str, rounds: int, notes: list[str], right: pa.Table | None = None) -> Times:
    times = Times()
    for name, side in sides.items():
        side.patience = PATIENCE if name != CHDB else 2 * min(times.first.get(DUCKDB, PATIENCE), PATIENCE) + 5
        began = time.perf_counter()
        try:
            side.run(sql)
            times.first[name] = time.perf_counter() - began
            if name == US and right is not None:
                agree(US, side.result(), "one DuckDB that holds everything", right)
            elif name != US and math.isfinite(times.first[US]):
                _compare(times, sides, query, name, notes)
        except (CancelledError, PeerTimeoutError):
            times.first[name] = math.inf
            notes.append(f"{query}: {name} was stopped after {side.patience:.0f} s")
        except PeerError as error:
            notes.append(f"{query}: {name} cannot: {str(error).splitlines()[0][:200]}")
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
    return times


def _compare(times: Times, sides: Sides, query: str, name: str, notes: list[str]) -> None:
    try:
        agree(US, sides[US].result(), name, sides[name].result())
    except AssertionError as error:
        del times.first[name]
        notes.append(f"{query}: {name} answers otherwise and is left out: {str(error)[:200]}")


def _reported(
    report: Report,
    benchmark: str,
    name: str,
    placement: Placement,
    times: Mapping[str, Times],
    sides: Sequence[str],
    notes: Sequence[str],
) -> None:
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
                *(_first(each, side) for side in sides),
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
    report.plot(
        f"{report.name}-{name}", lambda axes: _draw(axes, benchmark, peered), f"our time over the best peer's, {name}"
    )
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


def _first(times: Times, side: str) -> str:
    seconds = times.first.get(side)
    return "–" if seconds is None else shown(seconds) if math.isfinite(seconds) else "stopped"


def _draw(axes: Any, benchmark: str, times: Mapping[str, Times]) -> None:
    ratios = {query: each.of(US) / each.of(each.best()) for query, each in times.items()}
    title = f"dqp is faster than the best other system in {count(ratios)} queries of {benchmark}"
    label = "time of dqp / time of the best other system: less is better"
    ranked(axes, ratios, title=title, label=label, named=[query for query, each in ratios.items() if each > FACTOR])
