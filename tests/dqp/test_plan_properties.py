"""What every plan keeps where sources compute all that they can: nothing is fetched that nothing uses, what one source
can do alone it does in one statement, what a source can filter it filters, and nothing is asked twice. Over TPC-H and
generated queries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache

import pytest
from sqlglot import exp

from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dqp.algebra.chains import conjuncts
from dqp.algebra.operators import (
    OF_LEFT,
    OF_RIGHT,
    Aggregate,
    Call,
    Distinct,
    Filter,
    Join,
    Names,
    Nested,
    Operator,
    Project,
    Remote,
    Scan,
    SetOperation,
    Sort,
    Verbatim,
    column,
)
from dqp.algebra.trees import identifiers, remotes, used, walk
from dqp.binding.binder import bind
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.local import DriverSource
from dqp.execution.execution import Execution
from dqp.planning.context import Context, Options
from dqp.planning.costing.cost import Estimator
from dqp.planning.rules import RULES, applied
from dqp.planning.rules.subtrees import push_subtrees
from dqp.sql import dialects
from dqp.sql.dialects import NotPushed
from dqp.sql.render_duckdb import expression_sql
from tests.dqp import plans
from tests.dqp.catalogs import table_of
from tests.dqp.generated import differential
from tests.dqp.generated.differential import Connected
from tests.dqp.generated.grammar import query
from tests.dqp.generated.schema import TABLES
from tests.thoroughness import THOROUGH, part
from tests.tpch import PLACEMENTS, QUERIES, Placement, load, qualified, smallest

ALIASES = ("pg", "maria", "lite", "duck")
ALONE: Mapping[str, Placement] = {alias: dict.fromkeys(next(iter(PLACEMENTS.values())), alias) for alias in ALIASES}
"""All of TPC-H in one source."""
SEEDS = part(range(10_000, 10_120))
RUN = part(range(10_400, 10_480))

Case = tuple[Operator, list[Operator], Context]
"""The optimised tree, what its tree was before (bound, after all rules but those that cut it), and the context."""


def planned(sql: str, catalog: Catalog) -> Case:
    """Raises DaiError for what is no query."""
    return optimised(bind(sql, catalog).tree, catalog)


def optimised(bound: Operator, catalog: Catalog) -> Case:
    context = Context(catalog, Estimator(), Names(identifiers(bound)), Options(pushdown="all"))
    context.learn(bound)
    before, tree = [bound], bound
    for rule in RULES:
        if rule is push_subtrees:
            before.append(tree)
        tree = applied(rule, tree, context)
    return tree, before, context


@cache
def described(source: str | None = None) -> Catalog:
    """The tables of the generated queries, all in one source where one is named."""
    actual = [
        table_of(
            source or each.source,
            each.name,
            ", ".join(f"{name} {each.type(name)}" for name in each.columns),
            rows=max(1.0, float(each.rows)),
        )
        for each in TABLES
    ]
    return Catalog.of(actual, dialects=plans.DIALECTS)


@cache
def tpch(name: str) -> Catalog:
    return plans.catalog({**PLACEMENTS, **ALONE}[name])


def cases() -> Iterator[tuple[str, Case]]:
    """Plans of TPC-H over every placement, and of the generated queries that hold."""
    for name, placement in PLACEMENTS.items():
        for each, sql in QUERIES.items():
            yield f"{each} over {name}", planned(qualified(sql, placement), tpch(name))
    for seed in SEEDS:
        try:
            yield f"seed {seed}", planned(query(seed), described())
        except DaiError:
            continue


@pytest.fixture(scope="module")
def every() -> Sequence[tuple[str, Case]]:
    return list(cases())


# --- nothing is fetched that nothing uses ---


def needed(tree: Operator, wanted: AbstractSet[str]) -> Iterator[tuple[Remote, frozenset[str]]]:
    """Each leaf with those of its columns that the operators above use, ``wanted`` of the tree's among them."""
    if isinstance(tree, Remote):
        yield tree, frozenset(wanted & set(tree.columns))
        return
    for each in tree.expressions:
        for nested in each.find_all(Nested):
            yield from needed(nested.plan, frozenset() if nested.kind == "exists" else frozenset(nested.plan.columns))
    for below, columns in zip(tree.inputs, _needed_of(tree, frozenset(wanted)), strict=True):
        yield from needed(below, columns & frozenset(below.columns))


