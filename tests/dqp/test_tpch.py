"""All TPC-H queries at scale 0.01 over four databases: the answers of one DuckDB with all the data.

A commit has one of the placements, a thorough run has all.
"""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.dqp.placed import Placed, placed
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer
from tests.thoroughness import part
from tests.tpch import PLACEMENTS, QUERIES, load, smallest

SPREAD = part(("four_databases", "facts_apart", "files_and_server", "nearly_all_in_maria"))


@pytest.fixture(scope="module", params=SPREAD)
def lab(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    mariadb: MariaServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Placed]:
    placement, content = PLACEMENTS[request.param], smallest()
    fill = partial(load, placement, content=content)
    directory = tmp_path_factory.mktemp(request.param)
    with placed(request.param, placement, fill, content, (postgres, mariadb), directory) as made:
        yield made


@pytest.mark.parametrize("query", QUERIES)
def test_the_answer_of_one_database(query: str, lab: Placed) -> None:
    assert lab.check(QUERIES[query])
