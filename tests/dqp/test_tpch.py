"""All TPC-H queries at scale 0.01 over four databases: the answers of one DuckDB with all the data."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import duckdb
import pyarrow as pa
import pytest

from tests.dqp.generated import differential
from tests.dqp.generated.differential import Connected, Federation, compared, order
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer
from tests.tpch import PLACEMENTS, QUERIES, Placement, gather, load, qualified, smallest

SPREAD = ("four_databases", "facts_apart", "files_and_server", "nearly_all_in_maria")


@pytest.fixture(scope="module")
def content() -> Mapping[str, pa.Table]:
    return smallest()


@pytest.fixture(scope="module", params=SPREAD)
def lab(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    mariadb: MariaServer,
    tmp_path_factory: pytest.TempPathFactory,
    content: Mapping[str, pa.Table],
) -> Iterator[tuple[Placement, Federation, duckdb.DuckDBPyConnection]]:
    """A placement, a federation over its databases, and the one database that holds all the data."""
    placement = PLACEMENTS[request.param]
    urls = differential.files(tmp_path_factory.mktemp(request.param))
    with ExitStack() as stack:
        for alias, server in (("pg", postgres), ("maria", mariadb)):
            urls[alias] = server.create_database(request.param)
            stack.callback(server.drop_database, request.param)
        used = {alias: url for alias, url in urls.items() if alias in placement.values()}
        load(placement, used, content)
        whole = stack.enter_context(duckdb.connect())
        gather(whole, content, placement)
        yield placement, stack.enter_context(Connected(used)), whole


@pytest.mark.parametrize("query", QUERIES)
def test_the_answer_of_one_database(query: str, lab: tuple[Placement, Federation, duckdb.DuckDBPyConnection]) -> None:
    placement, federation, whole = lab
    right = whole.sql(QUERIES[query]).to_arrow_table()
    assert right.num_rows
    ordered = order(QUERIES[query], right.schema.names)
    difference = compared(right, federation.answer(qualified(QUERIES[query], placement)), ordered)
    assert difference is None, f"{difference.kind}\n{difference.detail}"
