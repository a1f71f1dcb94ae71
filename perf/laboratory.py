"""Science and business data over four products, against DuckDB with its scanners on the same databases.

Nobody tuned the planner for these queries, tables and placements, so that this report says what to expect of queries
that nobody has seen.
"""

from __future__ import annotations

from perf.harness import Report, warm_runs
from perf.placements import DUCKDB, HOW
from perf.tpcds import MOST_ROUNDS, compare
from perf.world import World
from tests.laboratory import PLACEMENTS, generated


def run(world: World, rounds: int) -> Report:
    rounds = min(rounds, MOST_ROUNDS)
    report = Report("laboratory", f"Queries nobody tuned for, at scale {world.scale:g} over four databases")
    report.text(
        f"{warm_runs(rounds)} in which both took turns, until the whole answer was there in Arrow, and the first run; "
        f"{HOW} Keys are declared and statistics taken; six tables have one more index, except in DuckDB."
    )
    with generated(world.scale) as content:
        compare(report, "the laboratory", world, PLACEMENTS, content, rounds, peers=(DUCKDB,))
    return report
