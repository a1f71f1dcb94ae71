"""What stands more than once in a plan is computed once, and gives what computing it each time gives."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

import dqp
from dqp.algebra.keys import KeyTable, in_table
from dqp.algebra.operators import Aggregate, Call, Filter, Join, Nested, Operator, Project, Sort, column
from dqp.algebra.shapes import shape_of_rows
from dqp.algebra.trees import walk
from dqp.catalog.sources.local import DriverSource
from dqp.execution.engine import Engine
from dqp.interfaces.lab import Lab
from dqp.planning.common_subtrees import Sharing
from tests.dqp.doubles import numbers, remote

ROWS = [(number, number % 7, number * number % 13) for number in range(200)]
SOURCES = ("a", "b")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory: Path = tmp_path_factory.mktemp("sharing")
    for alias in SOURCES:
        with contextlib.closing(sqlite3.connect(directory / alias)) as connection:
            connection.execute("CREATE TABLE t (id integer PRIMARY KEY, k integer, v integer)")
            connection.executemany("INSERT INTO t VALUES (?, ?, ?)", ROWS)
            connection.commit()
    with dqp.connect({"sources": {alias: f"sqlite:///{directory / alias}" for alias in SOURCES}}) as lab:
        yield lab


@pytest.fixture(scope="module")
def whole() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        for alias in SOURCES:
            connection.execute(f"CREATE SCHEMA {alias}")
            connection.execute(f"CREATE TABLE {alias}.t (id BIGINT, k BIGINT, v BIGINT)")
            connection.executemany(f"INSERT INTO {alias}.t VALUES (?, ?, ?)", ROWS)
        yield connection


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that are asked for rows."""
    actual: list[str] = []
    query = DriverSource.query

    def counted(self: DriverSource, sql: str, *arguments: Any, **options: Any) -> Any:
        actual.append(self.alias)
        return query(self, sql, *arguments, **options)

    monkeypatch.setattr(DriverSource, "query", counted)
    return actual


JOINED = "SELECT x.k AS k, y.v AS v, x.id AS id FROM a.t x JOIN b.t y ON x.id = y.id"
REVENUE = "SELECT x.k AS k, sum(y.v) AS s, count(*) AS n FROM a.t x JOIN b.t y ON x.id = y.id GROUP BY x.k"


@pytest.mark.parametrize(
    ("sql", "computed"),
    [
        pytest.param(f"WITH r AS ({REVENUE}) SELECT k, s FROM r WHERE s = (SELECT max(s) FROM r)", 1, id="TPC-H 15"),
        pytest.param(f"WITH r AS ({REVENUE}) SELECT p.k, q.s FROM r p JOIN r q ON p.k = q.k + 1", 1, id="columns"),
        pytest.param(
            f"WITH r AS ({JOINED}) SELECT (SELECT count(*) FROM r), (SELECT sum(v) FROM r), (SELECT max(k + v) FROM r)",
            1,
            id="three uses of other columns",
        ),
        pytest.param(
            f"SELECT p.k, q.n FROM ({REVENUE}) p LEFT JOIN ({REVENUE}) q ON p.s = q.s AND p.k <> q.k",
            1,
            id="written twice",
        ),
        pytest.param(
            f"WITH r AS ({REVENUE}), m AS (SELECT max(s) AS top FROM r), j AS (SELECT r.k, r.s FROM r, m WHERE s = top)"
            " SELECT (SELECT sum(k) FROM j), (SELECT count(*) FROM (SELECT DISTINCT s FROM j)),"
            " (SELECT count(*) FROM r)",
            2,
            id="one in another",
        ),
        pytest.param(
            f"WITH r AS ({JOINED}) SELECT k FROM r WHERE v = 3 UNION ALL SELECT k FROM r WHERE v = 3", 1, id="union"
        ),
        pytest.param(
            "WITH r AS (SELECT DISTINCT x.k, y.v FROM a.t x JOIN b.t y ON x.id = y.id)"
            " SELECT count(*) FROM r p WHERE p.v > (SELECT avg(q.v) FROM r q)",
            1,
            id="distinct",
        ),
        pytest.param(
            "WITH r AS (SELECT x.k, y.v, rank() OVER (PARTITION BY x.k ORDER BY y.v, x.id) AS n"
            " FROM a.t x JOIN b.t y ON x.id = y.id)"
            " SELECT p.k, p.v, q.v FROM r p JOIN r q ON p.k = q.k AND p.n = 1 AND q.n = 2",
            1,
            id="window",
        ),
    ],
)
def test_equal_subtrees_are_computed_once(
    lab: Lab, whole: duckdb.DuckDBPyConnection, sent: list[str], sql: str, computed: int
) -> None:
    lab.explain(sql)
    sent.clear()  # what statistics needed
    rows = _rows(lab.sql(sql).arrow())
    assert sorted(sent) == ["a", "b"]
    assert rows == _rows(whole.sql(sql).to_arrow_table()) != []
    assert lab.explain(sql).text.count("computed once for") == computed
    explained = lab.explain(sql, analyze=True).text
    assert explained.count("AS MATERIALIZED") == explained.count("computed once for") == computed


