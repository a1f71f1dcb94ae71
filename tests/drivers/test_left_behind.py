"""What a caller's statements leave on a connection is gone before the next caller has it."""

from dataclasses import dataclass
from typing import Any

import pytest

from dai.drivers import DRIVERS, Driver, DriverOptions, driver_for
from dai.drivers.generic.driver import AnyDatabase
from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from tests.drivers.conformance_cases import CASES
from tests.drivers.statements import table, update
from tests.servers import PASSWORD, USER
from tests.servers.mariadb import MariaServer


@dataclass(frozen=True)
class Left:
    """``statements`` run one after the other; ``look`` shows what they left. Each gets a connection from a pool of one.
    There is a table ``book`` with one row, whose column ``n`` is 1."""

    statements: tuple[str, ...]
    look: str


_FORGED = (
    Left(("CREATE TEMPORARY TABLE book AS SELECT 99 AS n",), "SELECT n FROM book"),
    Left(("CREATE TEMPORARY TABLE left_there (n integer)",), "SELECT n FROM left_there"),
)
_FORGED_VIEW = Left(("CREATE TEMPORARY VIEW book AS SELECT 99 AS n",), "SELECT n FROM book")
_MARIADB = (
    *_FORGED,
    Left(("SELECT @x := 5",), "SELECT @x"),
    Left(("SELECT GET_LOCK('dai', 0)",), "SELECT IS_USED_LOCK('dai') = CONNECTION_ID()"),
    Left(("CREATE PROCEDURE p() SET SESSION group_concat_max_len = 4", "CALL p()"), "SELECT @@group_concat_max_len"),
    Left(("CREATE PROCEDURE p() SET SESSION time_zone = '+09:00'", "CALL p()"), "SELECT NOW() > UTC_TIMESTAMP()"),
    Left(
        ("CREATE TABLE k (n integer AUTO_INCREMENT PRIMARY KEY)", "INSERT INTO k VALUES ()"), "SELECT LAST_INSERT_ID()"
    ),
    Left(
        ("CREATE FUNCTION f() RETURNS int RETURN GET_LOCK('dai', 0)", "SELECT f()"),
        "SELECT IS_USED_LOCK('dai') = CONNECTION_ID()",
    ),
)
LEFT: dict[str, tuple[Left, ...]] = {
    "postgresql": (
        *_FORGED,
        _FORGED_VIEW,
        Left(("SET TimeZone = 'Asia/Tokyo'",), "SELECT current_setting('TimeZone')"),
        Left(("SET search_path = pg_catalog",), "SELECT n FROM book"),
        Left(("SELECT set_config('TimeZone', 'Asia/Tokyo', false)",), "SELECT current_setting('TimeZone')"),
        Left(
            ("SELECT pg_advisory_lock(7)",),
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        ),
        Left(
            ("DO $$ BEGIN PERFORM pg_advisory_lock(7); END $$",),
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        ),
        Left(("LISTEN dai",), "SELECT count(*) FROM pg_listening_channels()"),
        Left(("DO $$ BEGIN EXECUTE 'PREPARE q AS SELECT 1'; END $$",), "SELECT count(*) FROM pg_prepared_statements"),
        Left(("DECLARE c CURSOR WITH HOLD FOR SELECT 1",), "SELECT count(*) FROM pg_cursors WHERE name = 'c'"),
        Left(("CREATE SEQUENCE s", "DO $$ BEGIN PERFORM nextval('s'); END $$"), "SELECT lastval()"),
    ),
    "mariadb": _MARIADB,
    "mysql": _MARIADB,
    "sqlite": (
        *_FORGED,
        _FORGED_VIEW,
        Left(
            ("CREATE TEMPORARY TRIGGER t AFTER INSERT ON book BEGIN DELETE FROM book; END",),
            "SELECT count(*) FROM sqlite_temp_master",
        ),
    ),
    "duckdb": (
        *_FORGED,
        _FORGED_VIEW,
        Left(("CREATE TEMPORARY MACRO upper(x) AS 'forged'",), "SELECT upper('a')"),
        Left(("PREPARE q AS SELECT 1",), "EXECUTE q"),
    ),
    "any": (*_FORGED, _FORGED_VIEW),
}


