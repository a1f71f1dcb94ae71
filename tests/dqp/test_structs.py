"""Structs and maps of a source are text in a federation: what would take that text for a list is an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import dqp
from dai.errors import StatementError
from dqp.interfaces.lab import Lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path: Path = tmp_path_factory.mktemp("structs") / "nested.parquet"
    duckdb.sql(
        "COPY (SELECT 1 AS id, {'x': 7} AS nest, [{'n': 1}, {'n': 2}] AS ls, map {'a': 1.5} AS mp, [4, 5] AS plain, "
        f"'text' AS t) TO '{path}'"
    )
    with dqp.connect(str(path)) as lab:
        yield lab


WRONG = {
    "SELECT len(ls) FROM nested": "json_array_length",
    "SELECT ls[1] FROM nested": "ls->0",
    "SELECT ls[1:2] FROM nested": "list of struct",
    "SELECT id FROM nested WHERE length(ls) > 2": "ls",
    "SELECT list_extract(other, 1) FROM (SELECT ls AS other FROM nested)": "ls->>",
    "SELECT DISTINCT ON (id) len(nest) FROM nested": "nest->>",
    "SELECT DISTINCT ON (id) len(nest) AS nest FROM nested": "nest->>",
    "SELECT DISTINCT ON (id) len(ls) FROM (SELECT id, ls AS ls FROM nested)": "ls->>",
    "SELECT count(*) FROM nested GROUP BY len(mp)": "a map",
    "SELECT nest.x FROM nested": r"nest->>'x'",
    "SELECT mp['a'] FROM nested": r"->>'a'",
}


@pytest.mark.parametrize("sql", WRONG)
def test_text_is_not_taken_for_a_list(lab: Lab, sql: str) -> None:
    with pytest.raises(StatementError, match=WRONG[sql]):
        lab.sql(sql).arrow()


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT DISTINCT ON (id) (SELECT len(ls) FROM (SELECT 'abc' AS ls)) FROM nested", 3),
        (
            "WITH RECURSIVE r(ls) AS (SELECT [1, 2] UNION SELECT ls FROM r) SELECT (SELECT len(ls) FROM r) FROM nested",
            2,
        ),
    ],
)
def test_another_column_of_the_name_is_what_it_is(lab: Lab, sql: str, answer: int) -> None:
    assert lab.sql(sql).rows() == [(answer,)]


def test_what_the_error_says_works(lab: Lab) -> None:
    sql = (
        "SELECT (nest->>'x')::int, json_array_length(ls), ls->0->>'n', mp->>'a', len(plain), plain[1], len(t), t[1] "
        "FROM nested"
    )
    assert lab.sql(sql).rows() == [(7, 2, "1", "1.5", 2, 4, 4, "t")]
    lab.upload("own", {"s": [[{"n": 1}]]})
    assert lab.sql("SELECT len(s), s[1].n FROM own").rows() == [(1, 1)]
