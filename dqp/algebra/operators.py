"""Defines the operators of a query's tree.

Every column in a tree has a unique identifier. An expression names a column by its identifier alone, and no operator
renames a column implicitly, so a tree can be moved, cut or joined without capturing a name. Expressions are sqlglot
expressions in DuckDB's dialect; an ``exp.Column`` in them has an identifier (quoted, without a table). A subquery in an
expression is a ``Nested``, whose plan may use identifiers of the operators around it; then it is correlated.

Trees are frozen values, compared by content. ``with_inputs`` and ``trees.rewritten`` make changed copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from sqlglot import exp

from dqp.algebra.chains import conjuncts

if TYPE_CHECKING:
    import pyarrow as pa

    from dqp.algebra.table import Table

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti", "asof", "asof left"]
"""``inner`` without a condition is a cross join; ``semi`` and ``anti`` give the columns of the left side only. ``asof``
and ``asof left``: of the rows that fulfil the condition, which has one comparison beside equalities, the one with the
nearest value. Every part of that condition is about both sides."""
ASOF = frozenset(("asof", "asof left"))
OF_LEFT = frozenset(("inner", "left", "semi", "anti", *ASOF))
"""Joins that take each row of the left side by itself: a filter on its columns may be done before."""
OF_RIGHT = frozenset(("inner", "right"))
"""As ``OF_LEFT``, of the right side."""
SetKind = Literal["union", "intersect", "except"]
ExchangeKind = Literal["gather", "hash", "broadcast", "spread"]
Item = tuple[str, exp.Expression]
"""A computed column: identifier, expression."""
SELECTIVITY = "selectivity"
"""Key in the ``meta`` of a predicate: the part of the rows that it keeps, if the creator of the predicate knows it."""


class Nested(exp.Expression):
    """A subquery in an expression. ``kind``: ``scalar`` (its one column, NULL without a row), ``exists``, ``in``
    (``this`` is the operand, a tuple where the plan has several columns), ``any`` and ``all`` (``this`` the operand,
    ``operator`` such as ``<``), ``array``. Negations are ``exp.Not`` around it."""

    arg_types = {"kind": True, "plan": True, "this": False, "operator": False}  # noqa: RUF012

    @property
    def plan(self) -> Operator:
        plan: Operator = self.args["plan"]
        return plan

    @property
    def kind(self) -> str:
        kind: str = self.args["kind"]
        return kind

    def over(self, plan: Operator, change: Callable[[Any], exp.Expression] = lambda each: each) -> Nested:
        """The same over another plan, with its operand changed."""
        arguments = {**self.args, "plan": plan}
        if arguments.get("this") is not None:
            arguments["this"] = change(self.this)
        return Nested(**arguments)


@dataclass(frozen=True)
class Operator:
    """A node of the tree. ``columns`` are the identifiers of its output, in order; ``inputs`` are its children."""

    @cached_property
    def rendered(self) -> dict[str, Any]:
        """Cache of ``dqp.sql.dialects.statement``: the tree's statement, by dialect."""
        return {}

    @cached_property
    def kept(self) -> dict[str, Any]:
        """What is kept of a tree for the next time that somebody asks: its shape, and what ``dqp.runtimes.local`` made
        of a plan's tree."""
        return {}

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return ()

    @property
    def columns(self) -> tuple[str, ...]:
        raise TypeError(type(self).__name__)

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        """The expressions of this node, without those of its inputs."""
        return ()

    @cached_property
    def subqueries(self) -> tuple[Nested, ...]:
        """The nested plans in its expressions, without the plans nested in these. Planning asks each node often."""
        return tuple(each for expression in self.expressions for each in subqueries(expression))

    def with_inputs(self, *inputs: Operator) -> Operator:
        """The same node over other children."""
        assert not inputs
        return self

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        """The same node with each of its own expressions replaced; the same object where nothing changes."""
        return self


def _same(changed: Iterable[exp.Expression], expressions: Iterable[exp.Expression]) -> bool:
    return all(one is other for one, other in zip(changed, expressions, strict=True))