def _rows(table: pa.Table) -> list[tuple[int | None, ...]]:
    columns = [[None if each is None else int(each) for each in one.to_pylist()] for one in table.columns]
    return sorted(zip(*columns, strict=True), key=str)


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(
            f"WITH r AS ({JOINED}) SELECT (SELECT sum(v) FROM r WHERE k = 1), (SELECT sum(v) FROM r WHERE k = 2)",
            id="a filter of each use stays in its statements",
        ),
        pytest.param(
            f"SELECT * FROM ({REVENUE}) p, (SELECT count(*) FROM ({JOINED}) WHERE k > 3) q", id="another tree"
        ),
        pytest.param(
            "SELECT (SELECT count(*) FROM a.t x JOIN b.t y ON x.id = y.id),"
            " (SELECT count(*) FROM a.t x LEFT JOIN b.t y ON x.id = y.id AND y.k = 1)",
            id="another join",
        ),
        pytest.param(
            "SELECT (SELECT count(x.k) FROM a.t x JOIN b.t y ON x.id = y.v),"
            " (SELECT count(x.k) FROM a.t x JOIN b.t y ON x.v = y.id)",
            id="the other way round",
        ),
        pytest.param(
            "SELECT (SELECT len(list(k)) FROM (SELECT k FROM a.t UNION ALL SELECT k FROM b.t)),"
            " (SELECT len(list(k)) FROM (SELECT k FROM a.t UNION SELECT k FROM b.t))",
            id="another union",
        ),
    ],
)
def test_what_differs_is_computed_apart(lab: Lab, whole: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert _rows(lab.sql(sql).arrow()) == _rows(whole.sql(sql).to_arrow_table())
    assert "computed once for" not in lab.explain(sql).text
    assert '"shared ' not in lab.explain(sql, analyze=True).text


def test_other_rows_of_one_order(lab: Lab, whole: duckdb.DuckDBPyConnection) -> None:
    ordered = "SELECT x.id AS v FROM a.t x JOIN b.t y ON x.id = y.id ORDER BY v LIMIT 2"
    sql = f"SELECT (SELECT sum(v) FROM ({ordered})), (SELECT sum(v) FROM ({ordered} OFFSET 1))"
    rows = _rows(lab.sql(sql).arrow())
    assert rows == _rows(whole.sql(sql).to_arrow_table())
    assert rows[0][0] != rows[0][1]


def test_volatile_functions_are_called_as_often_as_they_are_written(lab: Lab) -> None:
    drawn = "SELECT x.id, random() AS n FROM a.t x JOIN b.t y ON x.id = y.id"
    (apart,) = lab.sql(f"SELECT count(*) AS c FROM ({drawn}) p JOIN ({drawn}) q ON p.id = q.id AND p.n = q.n").arrow()[
        0
    ]
    assert apart.as_py() == 0
    # DuckDB's own rule for a name that is used twice
    (named,) = lab.sql(
        f"WITH r AS MATERIALIZED ({drawn}) SELECT count(*) FROM r p JOIN r q ON p.id = q.id AND p.n = q.n"
    ).arrow()[0]
    assert named.as_py() == len(ROWS)


# --- trees


def _equal(one: str, other: str) -> exp.Expression:
    return exp.EQ(this=column(one), expression=column(other))


def _joined(prefix: str, kind: Any = "inner") -> Operator:
    left, right = remote(numbers("a"), f"{prefix}a_"), remote(numbers("b"), f"{prefix}b_")
    return Join(left, right, kind, _equal(f"{prefix}a_id", f"{prefix}b_id"))


def _summed(prefix: str, of: str, below: Operator | None = None) -> Operator:
    made = ((f"{prefix}s", exp.Sum(this=column(f"{prefix}{of}"))),)
    return Aggregate(below or _joined(prefix), ((f"{prefix}k", column(f"{prefix}a_v")),), made)


def _both(left: Operator, right: Operator) -> Operator:
    return Join(left, right, "inner", None)


def _tables(tree: Operator) -> list[Operator]:
    return [each.tree for each in Sharing(tree).tables]


def test_the_largest_equal_trees_are_shared() -> None:
    left, right = _summed("x", "b_v"), _summed("y", "b_v")
    sharing = Sharing(_both(left, right))
    assert [each.tree for each in sharing.tables] == [left]
    assert sharing(left) == ("shared 1", {"xk": "xk", "xs": "xs"})
    assert sharing(right) == ("shared 1", {"yk": "xk", "ys": "xs"})


def test_below_what_differs_the_equal_trees_are_shared() -> None:
    left, right = _summed("x", "b_v"), _summed("y", "b_id")
    assert _tables(_both(left, right)) == [left.inputs[0]]


def test_the_sides_of_a_join_are_not_taken_for_each_other() -> None:
    def itself(prefix: str, of: str) -> Operator:
        one, other = remote(numbers("a"), f"{prefix}a_"), remote(numbers("a"), f"{prefix}b_")
        joined = Join(one, other, "inner", _equal(f"{prefix}a_id", f"{prefix}b_v"))
        return Aggregate(joined, (), ((f"{prefix}s", exp.Max(this=column(f"{prefix}{of}_v"))),))

    left, right = itself("x", "a"), itself("y", "b")
    assert _tables(_both(left, right)) == [left.inputs[0]]
    assert len(_tables(_both(itself("x", "a"), itself("y", "a")))) == 1


def test_literals_are_told_apart_by_their_case() -> None:
    def filtered(prefix: str, text: exp.Expression) -> Operator:
        condition = exp.EQ(
            this=exp.Cast(this=column(f"{prefix}b_v"), to=exp.DataType.build("VARCHAR")), expression=text
        )
        return _renamed(Filter(_joined(prefix), condition))

    def shared(one: str, other: str) -> set[type[Operator]]:
        tree = _both(filtered("x", exp.Literal.string(one)), filtered("y", exp.Literal.string(other)))
        return {type(node) for each in _tables(tree) for node in walk(each)}

    assert Filter not in shared("a", "A")
    assert Filter in shared("a", "a")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("in (1, 2, 3)", "in (1, 2, 3)", True),
        ("in (1, 2, 3)", "in (1, 2, 4)", False),
        ("in (1, 2, 3)", "in ('1', 2, 3)", False),
        ("in ('a', 'b')", "in ('a,b')", False),
        ("in (date '2000-01-01')", "in (date '2000-01-01')", True),
        ("in (date '2000-01-01')", "in (timestamp '2000-01-01')", False),
        ("in (cast(1 as decimal(3, 1)), 2)", "in (cast(1 as decimal(4, 2)), 2)", False),
        ("in (cast(1e2 as varchar))", "in (cast('1e2' as varchar))", False),
        ("in (cast('a' as mood))", "in (cast('a' as humor))", False),
        ("in (upper('a'))", "in (upper('a'))", True),
        ("in (upper('a'))", "in (upper('A'))", False),
    ],
)
def test_lists_are_told_apart_by_their_values(one: str, other: str, equal: bool) -> None:
    def filtered(prefix: str, listed: str) -> Operator:
        condition = sqlglot.parse_one(f"{prefix}b_v {listed}", dialect="duckdb")
        return _renamed(Filter(_joined(prefix), condition))

    tree = _both(filtered("x", one), filtered("y", other))
    assert any(isinstance(node, Filter) for each in _tables(tree) for node in walk(each)) is equal
    assert (shape_of_rows(filtered("x", one)) == shape_of_rows(filtered("x", other))) is equal


