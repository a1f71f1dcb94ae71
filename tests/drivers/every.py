"""Every driver over its real database."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from dai.drivers import Driver, DriverOptions, driver_for
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from tests.drivers.conformance_cases import CASES

DATABASES = tuple(CASES)


def url_of(database: str, request: pytest.FixtureRequest) -> str:
    name = {"postgresql": "postgres_url"}.get(database, f"{database}_url")
    return str(request.getfixturevalue(name))


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def driver(database: str, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """With two connections. Afterwards none is in use."""
    made = driver_for(url_of(database, request), DriverOptions(pool_size=2, pool_wait=0.2, batch_bytes=1 << 18))
    made.update("CREATE TABLE made (n integer)", cancellation=Cancellation())
    yield made
    state = made.pool_state()
    made.close()
    assert state["open"] == state["idle"]


def load(driver: Driver, name: str, data: pa.Table, *, create: bool = False, transactional: bool = True) -> int:
    stream = Stream.of(data)
    return driver.load(name, stream, cancellation=Cancellation(), create=create, transactional=transactional)
