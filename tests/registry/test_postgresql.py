"""A registry in PostgreSQL: two services over one database say the same, whoever changes what, and SPARQL follows."""

import threading
from collections.abc import Iterator

import pytest

from dai.config import RegistryConfig
from dai.security.identity import Caller
from dai.service.registry import operations
from dai.service.registry.entries import Entry
from dai.service.registry.operations import Publication
from dai.service.registry.registry import Registry
from dai.service.registry.sparql.process import SOLUTIONS, Queries
from tests.servers.postgresql import PostgresServer

pytestmark = pytest.mark.server
ALICE = Caller("alice")
COUNT = 40


@pytest.fixture
def config(postgres: PostgresServer) -> Iterator[RegistryConfig]:
    yield RegistryConfig(store=postgres.create_database("registry"))
    postgres.drop_database("registry")


def test_two_services_over_one_database(config: RegistryConfig) -> None:
    first, second = Registry(config), Registry(config)
    queries = Queries(config)

    def publish(registry: Registry, name: str) -> None:
        for each in range(COUNT):
            entry = Entry(key=f"urn:{name}:{each}", kind="service", names=((name, ""),))
            registry.change(lambda draft, new=entry: operations.publish(draft, ALICE, [Publication(new, 500)], config))

    threads = [threading.Thread(target=publish, args=each) for each in ((first, "a"), (second, "b"), (first, "c"))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for registry in (first, second):
        with registry.reading() as mirror:
            assert len(mirror.entries) == 3 * COUNT
    changes = second.changes(0, 1000)
    assert changes is not None
    assert [each.number for each in changes] == list(range(1, 3 * COUNT + 1))
    query = "ask { <urn:b:0> ?p ?o }"
    assert queries.answer(query, ALICE, SOLUTIONS).body == b'{"head":{},"boolean":true}'
    first.change(lambda draft: operations.delete(draft, ALICE, ["urn:b:0"]))
    assert queries.answer(query, ALICE, SOLUTIONS).body == b'{"head":{},"boolean":false}'
    with second.reading() as mirror:
        assert "urn:b:0" not in mirror.entries
    queries.close()
    first.close()
    second.close()
