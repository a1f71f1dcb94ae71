"""Makes the largest subtrees whose tables share a source statements of that source, as far as its dialect can write
them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass, replace

from sqlglot import exp

from dqp.algebra.chains import all_of, conjuncts
from dqp.algebra.dialects import properties
from dqp.algebra.operators import (
    Aggregate,
    Distinct,
    Filter,
    Join,
    Nested,
    Operator,
    Project,
    Remote,
    Scan,
    SetOperation,
    Verbatim,
    column,
)
from dqp.algebra.trees import free, remotes, used, walk, walk_deep
from dqp.planning.common_subtrees import Sharing, alike
from dqp.planning.context import Context, rewrites_nested_plans
from dqp.planning.costing.cost import ROUND_TRIP, costs
from dqp.planning.costing.elapsed import elapsed
from dqp.planning.costing.key_lists import NUMBER, most_listed
from dqp.planning.costing.reductions import HOPED, origins, reductions
from dqp.planning.costing.work import Work
from dqp.planning.parallel import merging_parts
from dqp.planning.predicates import equality, with_plans
from dqp.planning.rules.columns import in_order
from dqp.planning.rules.places import place
from dqp.planning.splitting import SPLIT_ROWS, large, scanned
from dqp.sql import dialects


@dataclass(frozen=True)
class _Left:
    """The part of a statement's rows that keys of others leave, and the columns that the keys are of, here and below in
    the statement."""

    part: float
    columns: frozenset[str]


ALL = _Left(1.0, frozenset())
Pushed = Callable[[Operator, Set[str], Context], Operator]
AT_ONCE = 2
"""Parts of a statement that are certain to run at the same time."""
WORTHWHILE = 0.03
"""Least seconds of a statement that is compared with its alternatives."""
LONG = 0.05
"""Least seconds of a statement that is compared with reading its tables. With 0.2 nine of the 99 queries of TPC-DS at
scale 0.3, in two random placements, took 4.3 s of processor time for 3.7; all were planned as fast."""
TOGETHER = 0.9
"""As ``HOPED``, where keys of several tables reduce one."""
BETTER = 0.8
"""The part of a statement's seconds that an alternative may take at most to replace it."""
ONCE = 0.9
"""As ``BETTER``, for a plan that computes more of it once: what is not done a second time is certainly saved."""


@rewrites_nested_plans
def push_subtrees(tree: Operator, context: Context) -> Operator:
    """Rule: the largest subtrees of one source become ``Remote`` leaves; those whose parts take less time, in parts."""
    needed = frozenset(tree.columns)
    pushed = in_order(_whole(tree, needed, context) or _pushed(tree, needed, context), tree.columns)
    if context.options.pushdown != "cost":
        return pushed
    context.learn(pushed)
    expected = reductions(list(walk_deep(pushed)), context.estimator, sources=context)
    left = {each: _Left(part, origins(each.tree, expected.columns[each])) for each, part in expected.left.items()}
    return in_order(_weighed(pushed, left, lambda each: each, context), tree.columns)


def _pushed(tree: Operator, needed: Set[str], context: Context) -> Operator:
    """``needed``: the columns of the tree that something above it uses; a statement gives no others."""
    if isinstance(tree, Remote):
        return tree
    if place(tree) is not None and not any(_asked_first(each, context) for each in walk(tree)):
        whole = _whole(tree, needed, context)
        if whole is not None:
            return whole
    return _apart(tree, needed, _pushed, context)


def _weighed(
    tree: Operator, left: Mapping[Remote, _Left], around: Callable[[Operator], Operator], context: Context
) -> Operator:
    """The tree with statements in parts where that takes less time. ``left``: the part of a statement's rows that keys
    of others leave. ``around``: the whole plan with another tree in place of this one."""
    if isinstance(tree, Remote):
        part = left.get(tree, ALL)

        best = _best(tree, tree.tree, frozenset(tree.columns), lambda each: _elapsed(each, part, context), context)
        return _or_read(tree, best, part, around, context)

    for at, input in enumerate(tree.inputs):

        def within(each: Operator, tree: Operator = tree, at: int = at) -> Operator:
            return around(_with_input(tree, at, each))

        tree = _with_input(tree, at, _weighed(input, left, within, context))
    if tree.subqueries:

        def plan(nested: Nested) -> Operator:
            return _weighed(nested.plan, left, lambda each: each, context)

        tree = tree.with_expressions(lambda each: with_plans(each, plan))
    return tree


