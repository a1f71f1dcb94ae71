"""The dialect of SQLite: what it computes exactly as DuckDB does.

A column may hold values of any type, whatever type was declared. So a statement has a guard for every column that it
computes with: a row whose value is not of the declared type makes the statement fail, as reading the column would. So
does a text with the character NUL if the statement searches texts: SQLite reads a text only up to the first NUL. Whole
numbers that overflow become floating, so SQLite does not add those of 64 bits. It stores decimals as floating numbers,
so it only returns them. Dates are texts whose order is that of the dates. One moment may have several texts, so moments
are only compared with midnights.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, ClassVar

from sqlglot import exp

from dai.errors import DaiError, DataError
from dqp.algebra.chains import conjuncts
from dqp.algebra.constants import narrowed
from dqp.algebra.constants import value as value_of
from dqp.algebra.dialects import Costs
from dqp.algebra.keys import MOST_LOOKED_UP, Keys, Members
from dqp.algebra.operators import (
    SELECTIVITY,
    Aggregate,
    Distinct,
    Filter,
    Nested,
    Operator,
    Project,
    Scan,
    SetOperation,
    Sort,
    column,
)
from dqp.algebra.table import ROWID, Column
from dqp.algebra.trees import free, walk, walk_deep
from dqp.sql.dialects import constants
from dqp.sql.dialects.dialect import Dialect
from dqp.sql.dialects.expressions import Value, collated, expanded, kind
from dqp.sql.dialects.typing import BOOLEAN, DATE, DOUBLE, TIMESTAMP, VARCHAR, Type, parsed
from dqp.sql.render import Columns, Select, members

_WHOLE = frozenset({"bigint"})
_TEXT = frozenset({"varchar"})
_REAL = frozenset({"double"})
_COMPARED = "bigint double date"
_DIGITS = 15
_MOST_UNITED = 500
_LONGEST = 500
"""Characters of a condition that is repeated in guards."""
_MOST_IN_RANGE = 1 / 20
"""As MOST_LOOKED_UP, for a range, which takes less to compare with: one in 25, measured with 865,000 rows of 23
columns."""
_MOST_APART = 50
"""Conditions of one filter that are written one by one: SQLite's expressions are at most 1,000 deep."""
_DAY, _MINUTES = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]", "[0-9][0-9]:[0-9][0-9]"
_SECONDS = f"{_DAY}[ T]??:??:??"
_MOMENTS = (
    *(_SECONDS, f"{_SECONDS}.{6 * '[0-9]'}", _DAY, f"{_DAY}[ T]??:??"),
    *(f"{_SECONDS}.{digits * '[0-9]'}" for digits in (3, 1, 2, 4, 5)),
)
"""Patterns of the texts that a moment without a zone may have, the frequent ones first."""
_GUARDS = {
    "boolean": "{0} IN (0, 1) OR {0} IS NULL",
    "bigint": "typeof({0}) IN ('integer', 'null')",
    "double": "typeof({0}) IN ('real', 'null')",
    "varchar": "typeof({0}) IN ('text', 'null')",
    "looked into": "typeof({0}) = 'text' AND instr({0}, char(0)) = 0 OR {0} IS NULL",
    "date": "date({0}, '+00 days') = {0} AND {0} >= '0-' OR {0} IS NULL",
    "timestamp": " OR ".join((*(f"{{0}} GLOB '{each}'" for each in _MOMENTS), "{0} IS NULL")),
}
"""What is true of the values that a column may hold, by its type. Of '2020-02-30' the modifier makes a later day;
without it, some versions of SQLite give it back. The driver knows the modifier (``alike``). No day is negative. Whether
the day of a moment exists is not asked, and with = and a constant SQLite asks none of them but that of texts: see
docs/decisions/0009."""
_FRACTION = "{0} GLOB '{1}:[0-9][0-9].[0-9]*' AND LENGTH({0}) <= {2} AND SUBSTR({0}, {3}) NOT GLOB '*[^0-9]*'"
_RAW = {
    "bigint": "CAST({0} AS TEXT)",
    "varchar": "CAST({0} AS TEXT)",
    "boolean": "CASE {0} WHEN 0 THEN 'false' WHEN 1 THEN 'true' ELSE CAST({0} AS TEXT) END",
    "date": "CAST({0} AS TEXT)",
    "timestamp": (
        f"CASE WHEN {{0}} GLOB '{_DAY}' THEN {{0}} || ' 00:00:00' "
        f"WHEN {{0}} GLOB '{_DAY}[ T]{_MINUTES}' THEN SUBSTR({{0}}, 1, 10) || ' ' || SUBSTR({{0}}, 12) || ':00' "
        f"WHEN {{0}} GLOB '{_DAY}[ T]{_MINUTES}:[0-9][0-9]' THEN SUBSTR({{0}}, 1, 10) || ' ' || SUBSTR({{0}}, 12) "
        f"WHEN {_FRACTION.format('{0}', f'{_DAY}[ T]{_MINUTES}', 26, 21)} "
        "THEN SUBSTR({0}, 1, 10) || ' ' || RTRIM(RTRIM(SUBSTR({0}, 12), '0'), '.') ELSE CAST({0} AS TEXT) END"
    ),
    "time": (
        f"CASE WHEN {{0}} GLOB '{_MINUTES}' THEN {{0}} || ':00' "
        f"WHEN {_FRACTION.format('{0}', _MINUTES, 15, 10)} THEN RTRIM(RTRIM({{0}}, '0'), '.') "
        "ELSE CAST({0} AS TEXT) END"
    ),
}
"""A column as text, whatever its values are: those of its type have DuckDB's text, others are as they stand there."""
_NUMBER = "CASE WHEN typeof({0}) IN ('integer', 'real') THEN CAST({0} AS REAL) END"
_SAYING = "The column "
"""How the message of a guard begins. The driver knows it (``alike``)."""
_REFUSED = "json_extract('{{}}', hex(printf({1}, typeof({0}), {0})))"
"""An error, because this is no path into JSON. SQLite has no other whose message says a value; the digits keep whatever
bytes it has."""
_SAID = re.compile(r"JSON path(?: error near|:) '((?:[0-9A-F]{2})+)'")
"""What SQLite 3.9 and 3.45 make of it."""
_COLUMN = re.compile(r'\w+\."')
GUARD = "iif("
"""How a guard begins, and nothing else in a statement."""


