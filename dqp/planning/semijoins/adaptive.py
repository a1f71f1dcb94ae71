"""Reads small build sides first and plans again with their rows.

A build side that is estimated small is fetched before the statements that its join keys could reduce are sent. If it is
small, its keys become a filter (a range, a list, a table) in the probe's statement: a dynamic semi-join. If it is not,
its rows wait in their buffer, and the query reads them like those of any other input.

A subtree that is computed once for several uses stays one: its statement is reduced by the keys of all uses, or not at
all. A statement that several uses read stays one, with the keys of all uses, if that takes its source less time than a
statement for each use with keys of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from dqp.algebra.operators import Inline, Operator, Remote, Scan
from dqp.algebra.trees import remotes, walk
from dqp.planning.common_subtrees import Forms, Sharing
from dqp.planning.context import Context
from dqp.planning.costing.cost import ROUND_TRIP
from dqp.planning.costing.elapsed import fetched
from dqp.planning.semijoins.grouping import group_there
from dqp.planning.semijoins.program import Leaf, Reduction, candidates, program, seconds_of
from dqp.planning.semijoins.reduction import at_hand, exchanged, reduced


class Fetched(Protocol):
    """A remote subtree that a thread is reading."""

    @property
    def arrived(self) -> bool:
        """Whether all rows are here."""
        ...

    def whole(self, limit: int) -> pa.Table | None:
        """Waits for all rows and returns them; None if they have more bytes than the limit."""


def adapt(tree: Operator, context: Context, read: Callable[[Remote], Fetched], limit: int) -> Operator:
    """The tree after every reduction that pays. ``read`` starts to fetch a remote subtree; repeated calls fetch it
    once. A build has at most ``limit`` bytes.

    Builds that are estimated small and depend on no other build are fetched at the same time. A large input starts when
    no further reduction can make it smaller.
    """
    tried: set[tuple[Remote | Inline, tuple[tuple[str, str], ...]]] = set()
    due: dict[Remote, float] = {}
    known: dict[Leaf, pa.Table] = {}
    forms = Forms()

    def left(leaf: Leaf) -> float:
        """Seconds until its rows are here; infinite where reading has not begun."""
        if isinstance(leaf, Inline):
            return 0.0
        if leaf not in due:
            return math.inf
        return 0.0 if read(leaf).arrived else max(ROUND_TRIP, due[leaf] - time.perf_counter())

    while True:
        possible = candidates(tree, context)
        steps = program(tree, context, limit, {each: left(each) for each in due}, tried, possible)
        if not steps:
            break
        sharing = Sharing(tree, forms)
        groups = [_together(each, steps, sharing) for each in steps]
        if alone := [each for each, group in zip(steps, groups, strict=True) if not group]:
            tried.update((each.build, each.pairs) for each in alone)
            continue
        waiting = {each.probe for each in steps}
        # A build that a step will reduce is read later.
        ready = [each for each in groups if each[0].build not in waiting]
        small = [each for each in remotes(tree) if each not in waiting and context.estimator.of(each).bytes <= limit]
        for remote in (*(each[0].build for each in ready), *small):
            if isinstance(remote, Remote) and remote not in due:
                due[remote] = time.perf_counter() + seconds_of(remote, context)
                read(remote)
        # The first build, and others that are here by then: to plan again takes time.
        ready.sort(key=lambda each: left(each[0].build))
        done: list[tuple[Reduction, pa.Table]] = []
        instead: dict[Remote, Remote] = {}
        for group in [_with_copies(each, steps, waiting, sharing) for each in ready]:
            if any((each.build, each.pairs) in tried for each in group):
                continue
            if group[0].build != ready[0][0].build and any(left(each.build) for each in group):
                continue
            tried.update((each.build, each.pairs) for each in group)
            copied = bool(sharing.copies(group[0].probe))
            own: list[tuple[Reduction, pa.Table]] = []
            for each in group:
                keys = read(each.build).whole(limit) if isinstance(each.build, Remote) else at_hand(each.build)
                if keys is not None:
                    own.append((each, keys))
                    continue
                context.estimator.larger(each.build, limit)
                tried.update((one.build, one.pairs) for one in possible if one.build == each.build)
                if not copied:
                    break
            if own and (copied or len(own) == len(group)):
                instead |= (_cheaper if copied else _of_all)(own, instead, context)
                done += own
                known[own[0][0].build] = own[0][1]
        tree = exchanged(tree, instead)
        for each, keys in done:
            joined = {one for step in (each, *possible) if step.build == each.build for one, _ in step.pairs}
            context.estimator.measured(each.build, keys.select([name for name in each.build.columns if name in joined]))
    return group_there(tree, known, due.keys(), context)


def _together(step: Reduction, steps: Sequence[Reduction], sharing: Sharing) -> list[Reduction]:
    """The step with those that do the same in the other uses of a subtree that is computed once; none where one of them
    is missing."""
    group = [step]
    for twin, names in sharing.twins(step.probe):
        wanted = [names.get(other) for _, other in step.pairs]
        builds = [each for each, _ in sharing.twins(step.build)]
        same = [each for each in steps if each.probe == twin and [other for _, other in each.pairs] == wanted]
        # What builds inside of the subtree has twins itself.
        same = [each for each in same if each.build in builds or each.build == step.build or not builds]
        # A column that is equal to two of the probe is one column of keys for both.
        same = [each for each in same if _repeated(each) == _repeated(step)]
        if not same:
            return []
        group.append(same[0])
    return group


def _with_copies(
    group: list[Reduction], steps: Sequence[Reduction], waiting: Set[Remote], sharing: Sharing
) -> list[Reduction]:
    """The group, with the steps that reduce copies of its statement by the same columns. A build that is itself still
    to be reduced is left out."""
    step = group[0]
    for copy, names in sharing.copies(step.probe):
        wanted = [names.get(other) for _, other in step.pairs]
        same = (
            each
            for each in steps
            if each.probe == copy
            and each.build not in waiting
            and [other for _, other in each.pairs] == wanted
            and _repeated(each) == _repeated(step)
        )
        if (first := next(same, None)) is not None:
            group = [*group, first]
    return group


def _repeated(step: Reduction) -> list[int]:
    """For each pair the first that has the same column of the build."""
    columns = [one for one, _ in step.pairs]
    return [columns.index(each) for each in columns]


Keyed = Sequence[tuple[Reduction, pa.Table]]
"""Steps, each with the keys that its build has."""


Instead = Mapping[Remote, Remote]
"""Statements in place of others."""


def _cheaper(own: Keyed, instead: Instead, context: Context) -> Instead:
    """``instead`` after the steps, each with the keys of all or with its own: whichever takes the sources less time."""
    united = _united(own) if len(own) > 1 else None
    if united is None:
        return _of_each(own, instead, context)
    remarks, tables = len(context.remarks), len(context.key_tables)
    alternatives = []
    for each in (united, own):
        changed = _of_each(each, instead, context)
        said = context.remarks[remarks:], context.key_tables[tables:]
        seconds = sum(seconds_of(one, context) for one in fetched(changed.values(), context.dialect))
        alternatives.append((seconds, changed, said))
        del context.remarks[remarks:], context.key_tables[tables:]
    _, changed, said = min(alternatives, key=lambda each: each[0])
    context.remarks.extend(said[0])
    context.key_tables.extend(said[1])
    return changed


def _of_all(own: Keyed, instead: Instead, context: Context) -> Instead:
    """``instead`` after the steps, each with the keys of all; the same where no type holds the keys of all."""
    united = _united(own) if len(own) > 1 else own
    return instead if united is None else _of_each(united, instead, context)


def _of_each(own: Keyed, instead: Instead, context: Context) -> Instead:
    changed = dict(instead)
    for each, keys in own:
        now = replace(each, probe=changed.get(each.probe, each.probe))
        changed[each.probe] = reduced(now, keys, context)
    return changed


def _united(own: Keyed) -> Keyed | None:
    """The steps, each with the distinct keys of all as columns of its own build; None where no type holds them."""
    columns = [[*dict(each.pairs)] for each, _ in own]
    keys = [table.select(names) for (_, table), names in zip(own, columns, strict=True)]
    plain = [table.rename_columns([str(at) for at in range(table.num_columns)]) for table in keys]
    try:
        united = pa.concat_tables(plain, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    united = united.group_by(united.column_names).aggregate([])
    return [(each, united.rename_columns(names)) for (each, _), names in zip(own, columns, strict=True)]


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
