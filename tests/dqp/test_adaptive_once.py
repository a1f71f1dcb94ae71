"""What is computed once for several uses is reduced by the keys of all of them, or not at all."""

from pathlib import Path

import duckdb
import pytest
from sqlglot import exp

import dqp
from dqp.algebra.operators import Aggregate, Join, Operator, Remote, Scan, column
from tests.dqp.doubles import Double, catalog_of, execution
from tests.dqp.semijoins import joined, keys, leaf, probing, run, table


def _least(number: int) -> Aggregate:
    """The least value of each key of the large table, one more use of it."""
    large = Remote("l", Scan(table("l", 2_000_000), ((f"k{number}", "k"), (f"v{number}", "v"))))
    least = exp.Min(this=column(f"v{number}"))
    return Aggregate(large, ((f"g{number}", column(f"k{number}")),), ((f"m{number}", least),))


@pytest.mark.parametrize(("few", "said"), [((3, 700_000), "IN (3, 5, 700000)"), ((4, 5), ">= 4"), ((), '"k" = 5')])
def test_what_is_computed_once_is_reduced_by_the_keys_of_all_uses(few: tuple[int, ...], said: str) -> None:
    one, other, large = Double("s", keys(*few)), Double("o", keys(5)), Double("l", probing)
    uses = (joined(_least(1), leaf("s", 100)), joined(_least(2), leaf("o", 100)))
    condition = exp.LTE(this=column("g1"), expression=column("g2"))
    rows = run(catalog_of(one, other, large), Join(*uses, "left", condition))
    assert len(large.asked) == 1
    assert said in large.asked[0]
    assert rows == sorted(
        [(each, 2 * each, each, 1, *((5, 10, 5, 1) if each <= 5 else (None,) * 4)) for each in few], key=repr
    )


def test_what_is_computed_once_is_not_reduced_for_one_use_alone() -> None:
    one, large = Double("s", keys(7, 8)), Double("l", probing)
    condition = exp.EQ(this=column("g1"), expression=column("g2"))
    rows = run(catalog_of(one, large), Join(_least(2), joined(_least(1), leaf("s", 100)), "left", condition))
    assert len(large.asked) == 1
    assert "WHERE" not in large.asked[0]
    assert len(rows) == 49


def _counted(number: int) -> Aggregate:
    """Both columns of the large table, one more use of it."""
    large = Remote("l", Scan(table("l", 2_000_000), ((f"k{number}", "k"), (f"v{number}", "v"))))
    count = exp.Count(this=exp.Star(), big_int=True)
    return Aggregate(
        large, ((f"g{number}", column(f"k{number}")), (f"h{number}", column(f"v{number}"))), ((f"c{number}", count),)
    )


@pytest.mark.parametrize("second", ["o_k", "o_v"])
def test_what_is_computed_once_is_reduced_where_two_columns_are_equal_to_one(second: str) -> None:
    """Where each use has columns of its own for the keys of both, there is no reduction."""
    one, other, large = Double("s", keys(4, 6)), Double("o", keys(4, 6)), Double("l", probing)

    def use(number: int, of: str, columns: tuple[str, str]) -> Operator:
        equal = [
            exp.EQ(this=column(f"{each}{number}"), expression=column(name))
            for each, name in zip("gh", columns, strict=True)
        ]
        return Join(_counted(number), leaf(of, 100), "inner", exp.and_(*equal))

    uses = use(1, "s", ("s_k", "s_k")), use(2, "o", ("o_k", second))
    condition = exp.LTE(this=column("g1"), expression=column("g2"))
    assert run(catalog_of(one, other, large), Join(*uses, "left", condition)) == []
    assert len(large.asked) == 1
    assert ("WHERE" in large.asked[0]) is (second == "o_k")


def _read_twice(high: int = 1_000_000) -> list[Remote]:
    """A large table that is read for two uses."""
    read = table("l", 2_000_000, high)
    return [Remote("l", Scan(read, ((f"k{number}", "k"), (f"v{number}", "v")))) for number in (1, 2)]


