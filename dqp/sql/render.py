"""Writes a tree of operators as one SELECT, with as few nested SELECTs as possible.

``Renderer`` knows the shape of a SELECT and which operators fit into the SELECT of the operator below. Its subclasses
write the expressions: ``dqp.sql.render_duckdb`` writes all of them, for evaluators; the dialects of the sources
(``dqp.sql.dialects``) write only what is on their lists and raise NotPushed for the rest, so rendering is the check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dqp.algebra.operators import (
    ASOF,
    Aggregate,
    Call,
    Distinct,
    Exchange,
    Filter,
    Inline,
    Join,
    Nested,
    Operator,
    Project,
    Receive,
    Remote,
    Scan,
    SetOperation,
    Sort,
    Verbatim,
    subqueries,
)
from dqp.algebra.trees import free, used

LONGEST = 2_000
"""Longest expression, in characters, that is repeated in the operator above. A longer one gets a derived table."""
Columns = Mapping[str, str]
"""The SQL of columns by identifier."""
_COLUMN = re.compile(r'(?:\w+\.)?(?:\w+|"[^"]*"|`[^`]*`)')
_LITERAL = re.compile(r"[-(]*(?:\d[\w.+]*|E?'(?:[^']|'')*'|TRUE|FALSE|NULL)\)*", re.IGNORECASE)


@dataclass
class Select:
    """A SELECT under construction. ``columns`` has SQL by identifier; ``plain``: each one is a column of a table;
    ``tables``: the number of tables in its FROM."""

    columns: dict[str, str]
    source: str = ""
    where: list[str] = field(default_factory=list)
    group: str | None = None
    distinct: bool = False
    order: str = ""
    limit: str = ""
    plain: bool = True
    windows: bool = False
    composite: bool = False
    tables: int = 1

    @property
    def open(self) -> bool:
        """Whether it has only FROM and WHERE, so that a join or a filter can be added."""
        return self.group is None and not (self.distinct or self.order or self.limit or self.windows)

    @property
    def bare(self) -> bool:
        """Whether it has only tables, so that it may be the side of an outer join that gets NULLs."""
        return self.open and self.plain and not self.where


class Renderer:
    """Writes one statement; use a new one for the next. ``outer``: SQL of the identifiers of the queries around."""

    semi_joins = False
    """Whether the dialect has SEMI JOIN and ANTI JOIN. Otherwise EXISTS is written."""
    empty_from = ""
    """The text after FROM in a SELECT without tables; empty: no FROM."""

    def __init__(self) -> None:
        self._aliases: dict[str, int] = {}
        self.outer: dict[str, str] = {}

    # --- for subclasses ---

    def expression(self, node: exp.Expression, columns: Columns) -> str:
        """The SQL of an expression over ``columns``. For a ``Nested`` call ``self.nested``."""
        raise TypeError(type(self).__name__)

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def table(self, scan: Scan) -> str:
        """The SQL of the scanned table's name."""
        names = (scan.table.schema, scan.table.name) if scan.table.schema else (scan.table.name,)
        return ".".join(map(self.quoted, names))

    def ordering(self, key: exp.Expression, columns: Columns) -> str:
        """One key of ORDER BY, with NULLS FIRST or LAST as in the key."""
        assert isinstance(key, exp.Ordered)
        direction = " DESC" if key.args.get("desc") else ""
        nulls = "FIRST" if key.args.get("nulls_first") else "LAST"
        return f"{self.expression(key.this, columns)}{direction} NULLS {nulls}"

    def conditions(self, where: Sequence[str]) -> Sequence[str]:
        """The texts for the conditions of a WHERE."""
        return where

    def limited(self, limit: int | None, offset: int) -> str:
        parts = [] if limit is None else [f"LIMIT {limit}"]
        return " ".join([*parts, f"OFFSET {offset}"] if offset else parts)

    def join(self, kind: str, left: str, right: str, condition: str | None) -> str:
        if condition is None and kind == "inner":
            return f"{left} CROSS JOIN {right}"
        return f"{left} {'' if kind == 'inner' else kind.upper() + ' '}JOIN {right} ON {condition or '1 = 1'}"

    def leaf(self, node: Operator) -> Select:
        """A ``Remote``, ``Inline``, ``Exchange``, ``Receive`` or ``Call`` as a table."""
        raise TypeError(type(node).__name__)

    def verbatim(self, node: Verbatim) -> Select:
        raise TypeError("Verbatim")

    # --- the shape of a SELECT ---

    def render(self, tree: Operator) -> str:
        """The tree's statement; its columns are ``tree.columns`` and have their identifiers as names."""
        return self.text(self.select(tree), tree.columns)

    def nested(self, node: Nested, columns: Columns) -> str:
        """A subquery in an expression over ``columns``."""
        before = self.outer
        self.outer = {**before, **columns}
        try:
            query = self.select(node.plan)
            kind = node.kind
            if kind == "exists":
                if query.group == "":
                    query = self.derived(query, node.plan.columns)  # without its aggregates it would be no aggregate
                return f"EXISTS ({self.text(query, (), 'SELECT 1')})"
            text = self.text(query, node.plan.columns)
        finally:
            self.outer = before
        if kind == "scalar":
            return f"({text})"
        if kind == "array":
            return f"ARRAY({text})"
        operand = self.expression(node.this, columns)
        if kind == "in":
            return f"({operand} IN ({text}))"
        return f"({operand} {node.args['operator']} {kind.upper()} ({text}))"

    def text(self, query: Select, columns: Iterable[str], head: str | None = None) -> str:
        """The SELECT as text; ``columns`` are the identifiers of its output."""
        if head is None:
            items = ", ".join(self._item(query.columns[each], each) for each in columns) or "1"
            head = f"SELECT {'DISTINCT ' if query.distinct else ''}{items}"
        parts = [head]
        if query.source or self.empty_from:
            parts.append(f"FROM {query.source or self.empty_from}")
        if query.where:
            parts.append("WHERE " + " AND ".join(self.conditions(query.where)))
        if query.group:
            parts.append(f"GROUP BY {query.group}")
        if query.order:
            parts.append(f"ORDER BY {query.order}")
        if query.limit:
            parts.append(query.limit)
        return " ".join(parts)

    def _item(self, text: str, identifier: str) -> str:
        name = self.quoted(identifier)
        alias, _, rest = text.partition(".")
        is_column = text == name or (rest == name and alias.isidentifier())
        return text if is_column else f"{text} AS {name}"

    def alias(self, prefix: str) -> str:
        """A new table alias within the statement."""
        count = self._aliases[prefix] = self._aliases.get(prefix, 0) + 1
        return f"{prefix}{count}"

    def derived(self, query: Select, columns: tuple[str, ...]) -> Select:
        """The SELECT as a table in FROM."""
        alias = self.alias("q")
        known = {each: f"{alias}.{self.quoted(each)}" for each in columns}
        return Select(known, f"({self.text(query, columns)}) AS {alias}")

    def select(self, node: Operator) -> Select:
        query: Select = getattr(self, "_" + type(node).__name__.lower())(node)
        return query

    def _opened(self, node: Operator) -> Select:
        """The node's SELECT, to which a join or a filter can be added."""
        query = self.select(node)
        return query if query.open else self.derived(query, node.columns)

    def _bared(self, node: Operator) -> Select:
        """The node's SELECT with only tables."""
        query = self.select(node)
        return query if query.bare else self.derived(query, node.columns)

    def _scope(self, query: Select) -> Columns:
        return {**self.outer, **query.columns} if self.outer else query.columns

    def _scan(self, node: Scan) -> Select:
        alias = self.alias("t")
        columns = {
            identifier: f"{alias}.{self.quoted(node.table.column(name).source_name or name)}"
            for identifier, name in node.items
        }
        return Select(columns, f"{self.table(node)} AS {alias}")

    def _inline(self, node: Inline) -> Select:
        return self.leaf(node)

    def _remote(self, node: Remote) -> Select:
        return self.leaf(node)

    def _exchange(self, node: Exchange) -> Select:
        return self.leaf(node)

    def _receive(self, node: Receive) -> Select:
        return self.leaf(node)

    def _call(self, node: Call) -> Select:
        return self.leaf(node)

    def _verbatim(self, node: Verbatim) -> Select:
        return self.verbatim(node)

    def _filter(self, node: Filter) -> Select:
        query = self._opened(node.input)
        condition = self.expression(node.condition, self._scope(query))
        if isinstance(node.condition, exp.Or):
            condition = f"({condition})"
        return replace(query, where=[*query.where, condition])

    def _project(self, node: Project) -> Select:
        query = self.select(node.input)
        windows = any(each.find(exp.Window) for each in node.expressions)
        too_long = not query.plain and max(map(len, query.columns.values()), default=0) > LONGEST
        below = frozenset(node.input.columns)
        lone = query.group == "" and not any(used(each) & below for each in node.expressions)
        if (
            query.distinct
            or query.windows
            or (windows and not query.open)
            or too_long
            or lone
            or _hidden(query, node.expressions)
        ):
            query = self.derived(query, node.input.columns)
        scope = self._scope(query)
        columns = {name: self.expression(each, scope) for name, each in node.items}
        plain = query.plain and all(isinstance(each, exp.Column) for each in node.expressions)
        return replace(query, columns=columns, plain=plain, windows=query.windows or windows)

    def _join(self, node: Join) -> Select:
        if node.kind in ("semi", "anti"):
            return self._semi(node)
        left = self._bared(node.left) if node.kind in ("right", "full", *ASOF) else self._opened(node.left)
        right = self._bared(node.right) if node.kind in ("left", "full", *ASOF) else self._opened(node.right)
        columns = {**left.columns, **right.columns}
        condition = None
        if node.condition is not None:
            condition = self.expression(node.condition, {**self.outer, **columns})
        inner = f"({right.source})" if right.composite else right.source
        return Select(
            columns,
            self.join(node.kind, left.source, inner, condition),
            left.where + right.where,
            plain=left.plain and right.plain,
            composite=True,
            tables=left.tables + right.tables,
        )

    def _semi(self, node: Join) -> Select:
        return self._filtered_side(node, self._opened(node.left), self._opened(node.right))

    def _filtered_side(self, node: Join, left: Select, right: Select) -> Select:
        """The left side of a semi-join or an anti-join with the condition that keeps or drops its rows."""
        conditions = list(right.where)
        if node.condition is not None:
            scope = {**self.outer, **left.columns, **right.columns}
            text = self.expression(node.condition, scope)
            conditions.insert(0, f"({text})" if isinstance(node.condition, exp.Or) else text)
        if self.semi_joins and not left.where:
            inner = f"({right.source})" if right.composite else right.source
            source = f"{left.source} {node.kind.upper()} JOIN {inner} ON {' AND '.join(conditions) or 'TRUE'}"
            return replace(left, source=source, composite=True)
        negated = "NOT " if node.kind == "anti" else ""
        exists = f"{negated}EXISTS ({self.text(replace(right, where=conditions), (), 'SELECT 1')})"
        return replace(left, where=[*left.where, exists])

    def _aggregate(self, node: Aggregate) -> Select:
        query = self._opened(node.input)
        ordering = [key for each in node.expressions for key in each.find_all(exp.Ordered)]
        literals = {each for each, text in query.columns.items() if _LITERAL.fullmatch(text)}
        computed = literals | {each for each, text in query.columns.items() if not _COLUMN.fullmatch(text)}
        if any(literals & used(each) for _, each in node.keys) or any(computed & used(each) for each in ordering):
            # A literal in GROUP BY means an item's number, and has no meaning in an aggregate's ORDER BY. DuckDB takes
            # a subquery that is written twice for two, and orders DISTINCT only by its argument.
            query = self.derived(query, node.input.columns)
        texts = {name: self.expression(each, self._scope(query)) for name, each in node.keys}
        alike = node.sets is not None and len({*texts.values()}) < len(texts)
        if alike or any(not each.find(exp.Column) for _, each in node.keys):
            # The database would read a constant as the number of an item, and two keys with one text as one key of the
            # grouping sets, so they become columns first.
            items = {**query.columns, **texts}
            query = self.derived(replace(query, columns=items, plain=False), tuple(items))
            texts = {name: query.columns[name] for name, _ in node.keys}
        scope = {**self._scope(query), **texts}
        aggregates = {name: self.expression(each, scope) for name, each in node.aggregates}
        if node.sets is None:
            group = ", ".join(texts.values())
        else:
            sets = (f"({', '.join(texts[each] for each in one)})" for one in node.sets)
            group = f"GROUPING SETS ({', '.join(sets)})"
        return replace(query, columns={**texts, **aggregates}, group=group, plain=False)

    def _distinct(self, node: Distinct) -> Select:
        query = self.select(node.input)
        if query.distinct or query.order or query.limit:
            query = self.derived(query, node.input.columns)
        return replace(query, distinct=True, columns={each: query.columns[each] for each in node.columns})

    def _sort(self, node: Sort) -> Select:
        query = self.select(node.input)
        if query.distinct or query.order or query.limit or query.windows or _hidden(query, node.keys):
            query = self.derived(query, node.input.columns)
        scope = self._scope(query)
        # The database would read a literal as the number of an item. A literal has no effect on the order.
        varying = [each for each in node.keys if each.this.find(exp.Column, Nested)]
        keys = [
            self.ordering(each, scope)
            for each in varying
            if not (isinstance(each.this, exp.Column) and _LITERAL.fullmatch(scope[each.this.name]))
        ]
        return replace(query, order=", ".join(keys), limit=self.limited(node.limit, node.offset))

    def _setoperation(self, node: SetOperation) -> Select:
        sides = [self._side(side, node.names) for side in members(node)]
        word = f" {node.kind.upper()} {'ALL ' if node.all else ''}"
        alias = self.alias("q")
        known = {each: f"{alias}.{self.quoted(each)}" for each in node.names}
        return Select(known, f"({word.join(sides)}) AS {alias}")

    def _side(self, side: Operator, names: tuple[str, ...]) -> str:
        query = self.select(side)
        if query.order or query.limit:
            query = self.derived(query, side.columns)
        renamed = {name: query.columns[each] for name, each in zip(names, side.columns, strict=True)}
        return self.text(replace(query, columns=renamed), names)


def _hidden(query: Select, expressions: Iterable[exp.Expression]) -> bool:
    """Whether a subquery uses a computed column of a SELECT with aggregates. Within a subquery, databases recognise
    only those keys of the SELECT that are plain columns."""
    if query.group is None:
        return False
    names = {name for each in expressions for nested in subqueries(each) for name in free(nested.plan)}
    return any(not _COLUMN.fullmatch(query.columns[each]) for each in names & query.columns.keys())


def members(node: SetOperation) -> list[Operator]:
    """The sides of a chain of unions of one kind; the two sides of any other set operation."""
    right_sides: list[Operator] = []
    left: Operator = node
    while isinstance(left, SetOperation) and (left is node or (left.kind, left.all) == (node.kind, node.all)):
        right_sides.append(left.right)
        left = left.left
        if node.kind != "union":
            break
    return [left, *reversed(right_sides)]
