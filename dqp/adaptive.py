"""Running the small things first, then planning again with the truth.

A build side that is estimated small is fetched before the statements are sent that its join keys could reduce. Where it
is small indeed, it becomes tuples at hand with exact statistics, and the rules make a filter of its keys (a range, a
list) for the probe's statement: a dynamic semi-join. Where it is not, its rows stay where they are and are read as any
other input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa

from dqp import rules
from dqp.operators import Inline, Operator, Remote, walk
from dqp.rules import Context


class Fetched(Protocol):
    def whole(self, limit: int) -> pa.Table | None: ...


def adapt(tree: Operator, context: Context, read: Callable[[Remote], Fetched], limit: int) -> Operator:
    """The tree after every reduction that pays. ``read`` begins to fetch a remote subtree, once however often it is
    called; builds of at most ``limit`` bytes become tuples at hand.

    What is small by estimate and waits for nothing is fetched at the same time; what is large begins when no further
    reduction can make it smaller.
    """
    large: set[Remote] = set()
    while todo := [each for each in rules.reducible(tree, context) if each.build not in large]:
        waiting = {each.probe for each in todo}
        ready = [each for each in todo if each.build not in waiting] or todo[:1]
        for remote in _leaves(tree):
            if remote not in waiting and context.estimator.of(remote).bytes <= limit:
                read(remote)
        begun = {each.build: read(each.build) for each in ready if isinstance(each.build, Remote)}
        # One at a time: a reduction changes what the next one is about.
        first = ready[0]
        if isinstance(first.build, Inline):
            tree = rules.reduce(tree, first, first.build, context)
        elif (table := begun[first.build].whole(limit)) is None:
            large.add(first.build)
        else:
            items = tuple((each, each) for each in first.build.columns)
            tree = rules.reduce(tree, first, Inline(context.names.new("build"), items, table), context)
    return tree


def _leaves(tree: Operator) -> Iterator[Remote]:
    for node in walk(tree):
        if isinstance(node, Remote):
            yield node
