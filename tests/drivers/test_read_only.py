"""Who may only read cannot write: what is no query is refused by its text, and what a query hides by the database."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dai.drivers import Driver, DriverOptions, driver_for
from dai.errors import DaiError, NotAQueryError
from dai.streams.cancellation import Cancellation
from tests.drivers.conformance_cases import CASES
from tests.drivers.statements import table, update

_URLS = {"postgresql": "postgres_module_url", "mariadb": "mariadb_module_url", "mysql": "mysql_module_url"}
_MARIADB = ("CREATE FUNCTION writes() RETURNS int BEGIN INSERT INTO target VALUES (2); RETURN 2; END",)
_ESCAPES = "CREATE FUNCTION escapes() RETURNS int {}; INSERT INTO target VALUES (2); RETURN 2; END"
SETUP = {
    "postgresql": (
        "CREATE SEQUENCE numbers",
        "CREATE FUNCTION writes() RETURNS int LANGUAGE sql AS 'INSERT INTO target VALUES (2) RETURNING n'",
        _ESCAPES.format("LANGUAGE plpgsql AS $$ BEGIN SET TRANSACTION READ WRITE") + " $$",
    ),
    "mariadb": (
        *_MARIADB,
        "CREATE SEQUENCE numbers",
        _ESCAPES.format("BEGIN SET SESSION TRANSACTION READ WRITE"),
    ),
    "mysql": _MARIADB,
    "duckdb": ("CREATE SEQUENCE numbers",),
}
EVERYWHERE = (
    "INSERT INTO target VALUES (2)",
    "UPDATE target SET n = 2",
    "DELETE FROM target",
    "DROP TABLE target",
    "CREATE TABLE further AS SELECT 1 AS n",
    "ALTER TABLE target ADD COLUMN m int",
    "SELECT 1; DELETE FROM target",
    "SELECT 1; COMMIT; DELETE FROM target",
    "COMMIT",
    "ROLLBACK; DELETE FROM target",
    "WITH a AS (SELECT 2 AS n) INSERT INTO target SELECT n FROM a",
    "WITH a AS (DELETE FROM target RETURNING n) SELECT n FROM a",
    "/* SELECT */ DELETE FROM target",
    "SET TRANSACTION READ WRITE",
)
_SERVER = ("SELECT writes() AS n", "SELECT n FROM target WHERE writes() > 0", "PREPARE p FROM 'DELETE FROM target'")
_FILES = (
    "SELECT n INTO OUTFILE '{}' FROM target",
    "SELECT 1 INTO DUMPFILE '{}'",
    "SELECT 1.INTO OUTFILE '{}'",
    "SELECT 1e1INTO OUTFILE '{}'",
    "SELECT 1 MERGE INTO OUTFILE '{}'",
    "SELECT @INSERT INTO OUTFILE '{}'",
    "SELECT t.AS INTO OUTFILE '{}' FROM (SELECT 1 AS `AS`) t",
    "SELECT 1 --\x7f '\n INTO OUTFILE '{}' -- '",
    "SELECT 1 --\u00a0a INTO OUTFILE '{}' FROM (SELECT 1 AS `\u00a0a`) t",
    "/*! DELETE FROM target */",
    # a server that is older than the comment says does not look for the end of its strings
    "/*!99999 SELECT ' */ DROP TABLE target /*!99999 ' */",
    "/*!99999 SELECT ' */ CREATE TABLE further AS SELECT 1 AS n /*!99999 ' */",
    "SELECT 1 /*!99999 ' */ INTO OUTFILE '{}' /*!99999 ' */",
    "SHOW GRANTS",
    "SHOW CREATE USER",
)
_EMBEDDED = ("ATTACH '{}' AS other", "COPY target TO '{}'", "VACUUM INTO '{}'", "PRAGMA query_only = OFF")
FURTHER = {
    "postgresql": (
        *_SERVER,
        "SELECT escapes() AS n",
        "SELECT set_config('transaction_read_only', 'off', true), writes()",
        "SELECT nextval('numbers')",
        "SELECT setval('numbers', 7)",
        "SELECT n INTO further FROM target",
        "DO $$ BEGIN DELETE FROM target; END $$",
        "EXPLAIN ANALYZE DELETE FROM target",
        "SELECT query_to_xml('DELETE FROM target RETURNING n', true, true, '')",
        "COPY target TO '{}'",
        "TRUNCATE target",
    ),
    "mariadb": (
        *_SERVER,
        *_FILES,
        "SELECT escapes() AS n",
        "SELECT NEXTVAL(numbers) AS n",
        "SELECT SETVAL(numbers, 7) AS n",
        "ANALYZE DELETE FROM target",
        "BEGIN NOT ATOMIC DELETE FROM target; END",
        "EXECUTE IMMEDIATE 'DELETE FROM target'",
        "TRUNCATE target",
    ),
    "mysql": (*_SERVER, *_FILES, "EXPLAIN ANALYZE DELETE FROM target", "TRUNCATE target"),
    "sqlite": (*_EMBEDDED, "PRAGMA writable_schema = ON", "PRAGMA user_version = 7", "REPLACE INTO target VALUES (2)"),
    "duckdb": (
        *_EMBEDDED,
        "SELECT nextval('numbers')",
        "SELECT * FROM query('DELETE FROM target')",
        "EXPORT DATABASE '{}'",
        "EXPLAIN ANALYZE DELETE FROM target",
        "PREPARE p AS DELETE FROM target",
        "FROM target SELECT n; TRUNCATE target",
    ),
}


REFUSED = (
    *EVERYWHERE[:3],
    "WITH a AS (SELECT 2 AS n) INSERT INTO target SELECT n FROM a",
    "WITH a AS (DELETE FROM target RETURNING n) SELECT n FROM a",
    "/* SELECT */ DELETE FROM target",
)
_DEFINITIONS = (
    "DROP TABLE target",
    "TRUNCATE target",
    "CREATE TABLE further (n int)",
    "ALTER TABLE target ADD COLUMN m int",
    "CREATE VIEW further AS SELECT n FROM target",
)
REFUSED_FURTHER = {
    "postgresql": (*_SERVER[:2], *_DEFINITIONS, "SELECT escapes() AS n", "SELECT setval('numbers', 7)"),
    "mariadb": (*_SERVER[:2], *_DEFINITIONS, "RENAME TABLE target TO further", "SELECT escapes() AS n"),
    "mysql": (*_SERVER[:2], *_DEFINITIONS, "RENAME TABLE target TO further", "CREATE USER further"),
    "duckdb": ("DROP TABLE target", "SELECT nextval('numbers')"),
}
STATEMENTS = [(name, sql) for name in CASES for sql in (*EVERYWHERE, *FURTHER[name])]


@pytest.fixture(scope="module")
def drivers() -> Iterator[dict[str, Driver]]:
    """Those that a test asked for, each with its table."""
    drivers: dict[str, Driver] = {}
    yield drivers
    for each in drivers.values():
        each.close()


@pytest.fixture
def driver(
    database: str, drivers: dict[str, Driver], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Driver:
    if database not in drivers:
        name = _URLS.get(database)
        file = tmp_path_factory.mktemp("read_only") / "data.db"
        url = str(request.getfixturevalue(name)) if name else f"{database}:///{file}"
        drivers[database] = driver_for(url, DriverOptions(pool_size=1))
        for sql in ("CREATE TABLE target (n integer)", "INSERT INTO target VALUES (1)", *SETUP.get(database, ())):
            update(drivers[database], sql)
    return drivers[database]


@pytest.mark.parametrize(("database", "sql"), STATEMENTS)
def test_no_query_writes(driver: Driver, tmp_path: Path, sql: str) -> None:
    tables, file = driver.tables(), tmp_path / "written"
    with pytest.raises(DaiError):
        table(driver, sql.replace("{}", str(file)))
    assert table(driver, "SELECT * FROM target").to_pydict() == {"n": [1]}
    assert driver.tables() == tables
    assert not file.exists()


@pytest.mark.parametrize(
    ("database", "sql"), [(name, sql) for name in CASES for sql in (*REFUSED, *REFUSED_FURTHER.get(name, ()))]
)
def test_the_database_refuses_by_itself(driver: Driver, sql: str) -> None:
    """Where nobody asks whether the statement looks like a query."""
    with pytest.raises(DaiError), driver.transaction(cancellation=Cancellation(), read_only=True) as session:
        session.update(sql)
    assert table(driver, "SELECT * FROM target").to_pydict() == {"n": [1]}


@pytest.mark.parametrize(("database", "sql"), [each for each in STATEMENTS if each[0] in _URLS and "{}" not in each[1]])
def test_no_query_writes_though_nobody_looks_at_its_text(
    driver: Driver, sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second lock. What it leaves to the first: files and settings of the server."""
    for module in ("connections.pooled", "mariadb.driver", "postgresql.driver"):
        monkeypatch.setattr(f"dai.drivers.{module}.single_query", lambda sql, _: sql)
    for statement in (sql, f"{sql} ", "SELECT 1 AS n"):
        with suppress(DaiError):
            table(driver, statement)
    monkeypatch.undo()
    assert table(driver, "SELECT * FROM target").to_pydict() == {"n": [1]}
    assert {each.name for each in driver.tables()} <= {"target", "numbers"}


