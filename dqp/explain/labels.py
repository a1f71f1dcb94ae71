"""An operator in words: its title and its details."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from dqp.algebra.operators import (
    Aggregate,
    Call,
    Distinct,
    Exchange,
    Filter,
    Inline,
    Join,
    Operator,
    Project,
    Remote,
    Scan,
    SetOperation,
    Sort,
    Verbatim,
)
from dqp.explain.text import cut
from dqp.sql.render_duckdb import expression_sql, query_sql

_MOVED = {"broadcast": "all rows to each", "gather": "all rows to one", "spread": "rows dealt out in turn"}


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
        return "Filter", (cut(expression_sql(node.condition)),)
    if isinstance(node, Project):
        windows = any(each.find(exp.Window) for each in node.expressions)
        return "Window" if windows else "Project", (_list(_item(*each) for each in node.items),)
    if isinstance(node, Join):
        condition = "" if node.condition is None else cut(expression_sql(node.condition))
        cross = node.kind == "inner" and node.condition is None
        return f"{'Cross' if cross else node.kind.capitalize().replace('Asof', 'ASOF')} join", (
            condition,
        ) if condition else ()
    if isinstance(node, Aggregate):
        by = _list(_item(*each) for each in node.keys)
        aggregates = _list(_item(*each) for each in node.aggregates)
        return "Aggregate", tuple(each for each in (f"by {by}" if by else "", aggregates) if each)
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
    if isinstance(node, Verbatim):
        return "Verbatim", (cut(query_sql(node.query)),)
    if isinstance(node, Exchange):
        heavy = f"heavy {_list(map(expression_sql, node.heavy))}, {'copied' if node.copied else 'dealt out'}"
        moved = _MOVED.get(node.kind) or f"by {_list(map(expression_sql, node.keys))}"
        return f"Exchange {node.kind}", (moved, heavy) if node.heavy else (moved,)
    if isinstance(node, Call):
        return f"Call {node.function}", (_list(map(expression_sql, node.arguments)),)
    return type(node).__name__, ()


def _item(name: str, expression: exp.Expression) -> str:
    text = expression_sql(expression)
    return name if text == name else f"{name} = {text}"


def _key(key: exp.Expression) -> str:
    return expression_sql(key.this) + (" desc" if key.args.get("desc") else "")


def _list(parts: Iterable[str]) -> str:
    return cut(", ".join(parts))
