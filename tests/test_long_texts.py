"""A text of a caller is looked through once: each of these took hours, in which its process did nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlglot import exp

from dai.client import statements
from dai.drivers.sqlite import checks, statement
from dai.errors import ParameterError
from dai.service.registry.sparql import rdql
from dqp.binding import binder
from dqp.explain import text

LONG = 3_000_000
DIGITS, LETTERS, SPACES = "0" * LONG, "a" * LONG, " " * LONG


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (lambda: checks._NUMBER.fullmatch(f"{DIGITS}x"), None),
        (lambda: statement._COLLATED.match(f"{SPACES}select 1"), None),
        (lambda: text.shortened(f"SELECT '{DIGITS}'"), f"SELECT '{DIGITS}'"),
        (lambda: text.shortened("'" * LONG), "'" * LONG),
        (lambda: statements._HEAD.match("/**/" * 1000), None),
    ],
    ids=["a number", "a collation", "digits in a plan", "quotes in a plan", "comments"],
)
def test_a_long_text_is_looked_through_once(asked: Callable[[], Any], expected: Any) -> None:
    assert asked() == expected


def test_a_long_interval() -> None:
    sql = f"SELECT interval '{DIGITS[:500_000]}' AS a"
    assert binder._parsed(tuple(binder.tokens(sql)), sql).find(exp.Interval) is not None


def test_a_long_word_in_rdql() -> None:
    with pytest.raises(ParameterError):
        rdql.sparql(LETTERS)


def test_what_is_a_number_and_what_has_a_collation() -> None:
    for number in ("1", "1.", ".5", " -1.5e+3 ", "1.5"):
        assert checks._NUMBER.fullmatch(number)
    for collated in (
        "select a collate nocase from t",
        " with t as (select 1) select a collate x from t",
        "VALUES (1) collate x",
    ):
        assert statement._COLLATED.match(collated)
    for other in ("select a from t order by a collate nocase", "  select a from t order by a collate nocase"):
        assert not statement._COLLATED.match(other)
