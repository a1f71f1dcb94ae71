"""Binds the expressions of one SELECT: names become identifiers, subqueries become plans, and short forms (BETWEEN,
COUNT(*), ANY of a list) become the forms that the rules know.

A bound expression is always a new one; the parsed one stays unchanged, for a Verbatim. Aggregates and window functions
are collected, and the bound expression has columns in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from dai.errors import StatementError
from dqp.algebra.functions import is_aggregate, is_volatile, moment_type
from dqp.algebra.operators import Names, Nested, column
from dqp.binding.scope import Output, Scope, Unmodelled, folded

IN_LIST = "__in_list"
"""Marks ``x IN [a, b]``, which the parser takes for ``x IN (a, b)``. With a list the answer is never NULL."""

_COMPARISONS: dict[type[exp.Expression], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_SETS = (("any", exp.EQ), ("all", exp.NEQ))
"""Comparisons with ANY or ALL of a list that are IN or NOT IN."""
_KEPT = (exp.Literal, exp.DataType, exp.Var, exp.Null, exp.Boolean, exp.Identifier, exp.JSONPath)
_BARE = (exp.Column, exp.Literal, exp.Func, exp.Paren, exp.Null, exp.Boolean, Nested)
_WRAPPERS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_REFUSED = (
    exp.Explode,
    exp.Posexplode,
    exp.Unnest,
    exp.Columns,
    exp.PositionalColumn,
    exp.Query,
    exp.Placeholder,
    exp.Parameter,
    exp.Any,
    exp.All,
    exp.Star,
)

Subquery = Callable[[exp.Expression, Scope], Output]


class Expressions:
    """Binds the expressions of one SELECT. ``items`` are its select list, for lateral aliases."""

    def __init__(
        self,
        scope: Scope,
        names: Names,
        subquery: Subquery,
        moment: Callable[[str], exp.Expression],
        windows: dict[str, exp.Window] | None = None,
    ) -> None:
        self.scope = scope
        self.names = names
        self.subquery = subquery
        self.moment = moment
        self.named_windows = windows or {}
        self.items: list[exp.Expression] = []
        self.aggregates: dict[exp.Expression, str] = {}
        self.windows: dict[exp.Expression, str] = {}
        self._locals: list[str] = []
        self._visible: int | None = None
        self._binding: list[int] = []
        self._in_aggregate = False
        self._called: str | None = None

    def item(self, index: int) -> exp.Expression:
        """The bound expression of a select item. A name that is no column may be the alias of an item before it."""
        before, self._visible = self._visible, index
        node = self.items[index]
        if isinstance(node, (exp.AggFunc, *_WRAPPERS)):
            self._called = next((name for name, item in self.scope.aliases.items() if item == index), None)
        self._binding.append(index)
        try:
            return self.bind(node)
        finally:
            self._binding.pop()
            self._visible, self._called = before, None

    def condition(self, node: exp.Expression) -> exp.Expression:
        bound = self.bind(node)
        while isinstance(bound, exp.Paren):
            bound = bound.this
        return bound

    def bind(self, node: exp.Expression) -> exp.Expression:
        method = _METHODS.get(type(node))
        if method is not None:
            return method(self, node)
        if isinstance(node, _KEPT):
            return node.copy()
        if isinstance(node, _REFUSED):
            raise Unmodelled(type(node).__name__)
        if (kind := moment_type(node)) is not None:
            return self.moment(kind)
        if is_volatile(node):
            raise Unmodelled("volatile function")
        if is_aggregate(node):
            return self._aggregate(node)
        if isinstance(node, exp.Anonymous) and node.name.lower() == "unnest":
            raise Unmodelled("unnest")
        return self._rebuilt(node)

    def _rebuilt(self, node: exp.Expression) -> exp.Expression:
        arguments: dict[str, Any] = {}
        for name, value in node.args.items():
            if isinstance(value, exp.Expression):
                arguments[name] = self.bind(value)
            elif type(value) is list:
                arguments[name] = [self.bind(each) if isinstance(each, exp.Expression) else each for each in value]
            else:
                arguments[name] = value
        rebuilt = node.__class__(**arguments)
        if node._type is not None:
            rebuilt._type = node._type
        if isinstance(node, exp.Anonymous):
            rebuilt._meta = node._meta  # where it stands in the SQL
        return rebuilt

    # --- names ---

    def _column(self, node: exp.Expression) -> exp.Expression:
        assert isinstance(node, exp.Column)
        if isinstance(node.this, exp.Star):
            raise Unmodelled("star in an expression")
        parts = tuple(folded(each.name) for each in node.parts)
        if self._locals and parts[0] in self._locals:
            return _fields(exp.Identifier(this=node.parts[0].name, quoted=True), node.parts[1:])
        scope: Scope | None = self.scope
        while scope is not None:
            match = scope.find(parts)
            if match is not None:
                if scope.sibling:
                    raise Unmodelled("lateral join")
                value, remaining = match
                if remaining and _is_outside(scope.parent, parts):
                    raise Unmodelled("a field, or a column of a query around this one")
                return _fields(value, node.parts[len(parts) - len(remaining) :]) if remaining else value
            if parts[0] in scope.aliases:
                return self._alias(scope, node, parts)
            if scope.names_relation(parts[0]) and node.name.lower() == "rowid":
                break
            if scope.names_relation(parts[0]) or scope.has_unknown_names():
                raise Unmodelled("a whole row, or a name that DuckDB makes up")
            scope = scope.parent
        if node.name.lower() == "rowid":
            raise StatementError("The tables of a federation have no rowid.", hint="Use a key of the table.")
        raise Unmodelled(f"name {node.name}")

    def _alias(self, scope: Scope, node: exp.Column, parts: tuple[str, ...]) -> exp.Expression:
        index = scope.aliases[parts[0]]
        if scope is not self.scope or index is None or index in self._binding or self._in_aggregate:
            raise Unmodelled("alias of another query, or given twice")
        if self._visible is not None and index >= self._visible:
            raise Unmodelled("alias of an item behind")
        bound = self.item(index)
        bound = bound if _bare(bound) else exp.Paren(this=bound)
        return _fields(bound, node.parts[1:]) if len(parts) > 1 else bound

    def _dot(self, node: exp.Expression) -> exp.Expression:
        if not isinstance(node.expression, exp.Identifier):
            raise Unmodelled("function call with a dot")
        return _fields(self.bind(node.this), [node.expression])

    def _lambda(self, node: exp.Expression) -> exp.Expression:
        parameters = [folded(each.name) for each in node.expressions]
        self._locals += parameters
        try:
            return self._rebuilt(node)
        finally:
            del self._locals[len(self._locals) - len(parameters) :]

    def _comprehension(self, node: exp.Expression) -> exp.Expression:
        names = node.expression.expressions if isinstance(node.expression, exp.Tuple) else [node.expression]
        if not all(isinstance(each, exp.Identifier) for each in names):
            raise Unmodelled("list comprehension")
        iterator = self.bind(node.args["iterator"])
        self._locals += [folded(each.name) for each in names]
        try:
            condition = node.args.get("condition")
            return exp.Comprehension(
                this=self.bind(node.this),
                expression=node.expression.copy(),
                iterator=iterator,
                condition=self.bind(condition) if condition is not None else None,
            )
        finally:
            del self._locals[len(self._locals) - len(names) :]

    # --- subqueries ---

    def _nested(self, kind: str, query: Any, **arguments: Any) -> exp.Expression:
        output = self.subquery(query, self.scope)
        operand = arguments.get("this")
        width = len(operand.expressions) if isinstance(operand, exp.Tuple) else 1
        if kind != "exists" and len(output.columns) != width:
            raise Unmodelled("subquery of several columns")
        return Nested(kind=kind, plan=output.tree, **arguments)

    def _subquery(self, node: exp.Expression) -> exp.Expression:
        return self._nested("scalar", node)

    def _exists(self, node: exp.Expression) -> exp.Expression:
        if not isinstance(node.this, exp.Query):
            raise Unmodelled("exists of a list")
        return self._nested("exists", node.this)

    def _in(self, node: exp.Expression) -> exp.Expression:
        query = node.args.get("query")
        if query is not None:
            return self._nested("in", query, this=_operand(self.bind(node.this)))
        listed = node.expressions
        if node.args.get("unnest") or node.args.get("field") is not None:
            raise Unmodelled("IN of something else than a list")
        this = self.bind(node.this)
        if not listed:  # NULL is not known to be in it, anything else is not
            return exp.And(this=exp.Is(this=_operand(this), expression=exp.Null()), expression=exp.Null())
        if isinstance(listed[0], exp.Column) and listed[0].name == IN_LIST:
            values = exp.Array(expressions=[self.bind(each) for each in listed[1:]])
            return exp.Anonymous(this="contains", expressions=[values, this])
        return exp.In(this=_operand(this), expressions=[self.bind(each) for each in listed])

    def _comparison(self, node: exp.Expression) -> exp.Expression:
        right = _quantified(node.expression)
        if isinstance(right, exp.Any | exp.All):
            kind = "any" if isinstance(right, exp.Any) else "all"
            query = right.this
            while isinstance(query, exp.Paren):
                query = query.this
            this = _operand(self.bind(node.this))
            if isinstance(query, exp.Query):
                if isinstance(this, exp.Tuple):
                    raise Unmodelled("ANY of several columns")
                return self._nested(kind, query, this=this, operator=_COMPARISONS[type(node)])
            if isinstance(query, exp.Array) and _plain(query.expressions) and (kind, type(node)) in _SETS:
                membership = exp.In(this=this, expressions=[self.bind(each) for each in query.expressions])
                return membership if kind == "any" else exp.Not(this=membership)
            quantified = right.__class__(this=exp.Paren(this=self.bind(query)))
            return node.__class__(this=this, expression=quantified)
        return self._rebuilt(node)

    def _array(self, node: exp.Expression) -> exp.Expression:
        if len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Query):
            return self._nested("array", node.expressions[0])
        return self._rebuilt(node)

    # --- short forms ---

    def _paren(self, node: exp.Expression) -> exp.Expression:
        bound = self.bind(node.this)
        return bound if _bare(bound) else exp.Paren(this=bound)

    def _between(self, node: exp.Expression) -> exp.Expression:
        low, high = node.args["low"], node.args["high"]
        this = self.bind(node.this)
        if node.args.get("symmetric") or isinstance(this, Nested) or this.find(Nested) or _mixed(node.this, low, high):
            return exp.Between(
                this=_operand(this), low=self.bind(low), high=self.bind(high), symmetric=node.args.get("symmetric")
            )
        this = _operand(this)
        both = exp.And(
            this=exp.GTE(this=this, expression=_operand(self.bind(low))),
            expression=exp.LTE(this=this.copy(), expression=_operand(self.bind(high))),
        )
        return exp.Paren(this=both)

    def _not(self, node: exp.Expression) -> exp.Expression:
        return exp.Not(this=_operand(self.bind(node.this)))

    def _interval(self, node: exp.Expression) -> exp.Expression:
        amount = node.this
        if amount is not None and not isinstance(amount, exp.Literal):
            while isinstance(amount, exp.Paren):
                amount = amount.this
            amount = exp.Paren(this=self.bind(amount))
        unit = node.args.get("unit")
        return exp.Interval(
            this=amount.copy() if isinstance(amount, exp.Literal) else amount, unit=unit.copy() if unit else None
        )

    def _ordered(self, node: exp.Expression) -> exp.Expression:
        if node.args.get("with_fill"):
            raise Unmodelled("WITH FILL")
        return exp.Ordered(
            this=self.bind(node.this),
            desc=bool(node.args.get("desc")),
            nulls_first=bool(node.args.get("nulls_first")),
        )

    # --- aggregates and windows ---

    def _count(self, node: exp.Expression) -> exp.Expression:
        if isinstance(node.this, exp.Star) and not any(node.this.args.values()):
            return self._collected(node.copy())
        return self._aggregate(node)

    def _aggregate(self, node: exp.Expression) -> exp.Expression:
        """A column in place of the aggregate; the aggregate's arguments refer to the rows before grouping."""
        return self._collected(self._arguments(node))

    def _arguments(self, node: exp.Expression) -> exp.Expression:
        if self._in_aggregate:
            raise Unmodelled("aggregate in an aggregate")
        self._in_aggregate = True
        try:
            return self._function(node)
        finally:
            self._in_aggregate = False

    def _collected(self, bound: exp.Expression) -> exp.Expression:
        columns = {each.name for each in bound.find_all(exp.Column)}
        if columns and not columns & self.scope.identifiers():
            raise Unmodelled("aggregate of the columns of a query around it")
        identifier = self.aggregates.get(bound)
        if identifier is None:
            identifier = self.aggregates[bound] = self.names.new(self._called or bound.key)
        return column(identifier)

    def _function(self, node: exp.Expression) -> exp.Expression:
        """The function under FILTER, WITHIN GROUP and IGNORE NULLS, with its arguments bound."""
        if isinstance(node, _WRAPPERS):
            modifiers = {
                name: self.bind(each) for name, each in node.args.items() if name != "this" and each is not None
            }
            return node.__class__(this=self._function(node.this), **modifiers)
        if isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
            return node.copy()
        return self._rebuilt(node)

    def _wrapped(self, node: exp.Expression) -> exp.Expression:
        inner = node.this
        while isinstance(inner, _WRAPPERS):
            inner = inner.this
        if is_aggregate(inner):
            return self._aggregate(node)
        return self._rebuilt(node)

    def _grouping(self, node: exp.Expression) -> exp.Expression:
        return self._collected(self._rebuilt(node))

    def _window(self, node: exp.Expression) -> exp.Expression:
        if self._in_aggregate:
            raise Unmodelled("window function in an aggregate")
        definition = self._definition(node)
        arguments: dict[str, Any] = {"this": self._function(node.this), "over": node.args.get("over")}
        for name in ("partition_by", "order", "spec"):
            value = definition.get(name)
            if isinstance(value, list):
                arguments[name] = [self.bind(each) for each in value]
            elif value is not None:
                arguments[name] = self.bind(value)
        bound = exp.Window(**arguments)
        identifier = self.windows.get(bound)
        if identifier is None:
            identifier = self.windows[bound] = self.names.new("window")
        return column(identifier)

    def _definition(self, node: exp.Expression, above: tuple[str, ...] = ()) -> dict[str, Any]:
        """Partition, order and frame of a window, with those of the named window that it refers to."""
        own = {name: node.args[name] for name in ("partition_by", "order", "spec") if node.args.get(name)}
        if node.args.get("first") is not None:
            raise Unmodelled("KEEP")
        name = node.args.get("alias")
        if name is None:
            return own
        base = self.named_windows.get(folded(name.name))
        if base is None or folded(name.name) in above:
            raise Unmodelled("window name")
        return {**self._definition(base, (*above, folded(name.name))), **own}


