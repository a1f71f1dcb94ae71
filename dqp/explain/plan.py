"""Makes the shown form of a plan from its operators, their estimates and the measurements of an execution.

A plan is shown as one tree, in which a node ``Fragment`` stands above the operators that run in one place, and an
``Exchange`` above each fragment that gives its rows to another one. What the evaluators did, each by itself, is beside
it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dqp.algebra.operators import Call, Exchange, Operator, Receive, Remote
from dqp.algebra.trees import plans_in, walk, walk_deep
from dqp.execution.execution import Execution, Measurement
from dqp.explain.labels import described
from dqp.explain.nodes import Figures, Node
from dqp.explain.profile import matched, operators_of
from dqp.explain.seconds import own
from dqp.planning.context import Context
from dqp.planning.distribution.partition import Fragment, Plan
from dqp.planning.distribution.placement import HERE, Placement
from dqp.sql import dialects
from dqp.sql.dialects import NotPushed

HELD = 0.001
"""Least seconds of waiting for a reader that are shown."""
MISSING = "what its engine did is not known: the evaluator has not sent it"
AGAIN = "runs once: it is shown above"
OTHERWISE = "the engine's operators do not match those of the plan one to one; what they did is below the tree"
LEFT = "it was stopped early, because no more of its rows were needed"


def node_of(
    placement: Placement, context: Context, calls: Mapping[str, float], execution: Execution | None = None
) -> Node:
    """A plan as it is shown: with what was estimated and, of an execution, what was measured. What the operators did
    that an engine ran is known where it ran them as they stand in the tree. ``calls``: seconds of a row in an
    operation, by its name."""
    return _Shown(placement, context, calls, _measured(execution)).fragment(placement.plan.root, placement.plan.tree)[0]


def asked_first(remote: Remote, context: Context) -> Node:
    """A statement that is sent before the query begins, only to learn something."""
    estimate = context.estimator.of(remote)
    dialect = context.dialect(remote.source)
    figures = Figures(estimate.rows, estimate.bytes, own(remote, context, {}))
    return Node("Asked first", (), dialect, figures, None, (_statement(remote, dialect),))


def fragments_of(placement: Placement, execution: Execution) -> tuple[Node, ...]:
    """What was measured of the last attempt beside the nodes of the tree: of each fragment on each evaluator what
    arrived there and what the engine's operators did, and statements that were asked only to learn something."""
    measured = _measured(execution)
    plan = placement.plan
    producers = {each.exchange: Plan.name(each.id) for each in plan.fragments}
    nodes = []
    for fragment in reversed(plan.fragments):
        for number, where in enumerate(placement.places[fragment.id]):
            nodes.append(_instance(fragment, number, where, measured, producers, execution.profiled))
    below = [each for each in measured.values() if isinstance(each.key, tuple) and isinstance(each.key[-1], Call)]
    nodes += [_below(each) for each in below]
    in_tree: set[Hashable] = set(walk_deep(plan.tree))
    asked = [each for each in measured.values() if isinstance(each.key, Remote) and each.key not in in_tree]
    nodes += [Node("Asked first", (), each.where, Figures(), _figures(each), each.statements) for each in asked]
    for overtaking in execution.overtakings.values():
        if overtaking.won:
            where = overtaking.remote.source
            figures = Figures(seconds=(overtaking.first or 0.0) - overtaking.after)
            nodes.append(Node("Computed here instead", (), where, Figures(), figures, overtaking.statements))
    return tuple(each for each in nodes if each is not None)


def remarks_of(placement: Placement, execution: Execution, fragments: Iterable[Node]) -> Iterator[str]:
    """Why nothing was measured of some operators: an evaluator did not say what its engine did, or the engine did
    something else. ``fragments``: what ``fragments_of`` gives."""
    for each in fragments:
        if MISSING in each.details:
            yield f"{each.title} at {each.where}: {MISSING}"
    measured = _measured(execution)
    for fragment in placement.plan.fragments:
        measurement = measured.get(Plan.name(fragment.id))
        profiles = [] if measurement is None else _profiles(measurement)
        if any(each is not None and matched(fragment.tree, each) is None for each in profiles):
            yield f"{Plan.name(fragment.id).capitalize()}: {OTHERWISE}"


def _measured(execution: Execution | None) -> dict[Hashable, Measurement]:
    if execution is None:
        return {}
    return {each.key: each for each in execution.measurements() if each.attempt == execution.attempt}


