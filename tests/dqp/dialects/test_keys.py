"""Long lists of whole numbers, in every dialect."""

from pathlib import Path

import pytest

import dqp
from dai.drivers import driver_for
from dai.streams.cancellation import Cancellation
from dqp.algebra.keys import in_numbers
from dqp.algebra.operators import Filter, Scan
from dqp.sql import dialects

TYPES = {"smallint": 2, "integer": -3, "bigint": 10**12}
"""With what the row number is multiplied."""
WANTED = (0, 3, 4, 99, 1_000)


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb", "sqlite", "duckdb"])
def test_keys(dialect: str, postgres_module_url: str, mariadb_module_url: str, tmp_path: Path) -> None:
    url = {
        "postgresql": postgres_module_url,
        "mariadb": mariadb_module_url,
        "sqlite": f"sqlite:///{tmp_path / 'x.sqlite'}",
        "duckdb": f"duckdb:///{tmp_path / 'x.duckdb'}",
    }[dialect]
    driver = driver_for(url)
    columns = ", ".join(f"{name[0]} {name}" for name in TYPES)
    rows = ", ".join(f"({', '.join(str(at * each) for each in TYPES.values())})" for at in range(100))
    for sql in ("DROP TABLE IF EXISTS numbers", f"CREATE TABLE numbers ({columns})"):
        driver.update(sql, cancellation=Cancellation())
    driver.update(f"INSERT INTO numbers VALUES {rows}, (NULL, NULL, NULL)", cancellation=Cancellation())
    driver.close()
    with dqp.connect({"sources": {"there": url}}) as lab:
        table = lab.coordinator.catalog.table("there", "numbers")
        source = lab.coordinator.catalog.sources["there"]
        for name, factor in TYPES.items():
            keys = in_numbers("k", sorted(at * factor for at in WANTED), 0.1)
            statement = dialects.statement(Filter(Scan(table, (("k", name[0]),)), keys.copy()), source.dialect)
            actual = source.query(statement.sql, cancellation=Cancellation()).table()
            assert sorted(actual.column(0).to_pylist()) == sorted(at * factor for at in WANTED if at < 100)
