"""All TPC-DS queries at scale 0.1 over databases of several products: the answers of one DuckDB with all the data.

A thorough run has every placement.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import duckdb
import pytest

from tests.dqp.generated import differential
from tests.dqp.generated.differential import Connected, Federation, compared, order
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer
from tests.thoroughness import THOROUGH
from tests.tpcds import PLACEMENTS, PYTHON, Generated, generated, load
from tests.tpch import Placement, gather, qualified

SCALE = float(os.environ.get("DQP_TPCDS_SCALE", "0.1"))
SPREAD = [*PLACEMENTS] if THOROUGH else ["four_databases"]
QUERIES = [f"q{number:02}" for number in range(1, 100)]

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="the generator is not installed: run perf/peers/install")


@pytest.fixture(scope="module")
def content() -> Iterator[Generated]:
    with generated(SCALE) as files:
        yield files


@pytest.fixture(scope="module", params=SPREAD)
def lab(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    mariadb: MariaServer,
    tmp_path_factory: pytest.TempPathFactory,
    content: Generated,
) -> Iterator[tuple[Placement, Federation, duckdb.DuckDBPyConnection]]:
    """A placement, a federation over its databases, and the one database that holds all the data."""
    placement = PLACEMENTS[request.param]
    urls = differential.files(tmp_path_factory.mktemp(request.param))
    with ExitStack() as stack:
        for alias, server in (("pg", postgres), ("maria", mariadb)):
            urls[alias] = server.create_database(f"tpcds_{request.param}")
            stack.callback(server.drop_database, f"tpcds_{request.param}")
        used = {alias: url for alias, url in urls.items() if alias in placement.values()}
        load(placement, used, content)
        whole = stack.enter_context(duckdb.connect())
        gather(whole, content.tables(), placement)
        yield placement, stack.enter_context(Connected(used)), whole


@pytest.mark.parametrize("query", QUERIES)
def test_the_answer_of_one_database(
    query: str, lab: tuple[Placement, Federation, duckdb.DuckDBPyConnection], content: Generated
) -> None:
    placement, federation, whole = lab
    sql = content.queries[query]
    right = whole.sql(sql).to_arrow_table()
    difference = compared(right, federation.answer(qualified(sql, placement)), order(sql, right.schema.names))
    assert difference is None, f"{difference.kind}\n{difference.detail}"
