"""Says which evaluator runs which fragment of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from dqp.algebra.operators import Operator, Remote
from dqp.planning.distribution.partition import Plan

HERE = "here"
"""The place of a fragment that runs in the process that has the federation."""


@dataclass(frozen=True)
class Placement:
    """The places of a plan: for each fragment's number the names of the evaluators of its instances, in order. For a
    plan that has not run: the remote subtrees that would be read in several ``parts``, and ``remarks`` for EXPLAIN."""

    plan: Plan
    places: Mapping[int, tuple[str, ...]]
    parts: Mapping[Remote, tuple[Remote, ...]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @classmethod
    def here(cls, tree: Operator) -> Placement:
        """The placement of the whole tree as one fragment in this process."""
        return cls(Plan.whole(tree), {0: (HERE,)})


def places_of(plan: Plan, evaluators: int) -> dict[int, tuple[int, ...]]:
    """For each fragment the numbers of the evaluators of its instances. Fragments with one instance are dealt out in
    turn."""
    turn = count()
    return {
        each.id: tuple(range(each.instances)) if each.instances > 1 else (next(turn) % evaluators,)
        for each in reversed(plan.fragments)
    }


def named_places(plan: Plan, names: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """As ``places_of``, with the names of the evaluators."""
    return {each: tuple(names[at] for at in places) for each, places in places_of(plan, len(names)).items()}