def _needed_of(tree: Operator, wanted: frozenset[str]) -> Sequence[frozenset[str]]:
    """What an operator needs of each of its inputs."""
    if isinstance(tree, Project):
        return [_all(each for name, each in tree.items if name in wanted)]
    if isinstance(tree, Aggregate):
        made = [each for name, each in tree.aggregates if name in wanted]
        if not made and not tree.keys:
            made = [each for _, each in tree.aggregates[:1]]  # its one row takes one
        return [_all([*(each for _, each in tree.keys), *made])]
    if isinstance(tree, Distinct):
        return [frozenset(tree.columns)]
    if isinstance(tree, SetOperation):
        some = tree.kind == "union" and tree.all
        at = [place for place, name in enumerate(tree.names) if name in wanted or not some]
        return [frozenset(each.columns[place] for place in at) for each in tree.inputs]
    if isinstance(tree, Verbatim):
        return [frozenset(name for _, name in exposed) for exposed in tree.exposed]
    return [wanted | _all(tree.expressions)] * len(tree.inputs)


def _all(expressions: Iterator[exp.Expression] | Sequence[exp.Expression]) -> frozenset[str]:
    return frozenset().union(*map(used, expressions))


def test_statements_give_only_columns_that_are_used(every: Sequence[tuple[str, Case]]) -> None:
    actual = []
    leaves = 0
    for name, (tree, _, _) in every:
        for leaf, wanted in needed(tree, frozenset(tree.columns)):
            leaves += 1
            # Rows without a column cannot be sent.
            if set(leaf.columns) != wanted and not (not wanted and len(leaf.columns) == 1):
                actual.append(f"{name}: {leaf.source} gives {set(leaf.columns) - wanted} too much")
    assert leaves > len(every)
    assert not actual, "\n".join(actual)


# --- one source, one statement ---


def alone(tree: Operator) -> bool:
    """Whether it is one statement, but for the order of its columns."""
    if isinstance(tree, Project) and all(isinstance(each, exp.Column) for _, each in tree.items):
        return alone(tree.input)
    return isinstance(tree, Remote)


def refusal(tree: Operator, dialect: str) -> str | None:
    try:
        dialects.statement(tree, dialect)
    except NotPushed as reason:
        return str(reason)
    return None


@pytest.mark.parametrize("alias", ALIASES)
def test_what_one_source_can_do_alone_is_one_statement(alias: str) -> None:
    """Tuples at hand (VALUES) are in no source: a query with them has to be joined with them here."""
    dialect = plans.DIALECTS[alias]
    actual, whole = [], 0
    for seed in SEEDS:
        sql = re.sub(r"\b(pg|maria|lite|duck)([._])(?=[a-z])", rf"{alias}\2", query(seed))
        try:
            bound = bind(sql, described(alias)).tree
        except DaiError:
            continue
        leaves = [each for each in _everything(bound) if not each.inputs]
        if not leaves or not all(isinstance(each, Scan) for each in leaves):
            continue
        tree, before, context = optimised(bound, described(alias))
        if alone(tree):
            whole += 1
        elif any(refusal(each, dialect) is None for each in before):
            actual.append(f"seed {seed}: {sql}\n  {context.remarks}")
    assert whole > 1 or not THOROUGH
    assert not actual, "\n".join(actual)


def _everything(tree: Operator) -> Iterator[Operator]:
    for node in walk(tree):
        yield node
        for each in node.expressions:
            for nested in each.find_all(Nested):
                yield from _everything(nested.plan)


# --- filters stand where the rows are ---


def test_what_a_source_can_filter_it_filters(every: Sequence[tuple[str, Case]]) -> None:
    actual, looked = [], 0
    for name, (tree, _, context) in every:
        for node in _everything(tree):
            for condition, sides in _conditions(node):
                for each in conjuncts(condition):
                    leaf = _leaf(each, sides)
                    if leaf is None:
                        continue
                    looked += 1
                    remote, there = leaf
                    if refusal(Filter(remote.tree, there), context.dialect(remote.source)) is None:
                        actual.append(f"{name}: {expression_sql(each)} is not in the statement of {remote.source}")
    assert looked
    assert not actual, "\n".join(actual)


def _conditions(node: Operator) -> Iterator[tuple[exp.Expression | None, tuple[Operator, ...]]]:
    """The conditions of a node, each with the inputs whose rows it may take away."""
    if isinstance(node, Filter):
        yield node.condition, (node.input,)
    if isinstance(node, Join) and node.kind != "full":
        sides = {"left": (node.right,), "anti": (node.right,), "right": (node.left,)}
        yield node.condition, sides.get(node.kind, node.inputs)


def _leaf(condition: exp.Expression, sides: tuple[Operator, ...]) -> tuple[Remote, exp.Expression] | None:
    """The one leaf whose columns alone the condition is about, and the condition over its columns."""
    names = used(condition)
    if not names or condition.find(Nested):
        return None
    side = next((each for each in sides if names <= set(each.columns)), None)
    if side is None:
        return None
    at = {name: _origin(side, name) for name in names}
    leaves = {each[0] for each in at.values() if each is not None}
    if len(leaves) != 1 or None in at.values():
        return None
    there = condition.transform(
        lambda each: column(at[each.name][1]) if isinstance(each, exp.Column) else each  # type: ignore[index]
    )
    return leaves.pop(), there


