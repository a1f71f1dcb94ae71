"""Subtrees that stand more than once in a tree, whatever their columns are called: computed once.

Two subtrees give the same rows where they are made alike from the same leaves. A projection makes columns, not rows,
and so does an aggregate beside its keys: what a column is, is known by the expression that makes it. So one use can be
served by another one's rows that has its columns and more; the rules may have pruned them differently. What the rules
have made different in any other way (a filter of one use alone) stays apart.

Calls of operations and queries taken as they were written, in which all volatile functions stand, are never shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dqp.algebra.operators import (
    Aggregate,
    Distinct,
    Exchange,
    Filter,
    Inline,
    Join,
    Nested,
    Operator,
    Project,
    Receive,
    Remote,
    Scan,
    SetOperation,
    Sort,
    column,
    conjuncts,
    free,
    subqueries,
    walk,
)
from dqp.planning.costing.cost import Estimator
from dqp.sql.render_duckdb import expression_sql

KEPT_BYTES = float(64 << 20)
"""Rows that are kept for a second use: up to so many by estimate, or twice what they are made of."""


@dataclass(frozen=True)
class Shared:
    """``tree`` is computed once, as the table ``name``, for so many ``uses``."""

    name: str
    tree: Operator
    uses: int


class Sharing:
    """``tables``: what is computed once, each after those it reads itself."""

    def __init__(self, tree: Operator) -> None:
        self.tables: tuple[Shared, ...] = ()
        self._uses: dict[int, tuple[Shared, dict[str, str]]] = {}
        if any(count > 1 for count in Counter(_signatures(tree)).values()):
            self._find(tree)

    @property
    def remarks(self) -> tuple[str, ...]:
        """For people: what is computed once."""
        return tuple(
            f"computed once for {each.uses} uses: what gives {', '.join(each.tree.columns)}" for each in self.tables
        )

    def __call__(self, node: Operator) -> tuple[str, Mapping[str, str]] | None:
        """The table that stands for the node, and what the node's columns are called there."""
        found = self._uses.get(id(node))
        return None if found is None else (found[0].name, found[1])

    def _find(self, tree: Operator) -> None:
        forms = _Forms()
        places: list[_Place] = []
        _place(tree, forms, places)
        kinds: dict[int, list[_Place]] = {}
        for each in places:
            kinds.setdefault(each.form.rows, []).append(each)
        found: list[Shared] = []
        gone: list[_Place] = []
        taken: list[_Place] = []
        # A kind is numbered after those it is made of: the largest first.
        for kind in sorted((each for each, at in kinds.items() if len(at) > 1), reverse=True):
            # What reads a table in the subquery of a column would stand before it.
            alive = [
                each
                for each in kinds[kind]
                if not any(each.inside(other) for other in gone) and not any(other.inside(each) for other in taken)
            ]
            for uses in (_tops(alive), _bottoms(alive)):
                group = _group(uses)
                if group and _worth(group[0].node):
                    shared = Shared(f"shared {len(found) + 1}", group[0].node, len(group))
                    found.append(shared)
                    for each in group:
                        self._uses[id(each.node)] = (shared, each.form.named_as(group[0].form))
                    gone += group[1:]
                    taken += group
                    break
        self.tables = tuple(reversed(found))


Alike = Mapping[int, tuple[Operator, Mapping[str, str]]]
"""By the id of a subtree another one that gives its rows, and what its columns are called there."""


def alike(trees: Sequence[Operator]) -> Alike:
    """The trees for which another one of them can stand, by id, with that one."""
    found: dict[int, tuple[Operator, dict[str, str]]] = {}
    if len(trees) < 2:
        return found
    forms = _Forms()
    kinds: dict[int, list[_Place]] = {}
    for at, tree in enumerate(trees):
        form = forms.tree(tree)
        kinds.setdefault(form.rows, []).append(_Place(tree, form, at, at + 1))
    for places in kinds.values():
        for first, *others in filter(None, [_group(places)]):
            found |= {id(each.node): (first.node, each.form.named_as(first.form)) for each in others}
    return found


