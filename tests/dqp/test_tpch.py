"""All TPC-H queries at scale 0.01 over four databases: the answers of one DuckDB with all the data."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import duckdb
import pyarrow as pa
import pytest

from tests.dqp.generated import differential
from tests.dqp.generated.differential import Federation, compared, order
from tests.servers import MariaServer, PostgresServer
from tests.tpch import PLACEMENTS, QUERIES, Placement, load, qualified, tables

SCALE = 0.01
SPREAD = ("four_databases", "facts_apart", "files_and_server", "nearly_all_in_maria")


@pytest.fixture(scope="module")
def content() -> Mapping[str, pa.Table]:
    return tables(SCALE)


@pytest.fixture(scope="module")
def expected(content: Mapping[str, pa.Table]) -> Callable[[str], pa.Table]:
    """The answer of one database. Texts of the sources are texts of DuckDB, decimals and dates too."""
    answers: dict[str, pa.Table] = {}
    connection = duckdb.connect()
    for name, table in content.items():
        connection.register("made", table)
        connection.execute(f"CREATE TABLE {name} AS FROM made")

    def answer(query: str) -> pa.Table:
        if query not in answers:
            answers[query] = connection.sql(QUERIES[query]).to_arrow_table()
        return answers[query]

    return answer


@pytest.fixture(scope="module", params=SPREAD)
def lab(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    mariadb: MariaServer,
    tmp_path_factory: pytest.TempPathFactory,
    content: Mapping[str, pa.Table],
) -> Iterator[tuple[Placement, Federation]]:
    """A placement and a federation over its databases."""
    placement = PLACEMENTS[request.param]
    urls = differential.files(tmp_path_factory.mktemp(request.param))
    with ExitStack() as stack:
        for alias, server in (("pg", postgres), ("maria", mariadb)):
            urls[alias] = server.create_database(request.param)
            stack.callback(server.drop_database, request.param)
        used = {alias: url for alias, url in urls.items() if alias in placement.values()}
        load(placement, used, content)
        yield placement, stack.enter_context(differential.federation(used))


@pytest.mark.parametrize("query", QUERIES)
def test_the_answer_of_one_database(
    query: str, lab: tuple[Placement, Federation], expected: Callable[[str], pa.Table]
) -> None:
    placement, federation = lab
    right = expected(query)
    assert right.num_rows
    ordered = order(QUERIES[query], right.schema.names)
    found = compared(right, federation.answer(qualified(QUERIES[query], placement)), ordered)
    assert found is None, f"{found.kind}\n{found.detail}"