def _is_outside(scope: Scope | None, parts: tuple[str, ...]) -> bool:
    """Whether ``parts`` are a relation of a query around, and a column of it."""
    while scope is not None:
        if scope.qualified(parts) is not None:
            return True
        scope = scope.parent
    return False


def _fields(value: exp.Expression, fields: Any) -> exp.Expression:
    for each in fields:
        value = exp.Anonymous(this="struct_extract", expressions=[value, exp.Literal(this=each.name, is_string=True)])
    return value


def _bare(node: exp.Expression) -> bool:
    """Whether it needs no parentheses anywhere. The parser takes some operators, such as AND, for functions."""
    return isinstance(node, _BARE) and not isinstance(node, exp.Binary)


def _operand(node: exp.Expression) -> exp.Expression:
    """The expression as an operand of an operator that binds more tightly than those of conditions."""
    return exp.Paren(this=node) if isinstance(node, exp.Connector | exp.Not | exp.Predicate) else node


def _quantified(node: exp.Expression) -> exp.Expression:
    """ALL and SOME of a list, or of a query in two parentheses: sqlglot takes them for functions."""
    if isinstance(node, exp.Anonymous) and len(node.expressions) == 1 and node.name.upper() in ("ALL", "SOME"):
        kind = exp.All if node.name.upper() == "ALL" else exp.Any
        return kind(this=exp.Paren(this=node.expressions[0]))
    return node


