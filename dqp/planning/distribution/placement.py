"""Which evaluator runs which fragment of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from dqp.algebra.operators import Operator, Remote
from dqp.planning.distribution.partition import Plan

HERE = "here"
"""The process that has the federation, where a fragment runs without evaluators."""


@dataclass(frozen=True)
class Placement:
    """Where a plan runs: of each fragment, by number, the names of the evaluators of its instances, in their order.
    Of a plan that has not run: ``parts`` in which remote subtrees would be read, where these are several; ``remarks``
    for people."""

    plan: Plan
    places: Mapping[int, tuple[str, ...]]
    parts: Mapping[Remote, tuple[Remote, ...]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @classmethod
    def here(cls, tree: Operator) -> Placement:
        """The whole tree as one fragment of this process."""
        return cls(Plan.whole(tree), {0: (HERE,)})


def places_of(plan: Plan, evaluators: int) -> dict[int, tuple[int, ...]]:
    """Of each fragment the numbers of the evaluators that run its instances: those of one instance by turns."""
    turn = count()
    return {
        each.id: tuple(range(each.instances)) if each.instances > 1 else (next(turn) % evaluators,)
        for each in reversed(plan.fragments)
    }


def named_places(plan: Plan, names: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """``places_of``, by the names of the evaluators."""
    return {each: tuple(names[at] for at in found) for each, found in places_of(plan, len(names)).items()}