class _Guard(str):
    """Stands among the conditions of a WHERE: rows are refused that have something else in the column than it says.
    ``column``, ``good`` and ``refused`` are SQL. What fails is behind a jump: for a good row it takes a fifth of the
    time that the same takes as one number, computed from all of it."""

    column: str
    good: str
    refused: str

    @classmethod
    def of(cls, column: str, good: str, refused: str) -> _Guard:
        guard = cls(f"{GUARD}{good}, 1, {refused})")
        guard.column, guard.good, guard.refused = column, good, refused
        return guard

    def after(self, conditions: Iterable[str]) -> str:
        """The guard, for only those rows for which these conditions are true."""
        before = " AND ".join(conditions)
        return f"{GUARD}{self.good}, 1, iif({before}, {self.refused}, 1))" if before else self


def _repeated(condition: str, guard: _Guard) -> bool:
    """Whether a guard may ask it too: short, and of the same table alone, or a join would have the guard later than the
    conditions behind it."""
    if len(condition) > _LONGEST or "?" in condition or condition.startswith(GUARD):
        return False
    return {each.split(".")[0] for each in _COLUMN.findall(condition)} == {guard.column.split(".")[0]}


class SQLite(Dialect):
    """The whitelist; the module says on what grounds."""

    product = "SQLite"
    COSTS = Costs(
        row=5e-8,
        byte=1e-8,
        scan=1e-7,
        filter=6e-8,
        work=3e-7,
        value=1e-7,
        sorted=7e-7,
        lookup=2e-6,
        listed=1e-8,
        table_key=2.5e-6,
        table_row=3.5e-7,
        table_found=2e-6,  # `sqlite3` reads it, no process does (docs/decisions/0009)
    )
    MOST_NUMBERS = 20_000
    SINGLE_THREADED = True
    ANY_INDEX = True  # without ANALYZE it expects ten rows
    MERGED_TYPES = ("DECIMAL", "TIME")  # several texts for one moment, several numbers for one DECIMAL
    LOOSE = True
    DEEPEST = 95
    MOST_TABLES = 64
    JOINS = frozenset({"inner", "left", "semi", "anti"})
    COLUMNS: ClassVar = {
        **dict.fromkeys(("integer", "int", "bigint", "smallint", "tinyint", "mediumint", "int2", "int8"), _WHOLE),
        **dict.fromkeys(("text", "varchar", "char", "character", "nvarchar", "clob", "nchar"), _TEXT),
        **dict.fromkeys(("real", "double", "double precision", "float"), _REAL),
        "boolean": frozenset({"boolean"}),
        "bool": frozenset({"boolean"}),
        "date": frozenset({"date"}),
    }
    OPERATIONS = expanded(
        {
            **collated(_COMPARED),
            "like": {"varchar": "{a} GLOB {1}"},
            "case": {f"boolean {_COMPARED} integer varchar": ""},
            "substring": {"varchar": "SUBSTR({a}, {b}, {c})"},
            "substring from": {"varchar": "SUBSTR({a}, {b})"},
            "||": {"varchar": "{a} || {b}"},
            "year": {"date": "CAST(SUBSTR({a}, 1, 4) AS INTEGER)"},
            "month": {"date": "CAST(SUBSTR({a}, 6, 2) AS INTEGER)"},
            "day": {"date": "CAST(SUBSTR({a}, 9, 2) AS INTEGER)"},
            "as double": {"integer bigint": "CAST({a} AS REAL)"},
            **{operator: {"bounded": f"{{0}} {operator} {{1}}"} for operator in ("+", "-", "*")},
            "/ constant": {"bounded": "{0} / {1}"},
            # More than 2**31 rows would have to be added for their total to need more than 64 bits.
            "sum": {"integer": "SUM({a})"},
        }
    )

    @staticmethod
    def explained(error: DaiError, sql: str) -> DaiError | None:
        """What a guard's error says; None for any other error."""
        if isinstance(error, DataError) and "column" in error.extra and " AS TEXT)" in (error.hint or ""):
            name = error.extra["column"].replace('"', '""')
            hint = (
                f'CAST("{name}" AS VARCHAR) has its values as text, unless it is declared as real, decimal or blob; '
                f'TRY_CAST("{name}" AS DOUBLE) has its numbers, if it is declared as a number.'
            )
            return DataError(error.detail, hint=hint, **error.extra)
        said = _SAID.search(error.detail or "")
        detail = bytes.fromhex(said[1]).decode("utf-8", "replace") if said else ""
        if not detail.startswith(_SAYING):
            return None
        return DataError(
            detail,
            hint="SQLite takes any value in any column, but cannot look into texts with the character NUL. "
            "TRY_CAST(… AS DOUBLE) has the numbers of a column, CAST(… AS VARCHAR) the texts. In SQLite typeof(…) "
            "finds such values, date(…, '+0 days') days that do not exist, instr(…, char(0)) the character NUL.",
        )

    def __init__(self) -> None:
        super().__init__()
        self._used: frozenset[str] = frozenset()
        self._scanned: set[str] = set()
        """Columns of tables, as they stand there."""
        self._unique: set[str] = set()
        """Those of them that are keys alone."""
        self._indexed: dict[str, Column | None] = {}
        """Columns by whose ranges SQLite may find rows in an index, which then lie apart; None for those that do not
        begin the index."""
        self._ranges: set[int] = set()
        """Comparisons (by ``id``) that are no reason to use an index."""
        self._looking = False
        """Some text is looked into, which SQLite does up to the first NUL only."""

    def statement(self, tree: Operator) -> tuple[str, tuple[tuple[str, str], ...]]:
        self._used = _mentioned(tree)
        self._looking = any(
            each.find(exp.Like, exp.Substring, exp.Left) for node in walk_deep(tree) for each in node.expressions
        )
        return super().statement(tree)

    def _scan(self, node: Scan) -> Select:
        query = super()._scan(node)
        self._scanned.update(identifier for identifier, _ in node.items)
        self._unique.update(identifier for identifier, name in node.items if (name,) in node.table.keys)
        indexes = (*node.table.keys, *node.table.indexes)
        # In the order of its key a table without a rowid has its rows.
        ordered = node.table.keys[0][0] if node.table.keys and node.table.rowid is None else None
        for identifier, name in node.items:
            if any(name in each for each in indexes) and identifier not in self._unique and name != ordered:
                first = any(each[0] == name for each in indexes)
                self._indexed[identifier] = node.table.column(name) if first else None
        for identifier, name in node.items:
            kind = self.types[identifier].name.lower()
            guard = _GUARDS.get("looked into" if kind == "varchar" and self._looking else kind)
            exact = name == ROWID or (identifier in self.opaque and kind != "timestamp")
            if identifier in self._used and not exact and guard is not None:
                column, own = query.columns[identifier], node.table.column(name)
                said = f"{_SAYING}{name} of {node.table.name}, declared {own.source_type}, holds".replace("%", "%%")
                refused = _REFUSED.format(column, self.string(f"{said} the %s '%!.60s'."))
                query.where.append(_Guard.of(column, guard.format(column), refused))
        return query

    def _filter(self, node: Filter) -> Select:
        query = self._opened(node.input)
        scope = self._scope(query)
        parts = conjuncts(node.condition)
        self._ranges.update(map(id, self._wide(parts)))
        parts = parts if len(parts) <= _MOST_APART else [node.condition]
        return replace(query, where=[*query.where, *(self.condition(each, scope) for each in parts)])

    def _wide(self, conditions: Sequence[exp.Expression]) -> Iterator[exp.Expression]:
        """Comparisons that together keep much of a table, and those of columns that do not begin their index, for whose
        every first value SQLite would begin anew (https://sqlite.org/optoverview.html, 5)."""
        ranges: dict[str, list[exp.Expression]] = {}
        for each in conditions:
            if isinstance(each, exp.LT | exp.LTE | exp.GT | exp.GTE) and isinstance(each.this, exp.Column):
                ranges.setdefault(each.this.name, []).append(each)
        for identifier in ranges.keys() & self._indexed.keys():
            column, compared = self._indexed[identifier], ranges[identifier]
            if column is None or (_selectivity(column, compared) or 0.0) > _MOST_IN_RANGE:
                yield from compared

    def _comparing(self, operator: str, node: exp.Binary, columns: Columns) -> Value:
        written = self._compared_by_day(operator, node, columns) or super()._comparing(operator, node, columns)
        return written._replace(text=f"+{written.text}") if id(node) in self._ranges else written

    def _compared_by_day(self, operator: str, node: exp.Binary, columns: Columns) -> Value | None:
        """A moment before a midnight, or not before it, whatever text stands for it: each begins with its day. None for
        any other comparison."""
        column = node.this
        if operator not in ("<", ">=") or not isinstance(column, exp.Column) or column.name not in self._scanned:
            return None
        day = _midnight(node.expression) if self.types[column.name] == TIMESTAMP else None
        if day is None:
            return None
        return Value(f"{self._bare(column, columns).text} {operator} '{day.isoformat()}'", BOOLEAN)

    def conditions(self, where: Sequence[str]) -> Sequence[str]:
        """In the order in which SQLite asks them, which is the given one: each condition behind the guards of the
        columns that it reads. A row that conditions before a guard leave out need not be readable for it."""
        guards = [each for each in where if isinstance(each, _Guard)]
        rest = [each for each in where if not isinstance(each, _Guard)]

        def order(guard: _Guard) -> tuple[bool, bool, int]:
            uses = [at for at, each in enumerate(rest) if guard.column in each]
            return not uses, "GLOB" in guard.good or "date(" in guard.good, min(uses, default=0)

        guards.sort(key=order)
        in_sequence: list[str] = []
        for at in range(len(guards) + 1):
            later = [each.column for each in guards[at:]]
            ready = [each for each in rest if not any(column in each for column in later)]
            rest = [each for each in rest if each not in ready]
            in_sequence += ready
            if at < len(guards):
                in_sequence.append(guards[at].after(each for each in in_sequence if _repeated(each, guards[at])))
        return in_sequence

    def _setoperation(self, node: SetOperation) -> Select:
        if len(members(node)) > _MOST_UNITED:
            raise self.refuse(f"a union of more than {_MOST_UNITED} queries")
        return super()._setoperation(node)

    def compares(self, collation: str | None) -> bool:
        return True

    def _on_cast(self, node: exp.Cast, columns: Columns) -> Value:
        raw = self._raw(node, columns, _RAW)
        return raw if raw is not None else super()._on_cast(node, columns)

    def _on_trycast(self, node: exp.TryCast, columns: Columns) -> Value:
        raw = self._raw(node, columns, dict.fromkeys(("bigint", "double", "decimal"), _NUMBER))
        if raw is None:
            raise self.refuse("TRY_CAST")
        return raw

    def _raw(self, node: exp.Cast, columns: Columns, written: Mapping[str, str]) -> Value | None:
        """A cast by which a column can be read whatever its values are; None for any other."""
        column = _read_raw(node)
        if column is None or column.name not in self._scanned:
            return None
        value = self._column(column, columns)
        template = written.get(kind(value.type))
        if template is None or value.type.width > _DIGITS:
            return None
        return Value(f"({template.format(value.text)})", DOUBLE if isinstance(node, exp.TryCast) else VARCHAR, True)

    def _on_in(self, node: exp.In, columns: Columns) -> Value:
        return self._without_index(node, [node.this], super()._on_in(node, columns))

    def _on_keys(self, node: Keys, columns: Columns) -> Value:
        return self._without_index(node, [node.this], super()._on_keys(node, columns))

    def _on_members(self, node: Members, columns: Columns) -> Value:
        return self._without_index(node, node.expressions, super()._on_members(node, columns))

    def _without_index(self, node: exp.Expression, compared: Sequence[exp.Expression], written: Value) -> Value:
        """Keys that keep much of a table: SQLite, which has no statistics without ANALYZE, looks each of them up in an
        index; to read the table takes less. A plus before the column says so (https://sqlite.org/optoverview.html)."""
        column, *others = compared
        part = node.meta.get(SELECTIVITY, 0.0)
        if others or part <= MOST_LOOKED_UP or not isinstance(column, exp.Column) or column.name in self._unique:
            return written
        return written._replace(text=f"+{written.text}")

    def operand(self, value: Value) -> str:
        text = super().operand(value)
        # A column may have been declared with another collation.
        return text if value.type != VARCHAR or value.is_constant else f"{text} COLLATE BINARY"

    def constant(self, value: Any, type: Type) -> str:
        match value:
            case bool():
                return str(int(value))
            case datetime():
                raise self.refuse(f"constants of type {type}")
            case Decimal() if len(value.as_tuple().digits) > _DIGITS:
                raise self.refuse(f"decimals of more than {_DIGITS} digits")
            case date():
                return f"'{value.isoformat()}'"
        return super().constant(value, type)

    def comparison(self, operator: str, type: Type, left: Value, right: Value) -> str:
        # SQLite compares whole numbers with floating ones exactly, DuckDB as floating ones.
        if type in (DOUBLE, DATE) and (left.type, right.type) != (type, type):
            raise self.refuse(f"{left.type} {operator} {right.type}")
        return super().comparison(operator, type, left, right)

    def like(self, value: Value, pattern: str) -> str:
        # SQLite's own LIKE takes 'a' for 'A'.
        marks = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
        return f"{self.enclosed(value)} GLOB {self.string(''.join(marks.get(each, each) for each in pattern))}"

    def limited(self, limit: int | None, offset: int) -> str:
        return super().limited(-1 if limit is None and offset else limit, offset)

    def _on_nested(self, node: Nested, columns: Columns) -> Value:
        if node.kind == "scalar" and not _is_one_row(node.plan):
            # SQLite would take the first row of several, where DuckDB raises.
            raise self.refuse("a subquery that may give several rows")
        return super()._on_nested(node, columns)


