"""Finds equal subtrees in a tree, whatever the identifiers of their columns, so that they run only once.

Two subtrees have the same rows if they apply the same operators to the same leaves. A projection changes columns, not
rows, and so does an aggregate apart from its keys; a column is known by the expression that computes it. So a subtree
can use the rows of an equal one that has all of its columns and more, because rules may have pruned them differently.
Subtrees that differ in another way, such as a filter in only one of them, are not equal.

Operation calls and verbatim queries, which contain all volatile functions, are never shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from dqp.algebra.chains import conjuncts
from dqp.algebra.constants import PLACE, listed
from dqp.algebra.keys import Members
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
)
from dqp.algebra.trees import free, plans_in, walk
from dqp.planning.costing.cost import Estimator
from dqp.planning.predicates import rebuilt
from dqp.sql.render_duckdb import expression_sql

KEPT_BYTES = float(64 << 20)
"""Most estimated rows that are kept for a second use; more only up to twice the rows of the inputs, and groups, which
are never more than the rows that they are made of."""


@dataclass(frozen=True)
class Shared:
    """A subtree that runs once, as the table ``name``; ``uses`` is the number of its uses."""

    name: str
    tree: Operator
    uses: int


Twin = tuple[Remote, Mapping[str, str]]
_Leaves = Mapping[Remote, "_Form"]
"""Leaves that stand at the same place in several uses."""


class Sharing:
    """The shared subtrees of a tree. ``tables``: each after the ones that it reads."""

    def __init__(self, tree: Operator, forms: Forms | None = None) -> None:
        """``forms``: of trees with which this one has nodes in common."""
        self.tables: tuple[Shared, ...] = ()
        self._uses: dict[int, tuple[Shared, dict[str, str]]] = {}
        self._twins: dict[Remote, list[_Leaves]] = {}
        self._copies: dict[Remote, list[_Leaves]] = {}
        if any(count > 1 for count in Counter(_signatures(tree)).values()):
            self._find(tree, forms or Forms())

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for EXPLAIN: the subtrees that run once."""
        return tuple(
            f"computed once for {each.uses} uses: what gives {', '.join(each.tree.columns)}" for each in self.tables
        )

    def __call__(self, node: Operator) -> tuple[str, Mapping[str, str]] | None:
        """The table that replaces the node, and the names of the node's columns in that table."""
        use = self._uses.get(id(node))
        return None if use is None else (use[0].name, use[1])

    def nodes(self, tree: Operator) -> Iterator[Operator]:
        """The nodes of the tree and of the plans in its expressions that are computed: of a shared subtree one use."""
        return self._nodes(tree, set())

    def _nodes(self, tree: Operator, met: set[str]) -> Iterator[Operator]:
        use = self._uses.get(id(tree))
        if use is not None:
            if use[0].name in met:
                return
            met.add(use[0].name)
        yield tree
        for each in (*tree.inputs, *plans_in(tree)):
            yield from self._nodes(each, met)

    def twins(self, leaf: Operator) -> Sequence[Twin]:
        """The leaves that stand in other uses of a shared subtree where this one stands, with the names that its
        columns have there. What changes one of them and not the others makes the uses different."""
        return _others(leaf, self._twins)

    def copies(self, leaf: Operator) -> Sequence[Twin]:
        """Statements in other places that have the same rows, where no shared subtree contains them, each with the
        names that columns of this one have there."""
        return _others(leaf, self._copies)

    def _find_copies(self, kinds: Mapping[int, Sequence[_Place]], taken: Sequence[_Place], forms: Forms) -> None:
        for places in kinds.values():
            copies = [each for each in places if isinstance(each.node, Remote)]
            if len(copies) > 1:
                _pair([each for each in copies if not any(map(each.inside, taken))], forms, self._copies)

    def _find(self, tree: Operator, forms: Forms) -> None:
        places: list[_Place] = []
        _place(tree, forms, places)
        kinds: dict[int, list[_Place]] = {}
        for each in places:
            kinds.setdefault(each.form.rows, []).append(each)
        shared_subtrees: list[Shared] = []
        gone: list[_Place] = []
        taken: list[_Place] = []
        # A kind has a larger number than its parts, so this order starts with the largest subtrees.
        for kind in sorted((each for each, at in kinds.items() if len(at) > 1), reverse=True):
            # A use inside a shared subtree would need the table before its definition.
            alive = [
                each
                for each in kinds[kind]
                if not any(each.inside(other) for other in gone) and not any(other.inside(each) for other in taken)
            ]
            for uses in (_tops(alive), _bottoms(alive)):
                group = _group(uses)
                if group and _worth(group[0].node):
                    shared = Shared(f"shared {len(shared_subtrees) + 1}", group[0].node, len(group))
                    shared_subtrees.append(shared)
                    for each in group:
                        self._uses[id(each.node)] = (shared, each.form.named_as(group[0].form))
                    _pair(group, forms, self._twins)
                    gone += group[1:]
                    taken += group
                    break
        self._find_copies(kinds, taken, forms)
        self.tables = tuple(reversed(shared_subtrees))


