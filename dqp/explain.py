"""What is shown of a plan, from its operators, their estimates and the measurements of an execution."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping

from sqlglot import exp

from dqp import dialects
from dqp.dialects import NotPushed
from dqp.execution import Execution, Measurement
from dqp.explanation import Figures, Node
from dqp.operators import (
    Aggregate,
    Block,
    Call,
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
    walk,
)
from dqp.profile import matched, operators_of
from dqp.render import expression_sql
from dqp.rules import Context

LONGEST = 160
"""Characters of a list of expressions that are shown in a line."""


def node_of(tree: Operator, context: Context, execution: Execution | None = None) -> Node:
    """A tree as it is shown: with what was estimated and, of an execution, what was measured. What the operators did
    that the engine ran is known where it ran them as they stand in the tree."""
    measured = {} if execution is None else {each.key: each for each in execution.measurements()}
    own: Mapping[Operator, Figures] = {}
    for each in measured.values():
        if each.profile is not None and (found := matched(tree, each.profile)) is not None:
            own = found
    return _Shown(context, measured, own).node(tree)


def fragments_of(tree: Operator, execution: Execution) -> tuple[Node, ...]:
    """What was measured of the last attempt beside the nodes of the tree: the fragments with their engine's operators,
    and statements that were asked only to learn something."""
    shown: set[Hashable] = set(_everywhere(tree))
    return tuple(
        _beside(each)
        for each in execution.measurements()
        if each.attempt == execution.attempt and each.key not in shown
    )


class _Shown:
    def __init__(
        self, context: Context, measured: Mapping[Hashable, Measurement], own: Mapping[Operator, Figures]
    ) -> None:
        self._context, self._measured, self._own = context, measured, own

    def node(self, tree: Operator) -> Node:
        title, details = described(tree)
        estimate = self._context.estimator.of(tree)
        found = self._measured.get(tree) if isinstance(tree, Remote | Call | Receive | Exchange) else None
        where: str | None = found.where if found is not None and isinstance(tree, Exchange) else None
        statements: tuple[str, ...] = ()
        if isinstance(tree, Remote):
            where = self._context.dialect(tree.source)
            statements = found.statements if found is not None else (_statement(tree, where),)
            if found is not None and found.where not in ("", tree.source):
                details = (*details, f"answered by {found.where}")
        return Node(
            title,
            details,
            where,
            Figures(estimate.rows, estimate.bytes),
            self._own.get(tree) if found is None else _figures(found),
            statements,
            (*map(self.node, tree.inputs), *(Node("Subquery", inputs=(self.node(each),)) for each in _nested(tree))),
        )


def _nested(node: Operator) -> Iterator[Operator]:
    """The plans in a node's expressions."""
    for expression in node.expressions:
        for nested in expression.find_all(Nested):
            yield nested.plan


def _everywhere(tree: Operator) -> Iterator[Operator]:
    for node in walk(tree):
        yield node
        for each in _nested(node):
            yield from _everywhere(each)


def _figures(found: Measurement) -> Figures:
    return Figures(found.rows, found.bytes, found.seconds, found.waiting, found.spooled or None)


def _beside(found: Measurement) -> Node:
    asked = isinstance(found.key, Remote)
    below = () if found.profile is None else tuple(operators_of(found.profile))
    return Node(
        "Asked first" if asked else "Fragment",
        where=found.where or None,
        actual=_figures(found),
        statements=found.statements,
        inputs=below,
    )


def _statement(tree: Remote, dialect: str) -> str:
    try:
        return dialects.statement(tree.tree, dialect).sql
    except NotPushed as error:
        return f"({error})"


def described(node: Operator) -> tuple[str, tuple[str, ...]]:
    """Title and details of an operator."""
    if isinstance(node, Scan):
        return f"Scan {node.table}", (_list(name for _, name in node.items),)
    if isinstance(node, Remote):
        return f"Remote {node.source}", ()
    if isinstance(node, Inline):
        rows = node.data.num_rows if node.data is not None else 0
        return f"Tuples {node.name}", (f"{rows:,} rows at hand",)
    if isinstance(node, Filter):
        return "Filter", (_cut(expression_sql(node.condition)),)
    if isinstance(node, Project):
        windows = any(each.find(exp.Window) for each in node.expressions)
        return "Window" if windows else "Project", (_list(_item(*each) for each in node.items),)
    if isinstance(node, Join):
        condition = "" if node.condition is None else _cut(expression_sql(node.condition))
        cross = node.kind == "inner" and node.condition is None
        return f"{'Cross' if cross else node.kind.capitalize()} join", (condition,) if condition else ()
    if isinstance(node, Aggregate):
        by = _list(_item(*each) for each in node.keys)
        made = _list(_item(*each) for each in node.aggregates)
        return "Aggregate", tuple(each for each in (f"by {by}" if by else "", made) if each)
    if isinstance(node, Distinct):
        return "Distinct", ()
    if isinstance(node, Sort):
        keys = _list(map(_key, node.keys))
        limit = [] if node.limit is None else [f"first {node.limit:,}"]
        offset = [f"after {node.offset:,}"] if node.offset else []
        return "Top" if node.limit is not None and node.keys else "Limit" if not node.keys else "Sort", tuple(
            each for each in (f"by {keys}" if keys else "", " ".join([*limit, *offset])) if each
        )
    if isinstance(node, SetOperation):
        return f"{node.kind.capitalize()}{' all' if node.all else ''}", ()
    if isinstance(node, Block):
        return "Block", (_cut(node.query.sql(dialect="duckdb")),)
    if isinstance(node, Exchange):
        heavy = f"heavy {_list(map(expression_sql, node.heavy))}, {'copied' if node.copied else 'dealt out'}"
        hashed = (_list(map(expression_sql, node.keys)),) if node.keys else ()
        return f"Exchange {node.kind}", (*hashed, heavy) if node.heavy else hashed
    if isinstance(node, Receive):
        return f"Receive from fragment {node.fragment}", ()
    if isinstance(node, Call):
        return f"Call {node.function}", (_list(map(expression_sql, node.arguments)),)
    return type(node).__name__, ()


def _item(name: str, expression: exp.Expression) -> str:
    text = expression_sql(expression)
    return name if text == name else f"{name} = {text}"


def _key(key: exp.Expression) -> str:
    return expression_sql(key.this) + (" desc" if key.args.get("desc") else "")


def _list(parts: Iterable[str]) -> str:
    return _cut(", ".join(parts))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
