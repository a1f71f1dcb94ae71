"""Functions, alternatives, aggregates and subqueries in expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from sqlglot import exp

from dqp.algebra.operators import Nested, column
from dqp.sql.dialects import constants
from dqp.sql.dialects.arithmetic import Operators
from dqp.sql.dialects.expressions import Value, is_untyped, magnitude, named
from dqp.sql.dialects.typing import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    HUGEINT,
    INTEGER,
    NULL,
    TIMESTAMP,
    VARCHAR,
    WHOLE,
    Magnitude,
    NotPushed,
    Type,
    common,
    fits,
    is_decimal,
    is_exact,
)
from dqp.sql.render import Columns, Select

MOST_ROWS = 13
"""Digits of the number of rows of a group."""
MOST_CHARACTERS = 2**31 - 1
"""Of a text, as far as all sources count them."""


class Functions(Operators):
    """Every function is an operation of the whitelist on the type of its first operand."""

    def _function(self, name: str, type: Type, *values: Value) -> Value:
        return self.result(self.written(name, values[0].type, *values), type)

    def _counts(self, node: exp.Expression | None, columns: Columns, least: int) -> Value:
        value = self.known(None, NULL) if node is None else self.value(node, columns)
        if not (value.is_constant and isinstance(value.constant, int) and least <= value.constant <= MOST_CHARACTERS):
            raise self.refuse(f"positions that are not constants from {least} to {MOST_CHARACTERS}")
        return value

    def _on_substring(self, node: exp.Substring, columns: Columns) -> Value:
        value = self.value(node.this, columns)
        start = self._counts(node.args.get("start"), columns, 1)
        if node.args.get("length") is None:
            return self._function("substring from", VARCHAR, value, start)
        return self._function("substring", VARCHAR, value, start, self._counts(node.args["length"], columns, 0))

    def _on_left(self, node: exp.Left, columns: Columns) -> Value:
        count = self._counts(node.expression, columns, 0)
        return self._function("substring", VARCHAR, self.value(node.this, columns), self.known(1, INTEGER), count)

    def _on_length(self, node: exp.Length, columns: Columns) -> Value:
        return self._function("length", BIGINT, self.value(node.this, columns))

    def _on_abs(self, node: exp.Abs, columns: Columns) -> Value:
        value = self.value(node.this, columns)
        return self._function("abs", value.type, value)._replace(magnitude=value.magnitude)

    def _on_extract(self, node: exp.Extract, columns: Columns) -> Value:
        return self._function(node.name.lower(), BIGINT, self.value(node.expression, columns))

    def _part(self, node: exp.Expression, columns: Columns) -> Value:
        return self._function(type(node).__name__.lower(), BIGINT, self.value(node.this, columns))

    _on_year = _on_month = _on_day = _on_quarter = _part

    def _on_timestamptrunc(self, node: exp.TimestampTrunc, columns: Columns) -> Value:
        return self._function(
            f"trunc to {str(node.args['unit'].name).lower()}", TIMESTAMP, self.value(node.this, columns)
        )

    _on_datetrunc = _on_timestamptrunc

    # Alternatives.

    def _alternatives(self, values: Sequence[Value]) -> tuple[list[Value], Type]:
        """In their common type; a text among other types would be converted, which is not for us."""
        type = NULL
        for each in sorted(values, key=lambda value: value.is_constant):
            own = each.type
            if is_untyped(each) and type in WHOLE and fits(each.constant, type):
                own = type
            if each.is_constant and each.type == VARCHAR and type in (DATE, TIMESTAMP):
                own = type
            type = common(type, own)
        converted = [self._as(each, type) if each.is_constant else each for each in values]
        if any(each.type not in (type, NULL) and not (is_exact(each.type) and is_exact(type)) for each in converted):
            raise self.refuse("alternatives of several types")
        return converted, type

    def _as(self, value: Value, type: Type) -> Value:
        """A constant in another type: computed with, it must have the type that was asked for in the source, too."""
        constant = constants.cast(value.constant, value.type, type)
        known = self.known(constant, type)
        return known._replace(text=self.typed(constant, type), typed=True) if value.typed else known

    def _on_case(self, node: exp.Case, columns: Columns) -> Value:
        subject = None if node.this is None else self.value(node.this, columns)
        conditions = []
        for each in node.args["ifs"]:
            value = self.value(each.this, columns)
            conditions.append(self._truth(value) if subject is None else self._compare("=", subject, value).text)
        default = node.args.get("default")
        results = [self.value(each.args["true"], columns) for each in node.args["ifs"]]
        results.append(self.known(None, NULL) if default is None else self.value(default, columns))
        return self._choice(conditions, results)

    def _on_if(self, node: exp.If, columns: Columns) -> Value:
        default = node.args.get("false")
        results = [self.value(node.args["true"], columns)]
        results.append(self.known(None, NULL) if default is None else self.value(default, columns))
        return self._choice([self.condition(node.this, columns)], results)

    def _choice(self, conditions: Sequence[str], results: Sequence[Value]) -> Value:
        converted, type = self._alternatives(results)
        self.written("case", type, converted[0])
        parts = [f"WHEN {one} THEN {self.operand(two)}" for one, two in zip(conditions, converted, strict=False)]
        if converted[-1].constant is not None or not converted[-1].is_constant:
            parts.append(f"ELSE {self.operand(converted[-1])}")
        return Value(f"CASE {' '.join(parts)} END", type, True, magnitude=_widest(converted))

    def _on_coalesce(self, node: exp.Coalesce, columns: Columns) -> Value:
        values, type = self._alternatives([self.value(each, columns) for each in (node.this, *node.expressions)])
        self.written("case", type, values[0])
        text = f"COALESCE({', '.join(map(self.operand, values))})"
        return Value(text, type, True, magnitude=_widest(values))

    def _on_nullif(self, node: exp.Nullif, columns: Columns) -> Value:
        left, right = self.value(node.this, columns), self.value(node.expression, columns)
        same = self._compare("=", left, right).text
        self.written("case", left.type, left)
        return Value(f"CASE WHEN {same} THEN NULL ELSE {self.operand(left)} END", left.type, True)._replace(
            magnitude=left.magnitude
        )

    # Aggregates.

    def _on_count(self, node: exp.Count, columns: Columns) -> Value:
        return self._counted(node, columns, None)

    def _counted(self, node: exp.Count, columns: Columns, condition: str | None) -> Value:
        this = node.this.this if isinstance(node.this, exp.Order) else node.this  # no order changes the number
        if this is None or isinstance(this, exp.Star):
            text = "*" if condition is None else f"CASE WHEN {condition} THEN 1 END"
            return Value(f"COUNT({text})", BIGINT, True)
        if isinstance(this, exp.Distinct):
            if len(this.expressions) != 1 or isinstance(this.expressions[0], exp.Tuple):
                raise self.refuse("count(DISTINCT …) of several values")
            value = self.value(this.expressions[0], columns)
            text = self.written("group", value.type, value)
            return Value(f"COUNT(DISTINCT {_when(condition, text)})", BIGINT, True)
        return Value(f"COUNT({_when(condition, self._bare(this, columns).text)})", BIGINT, True)

    def _aggregated(self, node: exp.AggFunc, columns: Columns, condition: str | None = None) -> Value:
        name, this = type(node).__name__.lower(), node.this
        if isinstance(this, exp.Distinct):
            if name in ("sum", "avg"):
                name = f"{name} distinct"
            this = this.expressions[0]
        if node.expressions:
            raise self.refuse(f"{name} with several arguments")
        value = self.value(this, columns)
        own = value
        if condition is not None:
            own = Value(_when(condition, self.operand(value)), value.type, True)
        text = self.written(name, value.type, own._replace(magnitude=magnitude(value)))
        return Value(text, _aggregate_type(name, value.type), True, magnitude=_aggregate_magnitude(name, value))

    _on_sum = _on_avg = _on_min = _on_max = _on_logicaland = _on_logicalor = _aggregated

    def _on_filter(self, node: exp.Filter, columns: Columns) -> Value:
        condition = self.condition(node.expression.this, columns)
        if isinstance(node.this, exp.Count):
            return self._counted(node.this, columns, condition)
        if isinstance(node.this, exp.Sum | exp.Avg | exp.Min | exp.Max | exp.LogicalAnd | exp.LogicalOr):
            return self._aggregated(node.this, columns, condition)
        raise self.refuse(named(node.this))

    # Subqueries.

    def _on_nested(self, node: Nested, columns: Columns) -> Value:
        if node.kind == "exists":
            return Value(self.nested(node, columns), BOOLEAN, True)
        if node.kind == "scalar":
            text = self.nested(node, columns)
            identifier = node.plan.columns[0]
            if identifier in self.opaque:
                raise NotPushed(self.opaque[identifier])
            return Value(text, self.types[identifier], True, magnitude=self.magnitudes.get(identifier))
        if node.kind != "in" or isinstance(node.this, exp.Tuple):
            raise self.refuse(f"{node.kind} of a subquery")
        before, self.outer = self.outer, {**self.outer, **columns}
        try:
            query = self.select(node.plan)
            identifier = node.plan.columns[0]
            if identifier in self.opaque:
                raise NotPushed(self.opaque[identifier])
            value = self.value(node.this, columns)
            type = common(value.type, self.types[identifier])
            self.comparison("=", type, value, Value(query.columns[identifier], self.types[identifier]))
            if query.limit:
                query = self.derived(query, node.plan.columns)
            if type == DOUBLE:
                value = self._fitted(value, type)
                inner = self._fitted(self._column(column(identifier), query.columns), type)
                query = replace(query, columns={**query.columns, identifier: inner.text})
            text = self.text(self.searched(query, identifier, value), node.plan.columns)
        finally:
            self.outer = before
        return Value(f"{self.sought(value)} IN ({text})", BOOLEAN)

    def searched(self, query: Select, identifier: str, value: Value) -> Select:
        """A subquery among whose values in the column a value is looked for."""
        return query


def _widest(values: Sequence[Value]) -> Magnitude | None:
    magnitudes = [magnitude(each) for each in values if not (each.is_constant and each.constant is None)]
    known = [each for each in magnitudes if each is not None]
    return reduce(Magnitude.united, known) if known and len(known) == len(magnitudes) else None


def _when(condition: str | None, text: str) -> str:
    return text if condition is None else f"CASE WHEN {condition} THEN {text} END"


def _aggregate_type(name: str, type: Type) -> Type:
    if name.startswith("avg"):
        return DOUBLE
    if not name.startswith("sum"):
        return type
    if type in WHOLE:
        return HUGEINT
    if is_decimal(type):
        return Type("DECIMAL", 38, type.scale)
    return DOUBLE if type in (DOUBLE, FLOAT) else type


def _aggregate_magnitude(name: str, value: Value) -> Magnitude | None:
    size = magnitude(value)
    if size is None or name in ("min", "max"):
        return size
    if not is_exact(value.type):
        return None
    if name.startswith("sum"):
        return Magnitude(size.low, size.high + MOST_ROWS)
    return Magnitude(size.low - MOST_ROWS, size.high + 1) if name.startswith("avg") else None
