"""A tree of operators as one SELECT, as flat as a person would have written it.

``Renderer`` knows the shape of a SELECT and which operators fit into the one below them; how an expression is written
is its subclass's matter. ``dqp.sql.render_duckdb`` writes everything, for the evaluators; the dialects of the sources
(``dqp.dialects``) write only what is on their lists and raise for the rest: rendering is the check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dqp.algebra.operators import (
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
    free,
    subqueries,
    used,
)

LONGEST = 2_000
"""Characters of an expression up to which it is written again in the operator above instead of in a derived table."""
Columns = Mapping[str, str]
"""Identifier of a column to the SQL that stands for it."""
_COLUMN = re.compile(r'(?:\w+\.)?(?:\w+|"[^"]*"|`[^`]*`)')
_LITERAL = re.compile(r"[-(]*(?:\d[\w.+]*|E?'(?:[^']|'')*'|TRUE|FALSE|NULL)\)*", re.IGNORECASE)


@dataclass
class Select:
    """A SELECT under construction. ``columns`` holds SQL by identifier; ``plain``: each is a column of a table;
    ``tables``: in its FROM."""

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
        """Whether a join or filter may still be added: only FROM and WHERE so far."""
        return self.group is None and not (self.distinct or self.order or self.limit or self.windows)

    @property
    def bare(self) -> bool:
        """Whether it is nothing but tables: may stand on the side of an outer join that is filled with NULLs."""
        return self.open and self.plain and not self.where


class Renderer:
    """One statement; not to be used again. ``outer``: SQL of the identifiers of the queries around it."""

    semi_joins = False
    """Whether SEMI JOIN and ANTI JOIN can be written; otherwise EXISTS."""
    empty_from = ""
    """What stands for FROM where there is no table."""

    def __init__(self) -> None:
        self._aliases: dict[str, int] = {}
        self.outer: dict[str, str] = {}

    # What a dialect says.

    def expression(self, node: exp.Expression, columns: Columns) -> str:
        """The SQL of an expression over ``columns``; for a ``Nested`` ask ``self.nested``."""
        raise TypeError(type(self).__name__)

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def table(self, scan: Scan) -> str:
        """The SQL of the scanned table's name."""
        names = (scan.table.schema, scan.table.name) if scan.table.schema else (scan.table.name,)
        return ".".join(map(self.quoted, names))

    def ordering(self, key: exp.Expression, columns: Columns) -> str:
        """One key of ORDER BY, with NULLs where the key says."""
        assert isinstance(key, exp.Ordered)
        direction = " DESC" if key.args.get("desc") else ""
        nulls = "FIRST" if key.args.get("nulls_first") else "LAST"
        return f"{self.expression(key.this, columns)}{direction} NULLS {nulls}"

    def conditions(self, where: Sequence[str]) -> Sequence[str]:
        """What is written for all the conditions of a WHERE."""
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

    # The shape.

    def render(self, tree: Operator) -> str:
        """The statement that gives ``tree.columns``, named by their identifiers."""
        return self.text(self.select(tree), tree.columns)

    def nested(self, node: Nested, columns: Columns) -> str:
        """A subquery in an expression over ``columns``."""
        before = self.outer
        self.outer = {**before, **columns}
        try:
            made = self.select(node.plan)
            kind = node.kind
            if kind == "exists":
                if made.group == "":
                    made = self.derived(made, node.plan.columns)  # without its aggregates it would be no aggregate
                return f"EXISTS ({self.text(made, (), 'SELECT 1')})"
            text = self.text(made, node.plan.columns)
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

    def text(self, made: Select, columns: Iterable[str], head: str | None = None) -> str:
        """The SELECT; ``columns`` are the identifiers it gives."""
        if head is None:
            items = ", ".join(self._item(made.columns[each], each) for each in columns) or "1"
            head = f"SELECT {'DISTINCT ' if made.distinct else ''}{items}"
        parts = [head]
        if made.source or self.empty_from:
            parts.append(f"FROM {made.source or self.empty_from}")
        if made.where:
            parts.append("WHERE " + " AND ".join(self.conditions(made.where)))
        if made.group:
            parts.append(f"GROUP BY {made.group}")
        if made.order:
            parts.append(f"ORDER BY {made.order}")
        if made.limit:
            parts.append(made.limit)
        return " ".join(parts)

    def _item(self, text: str, identifier: str) -> str:
        name = self.quoted(identifier)
        alias, _, rest = text.partition(".")
        is_column = text == name or (rest == name and alias.isidentifier())
        return text if is_column else f"{text} AS {name}"

    def alias(self, prefix: str) -> str:
        """A table alias that the statement does not have yet."""
        count = self._aliases[prefix] = self._aliases.get(prefix, 0) + 1
        return f"{prefix}{count}"

    def derived(self, made: Select, columns: tuple[str, ...]) -> Select:
        """The SELECT as a table in FROM."""
        alias = self.alias("q")
        known = {each: f"{alias}.{self.quoted(each)}" for each in columns}
        return Select(known, f"({self.text(made, columns)}) AS {alias}")

    def select(self, node: Operator) -> Select:
        made: Select = getattr(self, "_" + type(node).__name__.lower())(node)
        return made

    def _opened(self, node: Operator) -> Select:
        """The node's SELECT, open for a join or a filter."""
        made = self.select(node)
        return made if made.open else self.derived(made, node.columns)

    def _bared(self, node: Operator) -> Select:
        """The node's SELECT as nothing but tables."""
        made = self.select(node)
        return made if made.bare else self.derived(made, node.columns)

    def _scope(self, made: Select) -> Columns:
        return {**self.outer, **made.columns} if self.outer else made.columns

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
        made = self._opened(node.input)
        condition = self.expression(node.condition, self._scope(made))
        if isinstance(node.condition, exp.Or):
            condition = f"({condition})"
        return replace(made, where=[*made.where, condition])

    def _project(self, node: Project) -> Select:
        made = self.select(node.input)
        windows = any(each.find(exp.Window) for each in node.expressions)
        too_long = not made.plain and max(map(len, made.columns.values()), default=0) > LONGEST
        given = frozenset(node.input.columns)
        lone = made.group == "" and not any(used(each) & given for each in node.expressions)
        if (
            made.distinct
            or made.windows
            or (windows and not made.open)
            or too_long
            or lone
            or _hidden(made, node.expressions)
        ):
            made = self.derived(made, node.input.columns)
        scope = self._scope(made)
        columns = {name: self.expression(each, scope) for name, each in node.items}
        plain = made.plain and all(isinstance(each, exp.Column) for each in node.expressions)
        return replace(made, columns=columns, plain=plain, windows=made.windows or windows)

    def _join(self, node: Join) -> Select:
        if node.kind in ("semi", "anti"):
            return self._semi(node)
        left = self._bared(node.left) if node.kind in ("right", "full") else self._opened(node.left)
        right = self._bared(node.right) if node.kind in ("left", "full") else self._opened(node.right)
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
        return self._kept(node, self._opened(node.left), self._opened(node.right))

    def _kept(self, node: Join, left: Select, right: Select) -> Select:
        """The left side of a semi-join or an anti-join with what keeps its rows."""
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
        made = self._opened(node.input)
        ordering = [key for each in node.expressions for key in each.find_all(exp.Ordered)]
        literals = {each for each, text in made.columns.items() if _LITERAL.fullmatch(text)}
        computed = literals | {each for each, text in made.columns.items() if not _COLUMN.fullmatch(text)}
        if any(literals & used(each) for _, each in node.keys) or any(computed & used(each) for each in ordering):
            # A literal has another meaning as a key of GROUP BY, and none as one of an aggregate's ORDER BY; a subquery
            # that is written twice is not the same to DuckDB, and DISTINCT is ordered by its argument alone.
            made = self.derived(made, node.input.columns)
        if any(not each.find(exp.Column) for _, each in node.keys):
            # A constant would be read as the number of an item: make it a column first.
            scope = self._scope(made)
            items = {**made.columns, **{name: self.expression(each, scope) for name, each in node.keys}}
            made = self.derived(replace(made, columns=items, plain=False), tuple(items))
            texts = {name: made.columns[name] for name, _ in node.keys}
        else:
            texts = {name: self.expression(each, self._scope(made)) for name, each in node.keys}
        scope = {**self._scope(made), **texts}
        aggregates = {name: self.expression(each, scope) for name, each in node.aggregates}
        if node.sets is None:
            group = ", ".join(texts.values())
        else:
            sets = (f"({', '.join(texts[each] for each in one)})" for one in node.sets)
            group = f"GROUPING SETS ({', '.join(sets)})"
        return replace(made, columns={**texts, **aggregates}, group=group, plain=False)

    def _distinct(self, node: Distinct) -> Select:
        made = self.select(node.input)
        if made.distinct or made.order or made.limit:
            made = self.derived(made, node.input.columns)
        return replace(made, distinct=True, columns={each: made.columns[each] for each in node.columns})

    def _sort(self, node: Sort) -> Select:
        made = self.select(node.input)
        if made.distinct or made.order or made.limit or made.windows or _hidden(made, node.keys):
            made = self.derived(made, node.input.columns)
        scope = self._scope(made)
        # A literal would be read as the number of an item; it orders nothing.
        varying = [each for each in node.keys if each.this.find(exp.Column, Nested)]
        keys = [
            self.ordering(each, scope)
            for each in varying
            if not (isinstance(each.this, exp.Column) and _LITERAL.fullmatch(scope[each.this.name]))
        ]
        return replace(made, order=", ".join(keys), limit=self.limited(node.limit, node.offset))

    def _setoperation(self, node: SetOperation) -> Select:
        sides = [self._side(side, node.names) for side in members(node)]
        word = f" {node.kind.upper()} {'ALL ' if node.all else ''}"
        alias = self.alias("q")
        known = {each: f"{alias}.{self.quoted(each)}" for each in node.names}
        return Select(known, f"({word.join(sides)}) AS {alias}")

    def _side(self, side: Operator, names: tuple[str, ...]) -> str:
        made = self.select(side)
        if made.order or made.limit:
            made = self.derived(made, side.columns)
        renamed = {name: made.columns[each] for name, each in zip(names, side.columns, strict=True)}
        return self.text(replace(made, columns=renamed), names)


def _hidden(made: Select, expressions: Iterable[exp.Expression]) -> bool:
    """Whether a subquery names what a SELECT with aggregates computes: inside of it, databases know the keys again that
    are columns, and no others."""
    if made.group is None:
        return False
    names = {name for each in expressions for nested in subqueries(each) for name in free(nested.plan)}
    return any(not _COLUMN.fullmatch(made.columns[each]) for each in names & made.columns.keys())


def members(node: SetOperation) -> list[Operator]:
    """The sides of a chain of one kind of union, of any other set operation its two."""
    found: list[Operator] = []
    left: Operator = node
    while isinstance(left, SetOperation) and (left is node or (left.kind, left.all) == (node.kind, node.all)):
        found.append(left.right)
        left = left.left
        if node.kind != "union":
            break
    return [left, *reversed(found)]
