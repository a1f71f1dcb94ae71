"""What the columns of a query mean: that of the table's column which they are, unchanged; what is computed means
nothing."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dai.streams.meaning import NOTHING, Meaning
from dqp.algebra.operators import Aggregate, Item, Operator, Project, Scan, SetOperation


def meanings_of(tree: Operator) -> Sequence[Meaning]:
    """Of the columns of a tree, in order; none where nothing is known. Of both sides of a UNION only what they say
    alike."""
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