def opened(database: str, request: pytest.FixtureRequest) -> Driver:
    options = DriverOptions(pool_size=1, pool_wait=5)
    if database == "any":
        url = str(request.getfixturevalue("sqlite_url"))
        return AnyDatabase.connect(url.replace("sqlite:", "sqlite+pysqlite:"), options)
    name = {"postgresql": "postgres_url"}.get(database, f"{database}_url")
    return driver_for(str(request.getfixturevalue(name)), options)


def left(driver: Driver, statement: str) -> None:
    if statement.startswith("SELECT"):
        table(driver, statement)
    else:
        update(driver, statement)


def looked(driver: Driver, look: str) -> list[Any]:
    """What a transaction and a query see: values, or that they are refused. (Both by the connection of an update, in
    databases where queries have others.)"""
    actual: list[Any] = []
    try:
        with driver.transaction(cancellation=Cancellation()) as session:
            actual.append(session.query(look).table().to_pylist())
    except DaiError as error:
        actual.append(type(error))
    try:
        actual.append(table(driver, look).to_pylist())
    except DaiError as error:
        actual.append(type(error))
    return actual


TESTED = [name for name in DRIVERS if name in CASES or name == "any"]


@pytest.mark.parametrize(
    ("database", "left_there"),
    [pytest.param(name, each, id=f"{name}-{each.statements[-1]:.40}") for name in TESTED for each in LEFT[name]],
)
def test_nothing_that_a_statement_left_reaches_the_next_caller(
    database: str, left_there: Left, request: pytest.FixtureRequest
) -> None:
    driver, fresh = opened(database, request), opened(database, request)
    try:
        update(driver, "CREATE TABLE book AS SELECT 1 AS n")
        for statement in left_there.statements:
            left(driver, statement)
        assert looked(driver, left_there.look) == looked(fresh, left_there.look)
        assert driver.pool_state()["open"] == driver.pool_state()["idle"]
    finally:
        driver.close()
        fresh.close()


@pytest.mark.server
def test_nobody_chooses_the_random_numbers_of_the_next_caller(request: pytest.FixtureRequest) -> None:
    driver = opened("postgresql", request)
    try:
        drawn = set()
        for seed in (left, lambda driver, _: update(driver, "DO $$ BEGIN PERFORM setseed(0.5); END $$")):
            for _ in range(2):
                seed(driver, "SELECT setseed(0.5)")
                drawn.add(table(driver, "SELECT random()").column(0)[0].as_py())
        assert len(drawn) == 4
    finally:
        driver.close()


@pytest.mark.parametrize("database", ["duckdb"])
def test_a_seed_is_of_one_query_alone(database: str, request: pytest.FixtureRequest) -> None:
    driver = opened(database, request)
    actual = set()
    for _ in range(3):
        table(driver, "SELECT setseed(0.5)")
        actual.add(table(driver, "SELECT random() AS r").column(0)[0].as_py())
    driver.close()
    assert len(actual) > 1


@pytest.mark.parametrize("database", [name for name in ("mariadb", "mysql") if name in CASES])
def test_what_the_server_prepares_in_each_session_is_there_for_each_query(
    database: str, request: pytest.FixtureRequest
) -> None:
    """By init_connect, for users without privileges; the server does not run it again in a session that is reset."""
    server: MariaServer = request.getfixturevalue(database)
    url = str(request.getfixturevalue(f"{database}_url"))
    name = url.rpartition("/")[2]
    server._execute("CREATE USER plain@'127.0.0.1' IDENTIFIED BY 'plain'")
    server._execute(f"GRANT SELECT ON `{name}`.* TO plain@'127.0.0.1'")
    server._execute("SET GLOBAL init_connect = 'SET @ready = 1'")
    try:
        driver = driver_for(url.replace(f"{USER}:{PASSWORD}", "plain:plain"), DriverOptions(pool_size=1))
        assert [table(driver, "SELECT @ready AS r").to_pylist() for _ in range(3)] == [[{"r": 1}]] * 3
        driver.close()
    finally:
        server._execute("SET GLOBAL init_connect = ''")
        server._execute("DROP USER plain@'127.0.0.1'")
