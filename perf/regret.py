"""Does a query regret its plan? Each query of TPC-DS and TPC-H with the plan of least cost, with everything pushed down
and with only filters and columns pushed down: the first in the least of the three is its regret. Then with statistics
that are wrong on purpose: row counts a hundred times too large, too small, and none at all.

A forced plan that is ours is not run: the difference would be chance. What looks like regret is asked again.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dai.drivers.tables import Statistics
from dai.errors import CancelledError
from dqp.algebra.operators import Remote
from dqp.algebra.trees import walk_deep
from dqp.sql import dialects
from perf.federated_world import TPCH, Urls, make_tpch, services
from perf.harness import Report, legend_below, median, shown, warm_runs
from perf.plots import decades
from perf.sides import PATIENCE, Us, agree
from perf.tpcds import databases
from perf.world import World
from tests import tpcds, tpch
from tests.tpch import Placement, qualified

MOST_ROUNDS = 3
SUSPECT = 1.3
"""Ratio from which a query is asked more often, before it is believed."""
OURS = "ours"
FORCED = {"all pushed": "all", "nothing pushed": "none"}
"""Alternatives, by their ``pushdown``."""
Wrong = Callable[[Statistics], Statistics]
Asked = Mapping[str, Mapping[str, float]]
"""Query, plan: seconds."""


def _times(factor: float) -> Wrong:
    def wrong(known: Statistics) -> Statistics:
        columns = {
            name: replace(each, distinct=None if each.distinct is None else max(each.distinct * factor, 1.0))
            for name, each in known.columns.items()
        }
        return Statistics(
            None if known.rows is None else max(int(known.rows * factor), 1),
            None if known.size_bytes is None else max(int(known.size_bytes * factor), 1),
            columns,
        )

    return wrong


WRONG: Mapping[str, Wrong] = {
    "rows x 100": _times(100.0),
    "rows / 100": _times(0.01),
    "no statistics": lambda known: Statistics(None),
}


def run(world: World, rounds: int) -> Report:
    rounds = min(rounds, MOST_ROUNDS)
    report = Report("regret", f"Regret at scale {world.scale:g}: our plan against the best of the forced ones")
    report.text(
        f"{warm_runs(rounds)} in which all took turns. The regret is the time of our plan over the least of "
        "three: ours, everything that a source can compute pushed down, and only filters and columns pushed down. A "
        "forced plan that is the same as ours is not run (=). An alternative is stopped after twice our time and one "
        "second; ours after a minute. The answers are compared. "
        f"A regret or a ratio above {SUSPECT:g} is measured in {2 * rounds} more rounds. "
        "With wrong statistics the plan is ours: the ratio is to the same least time, and a query is stopped after "
        "five times that and two seconds."
    )
    if placements := [name for name in world.placements or tpcds.PLACEMENTS if name in tpcds.PLACEMENTS]:
        with tpcds.generated(world.scale) as content:
            for name in placements:
                placement = tpcds.PLACEMENTS[name]
                with databases(world, f"tpcds_{name}", placement, content) as (urls, _):
                    _placed(report, f"TPC-DS, {name}", urls, placement, content.queries, world, rounds)
    for name in world.placements or TPCH:
        if name in tpch.PLACEMENTS:
            with _tpch(world, name) as urls:
                _placed(report, f"TPC-H, {name}", urls, tpch.PLACEMENTS[name], tpch.QUERIES, world, rounds)
    return report


@contextmanager
def _tpch(world: World, name: str) -> Iterator[Urls]:
    with tempfile.TemporaryDirectory() as directory:
        try:
            yield make_tpch(world.postgres, world.mariadb, name, tpch.tables(world.scale), Path(directory))
        finally:
            for server in (world.postgres, world.mariadb):
                server.drop_database(f"tpch_{name}")


def _placed(
    report: Report,
    title: str,
    urls: Urls,
    placement: Placement,
    queries: Mapping[str, str],
    world: World,
    rounds: int,
) -> None:
    with ExitStack() as stack:
        sources = stack.enter_context(services(urls))
        plans = {OURS: stack.enter_context(Us(sources))}
        plans |= {name: stack.enter_context(Us(sources, {"pushdown": value})) for name, value in FORCED.items()}
        plans |= {name: stack.enter_context(_misled(sources, wrong)) for name, wrong in WRONG.items()}
        wanted = {query: sql for query, sql in queries.items() if not world.queries or query in world.queries}
        asked = {query: _asked(plans, qualified(sql, placement), rounds) for query, sql in wanted.items()}
    least = {query: min(times[name] for name in (OURS, *FORCED)) for query, times in asked.items()}
    report.text(f"## {title}")
    report.table(
        ["query", *plans, "regret", *(f"{name}, ratio" for name in WRONG)],
        [
            [
                query,
                *(_told(times, name) for name in plans),
                *(f"{times[name] / least[query]:.2f}" for name in (OURS, *WRONG)),
            ]
            for query, times in asked.items()
        ],
    )
    regrets = [times[OURS] / least[query] for query, times in asked.items()]
    report.plot(f"regret-{title}".replace(", ", "-").lower(), lambda axes: _draw(axes, asked, least), "regret a query")
    report.goal(f"{title}: median regret", median(regrets), 1.05)
    report.goal(f"{title}: largest regret", max(regrets), 1.5)
    for name in WRONG:
        worst = max(times[name] / least[query] for query, times in asked.items())
        report.goal(f"{title}, {name}: largest ratio", worst, 3.0)


def _misled(sources: Urls, wrong: Wrong) -> Us:
    """A federation whose sources say this of their tables."""
    side = Us(sources)
    for source in side.lab.coordinator.catalog.sources.values():
        told: Any = source  # one federation's own object, not the class
        told.statistics = lambda table, right=source.statistics: wrong(right(table))
        told.tables = lambda right=source.tables: tuple(
            replace(each, rows=wrong(Statistics(each.rows)).rows) for each in right()
        )
    return side


def _told(times: Mapping[str, float], name: str) -> str:
    if name in FORCED and times[name] == times[OURS]:
        return "="
    return shown(times[name]) if math.isfinite(times[name]) else "stopped"


def _asked(plans: Mapping[str, Us], sql: str, rounds: int) -> dict[str, float]:
    """The median seconds of each plan; those of ours for a forced plan that is the same."""
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    rest = dict(plans)
    _run(rest, sql, seconds, first=True)
    ours = _plan(plans[OURS], sql)
    for name in FORCED:
        if _plan(plans[name], sql) == ours:
            del rest[name]
    for _ in range(rounds):
        _run(rest, sql, seconds)
    least = min(_median(seconds[name]) for name in (OURS, *FORCED) if name in rest)
    best = next(name for name in rest if _median(seconds[name]) == least)
    suspects = {name for name in (OURS, *WRONG) if SUSPECT * least < _median(seconds[name]) < math.inf}
    again = {name: side for name, side in rest.items() if suspects and name in {best, *suspects}}
    for _ in range(2 * rounds):
        _run(again, sql, seconds)
    times = {name: _median(seconds[name if name in rest else OURS]) for name in plans}
    print({name: _told(times, name) for name in plans}, flush=True)
    return times


def _run(plans: Mapping[str, Us], sql: str, seconds: Mapping[str, list[float]], *, first: bool = False) -> None:
    """One round in turns; a plan that was stopped is not asked again. The answers of the first round are compared."""
    for name, side in plans.items():
        if math.inf in seconds[name]:
            continue
        known = [_median(each) for other, each in seconds.items() if other not in WRONG and each]
        if name == OURS or not known:
            side.patience = PATIENCE
        else:
            side.patience = 5 * min(known) + 2 if name in WRONG else 2 * known[0] + 1
        began = time.perf_counter()
        try:
            side.run(sql)
            seconds[name].append(time.perf_counter() - began)
            if first and name != OURS and math.inf not in seconds[OURS]:
                agree(OURS, plans[OURS].result(), name, side.result())
        except CancelledError:
            seconds[name].append(math.inf)


def _median(seconds: Sequence[float]) -> float:
    """Of the warm runs."""
    return math.inf if math.inf in seconds else median(seconds[1:] or seconds)


def _plan(side: Us, sql: str) -> list[str]:
    """The operators of the plan and its statements."""
    coordinator = side.lab.coordinator
    words = []
    for each in walk_deep(coordinator.plan(sql).tree):
        words.append(type(each).__name__)
        if isinstance(each, Remote):
            words.append(dialects.statement(each.tree, coordinator.catalog.dialect(each.source)).sql)
    return words


def _draw(axes: Any, asked: Asked, least: Mapping[str, float]) -> None:
    """For each plan the ratios of all queries, in order."""
    largest = max(times[OURS] / least[query] for query, times in asked.items())
    for name in (OURS, *WRONG):
        ratios = sorted(times[name] / least[query] for query, times in asked.items())
        axes.plot(range(1, 1 + len(ratios)), [min(each, 10.0) for each in ratios], label=name)
    title = f"Our plan takes at most {largest:.1f} times the least of {len(asked)} queries"
    axes.set_title(title, fontsize=11, loc="left", wrap=True)
    axes.set_xlabel("queries, the best first")
    axes.set_ylabel("time over the least (10: or more): less is better")
    decades(axes, "y")
    legend_below(axes)
