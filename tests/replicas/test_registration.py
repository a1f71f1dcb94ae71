"""Services register the tables that they hold, as long as they live."""

import logging
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from dai.api.server.serve import Background, background
from dai.config import parse
from dai.errors import ConfigurationError
from dai.replicas.client import Locations, ReplicaClient, TableTarget, schema_digest
from tests.api.conftest import configured
from tests.processes import ServiceProcess, until
from tests.replicas.conftest import RpcClient
from tests.servers import free_port

pytestmark = pytest.mark.server
HERE = "http://127.0.0.1:1"
TARGET = f"{HERE}/resources/book#numbers"
Publish = Callable[..., Background]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("book") / "book.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table numbers (i integer primary key, s text)")
        connection.execute("insert into numbers values (1, 'one'), (2, 'two')")
        connection.commit()
        connection.execute("analyze")
    return f"sqlite:///{path}"


@pytest.fixture
def publish(tmp_path: Path, book: str) -> Iterator[Publish]:
    """Starts a service that registers tables with the replica service at the URL."""
    with ExitStack() as stack:

        def start(url: str, tables: dict[str, Any], **replicas: Any) -> Background:
            sections = {"service": url, "url": HERE, "publish": tables, "lease_seconds": 1.5, **replicas}
            return stack.enter_context(background(configured(tmp_path, {"book": {"url": book}}, replicas=sections)))

        yield start


@pytest.fixture
def catalog(located: Background, rpc: RpcClient) -> Iterator[ReplicaClient]:
    """Of the replica service, which is empty."""
    client = ReplicaClient(located.url)
    yield client
    client.close()


def found(catalog: ReplicaClient, *names: str) -> Locations:
    return catalog.find(names or ("sky",))


def test_a_table_is_registered_kept_alive_and_withdrawn(
    located: Background, catalog: ReplicaClient, publish: Publish, tmp_path: Path, book: str
) -> None:
    sections = {
        "service": located.url,
        "url": HERE + "/",
        "lease_seconds": 1.5,
        "publish": {"sky": {"resource": "book", "table": "numbers", "cost": 0.5}, "sky.numbers": "book#numbers"},
    }
    with background(configured(tmp_path, {"book": {"url": book}}, replicas=sections)) as running:
        until(lambda: found(catalog).attributes)
        known = found(catalog, "sky", "none")
        assert known.targets == {"sky": [TARGET]}
        attributes = dict(known.attributes[TARGET])
        expires = attributes.pop("expires")
        (table,) = running.service.resources["book"].driver.tables()
        assert attributes == {"schema": schema_digest(table), "rows": 2, "cost": 0.5}
        assert known.logical == {"sky": {"schema": schema_digest(table)}}
        until(lambda: found(catalog).attributes[TARGET]["expires"] > expires)
    assert found(catalog, "sky", "sky.numbers") == Locations()


def test_the_entry_of_a_killed_service_ends_by_itself(
    located: Background, catalog: ReplicaClient, book: str, tmp_path: Path
) -> None:
    """With two processes, of which one registers."""
    section = f'[replicas]\nservice = "{located.url}"\nurl = "{HERE}"\nlease_seconds = 1.5\n'
    section += '[replicas.publish]\nsky = "book#numbers"\n'
    service = ServiceProcess(tmp_path, {"book": book}, more=section, workers=2)
    try:
        service.start()
        until(lambda: found(catalog).attributes)
        service.kill()
        until(lambda: found(catalog).attributes[TARGET]["expires"] < time.time())
        assert found(catalog).targets == {"sky": [TARGET]}
        service.start()
        until(lambda: found(catalog).attributes[TARGET]["expires"] > time.time())
    finally:
        service.stop()
    assert found(catalog) == Locations()


def test_a_replica_service_that_is_away_is_asked_again(publish: Publish, tmp_path: Path) -> None:
    port = free_port()
    service = publish(f"http://127.0.0.1:{port}", {"sky": "book#numbers"})
    assert httpx.get(f"{service.url}/resources/book").status_code == 200
    directory = tmp_path / "late"
    directory.mkdir()
    late = configured(directory, {}, service={"port": port}, replicas={"catalog": "sqlite:///replicas.db"})
    with background(late) as running:
        catalog = ReplicaClient(running.url)
        until(lambda: found(catalog).targets == {"sky": [TARGET]})
        catalog.close()
    # it is away again, and the service still answers and stops
    assert httpx.get(f"{service.url}/resources/book").status_code == 200


