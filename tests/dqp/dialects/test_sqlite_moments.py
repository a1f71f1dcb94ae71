"""Moments of SQLite, of which each may have several texts: what it compares itself has DuckDB's answer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import dqp
from dai.errors import DaiError
from dqp.interfaces.lab import Lab

MOMENTS = [
    *("2020-02-28 23:59:59.999999", "2020-02-29T00:00", "2020-02-29 00:00:00", "2020-02-29T00:00:00.0"),
    *("2020-02-29 00:00:00.000001", "2020-02-29T12:30", "2020-03-01 00:00:00", "0001-01-01 00:00:00"),
    *("9999-12-31 23:59:59.999999", None),
]
DAYS = [None if each is None else each[:10] for each in MOMENTS]
MIDNIGHTS = ["DATE '2020-02-29'", "'2020-02-29'", "TIMESTAMP '2020-03-01 00:00:00'", "'0001-01-01'"]


def expected(sql: str, moments: pa.Table) -> list[tuple[object, ...]]:
    with duckdb.connect() as connection:
        connection.register("moments", moments)
        return connection.sql(sql.replace("seen.moments", "moments")).fetchall()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path: Path = tmp_path_factory.mktemp("moments") / "seen.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE moments (id integer PRIMARY KEY, m timestamp, d datetime, bad datetime)")
        rows = [(*each, at or each[0]) for at, each in enumerate(zip(MOMENTS, DAYS, strict=True))]
        connection.executemany("INSERT INTO moments (m, d, bad) VALUES (?, ?, ?)", rows)
        connection.commit()
    with dqp.connect(str(path)) as lab:
        yield lab


@pytest.fixture(scope="module")
def moments() -> pa.Table:
    return pa.table(
        {
            "id": range(1, len(MOMENTS) + 1),
            "m": [None if each is None else datetime.fromisoformat(each) for each in MOMENTS],
            "d": [None if each is None else datetime.combine(date.fromisoformat(each), datetime.min.time())
                  for each in DAYS],
        }
    )  # fmt: skip


@pytest.mark.parametrize("column", ["m", "d"])
@pytest.mark.parametrize("operator", ["<", ">="])
@pytest.mark.parametrize("midnight", MIDNIGHTS)
def test_a_comparison_with_a_midnight_is_sent(
    lab: Lab, moments: pa.Table, column: str, operator: str, midnight: str
) -> None:
    sql = f"SELECT id, {column} FROM seen.moments WHERE {column} {operator} {midnight} ORDER BY id"
    assert f'"{column}" {operator} \'' in lab.explain(sql).text
    assert lab.sql(sql).rows() == expected(sql, moments)


@pytest.mark.parametrize(
    "condition",
    [
        "m < TIMESTAMP '2020-02-29 00:00:00.000001'",
        "NOT (m >= TIMESTAMP '2020-02-29 12:30:00')",
        "m <= DATE '2020-02-29'",
        "m > DATE '2020-02-29'",
        "m = DATE '2020-02-29'",
        "m BETWEEN DATE '2020-02-29' AND TIMESTAMP '2020-02-29 12:30:00'",
        "m < d",
        "m IN (DATE '2020-02-29')",
    ],
)
def test_any_other_comparison_is_made_here(lab: Lab, moments: pa.Table, condition: str) -> None:
    sql = f"SELECT id FROM seen.moments WHERE {condition} ORDER BY id"
    assert lab.sql(sql).rows() == expected(sql, moments)


def test_a_value_that_is_no_moment_is_an_error(lab: Lab) -> None:
    with pytest.raises(DaiError, match=r"column bad of moments, declared datetime, holds the integer '1'"):
        lab.sql("SELECT id FROM seen.moments WHERE bad >= DATE '2020-02-29'").rows()


@pytest.mark.parametrize(
    "text",
    [
        *("2020-02-29 23:30:00-05:00", "2020-02-29 23:30:00Z", "2020-02-29 23:30+01", "2020-02-29T23:30:00.123+01"),
        *("2020-02-29 23", "2020-02-29 and later", "2020-02-29 23:30:00.1234567", 20200229, b"2020-02-29"),
    ],
)
def test_a_text_with_a_zone_is_no_moment_without_one(tmp_path: Path, text: object) -> None:
    with closing(sqlite3.connect(tmp_path / "odd.db")) as connection:
        connection.execute("CREATE TABLE moments (id integer PRIMARY KEY, m timestamp)")
        connection.executemany("INSERT INTO moments (m) VALUES (?)", [("2020-02-28 00:00:00",), (text,)])
        connection.commit()
    sources = {"seen": f"sqlite:///{tmp_path / 'odd.db'}"}
    expected = pytest.raises(DaiError, match=r"column m of moments, declared timestamp, holds")
    with dqp.connect({"sources": sources}) as lab, expected:
        lab.sql("SELECT count(*) FROM seen.moments WHERE m >= DATE '2020-01-01'").rows()


@pytest.mark.parametrize("digits", range(7))
def test_fractions_of_seconds(tmp_path: Path, digits: int) -> None:
    text = f"2020-02-29T23:30:00.{'123456'[:digits]}".rstrip(".")
    with closing(sqlite3.connect(tmp_path / "fractions.db")) as connection:
        connection.execute("CREATE TABLE moments (id integer PRIMARY KEY, m timestamp)")
        connection.execute("INSERT INTO moments (m) VALUES (?)", [text])
        connection.commit()
    with dqp.connect({"sources": {"seen": f"sqlite:///{tmp_path / 'fractions.db'}"}}) as lab:
        sql = "SELECT m FROM seen.moments WHERE m >= DATE '2020-02-29' AND m < DATE '2020-03-01'"
        assert lab.sql(sql).rows() == [(datetime.fromisoformat(text),)]


def test_who_looks_for_null_looks_at_no_value(lab: Lab) -> None:
    sql = "SELECT count(*) FROM seen.moments WHERE bad IS NOT NULL AND m IS NOT NULL AND NOT (id IS NULL)"
    assert "guard" not in lab.explain(sql).text
    assert lab.sql(sql).rows() == [(len(MOMENTS) - 1,)]
