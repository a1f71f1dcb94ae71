"""What all dialects share: an expression becomes (SQL, DuckDB type) where the dialect's whitelist has every operation
of it for the types at hand, and ``NotPushed`` otherwise.

``OPERATIONS`` is the whitelist: operation, then the kinds of operand (names of types in lower case; ``decimal`` for any
precision), then how it is written. ``{0}`` is the first operand, ``{a}`` the same without what the dialect puts around
operands that are compared (a collation). The kind is that of the type in which DuckDB computes: of a comparison the
common type of both sides, of a function its first operand's.

A column whose type in the source is not in ``COLUMNS`` can be handed out, counted and asked for NULL, nothing else: its
values may differ from what a driver makes of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from sqlglot import exp

from dqp.dialects import constants
from dqp.dialects.typing import (
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
    Arithmetic,
    NotPushed,
    Type,
    arithmetic,
    common,
    fits,
    is_decimal,
    is_exact,
    of_integer,
    parsed,
)
from dqp.operators import Aggregate, Distinct, Inline, Join, Nested, Operator, Project, Scan, SetOperation
from dqp.render import Columns, Renderer, Select
from dqp.types import duckdb_type

_SIMPLE = re.compile(r'(?:\w+\.)?(?:\w+|"[^"]*"|`[^`]*`)')
_CALL = re.compile(r"[A-Z_]+\([^()]*(?:\([^()]*\)[^()]*)*\)")
_ARGUMENTS = frozenset(
    "this expression expressions low high ifs default true false start length to is_string unit quoted kind plan operator"
    " negate big_int safe coalesce typed".split()
)
"""Of nodes of sqlglot, those that are looked at or change nothing: any other (``symmetric``, ``zone``, ``ignore_nulls``)
may change the meaning."""
MOST_INLINE = 1_000
"""Rows of tuples at hand that are written into a statement."""


class Value(NamedTuple):
    """``constant``: a Python value where ``is_constant``; ``atom``: may stand as an operand without parentheses;
    ``column``: the column it is, if it is nothing but that."""

    text: str
    type: Type
    atom: bool = False
    is_constant: bool = False
    constant: Any = None
    column: str = ""


def expanded(operations: Mapping[str, Mapping[str, str]]) -> dict[tuple[str, str], str]:
    """A whitelist by (operation, kind)."""
    return {
        (name, kind): template
        for name, by_kinds in operations.items()
        for kinds, template in by_kinds.items()
        for kind in kinds.split()
    }


@lru_cache(256)
def kind(type: Type) -> str:
    return type.name.strip('"').lower()


class Dialect(Renderer):
    """One statement of a source."""

    product: ClassVar[str]
    OPERATIONS: ClassVar[Mapping[tuple[str, str], str]]
    COLUMNS: ClassVar[Mapping[str, frozenset[str]]]
    """Source type name (lower case, without what is in parentheses) to the DuckDB types it may safely have here."""
    JOINS: ClassVar[frozenset[str]] = frozenset({"inner", "left", "right", "semi", "anti"})
    SETS: ClassVar[frozenset[str]] = frozenset({"union", "intersect", "except"})

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[str, Type] = {}
        self.opaque: dict[str, str] = {}
        self.native: set[str] = set()
        """Columns that arrive in their declared type by themselves."""
        self._found: dict[int, Value] = {}
        self._keys: set[int] = set()
        self._atoms: set[str] = set()
        """Texts that may stand as operands without parentheses."""

    # What a dialect adds.

    def operand(self, value: Value) -> str:
        """A value where it is compared, grouped or joined with others."""
        return value.text if value.atom else f"({value.text})"

    def delivered(self, text: str, type: Type, is_native: bool) -> str:
        """A column of the result, so that it arrives in a type that can be cast to ``type`` without loss."""
        return text

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
                return f"TIMESTAMP '{value.isoformat(' ')}'"
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

    # The statement.

    def statement(self, tree: Operator) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The SQL and its columns with their types."""
        made = self.select(tree)
        columns = {
            each: self.delivered(made.columns[each], self.types[each], each in self.native) for each in tree.columns
        }
        sql = self.text(replace(made, columns=columns), tree.columns)
        return sql, tuple((each, str(self.types[each])) for each in tree.columns)

    def refuse(self, what: str) -> NotPushed:
        return NotPushed(f"{self.product}: {what}")

    def written(self, operation: str, type: Type, *values: Value) -> str:
        """The operation on operands of (DuckDB's) type, from the whitelist."""
        template = self.OPERATIONS.get((operation, kind(type)))
        if template is None:
            raise self.refuse(f"{operation} on {type} is not certain to be DuckDB's")
        raw = {name: self.enclosed(each) for name, each in zip("abc", values, strict=False)}
        text = template.format(*(self.operand(each) for each in values), **raw)
        if _CALL.fullmatch(template):
            self._atoms.add(text)
        return text

    def made(self, text: str, type: Type) -> Value:
        return Value(text, type, text in self._atoms)

    def enclosed(self, value: Value) -> str:
        return value.text if value.atom else f"({value.text})"

    # Operators.

    def expression(self, node: exp.Expression, columns: Columns) -> str:
        if isinstance(node, exp.Column) and id(node) not in self._keys:
            self._found[id(node)] = value = self._column(node, columns)
            return value.text
        value = self.value(node, columns)
        if id(node) in self._keys:
            value = value._replace(text=self.written("group", value.type, value))
        if value.atom:
            self._atoms.add(value.text)
        self._found[id(node)] = value
        return value.text

    def condition(self, node: exp.Expression, columns: Columns) -> str:
        return self._truth(self.value(node, columns))

    def _scan(self, node: Scan) -> Select:
        for identifier, name in node.items:
            column = node.table.column(name)
            self.types[identifier] = type = parsed(column.type)
            self.native.add(identifier)
            allowed = self.COLUMNS.get(column.source_type.lower().partition("(")[0].strip())
            if allowed is None or kind(type) not in allowed:
                self.opaque[identifier] = (
                    f"{self.product}: the column {node.table}.{name} is {column.source_type or 'of an unknown type'}, "
                    f"which does not behave as DuckDB's {type}"
                )
        return super()._scan(node)

    def _learn(self, items: Iterable[tuple[str, exp.Expression]]) -> None:
        for name, node in items:
            value = self._found[id(node)]
            self.types[name] = value.type
            if isinstance(node, exp.Column):
                if node.name in self.native:
                    self.native.add(name)
                if node.name in self.opaque:
                    self.opaque[name] = self.opaque[node.name]

    def _filter(self, node: Any) -> Select:
        made = self._opened(node.input)
        text = self.condition(node.condition, self._scope(made))
        return replace(made, where=[*made.where, text])

    def _project(self, node: Project) -> Select:
        made = super()._project(node)
        self._learn(node.items)
        return made

    def _aggregate(self, node: Aggregate) -> Select:
        if node.sets is not None:
            raise self.refuse("grouping sets")
        before = self._keys
        self._keys = before | {id(each) for _, each in node.keys}
        made = super()._aggregate(node)
        self._keys = before
        self._learn((*node.keys, *node.aggregates))
        return made

    def _distinct(self, node: Distinct) -> Select:
        made = super()._distinct(node)
        return replace(made, columns={each: self._grouped(each, made.columns[each]) for each in node.columns})

    def _grouped(self, identifier: str, text: str) -> str:
        if identifier in self.opaque:
            raise NotPushed(self.opaque[identifier])
        type = self.types[identifier]
        return self.written("group", type, Value(text, type, _SIMPLE.fullmatch(text) is not None))

    def _join(self, node: Join) -> Select:
        if node.kind not in self.JOINS:
            raise self.refuse(f"a {node.kind} join")
        return super()._join(node)

    def _setoperation(self, node: SetOperation) -> Select:
        if node.kind not in self.SETS or (node.all and node.kind != "union"):
            raise self.refuse(f"{node.kind.upper()}{' ALL' if node.all else ''}")
        made = super()._setoperation(node)
        for name, left, right in zip(node.names, node.left.columns, node.right.columns, strict=True):
            if self.types[left] != self.types[right]:
                raise self.refuse(f"{node.kind.upper()} of {self.types[left]} with {self.types[right]}")
            for side in (left, right):
                if side in self.opaque:
                    raise NotPushed(self.opaque[side])
            self.types[name] = self.types[left]
        return made

    def _side(self, side: Operator, names: tuple[str, ...]) -> str:
        made = self.select(side)
        if made.order or made.limit:
            made = self.derived(made, side.columns)
        renamed = {
            name: self._grouped(each, made.columns[each]) for name, each in zip(names, side.columns, strict=True)
        }
        return self.text(replace(made, columns=renamed), names)

    def ordering(self, key: exp.Expression, columns: Columns) -> str:
        assert isinstance(key, exp.Ordered)
        value = self.value(key.this, columns)
        text = self.written("order", value.type, value)
        return self.ordered(text, descending=bool(key.args.get("desc")), nulls_first=bool(key.args.get("nulls_first")))

    def ordered(self, text: str, *, descending: bool, nulls_first: bool) -> str:
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
            lists.append([self.constant(each, own) for each in values.to_pylist()])
        named = [f"{text[0]} AS {self.quoted(each)}" for text, each in zip(lists, node.columns, strict=True)]
        rows = [", ".join(named), *(", ".join(row) for row in zip(*(each[1:] for each in lists), strict=True))]
        known = {each: f"{alias}.{self.quoted(each)}" for each in node.columns}
        return Select(known, f"({' UNION ALL '.join(f'SELECT {row}' for row in rows)}) AS {alias}")

    def block(self, node: Any) -> Select:
        raise self.refuse("a query of a form that is not taken apart")

    # Expressions.

    def value(self, node: exp.Expression, columns: Columns) -> Value:
        handler: Callable[[Any, Columns], Value] | None = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if handler is None or not _ARGUMENTS.issuperset(name for name, given in node.args.items() if given):
            raise self.refuse(f"{_named(node)} is not on the list")
        return handler(node, columns)

    def _column(self, node: exp.Column, columns: Columns) -> Value:
        text = columns[node.name]
        plain = _SIMPLE.fullmatch(text) is not None
        shown = text if plain or text in self._atoms else f"({text})"
        return Value(shown, self.types[node.name], True, column=node.name if plain else "")

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
            negated = -value.constant
            own = of_integer(negated) if isinstance(negated, int) else value.type
            return Value(f"({self.constant(negated, own)})", own, True, True, negated)
        return Value(f"({self.written('neg', value.type, value)})", value.type, True)

    def _on_cast(self, node: exp.Cast, columns: Columns) -> Value:
        value, to = self.value(node.this, columns), parsed(node.to.sql(dialect="duckdb"))
        if value.is_constant:
            return Value(
                self.typed(constants.cast(value.constant, value.type, to), to),
                to,
                True,
                True,
                constants.cast(value.constant, value.type, to),
            )
        if value.type == to:
            return value
        return self.made(self.written(f"as {kind(to)}", value.type, value), to)

    def typed(self, value: Any, type: Type) -> str:
        """A constant whose type was asked for."""
        return self.constant(value, type)

    # Comparisons and logic.

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
        return Value(" AND ".join(texts), BOOLEAN)

    def _on_or(self, node: exp.Or, columns: Columns) -> Value:
        texts = [self._condition_operand(each, columns) for each in _parts(node)]
        return Value(f"({' OR '.join(texts)})", BOOLEAN, True)

    def _on_not(self, node: exp.Not, columns: Columns) -> Value:
        inner = node.this.unnest()
        if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
            value = self._bare(inner.this, columns)
            return Value(f"{self.enclosed(value)} IS NOT NULL", BOOLEAN)
        return Value(f"NOT {self._condition_operand(inner, columns)}", BOOLEAN)

    def _on_is(self, node: exp.Is, columns: Columns) -> Value:
        if isinstance(node.expression, exp.Null):
            return Value(f"{self.enclosed(self._bare(node.this, columns))} IS NULL", BOOLEAN)
        raise self.refuse(_named(node))

    def _pair(self, left: Value, right: Value) -> tuple[Value, Value, Type]:
        """Both sides of a comparison in their common type; constants written in it."""
        if left.is_constant and not right.is_constant:
            other, own, type = self._pair(right, left)
            return own, other, type
        if right.is_constant and not left.is_constant:
            if left.type == DATE and isinstance(right.constant, datetime) and _midnight(right.constant):
                return left, self.known(right.constant.date(), DATE), DATE
            right = _adapted(right, left)
            target = left.type if right.type in (VARCHAR, NULL) else common(left.type, right.type)
            value = constants.cast(right.constant, right.type, target)
            return left, right if value is right.constant else self.known(value, target), target
        return left, right, common(left.type, right.type)

    def _compare(self, operator: str, left: Value, right: Value) -> Value:
        one, other, type = self._pair(left, right)
        return self.made(self.comparison(operator, type, one, other), BOOLEAN)

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
        members = [self.value(each, columns) for each in node.expressions]
        if not all(each.is_constant for each in members):
            raise self.refuse("IN with values that are not constants")
        types = {self._pair(value, each)[2] for each in members}
        paired = [self._pair(value, each)[1] for each in members]
        for type in types:
            self.written("=", type, value, paired[0])
        if len(types) > 1 and not all(map(is_exact, types)) and types != {DATE}:
            raise self.refuse("IN with values of several types")
        return self.made(self.membership(next(iter(types)), value, paired), BOOLEAN)

    def membership(self, type: Type, value: Value, members: Sequence[Value]) -> str:
        return f"{self.operand(value)} IN ({', '.join(each.text for each in members)})"

    def _on_like(self, node: exp.Like, columns: Columns) -> Value:
        if node.args.get("negate"):
            return self._on_not(exp.Not(this=exp.Like(this=node.this, expression=node.expression)), columns)
        value, pattern = self.value(node.this, columns), self.value(node.expression, columns)
        if value.type != VARCHAR or not (pattern.is_constant and isinstance(pattern.constant, str)):
            raise self.refuse("LIKE with a pattern that is not a constant")
        self.written("like", VARCHAR, value, pattern)
        return self.made(self.like(value, pattern.constant), BOOLEAN)

    def like(self, value: Value, pattern: str) -> str:
        raise self.refuse("LIKE")

    # Arithmetic.

    def _on_add(self, node: exp.Add, columns: Columns) -> Value:
        return self._arithmetic("+", node, columns)

    def _on_sub(self, node: exp.Sub, columns: Columns) -> Value:
        return self._arithmetic("-", node, columns)

    def _on_mul(self, node: exp.Mul, columns: Columns) -> Value:
        return self._arithmetic("*", node, columns)

    def _on_intdiv(self, node: exp.IntDiv, columns: Columns) -> Value:
        return self._arithmetic("//", node, columns)

    def _on_mod(self, node: exp.Mod, columns: Columns) -> Value:
        return self._arithmetic("%", node, columns)

    def _arithmetic(self, operator: str, node: exp.Binary, columns: Columns) -> Value:
        if isinstance(node.expression, exp.Interval):
            return self._moved(operator, node, columns)
        left, right = self.value(node.this, columns), self.value(node.expression, columns)
        if left.type in WHOLE and right.type in WHOLE:
            left, right = _adapted(left, right), _adapted(right, left)
        if DATE in (left.type, right.type) or TIMESTAMP in (left.type, right.type):
            raise self.refuse(f"{left.type} {operator} {right.type}")
        found: Arithmetic = arithmetic(operator, left.type, right.type)
        text = self.written(operator, found.operands, left, right)
        if found.checked and is_decimal(found.type):
            return self.made(self.checked(text, found.type), found.type)
        return self.made(text, found.type)

    def _moved(self, operator: str, node: exp.Binary, columns: Columns) -> Value:
        start, (months, rest) = self.value(node.this, columns), constants.span(node.expression)
        sign = {"+": 1, "-": -1}.get(operator)
        if sign is None or start.type not in (DATE, TIMESTAMP) or not start.is_constant or start.constant is None:
            raise self.refuse(f"{start.type} {operator} interval")
        return self.known(constants.moved(start.constant, sign * months, sign * rest), TIMESTAMP)

    def _on_dpipe(self, node: exp.DPipe, columns: Columns) -> Value:
        left, right = self.value(node.this, columns), self.value(node.expression, columns)
        if (left.type, right.type) != (VARCHAR, VARCHAR):
            raise self.refuse(f"{left.type} || {right.type}")
        return self.made(self.written("||", VARCHAR, left, right), VARCHAR)

    # Alternatives.

    def _alternatives(self, values: Sequence[Value]) -> tuple[list[Value], Type]:
        """In their common type; a text among other types would be converted, which is not for us."""
        type = NULL
        for each in sorted(values, key=lambda value: value.is_constant):
            own = each.type
            if each.is_constant and isinstance(each.constant, int) and type in WHOLE and fits(each.constant, type):
                own = type
            if each.is_constant and each.type == VARCHAR and type in (DATE, TIMESTAMP):
                own = type
            type = common(type, own)
        made = [
            self.known(constants.cast(each.constant, each.type, type), type) if each.is_constant else each
            for each in values
        ]
        if any(each.type not in (type, NULL) and not (is_exact(each.type) and is_exact(type)) for each in made):
            raise self.refuse("alternatives of several types")
        return made, type

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
        made, type = self._alternatives(results)
        self.written("case", type, made[0])
        parts = [f"WHEN {one} THEN {self.operand(two)}" for one, two in zip(conditions, made, strict=False)]
        if made[-1].constant is not None or not made[-1].is_constant:
            parts.append(f"ELSE {self.operand(made[-1])}")
        return Value(f"CASE {' '.join(parts)} END", type, True)

    def _on_coalesce(self, node: exp.Coalesce, columns: Columns) -> Value:
        values, type = self._alternatives([self.value(each, columns) for each in (node.this, *node.expressions)])
        self.written("case", type, values[0])
        return Value(f"COALESCE({', '.join(map(self.operand, values))})", type, True)

    def _on_nullif(self, node: exp.Nullif, columns: Columns) -> Value:
        left, right = self.value(node.this, columns), self.value(node.expression, columns)
        same = self._compare("=", left, right).text
        self.written("case", left.type, left)
        return Value(f"CASE WHEN {same} THEN NULL ELSE {self.operand(left)} END", left.type, True)

    # Functions.

    def _function(self, name: str, type: Type, *values: Value) -> Value:
        return self.made(self.written(name, values[0].type, *values), type)

    def _counts(self, node: exp.Expression | None, columns: Columns, least: int) -> Value:
        value = self.known(None, NULL) if node is None else self.value(node, columns)
        if not (value.is_constant and isinstance(value.constant, int) and value.constant >= least):
            raise self.refuse(f"positions that are not constants from {least} on")
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
        return self._function("abs", value.type, value)

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

    # Aggregates.

    def _on_count(self, node: exp.Count, columns: Columns) -> Value:
        return self._counted(node, columns, None)

    def _counted(self, node: exp.Count, columns: Columns, condition: str | None) -> Value:
        this = node.this
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
            if name == "sum":
                name, this = "sum distinct", this.expressions[0]
            else:
                this = this.expressions[0]
        if node.expressions:
            raise self.refuse(f"{name} with several arguments")
        value = self.value(this, columns)
        own = value
        if condition is not None:
            own = Value(_when(condition, self.operand(value)), value.type, True)
        return Value(self.written(name, value.type, own), _aggregate_type(name, value.type), True)

    _on_sum = _on_min = _on_max = _on_logicaland = _on_logicalor = _aggregated

    def _on_filter(self, node: exp.Filter, columns: Columns) -> Value:
        condition = self.condition(node.expression.this, columns)
        if isinstance(node.this, exp.Count):
            return self._counted(node.this, columns, condition)
        if isinstance(node.this, exp.Sum | exp.Min | exp.Max | exp.LogicalAnd | exp.LogicalOr):
            return self._aggregated(node.this, columns, condition)
        raise self.refuse(_named(node.this))

    # Subqueries.

    def _on_nested(self, node: Nested, columns: Columns) -> Value:
        if node.kind == "exists":
            return Value(self.nested(node, columns), BOOLEAN, True)
        if node.kind == "scalar":
            text = self.nested(node, columns)
            identifier = node.plan.columns[0]
            if identifier in self.opaque:
                raise NotPushed(self.opaque[identifier])
            return Value(text, self.types[identifier], True)
        if node.kind != "in":
            raise self.refuse(f"{node.kind} of a subquery")
        before, self.outer = self.outer, {**self.outer, **columns}
        try:
            made = self.select(node.plan)
            identifier = node.plan.columns[0]
            if identifier in self.opaque:
                raise NotPushed(self.opaque[identifier])
            value = self.value(node.this, columns)
            inner = Value(made.columns[identifier], self.types[identifier])
            self.comparison("=", common(value.type, inner.type), value, inner)
            if made.limit:
                made = self.derived(made, node.plan.columns)
            text = self.text(made, node.plan.columns)
        finally:
            self.outer = before
        return Value(f"{self.operand(value)} IN ({text})", BOOLEAN)


def _named(node: exp.Expression) -> str:
    if isinstance(node, exp.Anonymous):
        return f"{node.name}(…)"
    return type(node).__name__ if not isinstance(node, exp.Func) else f"{node.sql_name().lower()}(…)"


def _parts(node: exp.Expression) -> list[exp.Expression]:
    return list(node.flatten())  # type: ignore[arg-type]


def _midnight(value: datetime) -> bool:
    return value.time() == datetime.min.time()


def _adapted(value: Value, other: Value) -> Value:
    """An integer literal takes the type of what it stands beside, where it fits."""
    is_literal = value.is_constant and not other.is_constant and isinstance(value.constant, int)
    return value._replace(type=other.type) if is_literal and fits(value.constant, other.type) else value


def _when(condition: str | None, text: str) -> str:
    return text if condition is None else f"CASE WHEN {condition} THEN {text} END"


def _aggregate_type(name: str, type: Type) -> Type:
    if not name.startswith("sum"):
        return type
    if type in WHOLE:
        return HUGEINT
    if is_decimal(type):
        return Type("DECIMAL", 38, type.scale)
    return DOUBLE if type in (DOUBLE, FLOAT) else type
