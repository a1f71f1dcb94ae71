"""All queries of the laboratory at a small scale over four databases: the answers of one DuckDB with all the data."""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.dqp.placed import Placed, placed
from tests.laboratory import PLACEMENTS, QUERIES, generated
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer
from tests.tpcds import load

SCALE = 0.1


@pytest.fixture(scope="module")
def lab(postgres: PostgresServer, mariadb: MariaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placed]:
    placement = PLACEMENTS["n1"]
    directory = tmp_path_factory.mktemp("laboratory")
    with generated(SCALE) as content:
        fill = partial(load, placement, content=content)
        with placed("laboratory", placement, fill, content.tables(), (postgres, mariadb), directory) as made:
            yield made


@pytest.mark.parametrize("query", QUERIES)
def test_the_answer_of_one_database(query: str, lab: Placed) -> None:
    assert lab.check(QUERIES[query])