def _pair(uses: Sequence[_Place], forms: Forms, known: dict[Remote, list[_Leaves]]) -> None:
    """Adds for each leaf of a use those that stand at its place in all uses."""
    for standing in zip(*([one for one in walk(each.node) if not one.inputs] for each in uses), strict=True):
        leaves = {each: forms.tree(each) for each in standing if isinstance(each, Remote)}
        for leaf in leaves:
            known.setdefault(leaf, []).append(leaves)


def _others(leaf: Operator, known: Mapping[Remote, Sequence[_Leaves]]) -> list[Twin]:
    if not isinstance(leaf, Remote):
        return []
    return [
        (other, leaves[leaf].known_as(form))
        for leaves in known.get(leaf, ())
        for other, form in leaves.items()
        if other is not leaf
    ]


Alike = Mapping[int, tuple[Operator, Mapping[str, str]]]
"""By the id of a subtree: an equal one, and the names of its columns there."""


def alike(trees: Sequence[Operator]) -> Alike:
    """The trees that another one of them can replace: by id, with the other one."""
    equals: dict[int, tuple[Operator, dict[str, str]]] = {}
    if len(trees) < 2:
        return equals
    forms = Forms()
    kinds: dict[int, list[_Place]] = {}
    for at, tree in enumerate(trees):
        form = forms.tree(tree)
        kinds.setdefault(form.rows, []).append(_Place(tree, form, at, at + 1))
    for places in kinds.values():
        for first, *others in filter(None, [_group(places)]):
            equals |= {id(each.node): (first.node, each.form.named_as(first.form)) for each in others}
    return equals


@dataclass(frozen=True)
class _Form:
    """The form of a subtree: the number of its rows' kind, and for each column the number of its content. Equal numbers
    mean equal rows and equal contents."""

    rows: int
    columns: Mapping[str, int]

    def known_as(self, other: _Form) -> dict[str, str]:
        """Of the columns that the other one has, too, the names there."""
        names = {content: name for name, content in reversed(list(other.columns.items()))}
        return {name: names[content] for name, content in self.columns.items() if content in names}

    def named_as(self, other: _Form) -> dict[str, str]:
        names = self.known_as(other)
        assert names.keys() == self.columns.keys()
        return names


class Forms:
    """The forms of nodes, each object once: what stands in two places as one object was written once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Operator, _Form]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._keys: list[pa.Table] = []

    def number(self, *of: Hashable) -> int:
        """A number that is equal for equal parts, and larger than the numbers among the parts."""
        return self._numbers.setdefault(of, len(self._numbers))

    def of(self, node: Operator, below: tuple[_Form, ...]) -> _Form:
        known = self._known.get(id(node))
        if known is None:
            method = getattr(self, "_" + type(node).__name__.lower(), None)
            form: _Form = self._alone(node) if method is None else method(node, *below)
            known = self._known[id(node)] = (node, form)
        return known[1]

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
        return _Form(below.rows, {name: self.content(each, below) for name, each in node.items})

    def _join(self, node: Join, left: _Form, right: _Form) -> _Form:
        columns = {name: self.number("left", content) for name, content in left.columns.items()}
        both = columns | {name: self.number("right", content) for name, content in right.columns.items()}
        rows = self.number("join", node.kind, left.rows, right.rows, self._all(node.condition, both))
        return _Form(rows, {each: both[each] for each in node.columns})

    def _aggregate(self, node: Aggregate, below: _Form) -> _Form:
        # Keys with the same values differ by the grouping sets that they are in.
        within = {name: tuple(name in one for one in node.sets or ()) for name, _ in node.keys}
        keys = {name: self.number("key", self.content(each, below), within[name]) for name, each in node.keys}
        sets = None if node.sets is None else tuple(frozenset(keys[each] for each in one) for one in node.sets)
        rows = self.number("aggregate", below.rows, frozenset(keys.values()), sets, node.partial)
        grouped = _Form(rows, {**below.columns, **keys})
        aggregates = {name: self.number("of", rows, self.content(each, grouped)) for name, each in node.aggregates}
        return _Form(rows, {**{name: self.number("of", rows, content) for name, content in keys.items()}, **aggregates})

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
        keys = tuple(self.content(each, below) for each in node.keys)
        heavy = tuple(map(expression_sql, node.heavy))
        return _Form(self.number("exchange", node.kind, below.rows, keys, heavy, node.copied), below.columns)

    def tree(self, node: Operator) -> _Form:
        return self.of(node, tuple(map(self.tree, node.inputs)))

    def content(self, expression: exp.Expression, below: _Form) -> int:
        """The number of the content of a column that the expression computes."""
        if isinstance(expression, exp.Column) and expression.name in below.columns:
            return below.columns[expression.name]
        return self.number("made", below.rows, self._canonical(expression, below.columns))

    def _all(self, condition: exp.Expression | None, columns: Mapping[str, int]) -> Hashable:
        return frozenset(self._canonical(each, columns) for each in conjuncts(condition))

    def _canonical(self, expression: exp.Expression, columns: Mapping[str, int]) -> str:
        """The expression's text, with the numbers of contents for columns. An unknown column is equal to no other."""

        def change(node: exp.Expression) -> exp.Expression | None:
            if isinstance(node, exp.In) and (literals := listed(node)) is not None:
                return column(f"{self._canonical(node.this, columns)} in list {self.number(literals)}")
            if isinstance(node, exp.Column):
                content = columns.get(node.name)
                return column(f"column {self.number(object()) if content is None else content}")
            if isinstance(node, exp.Literal) and PLACE in node.args:  # another parameter may have another value
                return column(f"parameter {node.args[PLACE]} {node.this}")
            if isinstance(node, Members):
                compared = [self._canonical(each, columns) for each in node.expressions]
                return column(f"{compared} in keys {self._place_of(node.key_table.data)}")
            if isinstance(node, Nested):
                plan = self.tree(node.plan)
                operand = "" if node.args.get("this") is None else self._canonical(node.this, columns)
                holds = list(plan.columns.values())
                return column(f"{node.kind} {operand} {node.args.get('operator')} rows {plan.rows} columns {holds}")
            return None

        return expression_sql(rebuilt(expression, change))

    def _place_of(self, keys: pa.Table) -> int:
        """The place of an equal table of keys among those that were met."""
        for place, each in enumerate(self._keys):
            if each is keys or each.equals(keys):
                return place
        self._keys.append(keys)
        return len(self._keys) - 1


