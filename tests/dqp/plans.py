"""Golden plans: what the rules make of the 22 TPC-H queries and of the published three, as text in ``tests/plans``.

``docs/plan.svg`` is one plan drawn.
``tests/plans/statistics.json`` describes the tables as they are at scale 1 (type, different values, lowest, highest,
bytes of a value), so that no database is needed. After a change that is meant::

    python -m tests.dqp.plans        # writes the files again; their difference is for the review
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dqp.algebra import types
from dqp.algebra.operators import Names, Nested, Operator, Remote
from dqp.algebra.table import Column, Table
from dqp.binding.binder import bind
from dqp.catalog.catalog import Catalog
from dqp.explain.explanation import Explanation
from dqp.explain.labels import described
from dqp.explain.plan import node_of
from dqp.planning.context import Context
from dqp.planning.costing.cost import Estimator
from dqp.planning.distribution.partition import cut
from dqp.planning.distribution.placement import Placement, named_places
from dqp.planning.rules import optimise
from dqp.planning.splitting import parts
from dqp.sql import dialects
from tests.tpch import PLACEMENTS, QUERIES, qualified

DIRECTORY = Path(__file__).parents[1] / "plans"
DRAWING = Path(__file__).parents[2] / "docs" / "plan.svg"
DRAWN = """select o_orderpriority, count(*) as n, sum(l_quantity) as pieces from lineitem, orders
           where l_orderkey = o_orderkey and l_shipdate >= date '1998-06-01' group by all order by pieces desc"""
EVALUATORS = ("http://127.0.0.1:8081", "http://127.0.0.1:8082")
PLACEMENT = {**PLACEMENTS["facts_apart"], "protein_goterm": "pg", "goterm": "maria"}
PUBLISHED = {
    "goterm": "select * from goterm",
    "protein_goterm": "select * from protein_goterm",
    "protein_join": "select p.ORF, p.GOTermIdentifier, g.name from protein_goterm p, goterm g "
    "where p.GOTermIdentifier = g.id and g.type = 'molecular_function' and p.ORF like 'YA%'",
}
DIALECTS = {"pg": "postgresql", "maria": "mariadb", "lite": "sqlite", "duck": "duckdb"}
SOURCE_TYPES = {
    "pg": {"BIGINT": "int8", "INTEGER": "int4", "DECIMAL(15,2)": "numeric"},
    "maria": {"BIGINT": "bigint", "INTEGER": "int", "DECIMAL(15,2)": "decimal"},
    "lite": {"BIGINT": "bigint", "DECIMAL(15,2)": "numeric"},
    "duck": {"BIGINT": "bigint", "INTEGER": "integer", "DECIMAL(15,2)": "decimal"},
}


def statistics() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DIRECTORY / "statistics.json").read_text())
    return content


def catalog(placement: Mapping[str, str] = PLACEMENT) -> Catalog:
    """The described tables in the sources where the placement has them. One for all tests of a process."""
    return _catalog(frozenset(placement.items()))


@cache
def _catalog(places: frozenset[tuple[str, str]]) -> Catalog:
    placement, tables = dict(places), []
    for name, table in statistics().items():
        if name in placement:
            columns = tuple(_column(placement[name], each, *facts) for each, facts in table["columns"].items())
            rows = float(table["rows"])
            size = rows * sum(each.width for each in columns)
            tables.append(Table(placement[name], name, columns, keys=(tuple(table["key"]),), rows=rows, bytes=size))
    return Catalog.of(tables, dialects=DIALECTS)


def _column(
    source: str, name: str, type: str, distinct: int, low: str | None, high: str | None, width: float
) -> Column:
    seen = "BIGINT" if source == "lite" and type == "INTEGER" else type
    return Column(
        name,
        seen,
        SOURCE_TYPES[source].get(seen, seen.lower()),
        nullable=False,
        distinct=float(distinct),
        null_fraction=0.0,
        low=types.value(low, type),
        high=types.value(high, type),
        width=width,
    )


def plan(sql: str, over: Catalog) -> str:
    """The optimised tree as text."""
    context = Context(over, Estimator(), Names())
    tree = optimise(bind(sql, over).tree, context)
    return "\n".join([written(tree, context), *(f"Remark: {each}" for each in context.remarks), ""])


def written(tree: Operator, context: Context) -> str:
    """The operators of the tree, a line each, with the statements of sources."""
    return "\n".join(_lines(tree, context, 0))


def _lines(tree: Operator, context: Context, depth: int) -> list[str]:
    title, details = described(tree)
    rows = context.estimator.of(tree).rows
    lines = [f"{'  ' * depth}{title} [{rows:.3g} rows] {'; '.join(details)}".rstrip()]
    if isinstance(tree, Remote):
        lines.append(f"{'  ' * (depth + 1)}{dialects.statement(tree.tree, context.dialect(tree.source)).sql}")
    for each in tree.expressions:
        for nested in each.find_all(Nested):
            lines += [f"{'  ' * (depth + 1)}subquery ({nested.kind})", *_lines(nested.plan, context, depth + 2)]
    for below in tree.inputs:
        lines += _lines(below, context, depth + 1)
    return lines


def plans() -> dict[str, str]:
    """The text of each golden file by its name."""
    over = catalog()
    queries = {**QUERIES, **PUBLISHED}
    return {name: plan(qualified(sql, PLACEMENT), over) for name, sql in queries.items()}


def drawing() -> str:
    """The plan that the documentation shows: of a query on two evaluators, before it runs."""
    context = Context(catalog(), Estimator(), Names())
    plan = cut(optimise(bind(qualified(DRAWN, PLACEMENT), catalog()).tree, context), context, len(EVALUATORS))
    remotes = [each for fragment in plan.fragments for each in fragment.parted]
    read = {each: parts(each, len(EVALUATORS)) for each in remotes}
    placement = Placement(plan, named_places(plan, EVALUATORS), read)
    return Explanation(node_of(placement, context, {}), DRAWN).svg + "\n"


def main() -> None:
    for name, text in plans().items():
        (DIRECTORY / f"{name}.txt").write_text(text)
    DRAWING.write_text(drawing())


if __name__ == "__main__":
    main()
