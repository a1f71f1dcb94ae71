"""Moves operation calls out of expressions into ``Call`` operators, directly below the operator that uses the result.

This is the last rule: filters and joins have their places by then, so a function is called only for the rows that are
left. For a call in a branch of CASE, COALESCE, AND or OR, or under FILTER, the arguments are NULL in rows that do not
need the result, and a function is not called for a row with a NULL argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from dai.errors import StatementError
from dqp.algebra.chains import all_of, conjuncts
from dqp.algebra.functions import place_of
from dqp.algebra.operators import Aggregate, Call, Filter, Join, Nested, Operator, Project, Sort, column
from dqp.algebra.trees import free, used, walk
from dqp.planning.context import Context
from dqp.planning.predicates import filtered, rebuilt
from dqp.planning.rules.branches import Guards, filled, guarded, passing

_OF_ELEMENTS = (exp.Lambda, exp.Comprehension)


def calls(tree: Operator, context: Context) -> Operator:
    """``Filter(x, f(a) > 1)`` → ``Filter(Call(x, c = f(a)), c > 1)``, without ``c`` further up where it is not used."""
    if not context.options.functions:
        return tree
    return _trimmed(_extracted(tree, _Known(context)), tree.columns)


@dataclass(frozen=True)
class _Known:
    """``some``: what is called, by identifiers of results that only rows have which needed them."""

    context: Context
    some: dict[str, exp.Expression] = field(default_factory=dict)


def _trimmed(tree: Operator, columns: tuple[str, ...]) -> Operator:
    """The operator without the results of calls that it passes on."""
    return tree if tree.columns == columns else Project(tree, tuple((each, column(each)) for each in columns))


def _extracted(node: Operator, known: _Known) -> Operator:
    """The tree with its calls extracted; it may give their results beside its own columns."""
    context = known.context
    passing = isinstance(node, Project | Aggregate | Filter | Sort | Call)
    inputs = [_extracted(each, known) for each in node.inputs]
    if not passing:
        inputs = [_trimmed(extracted, each.columns) for extracted, each in zip(inputs, node.inputs, strict=True)]
    node = node.with_inputs(*inputs)
    if any(each.find(Nested) for each in node.expressions):
        node = node.with_expressions(lambda each: _inside(each, context))
    if not any(_calls_in(each, context) for each in node.expressions):
        return node
    if isinstance(node, Join):
        return _join(node, known)
    if isinstance(node, Filter):
        return _filter(node, known)
    if not passing:
        first = next(call for each in node.expressions for call in _calls_in(each, context))
        raise StatementError(
            "An operation call cannot be used in this place.",
            position=place_of(first),
            hint="Call it in a subquery in FROM.",
        )
    below, changed = _called(node.inputs[0], node.expressions, known)
    replacing = iter(changed)
    return node.with_inputs(below).with_expressions(lambda _: next(replacing))


def _inside(expression: exp.Expression, context: Context) -> exp.Expression:
    """The expression with the calls of its subqueries extracted inside of these."""

    def change(node: exp.Expression) -> exp.Expression:
        if not isinstance(node, Nested):
            return node
        plan = calls(node.plan, context)
        if any(isinstance(each, Call) for each in walk(plan)) and free(plan):
            raise StatementError(
                "An operation call cannot be used in a subquery that uses columns of the query around it.",
                hint="Write the subquery as a join.",
            )
        return node.over(plan)

    changed: exp.Expression = expression.transform(change)
    return changed


def _is_call(node: exp.Expression, context: Context) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() in context.options.functions


def _calls_in(expression: exp.Expression, context: Context) -> list[exp.Anonymous]:
    return [each for each in expression.find_all(exp.Anonymous) if _is_call(each, context)]


def _called(
    below: Operator, expressions: tuple[exp.Expression, ...], known: _Known, outside: Guards = ()
) -> tuple[Operator, list[exp.Expression]]:
    """The operator with a ``Call`` for each different call of the expressions, and the expressions that use them.
    ``outside``: which rows need the expressions at all."""
    extraction = _Extraction(below, expressions, known, outside)
    changed = [extraction(each) for each in expressions]
    return extraction.below, changed


class _Extraction:
    """The calls of one operator's expressions, put over its input: those first that others need."""

    def __init__(
        self, below: Operator, expressions: tuple[exp.Expression, ...], known: _Known, outside: Guards
    ) -> None:
        self.below = below
        self._known, self._context = known, known.context
        self._computed = {call: name for call, name in _calls_below(below) if name in below.columns}
        self._some = {known.some[name]: name for name in self._computed.values() if name in known.some}
        self._results: dict[exp.Expression, exp.Expression] = {}
        self._guards: dict[exp.Expression, list[Guards]] = {}
        before: set[exp.Expression] = set()
        columns = frozenset(below.columns)
        for each in expressions:
            inside = [call for part in each.find_all(*_OF_ELEMENTS) for call in _calls_in(part, self._context)]
            if inside:
                raise StatementError(
                    "An operation call cannot be used in a function of the elements of a list.",
                    position=place_of(inside[0]),
                    hint="Call it over the rows of unnest(…) in a subquery in FROM.",
                )
            for call, guards in guarded(each, lambda node: _is_call(node, self._context), outside):
                # A guard over columns that are not there: the call is made for more rows than need it.
                count = next((at for at, guard in enumerate(guards) if not used(guard) <= columns), len(guards))
                self._guards.setdefault(_plain(call), []).append(guards[:count])
                before.update(node for part in (call, *guards) for node in part.find_all(exp.Window, Nested))
        self._before = before
        """Windows and subqueries that calls or their guards are made from: computed once, below the calls."""

    def __call__(self, expression: exp.Expression) -> exp.Expression:
        return rebuilt(expression, self._changed)

    def _changed(self, node: exp.Expression) -> exp.Expression | None:
        if isinstance(node, exp.Window | Nested) and node in self._before:
            return self._once(node, self._first)
        if isinstance(node, Nested):
            return node.over(node.plan, self)
        return self._once(_plain(node), self._call) if _is_call(node, self._context) else None

    def _once(self, node: Any, result: Callable[[Any], exp.Expression]) -> exp.Expression:
        if node not in self._results:
            self._results[node] = result(node)
        return self._results[node].copy()

    def _first(self, node: exp.Expression) -> exp.Expression:
        name = self._context.names.new(node.key)
        computed = node.__class__(**{key: self._inner(each) for key, each in node.args.items()})
        items = tuple((each, column(each)) for each in self.below.columns)
        self.below = Project(self.below, (*items, (name, computed)))
        return column(name)

    def _inner(self, argument: object) -> object:
        if isinstance(argument, list):
            return [self._inner(each) for each in argument]
        return self(argument) if isinstance(argument, exp.Expression) else argument

    def _call(self, call: exp.Anonymous) -> exp.Expression:
        alternatives = _least(self._guards[call], self._context)
        arguments = [self(each) for each in call.expressions]
        whole = _plain(call, arguments)
        if whole in self._computed:
            return column(self._computed[whole])
        before = self._some.get(whole)
        guarded = any(alternatives)
        if guarded:
            arguments = [_either([self._needed(each, guards) for guards in alternatives]) for each in arguments]
            if (again := _plain(call, arguments)) in self._computed:
                return column(self._computed[again])
        if before is not None:
            missing = exp.Is(this=column(before), expression=exp.Null())
            arguments = [exp.Case(ifs=[exp.If(this=missing.copy(), true=each)]) for each in arguments]
        name = self._context.names.new(call.name)
        self.below = Call(self.below, name, call.name, tuple(arguments))
        if guarded:
            self._known.some[name] = whole
        if before is not None:
            return exp.Coalesce(this=column(before), expressions=[column(name)])
        return column(name)

    def _needed(self, argument: exp.Expression, guards: Guards) -> exp.Expression:
        for each in reversed(guards):
            argument = filled(self(each), argument)
        return argument


