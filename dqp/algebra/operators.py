"""The operators of a query's one tree.

Every column in a tree has an identifier of its own: an expression names a column by its identifier alone, no
operator renames silently, and a tree can be moved, cut or joined without capturing a name. Expressions are sqlglot
expressions in DuckDB's dialect whose ``exp.Column`` s hold such identifiers (quoted, without a table). A subquery
inside an expression is a ``Nested`` expression, whose plan may use identifiers of the operators around it: a
correlated subquery is nothing but that.

Trees are values: frozen, compared by content, changed by making new ones (``with_inputs``, ``rewritten``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from sqlglot import exp

from dqp.algebra.chains import chained

if TYPE_CHECKING:
    import pyarrow as pa

    from dqp.algebra.table import Table

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
"""``inner`` without a condition is a cross join; ``semi`` and ``anti`` give the columns of the left side only."""
SetKind = Literal["union", "intersect", "except"]
ExchangeKind = Literal["gather", "hash", "broadcast", "spread"]
Item = tuple[str, exp.Expression]
"""A column made by an expression: identifier, expression."""
SELECTIVITY = "selectivity"
"""In the ``meta`` of a predicate: the part of the rows for which it holds, where whoever made it knows."""


class Nested(exp.Expression):
    """A subquery in an expression. ``kind``: ``scalar`` (its one column, NULL without a row), ``exists``, ``in``
    (``this`` is the operand, the plan has one column), ``any`` and ``all`` (``this`` the operand, ``operator`` such
    as ``<``), ``array``. Negations are ``exp.Not`` around it."""

    arg_types = {"kind": True, "plan": True, "this": False, "operator": False}  # noqa: RUF012

    @property
    def plan(self) -> Operator:
        plan: Operator = self.args["plan"]
        return plan

    @property
    def kind(self) -> str:
        kind: str = self.args["kind"]
        return kind


@dataclass(frozen=True)
class Operator:
    """A node. ``columns`` are the identifiers it gives, in order; ``inputs`` its children."""

    @cached_property
    def rendered(self) -> dict[str, Any]:
        """What ``dqp.sql.dialects.statement`` has made of the tree, by dialect."""
        return {}

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return ()

    @property
    def columns(self) -> tuple[str, ...]:
        raise TypeError(type(self).__name__)

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        """The expressions of this node alone."""
        return ()

    def with_inputs(self, *inputs: Operator) -> Operator:
        """The same node over other children."""
        assert not inputs
        return self

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        """The same node with each of its own expressions replaced."""
        return self


@dataclass(frozen=True)
class Scan(Operator):
    """Columns of a table of a source: ``items`` are (identifier, name of the column in the table)."""

    table: Table
    items: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(each for each, _ in self.items)


@dataclass(frozen=True)
class Inline(Operator):
    """Tuples at hand: a VALUES list, an uploaded table, a subtree that was run already. ``items`` are (identifier,
    name of the column in ``data``); compared by ``name``, which is unique in a query."""

    name: str
    items: tuple[tuple[str, str], ...]
    data: pa.Table = field(compare=False, repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(each for each, _ in self.items)


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
class Filter(_Unary):
    """The rows for which ``condition`` is true."""

    condition: exp.Expression

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        return (self.condition,)

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        return replace(self, condition=change(self.condition))


@dataclass(frozen=True)
class Project(_Unary):
    """The columns that ``items`` make, and no others. A window function may stand in an item."""

    items: tuple[Item, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(each for each, _ in self.items)

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        return tuple(each for _, each in self.items)

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        return replace(self, items=tuple((name, change(each)) for name, each in self.items))


@dataclass(frozen=True)
class Join(Operator):
    """Both sides' columns, left first. ``right`` is the side that is built, ``left`` the one that probes."""

    left: Operator
    right: Operator
    kind: JoinKind = "inner"
    condition: exp.Expression | None = None

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.left, self.right)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return self.left.columns if self.kind in ("semi", "anti") else self.left.columns + self.right.columns

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        return () if self.condition is None else (self.condition,)

    def with_inputs(self, *inputs: Operator) -> Operator:
        left, right = inputs
        return self if left is self.left and right is self.right else replace(self, left=left, right=right)

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        return self if self.condition is None else replace(self, condition=change(self.condition))


