"""Reads DuckDB's profile and matches its operators with those of the plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlglot import exp

from dqp.algebra.operators import Aggregate, Distinct, Filter, Join, Operator, Project, SetOperation, Sort
from dqp.execution.profile import SHOWN
from dqp.explain.nodes import Figures, Node
from dqp.explain.text import cut

_PLAIN = re.compile(r'[\w#", ]*')
_NUMBERED = re.compile(r"#\d")
_UNCOUNTED = frozenset({"Union", "Cte", "Recursive cte"})
"""DuckDB says that they gave no rows: what they gave is only counted above them."""
_SCANS = frozenset({"Table scan", "Arrow scan"})
_KINDS: tuple[tuple[type[Operator], tuple[str, ...]], ...] = (
    (Join, ("join", "product")),
    (Aggregate, ("group by", "aggregate")),
    (Distinct, ("group by", "distinct")),
    (Sort, ("order by", "top n", "limit")),
    (SetOperation, ("union",)),
)
"""Words in DuckDB's names for our operators."""


def _nothing(columns: frozenset[str]) -> Node | None:
    return None


def operators_of(
    profile: Mapping[str, Any], arrived: Callable[[frozenset[str]], Node | None] = _nothing
) -> Iterator[Node]:
    """DuckDB's operators, from its own profile; those that only pass rows on are left out. ``arrived``: what is read by
    the scan of these columns."""
    for each in profile.get("operator", ()):
        below = tuple(operators_of({"operator": each.get("children", ())}, arrived))
        kind = _kind(each)
        said = {name: _text(value) for name, value in (each.get("extra_info") or {}).items() if name in SHOWN}
        plain = kind == "Projection" and _PLAIN.fullmatch(said.get("Projections", ""))
        if len(below) == 1 and (plain or kind == "Result collector"):
            yield below[0]
            continue
        if kind in _SCANS and (read := arrived(_columns(each))) is not None:
            below = (read,)
        # What DuckDB expects of our inputs means nothing: it cannot know them.
        yield Node(
            "Input" if kind == "Table scan" else kind,
            tuple(cut(f"{SHOWN[name]}{text}") for name, text in said.items() if text and not _NUMBERED.search(text)),
            actual=_figures(each),
            inputs=below,
        )


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else " ".join(str(value).split())


def matched(tree: Operator, profile: Mapping[str, Any]) -> dict[Operator, Figures] | None:
    """What each operator of a tree did, by the profile of the fragment that ran it: None where DuckDB has changed the
    tree's shape, so that nobody can tell. Every leaf must be the scan of the columns that it gives."""
    roots = profile.get("operator") or []
    return _matched(tree, roots[0]) if len(roots) == 1 else None


def _matched(tree: Operator, engine: Mapping[str, Any]) -> dict[Operator, Figures] | None:
    kind, below = _kind(engine), engine.get("children") or []
    if kind in ("Result collector", "Projection") and len(below) == 1:
        return _matched(tree, below[0])
    if isinstance(tree, Project) and not any(each.find(exp.Window) for each in tree.expressions):
        return _matched(tree.input, engine)
    if kind == "Filter" and below:
        inner = _matched(tree.input if isinstance(tree, Filter) else tree, below[0])
        return None if inner is None else inner | ({tree: _figures(engine)} if isinstance(tree, Filter) else {})
    if isinstance(tree, Filter):
        return _matched(tree.input, engine)
    if not tree.inputs or kind in _SCANS:
        return {} if kind in _SCANS and _columns(engine) <= set(tree.columns) else None
    words = next((words for type, words in _KINDS if isinstance(tree, type)), ())
    if not any(each in kind.lower() for each in words) or len(below) != len(tree.inputs):
        return None
    orders = [below] if len(below) == 1 else [below, below[::-1]]
    for order in orders:
        parts = [_matched(each, under) for each, under in zip(tree.inputs, order, strict=True)]
        if all(each is not None for each in parts):
            return {tree: _figures(engine)} | {key: each for part in parts if part for key, each in part.items()}
    return None


def _columns(engine: Mapping[str, Any]) -> frozenset[str]:
    """Of a scan."""
    columns = (engine.get("extra_info") or {}).get("Projections") or ()
    return frozenset((columns,) if isinstance(columns, str) else columns)


def _kind(engine: Mapping[str, Any]) -> str:
    return str(engine.get("type", "")).replace("_", " ").capitalize()


def _figures(engine: Mapping[str, Any]) -> Figures:
    if _kind(engine) in _UNCOUNTED:
        return Figures(seconds=engine.get("timing"))
    return Figures(engine.get("intermediate_rows"), engine.get("intermediate_size_bytes"), engine.get("timing"))
