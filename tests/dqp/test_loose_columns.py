"""Columns of SQLite with values of several types: a cast reads them, and tidy ones give DuckDB's own text."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

import dqp
from dai.errors import DaiError
from dqp.interfaces.lab import Lab

MESSY = """
CREATE TABLE messy (id integer PRIMARY KEY, n integer, r real, p decimal(10,2), flag boolean, d date,
  moment datetime, t time, u, b blob);
INSERT INTO messy VALUES
 (1, 7, 1.5, 0.1, 1, '2020-02-29', '2020-02-29T12:30:00', '12:30', 1, x'00ff'),
 (2, 'ND', '<0.5', 'ND', 'yes', '20200301', 1577872800, '24:00', 'x', 'ND'),
 (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
 (4, 2.5, 2.0, 3, 0, '', '2020-01-01T10:00:00Z', '', 2.5, 5);
"""
TEXTS = {
    "n": ["7", "ND", None, "2.5"],
    "flag": ["true", "yes", None, "false"],
    "d": ["2020-02-29", "20200301", None, ""],
    "moment": ["2020-02-29 12:30:00", "1577872800", None, "2020-01-01T10:00:00Z"],
    "t": ["12:30:00", "24:00:00", None, ""],
    "u": ["1", "x", None, "2.5"],
}
NUMBERS = {"n": [7.0, None, None, 2.5], "r": [1.5, None, None, 2.0], "p": [0.1, None, None, 3.0]}
TIDY = """
CREATE TABLE tidy (id integer PRIMARY KEY, n integer, r real, p decimal(10,2), flag boolean, d date,
  moment timestamp, day datetime, t time, s text);
INSERT INTO tidy VALUES
 (1, 9223372036854775807, 0.1, 0.1, 1, '2020-02-29', '2020-02-29 12:30', '2020-02-29', '12:30', 'a'),
 (2, -9223372036854775808, 1e300, 12345678.25, 0, '9999-12-31', '2020-02-29T12:30:05.120000', '9999-12-31',
  '12:30:05.10', ''),
 (3, 0, -0.0, -3, NULL, '0001-01-01', '2020-02-29 00:00:00', '0001-01-01', '00:00:00.000', 'é'),
 (4, NULL, NULL, NULL, NULL, NULL, '2020-02-29 12:30:05', NULL, NULL, NULL);
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path: Path = tmp_path_factory.mktemp("loose") / "field.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(MESSY + TIDY)
    with dqp.connect(str(path)) as lab:
        yield lab


@pytest.mark.parametrize("column", TEXTS)
def test_a_cast_reads_what_stands_there(lab: Lab, column: str) -> None:
    with pytest.raises(DaiError, match=rf"\b{column}\b"):
        lab.sql(f"SELECT {column} FROM field.messy").arrow()
    rows = lab.sql(f"SELECT {column}::varchar AS text FROM field.messy ORDER BY id").rows()
    assert [text for (text,) in rows] == TEXTS[column]


@pytest.mark.parametrize("column", NUMBERS)
def test_a_cast_that_is_tried_reads_the_numbers(lab: Lab, column: str) -> None:
    with pytest.raises(DaiError, match=rf'TRY_CAST\("{column}" AS DOUBLE\)'):
        lab.sql(f"SELECT {column} FROM field.messy").arrow()
    rows = lab.sql(f"SELECT try_cast({column} AS double) AS number FROM field.messy ORDER BY id").rows()
    assert [number for (number,) in rows] == NUMBERS[column]


@pytest.mark.parametrize(
    ("cast", "but"),
    [
        *((f"{column}::varchar", "unless it is declared as real, decimal or blob") for column in ("r", "p", "b")),
        *((f"try_cast({column} AS double)", "if it is declared as a number") for column in ("flag", "d", "u", "b")),
    ],
)
def test_the_hint_says_which_columns_a_cast_does_not_read(lab: Lab, cast: str, but: str) -> None:
    with pytest.raises(DaiError) as caught:
        lab.sql(f"SELECT {cast} FROM field.messy").arrow()
    assert but in (caught.value.hint or "")


def test_a_condition_on_the_text_leaves_rows_out(lab: Lab) -> None:
    assert lab.sql("SELECT id FROM field.messy WHERE n::varchar = 'ND'").rows() == [(2,)]
    assert lab.sql("SELECT count(*) FROM field.messy WHERE try_cast(r AS double) > 1.7").rows() == [(1,)]


@pytest.mark.parametrize("column", ["n", "flag", "d", "moment", "day", "t", "s", "r", "p"])
def test_tidy_columns_have_the_text_that_duckdb_gives_them(lab: Lab, column: str) -> None:
    tidy = lab.sql(f"SELECT id, {column} AS value FROM field.tidy").arrow()
    expected = duckdb.sql("SELECT value::varchar, try_cast(value AS varchar) FROM tidy ORDER BY id").fetchall()
    found = lab.sql(f"SELECT {column}::varchar, try_cast({column} AS varchar) FROM field.tidy ORDER BY id").rows()
    assert found == expected
    assert tidy.num_rows == 4


@pytest.mark.parametrize("column", ["n", "r", "p"])
def test_tidy_numbers_are_those_of_duckdb(lab: Lab, column: str) -> None:
    tidy = lab.sql(f"SELECT id, {column} AS value FROM field.tidy").arrow()
    expected = duckdb.sql("SELECT try_cast(value AS double) FROM tidy ORDER BY id").fetchall()
    assert lab.sql(f"SELECT try_cast({column} AS double) FROM field.tidy ORDER BY id").rows() == expected
    assert tidy.num_rows == 4
