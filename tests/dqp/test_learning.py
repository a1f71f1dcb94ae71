"""What a query that ended teaches the next plan: rows and seconds by the shape of a statement."""

from dataclasses import replace

import pyarrow as pa
import pytest
from sqlglot import exp, parse_one

from dqp.algebra.keys import KeyTable, in_numbers, in_table, reducing
from dqp.algebra.operators import Aggregate, Filter, Join, Names, Operator, Project, Remote, Scan, column
from dqp.algebra.shapes import shape_of_rows, shape_of_work
from dqp.algebra.table import Table
from dqp.catalog.statistics import learned as store
from dqp.catalog.statistics.learned import Learned
from dqp.execution.execution import Measurement
from dqp.planning.alternatives import Overtaking
from dqp.planning.context import Context
from dqp.planning.costing.cost import Estimator
from dqp.planning.costing.elapsed import elapsed
from dqp.planning.learning import LEAST_SECONDS, TWICE, learn
from dqp.planning.rules.subtrees import push_subtrees
from tests.dqp.doubles import Double, catalog_of, numbers, remote

LIFETIME = 100.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def scan(table: Table, prefix: str = "") -> Scan:
    return Scan(table, ((f"{prefix}id", "id"), (f"{prefix}v", "v")))


def filtered(table: Table, condition: str, prefix: str = "") -> Filter:
    return Filter(scan(table, prefix), parse_one(condition, dialect="duckdb"))


def joined(table: Table) -> Operator:
    """Rows of a table counted with those of the same that are later: one statement."""
    later = exp.GT(this=column("bv"), expression=column("av"))
    join = Join(scan(table, "a"), scan(table, "b"), "anti", later)
    return Aggregate(join, (), (("n", exp.Count(this=exp.Star(), big_int=True)),))


def keyed(condition: exp.Expression) -> Filter:
    return Filter(scan(TABLE), condition)


def key_table(*keys: int) -> KeyTable:
    return KeyTable("keys", pa.table({"k": keys}))


TABLE = numbers("pg", 100_000.0)
OTHER = numbers("maria", 100_000.0)


@pytest.mark.parametrize(
    ("one", "other", "rows", "work"),
    [
        (filtered(TABLE, '"v" = 1'), filtered(TABLE, '"v" = 1'), True, True),
        (filtered(TABLE, '"v" = 1'), filtered(TABLE, '"xv" = 1', "x"), True, True),
        (filtered(TABLE, '"v" = 1'), filtered(TABLE, '"v" = 2'), False, True),
        (filtered(TABLE, '"v" = 1 AND "id" > 2'), filtered(TABLE, '"id" > 2 AND "v" = 1'), True, True),
        (filtered(TABLE, '"v" IN (1, 2)'), filtered(TABLE, '"v" IN (1, 2, 3)'), False, True),
        (filtered(TABLE, '"v" = 1'), filtered(TABLE, '"id" = 1'), False, False),
        (filtered(TABLE, '"v" = 1'), filtered(OTHER, '"v" = 1'), False, False),
        (filtered(TABLE, '"v" = 1'), Remote("pg", filtered(TABLE, '"v" = 1')), True, True),
        (filtered(TABLE, '"v" = 1'), Project(filtered(TABLE, '"v" = 1'), (("x", column("v")),)), True, True),
        (
            filtered(TABLE, '"v" = 1'),
            Project(filtered(TABLE, '"v" = 1'), (("x", parse_one('"v" + 1')),)),
            True,
            False,
        ),
        (
            Filter(Project(scan(TABLE), (("x", column("v")),)), parse_one('"x" = 1')),
            filtered(TABLE, '"v" = 1'),
            True,
            True,
        ),
        (keyed(in_numbers("v", [1, 2], 0.1)), keyed(in_numbers("v", [1, 2], 0.2)), True, True),
        (keyed(in_numbers("v", [1, 2], 0.1)), keyed(in_numbers("v", [1, 3], 0.1)), False, True),
        (keyed(in_numbers("v", [1, 2], 0.1)), keyed(in_numbers("id", [1, 2], 0.1)), False, False),
        (keyed(in_table(["v"], key_table(1, 2), 0.1)), keyed(in_table(["v"], key_table(1, 2), 0.1)), True, True),
        (keyed(in_table(["v"], key_table(1, 2), 0.1)), keyed(in_table(["v"], key_table(1), 0.1)), False, True),
        (keyed(reducing(parse_one('"v" >= 7'))), scan(TABLE), False, True),
        (keyed(reducing(in_table(["v"], key_table(1), 0.1))), scan(TABLE), False, True),
        (Filter(filtered(TABLE, '"v" = 1'), reducing(parse_one('"id" < 7'))), filtered(TABLE, '"v" = 1'), False, True),
        (keyed(parse_one('"v" >= 7')), scan(TABLE), False, False),
    ],
)
def test_shapes(one: Operator, other: Operator, rows: bool, work: bool) -> None:
    assert (shape_of_rows(one) == shape_of_rows(other)) == rows
    assert (shape_of_work(one) == shape_of_work(other)) == work


def test_rows_and_work_are_apart() -> None:
    learned = Learned(LIFETIME)
    learned.learn_rows(scan(TABLE), 5.0)
    assert (learned.rows(scan(TABLE)), learned.seconds(scan(TABLE))) == (5.0, None)


def test_the_seconds_of_a_statement_are_those_with_the_keys_that_it_had() -> None:
    learned = Learned(LIFETIME)
    whole = Remote("pg", joined(TABLE))

    def seconds(left: float) -> float:
        return elapsed(whole, Estimator(learned), lambda _: "postgresql", lambda *_: 1, left)

    assert seconds(0.01) < 10.0
    learned.learn_seconds(whole.tree, 100.0)
    assert seconds(0.01) >= 100.0