def _with_input(tree: Operator, at: int, input: Operator) -> Operator:
    inputs = list(tree.inputs)
    inputs[at] = in_order(input, inputs[at].columns)
    return tree.with_inputs(*inputs)


def _best(
    whole: Remote | None, tree: Operator, needed: Set[str], seconds: Callable[[Operator], float], context: Context
) -> Operator:
    """The tree as one statement, or with its root here over the best of its inputs, whatever takes less time."""
    before = 0.0 if whole is None else seconds(whole)
    if whole is not None and (is_plain(tree) or before < WORTHWHILE):
        return whole

    def below(each: Operator, wanted: Set[str], context: Context) -> Operator:
        if isinstance(each, Remote):
            return each
        if whole is not None and _continues(tree, each):
            return _apart(each, wanted, below, context)
        return _best(_whole(each, wanted, context), each, wanted, seconds, context)

    remarks = len(context.remarks)
    apart = _apart(tree, needed, below, context)
    if whole is None:
        return apart
    context.learn(apart)
    after = seconds(apart)
    if after > BETTER * before:
        del context.remarks[remarks:]
        return whole
    what = type(tree).__name__.lower()
    context.remark(f"{whole.source}: about {before:.2g} s with the {what} there, {after:.2g} s with it here")
    return apart


def _or_read(
    whole: Remote, best: Operator, left: _Left, around: Callable[[Operator], Operator], context: Context
) -> Operator:
    """``best``, or all that the statement does here over its tables alone. No step on the way to it shows what only the
    whole plan has: keys of several reduce what is read then, keys that leave nothing out of few rows leave little of
    the tables, and what another statement reads, reduced by keys too, is read once."""
    before = _elapsed(best, left, context)
    if before < LONG:
        return best
    joined = any(isinstance(each, Join) for each in walk(whole.tree))
    if not joined and (left.part == 1.0 or is_plain(whole.tree) or not _is_read(whole, around(best))):
        return best
    remarks = len(context.remarks)
    alone = replace(context, options=replace(context.options, pushdown="none"))
    read = _pushed(whole.tree, frozenset(whole.columns), alone)
    context.learn(read)
    saved = before - _elapsed(read, left, context, TOGETHER)
    if left.part == 1.0 or not joined:
        there, here = (_elapsed(around(each), ALL, context, TOGETHER) for each in (best, read))
        saved = max(saved, there - here)
    if saved < (1 - BETTER) * before:
        del context.remarks[remarks:]
        return best
    context.remark(
        f"{whole.source}: about {before:.2g} s with all of it there, {saved:.2g} s less with its tables read"
    )
    return read


def _is_read(whole: Remote, plan: Operator) -> bool:
    """Whether another statement of the plan only reads a table of this one."""

    def tables(each: Remote) -> set[Hashable]:
        return {
            (scan.table.source, scan.table.schema, scan.table.name)
            for scan in walk(each.tree)
            if isinstance(scan, Scan)
        }

    return any(is_plain(each.tree) and tables(each) & tables(whole) for each in remotes(plan) if each != whole)


def _continues(tree: Operator, input: Operator) -> bool:
    """Whether the input is a part of the same long union: either all of it is made there, or each of its queries is
    weighed alone. To weigh what each number of them takes would need time with the square of their number."""
    if not isinstance(tree, SetOperation) or not isinstance(input, SetOperation):
        return False
    return tree.kind == "union" and (input.kind, input.all) == (tree.kind, tree.all)


def _elapsed(tree: Operator, left: _Left, context: Context, hoped: float = HOPED, once: Sharing | None = None) -> float:
    def parts(each: Remote, left: float) -> int:
        if not isinstance(merging_parts(each, context, SPLIT_ROWS, left), Remote):
            return AT_ONCE
        scan = scanned(each)
        # SQLite keeps rows in the order of their numbers; a whole number as primary key is another name for these
        numbered = scan is not None and (scan.table.rowid or properties(context.dialect(each.source)).LOOSE)
        return AT_ONCE if scan is not None and numbered and large(scan, SPLIT_ROWS) else 1

    return elapsed(tree, context.estimator, context.dialect, parts, left.part, hoped, once, context, left.columns)


