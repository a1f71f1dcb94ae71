"""What all dialects share: an expression becomes (SQL, DuckDB type) where the dialect's whitelist has every operation
of it for the types at hand, and ``NotPushed`` otherwise.

``OPERATIONS`` is the whitelist: operation, then the kinds of operand (names of types in lower case; ``decimal`` for any
precision, ``bounded`` for floating numbers of a known size), then how it is written. ``{0}`` is the first operand,
``{a}`` the same without what the dialect puts around operands that are compared (a collation). The kind is that of the
type in which DuckDB computes: of a comparison the common type of both sides, of a function its first operand's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from sqlglot import exp

from dqp.algebra.constants import negated
from dqp.algebra.keys import Keys, KeyTable, Members
from dqp.sql.dialects import constants
from dqp.sql.dialects.typing import (
    BOOLEAN,
    DATE,
    DOUBLE,
    NULL,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    WHOLE,
    Magnitude,
    NotPushed,
    Type,
    as_decimal,
    common,
    compared,
    fits,
    is_decimal,
    is_exact,
    is_within,
    of_integer,
    parsed,
)
from dqp.sql.render import Columns, Renderer

EXACT_DIGITS = 15
"""A DOUBLE holds every number of so many digits apart from every other one."""
SIMPLE = re.compile(r'(?:\w+\.)?(?:\w+|"[^"]*"|`[^`]*`)')
_CALL = re.compile(r"[A-Z_]+\([^()]*(?:\([^()]*\)[^()]*)*\)")
_ARGUMENTS = frozenset(
    "this expression expressions low high ifs default true false start length to is_string unit quoted kind plan"
    " operator negate big_int safe coalesce typed text table place".split()
)
"""Of nodes of sqlglot, those that are looked at or change nothing: any other (``symmetric``, ``zone``) may change the
meaning."""


class Value(NamedTuple):
    """``constant``: a Python value where ``is_constant``, whose type was asked for where it is ``typed``; ``atom``: may
    stand as an operand without parentheses; ``column``: the column it is, if it is nothing but that; ``magnitude``: the
    size of a number where that is not to be read from its type."""

    text: str
    type: Type
    atom: bool = False
    is_constant: bool = False
    constant: Any = None
    column: str = ""
    magnitude: Magnitude | None = None
    typed: bool = False


def magnitude(value: Value) -> Magnitude | None:
    """The size of a number; None where it may be any, NaN or an infinity."""
    if value.magnitude is not None:
        return value.magnitude
    if value.is_constant and isinstance(value.constant, float):
        return Magnitude.of(value.constant)
    return Magnitude.of_type(value.type)


def expanded(operations: Mapping[str, Mapping[str, str]]) -> dict[tuple[str, str], str]:
    """A whitelist by (operation, kind)."""
    return {
        (name, kind): template
        for name, by_kinds in operations.items()
        for kinds, template in by_kinds.items()
        for kind in kinds.split()
    }


def collated(compared: str) -> dict[str, dict[str, str]]:
    """Comparing, grouping, ordering and the extremes of these kinds where booleans are numbers, and texts have the
    collation that ``operand`` gives them."""
    every = f"boolean {compared} varchar"
    return {
        **{operator: {every: f"{{0}} {operator} {{1}}"} for operator in ("=", "<>", "<", "<=", ">", ">=")},
        **{place: {every: "{0}"} for place in ("group", "order")},
        "min": {f"{compared} varchar": "MIN({0})"},
        "max": {f"{compared} varchar": "MAX({0})"},
        "logicaland": {"boolean": "MIN({a})"},
        "logicalor": {"boolean": "MAX({a})"},
    }


@lru_cache(256)
def kind(type: Type) -> str:
    """The type's name as the whitelists have it: one word, without precision, in lower case."""
    return "timestamptz" if type == TIMESTAMPTZ else type.name.strip('"').lower()