@dataclass(frozen=True)
class _Form:
    """What a subtree is: the number of its kind of rows, and of each column the number of what it holds."""

    rows: int
    columns: Mapping[str, int]

    def named_as(self, other: _Form) -> dict[str, str]:
        names = {held: name for name, held in reversed(list(other.columns.items()))}
        return {name: names[held] for name, held in self.columns.items()}


class _Forms:
    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, *of: Hashable) -> int:
        """The same for the same things; larger than the numbers among them."""
        return self._numbers.setdefault(of, len(self._numbers))

    def of(self, node: Operator, below: tuple[_Form, ...]) -> _Form:
        made = getattr(self, "_" + type(node).__name__.lower(), None)
        form: _Form = self._alone(node) if made is None else made(node, *below)
        return form

    def _alone(self, node: Operator) -> _Form:
        rows = self.number(object())
        return _Form(rows, {each: self.number(rows, each) for each in node.columns})

    def _scan(self, node: Scan) -> _Form:
        table = node.table
        rows = self.number("scan", table.source, table.schema, table.name)
        return _Form(rows, {each: self.number(rows, name) for each, name in node.items})

    def _inline(self, node: Inline) -> _Form:
        rows = self.number("inline", id(node.data))
        return _Form(rows, {each: self.number(rows, name) for each, name in node.items})

    def _receive(self, node: Receive) -> _Form:
        rows = self.number("receive", node.fragment)
        return _Form(rows, {each: self.number(rows, at) for at, each in enumerate(node.columns)})

    def _remote(self, node: Remote) -> _Form:
        inner = self.tree(node.tree)
        return _Form(self.number("remote", node.source, inner.rows), inner.columns)

    def _filter(self, node: Filter, below: _Form) -> _Form:
        return _Form(self.number("filter", below.rows, self._all(node.condition, below.columns)), below.columns)

    def _project(self, node: Project, below: _Form) -> _Form:
        return _Form(below.rows, {name: self.held(each, below) for name, each in node.items})

    def _join(self, node: Join, left: _Form, right: _Form) -> _Form:
        columns = {name: self.number("left", held) for name, held in left.columns.items()}
        both = columns | {name: self.number("right", held) for name, held in right.columns.items()}
        rows = self.number("join", node.kind, left.rows, right.rows, self._all(node.condition, both))
        return _Form(rows, {each: both[each] for each in node.columns})

    def _aggregate(self, node: Aggregate, below: _Form) -> _Form:
        keys = {name: self.number("key", self.held(each, below)) for name, each in node.keys}
        sets = None if node.sets is None else tuple(frozenset(keys[each] for each in one) for one in node.sets)
        rows = self.number("aggregate", below.rows, frozenset(keys.values()), sets, node.partial)
        given = _Form(rows, {**below.columns, **keys})
        made = {name: self.number("of", rows, self.held(each, given)) for name, each in node.aggregates}
        return _Form(rows, {**{name: self.number("of", rows, held) for name, held in keys.items()}, **made})

    def _distinct(self, node: Distinct, below: _Form) -> _Form:
        return _Form(self.number("distinct", below.rows, frozenset(below.columns.values())), below.columns)

    def _sort(self, node: Sort, below: _Form) -> _Form:
        keys = tuple(self._canonical(each, below.columns) for each in node.keys)
        return _Form(self.number("sort", below.rows, keys, node.limit, node.offset), below.columns)

    def _setoperation(self, node: SetOperation, left: _Form, right: _Form) -> _Form:
        pairs = [
            (left.columns[one], right.columns[other])
            for one, other in zip(node.left.columns, node.right.columns, strict=True)
        ]
        rows = self.number("set", node.kind, node.all, left.rows, right.rows, frozenset(pairs))
        return _Form(rows, {name: self.number(rows, pair) for name, pair in zip(node.names, pairs, strict=True)})

    def _exchange(self, node: Exchange, below: _Form) -> _Form:
        keys = tuple(self.held(each, below) for each in node.keys)
        heavy = tuple(map(expression_sql, node.heavy))
        return _Form(self.number("exchange", node.kind, below.rows, keys, heavy, node.copied), below.columns)

    def tree(self, node: Operator) -> _Form:
        return self.of(node, tuple(map(self.tree, node.inputs)))

    def held(self, expression: exp.Expression, below: _Form) -> int:
        """What a column made by the expression holds."""
        if isinstance(expression, exp.Column) and expression.name in below.columns:
            return below.columns[expression.name]
        return self.number("made", below.rows, self._canonical(expression, below.columns))

    def _all(self, condition: exp.Expression | None, columns: Mapping[str, int]) -> Hashable:
        return frozenset(self._canonical(each, columns) for each in conjuncts(condition))

    def _canonical(self, expression: exp.Expression, columns: Mapping[str, int]) -> str:
        """The expression over what the columns hold; one that uses others is like no other."""

        def change(node: exp.Expression) -> exp.Expression:
            if isinstance(node, exp.Column):
                held = columns.get(node.name)
                return column(f"column {self.number(object()) if held is None else held}")
            if isinstance(node, Nested):
                plan = self.tree(node.plan)
                operand = "" if node.args.get("this") is None else self._canonical(node.this, columns)
                holds = list(plan.columns.values())
                return column(f"{node.kind} {operand} {node.args.get('operator')} rows {plan.rows} columns {holds}")
            return node

        return expression_sql(expression.transform(change))


