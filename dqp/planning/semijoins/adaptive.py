"""Reads small build sides first and plans again with their rows.

A build side that is estimated small is fetched before the statements that its join keys could reduce are sent. If it is
small, its keys become a filter (a range, a list, a table) in the probe's statement: a dynamic semi-join. If it is not,
its rows wait in their buffer, and the query reads them like those of any other input.
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
    """A remote subtree that a thread is reading."""

    def whole(self, limit: int) -> pa.Table | None:
        """Waits for all rows and returns them; None if they have more bytes than the limit."""


def adapt(tree: Operator, context: Context, read: Callable[[Remote], Fetched], limit: int) -> Operator:
    """The tree after every reduction that pays. ``read`` starts to fetch a remote subtree; repeated calls fetch it
    once. A build has at most ``limit`` bytes.

    Builds that are estimated small and depend on no other build are fetched at the same time. A large input starts when
    no further reduction can make it smaller.
    """
    tried: set[tuple[Remote | Inline, tuple[tuple[str, str], ...]]] = set()
    begun: set[Remote] = set()
    while steps := program(tree, context, limit, begun, tried):
        waiting = {each.probe for each in steps}
        # A build that a step will reduce is read later.
        ready = [each for each in steps if each.build not in waiting]
        small = [each for each in _leaves(tree) if each not in waiting and context.estimator.of(each).bytes <= limit]
        for remote in (*(each.build for each in ready), *small):
            if isinstance(remote, Remote):
                begun.add(remote)
                read(remote)
        # One at a time, because a reduction changes the tree for the next one.
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
    """Remarks for EXPLAIN: the reductions that ``adapt`` will try first."""
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
