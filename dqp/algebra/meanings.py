"""The meaning of a query's columns: a column that is a table's column unchanged has the meaning of that column; a
computed column has none."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dai.streams.meaning import NOTHING, Meaning
from dqp.algebra.operators import Aggregate, Item, Operator, Project, Scan, SetOperation


def meanings_of(tree: Operator) -> Sequence[Meaning]:
    """The meanings of a tree's columns, in order; empty where nothing is known. A column of a UNION has what both sides
    agree on."""
    known: dict[str, Meaning] = {}
    waiting = [(tree, False)]
    while waiting:
        operator, inputs_done = waiting.pop()
        if inputs_done:
            _note(operator, known)
        else:
            waiting.append((operator, True))
            waiting += [(each, False) for each in operator.inputs]
    meant = [known.get(each, NOTHING) for each in tree.columns]
    return meant if any(each.said for each in meant) else ()


def _note(operator: Operator, known: dict[str, Meaning]) -> None:
    match operator:
        case Scan():
            by_name = {each.name: each.meaning for each in operator.table.columns}
            known.update((identifier, by_name.get(name, NOTHING)) for identifier, name in operator.items)
        case Project():
            _note_items(operator.items, known)
        case Aggregate():
            _note_items(operator.keys, known)
        case SetOperation():
            sides = zip(operator.names, operator.left.columns, operator.right.columns, strict=True)
            for name, left, right in sides:
                if (said := known.get(left)) is not None and said == known.get(right):
                    known[name] = said


def _note_items(items: Sequence[Item], known: dict[str, Meaning]) -> None:
    for identifier, expression in items:
        if isinstance(expression, exp.Column) and expression.name in known:
            known[identifier] = known[expression.name]