@dataclass(frozen=True, eq=False)
class _Place:
    """A node, its form, and where it and what is below it stand when the tree is walked from the root."""

    node: Operator
    form: _Form
    begin: int
    end: int

    def inside(self, other: _Place) -> bool:
        return other.begin <= self.begin < other.end


def _place(node: Operator, forms: _Forms, places: list[_Place]) -> _Form:
    begin = len(places)
    places.append(_Place(node, _Form(-1, {}), begin, begin))
    below = tuple(_place(each, forms, places) for each in node.inputs)
    for expression in node.expressions:
        for nested in subqueries(expression):
            _place(nested.plan, forms, places)
    form = forms.of(node, below)
    places[begin] = _Place(node, form, begin, len(places))
    return form


def _tops(places: list[_Place]) -> list[_Place]:
    """Of places that stand in each other (projections of the same rows) the outermost."""
    return [each for each in places if not any(each.inside(other) for other in places if other is not each)]


def _bottoms(places: list[_Place]) -> list[_Place]:
    """And the innermost."""
    return [each for each in places if not any(other.inside(each) for other in places if other is not each)]


def _group(places: list[_Place]) -> list[_Place]:
    """The place that has the columns of the most others, before these; empty where it has those of none."""
    best: list[_Place] = []
    for each in places:
        has = set(each.form.columns.values())
        served = [other for other in places if other is not each and has.issuperset(other.form.columns.values())]
        if len(served) > max(len(best) - 1, 0):
            best = [each, *served]
    return best


def _worth(tree: Operator) -> bool:
    """Whether it is more than rows of an input, can stand by itself, and is not much larger than what it is made of."""
    nodes = list(walk(tree))
    if not any(isinstance(each, Join | Aggregate | Distinct | SetOperation | Sort) for each in nodes):
        return False
    if free(tree):
        return False
    leaves = [each for each in nodes if not each.inputs]
    if any(isinstance(each, Receive) for each in leaves):
        return True
    of = Estimator().of
    return of(tree).bytes <= max(KEPT_BYTES, 2 * sum(of(each).bytes for each in leaves))


def _signatures(tree: Operator) -> Iterator[Hashable]:
    """Of each leaf what equal ones have in common."""
    for node in walk(tree):
        if isinstance(node, Remote):
            scans = (each.table for each in walk(node.tree) if isinstance(each, Scan))
            yield (node.source, *sorted((each.schema or "", each.name) for each in scans))
        elif isinstance(node, Inline):
            yield id(node.data)
        elif isinstance(node, Receive):
            yield node.fragment
        for expression in node.expressions:
            for nested in subqueries(expression):
                yield from _signatures(nested.plan)
