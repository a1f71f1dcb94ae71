"""What planning takes: binding and the rules, of TPC-H queries and of the published join, and a plan that is used again
with other parameters. No database is asked: the tables are described as they are at scale 1."""

from __future__ import annotations

import time
from dataclasses import replace

from dqp.algebra.operators import Names
from dqp.binding.binder import bind
from dqp.binding.marks import form
from dqp.catalog.catalog import Catalog
from dqp.planning.context import Context
from dqp.planning.costing.cost import Estimator
from dqp.planning.reuse import expected, fits, with_values
from dqp.planning.rules import optimise
from perf.harness import Report, median, shown
from perf.world import World
from tests.dqp.plans import PLACEMENT, PUBLISHED, catalog
from tests.tpch import QUERIES, REUSED, parametrised, qualified

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
        "Binding (DuckDB's check of the query included) and rewriting, medians, in seconds of a processor; a query "
        "that was planned before is not planned again and takes neither."
    )
    report.table(("query", "binding", "rules", "together"), rows)
    report.text("The plan of a query with parameters for its constants, used again with other values of them:")
    again = {name: _again(qualified(QUERIES[name], PLACEMENT), over, rounds) for name in REUSED}
    report.table(("query", "other parameters"), [(name, shown(seconds)) for name, seconds in again.items()])
    report.goal("other parameters, median of the queries, seconds", median([*again.values()]), 0.001)
    report.goal("join of three tables (Q3), seconds", took[THREE_TABLES], 0.010)
    report.goal("TPC-H Q8, seconds", took[EIGHT_TABLES], 0.050)
    return report


def _seconds(sql: str, over: Catalog, rounds: int) -> tuple[float, float]:
    bindings, rewritings = [], []
    for number in range(3 * rounds + 1):
        began = time.thread_time()
        tree = bind(sql, over).tree
        middle = time.thread_time()
        optimise(tree, Context(over, Estimator(), Names()))
        if number:
            bindings.append(middle - began)
            rewritings.append(time.thread_time() - middle)
    return median(bindings), median(rewritings)


def _again(query: str, over: Catalog, rounds: int) -> float:
    sql, values, others = parametrised(query)
    known = form(values)
    assert known is not None
    context = Context(over, Estimator(), Names())
    tree = optimise(bind(sql, over, values, known[1]).tree, context)
    rows = expected(tree, context)
    took = []
    for _ in range(3 * rounds):
        began = time.thread_time()
        wanted = form(others)
        assert wanted is not None
        assert wanted[0] == known[0]
        other = with_values(tree, wanted[1])
        assert fits(other, replace(context, estimator=Estimator()), rows)
        took.append(time.thread_time() - began)
    return median(took)
