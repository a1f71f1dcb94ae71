"""Values in place of parameters. Long lists behind IN are tables, and mean what the literals would."""

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dqp
from dai.errors import ParameterError, StatementError
from dai.streams.cancellation import Cancellation
from dqp.binding.parameters import MOST_LITERALS, read
from dqp.interfaces.lab import Lab

IDS = list(range(0, 60_000, 2))
DAYS = [date(2020, 1, 1) + timedelta(days=each) for each in range(700)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("lists") / "x.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            """CREATE TABLE t AS SELECT range AS id, CASE WHEN range % 7 > 0 THEN range::INT END AS i,
               's' || range AS s, DATE '2020-01-01' + (range % 1000)::INT AS d FROM range(100000)"""
        )
    return f"duckdb:///{path}"


@pytest.fixture(scope="module")
def lab(place: str) -> Iterator[Lab]:
    with dqp.connect({"sources": {"duck": place}}) as lab:
        yield lab


@pytest.mark.parametrize(
    ("condition", "given", "expected"),
    [
        ("id IN $p", IDS, 30_000),
        ("id IN ($p)", IDS, 30_000),
        ("id IN $p", [*IDS, None], 30_000),
        ("id NOT IN $p", IDS, 70_000),
        ("id NOT IN $p", [*IDS, None], 70_000),
        ("id NOT IN ($p)", [*IDS, None], 0),
        ("i NOT IN $p", IDS, 60_000),
        ("(id IN $p) IS NULL", [*IDS, None], 0),
        ("(id IN ($p)) IS NULL", [*IDS, None], 70_000),
        ("id < 10 OR id IN $p", IDS, 30_005),
        ("id IN $p", [*IDS, 2**63 - 1], 30_000),
        ("s IN $p", [f"s{each}" for each in IDS], 30_000),
        ("s IN $p", ["s1", "o'clock"] * MOST_LITERALS, 1),
        ("d IN $p", DAYS, 70_000),
        ("d IN $p", [str(each) for each in DAYS], 70_000),  # texts that become dates: literals again
        ("id + 0.5 IN $p", [each + 0.5 for each in IDS], 30_000),
    ],
)
def test_a_long_list_means_what_its_literals_would(lab: Lab, condition: str, given: list[Any], expected: int) -> None:
    assert lab.sql(f"SELECT count(*) AS n FROM duck.t WHERE {condition}", p=given).arrow()["n"].to_pylist() == [
        expected
    ]


def test_a_long_list_is_no_text_of_the_statement() -> None:
    statement = read("select 1 where 1 in $p", {"p": IDS})
    assert len(statement.text) < 100
    assert [each.num_rows for each in statement.lists.values()] == [len(IDS)]
    assert not read("select 1 where 1 in $p", {"p": IDS[:MOST_LITERALS]}).lists


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("select ($a,$b)", "select (1,2)"),
        ("select $a+$b,$a", "select 1+2,1"),
        ("select x<$a,y[$a:$b],$b::int", "select x<1,y[1:2],2::int"),
        ("select 'it''s $a,$b', $a,$b", "select 'it''s $a,$b', 1,2"),
        ("select e'\\'$a,$', $a,$b", "select e'\\'$a,$', 1,2"),
        ("select date'2020-01-01', '\\', $a,$b", "select date'2020-01-01', '\\', 1,2"),
        ("select $$it's $a,$b$$, $t$ $a $t$, $a,$b", "select $$it's $a,$b$$, $t$ $a $t$, 1,2"),
        ('select "$a,$b", $a,$b -- $a', 'select "$a,$b", 1,2'),
        ("select /* $a,$b ' */ $a,$b", "select /* $a,$b ' */ 1,2"),
    ],
)
def test_names_stand_close_together(sql: str, text: str) -> None:
    assert read(sql, {"a": 1, "b": 2}).text == text


@pytest.mark.parametrize("sql", ["select a[:2]", "select a[:c]", "select [1][:1]", "select (a)[:-:2], f(a)[ :c ]"])
def test_a_slice_has_no_parameter_that_nobody_gave(sql: str) -> None:
    assert read(sql, []).text == sql
    assert read(f"{sql}, :a", {"a": 5}).text == f"{sql}, 5"


@pytest.mark.parametrize("sql", ["select $a.5", "select 1.$a", "select $a'b'", "select 'b'$a", "select ?.5"])
@pytest.mark.parametrize("value", [3, "text"])
def test_a_value_does_not_grow_together_with_what_stands_beside_it(sql: str, value: Any) -> None:
    given = {"a": value} if "$" in sql else [value]
    with pytest.raises(ParameterError, match="touches a text, a number or a word"):
        read(sql, given)


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("select 1?", 5),
        ("select ?5", 5),
        ("select ?e5", 5),
        ("select x? from t", 5),
        ("select ?x from t", True),
        ("select E?", "\\', 42 --"),
        ("select X?", "ab"),
        ("select 'x'\n?", "text"),
        ("select ?\n'x'", "text"),
        ("select ? -- more\n'x'", "text"),
        ("select ?\n?", "text"),
    ],
)
def test_a_value_becomes_part_of_nothing_else(sql: str, value: Any) -> None:
    """Neither of a number, a word, a text in another line, nor of one in which a backslash means something."""
    with pytest.raises(ParameterError, match="touches a text, a number or a word"):
        read(sql, [value] * sql.count("?"))


def test_a_value_stands_beside_names_and_signs() -> None:
    sql = "select $a\"x\", 'b'||$a||'c', -$a*.5, $a::int, d.$$e$$ from t"
    assert read(sql, {"a": 3}).text == sql.replace("$a", "3")
    assert read("select date?, ?+ ?, x in?", ["2020-01-01", 1, 2, [3, 4]]).text == (
        "select date'2020-01-01', 1+ 2, x in(3, 4)"
    )


def test_a_subscript_may_be_a_parameter() -> None:
    assert read("select a[:c], [:c], x in [:c]", {"c": 2}).text == "select a[2], [2], x in [2]"


def test_numbers_stand_close_together() -> None:
    assert read("select f($1,$2,$1)", [5, 6]).text == "select f(5,6,5)"


def test_a_cast_stands_close_to_its_parameter() -> None:
    assert read("select ?::integer, $2::date", [5, "2024-02-29"]).text == "select 5::integer, '2024-02-29'::date"


def test_a_long_list_reduces_what_the_source_is_asked_for(lab: Lab) -> None:
    plan = lab.explain("SELECT count(*) FROM duck.t WHERE id IN $p", analyze=True, p=IDS[:2000]).text
    assert "reduced by 2,000 rows of tuples at hand" in plan


def test_an_error_beside_a_long_list_has_its_place(lab: Lab) -> None:
    with pytest.raises(StatementError) as raised:
        lab.sql("SELECT 1 FROM duck.t WHERE id IN $p AND idd = 1", p=IDS[:1000]).arrow()
    assert raised.value.position == 41


def test_comments_before_a_statement_are_many() -> None:
    """However they are read: ways to take several comments for one double with each of them."""
    comments = "/**/ -- *\n" * 500
    assert read(f"{comments}select 1").kind == "query"
    assert read(f"{comments}explain /* analyze */ select 1").kind == "explain"
    assert read(f"{comments}explain analyze select 1").kind == "explain analyze"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (lambda pd: pd.Timedelta("1 day"), "CAST('1 days 0 microseconds' AS INTERVAL)"),
        (lambda pd: pd.Series([pd.Timedelta("1 day")]), "[CAST('1 days 0 microseconds' AS INTERVAL)]"),
        (lambda pd: pd.Series(pd.to_datetime(["2024-01-01"])), "[CAST('2024-01-01 00:00:00' AS TIMESTAMP)]"),
        (
            lambda pd: pd.Series(pd.to_datetime(["2024-01-01"])).dt.tz_localize("UTC"),
            "[CAST('2024-01-01 00:00:00+00:00' AS TIMESTAMPTZ)]",
        ),
        (lambda pd: pd.Series(["a", None]), "['a', NULL]"),
        (lambda pd: pd.Series([1, None], dtype="Int64"), "[1, NULL]"),
        (lambda pd: pd.Categorical(["a"]), "['a']"),
        (lambda pd: pd.NA, "NULL"),
        (lambda pd: pd.NaT, "NULL"),
    ],
)
def test_values_of_pandas(given: Callable[[Any], Any], text: str) -> None:
    pandas = pytest.importorskip("pandas")
    assert read("select $p", {"p": given(pandas)}).text == f"select {text}"


def test_what_sql_has_no_type_for_is_not_null() -> None:
    pandas = pytest.importorskip("pandas")
    for value in (pandas.Period("2024-01"), pandas.DataFrame({"a": [1]}), pandas.Interval(1, 2)):
        with pytest.raises(ParameterError, match=rf"\$p is a {type(value).__name__}; SQL has no type for it"):
            read("select $p", {"p": value})


def test_what_is_no_text(lab: Lab) -> None:
    for sql in ("select '\ud800'", "explain from duck.t where s = '\udc80'"):
        with pytest.raises(StatementError, match=r"not valid Unicode: character \d+ is half") as caught:
            lab.sql(sql).arrow()
        assert str(caught.value).isascii()


@pytest.mark.parametrize(
    ("sql", "given", "says", "hint"),
    [
        ("select $1", {}, "Parameter $1 is number 1, but no positional values are given.", "one value for each"),
        ("select ?", (), "Parameter ? is number 1, but no positional values are given.", "one sqlParameter each"),
        ("select ?, ?", (1,), "Parameter ? is number 2, but 1 positional value is given.", "one value for each"),
        ("select ?", {"a": 1}, "Parameter ? is number 1, but only names are given.", "$ and its name"),
        ("select $a", {}, "Parameter $a has no value; given: no named values.", "sql(…, a=…) in Python, -p a=…"),
        ("select $a", {"b": 1}, "Parameter $a has no value; given: b.", "sql(…, a=…) in Python, -p a=…"),
        ("select $least", {"leats": 1}, "Parameter $least has no value; given: leats.", "Did you mean 'leats'?"),
    ],
)
def test_what_is_missing_is_told(sql: str, given: Any, says: str, hint: str) -> None:
    with pytest.raises(ParameterError) as caught:
        read(sql, given)
    assert caught.value.detail == says
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["0", "0.00", "-0.5", "0.001", "99.99", "-1.50", "1E+2", "0." + "1" * 37, "1" * 38])
def test_a_decimal_has_the_type_of_a_constant(lab: Lab, text: str) -> None:
    constant = f"{Decimal(text):f}"
    expected = duckdb.sql(f"SELECT typeof({constant if '.' in constant else f'{constant}.'})").fetchall()
    assert lab.sql("SELECT typeof($p) AS t", p=Decimal(text)).arrow()["t"].to_pylist() == [expected[0][0]]


class Quiet(str):
    """A text that does not tell itself, as some passwords do."""

    def __repr__(self) -> str:
        return "***"


class Number(IntEnum):
    ONE = 1


def test_another_value_is_never_answered_from_a_plan_that_is_kept(lab: Lab) -> None:
    def asked(value: Any) -> Any:
        return lab.sql("SELECT $p AS v", p=value).arrow()["v"].to_pylist()[0]

    held = bytearray(b"one")
    view = memoryview(held)
    assert asked(view) == b"one"
    held[:] = b"two"
    assert asked(view) == b"two"
    assert [asked(Quiet(each)) for each in ("a", "b")] == ["a", "b"]
    assert [asked(each) for each in (Number.ONE, "1", 1.0, True)] == [1, "1", 1.0, True]
    with pytest.raises(ParameterError, match=r"\$p is a object; SQL has no type for it"):
        asked(object())


@pytest.mark.parametrize(
    ("sql", "given", "expected"),
    [
        ("select `id` from duck.t where `id` = 5", (), {"id": 5}),
        ("select x.`id` from `duck`.`t` as x where `x`.`id` = ?", (5,), {"id": 5}),
        ("select 7 as `a b?`, ? as b", (8,), {"a b?": 7, "b": 8}),
        ("select id as `a``b` from duck.t where id = 5", (), {"a`b": 5}),
        ("""select `q"'$x :x` as z, $x as x from (select 7 as `q"'$x :x`)""", {"x": 1}, {"z": 7, "x": 1}),
        ("select 7 as `/* --`, :x as x", {"x": 1}, {"/* --": 7, "x": 1}),
        ("select '`?`' as `?`, ? as b -- `", (8,), {"?": "`?`", "b": 8}),
        ("select `v`.`i?` from v where id = ?", (5,), {"i?": 5}),
        ("select count(`i?`) filter (`id` in $x) as n from v", {"x": [5, 6]}, {"n": 2}),
        ("with recursive `r?` as (select 1 as n union all select n + ? from `r?` where n < 2) from `r?` where n = 2",
         (1,), {"n": 2}),
    ],
)  # fmt: skip
def test_names_in_backquotes(place: str, sql: str, given: Any, expected: dict[str, Any]) -> None:
    """DuckDB takes them; what they hold is no parameter, comment or text."""
    view = "select `id`, `id` as `i?` from `duck`.`t`"
    with dqp.connect({"sources": {"duck": place}, "views": {"v": view}}) as lab:
        stream = lab.coordinator.query(sql, given, cancellation=Cancellation())
        assert stream.table().to_pylist() == [expected]


def test_an_error_of_a_name_in_backquotes_has_its_place(lab: Lab) -> None:
    sql = "select `a?` as x, `nothing?` from (select 1 as `a?`)"
    with pytest.raises(StatementError, match=r"nothing\?") as caught:
        lab.sql(sql).arrow()
    assert caught.value.position == sql.index("`nothing?`") + 1


def test_the_short_names_of_a_querys_shapes(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    query = lab.sql("SELECT id, id / 4.0 AS part FROM duck.t WHERE id < 3 ORDER BY id")
    rows = [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert query.head(2).num_rows == 2
    assert query.head().equals(query.arrow())
    assert query.head(1).num_rows == 1
    query = lab.sql(query.text)
    assert (query.fetchone(), query.fetchmany(1), query.fetchall(), query.fetchone()) == (
        *rows[:1],
        rows[1:2],
        rows[2:],
        None,
    )
    assert query.df()["id"].to_list() == query.pl()["id"].to_list() == [0, 1, 2]
    assert query.to_duckdb().aggregate("count(*)").fetchall() == [(3,)]
    query.show(1)
    assert capsys.readouterr().out.split()[:2] == ["id", "part"]


@pytest.mark.parametrize(
    ("numeric", "value", "row"),
    [(None, Decimal("1.50"), Decimal("1.50")), ("double", 1.5, 1.5), ("text", "1.50", "1.50")],
)
def test_what_decimal_numbers_are_in_a_lab(place: str, numeric: str | None, value: Any, row: Any) -> None:
    with dqp.connect({"sources": {"duck": place}}, numeric=numeric) as lab:
        query = lab.sql("SELECT 1.50::DECIMAL(4,2) AS n FROM duck.t WHERE id = 1")
        assert query.arrow()["n"].to_pylist() == [value]
        assert query.fetchall() == [(row,)]


def test_a_choice_of_numbers_that_is_none(place: str) -> None:
    with pytest.raises(ParameterError, match="numeric='float' is not possible"):
        dqp.connect({"sources": {"duck": place}}, numeric="float")
