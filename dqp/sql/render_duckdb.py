"""Writes trees in DuckDB's SQL, for evaluators and this process, and expressions for people."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB as _DuckDBDialect
from sqlglot.generators.duckdb import DuckDBGenerator

from dqp.algebra.keys import Keys, Members
from dqp.algebra.operators import Exchange, Inline, Nested, Operator, Remote, Scan, Verbatim
from dqp.algebra.trees import free
from dqp.sql.render import Columns, Renderer, Select


def _truths(self: DuckDBGenerator, node: exp.LogicalAnd | exp.LogicalOr) -> str:
    return self.func("BOOL_AND" if isinstance(node, exp.LogicalAnd) else "BOOL_OR", node.this)


TRUTHS: Mapping[type[exp.Expr], Callable[..., str]] = {exp.LogicalAnd: _truths, exp.LogicalOr: _truths}
"""Own writers, because those of sqlglot also put a CAST around DISTINCT and ORDER BY."""


class _Generator(DuckDBGenerator):
    """Writes an expression whose columns are identifiers of a tree in DuckDB's SQL."""

    renderer: Renderer
    known: Columns

    TRANSFORMS = {  # noqa: RUF012
        **DuckDBGenerator.TRANSFORMS,
        Nested: lambda self, node: self.renderer.nested(node, self.known),
        exp.Column: lambda self, node: enclosed(self.known[node.name]),
        # sqlglot's versions of these two change the node.
        exp.GroupConcat: lambda self, node: DuckDBGenerator.TRANSFORMS[exp.GroupConcat](self, node.copy()),
        exp.WithinGroup: lambda self, node: self.withingroup_sql(node.copy()),
        **TRUTHS,
    }


class _Whole(DuckDBGenerator):
    TRANSFORMS = {**DuckDBGenerator.TRANSFORMS, **TRUTHS}  # noqa: RUF012


def query_sql(query: exp.Expr, *, comments: bool = True) -> str:
    """The text of a query with its own names."""
    return str(_Whole(dialect=_DuckDBDialect(), comments=comments).generate(query))


def enclosed(text: str) -> str:
    """The SQL as an operand, in parentheses if need be."""
    return text if _SIMPLE.fullmatch(text) else f"({text})"


_SIMPLE = re.compile(r'(?:\w+\.)?(?:\w+|"[^"]*")|\w+\([^()]*\)')
Leaf = Callable[[Operator], str]
Known = Callable[[Operator], tuple[str, Columns] | None]


class DuckDB(Renderer):
    """Writes any tree for DuckDB. ``leaf`` returns the SQL of the table for a ``Remote``, an ``Inline`` or an
    ``Exchange``; without it a remote tree is written in full, and a scan is ``alias.table``. ``known`` returns the
    table that replaces a subtree, and the names of the subtree's columns there."""

    semi_joins = True

    def __init__(self, leaf: Leaf | None = None, known: Known | None = None) -> None:
        super().__init__()
        self._leaf, self._known = leaf, known

    def select(self, node: Operator) -> Select:
        table = None if self._known is None else self._known(node)
        if table is None:
            return super().select(node)
        name, columns = table
        alias = self.alias("r")
        return Select(
            {mine: f"{alias}.{self.quoted(theirs)}" for mine, theirs in columns.items()},
            f"{self.quoted(name)} AS {alias}",
        )

    def definition(self, tree: Operator) -> str:
        """The statement of a subtree that a table replaces elsewhere."""
        return self.text(super().select(tree), tree.columns)

    def expression(self, node: exp.Expression, columns: Columns) -> str:
        generator = _Generator(dialect=_DuckDBDialect())
        generator.renderer, generator.known = self, columns
        return str(generator.generate(node, copy=False))

    def table(self, scan: Scan) -> str:
        return ".".join(map(self.quoted, (scan.table.source, scan.table.name)))

    def leaf(self, node: Operator) -> Select:
        if self._leaf is None:
            if isinstance(node, Remote):
                return self.derived(self.select(node.tree), node.columns)
            if isinstance(node, Exchange):
                return self.select(node.input)
        name = self.quoted(node.name) if isinstance(node, Inline) and self._leaf is None else None
        if name is None:
            assert self._leaf is not None
            name = self._leaf(node)
        alias = self.alias("r")
        items: tuple[tuple[str, str], ...] = (
            node.items if isinstance(node, Inline) else tuple((each, each) for each in node.columns)
        )
        return Select({one: f"{alias}.{self.quoted(other)}" for one, other in items}, f"{name} AS {alias}")

    def verbatim(self, node: Verbatim) -> Select:
        tables = []
        for part, name, exposed in zip(node.parts, node.names, node.exposed, strict=True):
            query = self.select(part)
            if query.distinct and {each for _, each in exposed} != {*part.columns}:
                # Rows that differ in another column are several.
                query = self.derived(query, part.columns)
            items = ", ".join(f"{query.columns[each]} AS {self.quoted(known)}" for known, each in exposed)
            body = self.text(query, (), f"SELECT {'DISTINCT ' if query.distinct else ''}{items or '1'}")
            tables.append(f"{self.quoted(name)} AS ({body})")
        alias = self.alias("q")
        names = ", ".join(self.quoted(each) for each in node.columns)
        inner = f"({query_sql(node.query)}) AS {alias}({names})"
        columns = {each: f"{alias}.{self.quoted(each)}" for each in node.columns}
        if not tables:
            return Select(columns, inner)
        outer = self.alias("q")
        source = f"(WITH {', '.join(tables)} SELECT * FROM {inner}) AS {outer}"
        return Select({each: f"{outer}.{self.quoted(each)}" for each in node.columns}, source)


class _Short(DuckDBGenerator):
    TRANSFORMS = {  # noqa: RUF012
        **DuckDBGenerator.TRANSFORMS,
        Nested: lambda self, node: f"{node.kind}({_short(node.plan)})",
        exp.Column: lambda self, node: node.name,
        exp.GroupConcat: _Generator.TRANSFORMS[exp.GroupConcat],
        exp.WithinGroup: _Generator.TRANSFORMS[exp.WithinGroup],
        **TRUTHS,
        Keys: lambda self, node: f"{self.sql(node, 'this')} IN ({node.text_of_numbers})",
        Members: lambda self, node: f"({self.expressions(node, flat=True)}) IN {node.key_table.name}",
    }


def _short(plan: Operator) -> str:
    """The text of a nested plan for people; columns of the queries around appear as identifiers."""
    renderer = DuckDB(lambda each: type(each).__name__.lower())
    renderer.outer = {each: each for each in free(plan)}
    return renderer.render(plan)


def duckdb_sql(tree: Operator, leaf: Leaf | None = None) -> str:
    """The tree in DuckDB's SQL; see ``DuckDB`` for ``leaf``."""
    return DuckDB(leaf).render(tree)


def expression_sql(node: exp.Expression) -> str:
    """The text of an expression for people: columns as identifiers, nested plans as ``(…)``."""

    return str(_Short(dialect=_DuckDBDialect()).generate(node, copy=False))
