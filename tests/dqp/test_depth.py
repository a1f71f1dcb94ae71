"""Queries that programs write: long and deep ones have an answer, hopeless ones an error, and no process ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

import dqp
from dai.drivers import driver_for
from dai.errors import CancelledError, LimitError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra import operators
from dqp.algebra.operators import Names
from dqp.algebra.trees import everywhere, identifiers, used, walk_deep
from dqp.binding.binder import bind
from dqp.catalog.catalog import Catalog
from dqp.interfaces.lab import Lab
from dqp.planning.context import Context, Options, nested_plans
from dqp.planning.costing.cost import Estimator
from dqp.planning.costing.selectivity import joined
from dqp.planning.rules import join_order, joins, optimise
from dqp.planning.semijoins import program
from tests.dqp.catalogs import table_of
from tests.thoroughness import part

OTHERS = ("pg", "maria", "duck")
"""SQLite's parser holds least, so that each form is asked of SQLite, and of one of these: a part of them a commit."""
IDS = list(range(20))


@pytest.fixture(scope="module")
def lab(postgres_module_url: str, mariadb_module_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A table deep in each source: id from 0 to 19, s its text."""
    directory = tmp_path_factory.mktemp("depth")
    files = {"lite": f"sqlite:///{directory}/lite.db", "duck": f"duckdb:///{directory}/duck.db"}
    urls = {"pg": postgres_module_url, "maria": mariadb_module_url, **files}
    for url in urls.values():
        driver = driver_for(url)
        rows = pa.table({"id": IDS, "s": [f"n{each}" for each in IDS]})
        driver.load("deep", Stream.of(rows), cancellation=Cancellation(), create=True)
        driver.close()
    with dqp.connect({"sources": urls}) as lab:
        yield lab


def nested(before: str, inside: str, after: str, times: int) -> str:
    return before * times + inside + after * times


LONG = {
    "or": ("from T where " + " or ".join(f"(id = {each} and s <> 'n3')" for each in range(1000)), 19),
    "or of and": ("from T where " + " or ".join(f"id = {each} and s <> 'n3'" for each in range(300)), 19),
    "and": ("from T where " + " and ".join(f"id <> {each}" for each in range(5, 1005)), 5),
    "not or": ("from T where not (" + " or ".join(f"id = {each}" for each in range(5, 505)) + ")", 5),
    "or in the select list": ("select " + " or ".join(f"id = {each}" for each in range(1000)) + " from T", 20),
    "parentheses": (f"from T where {nested('(', 'id = 3', ')', 300)}", 1),
    "parentheses and operators": (f"select {nested('(', 'id', ' + 1)', 300)} from T", 20),
    "parentheses in FROM": (f"from {nested('(', 'T', ')', 100)}", 20),
    "union all": (" union all ".join(f"select id, s from T where id = {each % 20}" for each in range(300)), 300),
    "union": (" union ".join(f"select id, s from T where id = {each % 20}" for each in range(150)), 20),
    "union all of types": (
        " union all ".join(f"select id, {each}{'.5' * (each % 2)} from T" for each in range(30)),
        600,
    ),
    "in": (f"from T where id in ({', '.join(map(str, range(10, 10_010)))})", 10),
    "alternatives": (
        "select case " + " ".join(f"when id = {each} then {each}" for each in range(300)) + " end from T",
        20,
    ),
    "case in case": (f"select {nested('case when id = 1 then 2 else ', '0', ' end', 100)} from T", 20),
    "sum": ("select id" + " + 1" * 400 + " from T", 20),
    "texts": ("select s" + " || 'a'" * 300 + " from T", 20),
    "functions": (f"select {nested('abs(', 'id', ')', 150)} from T", 20),
    "subqueries": (f"select id from {nested('(select id from ', 'T', ')', 60)}", 20),
    "common table expressions": (
        "with c0 as (select id from T)"
        + "".join(f", c{each} as (select id from c{each - 1})" for each in range(1, 150))
        + " from c149",
        20,
    ),
}


@pytest.mark.parametrize(
    ("form", "source"),
    [*((form, "lite") for form in LONG), *part([(form, OTHERS[at % len(OTHERS)]) for at, form in enumerate(LONG)])],
)
def test_long_and_deep_queries_have_an_answer(lab: Lab, form: str, source: str) -> None:
    sql, rows = LONG[form]
    assert lab.sql(sql.replace("T", f"{source}.deep")).arrow().num_rows == rows


HOPELESS = {
    "subqueries": "select id from " + nested("(select id from ", "lite.deep", ")", 3000),
    "parentheses": "select " + nested("(", "1", ")", 30_000),
    "unions": " union all ".join(["select id from lite.deep"] * 3000),
    "common table expressions": "with c0 as (select 1 as x)"
    + "".join(f", c{each} as (select x from c{each - 1})" for each in range(1, 3000))
    + " from c2999",
    "sum": "select 1" + " + 1" * 5000,
    "lists": "select " + nested("[", "1", "]", 3000),
    "alternatives": "select " + nested("case when 1 = 1 then 1 else ", "0", " end", 900),
    "negations": "select " + nested("not (", "true", ")", 900),
    "casts": "select 1" + "::int" * 3000,
}


@pytest.mark.parametrize("form", HOPELESS)
def test_hopeless_queries_are_refused(lab: Lab, form: str) -> None:
    with pytest.raises(LimitError, match="nested too deeply"):
        lab.sql(HOPELESS[form]).arrow()
    assert lab.sql("select 1 as one").arrow().to_pylist() == [{"one": 1}]


TOO_LONG = {
    "or": "from lite.deep where " + " or ".join(f"id = {each}" for each in range(200_000)),
    "and": "from lite.deep where " + " and ".join(f"id <> {each}" for each in range(40_000)),
    "values": "from (values " + ", ".join(f"({each}, 'a')" for each in range(20_000)) + ")",
    "list": "select [" + ", ".join(map(str, range(40_000))) + "]",
    "in": f"from lite.deep where id in (null, {', '.join(map(str, range(40_000)))})",
    "comments": "from lite.deep where " + "/*(*/" * 40_000 + " id = 1",
}


@pytest.mark.parametrize("form", TOO_LONG)
def test_statements_too_long_for_a_parser_are_refused(lab: Lab, form: str) -> None:
    with pytest.raises(LimitError, match="more than 30,000 words, values, signs and comments") as caught:
        lab.sql(TOO_LONG[form]).arrow()
    assert "parameter" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("select " + nested("(", "1", ")", 501), "at character 508 more than 500 parentheses and brackets are open"),
        ("select " + nested("(", "1", ")", 100_000), "at character 508 more than 500"),
        ("select " + nested("[", "1", "]", 501), "at character 508 more than 500"),
        ("select " + nested("{'a':", "1", "}", 501), "more than 500 parentheses and brackets"),
        ("select a" + ".a" * 600, "more than 500 names are joined by dots"),
    ],
)
def test_what_is_too_deep_is_refused_at_its_place(lab: Lab, sql: str, what: str) -> None:
    with pytest.raises(LimitError, match=what):
        lab.sql(sql).arrow()


def test_brackets_within_texts_names_and_comments_count_for_nothing(lab: Lab) -> None:
    text = "([{." * 1000
    sql = f"""select '{text}' as a, "{text}" as b /* {text} */ from (select 1 as "{text}") -- {text}"""
    assert lab.sql(sql).arrow().to_pylist() == [{"a": text, "b": 1}]
    assert lab.sql("select $a as a", a="(." * 50_000).arrow().num_rows == 1
    assert lab.sql(f"select length('{'(. ' * 50_000}') as n").arrow().to_pylist() == [{"n": 150_000}]


@pytest.mark.parametrize("source", ["lite", *OTHERS])
@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("id", [each for each in range(-3, 40_000) if each % 2]),
        ("s", [f"n{each}" for each in range(40_000) if each % 2] + ["it''s", "in (1, 2)", ")"]),
    ],
    ids=["numbers", "texts"],
)
def test_long_lists_of_values_have_an_answer(
    lab: Lab, source: str, negated: bool, column: str, values: list[Any]
) -> None:
    """Written or as a parameter."""
    condition = f"{column} {'not ' * negated}in"
    written = ", ".join(str(each) if isinstance(each, int) else f"'{each}'" for each in values)
    expected = [each for each in IDS if (each % 2 == 1) != negated]
    for sql, given in (
        (f"select id from {source}.deep where {condition} ({written}) order by id", {}),
        (f"select id from {source}.deep where {condition} $values order by id", {"values": values}),
    ):
        assert lab.sql(sql, **given).arrow()["id"].to_pylist() == expected


def test_an_error_behind_a_long_list_is_told_at_its_place(lab: Lab) -> None:
    sql = f"select id from lite.deep where id in ({', '.join(map(str, range(40_000)))}) and nothing = 1"
    with pytest.raises(StatementError, match="no column 'nothing'") as caught:
        lab.sql(sql).arrow()
    assert caught.value.position == sql.index("nothing") + 1
    with pytest.raises(StatementError, match="DATE"):  # a constant would become one, 40,000 are a table
        lab.sql("select date '2024-01-01' in ({})".replace("{}", ", ".join(["'2024-01-01'"] * 40_000))).arrow()


@pytest.mark.parametrize("sql", ["select 1, {}", "select {} from lite.deep", "from (select {} x union all select {})"])
def test_lists_too_deep_to_travel_are_refused_by_their_column(lab: Lab, sql: str) -> None:
    for depth in (61, 200):
        with pytest.raises(
            LimitError, match=rf"Column \d of the answer has lists in lists, {depth} levels deep; the limit is 60"
        ):
            lab.sql(sql.replace("{}", nested("[", "1", "]", depth))).arrow()
    assert lab.sql(sql.replace("{}", nested("[", "1", "]", 60))).arrow().num_rows
    assert lab.sql(f"select len({nested('[', '1', ']', 200)})").arrow().num_rows == 1


@pytest.mark.parametrize("link", [" || 'a'", " + 1"])
def test_chains_of_thousands_are_refused(lab: Lab, link: str) -> None:
    with pytest.raises(LimitError, match="nested too deeply"):
        lab.sql(f"select id{link * 5000} from lite.deep").arrow()


def doubled(levels: int) -> str:
    """A query that reads one table 2 ** levels times."""
    queries = [
        f"a{each} as (select x.id from a{each - 1} x join a{each - 1} y using (id))" for each in range(1, levels + 1)
    ]
    return f"with a0 as (select id from lite.deep where id = 1), {', '.join(queries)} select id from a{levels}"


def test_joins_over_one_key_are_planned_with_little_work(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def counted(*given: Any) -> Any:
        tried.append(given[3])
        return joined(*given)

    monkeypatch.setattr(join_order, "joined", counted)
    lab.coordinator.plan(doubled(5))
    assert 31 <= len(tried) <= 2 * 32 * join_order.PARTNERS
    assert max(map(len, tried)) < 32
    assert lab.sql(doubled(5)).arrow().to_pylist() == [{"id": 1}]


def test_expressions_are_searched_for_subqueries_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighing a plan asks its operators for them again and again."""
    catalog = Catalog.of([table_of("lite", "deep", "id BIGINT, s VARCHAR", rows=20.0)], dialects={"lite": "sqlite"})
    tree = bind("select id from lite.deep where id = (select max(id) from lite.deep) order by s", catalog).tree
    tree = everywhere(tree, lambda each: each.copy())  # nothing of it is known yet
    searched = []
    search = operators.leaves

    def counted(expression: Any) -> Any:
        searched.append(expression)
        return search(expression)

    monkeypatch.setattr(operators, "leaves", counted)
    (first,) = nested_plans(tree)
    assert searched
    searched.clear()
    (again,) = nested_plans(tree)
    assert again is first
    assert first.plan in walk_deep(tree)
    assert not searched


def test_joins_of_more_inputs_than_are_weighed_are_ordered_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog.of(
        [
            *(table_of("lite", name, "id BIGINT, f BIGINT", rows=rows) for name, rows in (("c", 9.0), ("a", 500.0))),
            *(table_of("other", name, "id BIGINT", rows=rows) for name, rows in (("b", 20.0), ("d", 1.0))),
        ],
        dialects={"lite": "sqlite", "other": "sqlite"},
    )
    monkeypatch.setattr(joins, "MOST_ORDERED", 3)
    sql = "SELECT c.id, a.f, b.id, d.id FROM lite.c, other.b, other.d, lite.a WHERE a.id = c.id AND b.id = a.f"

    tree = bind(sql, catalog).tree
    context = Context(catalog, Estimator(), Names(identifiers(tree)), Options())
    assert tables_of(optimise(tree, context)) == "((b (a c)) d)"
    assert "a join of 4 inputs is ordered by their sizes alone" in context.remarks


def test_joins_of_very_many_inputs_nest_little() -> None:
    names = [f"t{each}" for each in range(160)]
    tables = [table_of("ab"[at % 2], each, "id BIGINT, f BIGINT", rows=10.0 + at) for at, each in enumerate(names)]
    catalog = Catalog.of(tables, dialects={"a": "sqlite", "b": "sqlite"})
    pairs = " AND ".join(f"{one}.f = {other}.id" for one, other in pairwise(names))
    places = ", ".join(f"{each.source}.{each.name}" for each in tables)
    tree = bind(f"SELECT count(*) FROM {places} WHERE {pairs}", catalog).tree
    context = Context(catalog, Estimator(), Names(identifiers(tree)), Options())

    def nested(tree: operators.Operator) -> int:
        inputs = (tree.tree,) if isinstance(tree, operators.Remote) else tree.inputs
        return max((nested(each) + (at > 0) for at, each in enumerate(inputs)), default=0)

    assert nested(optimise(tree, context)) <= join_order.NESTED + 8


def tables_of(tree: operators.Operator) -> str:
    """The tables in the order of their joins."""
    if isinstance(tree, operators.Scan):
        return tree.table.name
    inputs = (tree.tree,) if isinstance(tree, operators.Remote) else tree.inputs
    texts = [*map(tables_of, inputs)]
    return texts[0] if len(texts) == 1 else f"({' '.join(texts)})"


def test_many_columns_with_one_key_are_few_reductions(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{each}" for each in range(12)]
    catalog = Catalog.of(
        [table_of(f"s{name}", name, "id BIGINT", rows=1e6) for name in names],
        dialects={f"s{name}": "sqlite" for name in names},
    )
    sql = f"SELECT count(*) FROM {', '.join(f's{each}.{each}' for each in names)} WHERE "
    tree = bind(sql + " AND ".join(f"{each}.id = t0.id" for each in names[1:]), catalog).tree
    context = Context(catalog, Estimator(), Names(identifiers(tree)), Options())
    tree = optimise(tree, context)
    assert len(program.candidates(tree, context)) == 12 * 11
    monkeypatch.setattr(program, "MOST_ALIKE", 2)
    few = program.candidates(tree, context)
    assert 11 <= len(few) <= 2 * 2 * 2 * 11
    joined_by = {name for join in walk_deep(tree) if isinstance(join, operators.Join) for name in used(join.condition)}
    assert joined_by <= {name for each in few for pair in each.pairs for name in pair}


@pytest.mark.parametrize("levels", [12, 40])
def test_a_query_that_doubles_without_an_end_is_refused(lab: Lab, levels: int) -> None:
    with pytest.raises(LimitError, match="more than 2,000 tables") as caught:
        lab.sql(doubled(levels)).arrow()
    assert "upload" in str(caught.value.hint)


def test_planning_notices_a_cancellation(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    cancellation = Cancellation()
    tried = []

    def cancelling(*given: Any) -> Any:
        cancellation.cancel()
        tried.append(given)
        return joined(*given)

    with monkeypatch.context() as changed:
        changed.setattr(join_order, "joined", cancelling)
        with pytest.raises(CancelledError):
            lab.coordinator.query(doubled(5) + " order by id", cancellation=cancellation)
    assert len(tried) <= 32 * join_order.PARTNERS
    stream = lab.coordinator.query(doubled(5) + " order by id", cancellation=Cancellation())
    assert stream.table().to_pylist() == [{"id": 1}]


FRUGAL = """
import resource
import dqp
from dai.errors import LimitError
from tests.dqp.test_depth import TOO_LONG, nested

lab = dqp.connect({"sources": {}})
lab.sql("select 1").arrow()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for sql in (*TOO_LONG.values(), "select " + nested("(", "1", ")", 1_000_000), "select a" + ".a" * 100_000):
    try:
        lab.sql(sql.replace("lite.deep", "range(3) t(id)")).arrow()
    except LimitError:
        pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_refused_statement_takes_no_memory() -> None:
    """The parsers would take gigabytes."""
    ended = subprocess.run([sys.executable, "-c", FRUGAL], capture_output=True, text=True, check=True, timeout=400)
    assert int(ended.stdout) < 100


SCRIPT = """
import threading
import dqp
from dai.errors import LimitError
from tests.dqp.test_depth import HOPELESS

lab = dqp.connect({"sources": {}})
refused = []

def ask():
    for sql in HOPELESS.values():
        try:
            lab.sql(sql.replace("lite.deep", "range(3) t(id)")).arrow()
        except LimitError:
            refused.append(sql)

threads = [threading.Thread(target=ask) for _ in range(2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(len(refused))
"""


def test_a_process_survives_them_in_any_thread() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, str(2 * len(HOPELESS))), ended.stderr


@pytest.mark.parametrize(
    "by",
    [
        "cube (id, id + 1, id + 2, id + 3, id + 4, id + 5, id + 6, id + 7, id + 8)",
        "cube (id, id + 1, id + 2, id + 3, id + 4), cube (id + 5, id + 6, id + 7, id + 8)",
        f"grouping sets ({', '.join(['()', '(id)'] * 130)})",
    ],
)
def test_grouping_sets_are_few(lab: Lab, by: str) -> None:
    """Twelve keys of a CUBE took nine gigabytes."""
    with pytest.raises(LimitError, match="grouping sets"):
        lab.sql(f"select count(*) from lite.deep group by {by}").arrow()
    assert lab.sql("select count(*) from lite.deep group by rollup (id)").arrow().num_rows == 21