@dataclass(frozen=True)
class Aggregate(_Unary):
    """One row a group (one row in all without keys, unless ``sets`` says otherwise). ``sets``: grouping sets, each a
    tuple of the identifiers of keys; None is the one set of all keys. ``aggregates`` may use ``GROUPING(key)``.
    ``partial``: an aggregate above merges groups, so that it does not matter if one comes in several parts."""

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
        return replace(self, keys=keys, aggregates=tuple((name, change(each)) for name, each in self.aggregates))


@dataclass(frozen=True)
class Distinct(_Unary):
    """Each different row once."""


@dataclass(frozen=True)
class Sort(_Unary):
    """Rows in the order of ``keys`` (``exp.Ordered`` with explicit ``desc`` and ``nulls_first``), after ``offset``
    rows at most ``limit``: a top-N where a limit is given, any N rows where there are no keys."""

    keys: tuple[exp.Expression, ...] = ()
    limit: int | None = None
    offset: int = 0

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        return self.keys

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        return replace(self, keys=tuple(map(change, self.keys)))


@dataclass(frozen=True)
class SetOperation(Operator):
    """``names`` are the identifiers given; columns of both sides match by position."""

    left: Operator
    right: Operator
    kind: SetKind
    all: bool
    names: tuple[str, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.left, self.right)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names

    def with_inputs(self, *inputs: Operator) -> Operator:
        left, right = inputs
        return self if left is self.left and right is self.right else replace(self, left=left, right=right)


