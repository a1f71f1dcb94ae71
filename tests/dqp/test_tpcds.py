"""All TPC-DS queries at scale 0.1 over databases of several products: the answers of one DuckDB with all the data.

A thorough run has every placement.
"""

import os
from collections.abc import Iterator
from functools import partial

import pytest

from tests.dqp.placed import Placed, placed
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer
from tests.thoroughness import THOROUGH
from tests.tpcds import PLACEMENTS, PYTHON, Generated, generated, load

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
) -> Iterator[Placed]:
    placement = PLACEMENTS[request.param]
    fill = partial(load, placement, content=content)
    directory = tmp_path_factory.mktemp(request.param)
    with placed(f"tpcds_{request.param}", placement, fill, content.tables(), (postgres, mariadb), directory) as made:
        yield made


@pytest.mark.parametrize("query", QUERIES)
def test_the_answer_of_one_database(query: str, lab: Placed, content: Generated) -> None:
    lab.check(content.queries[query])