@pytest.mark.parametrize("database", ["mariadb", "mysql"])
@pytest.mark.parametrize("lock", ["LOCK IN SHARE MODE", "lock/**/in share mode", "FOR SHARE", "FOR UPDATE NOWAIT"])
def test_who_reads_locks_no_rows(driver: Driver, lock: str) -> None:
    """Writers waited for as long as the query ran, also in a transaction that only reads."""
    for sql in (f"SELECT n FROM target {lock}", f"SELECT * FROM (SELECT n FROM target {lock}) t"):
        with pytest.raises(NotAQueryError, match=r"LOCK IN|FOR SHARE|FOR UPDATE"):
            table(driver, sql)
        with driver.transaction(cancellation=Cancellation(), read_only=True) as session, pytest.raises(NotAQueryError):
            session.query(sql)


@pytest.mark.parametrize("database", ["mariadb", "mysql"])
def test_who_writes_may_lock_rows_first(driver: Driver) -> None:
    with driver.transaction(cancellation=Cancellation()) as session:
        assert session.query("SELECT n FROM target FOR UPDATE").table().num_rows == 1


@pytest.mark.parametrize("database", ["mariadb", "mysql"])
def test_who_writes_may_go_on_after_a_definition(driver: Driver) -> None:
    """It ends the transaction; the next one of the session writes, too. The next user of the connection reads only."""
    with driver.transaction(cancellation=Cancellation()) as session:
        session.update("CREATE TABLE further (n int)")
        session.update("INSERT INTO further VALUES (3)")
        session.update("DROP TABLE further")
    with pytest.raises(DaiError), driver.transaction(cancellation=Cancellation(), read_only=True) as session:
        session.update("DROP TABLE target")


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"])
def test_the_function_writes_where_it_may(driver: Driver) -> None:
    with driver.transaction(cancellation=Cancellation()) as session:
        session.query("SELECT writes() AS n").table()
        assert session.query("SELECT n FROM target ORDER BY n").table().to_pydict() == {"n": [1, 2]}
        session.update("DELETE FROM target WHERE n = 2")