def _joined_uses(one: tuple[int, ...], other: tuple[int, ...], high: int = 1_000_000) -> tuple[Double, list[object]]:
    """Two uses, each with keys of its own: the large table, and the keys of both that are in the answer."""
    first, second = _read_twice(high)
    large = Double("l", probing)
    uses = joined(first, leaf("s", 100, high)), joined(second, leaf("o", 100, high))
    condition = exp.EQ(this=column("v1"), expression=exp.Add(this=column("v2"), expression=exp.Literal.number(4)))
    rows = run(catalog_of(Double("s", keys(*one)), Double("o", keys(*other)), large), Join(*uses, "inner", condition))
    return large, [(each[0], each[4]) for each in rows]


def test_what_is_read_twice_stays_one_statement_with_the_keys_of_all_uses() -> None:
    large, answer = _joined_uses((5, 7, 9), (5, 700_000))
    (asked,) = large.asked
    assert "IN (5, 7, 9, 700000)" in asked
    assert answer == [(7, 5)]


def test_what_is_read_twice_becomes_two_statements_where_a_statement_for_all_keeps_much_more() -> None:
    large, answer = _joined_uses(tuple(range(1, 60_001)), tuple(range(940_001, 1_000_001)))
    assert sorted("<= 60000" in each for each in large.asked) == [False, True]
    assert sorted(">= 940001" in each for each in large.asked) == [False, True]
    assert answer == []


def test_what_is_read_twice_is_read_once_where_keys_of_one_use_save_nothing() -> None:
    one, large = Double("s", keys(7, 9)), Double("l", probing)
    first, second = _read_twice()
    condition = exp.LTE(this=column("v1"), expression=column("v2"))
    rows = run(catalog_of(one, large), Join(joined(first, leaf("s", 100)), second, "left", condition))
    assert ["WHERE" in each for each in large.asked] == [False]
    assert len(rows) == 43 + 41


def _scan(number: int) -> Scan:
    return Scan(table("l", 2_000_000), ((f"k{number}", "k"), (f"v{number}", "v")))


def test_a_build_that_turns_out_large_does_not_spare_the_other_use_its_keys() -> None:
    first, second = (Remote("l", _scan(each)) for each in (1, 2))
    large = Double("l", probing)
    uses = joined(first, leaf("s", 100)), joined(second, leaf("o", 100))
    condition = exp.EQ(this=column("v1"), expression=exp.Add(this=column("v2"), expression=exp.Literal.number(4)))
    sources = Double("s", keys(5, 7, 9)), Double("o", keys(*range(1, 50_000))), large
    run(catalog_of(*sources), Join(*uses, "inner", condition), execution(inline_bytes=10_000))
    assert any("IN (5, 7, 9)" in each for each in large.asked)


@pytest.mark.parametrize(
    ("key", "found"),
    [("(i * 11)::DECIMAL(10, 2)", 50), ("(18446744073709551615 - i)::UBIGINT", 0), ("(i * 11)::BIGINT", 50)],
)
def test_keys_of_uses_that_have_other_types(tmp_path: Path, key: str, found: int) -> None:
    tables = {
        "l": "CREATE TABLE t AS SELECT i::BIGINT AS k, i % 1000 AS v, repeat('x', 9) AS w FROM range(400000) r(i)",
        "s": "CREATE TABLE t AS SELECT (i * 7)::BIGINT AS k, i AS x FROM range(50) r(i)",
        "o": f"CREATE TABLE t AS SELECT {key} AS k, i AS x FROM range(50) r(i)",
    }
    for name, statement in tables.items():
        with duckdb.connect(tmp_path / f"{name}.duckdb") as connection:
            connection.execute(statement)
    sources = {name: {"database": f"duckdb:///{tmp_path / name}.duckdb"} for name in tables}
    with dqp.connect({"sources": sources}) as lab:
        one, other = (f"SELECT l.t.v, l.t.w, {each}.t.x FROM l.t JOIN {each}.t ON l.t.k = {each}.t.k" for each in "so")
        assert len(lab.sql(f"{one} UNION ALL {other}").rows()) == 50 + found
