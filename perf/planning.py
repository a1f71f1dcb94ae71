"""What planning takes: binding and the rules, of TPC-H queries and of the published join. No database is asked: the
tables are described as they are at scale 1."""

from __future__ import annotations

import time

from dqp.algebra.operators import Names
from dqp.binding.binder import bind
from dqp.catalog.catalog import Catalog
from dqp.planning.context import Context
from dqp.planning.costing.cost import Estimator
from dqp.planning.rules import optimise
from perf.harness import Report, median, shown
from perf.world import World
from tests.dqp.plans import PLACEMENT, PUBLISHED, catalog
from tests.tpch import QUERIES, qualified

THREE_TABLES = "q03"
EIGHT_TABLES = "q08"


def run(world: World, rounds: int) -> Report:
    report = Report("planning", "What planning takes")
    over = catalog()
    took: dict[str, float] = {}
    rows = []
    for name, sql in {**QUERIES, **PUBLISHED}.items():
        text = qualified(sql, PLACEMENT)
        binding, rules = _seconds(text, over, rounds)
        took[name] = binding + rules
        rows.append((name, shown(binding), shown(rules), shown(took[name])))
    report.text(
        "Binding (DuckDB's check of the query included) and rewriting, medians; a query that was planned before is "
        "not planned again and takes neither."
    )
    report.table(("query", "binding", "rules", "together"), rows)
    report.goal("join of three tables (Q3), seconds", took[THREE_TABLES], 0.010)
    report.goal("TPC-H Q8, seconds", took[EIGHT_TABLES], 0.050)
    return report


def _seconds(sql: str, over: Catalog, rounds: int) -> tuple[float, float]:
    bindings, rewritings = [], []
    for number in range(3 * rounds + 1):
        began = time.perf_counter()
        tree = bind(sql, over).tree
        middle = time.perf_counter()
        optimise(tree, Context(over, Estimator(), Names()))
        if number:
            bindings.append(middle - began)
            rewritings.append(time.perf_counter() - middle)
    return median(bindings), median(rewritings)
