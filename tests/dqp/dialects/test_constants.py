"""Constants: of texts that are compared with each other, of types that were asked for, near the limits, as keys."""

import pytest
from sqlglot import exp

from dqp.algebra.operators import Aggregate, Filter, Nested, Operator, Project, Scan, column
from dqp.sql.dialects import NotPushed, statement
from tests.dqp.dialects.edges import Edge, differences, expression


def valued(edges: Edge, kind: str, text: str) -> Operator:
    return Project(edges.source(kind, text), (("id", column("id")), ("value", expression(text))))


@pytest.mark.parametrize(
    "text",
    [
        "'a' = 'A'",
        "'a' < 'B'",
        "'a' in ('A', 'b')",
        "'e' not in ('é', 'b')",
        "'a' in ('A', null)",
        "'a' like 'A'",
        "'é' not like 'e%'",
        "'b\\c' like 'B\\_'",
        "nullif('a', 'A')",
        "case 'a' when 'A' then 1 when 'a' then 2 end",
    ],
)
def test_texts_that_are_compared_with_each_other(edges: Edge, text: str) -> None:
    assert not differences(valued(edges, "varchar", text), edges)


@pytest.mark.parametrize("text", ["a", "AB", "O'X", "ó'x"])
@pytest.mark.parametrize("negated", [False, True])
def test_a_text_that_is_looked_for_in_a_subquery(edges: Edge, text: str, negated: bool) -> None:
    rows = Filter(edges.scan("r_"), expression("r_id < 15 and r_varchar_x is not null"))
    inner = Project(rows, (("v", column("r_varchar_x")),))
    membership: exp.Expression = Nested(kind="in", plan=inner, this=exp.Literal.string(text))
    tree = Filter(edges.scan(), exp.Not(this=membership) if negated else membership)
    assert not differences(tree, edges)


@pytest.mark.parametrize(
    "text",
    [
        "integer_x * cast(5 as bigint)",
        "cast(5 as bigint) - integer_x",
        "-cast(5 as bigint) * integer_x",
        "-(-cast(5 as bigint)) + integer_x",
        "coalesce(integer_x, cast(5 as bigint)) * cast(3 as bigint)",
        "case when g = 1 then integer_x else cast(5 as bigint) end * 3",
        "integer_x = cast(5 as bigint)",
        "integer_x * (cast(1 as bigint) + 1)",
        "integer_x + (2 - cast(5 as bigint))",
    ],
)
def test_a_type_that_was_asked_for(edges: Edge, text: str) -> None:
    tree = valued(edges, "integer", text)
    try:
        assert not differences(tree, edges)
    except NotPushed:
        assert edges.dialect == "sqlite"


@pytest.mark.parametrize(
    "text", ["-1234567890123456789012345678.0123456789", "-cast('-12345678901234567890123456789.5' as decimal(38,1))"]
)
def test_decimals_of_many_digits(edges: Edge, text: str) -> None:
    tree = valued(edges, "integer", text)
    try:
        assert not differences(tree, edges)
    except NotPushed:
        assert edges.dialect == "sqlite" or "cast" in text


def test_what_is_computed_of_constants_has_their_type(edges: Edge) -> None:
    for text in ("bigint_x < cast(126 as tinyint) + 1", "bigint_x < 1 + cast(126 as tinyint)"):
        assert not differences(valued(edges, "bigint", text), edges)
    if edges.dialect != "duckdb":  # which raises the error by itself
        with pytest.raises(NotPushed, match="TINYINT"):
            statement(valued(edges, "bigint", "bigint_x < cast(127 as tinyint) + 1"), edges.dialect)


@pytest.mark.parametrize(
    "text",
    [
        "substr(varchar_x, 3000000000)",
        "substr(varchar_x, 1, 3000000000)",
        "substr(varchar_x, 1, 4294967297)",
        "left(varchar_x, 4294967297)",
        "date_x < date '9998-12-31' + interval 999 day",
        "date_x < date '2024-01-01' + interval 999999999 week",
    ],
)
def test_beyond_what_sources_count(edges: Edge, text: str) -> None:
    tree = valued(edges, "varchar", text)
    if edges.dialect == "duckdb":  # which counts as this side does
        assert not differences(tree, edges)
    else:
        with pytest.raises(NotPushed, match=r"positions|beyond the years|interval|without asking"):
            statement(tree, edges.dialect)


@pytest.mark.parametrize(
    "text", ["'b\\c'", "'a'", "'é'", "-1", "1.5", "true", "cast(5 as bigint)", "date '2024-01-01'"]
)
def test_keys_of_groups(edges: Edge, text: str) -> None:
    items = (("key", expression(text)), ("g", column("g")))
    count = (("n", expression("count(*)")),)
    for names in (("key",), ("key", "g"), ("g", "key")):
        tree = Aggregate(Project(edges.scan(), items), tuple((each, column(each)) for each in names), count)
        try:
            assert not differences(tree, edges)
        except NotPushed:
            assert (edges.dialect, text) in {("sqlite", "-1"), ("sqlite", "1.5")}


def test_a_computed_column_that_is_called_as_one_of_the_table(edges: Edge) -> None:
    scan = Scan(edges.table, (("k", "varchar_x"),))
    assert not differences(Project(scan, (("varchar_x", expression("'x' || k")),)), edges)