def _whole(tree: Operator, needed: Set[str], context: Context) -> Remote | None:
    """The tree as one statement; None if the source cannot run it or it costs more than its parts."""
    source = place(tree)
    if (
        source is None
        or free(tree)
        or (context.options.pushdown == "none" and not is_plain(tree))
        or _grows(tree, needed, source, context)
    ):
        return None
    return _remote(source, tree, needed, context)


def reads_again(tree: Operator, context: Context) -> bool:
    """Whether statements that differ read a large table several times."""
    different = list(dict.fromkeys(remotes(tree)))
    if all(is_plain(each.tree) for each in different) or not _read_again(different, context):
        return False
    equal = alike(different)
    return _read_again([each for each in different if id(each) not in equal], context)


def _read_again(different: list[Remote], context: Context) -> bool:
    seconds: dict[Hashable, list[float]] = defaultdict(list)
    for remote in different:
        work = Work(context.estimator, context.dialect(remote.source))
        for each in walk(remote.tree):
            if isinstance(each, Scan):
                seconds[each.table.source, each.table.schema, each.table.name].append(work.node(each))
    return any(sum(each) - max(each) >= LONG for each in seconds.values())


def remark_if_less(tree: Operator, other: Operator, context: Context) -> str | None:
    """The remark for EXPLAIN if ``tree`` takes less time than ``other`` because more of it runs once; else None."""
    sharing, others = Sharing(tree), Sharing(other)
    if len(sharing.tables) <= len(others.tables):
        return None
    before, after = (_elapsed(each, ALL, context, once=once) for each, once in ((other, others), (tree, sharing)))
    if after > ONCE * before:
        return None
    return f"about {before:.2g} s with joins in the sources, {after:.2g} s with common subtrees computed once, here"


def is_plain(tree: Operator) -> bool:
    """Whether it only reads a table: some of its rows, and what is computed from each alone."""
    if any(each.find(exp.Window, Nested) for each in tree.expressions):
        return False
    return isinstance(tree, Scan) or (isinstance(tree, Filter | Project) and is_plain(tree.input))


def _apart(tree: Operator, needed: Set[str], pushed: Pushed, context: Context) -> Operator:
    """The node here, or of a filter the conjuncts that the source does not take, over inputs that are ``pushed``."""
    return (_filter if isinstance(tree, Filter) else _below)(tree, needed, pushed, context)


def _below(tree: Operator, needed: Set[str], pushed: Pushed, context: Context) -> Operator:
    """The node here, its inputs and the plans in its expressions, each by itself."""
    wanted = frozenset(needed)
    if isinstance(tree, Distinct | SetOperation | Verbatim):
        inputs = [in_order(pushed(each, frozenset(each.columns), context), each.columns) for each in tree.inputs]
    else:
        for each in tree.expressions:
            wanted |= used(each)
        inputs = [pushed(each, wanted & frozenset(each.columns), context) for each in tree.inputs]
    changed = tree.with_inputs(*inputs)
    if not changed.subqueries:
        return changed

    def plan(nested: Nested) -> Operator:
        exists = nested.kind == "exists"
        return _pushed(nested.plan, frozenset(), context) if exists else push_subtrees(nested.plan, context)

    return changed.with_expressions(lambda each: with_plans(each, plan))


def _remote(source: str, tree: Operator, needed: Set[str], context: Context) -> Remote | None:
    """The tree as one statement that gives the needed columns, None where the dialect does not take it."""
    columns = tuple(each for each in tree.columns if each in needed)
    if not columns:
        columns = tree.columns[:1]
    if columns != tree.columns and not isinstance(tree, SetOperation | Distinct):
        tree = Project(tree, tuple((each, column(each)) for each in columns))
    return Remote(source, tree) if accepted(tree, source, context) else None


