"""The dialect of PostgreSQL: what it computes exactly as DuckDB does.

Texts are ordered and compared for size by their bytes (``COLLATE "C"``); equality needs no collation. Columns that the
driver delivers as text (uuid, enum, char(n), …) are cast to the same text. Texts are written as literals: a bound
parameter of a bulk read would be a setting that is read for every row, and the planner would not know its value
(docs/decisions/0007). Decimals are cast to DuckDB's type where DuckDB checks for overflow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from dqp.algebra.dialects import Costs
from dqp.algebra.operators import Scan
from dqp.sql.dialects.dialect import Dialect
from dqp.sql.dialects.expressions import Value, expanded
from dqp.sql.dialects.typing import BIGINT, HUGEINT, NULL, VARCHAR, Type, is_decimal
from dqp.sql.render import Select

_COMPARED = "boolean smallint integer bigint hugeint decimal float double date timestamp timestamptz"
_TEXTS = frozenset({"text", "varchar"})
_AS_TEXT = {"bpchar": "textin(bpcharout({}))", "inet": "textin(inet_out({}))"}
"""Where a cast to text is not the text that arrives: it takes a char(n)'s blanks, and adds /32 to an address."""
_UUID, _ANY = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), re.compile(r"(?s:.*)")
_EXACT = "smallint integer bigint hugeint decimal"
_ORDERED = 'COLLATE "C"'
_WIDE = "CAST({a} AS double precision)"
# The digits that a numeric quotient has are those of its dividend: enough of them to be rounded once, to a DOUBLE.
_MEAN = "CAST(CAST(SUM({a}) AS numeric(150,90)) / COUNT({a}) AS double precision)"
# What is too small for a DOUBLE is an error, not zero.
_FLOATING_MEAN = (
    "CASE WHEN ABS(SUM({a})) <= COUNT({a}) / 2 * '5e-324'::float8 THEN SUM({a}) * 0 ELSE SUM({a}) / COUNT({a}) END"
)
_NAMES = {"DOUBLE": "double precision", "FLOAT": "real", "VARCHAR": "text", "HUGEINT": "numeric(38,0)"}
_INFINITY = "CASE WHEN CAST({1} AS text) = '-0' THEN '-Infinity'::float8 ELSE 'Infinity'::float8 END"
_YEAR = "CAST(EXTRACT(YEAR FROM {a}) + CASE WHEN {a} < '0001-01-01' THEN 1 ELSE 0 END AS bigint)"


def _day_text(rest: str) -> str:
    """The text of a day and of the rest of a moment, whatever DateStyle is; what is infinite has one too."""
    day = "TO_CHAR({a}, 'YYYY-MM-DD') || CASE WHEN {a} < '0001-01-01' THEN ' (BC)' ELSE '' END"
    return f"CASE WHEN ISFINITE({{a}}) THEN {day}{rest} ELSE CAST({{a}} AS text) END"