@dataclass(frozen=True, eq=False)
class _Place:
    """A node, its form, and the range of positions of the node and its subtree, in the order of a walk from the
    root."""

    node: Operator
    form: _Form
    begin: int
    end: int

    def inside(self, other: _Place) -> bool:
        return other.begin <= self.begin < other.end


def _place(node: Operator, forms: Forms, places: list[_Place]) -> _Form:
    begin = len(places)
    places.append(_Place(node, _Form(-1, {}), begin, begin))
    below = tuple(_place(each, forms, places) for each in node.inputs)
    for nested in node.subqueries:
        _place(nested.plan, forms, places)
    form = forms.of(node, below)
    places[begin] = _Place(node, form, begin, len(places))
    return form


def _tops(places: list[_Place]) -> list[_Place]:
    """The outermost of places that contain each other (projections of the same rows)."""
    return [each for each in places if not any(each.inside(other) for other in places if other is not each)]


def _bottoms(places: list[_Place]) -> list[_Place]:
    """The innermost of places that contain each other."""
    return [each for each in places if not any(other.inside(each) for other in places if other is not each)]


def _group(places: list[_Place]) -> list[_Place]:
    """The place that has the columns of the most other places, followed by these; empty if it has those of none."""
    best: list[_Place] = []
    for each in places:
        has = set(each.form.columns.values())
        served = [other for other in places if other is not each and has.issuperset(other.form.columns.values())]
        if len(served) > max(len(best) - 1, 0):
            best = [each, *served]
    return best


def _worth(tree: Operator) -> bool:
    """Whether to share the node: it computes something, needs no names from outside, and is not much larger than its
    inputs."""
    nodes = list(walk(tree))
    if not any(isinstance(each, Join | Aggregate | Distinct | SetOperation | Sort) for each in nodes):
        return False
    if free(tree):
        return False
    if isinstance(next(each for each in nodes if not isinstance(each, Project)), Aggregate | Distinct):
        return True
    leaves = [each for each in nodes if not each.inputs]
    if any(isinstance(each, Receive) for each in leaves):
        return True
    of = Estimator().of
    return of(tree).bytes <= max(KEPT_BYTES, 2 * sum(of(each).bytes for each in leaves))


def _signatures(tree: Operator) -> Iterator[Hashable]:
    """For each leaf a value that is equal for equal leaves."""
    for node in walk(tree):
        if isinstance(node, Scan):
            yield (node.table.source, (node.table.schema or "", node.table.name))
        elif isinstance(node, Remote):
            scans = (each.table for each in walk(node.tree) if isinstance(each, Scan))
            yield (node.source, *sorted((each.schema or "", each.name) for each in scans))
        elif isinstance(node, Inline):
            yield id(node.data)
        elif isinstance(node, Receive):
            yield node.fragment
        for nested in node.subqueries:
            yield from _signatures(nested.plan)
