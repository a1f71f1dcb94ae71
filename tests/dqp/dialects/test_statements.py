"""Whole statements: joins, set operations, subqueries, tuples at hand; what is refused, and why."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlglot import exp

import dqp
from dai.drivers import driver_for
from dai.errors import DaiError, DataError
from dai.streams.cancellation import Cancellation
from dqp.algebra.operators import (
    Aggregate,
    Call,
    Filter,
    Inline,
    Join,
    JoinKind,
    Nested,
    Operator,
    Project,
    Scan,
    SetKind,
    SetOperation,
    Sort,
    column,
)
from dqp.algebra.table import Column, Table
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.local import DriverSource
from dqp.settings import FederationSettings
from dqp.sql.dialects import NotPushed, statement
from tests.dqp.dialects.edges import Edge, differences, expression, kinds
from tests.thoroughness import examples

KINDS: tuple[JoinKind, ...] = ("inner", "left", "right", "full", "semi", "anti")
SETS: tuple[tuple[SetKind, bool], ...] = (("union", True), ("union", False), ("intersect", False), ("except", False))


def side(edges: Edge, prefix: str, condition: str = "true") -> Operator:
    """Some columns, whose identifiers begin with the prefix."""
    names = [
        each.name for each in edges.table.columns if each.name.startswith(("id", "g", "varchar", "bigint", "date"))
    ]
    scan = Scan(edges.table, tuple((prefix + name, name) for name in names))
    return scan if condition == "true" else Filter(scan, expression(condition))


@pytest.mark.parametrize("on", ["l_varchar_x = r_varchar_y", "l_bigint_x = r_bigint_y", "l_date_x = r_date_y"])
@pytest.mark.parametrize("kind", KINDS)
def test_joins(edges: Edge, kind: JoinKind, on: str) -> None:
    tree = Join(side(edges, "l_"), side(edges, "r_", "r_id > 4"), kind, expression(on))
    try:
        assert not differences(tree, edges)
    except NotPushed:
        assert (edges.dialect, kind) in {
            ("mariadb", "full"),
            ("mysql", "full"),
            ("sqlite", "full"),
            ("sqlite", "right"),
        }


def test_a_full_join_by_columns_of_one_side_is_not_pushed(edges: Edge) -> None:
    """PostgreSQL refuses it, although it compares two columns."""
    tree = Join(side(edges, "l_"), side(edges, "r_", "r_id > 4"), "full", expression("l_bigint_x = l_bigint_y"))
    with pytest.raises(NotPushed):
        statement(tree, edges.dialect)


@pytest.mark.parametrize(("descending", "nulls_first"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("name", ["l_id", "r_id"])
@pytest.mark.parametrize("kind", ["inner", "left", "right", "full"])
def test_the_order_of_what_a_join_leaves_empty(
    edges: Edge, kind: JoinKind, name: str, descending: bool, nulls_first: bool
) -> None:
    """``id`` is never NULL in its table, so the statement says where NULLs stand only if a join makes some."""
    join = Join(side(edges, "l_", "l_id < 9"), side(edges, "r_", "r_id > 4"), kind, expression("l_id = r_id"))
    by = exp.Ordered(this=column(name), desc=descending, nulls_first=nulls_first)
    tree = Project(Sort(join, (by,), 30), ((name, column(name)),))
    try:
        assert not differences(tree, edges, ordered=True)
    except NotPushed:
        assert edges.dialect in ("mariadb", "mysql", "sqlite")
        assert kind in ("right", "full")
    else:
        filled = kind in ("inner", "left" if name == "l_id" else "right")
        order = statement(tree, edges.dialect).sql.rpartition("ORDER BY")[2]
        assert filled == ("NULL" not in order) or edges.dialect in ("mariadb", "mysql")


def test_a_cross_join(edges: Edge) -> None:
    tree = Join(side(edges, "l_", "l_id < 3"), side(edges, "r_", "r_id < 2"))
    assert not differences(tree, edges)


def test_as_many_tables_as_the_source_joins(edges: Edge) -> None:
    """One more is refused where the source would refuse it."""
    most = {"mariadb": 61, "mysql": 61, "sqlite": 64}.get(edges.dialect, 70)

    tree: Operator = Filter(Scan(edges.table, (("id0", "id"),)), expression("id0 = 5"))
    for number in range(1, most):
        tree = Join(tree, Scan(edges.table, ((f"id{number}", "id"),)), "left", expression(f"id{number} = id0"))
    assert not differences(tree, edges)
    expected = edges.expected(tree)
    assert expected is not None
    assert expected.num_rows == 1
    more = Join(tree, Scan(edges.table, (("more", "id"),)), "left", expression("more = id0"))
    if most < 70:
        with pytest.raises(NotPushed, match=f"a join of more than {most} tables"):
            statement(more, edges.dialect)


@pytest.mark.parametrize(("kind", "all"), SETS)
@pytest.mark.parametrize("name", ["varchar", "bigint", "date"])
def test_set_operations(edges: Edge, kind: SetKind, all: bool, name: str) -> None:
    left = Project(side(edges, "l_", "l_id < 20"), (("a", column(f"l_{name}_x")),))
    right = Project(side(edges, "r_", "r_id > 10"), (("b", column(f"r_{name}_y")),))
    assert not differences(SetOperation(left, right, kind, all, ("c",)), edges)


CORRELATED: dict[str, Callable[[Operator], exp.Expression]] = {
    "exists": lambda plan: Nested(kind="exists", plan=plan),
    "not exists": lambda plan: exp.Not(this=Nested(kind="exists", plan=plan)),
    "scalar": lambda plan: exp.LT(
        this=Nested(kind="scalar", plan=Aggregate(plan, (), (("n", expression("count(*)")),))),
        expression=expression("cast(3 as bigint)"),
    ),
}


@pytest.mark.parametrize("form", CORRELATED)
@pytest.mark.parametrize("on", ["r_varchar_y = l_varchar_x", "r_bigint_y = l_bigint_x", "r_date_y < l_date_x"])
def test_correlated_subqueries(edges: Edge, form: str, on: str) -> None:
    inner = Filter(side(edges, "r_"), expression(on))
    tree = Filter(side(edges, "l_"), CORRELATED[form](inner))
    if edges.dialect in ("mariadb", "mysql") and "varchar" in on:
        with pytest.raises(NotPushed, match="depends on a text"):
            statement(tree, edges.dialect)
        return
    assert not differences(tree, edges)


DERIVED: dict[str, Callable[[Operator], Operator]] = {
    "an aggregate": lambda plan: Aggregate(plan, (), (("n", expression("count(*)")),)),
    "a union": lambda plan: SetOperation(
        Project(plan, (("a", column("r_bigint_y")),)),
        Project(Scan(plan.input.table, (("o_bigint_y", "bigint_y"),)), (("b", column("o_bigint_y")),)),  # type: ignore[attr-defined]
        "union",
        False,
        ("c",),
    ),
}


@pytest.mark.parametrize("form", DERIVED)
def test_derived_tables_that_depend_on_the_query_around_them(edges: Edge, form: str) -> None:
    inner = DERIVED[form](Filter(side(edges, "r_"), expression("r_bigint_y = l_bigint_x")))
    tree = Filter(side(edges, "l_"), Nested(kind="exists", plan=inner))
    if edges.dialect in ("mariadb", "mysql"):
        with pytest.raises(NotPushed, match="derived table that depends on the query around it"):
            statement(tree, edges.dialect)
        return
    assert not differences(tree, edges)


@pytest.mark.parametrize("name", ["varchar", "bigint", "date"])
@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("limited", [False, True])
def test_in_a_subquery(edges: Edge, name: str, negated: bool, limited: bool) -> None:
    condition = "r_id between 5 and 12" + ("" if negated and name == "date" else f" and r_{name}_y is not null")
    inner: Operator = Project(side(edges, "r_", condition), (("v", column(f"r_{name}_y")),))
    if limited:
        inner = Sort(inner, (exp.Ordered(this=column("v"), desc=False, nulls_first=False),), 3)
    membership: exp.Expression = Nested(kind="in", plan=inner, this=column(f"l_{name}_x"))
    tree = Filter(side(edges, "l_"), exp.Not(this=membership) if negated else membership)
    assert not differences(tree, edges)


@pytest.mark.parametrize("one", ["double", "decimal", "timestamp"])
@pytest.mark.parametrize("negated", [False, True])
def test_in_a_subquery_of_another_type(edges: Edge, one: str, negated: bool) -> None:
    """Among the values of a derived table, which a database may look into by keys of its columns' types."""
    known = kinds(edges.dialect)
    for other in ("bigint", "decimal", "double") if one != "timestamp" else ("date",):
        if one not in known or other not in known:
            continue
        ids = Filter(edges.scan("r_"), expression(f"r_{other}_y is not null and r_id < 20"))
        plain: Operator = Project(ids, (("v", column(f"r_{other}_y")),))
        largest = (("v", expression(f"max(r_{other}_y)")),)
        groups = Filter(Aggregate(ids, (("k", column("r_id")),), largest), expression("k > 0"))
        limited = Sort(plain, (exp.Ordered(this=column("v"), desc=False, nulls_first=False),), 6)
        for plan in (plain, limited, Project(groups, (("v", column("v")),))):
            membership: exp.Expression = Nested(kind="in", plan=plan, this=column(f"l_{one}_x"))
            tree = Filter(edges.scan("l_"), exp.Not(this=membership) if negated else membership)
            kept = Project(tree, (("l_id", column("l_id")),))
            if edges.dialect == "sqlite" and one != other:
                with pytest.raises(NotPushed):
                    statement(kept, edges.dialect)
            else:
                assert not differences(kept, edges)


