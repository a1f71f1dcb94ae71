"""Threads, a Flight port, catalogs over sources that a test gives, and the databases of the generated queries."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.source import Source
from dqp.runtimes.flight.server import FlightPort
from dqp.settings import FederationSettings
from tests.dqp.generated import differential
from tests.dqp.generated.differential import Connected
from tests.processes import SECONDS


@pytest.fixture
def port():
    with FlightPort() as port:
        yield port
    assert not port._gets


@pytest.fixture(autouse=True)
def samples_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first query of a federation has them, however busy the machine is."""
    monkeypatch.setattr("dqp.catalog.statistics.kept.SAMPLE_SECONDS", SECONDS)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a query waits for what all evaluators say of it, however long they take."""
    for name in ("PROFILES", "REPORTS"):
        monkeypatch.setattr(f"dqp.runtimes.attempt.{name}", SECONDS)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture(scope="module")
def generated(
    postgres_module_url: str, mariadb_module_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Connected]:
    """The four databases of the generated queries."""
    urls = {"pg": postgres_module_url, "maria": mariadb_module_url}
    urls |= differential.files(tmp_path_factory.mktemp("generated"))
    differential.load(urls)
    with Connected(urls) as connected:
        yield connected


@pytest.fixture
def catalog_of() -> Iterator[Callable[..., Catalog]]:
    catalogs = []

    def make(*sources: Source, **settings: Any) -> Catalog:
        catalog = Catalog(FederationSettings(**settings), sources=sources)
        catalogs.append(catalog)
        return catalog

    yield make
    for each in catalogs:
        each.close()