class _OfItems:
    """An operator whose ``items`` begin with the identifiers of its output."""

    items: tuple[tuple[str, Any], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(each for each, _ in self.items)


@dataclass(frozen=True)
class Scan(_OfItems, Operator):
    """Reads columns of a table of a source. ``items`` are (identifier, name of the column in the table)."""

    table: Table
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Inline(_OfItems, Operator):
    """Tuples in memory: a VALUES list, an uploaded table, a subtree that has run. ``items`` are (identifier, name of
    the column in ``data``). Compared by ``name``, which is unique in a query."""

    name: str
    items: tuple[tuple[str, str], ...]
    data: pa.Table = field(compare=False, repr=False)


@dataclass(frozen=True)
class _Unary(Operator):
    input: Operator

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    def with_inputs(self, *inputs: Operator) -> Operator:
        (each,) = inputs
        return self if each is self.input else replace(self, input=each)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.input.columns


@dataclass(frozen=True)
class _Binary(Operator):
    left: Operator
    right: Operator

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.left, self.right)

    def with_inputs(self, *inputs: Operator) -> Operator:
        left, right = inputs
        return self if left is self.left and right is self.right else replace(self, left=left, right=right)


class _WithKeys(_Unary):
    """Its expressions are its ``keys``."""

    keys: tuple[exp.Expression, ...]

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        return self.keys

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        keys = tuple(map(change, self.keys))
        return self if _same(keys, self.keys) else replace(self, keys=keys)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Filter(_Unary):
    """The rows for which ``condition`` is true."""

    condition: exp.Expression

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        return (self.condition,)

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        condition = change(self.condition)
        return self if condition is self.condition else replace(self, condition=condition)


@dataclass(frozen=True)
class Project(_OfItems, _Unary):
    """Computes the columns ``items``, and only these. An item may contain a window function."""

    items: tuple[Item, ...]

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        return tuple(each for _, each in self.items)

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        items = tuple((name, change(each)) for name, each in self.items)
        return self if _same((each for _, each in items), self.expressions) else replace(self, items=items)


@dataclass(frozen=True)
class Join(_Binary):
    """Joins two inputs; its columns are those of ``left``, then ``right``. ``right`` is the build side, ``left`` the
    probe side."""

    kind: JoinKind = "inner"
    condition: exp.Expression | None = None

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return self.left.columns if self.kind in ("semi", "anti") else self.left.columns + self.right.columns

    @cached_property
    def equal_columns(self) -> tuple[tuple[str, str], ...]:
        """The columns (left, right) that the condition makes equal."""
        left, right = frozenset(self.left.columns), frozenset(self.right.columns)
        pairs = []
        for each in conjuncts(self.condition):
            if type(each) is exp.EQ and isinstance(each.this, exp.Column) and isinstance(each.expression, exp.Column):
                one, other = each.this.name, each.expression.name
                if one in right:
                    one, other = other, one
                if one in left and other in right:
                    pairs.append((one, other))
        return tuple(pairs)

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        return () if self.condition is None else (self.condition,)

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        condition = None if self.condition is None else change(self.condition)
        return self if condition is self.condition else replace(self, condition=condition)


@dataclass(frozen=True)
class Aggregate(_Unary):
    """One row for each group; without keys one row in all. ``sets``: grouping sets, each a tuple of keys' identifiers;
    None means one set of all keys. ``aggregates`` may use ``GROUPING(key)``. ``partial``: an aggregate above merges
    groups, so a group may come in several rows."""

    keys: tuple[Item, ...] = ()
    aggregates: tuple[Item, ...] = ()
    sets: tuple[tuple[str, ...], ...] | None = None
    partial: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(each for each, _ in (*self.keys, *self.aggregates))

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        return tuple(each for _, each in (*self.keys, *self.aggregates))

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        keys = tuple((name, change(each)) for name, each in self.keys)
        aggregates = tuple((name, change(each)) for name, each in self.aggregates)
        if _same((each for _, each in (*keys, *aggregates)), self.expressions):
            return self
        return replace(self, keys=keys, aggregates=aggregates)


@dataclass(frozen=True)
class Distinct(_Unary):
    """Removes duplicate rows."""


@dataclass(frozen=True)
class Sort(_WithKeys):
    """Sorts by ``keys`` (``exp.Ordered`` with explicit ``desc`` and ``nulls_first``), skips ``offset`` rows and keeps
    at most ``limit``. With a limit it is a top-N; without keys it keeps any N rows."""

    keys: tuple[exp.Expression, ...] = ()
    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class SetOperation(_Binary):
    """UNION, INTERSECT or EXCEPT. ``names`` are the identifiers of its output; the sides' columns match by position."""

    kind: SetKind
    all: bool
    names: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names