class _Shown:
    def __init__(
        self,
        placement: Placement,
        context: Context,
        calls: Mapping[str, float],
        measured: Mapping[Hashable, Measurement],
    ) -> None:
        self._placement, self._plan, self._context, self._calls = placement, placement.plan, context, calls
        self._measured = measured
        self._shown: dict[int, tuple[Node, float]] = {}
        self._did: dict[Operator, Figures] = {}
        for each in self._plan.fragments:
            self._did |= _did(each, measured.get(Plan.name(each.id)))
        for key, measurement in measured.items():
            if isinstance(key, tuple) and isinstance(key[-1], Call):
                self._did |= _together(key[-1].input, measurement, 1)

    def fragment(self, fragment: Fragment, tree: Operator) -> tuple[Node, float]:
        """The node, and the seconds that it is expected to take from the begin of the query."""
        inner, seconds = self._node(tree, fragment.tree, fragment)
        estimate = self._context.estimator.of(tree)
        measurement = self._measured.get(Plan.name(fragment.id))
        node = Node(
            Plan.name(fragment.id).capitalize(),
            (),
            self._where(fragment),
            Figures(estimate.rows, estimate.bytes, seconds),
            None if measurement is None else _figures(measurement),
            (),
            (inner,),
        )
        return node, seconds

    def _where(self, fragment: Fragment) -> str:
        return ", ".join(self._placement.places[fragment.id])

    def _node(self, tree: Operator, twin: Operator, fragment: Fragment) -> tuple[Node, float]:
        """``twin``: the same operator in the fragment, where it stands over what it receives from others."""
        inputs: list[Node] = []
        before = 0.0
        key: Operator = tree
        if isinstance(tree, Exchange):
            producer, sent = self._producer(tree, twin)
            key = sent
            below, before = self._shown.get(producer.id) or self.fragment(producer, sent.input)
            if producer.id in self._shown:
                below = Node(below.title, (AGAIN,), below.where)
            self._shown[producer.id] = below, before
            inputs.append(below)
        else:
            for one, other in zip(tree.inputs, twin.inputs, strict=True):
                below, seconds = self._node(one, other, fragment)
                inputs.append(below)
                before = max(before, seconds)
        for nested in plans_in(tree):
            below, seconds = self._node(nested, nested, fragment)
            inputs.append(Node("Subquery", inputs=(below,)))
            before = max(before, seconds)
        title, details = described(tree)
        if isinstance(tree, Exchange):
            details = (*details, f"to {Plan.name(fragment.id)} at {self._where(fragment)}")
        copies = fragment.instances if isinstance(tree, Exchange) and tree.kind == "broadcast" else 1
        cost = own(tree, self._context, self._calls, copies)
        estimate = self._context.estimator.of(tree)
        estimated = Figures(estimate.rows, estimate.bytes, cost)
        measurement = self._measured.get(key) if isinstance(tree, Remote | Call | Exchange) else None
        actual = self._did.get(twin) if measurement is None else _figures(measurement)
        node = Node(title, details, None, estimated, actual, (), tuple(inputs))
        if isinstance(tree, Remote):
            node = self._remote(node, tree, measurement)
        return node, before + (cost or 0.0) / self._at_once(tree, fragment)

    def _producer(self, exchange: Exchange, twin: Operator) -> tuple[Fragment, Exchange]:
        """The fragment whose rows go through an exchange, and the exchange for which it was made: one that moves the
        same rows may stand for several."""
        receive = next(each for each in walk(twin) if isinstance(each, Receive))
        producer = self._plan.fragments[receive.fragment]
        return producer, producer.exchange or exchange

    def _at_once(self, node: Operator, fragment: Fragment) -> int:
        """In how many parts the node's work is done at the same time."""
        if isinstance(node, Remote) and node not in fragment.parted:
            return len(self._placement.parts.get(node, (node,)))
        return fragment.instances

    def _remote(self, node: Node, remote: Remote, measurement: Measurement | None) -> Node:
        dialect = self._context.dialect(remote.source)
        if measurement is None:
            parts = self._placement.parts.get(remote, (remote,))
            return replace(node, where=dialect, statements=tuple(_statement(each, dialect) for each in parts))
        if measurement.where not in ("", remote.source):
            node = replace(node, details=(*node.details, f"answered by {measurement.where}"))
        return replace(node, where=dialect, statements=measurement.statements)