def test_it_is_forgotten_after_the_lifetime() -> None:
    clock = Clock()
    learned = Learned(LIFETIME, clock)
    learned.learn_rows(scan(TABLE), 5.0)
    version = learned.version
    clock.now = LIFETIME - 1
    assert (learned.rows(scan(TABLE)), learned.version) == (5.0, version)
    clock.now = LIFETIME + 1
    assert learned.version != version
    assert learned.rows(scan(TABLE)) is None


def test_it_is_forgotten_with_the_statistics() -> None:
    learned = Learned(LIFETIME)
    learned.learn_rows(scan(TABLE), 5.0)
    assert learned.rows(scan(replace(TABLE, rows=7.0))) is None
    assert learned.rows(scan(TABLE)) is None


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST", 2)
    learned = Learned(LIFETIME)
    trees = [filtered(TABLE, f'"v" = {each}') for each in range(3)]
    for rows, each in enumerate(trees):
        learned.learn_rows(each, rows)
        learned.rows(trees[0])
    assert [learned.rows(each) for each in trees] == [0, None, 2]
    monkeypatch.setattr(store, "MOST_CHARACTERS", 10)
    learned.learn_rows(trees[1], 1)
    assert learned.rows(trees[1]) is None


def test_the_same_again_changes_no_plan() -> None:
    learned = Learned(LIFETIME)
    versions = []
    for seconds in (1.0, 1.2, 9.0):
        learned.learn_seconds(scan(TABLE), seconds)
        versions.append(learned.version)
    assert versions[0] == versions[1] != versions[2]


def planned(learned: Learned) -> Context:
    return Context(catalog_of(Double("pg", lambda *_: pytest.fail("asked"))), Estimator(learned), Names())


@pytest.mark.parametrize(
    ("state", "rows", "expected"),
    [("done", 70_000, 70_000), ("done", 120, 120), ("done", 6_000, None), ("stopped", 70_000, None)],
)
def test_rows(state: str, rows: int, expected: int | None) -> None:
    learned = Learned(LIFETIME)
    tree = Remote("pg", filtered(TABLE, '"v" = 1'))
    context = planned(learned)
    before = context.estimator.rows(tree)
    learn("q", 1.0, tree, context, [Measurement(tree, rows=rows, state=state)], [])
    assert Estimator(learned).rows(filtered(TABLE, '"xv" = 1', "x")) == (expected or before)


def test_a_table_has_as_many_rows_as_came() -> None:
    """Its keys, too; and at least as many as came of some of its rows."""
    learned = Learned(LIFETIME)
    tree = remote(TABLE)
    learn("q", 1.0, tree, planned(learned), [Measurement(tree, rows=5_000_000, state="done")], [])
    estimator = Estimator(learned)
    assert estimator.rows(scan(TABLE)) == 5_000_000
    assert estimator.of(scan(TABLE)).columns["id"].distinct == 5_000_000
    assert estimator.rows(filtered(TABLE, '"id" = 1')) == 1
    learned = Learned(LIFETIME)
    some = Remote("pg", filtered(TABLE, '"v" > 1'))
    learn("q", 1.0, some, planned(learned), [Measurement(some, rows=900_000, state="done")], [])
    assert Estimator(learned).rows(scan(TABLE)) == 900_000


def test_statements_that_no_plan_has_teach_nothing() -> None:
    learned = Learned(LIFETIME)
    learn(
        "q",
        1.0,
        remote(TABLE),
        planned(learned),
        [Measurement(Remote("pg", filtered(TABLE, '"v" = 1')), state="done", rows=9_000)],
        [],
    )
    assert not learned.version


def test_rows_that_make_a_query_slower_are_forgotten() -> None:
    """And not learned again from the query until the lifetime is over. Other queries' rows stay."""
    clock = Clock()
    learned = Learned(LIFETIME, clock)
    one, other = (Remote("pg", filtered(TABLE, f'"v" = {each}')) for each in (1, 2))
    known = []
    for query, seconds, tree in [("q", 1.0, one), ("r", 1.0, other), ("q", 1.2, one), ("q", 4.0, one), ("q", 1.0, one)]:
        learn(query, seconds, tree, planned(learned), [Measurement(tree, rows=70_000, state="done")], [])
        known.append((learned.rows(one.tree), learned.rows(other.tree)))
    assert known == [(70_000, None), (70_000, 70_000), (70_000, 70_000), (None, 70_000), (None, 70_000)]
    clock.now = LIFETIME + 1
    learn("q", 1.0, one, planned(learned), [Measurement(one, rows=70_000, state="done")], [])
    assert learned.rows(one.tree) == 70_000


def test_a_short_query_teaches_nothing() -> None:
    learned = Learned(LIFETIME)
    tree = remote(TABLE)
    learn("q", LEAST_SECONDS / 2, tree, planned(learned), [Measurement(tree, rows=5_000_000, state="done")], [])
    assert not learned.version


def test_an_overtaken_statement_takes_longer_than_its_alternative() -> None:
    learned = Learned(LIFETIME)
    small = numbers("pg", 100.0, high=100)
    before = push_subtrees(joined(small), planned(learned))
    assert isinstance(before, Remote)
    learn("q", 1.0, before, planned(learned), [], [Overtaking(before, 0.001, 10.0, 1.0, won=True, first=1.5)])
    assert learned.seconds(before.tree) == 10.0 * TWICE
    context = planned(learned)
    assert not isinstance(push_subtrees(joined(small), context), Remote)
    assert context.estimator.corrections
    lost = Overtaking(before, 0.001, 10.0, 1.0, first=1.5)
    learn("q", 1.0, before, planned(other := Learned(LIFETIME)), [], [lost])
    assert not other.version
