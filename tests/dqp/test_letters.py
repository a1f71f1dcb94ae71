"""Names that differ in the case of letters beyond ASCII are different names, as in DuckDB."""

from collections.abc import Iterator

import duckdb
import pytest

import dqp
from dqp.interfaces.lab import Lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with dqp.connect({"sources": {"lite": "sqlite://"}}) as lab:
        yield lab


@pytest.mark.parametrize(
    "sql",
    [
        'select "é" from (select 1 as "É", 2 as "é")',
        'with "É" as (select 1 a), "é" as (select 2 a) select * from "É"',
        'select "É".a from (select 1 a) "É", (select 2 a) "é"',
        'select "É" + 1 as "é", "é" * 2 as z from (select 1 as "É")',
        'select * exclude ("é") from (select 1 as "É", 2 as "é")',
        'select * replace (7 as "é") from (select 1 as "É", 2 as "é")',
        'select t.AÉ, "aé" from (select 1 as "aÉ", 2 as "Aé") t',
    ],
)
def test_names(lab: Lab, sql: str) -> None:
    table = lab.sql(sql).arrow()
    assert table == duckdb.sql(sql).to_arrow_table()
