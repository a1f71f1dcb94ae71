"""The dialect of MariaDB and MySQL: what they compute exactly as DuckDB does.

Texts that are compared, grouped or ordered are put into the collation that compares bytes, unless the column has it.
Where another column is compared with a constant, the plain comparison is added: equal bytes are equal in every
collation, and it can use an index. Texts are written as literals: bound values cost three round trips
(docs/decisions/0008). Whole numbers are computed in 64 bits, so only what DuckDB computes in 64 bits is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar

from sqlglot import exp

from dqp.algebra.chains import conjuncts
from dqp.algebra.dialects import MOST_LISTED, DialectProperties
from dqp.algebra.operators import Join, Nested, Scan, SetOperation, column
from dqp.algebra.trees import free, used
from dqp.sql.dialects.dialect import Dialect
from dqp.sql.dialects.expressions import Value, collated, expanded, magnitude
from dqp.sql.dialects.functions import MOST_ROWS
from dqp.sql.dialects.typing import (
    BOOLEAN,
    HUGEINT,
    VARCHAR,
    WHOLE,
    Magnitude,
    Type,
    as_decimal,
    common,
    is_decimal,
    is_exact,
)
from dqp.sql.render import Columns, Select

_WHOLE = "tinyint smallint integer bigint utinyint usmallint uinteger ubigint"
_EXACT = f"{_WHOLE} hugeint decimal"
_COMPARED = f"{_WHOLE} hugeint decimal double date timestamp timestamptz"
# Of 65 digits 30 are behind the point: enough to be rounded once, to a DOUBLE.
_MEAN = "CAST(CAST(SUM({a}) AS DECIMAL(65,30)) / COUNT({a}) AS DOUBLE)"
_MEAN_OF = Magnitude(-10, 35 - MOST_ROWS)
"""The numbers that have room in it."""
_PLAIN = re.compile(r"[ !#-&(-\[\]-~]*")
"""Printable ASCII without quotes and backslashes."""
_DEPENDS = "a subquery that depends on a text"
NO_LIMIT = "18446744073709551615"


class MariaDB(Dialect):
    """The whitelist; the module says on what grounds."""

    product = "MariaDB"
    COSTS = replace(DialectProperties.COSTS, near=5e-7, table_key=5e-6, table_row=3e-6)
    MOST_NUMBERS = 20_000
    SINGLE_THREADED = True
    BYTES: ClassVar = "utf8mb4_nopad_bin"
    """The collation that compares bytes, all of them."""
    MOST_TABLES = 61
    SETS = frozenset({"union", "intersect", "except"})
    COLUMNS: ClassVar = {
        "tinyint": frozenset({"tinyint"}),
        "smallint": frozenset({"smallint"}),
        "mediumint": frozenset({"integer"}),
        "int": frozenset({"integer"}),
        "integer": frozenset({"integer"}),
        "bigint": frozenset({"bigint"}),
        "tinyint unsigned": frozenset({"utinyint"}),
        "smallint unsigned": frozenset({"usmallint"}),
        "mediumint unsigned": frozenset({"uinteger"}),
        "int unsigned": frozenset({"uinteger"}),
        "bigint unsigned": frozenset({"ubigint"}),
        "decimal": frozenset({"decimal"}),
        "double": frozenset({"double"}),
        "varchar": frozenset({"varchar"}),
        "tinytext": frozenset({"varchar"}),
        "text": frozenset({"varchar"}),
        "mediumtext": frozenset({"varchar"}),
        "longtext": frozenset({"varchar"}),
        "date": frozenset({"date"}),
        "datetime": frozenset({"timestamp"}),
        "timestamp": frozenset({"timestamptz"}),
        "char": frozenset({"varchar"}),
        "enum": frozenset({"varchar"}),
    }
    OPERATIONS = expanded(
        {
            **collated(_COMPARED),
            "like": {"varchar": "{0} LIKE {1}"},
            "case": {f"boolean {_COMPARED} varchar": ""},
            "+": {"bigint decimal bounded": "{0} + {1}"},
            "-": {"bigint decimal bounded": "{0} - {1}"},
            "*": {"bigint decimal bounded": "{0} * {1}"},
            "/ constant": {"bounded": "{0} / {1}"},
            "neg": {"bigint decimal double": "- {0}"},
            "abs": {"bigint decimal double": "ABS({a})"},
            "||": {"varchar": "CONCAT({0}, {1})"},
            "substring": {"varchar": "SUBSTRING({a}, {b}, {c})"},
            "substring from": {"varchar": "SUBSTRING({a}, {b})"},
            "length": {"varchar": "CHAR_LENGTH({a})"},
            "year": {"date timestamp": "YEAR({a})"},
            "month": {"date timestamp": "MONTH({a})"},
            "day": {"date timestamp": "DAY({a})"},
            "quarter": {"date timestamp": "QUARTER({a})"},
            "as bigint": {"tinyint smallint integer": "CAST({a} AS SIGNED)"},
            "as double": {_EXACT: "CAST({a} AS DOUBLE)"},
            "as timestamp": {"date": "CAST({a} AS DATETIME)"},
            "as varchar": {
                "date": "DATE_FORMAT({a}, '%Y-%m-%d')",
                "timestamp": "TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM DATE_FORMAT({a}, '%Y-%m-%d %H:%i:%s.%f')))",
            },
            # An infinite total alone would arrive as zero; computed with, it is an error.
            "sum": {f"{_WHOLE} decimal": "SUM({a})", "double": "(SUM({a}) + 0e0)"},
            "avg": {f"{_WHOLE} decimal": _MEAN, "double": "(SUM({a}) / COUNT({a}))"},
            "avg distinct": {f"{_WHOLE} decimal": _MEAN.replace("{a}", "DISTINCT {a}")},
            "sum distinct": {f"{_WHOLE} decimal": "SUM(DISTINCT {a})"},
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self._collated: set[str] = set()
        self._collations: dict[str, str] = {}
        """Of columns of tables."""
        self._converted = False
        """Some text may have another character set than UTF-8."""
        self._searching = False
        """In a subquery among whose values one is looked for."""

    def written(self, operation: str, type: Type, *values: Value) -> str:
        if operation == "/":
            raise self.refuse("/ by what may be zero, which is neither an infinity nor NaN there")
        if operation.startswith("avg") and is_exact(type):
            size = magnitude(values[0]) or _MEAN_OF
            if size.united(_MEAN_OF) != _MEAN_OF:
                raise self.refuse(f"avg of {type} has more than 65 digits on the way")
        return super().written(operation, type, *values)

    def delivered(self, identifier: str, text: str) -> str:
        # A decimal of more digits than DuckDB's arrives as text; one that is too large would be cut by a cast.
        type, size = self.types[identifier], self._size(identifier)
        if identifier in self.native or size is None or not (is_decimal(type) or type == HUGEINT):
            return text
        own = as_decimal(type)
        fits = size.high <= own.width - own.scale
        return f"CAST({text} AS DECIMAL({own.width},{own.scale}))" if fits else text

    def compares(self, collation: str | None) -> bool:
        return True

    def _scan(self, node: Scan) -> Select:
        for identifier, name in node.items:
            column = node.table.column(name)
            if column.type == "VARCHAR":
                self._collations[identifier] = collation = column.collation or ""
                self._converted = self._converted or not collation.startswith("utf8mb4_")
        return super()._scan(node)

    def _learn(self, items: Iterable[tuple[str, exp.Expression]]) -> None:
        columns = tuple(items)
        super()._learn(columns)
        for name, node in columns:
            if isinstance(node, exp.Column) and node.name in self._collations:
                self._collations[name] = self._collations[node.name]

    def _exact(self, identifier: str) -> bool:
        """A column that is compared by its bytes as it is."""
        return self._collations.get(identifier) == self.BYTES

    def _semi(self, node: Join) -> Select:
        left, before = self._opened(node.left), self._searching
        outer = used(node.condition) & frozenset(node.left.columns) if node.condition is not None else frozenset()
        self._searching = before or self._cached(outer)
        try:
            right = self._opened(node.right)
        finally:
            self._searching = before
        return self._filtered_side(node, left, right)

    def _filtered_side(self, node: Join, left: Select, right: Select) -> Select:
        outer = used(node.condition) & frozenset(node.left.columns) if node.condition is not None else frozenset()
        if not self._cached(outer):
            return super()._filtered_side(node, left, right)
        # A subquery that depends on nothing is right.
        one, other, rest = self._key(node)
        value = self.value(one, {**self.outer, **left.columns})
        inner = self.value(other, right.columns)
        self.comparison("=", common(value.type, inner.type), value, inner)
        where = [*right.where, *(self.condition(each, right.columns) for each in rest)]
        key = self.operand(inner)
        if node.kind == "anti":
            where.append(f"{key} IS NOT NULL")
        selected = self._looked_up(right, key, value.type, inner.type)
        text = f"IN ({self.text(replace(right, where=where), (), f'SELECT {selected}')})"
        kept = f"{self.operand(value)} {text}"
        if node.kind == "anti":
            kept = f"({self.enclosed(value)} IS NULL OR {self.operand(value)} NOT {text})"
        self._values[id(node.condition)] = Value(kept, BOOLEAN)
        return replace(left, where=[*left.where, kept])

    def _key(self, node: Join) -> tuple[exp.Expression, exp.Expression, list[exp.Expression]]:
        """The one equality of both sides, and what else is asked of the right one."""
        left, right = frozenset(node.left.columns), frozenset(node.right.columns)
        parts = conjuncts(node.condition)
        rest = [each for each in parts if used(each) <= right]
        equal = next((each for each in parts if type(each) is exp.EQ and each not in rest), None)
        if equal is None or len(rest) + 1 != len(parts) or free(node.right):
            raise self.refuse(_DEPENDS)
        one, other = equal.this, equal.expression
        if not used(one) <= left:
            one, other = other, one
        if not (used(one) and used(one) <= left and used(other) <= right):
            raise self.refuse(_DEPENDS)
        return one, other, rest

    def _on_nested(self, node: Nested, columns: Columns) -> Value:
        before = self._searching
        self._searching = before or node.kind == "in"
        try:
            value = super()._on_nested(node, columns)
        finally:
            self._searching = before
        if self._cached(free(node.plan)):
            raise self.refuse(_DEPENDS)
        return value

    def derived(self, query: Select, columns: tuple[str, ...]) -> Select:
        if self._searching:
            # MariaDB 11 leaves out rows that are equal in the collations of the columns: 'A' beside 'a'.
            texts = [each for each in columns if self.types[each] == VARCHAR and each not in self.opaque]
            exact = {each: self.operand(self._column(column(each), query.columns)) for each in texts}
            query = replace(query, columns={**query.columns, **exact})
            self._collations.update(dict.fromkeys(texts, self.BYTES))
        return self._apart(super().derived(query, columns))

    def searched(self, query: Select, identifier: str, value: Value) -> Select:
        text = self._looked_up(query, query.columns[identifier], value.type, self.types[identifier])
        return replace(query, columns={**query.columns, identifier: text})

    def _looked_up(self, query: Select, text: str, type: Type, own: Type) -> str:
        """What a subquery gives that is searched for a value of a type. MariaDB 11 looks into a derived table by a key,
        with the value converted to the column's type, so that 1.5 finds 2; it has no key of an expression."""
        is_safe = "(SELECT" not in query.source or (type in WHOLE and own in WHOLE)
        return text if is_safe else f"COALESCE({text})"

    def _setoperation(self, node: SetOperation) -> Select:
        return self._apart(super()._setoperation(node))

    def _apart(self, derived: Select) -> Select:
        """A derived table, which MariaDB makes before it knows a row of the queries around it."""
        if any("`" in each and each in derived.source for each in self.outer.values()):
            raise self.refuse("a derived table that depends on the query around it")
        return derived

    def _cached(self, outer: Iterable[str]) -> bool:
        """MariaDB keeps the results of a correlated subquery by the values of the outer columns, which it compares in
        the columns' own collations (subquery_cache): 'e' would get the result of 'é', whatever the condition says."""
        return any(self.types[each] == VARCHAR and not self._exact(each) for each in outer)

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def operand(self, value: Value) -> str:
        if value.type != VARCHAR or value.is_constant or self._exact(value.column):
            return super().operand(value)
        return self._by_bytes(value).text

    def _by_bytes(self, value: Value) -> Value:
        """A text that is compared by its bytes, whatever it is compared with."""
        if value.text in self._collated or (value.is_constant and value.constant is None):
            return value
        known = self._collations.get(value.column)
        converted = self._converted if known is None else not known.startswith("utf8mb4_")
        text = f"CONVERT({value.text} USING utf8mb4)" if converted else self.enclosed(value)
        text = f"{text} COLLATE {self.BYTES}"
        self._collated.add(text)
        self._atoms.add(text)
        return Value(text, VARCHAR, True)

    def sought(self, value: Value) -> str:
        # The other side has a collation of its own.
        return self.operand(value) if value.type != VARCHAR else self._by_bytes(value).text

    member = sought

    def constant(self, value: Any, type: Type) -> str:
        # A session's time zone is UTC.
        return super().constant(value.replace(tzinfo=None) if isinstance(value, datetime) else value, type)

    def string(self, value: str) -> str:
        """In hexadecimal digits unless it is plain, so that it cannot hold anything but the value."""
        return f"'{value}'" if _PLAIN.fullmatch(value) else f"_utf8mb4 X'{value.encode().hex()}'"

    def comparison(self, operator: str, type: Type, left: Value, right: Value) -> str:
        if type == VARCHAR and left.is_constant and right.is_constant:
            left = self._by_bytes(left)
        text = self.written(operator, type, left, right)
        if operator == "=" and right.is_constant and self._has_index(type, left, [right]):
            return self._both(f"{left.text} = {right.text}", text)
        return text

    def membership(self, type: Type, value: Value, members: Sequence[Value]) -> str:
        sought = self._by_bytes(value) if type == VARCHAR and value.is_constant else value
        text = super().membership(type, sought, members)
        if self._has_index(type, value, members):
            return self._both(f"{value.text} IN ({', '.join(each.text for each in members)})", text)
        return text

    def like(self, value: Value, pattern: str) -> str:
        # DuckDB's LIKE has no escape character; MariaDB's is the backslash unless another one is given.
        pattern_text, escape = self.string(pattern), ""
        if "\\" in pattern:
            pattern_text, escape = self.string(pattern.replace("|", "||")), " ESCAPE '|'"
        sought = self._by_bytes(value) if value.is_constant else value
        text = f"{self.operand(sought)} LIKE {pattern_text}{escape}"
        if self._collated_column(VARCHAR, value) and pattern.isascii() and pattern[:1] not in ("%", "_", ""):
            return self._both(f"{value.text} LIKE {pattern_text}{escape}", text)
        return text

    def _has_index(self, type: Type, value: Value, constants: Sequence[Value]) -> bool:
        """Whether the column's index can find these texts, which have to be texts of its character set."""
        utf8 = self._collations.get(value.column, "").startswith("utf8mb4_")
        return self._collated_column(type, value) and (utf8 or all(map(_is_ascii, constants)))

    def _collated_column(self, type: Type, value: Value) -> bool:
        return type == VARCHAR and bool(value.column) and not self._exact(value.column)

    def _both(self, plain: str, exact: str) -> str:
        text = f"({plain} AND {exact})"
        self._atoms.add(text)
        return text

    def ordered(self, text: str, *, descending: bool, nulls_first: bool) -> str:
        # NULL is less than everything.
        key = f"{text} DESC" if descending else text
        return key if nulls_first != descending else f"{text} IS NULL{' DESC' if nulls_first else ''}, {key}"

    def limited(self, limit: int | None, offset: int) -> str:
        if limit is None and offset:
            return f"LIMIT {NO_LIMIT} OFFSET {offset}"
        return super().limited(limit, offset)


class MySQL(MariaDB):
    """Has other collations, and was not measured with long lists."""

    product = "MySQL"
    MOST_NUMBERS = MOST_LISTED
    BYTES = "utf8mb4_0900_bin"


def _is_ascii(value: Value) -> bool:
    return value.constant is None or str(value.constant).isascii()
