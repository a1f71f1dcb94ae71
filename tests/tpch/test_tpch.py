"""The queries parse, are qualified without touching anything else, and find rows; what is loaded is what was made."""

from collections.abc import Iterator, Mapping

import duckdb
import pyarrow as pa
import pytest

from dai.drivers import driver_for
from dai.streams.cancellation import Cancellation
from tests.tpch import METADATA, PLACEMENTS, QUERIES, TABLES, Placement, load, qualified, tables

SMALLEST = 0.01


@pytest.fixture(scope="module")
def content() -> Mapping[str, pa.Table]:
    return tables(SMALLEST)


def test_no_scale_with_repeated_keys() -> None:
    with pytest.raises(ValueError):
        tables(0.001)


def test_there_are_all_queries() -> None:
    assert list(QUERIES) == [f"q{number:02}" for number in range(1, 23)]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_placement_holds_every_table(name: str) -> None:
    assert set(PLACEMENTS[name]) == set(TABLES)


def test_only_names_of_tables_are_qualified() -> None:
    sql = "with part as (select 1 as a) select nation, 'from nation' from (select n_name as nation from nation) t, part"
    assert qualified(sql, {"nation": "pg"}) == sql.replace("from nation)", "from pg.nation)")


TWO_SCHEMAS: Placement = {name: ("one", "two")[at % 2] for at, name in enumerate(TABLES)}


@pytest.fixture(scope="module")
def databases(content: Mapping[str, pa.Table]) -> Iterator[tuple[duckdb.DuckDBPyConnection, duckdb.DuckDBPyConnection]]:
    """The tables in one schema, and in two."""
    with duckdb.connect() as together, duckdb.connect() as apart:
        apart.execute("CREATE SCHEMA one; CREATE SCHEMA two")
        for name, table in content.items():
            for connection, at in ((together, name), (apart, f"{TWO_SCHEMAS[name]}.{name}")):
                connection.register("made", table)
                connection.execute(f"CREATE TABLE {at} AS FROM made")
                connection.unregister("made")
        yield together, apart


@pytest.mark.parametrize("query", QUERIES)
def test_the_qualified_query_is_the_query(
    query: str, databases: tuple[duckdb.DuckDBPyConnection, duckdb.DuckDBPyConnection]
) -> None:
    together, apart = databases
    expected = together.sql(QUERIES[query]).fetchall()
    assert expected
    assert apart.sql(qualified(QUERIES[query], TWO_SCHEMAS)).fetchall() == expected


def test_what_is_loaded_is_what_was_made(
    postgres_url: str, mariadb_url: str, sqlite_url: str, duckdb_url: str, content: Mapping[str, pa.Table]
) -> None:
    urls = {"pg": postgres_url, "maria": mariadb_url, "lite": sqlite_url, "duck": duckdb_url}
    placement = PLACEMENTS["four_databases"]
    load(placement, urls, content)
    for alias, url in urls.items():
        driver = driver_for(url)
        try:
            infos = {info.name: info for info in driver.tables()}
            assert set(infos) == {name for name, at in placement.items() if at == alias}
            for name, info in infos.items():
                key = [column.name for column in METADATA.tables[name].primary_key]
                assert list(info.primary_key) == key
                order = ", ".join(key)
                table = driver.query(f"SELECT * FROM {name} ORDER BY {order}", cancellation=Cancellation()).table()
                assert table.num_rows > 0
                assert table.cast(content[name].schema).equals(
                    content[name].sort_by([(each, "ascending") for each in key])
                )
        finally:
            driver.close()
