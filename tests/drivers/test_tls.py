"""Databases behind TLS: a URL that asks for it never gets a plain connection, and encrypted ones read everything."""

from collections.abc import Iterator
from pathlib import Path

import MySQLdb
import pytest

from dai.drivers import Driver, driver_for
from dai.drivers.mariadb import driver as mariadb
from dai.drivers.mariadb import wire as mariadb_wire
from dai.drivers.postgresql import driver as postgresql
from dai.errors import CancelledError, ConfigurationError, DatabaseUnavailableError
from dai.streams.cancellation import Cancellation
from tests.drivers.conformance_cases import CASES, every_type
from tests.drivers.statements import table, update
from tests.processes import until
from tests.servers import Server
from tests.servers.certificates import self_signed, with_certificate
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer

ROWS = 30_000
"""More than either driver reads at once."""
MODES = ["ssl_mode=REQUIRED", "ssl_mode=required", "ssl_mode=VERIFY_CA", "ssl_mode=VERIFY_IDENTITY", "ssl_ca={}"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 127.0.0.1; beside it ``other.pem``, which has signed nothing."""
    directory = tmp_path_factory.mktemp("tls")
    self_signed(directory, "other")
    return self_signed(directory, "own")


@pytest.fixture(scope="module")
def secure_mariadb(certificate: Path) -> Iterator[Server]:
    with with_certificate(MariaServer(), certificate, {"ssl": "1"}, ("ssl-cert", "ssl-key")) as server:
        yield server


@pytest.fixture(scope="module")
def secure_postgres(certificate: Path) -> Iterator[Server]:
    with with_certificate(PostgresServer(), certificate, {"ssl": "on"}, ("ssl_cert_file", "ssl_key_file")) as server:
        yield server


@pytest.mark.parametrize("mode", MODES)
def test_mariadb_without_tls_is_refused(mariadb_url: str, certificate: Path, mode: str) -> None:
    driver = driver_for(f"{mariadb_url}?{mode.format(certificate)}")
    with pytest.raises(DatabaseUnavailableError, match="encrypted connection") as caught:
        table(driver, "SELECT 1 AS one")
    assert caught.value.hint
    assert driver.pool_state()["open"] == 0
    driver.close()


@pytest.mark.parametrize("mode", ["ssl_mode=REQUIRED", "ssl_ca={}", "ssl_mode=VERIFY_IDENTITY&ssl_ca={}"])
def test_mariadb_with_certificate(secure_mariadb: Server, certificate: Path, mode: str) -> None:
    driver = driver_for(f"{secure_mariadb.url}?{mode.format(certificate)}")
    status = table(driver, "SHOW SESSION STATUS LIKE 'Ssl_cipher'").to_pylist()
    assert status[0]["Value"]
    read = table(
        driver, f"SELECT seq AS n, REPEAT('ä', seq % 100) AS t, NULL AS z FROM seq_1_to_{ROWS} WHERE seq > ?", 0
    )
    assert read.column("n").to_pylist() == list(range(1, ROWS + 1))
    assert read.column("t").to_pylist() == ["ä" * (n % 100) for n in range(1, ROWS + 1)]
    assert read.column("z").null_count == ROWS
    driver.update("CREATE TABLE loaded (n INT)", cancellation=Cancellation())
    assert driver.update("INSERT INTO loaded VALUES (?)", [(1,), (2,)], cancellation=Cancellation()) == 2
    driver.update("DROP TABLE loaded", cancellation=Cancellation())
    driver.update("CREATE TEMPORARY TABLE loaded (n TEXT)", cancellation=Cancellation())
    assert table(driver, "SELECT @x := CONNECTION_ID(), GET_LOCK('dai', 0)").num_rows == 1
    until(lambda: driver.pool_state()["open"] == driver.pool_state()["idle"])
    left = table(driver, "SELECT @x AS x, IS_FREE_LOCK('dai') AS f, @@autocommit AS a, @@time_zone AS z").to_pylist()
    assert left == [{"x": None, "f": 1, "a": 1, "z": "+00:00"}]
    stopped(driver, f"SELECT a.seq AS n FROM seq_1_to_{ROWS} a, seq_1_to_{ROWS} b")


def stopped(driver: Driver, sql: str) -> None:
    """A stream that is left half-read, and one that is cancelled, leave nothing open."""
    with driver.query(sql, cancellation=Cancellation()) as stream:
        assert next(stream).num_rows
    cancellation = Cancellation()
    with driver.query(sql, cancellation=cancellation) as stream:
        next(stream)
        cancellation.cancel()
        with pytest.raises(CancelledError):
            stream.table()
    assert table(driver, "SELECT 1 AS one").to_pylist() == [{"one": 1}]
    until(lambda: driver.pool_state()["open"] == driver.pool_state()["idle"])
    driver.close()


def test_mariadb_behind_tls_is_not_read_from_the_socket(
    secure_mariadb: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def readable(raw: object) -> bool:
        seen.append(mariadb_wire.readable(raw))
        return seen[-1]

    monkeypatch.setattr(mariadb, "readable", readable)
    for mode, plain in (("REQUIRED", False), ("DISABLED", True)):
        driver = driver_for(f"{secure_mariadb.url}?ssl_mode={mode}")
        assert table(driver, "SELECT 1 AS one").to_pylist() == [{"one": 1}]
        driver.close()
        assert set(seen) == {plain}
        seen.clear()


def test_mariadb_with_a_certificate_that_nobody_knows(secure_mariadb: Server, certificate: Path) -> None:
    authority = f"ssl_ca={certificate.with_name('other.pem')}"
    for mode in ("", "ssl_mode=REQUIRED&", "ssl_mode=VERIFY_CA&", "ssl_mode=VERIFY_IDENTITY&"):
        driver = driver_for(f"{secure_mariadb.url}?{mode}{authority}")
        with pytest.raises(DatabaseUnavailableError, match="not trusted") as caught:
            table(driver, "SELECT 1 AS one")
        assert isinstance(caught.value.__cause__, MySQLdb.Error)
        driver.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("ssl_mode=maybe", "unknown ssl_mode"),
        ("ssl_mode=DISABLED&ssl_ca=a.pem", "does not use TLS"),
        ("ssl=true", "unknown option 'ssl'"),
    ],
)
def test_mariadb_options_that_cannot_be_meant(options: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        driver_for(f"mariadb://u:p@127.0.0.1:1/d?{options}")


def test_postgresql_without_tls_is_refused(postgres_url: str) -> None:
    driver = driver_for(f"{postgres_url}?sslmode=require")
    with pytest.raises(DatabaseUnavailableError):
        table(driver, "SELECT 1 AS one")
    driver.close()


@pytest.mark.parametrize("mode", ["sslmode=require", "sslmode=verify-full&sslrootcert={}"])
def test_postgresql_with_certificate(secure_postgres: Server, certificate: Path, mode: str) -> None:
    driver = driver_for(f"{secure_postgres.url}?{mode.format(certificate)}")
    encrypted = "SELECT bool_and(ssl) AS ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE client_port > 0"
    assert table(driver, encrypted).to_pylist() == [{"ssl": True}]
    many = "SELECT n, repeat('ä', n % 100) AS t, null::int AS z FROM generate_series(1, 300000) AS n WHERE n > $1"
    read = table(driver, many.replace("$1", "?"), 0)
    assert read.column("n").to_pylist() == list(range(1, 300_001))
    assert read.column("t").slice(0, 1000).to_pylist() == ["ä" * (n % 100) for n in range(1, 1001)]
    assert read.column("z").null_count == 300_000
    driver.update("CREATE TABLE loaded (n INT)", cancellation=Cancellation())
    assert driver.update("INSERT INTO loaded VALUES (?)", [(1,), (2,)], cancellation=Cancellation()) == 2
    driver.update("DROP TABLE loaded", cancellation=Cancellation())
    stopped(driver, "SELECT a AS n FROM generate_series(1, 30000) AS a, generate_series(1, 30000) AS b")


def test_postgresql_behind_tls_is_not_read_from_the_socket(
    secure_postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(*_: object, **__: object) -> None:
        raise AssertionError("read from the socket of an encrypted connection")

    monkeypatch.setattr(postgresql, "copied", copied)
    driver = driver_for(f"{secure_postgres.url}?sslmode=require")
    assert table(driver, "SELECT n FROM generate_series(1, 300000) AS n").num_rows == 300_000
    driver.close()


def test_postgresql_reads_every_type_behind_tls_as_without(secure_postgres: Server) -> None:
    """Few rows by psycopg; many by ADBC behind TLS, and without TLS from the socket where no column is an array."""
    plain = driver_for(f"{secure_postgres.url}?sslmode=disable")
    encrypted = driver_for(f"{secure_postgres.url}?sslmode=require")
    for statement in every_type("postgresql"):
        update(plain, statement)
    no_arrays = [f"c{at}" for at, case in enumerate(CASES["postgresql"]) if not case.declared.endswith("[]")]
    many = "SELECT n, {} FROM every_type, generate_series(1, 10000) AS n ORDER BY n, id"
    for sql in ("SELECT * FROM every_type ORDER BY id", many.format(", ".join(no_arrays)), many.format("every_type.*")):
        expected = table(plain, sql)
        assert expected.num_rows
        assert table(encrypted, sql).equals(expected, check_metadata=True)
    update(plain, "DROP TABLE every_type")
    for driver in (plain, encrypted):
        driver.close()


def test_postgresql_with_a_certificate_that_nobody_knows(secure_postgres: Server, certificate: Path) -> None:
    other = certificate.with_name("other.pem")
    driver = driver_for(f"{secure_postgres.url}?sslmode=verify-ca&sslrootcert={other}")
    with pytest.raises(DatabaseUnavailableError):
        table(driver, "SELECT 1 AS one")
    driver.close()