def test_tuples_at_hand(edges: Edge) -> None:
    rows = pa.table({"k": pa.array([1, 5, None], pa.int64()), "s": ["o'x", "b\\c", "á"]})
    edges.reference.register("hand", rows)
    hand = Inline("hand", (("k", "k"), ("s", "s")), rows)
    try:
        tree = Join(side(edges, "l_"), hand, "inner", expression("l_bigint_x = k or l_varchar_x = s"))
        sql = "SELECT count(*) FROM src.edge l JOIN hand ON l.bigint_x = hand.k OR l.varchar_x = hand.s"
        expected = edges.reference.sql(sql).fetchall()
        pushed = edges.pushed(statement(Aggregate(tree, (), (("n", expression("count(*)")),)), edges.dialect))
        assert pushed is not None
        assert [tuple(each.values()) for each in pushed.to_pylist()] == expected
        assert expected[0][0] > 2
    finally:
        edges.reference.unregister("hand")


def test_conditions_on_groups_and_alternatives(edges: Edge) -> None:
    groups = Aggregate(
        side(edges, "l_", "l_varchar_x like '%a%' or l_varchar_x = 'Z' or not (l_bigint_x < 5 and l_id > 3)"),
        (("key", expression("substr(l_varchar_x, 1, 1)")),),
        (("n", expression("count(*)")), ("most", expression("max(l_varchar_y)"))),
    )
    tree = Filter(groups, expression("n > 1 or most > 'a' or key is null"))
    keys = tuple(exp.Ordered(this=column(each), desc=True, nulls_first=False) for each in ("n", "key"))
    assert not differences(Sort(tree, keys, 6), edges, ordered=True)


