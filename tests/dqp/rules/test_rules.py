"""Each rule by its fixtures; all rules together on queries of every kind: the answers stay what they were."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pytest

from dqp.binding.binder import bind
from dqp.catalog.catalog import Catalog
from dqp.planning.rules import RULES, optimise
from tests.dqp.generated import differential
from tests.dqp.generated.grammar import query
from tests.dqp.generated.oracle import Oracle
from tests.dqp.generated.repeats import repeated
from tests.dqp.rules.world import Case, bound, cases, catalog, registered, shown, written
from tests.thoroughness import part

CASES = list(cases())
BATCH = 25
QUERIES = """
select count(*), sum(b.amt), count(distinct s.name) from pg.item b join maria.event s on b.k = s.id
select count(*), sum(b.x) from maria.event b join pg.item s on b.k = s.id where b.ok
select substr(a.name,1,6) g, count(*), sum(a.amt) from pg.item a join maria.event b on a.id = b.id group by 1 order by 1
select e.k, avg(i.amt), avg(i.id), count(i.d), count(*) from maria.event e left join pg.item i on e.k = i.k group by e.k
select sum(t.amt), avg(t.s) from (select * from pg.item union all select * from duck.gauge) t group by t.k
select i.id, (select count(*) from maria.event e where e.k = i.k) n from pg.item i
select k, (select count(*) from (values ('1'), ('01'), ('2')) t(s) where t.s = i.k) n from (values (1), (2)) i(k)
select n.id, sum(coalesce(i.amt, 1)), count(i.d is null) from lite.note n left join pg.item i on n.s = i.s group by n.id
select i.id from pg.item i where i.k not in (select e.k from maria.event e)
select i.id from pg.item i where i.id not in (select e.id from maria.event e where e.ok = 1)
select i.id, e.d from pg.item i full join maria.event e on i.k = e.k where i.id > 3 and e.id < 20
select i.id, e.id from pg.item i left join maria.event e on i.k = e.k order by i.d, i.id, e.id limit 7
select i.id from pg.item i, lite.note n, duck.gauge g, maria.event e where i.k = n.k and n.k = g.k and g.k = e.k
""".strip().split("\n")
EDGES = [each for each in (Path(__file__).parent / "edges.sql").read_text().splitlines() if each.startswith("select")]


@pytest.fixture(scope="module")
def few() -> Catalog:
    """As ``over``, with as many rows as there are."""
    return catalog()


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as oracle:
        yield oracle


@pytest.fixture(scope="module")
def backwards() -> Iterator[Oracle]:
    with Oracle(backwards=True) as oracle:
        yield oracle


@pytest.fixture(scope="module")
def over() -> Catalog:
    return catalog(100_000)


def test_every_rule_has_a_fixture() -> None:
    assert {each.__name__ for each in RULES} == {case.rule.__name__ for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule.__name__}: {case.title}")
def test_fixture(case: Case, over: Catalog, oracle: Oracle) -> None:
    before, after = case.sides(over)
    assert shown(after) == case.after
    assert (shown(before) == case.after) == ("unchanged" in case.title)
    expected = oracle.answer(case.before)
    actual = oracle.answer(written(after)).rename_columns(expected.schema.names)
    difference = differential.compared(expected, actual, differential.order(case.before, expected.schema.names))
    assert difference is None, difference


def answers(sql: str, over: Catalog, oracle: Oracle) -> Sequence[str]:
    """Asserts that the rules together do not change the answer; what they remarked."""
    tree, context = bound(sql, over)
    registered(oracle, tree)
    expected = oracle.answer(written(tree))
    made = optimise(tree, context)
    rows = oracle.answer(written(made))
    assert made.columns == tree.columns
    difference = differential.compared(expected, rows, differential.order(sql, bind(sql, over).names))
    assert difference is None, f"{sql}\n{written(made)}\n{difference}"
    return context.remarks


@pytest.mark.parametrize("sql", [*QUERIES, *EDGES])
def test_all_rules(sql: str, over: Catalog, few: Catalog, oracle: Oracle) -> None:
    answers(sql, over, oracle)
    answers(sql, few, oracle)


@pytest.mark.parametrize("batch", part(range(4)))
def test_generated(batch: int, over: Catalog, oracle: Oracle, backwards: Oracle) -> None:
    """Of the generated queries, those with one answer, whatever the order of the rows: nearly all."""
    compared = 0
    for seed in range(batch * BATCH, batch * BATCH + BATCH):
        sql = query(seed)
        try:
            expected, again = oracle.answer(sql), backwards.answer(sql)
        except duckdb.Error:
            continue
        if differential.compared(expected, again) is None:
            answers(sql, over, oracle)
            compared += 1
    assert compared >= 20


@pytest.mark.parametrize("batch", part(range(4)))
def test_the_same_rows_several_times(batch: int, over: Catalog, oracle: Oracle) -> None:
    compared, changed = 0, 0
    for seed in range(batch * BATCH, batch * BATCH + BATCH):
        sql = repeated(random.Random(seed))
        try:
            oracle.answer(sql)
        except duckdb.Error:
            continue
        remarks = answers(sql, over, oracle)
        changed += any("in one pass" in each or "made once" in each for each in remarks)
        compared += 1
    assert compared >= 20
    assert changed >= 5