def _plain(call: exp.Expression, arguments: list[exp.Expression] | None = None) -> exp.Anonymous:
    return exp.Anonymous(this=call.name.lower(), expressions=call.expressions if arguments is None else arguments)


def _least(places: list[Guards], context: Context) -> list[Guards]:
    """Which rows need a call that stands in several places: those of any. Where a guard needs calls itself, those that
    pass the guards that all places have in common."""
    different = list(dict.fromkeys(places))
    least = [each for each in different if not any(each[: len(one)] == one for one in different if one != each)]
    if len(least) == 1 or not any(_calls_in(guard, context) for guards in least for guard in guards):
        return least
    shortest = min(map(len, least))
    same = next((at for at in range(shortest) if len({guards[at] for guards in least}) > 1), shortest)
    return [least[0][:same]]


def _either(alternatives: list[exp.Expression]) -> exp.Expression:
    first, *others = alternatives
    return exp.Coalesce(this=first, expressions=others) if others else first


def _calls_below(below: Operator) -> Iterator[tuple[exp.Expression, str]]:
    """The calls whose results the operator may pass on, with their identifiers."""
    while isinstance(below, Filter | Sort | Call):
        if isinstance(below, Call):
            yield exp.Anonymous(this=below.function, expressions=list(below.arguments)), below.identifier
        below = below.input


def _filter(node: Filter, known: _Known) -> Operator:
    """What needs no call first, and then what needs one after the other."""
    parts = conjuncts(node.condition)
    below = filtered(node.input, (each for each in parts if not _calls_in(each, known.context)))
    for each in parts:
        if _calls_in(each, known.context):
            below, (changed,) = _called(below, (each,), known)
            below = Filter(below, changed)
    return below


def _join(node: Join, known: _Known) -> Operator:
    sides = [node.left, node.right]
    parts = conjuncts(node.condition)
    kept = [each for each in parts if not _calls_in(each, known.context)]
    after: list[exp.Expression] = []
    for each in parts:
        calls_of_part = _calls_in(each, known.context)
        if not calls_of_part:
            continue
        needs = frozenset[str]().union(*map(used, calls_of_part))
        if node.kind == "inner":  # which rows need it may be a matter of both sides
            calls = guarded(each, lambda part: _is_call(part, known.context))
            needs = needs.union(*(used(guard) for _, guards in calls for guard in guards))
        side = next((at for at, below in enumerate(sides) if needs <= set(below.columns)), None)
        if side is not None:
            # A row for which another part is not true matches nothing.
            outside = _of_side(kept, sides[side])
            sides[side], (changed,) = _called(sides[side], (each,), known, outside)
            kept.append(changed)
        elif node.kind == "inner":
            after.append(each)
        else:
            raise StatementError(
                f"The condition of a {node.kind} join cannot call an operation with columns of both sides.",
                position=place_of(calls_of_part[0]),
                hint="Call it in a subquery in FROM.",
            )
    joined_tree: Operator = Join(sides[0], sides[1], node.kind, all_of(kept))
    if after:
        joined_tree = _extracted(filtered(joined_tree, after), known)
    return _trimmed(joined_tree, node.columns)


def _of_side(parts: list[exp.Expression], side: Operator) -> Guards:
    """The parts of a join's condition that can be told from one side alone, without subqueries."""
    columns = frozenset(side.columns)
    return tuple(passing(each) for each in parts if used(each) and used(each) <= columns and not each.find(Nested))
