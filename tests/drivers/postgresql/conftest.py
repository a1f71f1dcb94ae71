"""A driver of PostgreSQL, and the paths by which it reads."""

from collections.abc import Iterator

import pytest

from dai.drivers import DriverOptions, driver_for
from dai.drivers.postgresql import driver as postgresql
from dai.drivers.postgresql.driver import PostgreSQL


@pytest.fixture(scope="module")
def module_driver(postgres_module_url: str) -> Iterator[PostgreSQL]:
    driver = driver_for(postgres_module_url, DriverOptions(pool_size=4, pool_wait=5, batch_bytes=1 << 20))
    assert isinstance(driver, PostgreSQL)
    yield driver
    driver.close()


@pytest.fixture
def driver(module_driver: PostgreSQL) -> Iterator[PostgreSQL]:
    """Afterwards every connection that is open is idle again."""
    yield module_driver
    state = module_driver.pool_state()
    assert state["open"] == state["idle"]


@pytest.fixture(params=["few", "many", "adbc"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every query by psycopg, every one by COPY from the socket where that can be, or every one by ADBC."""
    few = request.param == "few"
    monkeypatch.setattr(postgresql, "is_small", lambda *_: few)
    if request.param == "adbc":
        monkeypatch.setattr(postgresql, "readable", lambda _: False)
    return str(request.param)
