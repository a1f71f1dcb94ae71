"""Plans as JSON values, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dqp.explain.nodes import Figures, Node


def values(node: Node) -> dict[str, Any]:
    """A node and what is below it, as JSON says it."""
    said: dict[str, Any] = {"operator": node.title}
    if node.details:
        said["details"] = list(node.details)
    if node.where:
        said["where"] = node.where
    said["estimated"] = _members(node.estimated)
    if node.actual is not None:
        said["actual"] = _members(node.actual)
    if node.statements:
        said["statements"] = list(node.statements)
    if node.inputs:
        said["inputs"] = [values(each) for each in node.inputs]
    return said


def read(values: Mapping[str, Any]) -> Node:
    """The node that ``values`` has written."""
    return Node(
        values["operator"],
        tuple(values.get("details", ())),
        values.get("where"),
        Figures(**values["estimated"]),
        Figures(**values["actual"]) if "actual" in values else None,
        tuple(values.get("statements", ())),
        tuple(map(read, values.get("inputs", ()))),
    )


def _members(figures: Figures) -> dict[str, float]:
    return {name: round(value, 6) for name, value in dataclasses.asdict(figures).items() if value is not None}
