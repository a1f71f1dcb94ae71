"""Where a tree could run: the source that holds all that it reads."""

from __future__ import annotations

from dqp.algebra.operators import Inline, Operator, Remote, Scan
from dqp.algebra.trees import walk
from dqp.planning.context import nested_plans


def place(tree: Operator) -> str | None:
    """The source that holds everything the tree reads; None where several do, or what is at hand."""
    sources: set[str] = set()
    if not _places(tree, sources):
        return None
    return sources.pop() if len(sources) == 1 else None


def _places(tree: Operator, sources: set[str]) -> bool:
    for each in walk(tree):
        if isinstance(each, Scan):
            sources.add(each.table.source)
        elif isinstance(each, Inline | Remote):
            return False
        if len(sources) > 1:
            return False
    return all(_places(each.plan, sources) for each in nested_plans(tree))