def _midnight(node: exp.Expression) -> date | None:
    """The day that begins at a constant; None where none does, and for what is no constant."""
    moment = value_of(node)
    if isinstance(moment, str):
        moment = constants.cast(moment, VARCHAR, TIMESTAMP)
    if isinstance(moment, datetime):
        return moment.date() if moment.time() == time() else None
    return moment if isinstance(moment, date) else None


def _is_one_row(plan: Operator) -> bool:
    if isinstance(plan, Project | Sort):
        return (isinstance(plan, Sort) and plan.limit in (0, 1)) or _is_one_row(plan.input)
    return isinstance(plan, Aggregate) and not plan.keys


def _read_raw(node: exp.Expression) -> exp.Column | None:
    """The column of which this is a cast that needs no guard."""
    if not isinstance(node, exp.Cast):
        return None
    column, to = node.this.unnest(), parsed(node.to.sql(dialect="duckdb"))
    wanted = DOUBLE if isinstance(node, exp.TryCast) else VARCHAR
    return column if isinstance(column, exp.Column) and to == wanted else None


def _looked_for_null(node: exp.Is) -> exp.Column | None:
    """The column of which this asks whether it is NULL."""
    column = node.this.unnest()
    return column if isinstance(column, exp.Column) and isinstance(node.expression, exp.Null) else None