def _did(fragment: Fragment, measurement: Measurement | None) -> Mapping[Operator, Figures]:
    return {} if measurement is None else _together(fragment.tree, measurement, fragment.instances)


def _together(tree: Operator, measurement: Measurement, instances: int) -> Mapping[Operator, Figures]:
    """What the operators did in all instances; nothing where that is not known of one of them."""
    parts = [None if each is None else matched(tree, each) for each in _profiles(measurement)]
    if len(parts) < instances or not all(each is not None for each in parts):
        return {}
    together: dict[Operator, Figures] = {}
    for part in parts:
        for key, one in (part or {}).items():
            other = together.get(key)
            together[key] = one if other is None else _added(one, other)
    return together


def _profiles(measurement: Measurement) -> list[Mapping[str, Any] | None]:
    return [each.profile for each in measurement.parts.values()] if measurement.parts else [measurement.profile]


def _added(one: Figures, other: Figures) -> Figures:
    def both(name: str) -> float | None:
        first, second = getattr(one, name), getattr(other, name)
        return None if first is None or second is None else first + second

    return Figures(both("rows"), both("bytes"), max(one.seconds or 0.0, other.seconds or 0.0))


def _figures(measurement: Measurement) -> Figures:
    held = measurement.held if measurement.held > HELD else None
    return Figures(
        measurement.rows, measurement.bytes, measurement.seconds, measurement.waiting, measurement.spooled or None, held
    )


def _instance(
    fragment: Fragment,
    number: int,
    where: str,
    measured: Mapping[Hashable, Measurement],
    producers: Mapping[Exchange | None, str],
    profiled: bool,
) -> Node | None:
    """What one evaluator did of a fragment. None where that is nothing more than the plan says: a statement whose rows
    are passed on."""
    name, task = Plan.name(fragment.id), fragment.task(number)
    measurement = measured.get(name) if where == HERE else None
    if measurement is None and where == HERE:
        return None
    arrived: dict[Operator, Node] = {}
    for each in measured.values():
        for (_, at, _), part in each.parts.items():
            if at == task and each.key == name:
                measurement = part
            elif at == task and (read := _read(each.key)) is not None:
                arriving = Node(_from(each.key, producers), actual=_figures(part), statements=part.statements)
                arrived[read] = arriving
    if measurement is None:
        return Node(name.capitalize(), (MISSING,), where, inputs=tuple(arrived.values()))

    def scanned(columns: frozenset[str]) -> Node | None:
        return next((arrived.pop(each) for each in list(arrived) if columns and columns <= set(each.columns)), None)

    engine = () if measurement.profile is None else tuple(operators_of(measurement.profile, scanned))
    unknown = profiled and measurement.profile is None
    details = () if not unknown else (LEFT if measurement.state == "stopped" else MISSING,)
    statements = measurement.statements if number == 0 else ()
    inputs = (*arrived.values(), *engine)
    return Node(name.capitalize(), details, where, Figures(), _figures(measurement), statements, inputs)


def _read(key: Hashable) -> Operator | None:
    """The operator that an input of a fragment is."""
    if isinstance(key, tuple) and isinstance(key[-1], Remote):
        return key[-1]
    return key if isinstance(key, Exchange | Remote | Call) else None


def _from(key: Hashable, producers: Mapping[Exchange | None, str]) -> str:
    """What an input of a fragment is called."""
    if isinstance(key, Exchange):
        return f"Received from {producers.get(key, 'a fragment')}"
    if isinstance(key, tuple) and isinstance(key[-1], Remote):
        return f"Remote {key[-1].source}, read by the federation"
    return f"Call {key.function}" if isinstance(key, Call) else f"Remote {getattr(key, 'source', '')}"


def _below(measurement: Measurement) -> Node:
    """What was read for an operation call."""
    assert isinstance(measurement.key, tuple)
    engines = [node for each in _profiles(measurement) if each is not None for node in operators_of(each)]
    title = f"Below call {measurement.key[-1].function}"
    return Node(title, (), measurement.where, Figures(), _figures(measurement), measurement.statements, tuple(engines))


def _statement(tree: Remote, dialect: str) -> str:
    try:
        return dialects.statement(tree.tree, dialect).sql
    except NotPushed as error:
        return f"({error})"