@pytest.mark.parametrize(
    "condition",
    [
        "bigint_x = 9.007199254740992e15",
        "bigint_x <> 9.007199254740992e15",
        "bigint_x in (9.007199254740992e15, 5e0)",
        "bigint_x between 9.007199254740992e15 and 9.007199254740992e15",
        "bigint_x = double_y",
        "bigint_x < double_y",
    ],
)
def test_exact_numbers_are_compared_with_floating_ones_as_floating_ones(edges: Edge, condition: str) -> None:
    scan = Scan(edges.table, tuple((each.name, each.name) for each in edges.table.columns))
    tree = Project(Filter(scan, expression(condition)), (("id", column("id")),))
    try:
        assert not differences(tree, edges)
    except NotPushed:
        assert edges.dialect == "sqlite"


# Constants


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(text=st.text(max_size=12) | st.text(alphabet="'\"`\\%_?;-\n\r\tx\u2028é", max_size=12))
def test_a_text_is_nothing_but_the_text(edges: Edge, text: str) -> None:
    literal = exp.Literal.string(text)
    tree = Project(side(edges, "l_", "l_id = 0"), (("id", column("l_id")), ("v", literal)))
    if "\0" in text:
        with pytest.raises(NotPushed):  # by name where the dialect writes texts itself
            statement(tree, edges.dialect)
        return
    pushed = edges.pushed(statement(tree, edges.dialect))
    assert pushed is not None
    assert pushed.to_pylist() == [{"id": 0, "v": text}]


