"""Parameters by name and lists: where they stand, and that they mean what their literals would, on real databases."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dai.drivers import Driver, driver_for
from dai.drivers.duckdb import syntax as duckdb
from dai.drivers.mariadb import syntax as mariadb
from dai.drivers.postgresql import syntax as postgresql
from dai.drivers.sql.parameters import MOST_VALUES, names_in, placed
from dai.drivers.sql.syntax import STANDARD, Syntax
from dai.drivers.sqlite import syntax as sqlite
from dai.errors import LimitError, ParameterError, StatementError
from tests.drivers.statements import table, update
from tests.thoroughness import examples

KINDS = ("postgres", "mariadb", "sqlite", "duckdb")
SYNTAXES = {
    "postgres": postgresql.SYNTAX,
    "mariadb": mariadb.SYNTAX,
    "sqlite": sqlite.SYNTAX,
    "duckdb": duckdb.SYNTAX,
    "standard": STANDARD,
}


@pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)
@pytest.mark.parametrize(
    ("sql", "given", "placed_sql", "values"),
    [
        ("select :a, :b, :a", {"a": 1, "b": 2}, "select ?, ?, ?", [1, 2, 1]),
        ("select $a + :a", {"a": 1}, "select ? + ?", [1, 1]),
        ("select ':a', :a -- :b", {"a": 1}, "select ':a', ? -- :b", [1]),
        ("select /* :b ? */ :a", {"a": 1}, "select /* :b ? */ ?", [1]),
        ("select x::int, :a::int", {"a": 1}, "select x::int, ?::int", [1]),
        ("select x[1:n], y[lo:hi], :n", {"n": 1}, "select x[1:n], y[lo:hi], ?", [1]),
        ("select x where i in :a", {"a": [1, None]}, "select x where i in (?, ?)", [1, None]),
        ("select x where i in (:a)", {"a": [1, 2]}, "select x where i in (?, ?)", [1, 2]),
        ("select x where i in ?", [[1, 2]], "select x where i in (?, ?)", [1, 2]),
        ("select ?, x where i in (?) and ?", [0, [1, 2], 3], "select ?, x where i in (?, ?) and ?", [0, 1, 2, 3]),
        ("select a ?? :a", {"a": 1}, "select a ?? ?", [1]),
        ("select :größe", {"größe": 1}, "select ?", [1]),
        ("select x", [], "select x", []),
    ],
)
def test_what_stands_for_a_value(syntax: Syntax, sql: str, given: Any, placed_sql: str, values: list[Any]) -> None:
    statement = placed(sql, given, syntax)
    assert (statement.sql, list(statement.values)) == (placed_sql, values)


@pytest.mark.parametrize("name", SYNTAXES)
def test_an_empty_list_has_no_value(name: str) -> None:
    syntax = SYNTAXES[name]
    for form in (":a", "(:a)", "/* c */ ( :a )"):
        statement = placed(f"select a ?? b where i in {form} or j Not /**/ IN {form}", {"a": []}, syntax)
        assert statement.values == []
        assert statement.sql == f"select a ? b where i {syntax.in_nothing} or j {syntax.not_in_nothing}"


@pytest.mark.parametrize(
    ("sql", "given", "says"),
    [
        ("select :name", {"nam": 1}, r"(?s)Parameter :name has no value; given: nam\..*Did you mean 'nam'"),
        ("select :a, :zeta", {"a": 1}, r"(?s)Parameter :zeta has no value; given: a\..*query\(…, zeta=…\)"),
        ("select :a", {"a": 1, "b": 2}, "does not use parameter :b"),
        ("select :a, ?", {"a": 1}, r"(?s)the statement has a \? \(at character 12\).*write \?\?"),
        ("select i = :a", {"a": [1]}, r"(?s)Parameter :a is a list.*IN :a"),
        ("select i = ?", [[1]], r"(?s)Parameter \? \(number 1\) is a list"),
        ("select i in (:a, 3)", {"a": [1]}, "is a list; a list can only be used with IN"),
        ("select i in ?", [[[1]]], "is a list with a list in it"),
        ("select i in ? and ?", [[1]], r"2 parameters \(\?\), 1 value was given"),
    ],
)
def test_what_does_not_fit_is_named(sql: str, given: Any, says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        placed(sql, given, STANDARD)


def test_too_long_a_list_says_what_to_do() -> None:
    with pytest.raises(LimitError, match=r"(?s)65,536 values.*tables="):
        placed("select i in :a", {"a": list(range(MOST_VALUES + 1))}, STANDARD)


def test_an_error_has_its_place_in_what_was_written() -> None:
    sql = "select i from t where i in :a and\nnothing = :b"
    statement = placed(sql, {"a": [1, 2, 3], "b": 4}, STANDARD)
    with pytest.raises(StatementError) as caught, statement.translating():
        raise StatementError("no", sql=statement.sql, position=statement.sql.index("nothing") + 1)
    assert caught.value.position == sql.index("nothing") + 1
    assert caught.value.extra["excerpt"] == "line 2: nothing = :b\n        ^"


def test_names_are_seen_where_no_value_was_given() -> None:
    assert names_in("select :a, ':b', x::int, $c /* :d */", STANDARD) == [":a", "$c"]


# --- On databases ---------------------------------------------------------------------------------------------------

ROWS = [(1, "a"), (2, "b"), (3, ":p ? $p"), (4, None), (None, "it's"), (6, "back\\slash"), (7, "%s -- /*")]
TEXTS = [each for _, each in ROWS if each is not None]
NUMBERS = st.lists(st.none() | st.integers(-1, 8), max_size=4)
WORDS = st.lists(st.none() | st.sampled_from([*TEXTS, "", "z", "é"]), max_size=4)
CONDITIONS = (
    "{0} in {1}",
    "{0} not in {1}",
    "({0} in ({1})) is null",
    "not ({0} not in /* :p ? */ {1})",
    "i = 3 or {0} in {1} and i < 7",
)


@pytest.fixture(scope="module", params=KINDS)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    if request.param in ("sqlite", "duckdb"):
        url = f"{request.param}:///{tmp_path_factory.mktemp('parameters')}/data.db"
    else:
        url = request.getfixturevalue(f"{request.param}_module_url")
    with contextlib.closing(driver_for(url)) as made:
        update(made, "create table listed (i int, s varchar(40))")
        update(made, "insert into listed values (?, ?)", *ROWS)
        yield made


def literal(driver: Driver, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("'", "''")
    return f"'{escaped.replace(chr(92), chr(92) * 2) if driver.dialect == 'mysql' else escaped}'"


@settings(max_examples=examples(60))
@given(column=st.sampled_from("is"), condition=st.sampled_from(CONDITIONS), named=st.booleans(), data=st.data())
def test_a_list_means_what_its_literals_would(
    driver: Driver, column: str, condition: str, named: bool, data: st.DataObject
) -> None:
    values = data.draw(NUMBERS if column == "i" else WORDS)
    template = "select i, ':p ? $p' as t from listed where {} order by i"  # with a text and a comment like parameters
    sql = template.format(condition.format(column, ":p" if named else "?"))
    statement = driver.placed(sql, {"p": values} if named else [values])
    got = table(driver, statement.sql, *statement.values)["i"].to_pylist()
    written = ", ".join(literal(driver, each) for each in values)
    if values:
        expected = template.format(condition.replace("({1})", "{1}").format(column, f"({written})"))
    else:  # IN of nothing is false and NOT IN of nothing is true, whatever the operand is
        plain = condition.replace("{0} not in {1}", "1 = 1").replace("{0} not in /* :p ? */ {1}", "1 = 1")
        expected = template.format(plain.replace("{0} in ({1})", "1 = 0").replace("{0} in {1}", "1 = 0"))
    assert got == table(driver, expected)["i"].to_pylist(), expected


@pytest.mark.parametrize("column", ["i", "s", "i + 1", "s || ''", "date '2024-01-01'", "1.5", "null", "'x'"])
def test_an_empty_list_takes_every_type(driver: Driver, column: str) -> None:
    if driver.dialect == "sqlite" and column.startswith("date"):
        column = "date('2024-01-01')"
    for form, expected in (("in", 0), ("not in", len(ROWS))):
        statement = driver.placed(f"select count(*) as n from listed where {column} {form} :p", {"p": []})
        assert table(driver, statement.sql, *statement.values)["n"].to_pylist() == [expected]


def test_values_by_name_are_bound(driver: Driver) -> None:
    sql = "select s from listed where s = :word or i = :number or s = :word"
    for word in TEXTS:
        statement = driver.placed(sql, {"word": word, "number": -1})
        assert table(driver, statement.sql, *statement.values)["s"].to_pylist() == [word]


def test_a_change_with_names_and_lists(driver: Driver) -> None:
    update(driver, "create table changed (i int, s varchar(40))")
    statement = driver.placed("insert into changed values (:i, :s)", {"i": 1, "s": json.dumps([":i"])})
    assert update(driver, statement.sql, tuple(statement.values)) == 1
    for values, count in (([], 0), ([2, None], 0), ([1, 2], 1)):
        statement = driver.placed("delete from changed where i in :i", {"i": values})
        assert update(driver, statement.sql, *([tuple(statement.values)] if statement.values else [])) == count