class Expressions(Renderer):
    """Expressions of one statement: constants, comparisons, logic."""

    product: ClassVar[str]
    OPERATIONS: ClassVar[Mapping[tuple[str, str], str]]
    OPAQUE_NULLS: ClassVar[tuple[str, str]] = ("IS NULL", "IS NOT NULL")
    """The tests of a column that cannot be computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[str, Type] = {}
        """Of every identifier met so far."""
        self.magnitudes: dict[str, Magnitude | None] = {}
        """Of those whose types do not say it."""
        self.opaque: dict[str, str] = {}
        """Columns that cannot be computed with, and why."""
        self.tables: dict[KeyTable, None] = {}
        """The statement's query-scoped tables."""
        self._atoms: set[str] = set()
        """Texts that may stand as operands without parentheses."""

    # What a dialect adds.

    def operand(self, value: Value) -> str:
        """A value where it is compared, grouped or joined with others."""
        return value.text if value.atom else f"({value.text})"

    def checked(self, text: str, type: Type) -> str:
        """A decimal result that DuckDB would refuse if it had too many digits."""
        return text

    def string(self, value: str) -> str:
        """A literal that can hold nothing but the value, which has no NUL."""
        return "'" + value.replace("'", "''") + "'"

    def constant(self, value: Any, type: Type) -> str:
        """A Python value of a type as SQL."""
        match value:
            case None:
                return "NULL"
            case bool():
                return "TRUE" if value else "FALSE"
            case int() | Decimal():
                return f"{value:f}" if isinstance(value, Decimal) else str(value)
            case float():
                if not math.isfinite(value):
                    raise self.refuse("NaN or an infinity as a constant")
                return repr(value) if "e" in repr(value) else f"{value!r}e0"
            case str():
                return self._text(value)
            case datetime():
                return f"TIMESTAMP{'' if value.tzinfo is None else 'TZ'} '{value.isoformat(' ')}'"
            case date():
                return f"DATE '{value.isoformat()}'"
        raise NotPushed(f"{self.product}: constants of type {type}")

    def _text(self, value: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise NotPushed("a text that is not Unicode") from error
        if "\0" in value:
            raise NotPushed("a text with the character NUL")
        return self.string(value)

    def refuse(self, what: str) -> NotPushed:
        return NotPushed(f"{self.product}: {what}")

    def written(self, operation: str, type: Type, *values: Value) -> str:
        """The operation on operands of (DuckDB's) type, from the whitelist."""
        template = self.OPERATIONS.get((operation, kind(type)))
        if template is None and type == DOUBLE and None not in map(magnitude, values):
            template = self.OPERATIONS.get((operation, "bounded"))
        if template is None:
            raise self.refuse(f"{operation} on {type} is not certain to be DuckDB's")
        raw = {name: self.enclosed(each) for name, each in zip("abc", values, strict=False)}
        text = template.format(*(self.operand(each) for each in values), **raw)
        if _CALL.fullmatch(template):
            self._atoms.add(text)
        return text

    def result(self, text: str, type: Type) -> Value:
        return Value(text, type, text in self._atoms)

    def enclosed(self, value: Value) -> str:
        return value.text if value.atom else f"({value.text})"

    # Expressions.

    def value(self, node: exp.Expression, columns: Columns) -> Value:
        handler: Callable[[Any, Columns], Value] | None = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if handler is None or not _ARGUMENTS.issuperset(name for name, argument in node.args.items() if argument):
            raise self.refuse(f"{named(node)} is not on the list")
        return handler(node, columns)

    def _column(self, node: exp.Column, columns: Columns) -> Value:
        text = columns[node.name]
        plain = SIMPLE.fullmatch(text) is not None
        shown = text if plain or text in self._atoms else f"({text})"
        column = node.name if plain else ""
        return Value(shown, self.types[node.name], True, column=column, magnitude=self.magnitudes.get(node.name))

    def _on_column(self, node: exp.Column, columns: Columns) -> Value:
        if node.name in self.opaque:
            raise NotPushed(self.opaque[node.name])
        return self._column(node, columns)

    def _bare(self, node: exp.Expression, columns: Columns) -> Value:
        """Where only NULL or not matters."""
        return self._column(node, columns) if isinstance(node, exp.Column) else self.value(node, columns)

    def _on_paren(self, node: exp.Paren, columns: Columns) -> Value:
        return self.value(node.this, columns)

    def known(self, value: Any, type: Type) -> Value:
        return Value(self.constant(value, type), type, True, True, value)

    def _on_literal(self, node: exp.Literal, columns: Columns) -> Value:
        if node.is_string:
            return self.known(node.this, VARCHAR)
        return self.known(*constants.number(node.this))

    def _on_boolean(self, node: exp.Boolean, columns: Columns) -> Value:
        return self.known(bool(node.this), BOOLEAN)

    def _on_null(self, node: exp.Null, columns: Columns) -> Value:
        return self.known(None, NULL)

    def _on_neg(self, node: exp.Neg, columns: Columns) -> Value:
        value = self.value(node.this, columns)
        if value.is_constant and isinstance(value.constant, int | Decimal | float):
            opposite = negated(value.constant)
            if value.typed:
                if isinstance(opposite, int) and not fits(opposite, value.type):
                    raise self.refuse(f"{opposite} as {value.type}")
                return Value(self.typed(opposite, value.type), value.type, True, True, opposite, typed=True)
            own = of_integer(opposite) if isinstance(opposite, int) else value.type
            return Value(f"({self.constant(opposite, own)})", own, True, True, opposite)
        text = self.written("neg", value.type, value)
        return Value(f"({text})", value.type, True, magnitude=value.magnitude)

    def _on_cast(self, node: exp.Cast, columns: Columns) -> Value:
        value, to = self.value(node.this, columns), parsed(node.to.sql(dialect="duckdb"))
        if value.is_constant:
            constant = constants.cast(value.constant, value.type, to)
            return Value(self.typed(constant, to), to, True, True, constant, typed=True)
        if value.type == to:
            return value
        text = self.written(f"as {kind(to)}", value.type, value)
        return self.result(text, to)._replace(magnitude=magnitude(value) if to == DOUBLE else None)

    def typed(self, value: Any, type: Type) -> str:
        """A constant whose type was asked for."""
        return self.constant(value, type)

    # Comparisons and logic.

    def condition(self, node: exp.Expression, columns: Columns) -> str:
        return self._truth(self.value(node, columns))

    def _truth(self, value: Value) -> str:
        if value.type == BOOLEAN:
            return value.text
        if value.type in WHOLE:
            return f"{self.enclosed(value)} <> 0"
        if value.type == NULL:
            return value.text
        raise self.refuse(f"{value.type} as a condition")

    def _condition_operand(self, node: exp.Expression, columns: Columns) -> str:
        value = self.value(node, columns)
        text = self._truth(value)
        return text if value.atom and text == value.text else f"({text})"

    def _on_and(self, node: exp.And, columns: Columns) -> Value:
        # An OR is always in parentheses: nothing else binds more loosely.
        texts = [self._truth(self.value(each, columns)) for each in _parts(node)]
        return Value(_joined(texts, " AND "), BOOLEAN)

    def _on_or(self, node: exp.Or, columns: Columns) -> Value:
        texts = [self._condition_operand(each, columns) for each in _parts(node)]
        return Value(f"({_joined(texts, ' OR ')})", BOOLEAN, True)

    def _on_not(self, node: exp.Not, columns: Columns) -> Value:
        inner = node.this.unnest()
        if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
            return self._null_test(inner.this, columns, negated=True)
        return Value(f"NOT {self._condition_operand(inner, columns)}", BOOLEAN)

    def _on_is(self, node: exp.Is, columns: Columns) -> Value:
        if isinstance(node.expression, exp.Null):
            return self._null_test(node.this, columns)
        raise self.refuse(named(node))

    def _null_test(self, node: exp.Expression, columns: Columns, *, negated: bool = False) -> Value:
        is_opaque = isinstance(node, exp.Column) and node.name in self.opaque
        test = (self.OPAQUE_NULLS if is_opaque else ("IS NULL", "IS NOT NULL"))[negated]
        return Value(f"{self.enclosed(self._bare(node, columns))} {test}", BOOLEAN)

    def _pair(self, left: Value, right: Value) -> tuple[Value, Value, Type]:
        """Both sides of a comparison in their common type; constants written in it."""
        if left.is_constant and not right.is_constant:
            other, own, type = self._pair(right, left)
            return own, other, type
        if right.is_constant and not left.is_constant:
            if left.type == DATE and isinstance(right.constant, datetime) and _midnight(right.constant):
                return left, self.known(right.constant.date(), DATE), DATE
            right = adapted(right, left)
            if right.type in (VARCHAR, NULL) or (left.type == TIMESTAMPTZ and right.type in (DATE, TIMESTAMP)):
                target = left.type
            else:
                exact = is_exact(left.type) and is_exact(right.type)
                target = (compared if exact else common)(left.type, right.type)
            value = constants.cast(right.constant, right.type, target)
            return self._fitted(left, target), right if value is right.constant else self.known(value, target), target
        if is_exact(left.type) and is_exact(right.type):
            type = compared(left.type, right.type)
            return self._fitted(left, type), self._fitted(right, type), type
        type = common(left.type, right.type)
        return self._fitted(left, type), self._fitted(right, type), type

    def _fitted(self, value: Value, type: Type) -> Value:
        """A number where DuckDB converts it to another type, may round it, and may find that it does not fit."""
        if type == DOUBLE and not value.is_constant and is_exact(value.type):
            # Databases may compare exact numbers with floating ones exactly, DuckDB compares floating ones.
            if as_decimal(value.type).width <= EXACT_DIGITS:
                return value
            return self.result(self.written("as double", value.type, value), DOUBLE)
        if value.is_constant or not is_decimal(type) or is_within(value.type, type):
            return value
        return self.result(self.checked(self.enclosed(value), type), type)

    def _compare(self, operator: str, left: Value, right: Value) -> Value:
        one, other, type = self._pair(left, right)
        return self.result(self.comparison(operator, type, one, other), BOOLEAN)

    def comparison(self, operator: str, type: Type, left: Value, right: Value) -> str:
        return self.written(operator, type, left, right)

    def _comparing(self, operator: str, node: exp.Binary, columns: Columns) -> Value:
        return self._compare(operator, self.value(node.this, columns), self.value(node.expression, columns))

    def _on_eq(self, node: exp.EQ, columns: Columns) -> Value:
        return self._comparing("=", node, columns)

    def _on_neq(self, node: exp.NEQ, columns: Columns) -> Value:
        return self._comparing("<>", node, columns)

    def _on_lt(self, node: exp.LT, columns: Columns) -> Value:
        return self._comparing("<", node, columns)

    def _on_lte(self, node: exp.LTE, columns: Columns) -> Value:
        return self._comparing("<=", node, columns)

    def _on_gt(self, node: exp.GT, columns: Columns) -> Value:
        return self._comparing(">", node, columns)

    def _on_gte(self, node: exp.GTE, columns: Columns) -> Value:
        return self._comparing(">=", node, columns)

    def _on_between(self, node: exp.Between, columns: Columns) -> Value:
        value = self.value(node.this, columns)
        low = self._compare(">=", value, self.value(node.args["low"], columns))
        high = self._compare("<=", value, self.value(node.args["high"], columns))
        return Value(f"{low.text} AND {high.text}", BOOLEAN)

    def _on_in(self, node: exp.In, columns: Columns) -> Value:
        if not node.expressions:
            raise self.refuse("IN of something else than a list")
        value = self.value(node.this, columns)
        if value.type == VARCHAR and all(isinstance(each, exp.Literal) and each.is_string for each in node.expressions):
            texts = [self.known(each.this, VARCHAR) for each in node.expressions]  # hundreds are common
            self.written("=", VARCHAR, value, texts[0])
            return self.result(self.membership(VARCHAR, value, texts), BOOLEAN)
        members = [self.value(each, columns) for each in node.expressions]
        if not all(each.is_constant for each in members):
            raise self.refuse("IN with values that are not constants")
        pairs = [self._pair(value, each) for each in members]
        types, paired = {type for _, _, type in pairs}, [each for _, each, _ in pairs]
        if types == {DOUBLE}:
            value = self._fitted(value, DOUBLE)
        for type in types:
            self.written("=", type, value, paired[0])
        if len(types) > 1 and not all(map(is_exact, types)) and types != {DATE}:
            raise self.refuse("IN with values of several types")
        return self.result(self.membership(next(iter(types)), value, paired), BOOLEAN)

    def _on_keys(self, node: Keys, columns: Columns) -> Value:
        value = self.value(node.this, columns)
        if value.type not in WHOLE:
            raise self.refuse(f"whole numbers as keys of {value.type}")
        self.written("=", value.type, value, value)
        return self.result(self.listed(value, node.text_of_numbers), BOOLEAN)

    def listed(self, value: Value, numbers: str) -> str:
        """Whether a whole number is one of very many, which are separated by commas."""
        return f"{self.operand(value)} IN ({numbers})"

    def _on_members(self, node: Members, columns: Columns) -> Value:
        operands, names = [], []
        for each, name in zip(node.expressions, node.key_table.data.column_names, strict=True):
            value = self.value(each, columns)
            self.written("=", value.type, value, value)
            operands.append(self.member(value))
            names.append(self.quoted(name))
        self.tables[node.key_table] = None
        one = operands[0] if len(operands) == 1 else f"({', '.join(operands)})"
        return Value(f"{one} IN (SELECT {', '.join(names)} FROM {self.quoted(node.key_table.name)})", BOOLEAN)

    def member(self, value: Value) -> str:
        """A value that is looked for in a query-scoped table."""
        return self.operand(value)

    def sought(self, value: Value) -> str:
        """A value that is looked for among those of a subquery."""
        return self.operand(value)

    def membership(self, type: Type, value: Value, members: Sequence[Value]) -> str:
        return f"{self.operand(value)} IN ({', '.join(each.text for each in members)})"

    def _on_like(self, node: exp.Like, columns: Columns) -> Value:
        if node.args.get("negate"):
            return self._on_not(exp.Not(this=exp.Like(this=node.this, expression=node.expression)), columns)
        value, pattern = self.value(node.this, columns), self.value(node.expression, columns)
        if value.type != VARCHAR or not (pattern.is_constant and isinstance(pattern.constant, str)):
            raise self.refuse("LIKE with a pattern that is not a constant")
        self.written("like", VARCHAR, value, pattern)
        return self.result(self.like(value, pattern.constant), BOOLEAN)

    def like(self, value: Value, pattern: str) -> str:
        raise self.refuse("LIKE")


def named(node: exp.Expression) -> str:
    """An expression for people, in reasons."""
    if isinstance(node, exp.Anonymous):
        return f"{node.name}(…)"
    return type(node).__name__ if not isinstance(node, exp.Func) else f"{node.sql_name().lower()}(…)"


def _joined(texts: list[str], word: str) -> str:
    """A chain; a long one in parts, as parsers make a tree of it that is as deep as the chain is long."""
    while len(texts) > _CHAIN:
        texts = [f"({word.join(texts[at : at + _CHAIN])})" for at in range(0, len(texts), _CHAIN)]
    return word.join(texts)


_CHAIN = 500


def _parts(node: exp.Expression) -> list[exp.Expression]:
    return list(node.flatten())  # type: ignore[arg-type]


def _midnight(value: datetime) -> bool:
    return value.time() == datetime.min.time()


def adapted(value: Value, other: Value) -> Value:
    """An integer literal takes the type of what it stands beside, where it fits."""
    is_literal = is_untyped(value) and not is_untyped(other)
    return value._replace(type=other.type) if is_literal and fits(value.constant, other.type) else value


def is_untyped(value: Value) -> bool:
    """A whole number as it was written, whose type gives way to others."""
    return value.is_constant and type(value.constant) is int and not value.typed