@dataclass(frozen=True)
class Verbatim(Operator):
    """A query taken as it was written, for what the other operators do not cover (recursive CTEs, lateral joins,
    DISTINCT ON, PIVOT …). ``query`` reads the tables ``names[i]``; table i has the columns ``exposed[i]``, (name in the
    query, identifier of ``parts[i]``). ``given`` are (identifier, name of the query's output column)."""

    query: exp.Expression
    parts: tuple[Operator, ...]
    names: tuple[str, ...]
    exposed: tuple[tuple[tuple[str, str], ...], ...]
    given: tuple[tuple[str, str], ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return self.parts

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(each for each, _ in self.given)

    def with_inputs(self, *inputs: Operator) -> Operator:
        return replace(self, parts=inputs)


@dataclass(frozen=True)
class Remote(Operator):
    """A subtree that is one statement in the source (an alias of the catalog). The statement is rendered from
    ``tree`` when it is sent, so that what was learnt until then (a dynamic filter, a key range) is a change of the
    tree. A leaf for everything above."""

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
class Exchange(_Unary):
    """Rows move between evaluators: all to one (``gather``), by hash of ``keys`` (``hash``), all to each
    (``broadcast``), to whoever comes next (``spread``).

    ``heavy`` are literals: values of the only key of a ``hash`` that most rows have. Rows with one of them go to
    whoever comes next, or ``copied`` to each: the two sides of a join of which neither partition gets too much."""

    kind: ExchangeKind
    keys: tuple[exp.Expression, ...] = ()
    heavy: tuple[exp.Expression, ...] = ()
    copied: bool = False

    @property
    def expressions(self) -> tuple[exp.Expression, ...]:
        return self.keys

    def with_expressions(self, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
        return replace(self, keys=tuple(map(change, self.keys)))


@dataclass(frozen=True)
class Receive(Operator):
    """What a fragment sends to this one: a cut exchange, a leaf. ``names`` are the identifiers; ``reader``: which of
    those fragments that read it this is."""

    fragment: int
    names: tuple[str, ...]
    reader: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names


@dataclass(frozen=True)
class Call(_Unary):
    """An operation call a row: the column ``identifier`` beside those of the input."""

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
        return replace(self, arguments=tuple(map(change, self.arguments)))


class Names:
    """Gives identifiers: the name asked for where it is free, else with a number. ``taken``: those that are not
    free from the start."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._used: dict[str, int] = {each.lower(): 1 for each in taken}

    def new(self, name: str) -> str:
        # PostgreSQL takes 63 bytes of a name, MariaDB no characters beyond the basic plane.
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
    """The expression that is the column of that identifier."""
    return exp.Column(this=exp.Identifier(this=identifier, quoted=True))


def walk(tree: Operator) -> Iterator[Operator]:
    """The tree's operators, root first; plans nested in expressions are not entered."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(node.inputs)


def plans_in(node: Operator) -> Iterator[Operator]:
    """The plans nested in a node's expressions."""
    for expression in node.expressions:
        for nested in expression.find_all(Nested):
            yield nested.plan


def walk_deep(tree: Operator) -> Iterator[Operator]:
    """As ``walk``, and each node's nested plans after it."""
    for node in walk(tree):
        yield node
        for plan in plans_in(node):
            yield from walk_deep(plan)


def identifiers(tree: Operator) -> Iterator[str]:
    """Every identifier that the tree makes, those of the plans in its expressions included."""
    for node in walk_deep(tree):
        yield from node.columns


def rewritten(tree: Operator, change: Callable[[Operator], Operator]) -> Operator:
    """The tree after ``change`` was applied to every operator, children first."""
    return change(tree.with_inputs(*(rewritten(each, change) for each in tree.inputs)))


def used(expression: exp.Expression) -> frozenset[str]:
    """Identifiers that an expression needs from around it, those of its nested plans included."""
    found: set[str] = set()
    for node in _leaves(expression):
        if isinstance(node, Nested):
            found |= free(node.plan)
        else:
            found.add(node.name)
    return frozenset(found)


def subqueries(expression: exp.Expression) -> list[Nested]:
    """The nested plans in an expression; not those inside of them."""
    return [node for node in _leaves(expression) if isinstance(node, Nested)]


def _leaves(expression: exp.Expression) -> list[exp.Expr]:
    """The columns and subqueries in an expression. Asked of every expression many times while a query is planned,
    hence not by ``Expr.walk``, which takes four times as long."""
    found: list[exp.Expr] = []
    stack: list[Any] = [expression]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Column):
            found.append(node)
            continue
        if isinstance(node, Nested):
            found.append(node)
        for each in node.args.values():
            if isinstance(each, exp.Expr):
                stack.append(each)
            elif type(each) is list:
                stack.extend(one for one in each if isinstance(one, exp.Expr))
    return found


def free(tree: Operator) -> frozenset[str]:
    """Identifiers that a tree uses and does not make: those of the queries around a correlated subquery."""
    made: set[str] = set()
    needed: set[str] = set()
    for node in walk(tree):
        made.update(node.columns)
        for each in node.inputs:
            made.update(each.columns)
        for expression in node.expressions:
            needed |= used(expression)
        if isinstance(node, Remote):
            needed |= free(node.tree)
    return frozenset(needed - made)


def substituted(expression: exp.Expression, by: dict[str, exp.Expression]) -> exp.Expression:
    """The expression with columns replaced; inside nested plans too."""

    def change(node: Any) -> Any:
        if isinstance(node, exp.Column) and node.name in by:
            return by[node.name].copy()
        if isinstance(node, Nested) and free(node.plan) & by.keys():
            arguments = {**node.args, "plan": everywhere(node.plan, lambda each: substituted(each, by))}
            return Nested(**arguments)
        return node

    changed: exp.Expression = expression.transform(change)
    return changed


def everywhere(tree: Operator, change: Callable[[exp.Expression], exp.Expression]) -> Operator:
    """The tree with every expression of every operator replaced."""
    return rewritten(tree, lambda each: each.with_expressions(change))


def conjuncts(condition: exp.Expression | None) -> list[exp.Expression]:
    """The parts of a conjunction."""
    if condition is None:
        return []
    if isinstance(condition, exp.Paren):
        return conjuncts(condition.this)
    if isinstance(condition, exp.And):
        return [*conjuncts(condition.this), *conjuncts(condition.expression)]
    return [condition]


def conjunction(parts: list[exp.Expression]) -> exp.Expression | None:
    """The conjunction of the parts, None where there are none."""
    if not parts:
        return None
    copies = [each.copy() for each in parts]
    return chained(exp.And, [exp.Paren(this=each) if isinstance(each, exp.Or | exp.Xor) else each for each in copies])