def _origin(tree: Operator, name: str) -> tuple[Remote, str] | None:
    """The leaf whose rows a condition on the column may take away instead of those of the tree."""
    if isinstance(tree, Remote):
        return tree, name
    if isinstance(tree, Join):
        kept = zip(tree.inputs, (OF_LEFT, OF_RIGHT), strict=True)
        side = next((each for each, kinds in kept if tree.kind in kinds and name in each.columns), None)
        return None if side is None or name not in tree.columns else _origin(side, name)
    if isinstance(tree, Filter | Distinct | Call) or (
        isinstance(tree, Sort) and tree.limit is None and not tree.offset
    ):
        return _origin(tree.input, name) if name in tree.input.columns else None
    if isinstance(tree, Project | Aggregate):
        if isinstance(tree, Aggregate) and tree.sets is not None:
            return None
        if any(each.find(exp.Window) for each in tree.expressions):
            return None
        made = dict(tree.items if isinstance(tree, Project) else tree.keys).get(name)
        return _origin(tree.input, made.name) if isinstance(made, exp.Column) else None
    return None


# --- nothing is asked twice ---


@pytest.fixture(scope="module")
def in_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Placement, Connected]]:
    """TPC-H at scale 0.01, as in the placement facts_apart, in two files."""
    urls = differential.files(tmp_path_factory.mktemp("tpch"))
    placement = {name: {"pg": "duck", "maria": "lite"}[alias] for name, alias in PLACEMENTS["facts_apart"].items()}
    load(placement, urls, smallest())
    with Connected(urls, overtaking=None) as connected:
        yield placement, connected


def asked_twice(sql: str, federation: Connected, sent: list[tuple[str, str]]) -> list[str]:
    """Statements that the query asks more than once, those that differ only in the names of their columns too."""
    coordinator = federation.lab.coordinator
    planned = coordinator.plan(sql)  # which may ask for samples
    sent.clear()
    running = coordinator.runner.run(planned, cancellation=Cancellation())
    with running.stream as stream:
        for _ in stream:
            continue
    asked = [(alias, text) for alias, text in sent if not text.endswith("LIMIT 0")]  # those ask for types, not for rows
    twice = [f"{alias}: {text}" for alias, text in sorted(set(asked)) if asked.count((alias, text)) > 1]
    assert sorted(asked) == sorted(_measured(running.execution))
    seen = set()
    for each in running.execution.measurements():
        if isinstance(each.key, Remote):
            items = tuple((f"c{at}", column(name)) for at, name in enumerate(each.key.columns))
            dialect = coordinator.catalog.sources[each.key.source].dialect
            text = dialects.statement(Project(each.key.tree, items), dialect).sql
            if (each.attempt, each.key.source, text) in seen:
                twice.append(f"{each.key.source}: {text}")
            seen.add((each.attempt, each.key.source, text))
    return twice


def _measured(execution: Execution) -> Iterator[tuple[str, str]]:
    for each in execution.measurements():
        if isinstance(each.key, Remote):
            yield from ((each.key.source, text) for text in each.statements if not text.endswith("LIMIT 0"))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(alias, SQL) of every query that a source is asked."""
    actual: list[tuple[str, str]] = []
    query = DriverSource.query

    def recorded(self: DriverSource, sql: str, *arguments: object, **options: object) -> object:
        actual.append((self.alias, sql))
        return query(self, sql, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(DriverSource, "query", recorded)
    return actual


def test_generated_queries_ask_nothing_twice(generated: Connected, sent: list[tuple[str, str]]) -> None:
    actual, ran = [], 0
    for seed in RUN:
        try:
            actual += [f"seed {seed}: {each}" for each in asked_twice(query(seed), generated, sent)]
        except DaiError:
            continue
        ran += 1
    assert ran > len(RUN) / 2
    assert not actual, "\n".join(actual)


@pytest.mark.parametrize("name", QUERIES)
def test_tpch_asks_nothing_twice(name: str, in_files: tuple[Placement, Connected], sent: list[tuple[str, str]]) -> None:
    placement, federation = in_files
    assert not asked_twice(qualified(QUERIES[name], placement), federation, sent)


def test_a_common_subplan_is_asked_once(generated: Connected, sent: list[tuple[str, str]]) -> None:
    """The same table twice, under names of its own each time."""
    sql = "SELECT a.k, b.k FROM pg.item a JOIN maria.event e ON a.id = e.id JOIN pg.item b ON b.id = e.k"
    tree = generated.lab.coordinator.plan(sql).tree
    assert [each.source for each in remotes(tree)].count("pg") == 2
    assert not asked_twice(sql, generated, sent)
    assert [alias for alias, _ in sent].count("pg") == 1