@dataclass(frozen=True)
class Verbatim(Operator):
    """A query that DuckDB runs as it is written, because no other operator covers it (recursive CTEs, PIVOT,
    unnest …). ``query`` reads the tables ``names[i]``; table i has the columns ``exposed[i]``, (name in the
    query, identifier of ``parts[i]``). ``outputs`` are (identifier, name of the query's output column)."""

    query: exp.Expression
    parts: tuple[Operator, ...]
    names: tuple[str, ...]
    exposed: tuple[tuple[tuple[str, str], ...], ...]
    outputs: tuple[tuple[str, str], ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return self.parts

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(each for each, _ in self.outputs)

    def with_inputs(self, *inputs: Operator) -> Operator:
        return replace(self, parts=inputs)


@dataclass(frozen=True)
class Remote(Operator):
    """A subtree that a source runs as one statement (``source`` is an alias of the catalog). The statement is rendered
    from ``tree`` when it is sent, so a filter that is added later (keys, a range) is a change of the tree. For the
    operators above it is a leaf."""

    source: str
    tree: Operator

    @property
    def columns(self) -> tuple[str, ...]:
        return self.tree.columns

    @cached_property
    def numbered(self) -> Operator:
        """The tree, its columns called by their places: equal statements, whatever their columns are called here."""
        return Project(self.tree, tuple((f"c{at}", column(each)) for at, each in enumerate(self.columns)))


@dataclass(frozen=True)
class Exchange(_WithKeys):
    """Moves rows between evaluators: all to one (``gather``), by hash of ``keys`` (``hash``), all to each
    (``broadcast``), in turn (``spread``).

    ``heavy`` are literals: frequent values of the only key of a ``hash``. Rows with such a value are spread in turn, or
    ``copied`` to each evaluator. The two sides of a join do one each, so that no partition gets too many rows."""

    kind: ExchangeKind
    keys: tuple[exp.Expression, ...] = ()
    heavy: tuple[exp.Expression, ...] = ()
    copied: bool = False


@dataclass(frozen=True)
class Receive(Operator):
    """The rows that another fragment sends: a leaf in place of a cut exchange. ``names`` are the identifiers;
    ``reader`` is the number of this fragment among those that read it."""

    fragment: int
    names: tuple[str, ...]
    reader: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names


@dataclass(frozen=True)
class Call(_Unary):
    """Calls an operation for each row; adds its result to the input as the column ``identifier``."""

    identifier: str
    function: str
    arguments: tuple[exp.Expression, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.input.columns, self.identifier)

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        return self.arguments

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        arguments = tuple(map(change, self.arguments))
        return self if _same(arguments, self.arguments) else replace(self, arguments=arguments)


class Names:
    """Creates unique identifiers: the wanted name if it is free, else the name with a number. ``taken``: identifiers
    that exist already."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._used: dict[str, int] = {each.lower(): 1 for each in taken}

    def new(self, name: str) -> str:
        # PostgreSQL limits a name to 63 bytes; MariaDB allows only characters of the basic plane.
        plain = "".join(each if each <= "\uffff" else "_" for each in name) if not name.isascii() else name
        base = plain.encode()[:48].decode(errors="ignore") or "column"
        count = self._used.get(base.lower(), 0) + 1
        while count > 1 and f"{base}_{count}".lower() in self._used:
            count += 1
        self._used[base.lower()] = count
        if count == 1:
            return base
        unique = f"{base}_{count}"
        self._used[unique.lower()] = 1
        return unique


def column(identifier: str) -> exp.Column:
    """The column with that identifier as an expression."""
    return exp.Column(this=exp.Identifier(this=identifier, quoted=True))


def numbered(tree: Operator, number: str, groups: list[exp.Expression], order: list[exp.Expression]) -> Project:
    """The tree's rows with their number, from 1, in their group and this order, in the column ``number``."""
    window = exp.Window(
        this=exp.RowNumber(),
        partition_by=groups,
        order=exp.Order(expressions=order) if order else None,
        over="OVER",
    )
    return Project(tree, (*((each, column(each)) for each in tree.columns), (number, window)))


def quoted(identifier: str) -> str:
    """The identifier in DuckDB's SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def subqueries(expression: exp.Expression) -> list[Nested]:
    """The nested plans in an expression, without the plans nested in these."""
    return [node for node in leaves(expression) if isinstance(node, Nested)]


def leaves(expression: exp.Expression) -> list[exp.Expr]:
    """The columns and subqueries in an expression. Planning calls this often; ``Expr.walk`` takes four times as
    long."""
    parts: list[exp.Expr] = []
    stack: list[Any] = [expression]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Column):
            parts.append(node)
            continue
        if isinstance(node, Nested):
            parts.append(node)
        for each in node.args.values():
            if isinstance(each, exp.Expr):
                stack.append(each)
            elif type(each) is list:
                stack.extend(one for one in each if isinstance(one, exp.Expr))
    return parts