# What is refused


def table(*columns: Column) -> Scan:
    table = Table("src", "t", columns)
    return Scan(table, tuple((each.name, each.name) for each in columns))


REFUSED: dict[str, tuple[tuple[str, str, str], str, str, str]] = {
    # column (name, DuckDB type, source type), dialect, expression, a word of the reason
    "a set of members": (("c", "VARCHAR", "set"), "mariadb", "c > 'a'", "set"),
    "numbers that arrive as text": (("c", "VARCHAR", "numeric"), "postgresql", "c = '1'", "numeric"),
    "time zones": (("c", "TIMESTAMP WITH TIME ZONE", "timestamptz"), "postgresql", "year(c) = 2024", "year"),
    "case of letters": (("c", "VARCHAR", "varchar"), "postgresql", "upper(c)", "upper"),
    "a text beside a number": (("c", "BIGINT", "int8"), "postgresql", "c = '5'", "conversion"),
    "32 bits in 64": (("c", "INTEGER", "int"), "mariadb", "c * 2 > 5", "INTEGER"),
    "floating overflow": (("c", "DOUBLE", "float8"), "postgresql", "c * 2 > 5", "DOUBLE"),
    "whole numbers that become floating": (("c", "BIGINT", "integer"), "sqlite", "c + 1 > 5", "BIGINT"),
    "decimals that are floating": (("c", "DECIMAL(15,2)", "decimal"), "sqlite", "c = 1", "decimal"),
    "a position that is not constant": (("c", "BIGINT", "int8"), "postgresql", "substr('abc', c)", "constants"),
    "the clock": (("c", "DATE", "date"), "duckdb", "c < current_date", "list"),
    "chance": (("c", "DOUBLE", "double"), "duckdb", "c < random()", "list"),
    "files": (("c", "VARCHAR", "varchar"), "duckdb", "c in (getenv('HOME'))", "list"),
    "symmetric": (("c", "BIGINT", "int8"), "postgresql", "c between symmetric 5 and 1", "Between"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_a_reason(what: str) -> None:
    (name, type, source_type), dialect, text, reason = REFUSED[what]
    with pytest.raises(NotPushed, match=reason):
        statement(Filter(table(Column(name, type, source_type)), expression(text)), dialect)


def test_a_column_of_another_type_can_still_be_handed_out() -> None:
    scan = table(Column("c", "VARCHAR", "numeric"), Column("k", "BIGINT", "int8"))
    sql = statement(Filter(scan, expression("c is not null and k = 1")), "postgresql")
    assert sql.sql == ('SELECT t1."c", t1."k" FROM "t" AS t1 WHERE t1."c" IS DISTINCT FROM NULL AND t1."k" = 1')
    assert sql.columns == (("c", "VARCHAR"), ("k", "BIGINT"))
    with pytest.raises(NotPushed, match="numeric"):
        statement(Aggregate(scan, (("c", column("c")),)), "postgresql")


@pytest.mark.parametrize(
    ("source_type", "text", "condition"),
    [
        ("uuid", "c = '{}'", """(t1."c" = '{}' AND CAST(t1."c" AS text) = '{}')"""),
        ("uuid", "c = 'a{}'", """CAST(t1."c" AS text) = 'a{}'"""),
        ("bpchar", "c = '{}'", """(t1."c" = '{}' AND textin(bpcharout(t1."c")) = '{}')"""),
        ("mood", "c = '{}'", """CAST(t1."c" AS text) = '{}'"""),
    ],
)
def test_a_text_of_another_type_is_looked_up_in_its_index(source_type: str, text: str, condition: str) -> None:
    known = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    tree = Filter(table(Column("c", "VARCHAR", source_type)), expression(text.replace("{}", known)))
    sql = statement(tree, "postgresql").sql
    assert sql.endswith(f' FROM "t" AS t1 WHERE {condition.replace("{}", known)}')


@pytest.mark.parametrize(
    ("collation", "by_index"), [("utf8mb4_general_ci", True), ("latin1_swedish_ci", False), ("utf8mb3_bin", False)]
)
def test_mariadb_looks_up_letters_beyond_ascii_in_an_index_of_unicode(collation: str, by_index: bool) -> None:
    scan = table(Column("c", "VARCHAR", "varchar", collation=collation))
    for condition, plain in (("c = 'é'", "`c` = _utf8mb4 X'c3a9' AND"), ("c in ('é', 'b')", "`c` IN (")):
        sql = statement(Filter(scan, expression(condition)), "mariadb").sql
        assert (f"(t1.{plain}" in sql) == by_index, sql


def test_an_operation_call_is_never_left_to_a_source() -> None:
    scan = table(Column("k", "BIGINT", "int8"))
    with pytest.raises(NotPushed, match="Call"):
        statement(Call(scan, "v", "blast", (column("k"),)), "postgresql")


def test_a_dialect_that_nobody_knows() -> None:
    with pytest.raises(NotPushed, match="oracle"):
        statement(table(Column("k", "BIGINT", "int8")), "oracle")


def test_a_value_that_is_not_of_its_columns_type_fails(sqlite_url: str) -> None:
    """SQLite's columns hold anything: what a condition looks at must be what was declared."""
    with closing(driver_for(sqlite_url)) as driver:
        run = partial(driver.update, cancellation=Cancellation())
        run("CREATE TABLE mixed (n integer, d date, flag boolean)")
        run("INSERT INTO mixed VALUES (1, '2020-01-01', 1), ('abc', '2020-01-02', 0)")
        source = DriverSource("src", driver, own=False)
        table = Catalog(FederationSettings(), sources=[source]).table("src", "mixed")
        scan = Scan(table, (("n", "n"), ("d", "d"), ("flag", "flag")))

        def count(condition: str) -> list[dict[str, int]]:
            tree = Aggregate(Filter(scan, expression(condition)), (), (("rows", expression("count(*)")),))
            rows: list[dict[str, int]] = (
                source.query(statement(tree, "sqlite").sql, cancellation=Cancellation()).table().to_pylist()
            )
            return rows

        assert count("d > date '2020-01-01'") == count("flag") == [{"rows": 1}]
        with pytest.raises(DaiError, match="JSON path"):
            count("n > 0")


def test_a_text_with_nul_that_is_looked_into_fails(sqlite_url: str) -> None:
    """LIKE and SUBSTRING of SQLite see what stands before the first NUL only; what compares whole texts sees all."""
    with closing(driver_for(sqlite_url)) as driver:
        run = partial(driver.update, cancellation=Cancellation())
        run("CREATE TABLE texts (id integer, s text, other text)")
        run("INSERT INTO texts VALUES (1, 'a', 'a'), (2, 'a' || char(0) || 'b', NULL)")
    with dqp.connect({"sources": {"lite": sqlite_url}}) as lab:

        def ids(condition: str) -> list[int]:
            rows: list[int] = lab.sql(f"SELECT id FROM lite.texts WHERE {condition}").arrow().column(0).to_pylist()
            return rows

        assert ids("s = 'a'") == ids("other like 'a'") == ids("s = 'a' and id = 1") == [1]
        for condition in ("s like 'a'", "s like '%b'", "substr(s, 3) = 'b'", "left(s, 2) = 'a'"):
            with pytest.raises(DataError, match=r"column s of texts, declared text, holds the text 'a'.\n.* NUL"):
                ids(condition)