def _computed(expression: exp.Expression) -> set[str]:
    """Identifiers that it uses otherwise than in such a cast or to find NULL, without those of its nested plans."""
    found: Counter[str] = Counter()
    for node in expression.walk():
        if isinstance(node, exp.Column):
            found[node.name] += 1
        elif isinstance(node, exp.Cast | exp.Is):
            left = _read_raw(node) if isinstance(node, exp.Cast) else _looked_for_null(node)
            if left is not None:
                found[left.name] -= 1
    return {name for name, times in found.items() if times}


def _selectivity(column: Column, compared: Sequence[exp.Expression]) -> float | None:
    """The part of a column's values that comparisons with whole numbers keep; None where nobody knows."""
    if not isinstance(column.low, int) or not isinstance(column.high, int):
        return None
    low, high = column.low, column.high
    for each in compared:
        if (left := narrowed(low, high, each)) is None:
            return None
        low, high = left
    return max(0, high - low + 1) / (column.high - column.low + 1)


def _mentioned(tree: Operator) -> frozenset[str]:
    """Identifiers that expressions use, in nested plans too, and those of whole rows that are compared."""
    identifiers: set[str] = set()
    for node in walk(tree):
        if isinstance(node, Distinct | SetOperation):
            identifiers.update(*(each.columns for each in node.inputs))
        if isinstance(node, Project) and all(each == column(name) for name, each in node.items):
            continue  # leaves columns out
        for expression in node.expressions:
            identifiers |= _computed(expression)
        for nested in node.subqueries:
            identifiers |= _mentioned(nested.plan) | free(nested.plan) | set(nested.plan.columns)
    return frozenset(identifiers)