class PostgreSQL(Dialect):
    """The whitelist; the module says on what grounds."""

    product = "PostgreSQL"
    COSTS = Costs(
        row=1.5e-7,
        byte=6e-9,
        scan=1e-7,
        work=1.2e-7,
        probe=3.5e-8,
        value=3e-8,
        division=3e-7,  # numeric becomes double precision by way of a text, several times
        distinct=3.5e-7,
        sort=1e-6,
        spill=2.5e-7,
        group=1e-6,
        ordered=2e-7,
        memory=8e6,  # work_mem and hash_mem_multiplier by default
        pair=3e-8,
        index=3e-6,
        seek=1.5e-5,  # random_page_cost 4, where a row that is read and joined costs 0.035
        table_key=4e-6,
        table_row=9e-7,
    )
    MOST_NUMBERS = 50_000
    TEXT_NUMBERS = ("numeric",)
    # A row of NULLs is one: IS NULL says that it is none, and of a row with some NULLs neither test is true.
    OPAQUE_NULLS = ("IS NOT DISTINCT FROM NULL", "IS DISTINCT FROM NULL")
    JOINS = frozenset({"inner", "left", "right", "full", "semi", "anti"})
    COLUMNS: ClassVar = {
        "bool": frozenset({"boolean"}),
        "int2": frozenset({"smallint"}),
        "int4": frozenset({"integer"}),
        "int8": frozenset({"bigint"}),
        "numeric": frozenset({"decimal", "double"}),
        "float4": frozenset({"float"}),
        "float8": frozenset({"double"}),
        "text": frozenset({"varchar"}),
        "varchar": frozenset({"varchar"}),
        "date": frozenset({"date"}),
        "timestamp": frozenset({"timestamp"}),
        "timestamptz": frozenset({"timestamptz"}),
        "time": frozenset({"time"}),
        # The names of the standard, where a table is described without its database.
        "boolean": frozenset({"boolean"}),
        "smallint": frozenset({"smallint"}),
        "integer": frozenset({"integer"}),
        "bigint": frozenset({"bigint"}),
        "decimal": frozenset({"decimal"}),
        "double": frozenset({"double"}),
    }
    OPERATIONS = expanded(
        {
            "=": {f"{_COMPARED} varchar": "{0} = {1}"},
            "<>": {f"{_COMPARED} varchar": "{0} <> {1}"},
            **{
                operator: {
                    _COMPARED: f"{{0}} {operator} {{1}}",
                    "varchar": f"{{0}} {operator} {{1}} {_ORDERED}",
                }
                for operator in ("<", "<=", ">", ">=")
            },
            "like": {"varchar": "{0} LIKE {1}"},
            "case": {f"{_COMPARED} varchar": ""},
            "group": {f"{_COMPARED} varchar": "{a}"},
            "order": {_COMPARED: "{a}", "varchar": f"{{a}} {_ORDERED}"},
            # int2 computes in int4 as soon as a literal is there: its overflow would not be DuckDB's.
            "+": {"integer bigint decimal bounded": "{0} + {1}"},
            "-": {"integer bigint decimal bounded": "{0} - {1}"},
            "*": {"integer bigint decimal bounded": "{0} * {1}"},
            "/ constant": {"bounded": "{0} / {1}"},
            "/": {
                _EXACT: "CASE WHEN {1} = 0 THEN {0} * 'Infinity'::float8 ELSE {0} / {1} END",
                "bounded": f"CASE WHEN {{1}} = 0 THEN {{0}} * {_INFINITY} ELSE {{0}} / {{1}} END",
            },
            "neg": {"integer bigint decimal double": "- {0}"},
            "abs": {"integer bigint decimal double": "ABS({a})"},
            "||": {"varchar": "{0} || {1}"},
            "substring": {"varchar": "SUBSTRING({a}, {b}, {c})"},
            "substring from": {"varchar": "SUBSTRING({a}, {b})"},
            "length": {"varchar": "CAST(CHAR_LENGTH({a}) AS bigint)"},
            "year": {"date timestamp": _YEAR},
            "month": {"date timestamp": "CAST(EXTRACT(MONTH FROM {a}) AS bigint)"},
            "day": {"date timestamp": "CAST(EXTRACT(DAY FROM {a}) AS bigint)"},
            "quarter": {"date timestamp": "CAST(EXTRACT(QUARTER FROM {a}) AS bigint)"},
            "as bigint": {"smallint integer": "CAST({a} AS bigint)"},
            "as integer": {"smallint": "CAST({a} AS integer)"},
            "as double": {_EXACT: "CAST({a} AS double precision)"},
            "as timestamp": {"date": "CAST({a} AS timestamp)"},
            "as varchar": {
                "date": _day_text(""),
                "timestamp": _day_text(" || RTRIM(RTRIM(TO_CHAR({a}, ' HH24:MI:SS.US'), '0'), '.')"),
                "time": "CAST({a} AS text)",
            },
            "sum": {
                "smallint integer bigint decimal": "SUM({a})",
                # The sum of negative zeros alone is zero.
                "double": "(SUM({a}) + 0)",
                "float": f"(SUM({_WIDE}) + 0)",
            },
            "avg": {_EXACT: _MEAN, "double": _FLOATING_MEAN, "float": _FLOATING_MEAN.replace("{a}", _WIDE)},
            "avg distinct": {_EXACT: _MEAN.replace("{a}", "DISTINCT {a}")},
            "sum distinct": {"smallint integer bigint decimal": "SUM(DISTINCT {a})"},
            "min": {_COMPARED.replace("boolean ", ""): "MIN({a})", "varchar": f"MIN({{a}} {_ORDERED})"},
            "max": {_COMPARED.replace("boolean ", ""): "MAX({a})", "varchar": f"MAX({{a}} {_ORDERED})"},
            "logicaland": {"boolean": "BOOL_AND({a})"},
            "logicalor": {"boolean": "BOOL_OR({a})"},
        }
    )

    def __init__(self) -> None:
        super().__init__()
        self._cast: set[str] = set()
        """Texts that are decimals of the type they should have."""
        self._plain: dict[str, tuple[str, str]] = {}
        """By the text of a column that is cast to text: the column itself, and its type."""

    def behaves(self, source_type: str, type: Type) -> bool:
        text = type == VARCHAR and source_type not in ("", *self.TEXT_NUMBERS)
        return text or super().behaves(source_type, type)

    def _scan(self, node: Scan) -> Select:
        query = super()._scan(node)
        columns = dict(query.columns)
        for identifier, name in node.items:
            column = node.table.column(name)
            # DECIMAL holds no numeric without a precision, and its text would be no number.
            if column.type in ("DOUBLE", "DOUBLE[]") and column.source_type.lower().startswith("numeric"):
                own = f"double precision{column.type[len('DOUBLE') :]}"
                columns[identifier] = text = f"CAST({columns[identifier]} AS {own})"
                self._atoms.add(text)
            own = column.source_type.lower()
            if identifier not in self.opaque and column.type == "VARCHAR" and own not in _TEXTS:
                plain = columns[identifier]
                columns[identifier] = text = _AS_TEXT.get(own, "CAST({} AS text)").format(plain)
                self._plain[text] = (plain, own)
                self._atoms.add(text)
        return replace(query, columns=columns)

    def comparison(self, operator: str, type: Type, left: Value, right: Value) -> str:
        text = self.written(operator, type, left, right)
        return self._indexed(left, [right], f"{{}} = {right.text}", text) if operator == "=" else text

    def membership(self, type: Type, value: Value, members: Sequence[Value]) -> str:
        listed = ", ".join(each.text for each in members)
        return self._indexed(value, members, f"{{}} IN ({listed})", super().membership(type, value, members))

    def _indexed(self, value: Value, others: Sequence[Value], plain: str, text: str) -> str:
        """With a condition that an index of the column can be used for, and that is true wherever the exact one is."""
        column, own = self._plain.get(value.text, ("", ""))
        literal = _UUID if own == "uuid" else _ANY if own == "bpchar" else None
        if literal is None or not all(
            each.is_constant and (each.constant is None or literal.fullmatch(each.constant)) for each in others
        ):
            return text
        both = f"({plain.format(column)} AND {text})"
        self._atoms.add(both)
        return both

    def string(self, value: str) -> str:
        """A literal that means the same whatever ``standard_conforming_strings`` is."""
        doubled = value.replace("'", "''")
        return f"'{doubled}'" if "\\" not in doubled else "E'" + doubled.replace("\\", "\\\\") + "'"

    def typed(self, value: Any, type: Type) -> str:
        text = self.constant(value, type)
        if value is not None and type != BIGINT and not is_decimal(type):
            return text
        own = f"numeric({type.width},{type.scale})" if is_decimal(type) else _NAMES.get(type.name, type.name)
        return f"CAST({text} AS {own})" if type != NULL else text

    def member(self, value: Value) -> str:
        # A column with a collation of its own could not be compared with a table that has none.
        text = super().member(value)
        return f"{text} {_ORDERED}" if value.type == VARCHAR else text

    def listed(self, value: Value, numbers: str) -> str:
        # Read three times as fast as a list of literals.
        return f"{self.operand(value)} = ANY('{{{numbers}}}'::{value.type.name.lower()}[])"

    def delivered(self, identifier: str, text: str) -> str:
        # A numeric without a precision arrives as text.
        type = self.types[identifier]
        if identifier in self.native or text in self._cast or not (is_decimal(type) or type == HUGEINT):
            return text
        width, scale = (type.width, type.scale) if is_decimal(type) else (38, 0)
        return f"CAST({text} AS numeric({width},{scale}))"

    def checked(self, text: str, type: Type) -> str:
        cast = f"CAST({text} AS numeric({type.width},{type.scale}))"
        self._cast.add(cast)
        return cast

    def like(self, value: Value, pattern: str) -> str:
        # DuckDB's LIKE has no escape character unless one is given.
        escape = " ESCAPE ''" if "\\" in pattern else ""
        return f"{self.operand(value)} LIKE {self.string(pattern)}{escape}"
