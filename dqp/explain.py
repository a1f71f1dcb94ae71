"""Plans for people: as text, as JSON and as a drawing.

``Node`` is one operator as it is shown. What was estimated comes from the planner, what happened from the measurements
of an execution; the rest is layout.
"""

from __future__ import annotations

import html
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from dqp import dialects
from dqp.dialects import NotPushed
from dqp.execution import Execution, Measurement
from dqp.operators import (
    Aggregate,
    Block,
    Call,
    Distinct,
    Exchange,
    Filter,
    Inline,
    Join,
    Operator,
    Project,
    Receive,
    Remote,
    Scan,
    SetOperation,
    Sort,
)
from dqp.render import expression_sql
from dqp.rules import Context

LONGEST = 160
"""Characters of a list of expressions that are shown in a line."""


@dataclass(frozen=True)
class Figures:
    """Rows, bytes and seconds; None where nobody knows. ``seconds`` from the first request to the last row,
    ``waiting``: of these, spent waiting for the source or the producer below."""

    rows: float | None = None
    bytes: float | None = None
    seconds: float | None = None
    waiting: float | None = None


@dataclass(frozen=True)
class Node:
    """``where`` it runs; ``statements``: the SQL sent, with what was measured of each."""

    title: str
    details: tuple[str, ...] = ()
    where: str | None = None
    estimated: Figures = Figures()
    actual: Figures | None = None
    statements: tuple[str, ...] = ()
    inputs: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """``remarks``: why something was not left to a source, what was adapted. ``seconds``: of planning and running."""

    root: Node
    sql: str
    remarks: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Explanation:
        """What ``json`` says."""
        found = json.loads(text)
        return cls(_read(found["plan"]), found["sql"], tuple(found["remarks"]), found["seconds"])

    @property
    def text(self) -> str:
        lines = list(_lines(self.root))
        if self.remarks:
            lines += ["", *(f"Remark: {each}" for each in self.remarks)]
        if self.seconds:
            lines += ["", ", ".join(f"{name} {_seconds(each)}" for name, each in self.seconds.items())]
        return "\n".join(lines)

    @property
    def json(self) -> str:
        plan = {"sql": self.sql, "plan": _values(self.root), "remarks": list(self.remarks), "seconds": self.seconds}
        return json.dumps(plan, ensure_ascii=False, indent=2)

    @property
    def svg(self) -> str:
        from dqp.drawing import drawn

        return drawn(self.root)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """What a notebook shows: the drawing, the text below it to unfold."""
        return f"{self.svg}<details><summary>as text</summary><pre>{html.escape(self.text)}</pre></details>"


def node_of(tree: Operator, context: Context, execution: Execution | None = None) -> Node:
    """A tree as it is shown: with what was estimated and, of an execution, what was measured."""
    measured = {} if execution is None else {each.key: each for each in execution.measurements()}
    return _node(tree, context, measured)


def _node(tree: Operator, context: Context, measured: Mapping[Hashable, Measurement]) -> Node:
    title, details = described(tree)
    estimate = context.estimator.of(tree)
    found = measured.get(tree) if isinstance(tree, Remote | Call | Receive) else None
    statements: tuple[str, ...] = ()
    where = None
    actual = None
    if isinstance(tree, Remote):
        where = context.dialect(tree.source)
        statements = found.statements if found is not None else (_statement(tree, where),)
    if found is not None:
        where = found.where or where
        actual = Figures(found.rows, found.bytes, found.seconds, found.waiting)
    return Node(
        title,
        details,
        where,
        Figures(estimate.rows, estimate.bytes),
        actual,
        statements,
        tuple(_node(each, context, measured) for each in tree.inputs),
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
        return f"Exchange {node.kind}", (_list(map(expression_sql, node.keys)),) if node.keys else ()
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


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    raise AssertionError


def _seconds(value: float) -> str:
    return f"{value * 1000:,.1f} ms" if value < 1 else f"{value:,.2f} s"


def _measured(figures: Figures) -> str:
    parts = []
    if figures.rows is not None:
        parts.append(f"{_number(figures.rows)} rows")
    if figures.bytes is not None:
        parts.append(_bytes(figures.bytes))
    if figures.seconds is not None:
        parts.append(_seconds(figures.seconds))
    if figures.waiting is not None:
        parts.append(f"waited {_seconds(figures.waiting)}")
    return ", ".join(parts)


def figures_of(node: Node) -> list[str]:
    """The lines that say how many rows were expected and how many came."""
    lines = []
    expected = _measured(node.estimated)
    if expected:
        lines.append(f"expected {expected}")
    if node.actual is not None and _measured(node.actual):
        lines.append(f"actual {_measured(node.actual)}")
    return lines


def _lines(node: Node, first: str = "", rest: str = "") -> Iterator[str]:
    where = f" on {node.where}" if node.where else ""
    measured = "; ".join(figures_of(node))
    yield f"{first}{node.title}{where}" + (f"  ({measured})" if measured else "")
    inner = rest + ("│  " if node.inputs else "   ")
    for each in (*node.details, *node.statements):
        yield f"{inner}{each}"
    for number, below in enumerate(node.inputs):
        last = number == len(node.inputs) - 1
        yield from _lines(below, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def _values(node: Node) -> dict[str, Any]:
    values: dict[str, Any] = {"operator": node.title}
    if node.details:
        values["details"] = list(node.details)
    if node.where:
        values["where"] = node.where
    values["estimated"] = _known(node.estimated)
    if node.actual is not None:
        values["actual"] = _known(node.actual)
    if node.statements:
        values["statements"] = list(node.statements)
    if node.inputs:
        values["inputs"] = [_values(each) for each in node.inputs]
    return values


def _read(values: Mapping[str, Any]) -> Node:
    """The node that ``_values`` has written."""
    return Node(
        values["operator"],
        tuple(values.get("details", ())),
        values.get("where"),
        Figures(**values["estimated"]),
        Figures(**values["actual"]) if "actual" in values else None,
        tuple(values.get("statements", ())),
        tuple(map(_read, values.get("inputs", ()))),
    )


def _known(figures: Figures) -> dict[str, float]:
    names = ("rows", "bytes", "seconds", "waiting")
    return {name: round(value, 6) for name in names if (value := getattr(figures, name)) is not None}
