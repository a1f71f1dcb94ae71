"""A dialect: trees of operators as statements of a source, see ``Expressions`` for what its whitelist is.

A column whose type in the source is not in ``COLUMNS`` can only be returned, counted and tested for NULL: its values in
the database may differ from those that the driver delivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from sqlglot import exp

from dqp.algebra.arrival import Origin
from dqp.algebra.chains import conjuncts
from dqp.algebra.dialects import DialectProperties
from dqp.algebra.operators import Aggregate, Distinct, Inline, Join, Operator, Project, Scan, SetOperation
from dqp.algebra.trees import used
from dqp.algebra.types import duckdb_type
from dqp.sql.dialects.expressions import SIMPLE, Value, kind
from dqp.sql.dialects.functions import Functions
from dqp.sql.dialects.typing import BOOLEAN, VARCHAR, Magnitude, NotPushed, Type, parsed
from dqp.sql.render import Columns, Select, members

MOST_INLINE = 1_000
"""Rows of tuples at hand that are written into a statement."""


class Dialect(Functions, DialectProperties):
    """One statement of a source."""

    COLUMNS: ClassVar[Mapping[str, frozenset[str]]]
    """Source type name (lower case, without what is in parentheses) to the DuckDB types it may safely have here."""
    JOINS: ClassVar[frozenset[str]] = frozenset({"inner", "left", "right", "semi", "anti"})
    SETS: ClassVar[frozenset[str]] = frozenset({"union", "intersect", "except"})

    DEEPEST: ClassVar[int] = 1_000
    """Greatest depth of a statement that the source's parser can hold; see ``depth``."""
    MOST_TABLES: ClassVar[int] = 1_000
    """Most tables that the source joins in one SELECT."""

    def __init__(self) -> None:
        super().__init__()
        self.native: dict[str, Origin] = {}
        """Columns that arrive in their declared type by themselves."""
        self.filled: set[str] = set()
        """Columns that have a value in every row."""
        self._values: dict[int, Value] = {}
        self._keys: set[int] = set()

    # The statement.

    def delivered(self, identifier: str, text: str) -> str:
        """A column of the result, so that it arrives in a type that can be cast to its own without loss."""
        return text

    def statement(self, tree: Operator) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The SQL and its columns with their types."""
        query = self.select(tree)
        columns = {each: self.delivered(each, query.columns[each]) for each in tree.columns}
        sql = self.text(replace(query, columns=columns), tree.columns)
        if depth(sql) > self.DEEPEST:
            raise self.refuse("a statement nested so deeply")
        return sql, tuple((each, str(self.types[each])) for each in tree.columns)

    # Operators.

    def expression(self, node: exp.Expression, columns: Columns) -> str:
        if isinstance(node, exp.Column) and id(node) not in self._keys:
            self._values[id(node)] = value = self._column(node, columns)
            return value.text
        value = self.value(node, columns)
        if id(node) in self._keys:
            value = value._replace(text=self.written("group", value.type, value))
        if value.atom:
            self._atoms.add(value.text)
        self._values[id(node)] = value
        return value.text

    def _scan(self, node: Scan) -> Select:
        for identifier, name in node.items:
            column = node.table.column(name)
            self.types[identifier] = type = parsed(column.type)
            self.native[identifier] = (node.table.schema, node.table.name, column.source_name or name)
            if not column.nullable:
                self.filled.add(identifier)
            if not self.behaves(column.source_type.lower().partition("(")[0].strip(), type):
                self.opaque[identifier] = (
                    f"{self.product}: the column {node.table}.{name} is {column.source_type or 'of an unknown type'}, "
                    f"which does not behave as DuckDB's {type}"
                )
            elif type == VARCHAR and not self.compares(column.collation):
                self.opaque[identifier] = (
                    f"{self.product}: the column {node.table}.{name} has the collation {column.collation}, which does "
                    "not compare bytes"
                )
        return super()._scan(node)

    def behaves(self, source_type: str, type: Type) -> bool:
        """Whether values of a source's type (lower case, without what is in parentheses) are those that arrive."""
        return kind(type) in self.COLUMNS.get(source_type, ())

    def compares(self, collation: str | None) -> bool:
        """Whether texts of a column of such a collation are, as this dialect writes them, compared by their bytes."""
        return collation is None

    def _learn(self, items: Iterable[tuple[str, exp.Expression]]) -> None:
        for name, node in items:
            value = self._values[id(node)]
            self.types[name] = value.type
            self.magnitudes[name] = value.magnitude
            if isinstance(node, exp.Column):
                if node.name in self.native:
                    self.native[name] = self.native[node.name]
                if node.name in self.opaque:
                    self.opaque[name] = self.opaque[node.name]
                if node.name in self.filled:
                    self.filled.add(name)

    def _filter(self, node: Any) -> Select:
        query = self._opened(node.input)
        text = self.condition(node.condition, self._scope(query))
        return replace(query, where=[*query.where, text])

    def _project(self, node: Project) -> Select:
        query = super()._project(node)
        self._learn(node.items)
        return query

    def _aggregate(self, node: Aggregate) -> Select:
        if node.sets is not None:
            raise self.refuse("grouping sets")
        before = self._keys
        self._keys = before | {id(each) for _, each in node.keys}
        query = super()._aggregate(node)
        self._keys = before
        self._learn((*node.keys, *node.aggregates))
        return query

    def _distinct(self, node: Distinct) -> Select:
        query = super()._distinct(node)
        return replace(query, columns={each: self._grouped(each, query.columns[each]) for each in node.columns})

    def _grouped(self, identifier: str, text: str) -> str:
        if identifier in self.opaque:
            raise NotPushed(self.opaque[identifier])
        type = self.types[identifier]
        return self.written("group", type, Value(text, type, SIMPLE.fullmatch(text) is not None))

    def _join(self, node: Join) -> Select:
        if node.kind not in self.JOINS:
            raise self.refuse(f"{node.kind.upper()} JOIN")
        if node.kind == "full" and not _is_equijoin(node):
            raise self.refuse("a full join on anything but equal columns of both sides")
        query = super()._join(node)
        for side, kinds in ((node.left, ("right", "full")), (node.right, ("left", "full", "asof left"))):
            if node.kind in kinds:
                self.filled.difference_update(side.columns)
        if query.tables > self.MOST_TABLES:
            raise self.refuse(f"a join of more than {self.MOST_TABLES} tables")
        if node.condition is not None and self._values[id(node.condition)].type != BOOLEAN:
            raise self.refuse("a join on something that is not a condition")
        return query

    def _setoperation(self, node: SetOperation) -> Select:
        if node.kind not in self.SETS or (node.all and node.kind != "union"):
            raise self.refuse(f"{node.kind.upper()}{' ALL' if node.all else ''}")
        query = super()._setoperation(node)
        for name, first, *others in zip(node.names, *(each.columns for each in members(node)), strict=True):
            self.types[name] = self.types[first]
            for side in (first, *others):
                if self.types[side] != self.types[first]:
                    raise self.refuse(f"{node.kind.upper()} of {self.types[first]} with {self.types[side]}")
                if side in self.opaque:
                    raise NotPushed(self.opaque[side])
            size = self._size(first)
            for side in others:
                other = self._size(side)
                size = None if size is None or other is None else size.united(other)
            self.magnitudes[name] = size
        return query

    def _size(self, identifier: str) -> Magnitude | None:
        return self.magnitudes.get(identifier) or Magnitude.of_type(self.types[identifier])

    def _side(self, side: Operator, names: tuple[str, ...]) -> str:
        query = self.select(side)
        if query.order or query.limit:
            query = self.derived(query, side.columns)
        renamed = {
            name: self._grouped(each, query.columns[each]) for name, each in zip(names, side.columns, strict=True)
        }
        return self.text(replace(query, columns=renamed), names)

    def ordering(self, key: exp.Expression, columns: Columns) -> str:
        assert isinstance(key, exp.Ordered)
        value = self.value(key.this, columns)
        text = self.written("order", value.type, value)
        descending = bool(key.args.get("desc"))
        if isinstance(key.this, exp.Column) and key.this.name in self.filled:  # so that an index may have the order
            return f"{text} DESC" if descending else text
        return self.ordered(text, descending=descending, nulls_first=bool(key.args.get("nulls_first")))

    def ordered(self, text: str, *, descending: bool, nulls_first: bool) -> str:
        """A key of ORDER BY that may be NULL."""
        return f"{text}{' DESC' if descending else ''} NULLS {'FIRST' if nulls_first else 'LAST'}"

    def leaf(self, node: Operator) -> Select:
        if not isinstance(node, Inline):
            raise self.refuse(f"{type(node).__name__} inside a statement")
        if not 0 < node.data.num_rows <= MOST_INLINE:
            raise self.refuse(f"{node.data.num_rows} tuples at hand, more than {MOST_INLINE} or none")
        alias = self.alias("r")
        lists = []
        for identifier, name in node.items:
            values = node.data.column(name)
            self.types[identifier] = own = parsed(duckdb_type(values.type))
            self.written("group", own, self.known(None, own))
            try:
                first, *rest = values.to_pylist()
            except OverflowError as error:
                raise self.refuse("a day that Python has no date for") from error
            # A column of nothing but NULLs has a type too.
            lists.append([self.typed(first, own), *(self.constant(each, own) for each in rest)])
        named = [f"{text[0]} AS {self.quoted(each)}" for text, each in zip(lists, node.columns, strict=True)]
        rows = [", ".join(named), *(", ".join(row) for row in zip(*(each[1:] for each in lists), strict=True))]
        known = {each: f"{alias}.{self.quoted(each)}" for each in node.columns}
        return Select(known, f"({' UNION ALL '.join(f'SELECT {row}' for row in rows)}) AS {alias}")

    def verbatim(self, node: Any) -> Select:
        raise self.refuse("a query of a form that is not taken apart")


def depth(sql: str) -> int:
    """About how many words a parser has to keep at the deepest place of a statement."""
    if sql.count("(") + sql.count("CASE") < _SHALLOW:
        return 0
    opened: list[int] = []
    most = now = 0
    for match in _NESTING.finditer(sql):
        word = match[0]
        if word in (")", "END"):
            now -= opened.pop() if opened else 0
        elif word[0] in "(C":
            opened.append(_SUBQUERY if word.endswith("SELECT") else _ENCLOSED)
            now += opened[-1]
            most = max(most, now)
    return most


_NESTING = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\((?:SELECT)?|\)|\bCASE\b|\bEND\b""")
_SUBQUERY, _ENCLOSED, _SHALLOW = 10, 7, 9


def _is_equijoin(node: Join) -> bool:
    left, right = frozenset(node.left.columns), frozenset(node.right.columns)

    def joins(each: exp.Expression) -> bool:
        sides = {used(each.this), used(each.expression)} if isinstance(each, exp.EQ) else set()
        return any(side and side <= left for side in sides) and any(side and side <= right for side in sides)

    return bool(node.condition) and all(map(joins, conjuncts(node.condition)))
