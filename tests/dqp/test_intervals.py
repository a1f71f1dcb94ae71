"""Texts of intervals mean what they mean in DuckDB: sqlglot read only the first part, '1 day 03:00' as a day."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import duckdb
import pytest

import dqp
from dqp.interfaces.lab import Lab

INTERVALS = [
    "interval '1 day 03:00:00.5'",
    "interval '-1 days 02:00:00'",
    "interval '1.5 hours'",
    "interval '1 day ago'",
    "interval '1 day 2 hours'",
    "interval '03:00:00'",
    "interval '1 year'",
    "interval '-2 months'",
    "interval '3' day",
    "interval 3 day",
    "interval (1 + 2) hour",
]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with dqp.connect({"sources": {}}) as lab:
        lab.upload("days", {"d": [date(2024, 1, 31)]})
        yield lab


@pytest.mark.parametrize("interval", INTERVALS)
def test_an_interval_is_that_of_duckdb(lab: Lab, interval: str) -> None:
    ((text, moment),) = duckdb.sql(f"SELECT ({interval})::varchar, DATE '2024-01-31' + {interval}").fetchall()
    for before in (f"({interval})::varchar, DATE '2024-01-31'", f"({interval})::varchar, d"):
        assert lab.sql(f"SELECT {before} + {interval} FROM days").rows() == [(text, moment)]
