"""Threads, a Flight port, and catalogs over sources that a test gives."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dqp.catalog import Catalog
from dqp.flight import FlightPort
from dqp.settings import FederationSettings
from dqp.sources import Source


@pytest.fixture
def port():
    with FlightPort() as port:
        yield port
    assert not port._gets


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture
def made() -> Iterator[Callable[..., Catalog]]:
    catalogs = []

    def make(*sources: Source, **settings: Any) -> Catalog:
        catalog = Catalog(FederationSettings(**settings), sources=sources)
        catalogs.append(catalog)
        return catalog

    yield make
    for each in catalogs:
        each.close()