def test_a_replica_service_that_says_nothing_keeps_no_service_from_stopping(tmp_path: Path, book: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        sections = {"service": url, "url": HERE, "publish": {"sky": "book#numbers"}}
        with background(configured(tmp_path, {"book": {"url": book}}, replicas=sections)) as running:
            connection, _ = silent.accept()
            assert httpx.get(f"{running.url}/resources/book").status_code == 200
        assert running.service.registration is not None
        running.service.registration._thread.join()
        connection.close()


def test_a_table_that_is_not_there_keeps_no_other_from_being_registered(
    located: Background, catalog: ReplicaClient, publish: Publish, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dai.replicas"):
        publish(located.url, {"sky": "book#numbers", "none": "book#nubmers"})
        until(lambda: found(catalog).attributes)
    assert found(catalog, "sky", "none").targets == {"sky": [TARGET]}
    assert "There is no table book#nubmers. Did you mean 'numbers'?" in caplog.messages


def test_the_first_table_says_the_schema_of_a_name(catalog: ReplicaClient) -> None:
    first, second = TableTarget("http://a/resources/r", "t"), TableTarget("http://b/resources/r", "s.t")
    assert catalog.register({("t", first): {"schema": "one", "rows": 1}}) == []
    assert catalog.register({("t", second): {"schema": "two", "rows": 2, "expires": 86_400.0}}) == []
    known = found(catalog, "t")
    assert known.logical == {"t": {"schema": "one"}}
    assert known.attributes[str(second)] == {"schema": "two", "rows": 2, "expires": 86_400.0}
    catalog.withdraw([("t", first), ("t", second)])
    assert found(catalog, "t") == Locations()


@pytest.mark.parametrize(
    ("target", "table"),
    [
        ("https://a/resources/r#t", TableTarget("https://a/resources/r", "t")),
        ("https://a/base/resources/r%20s#s.t%23", TableTarget("https://a/base/resources/r%20s", "s.t#")),
        ("https://a/r#t", TableTarget("https://a/resources/r", "t")),
        ("https://a/resources/r", None),
        ("gsiftp://a/resources/r#t", None),
        ("r#t", None),
        ("https://[a#t", None),
    ],
)
def test_targets_that_are_tables(target: str, table: TableTarget | None) -> None:
    assert TableTarget.of(target) == table
    assert table is None or TableTarget.of(str(table)) == table


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"service": HERE}, "replicas.service and"),
        ({"publish": {"sky": "book#numbers"}}, "replicas.service and"),
        ({"service": "book", "url": HERE, "publish": {"sky": "book#numbers"}}, "not the URL of a service"),
        ({"service": HERE, "publish": {"sky": "book#numbers"}}, "replicas.url must be the address"),
        ({"service": HERE, "url": "rlsn://here", "publish": {"sky": "book#numbers"}}, "replicas.url must be"),
        ({"service": HERE, "url": HERE, "publish": {"sky": "book"}}, "sky must name a resource and a table"),
        ({"service": HERE, "url": HERE, "publish": {"sky": "boko#t"}}, "no resource 'boko'.\nDid you mean 'book'?"),
        ({"service": HERE, "url": HERE, "publish": {"": "book#t"}}, "a logical name must have"),
        ({"service": HERE, "url": HERE, "publish": ["sky"]}, "must be a section"),
        ({"service": HERE, "url": HERE, "publish": {"a": {"resource": "book", "table": "t", "prize": 1.0}}}, "'prize'"),
        ({"service": HERE, "url": HERE, "lease_seconds": 0, "publish": {"a": "book#t"}}, "more than 0"),
    ],
)
def test_what_cannot_be(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse({"resources": {"book": {"url": "sqlite://"}}, "replicas": sections}, ".", {})
    assert said in f"{raised.value} {raised.value.hint}"


def test_values_and_attributes_in_one_request(located: Background, rpc: RpcClient) -> None:
    url = f"{located.url}/replicas"
    httpx.post(f"{url}/mappings", json={"mappings": [{"logical": "l", "target": "t"}, {"logical": "m", "target": "t"}]})
    httpx.post(f"{url}/attributes", json={"attributes": [{"name": "day", "of": "target", "type": "date"}]})
    value = {"of": "target", "key": "t", "name": "day", "type": "date", "value": "2026-01-02"}
    for day in ("2026-01-02", "2026-01-03"):
        answer = httpx.post(f"{url}/values?mode=put", json={"values": [{**value, "value": day}]})
        assert answer.json() == {"done": 1, "refused": []}
    asked = {"names": ["l", "none"], "attributes": True}
    assert httpx.post(f"{url}/mappings/query", json=asked).json() == {
        "found": {"l": ["t"]},
        "missing": ["none"],
        "attributes": {"logical": {}, "target": {"t": {"day": {"type": "date", "value": "2026-01-03 00:00:00"}}}},
    }
    turned = httpx.post(f"{url}/mappings/query", json={"of": "target", "names": ["t"], "attributes": True}).json()
    assert turned["found"] == {"t": ["l", "m"]}
    assert set(turned["attributes"]["target"]) == {"t"}
