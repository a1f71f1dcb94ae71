"""Rules on the tables of the generated queries: described as if they were large, executed on what they hold.

A fixture file ``fixtures/RULE.sql`` holds cases: a title, the query, and the tree after the rule, an operator a line.
What comes before the rule in ``RULES`` has been applied first. To write the trees again::

    python -m tests.dqp.rules.world
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
from sqlglot import exp

from dqp.algebra import types
from dqp.algebra.operators import Call, Inline, Names, Nested, Operator, Project, Remote, column
from dqp.algebra.table import Column, Table
from dqp.algebra.trees import rewritten, walk
from dqp.binding.binder import bind
from dqp.catalog.catalog import Catalog
from dqp.explain.labels import described
from dqp.planning.context import Context, Options
from dqp.planning.costing.cost import Estimator
from dqp.planning.rules import RULES, Rule, applied
from dqp.sql.render_duckdb import duckdb_sql
from tests.dqp.generated.oracle import Oracle
from tests.dqp.generated.schema import TABLES, data

FIXTURES = Path(__file__).parent / "fixtures"
DIALECTS = {"pg": "postgresql", "maria": "mariadb", "lite": "sqlite", "duck": "duckdb"}
SOURCE_TYPES = {
    "pg": {"SMALLINT": "int2", "INTEGER": "int4", "BIGINT": "int8", "DOUBLE": "float8", "DECIMAL(12,2)": "numeric"}
    | {"VARCHAR": "text", "DATE": "date", "TIMESTAMP": "timestamp", "BOOLEAN": "bool"},
    "maria": {"SMALLINT": "smallint", "INTEGER": "int", "BIGINT": "bigint", "DOUBLE": "double", "DATE": "date"}
    | {"DECIMAL(12,2)": "decimal", "VARCHAR": "varchar", "TIMESTAMP": "datetime", "TINYINT": "tinyint"},
    "lite": {"BIGINT": "INTEGER", "VARCHAR": "TEXT"},
    "duck": {},
}
FUNCTIONS = frozenset({"jaccard"})
"""Of DuckDB; stands for an operation call."""


def catalog(times: float = 1.0) -> Catalog:
    """The generated tables with the statistics of their data; ``times``: as many rows as they hold."""
    return Catalog.of([_table(each, times) for each in TABLES], dialects=DIALECTS)


def _table(table, times: float) -> Table:  # type: ignore[no-untyped-def]
    columns = []
    rows = data(table)
    for name in table.columns:
        values, type = rows.column(name), table.type(name)
        known = values.drop_null()
        ends = pc.min_max(known).as_py() if len(known) else {"min": None, "max": None}
        columns.append(
            Column(
                name,
                type,
                SOURCE_TYPES[table.source].get(type, type.lower()),
                nullable=name != "id",
                distinct=float(pc.count_distinct(values).as_py()) if len(values) else None,
                null_fraction=values.null_count / max(1, len(values)),
                low=ends["min"],
                high=ends["max"],
                width=types.width(type),
            )
        )
    size = float(table.rows) * times
    return Table(table.source, table.name, tuple(columns), keys=(("id",),), rows=size, bytes=size * 100)


def context(over: Catalog) -> Context:
    return Context(over, Estimator(), Names(), Options(functions=FUNCTIONS))


def named(tree: Operator, names: Names) -> None:
    """Takes the tree's identifiers from those that are free."""
    for node in walk(tree):
        for each in node.columns:
            names.new(each)
        for expression in node.expressions:
            for nested in expression.find_all(Nested):
                named(nested.plan, names)


def bound(sql: str, over: Catalog) -> tuple[Operator, Context]:
    tree = bind(sql, over).tree
    made = context(over)
    named(tree, made.names)
    made.learn(tree)
    return tree, made


def written(tree: Operator) -> str:
    """The tree as DuckDB's SQL, calls as the functions they stand for."""

    def called(node: Operator) -> Operator:
        if not isinstance(node, Call):
            return node
        call = exp.Anonymous(this=node.function, expressions=list(node.arguments))
        return Project(node.input, (*((each, column(each)) for each in node.input.columns), (node.identifier, call)))

    return duckdb_sql(rewritten(tree, called))


def shown(tree: Operator, depth: int = 0) -> str:
    """The tree, an operator a line, what is below it indented."""
    title, details = described(tree)
    lines = [f"{'  ' * depth}{title}: {'; '.join(details)}".rstrip(": ")]
    for expression in tree.expressions:
        for nested in expression.find_all(Nested):
            lines += [f"{'  ' * (depth + 1)}subquery ({nested.kind})", shown(nested.plan, depth + 2)]
    inputs = (tree.tree,) if isinstance(tree, Remote) else tree.inputs
    return "\n".join([*lines, *(shown(each, depth + 1) for each in inputs)])


def registered(oracle: Oracle, tree: Operator) -> None:
    """Makes the tuples at hand of a tree known to the oracle."""
    for node in walk(tree):
        if isinstance(node, Inline):
            oracle.connection.register(node.name, node.data)
        for expression in node.expressions:
            for nested in expression.find_all(Nested):
                registered(oracle, nested.plan)
        if isinstance(node, Remote):
            registered(oracle, node.tree)


@dataclass(frozen=True)
class Case:
    rule: Rule
    title: str
    before: str
    after: str

    def sides(self, over: Catalog) -> tuple[Operator, Operator]:
        """The trees before and after the rule."""
        tree, made = bound(self.before, over)
        for each in RULES:
            if each is self.rule:
                break
            tree = applied(each, tree, made)
        return tree, applied(self.rule, tree, made)


def cases() -> Iterator[Case]:
    rules = {each.__name__: each for each in RULES}
    for path in sorted(FIXTURES.iterdir()):
        for block in path.read_text().strip().split("\n\n"):
            title, *lines = block.split("\n")
            before, _, after = "\n".join(lines).partition("\n--> ")
            yield Case(rules[path.stem], title.removeprefix("-- "), before, after.replace("\n--  ", "\n"))


def main() -> None:
    over = catalog(100_000)
    texts: dict[str, list[str]] = {}
    for case in cases():
        after = shown(case.sides(over)[1]).replace("\n", "\n--  ")
        texts.setdefault(case.rule.__name__, []).append(f"-- {case.title}\n{case.before}\n--> {after}")
    for name, blocks in texts.items():
        (FIXTURES / f"{name}.sql").write_text("\n\n".join(blocks) + "\n")


if __name__ == "__main__":
    main()