def _plain(nodes: list[exp.Expression]) -> bool:
    """Whether they are values of a list. A decimal among them may be rounded there, but not behind IN."""
    return bool(nodes) and all(
        isinstance(each, exp.Literal | exp.Null | exp.Cast | exp.Neg | exp.Paren)
        and not any(map(_is_decimal, each.find_all(exp.Literal, exp.DataType)))
        for each in nodes
    )


def _is_decimal(node: exp.Expression) -> bool:
    if isinstance(node, exp.DataType):
        return node.is_type("decimal")
    return not node.is_string and "." in node.this


def _mixed(this: exp.Expression, low: exp.Expression, high: exp.Expression) -> bool:
    """Whether one bound is a text and the other is not, or may not be: BETWEEN compares all three in one type, and a
    text may be another value of that than of the type of a comparison."""
    texts = {each.unnest().is_string for each in (low, high)}
    return len(texts) == 2 or this.unnest().is_string


_METHODS: dict[type[exp.Expression], Callable[[Expressions, exp.Expression], exp.Expression]] = {
    exp.Column: Expressions._column,
    exp.Dot: Expressions._dot,
    exp.Lambda: Expressions._lambda,
    exp.Comprehension: Expressions._comprehension,
    exp.Subquery: Expressions._subquery,
    exp.Exists: Expressions._exists,
    exp.In: Expressions._in,
    **dict.fromkeys(_COMPARISONS, Expressions._comparison),
    exp.Array: Expressions._array,
    exp.Paren: Expressions._paren,
    exp.Between: Expressions._between,
    exp.Not: Expressions._not,
    exp.Interval: Expressions._interval,
    exp.Ordered: Expressions._ordered,
    exp.Count: Expressions._count,
    **dict.fromkeys(_WRAPPERS, Expressions._wrapped),
    exp.Grouping: Expressions._grouping,
    exp.GroupingId: Expressions._grouping,
    exp.Window: Expressions._window,
}