def _renamed(tree: Operator) -> Operator:
    return Project(tree, tuple((f"{each} again", column(each)) for each in tree.columns))


def test_calls_of_operations_are_never_shared() -> None:
    def called(prefix: str) -> Operator:
        return Call(_joined(prefix), f"{prefix}r", "f", (column(f"{prefix}a_v"),))

    tables = _tables(_both(Sort(called("x"), (), 5), Sort(called("y"), (), 5)))
    assert not any(isinstance(node, Call) for each in tables for node in (each, *each.inputs))


def test_what_depends_on_the_query_around_it_is_not_shared() -> None:
    def correlated(prefix: str) -> exp.Expression:
        plan = Filter(_joined(prefix), _equal(f"{prefix}a_v", "o_v"))
        summed = Aggregate(plan, (), ((f"{prefix}s", exp.Sum(this=column(f"{prefix}b_v"))),))
        return Nested(kind="scalar", plan=summed)

    outer = remote(numbers("c"), "o_")
    tree = Project(outer, (("one", correlated("x")), ("two", correlated("y"))))
    assert [type(each) for each in _tables(tree)] == [Join]


def test_rows_that_are_far_more_than_what_they_are_made_of_are_not_kept() -> None:
    def crossed(prefix: str) -> Operator:
        one, other = remote(numbers("a", 1e5), f"{prefix}a_"), remote(numbers("b", 1e5), f"{prefix}b_")
        return Aggregate(Join(one, other, "inner", None), (), ((f"{prefix}n", exp.Max(this=column(f"{prefix}b_v"))),))

    def least(prefix: str) -> Operator:
        made = crossed(prefix)
        return Aggregate(made.inputs[0], (), ((f"{prefix}n", exp.Min(this=column(f"{prefix}b_v"))),))

    assert _tables(_both(crossed("x"), least("y"))) == []
    assert [type(each) for each in _tables(_both(crossed("x"), crossed("y")))] == [Aggregate]


