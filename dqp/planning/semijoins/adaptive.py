"""Running the small things first, then planning again with the truth.

A build side that is estimated small is fetched before the statements are sent that its join keys could reduce. Where
it is small indeed, the rules make a filter of the keys that it holds (a range, a list) for the probe's statement: a
dynamic semi-join. Where it is not, its rows wait where they are and are read as those of any other input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa

from dqp.algebra.operators import Inline, Operator, Remote, Scan, walk
from dqp.planning.context import Context
from dqp.planning.semijoins.program import candidates, program
from dqp.planning.semijoins.reduction import at_hand, reduced


class Fetched(Protocol):
    """A remote subtree that is being read."""

    def whole(self, limit: int) -> pa.Table | None:
        """All rows where they are at most so many bytes: waits for them."""


def adapt(tree: Operator, context: Context, read: Callable[[Remote], Fetched], limit: int) -> Operator:
    """The tree after every reduction that pays. ``read`` begins to fetch a remote subtree, once however often it is
    called; a build has at most ``limit`` bytes.

    What is small by estimate and waits for nothing is fetched at the same time; what is large begins when no further
    reduction can make it smaller.
    """
    tried: set[tuple[Remote | Inline, tuple[tuple[str, str], ...]]] = set()
    begun: set[Remote] = set()
    while steps := program(tree, context, limit, begun, tried):
        waiting = {each.probe for each in steps}
        # A build that is itself to be reduced has its turn later.
        ready = [each for each in steps if each.build not in waiting]
        small = [each for each in _leaves(tree) if each not in waiting and context.estimator.of(each).bytes <= limit]
        for remote in (*(each.build for each in ready), *small):
            if isinstance(remote, Remote):
                begun.add(remote)
                read(remote)
        # One at a time: a reduction changes what the next one is about.
        first = ready[0]
        build = first.build
        tried.add((build, first.pairs))
        keys = read(build).whole(limit) if isinstance(build, Remote) else at_hand(build)
        if keys is None:
            tried.update((build, each.pairs) for each in candidates(tree, context) if each.build == build)
        else:
            tree = reduced(tree, first, keys, context)
            context.estimator.measured(build, keys.select(list(dict.fromkeys(one for one, _ in first.pairs))))
    return tree


def foreseen(tree: Operator, context: Context, limit: int) -> Iterator[str]:
    """For people: the reductions that ``adapt`` will look at first."""
    for each in program(tree, context, limit):
        build, probe = _name(each.build), _name(each.probe)
        for one, other in each.pairs:
            yield f"{build} is read first: its values of {one} may become a filter on {other} of {probe}"


def _name(leaf: Remote | Inline) -> str:
    if isinstance(leaf, Inline):
        return leaf.name
    tables = dict.fromkeys(f"{leaf.source}.{each.table.name}" for each in walk(leaf.tree) if isinstance(each, Scan))
    return " with ".join(tables) or leaf.source


def _leaves(tree: Operator) -> Iterator[Remote]:
    for node in walk(tree):
        if isinstance(node, Remote):
            yield node