def accepted(tree: Operator, source: str, context: Context) -> bool:
    """Whether the tree can be a statement of the source; if not, EXPLAIN says why."""
    reason = refused(tree, source, context)
    if reason is not None:
        context.remark(f"{source}: {reason}")
    return reason is None


def refused(tree: Operator, source: str, context: Context) -> str | None:
    """Why the tree cannot be a statement of its source; None if it can."""
    try:
        dialects.statement(tree, context.dialect(source))
    except dialects.NotPushed as reason:
        return str(reason)
    return None


def _filter(tree: Operator, needed: Set[str], pushed: Pushed, context: Context) -> Operator:
    """The conjuncts that the source takes there, the others here: what it refuses, what reads another source, what
    depends on the queries around it."""
    assert isinstance(tree, Filter)
    parts = conjuncts(tree.condition)
    source = place(tree.input)
    if len(parts) == 1 or source is None or free(tree.input) or refused(tree.input, source, context) is not None:
        return _below(tree, needed, pushed, context)
    there = [each for each in parts if _alone(Filter(tree.input, each), source, context)]
    here = [each for each in parts if each not in there]
    condition, rest = all_of(there), all_of(here)
    if condition is None or rest is None:
        return _below(tree, needed, pushed, context)
    return _below(Filter(Filter(tree.input, condition), rest), needed, pushed, context)


def _alone(tree: Operator, source: str, context: Context) -> bool:
    """Whether the source can do the tree with nothing else."""
    return place(tree) == source and not free(tree) and refused(tree, source, context) is None


def _grows(tree: Operator, needed: Set[str], source: str, context: Context) -> bool:
    """Whether fetching the result of a join costs more than fetching its inputs and joining them here."""
    if not isinstance(tree, Join) or tree.kind in ("semi", "anti"):
        return False
    of, one = context.estimator.of, costs(context.dialect(source))
    estimate = of(tree)
    width = sum(each.width for name, each in estimate.columns.items() if name in needed)
    whole = estimate.rows * (one.row + one.byte * width)
    wanted = needed | (used(tree.condition) if tree.condition is not None else frozenset())
    apart = ROUND_TRIP
    for side in tree.inputs:
        each = of(side)
        width = sum(known.width for name, known in each.columns.items() if name in wanted)
        apart += each.rows * (one.row + one.byte * width)
    if whole > 1.2 * apart:
        context.remark(f"{source}: a join gives {estimate.rows:,.0f} rows, more than its inputs have")
        return True
    return False


def _asked_first(tree: Operator, context: Context) -> bool:
    """Whether a side of a join is groups of which a condition leaves few, by estimate, and knowing them saves the
    source more work than asking for them costs. No database knows how many a HAVING leaves: they become a statement of
    their own, whose keys reduce the other side once they are here."""
    if not isinstance(tree, Join) or tree.kind not in ("semi", "inner"):
        return False
    sides = [(tree.right, tree.left)] if tree.kind == "semi" else [(tree.right, tree.left), (tree.left, tree.right)]
    return any(_few_groups(few) and _saves(tree, few, many, context) for few, many in sides)


def _few_groups(tree: Operator) -> bool:
    while isinstance(tree, Project):
        tree = tree.input
    if not isinstance(tree, Filter):
        return False
    below: Operator = tree
    while isinstance(below, Filter | Project):
        below = below.input
    return isinstance(below, Aggregate) and bool(below.keys)


def _saves(join: Join, few: Operator, many: Operator, context: Context) -> bool:
    source = place(join)
    if source is None:
        return False
    of, dialect = context.estimator.of, context.dialect(source)
    groups, one = of(few), costs(dialect)
    left = 1.0
    for pair in filter(None, map(equality, conjuncts(join.condition))):
        for here, there in (pair, pair[::-1]):
            values = of(many).columns.get(there)
            listed = groups.rows <= most_listed(context.types.get(there, ""), dialect)
            if here in groups.columns and values is not None and listed:
                left = min(left, groups.rows / (values.distinct or of(many).rows))
    work = sum(of(each).rows for each in walk(many) if isinstance(each, Scan)) * one.work
    return (1 - left) * work > ROUND_TRIP + groups.rows * (one.row + one.byte * groups.width + NUMBER)