def test_equal_statements_are_sent_once_when_one_of_them_is_read_first(
    lab: Lab, whole: duckdb.DuckDBPyConnection, sent: list[str]
) -> None:
    """The few rows of ``a`` become filters of ``b`` in both uses: read as a build side, and as an input."""
    few = "SELECT y.v AS v, x.k AS k FROM (SELECT * FROM a.t WHERE v = 1) x JOIN b.t y ON x.id = y.id"
    sql = f"SELECT (SELECT sum(v) FROM ({few})), (SELECT max(k) FROM ({few})), (SELECT min(v + k) FROM ({few}))"
    assert _rows(lab.sql(sql).arrow()) == _rows(whole.sql(sql).to_arrow_table())
    assert sorted(sent) == ["a", "b"]


def test_equal_tables_of_keys_are_one() -> None:
    def among(prefix: str, *keys: int) -> Operator:
        table = KeyTable(f"keys of {prefix}", pa.table({"k1": pa.array(keys, pa.int64())}))
        return Aggregate(
            Filter(remote(numbers("a"), f"{prefix}a_"), in_table([f"{prefix}a_v"], table, 0.1)),
            ((f"{prefix}k", column(f"{prefix}a_v")),),
        )

    assert len(_tables(_both(among("x", 1, 2), among("y", 1, 2)))) == 1
    assert not _tables(_both(among("x", 1, 2), among("y", 1, 3)))


@pytest.mark.parametrize(
    ("sql", "choosing"),
    [
        ("SELECT x.id, y.v FROM a.t x, b.t y WHERE x.id = y.id", False),
        ("SELECT x.id, unnest([y.v]) FROM a.t x, b.t y WHERE x.id = y.id ORDER BY ALL", True),
    ],
)
def test_duckdb_orders_the_joins_of_what_it_gets_as_it_is_written(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, sql: str, choosing: bool
) -> None:
    asked: list[bool] = []
    run = Engine.run

    def recorded(engine: Engine, *arguments: Any, choosing: bool = False, **more: Any) -> Any:
        asked.append(choosing)
        return run(engine, *arguments, choosing=choosing, **more)

    monkeypatch.setattr(Engine, "run", recorded)
    assert lab.sql(sql).arrow().num_rows == len(ROWS)
    assert asked[0] is choosing


TWICE = "(SELECT x.k AS g, x.k AS h FROM a.t x JOIN b.t y ON x.id = y.id)"
ROLLED = f"SELECT g, h, count(*) AS n, GROUPING(h) AS u FROM {TWICE} GROUP BY ROLLUP (g, h)"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT g, h, count(*), GROUPING(g), GROUPING(h) FROM {TWICE} GROUP BY CUBE (g, h)",
        f"SELECT g, h, count(*) FROM {TWICE} GROUP BY GROUPING SETS ((h), (g, h), ())",
        f"WITH r AS ({ROLLED}) SELECT p.g, q.h, p.n, q.u FROM r p JOIN r q ON p.n = q.n",
        f"SELECT g, n, u FROM ({ROLLED}) UNION ALL SELECT h, n, u FROM ({ROLLED})",
    ],
)
def test_keys_with_the_same_values_are_two_keys_of_grouping_sets(
    lab: Lab, whole: duckdb.DuckDBPyConnection, sql: str
) -> None:
    assert _rows(lab.sql(sql).arrow()) == _rows(whole.sql(sql).to_arrow_table()) != []


@pytest.mark.parametrize(("kind", "rows"), [("SEMI", len(ROWS)), ("ANTI", 0)])
def test_a_semi_join_whose_condition_is_on_one_side(lab: Lab, kind: str, rows: int) -> None:
    """DuckDB 2.0 answers it as an inner join, if it uses statistics of constants."""
    right = "SELECT trim(CAST(y.k AS VARCHAR)) AS o FROM b.t x JOIN b.t y ON x.id < 3 AND y.id < 3"
    sql = (
        f"SELECT 1 FROM (VALUES ((SELECT max('x') FROM a.t))) v(w) {kind} JOIN ({right}) q ON q.o <= q.o"
        " LEFT JOIN (SELECT id FROM b.t WHERE id IN (SELECT id FROM a.t) OR k IS NULL) e ON TRUE"
    )
    assert lab.sql(sql).arrow().num_rows == rows
