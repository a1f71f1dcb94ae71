"""Sources: a data service over HTTP and a driver in this process do the same."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from dai.api.server.serve import Background, background
from dai.client.testing import Scripted, ScriptedServer
from dai.config import parse
from dai.drivers import driver_for
from dai.errors import (
    CancelledError,
    ConfigurationError,
    DatabaseUnavailableError,
    DataError,
    StatementError,
    UnreachableError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.catalog.sources.configured import Credentials, sources_of
from dqp.catalog.sources.local import DescribedSource, DriverSource
from dqp.catalog.sources.service import ServiceSource
from dqp.catalog.sources.source import Source, fingerprint_of
from dqp.execution.leaves import read_as
from dqp.settings import FederationSettings, SourceSettings
from tests.processes import SECONDS, until

SCHEMA = """
create table orders (id int primary key, k int not null, amt numeric(12,2), big numeric(60,3), at timestamptz,
  tags int[], note text, unique (k));
create unique index on orders (note) where id < 100;
create schema sales;
create table sales.regions (id int primary key, name varchar(10));
insert into orders
  select i, i * 3, i / 4.0, i, '2024-01-01Z', array[i, null], 'note ' || i from generate_series(1, 20000) i;
insert into sales.regions values (1, 'north');
analyze;
"""
ENDLESS = "select a.i from generate_series(1, 100000) a(i), generate_series(1, 100000) b(i)"
SILENT = "select pg_sleep(600)"


@pytest.fixture(scope="module")
def service(postgres_module_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    with psycopg.connect(postgres_module_url) as connection:
        connection.execute(SCHEMA)
    directory = tmp_path_factory.mktemp("service")
    document = {
        "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
        "resources": {"pg": {"url": postgres_module_url}},
    }
    with background(parse(document, directory, {})) as running:
        yield running


@pytest.fixture(params=["service", "driver"])
def source(request: pytest.FixtureRequest, service: Background, postgres_module_url: str) -> Iterator[Source]:
    driver: Source = (
        ServiceSource("pg", f"{service.url}/resources/pg")
        if request.param == "service"
        else DriverSource("pg", driver_for(postgres_module_url))
    )
    yield driver
    driver.close()


def query(source: Source, sql: str, *parameters: object, cancellation: Cancellation | None = None) -> Stream:
    return source.query(sql, parameters, cancellation=cancellation or Cancellation())


@pytest.fixture
def active(postgres_module_url: str) -> Callable[[], int]:
    def count() -> int:
        with psycopg.connect(postgres_module_url) as connection:
            row = connection.execute(
                "select count(*) from pg_stat_activity where state = 'active' and pid <> pg_backend_pid() "
                "and datname = current_database()"
            ).fetchone()
            assert row is not None
            return int(row[0])

    return count


def test_what_a_source_says_of_itself(source: Source) -> None:
    assert source.dialect == "postgresql"
    by_name = {each.name: each for each in source.tables()}
    orders, regions = by_name["orders"], by_name["regions"]
    assert (orders.schema, regions.schema) == ("public", "sales")
    assert orders.primary_key == ("id",)
    # A partial index is unique for some rows only: nothing that a plan may build on.
    assert sorted(each.columns for each in orders.indexes if each.unique) == [("id",), ("k",)]
    assert orders.columns[2].arrow == "decimal128(12, 2)"
    assert orders.rows == 20_000
    statistics = source.statistics("orders")
    assert statistics.rows == 20_000
    assert statistics.columns["id"].distinct == 20_000
    assert statistics.columns["id"].low == "1"
    assert source.statistics("sales.regions").rows == 1
    assert source.fingerprint() == source.fingerprint()


def test_tables_are_the_same_either_way(service: Background, postgres_module_url: str) -> None:
    near, far = DriverSource("a", driver_for(postgres_module_url)), ServiceSource("a", f"{service.url}/pg")
    try:
        assert near.tables() == far.tables()
        assert near.statistics("orders") == far.statistics("orders")
    finally:
        near.close()
        far.close()


def test_tuples_come_in_types_that_duckdb_reads(source: Source) -> None:
    table = query(source, "select amt, big, tags, at, note from orders where id = ?", 7).table()
    assert table.schema.types == [
        pa.decimal128(12, 2),
        pa.string(),
        pa.list_(pa.int32()),
        pa.timestamp("us", "UTC"),
        pa.string(),
    ]
    assert table.to_pylist()[0] | {"at": None} == {
        "amt": Decimal("1.75"),
        "big": "7.000",
        "tags": [7, None],
        "at": None,
        "note": "note 7",
    }


def test_values_are_bound(source: Source) -> None:
    table = query(
        source, "select ?::date d, ?::numeric n, ?::text t", date(2024, 2, 29), Decimal("1.50"), "a'b"
    ).table()
    assert table.to_pylist() == [{"d": date(2024, 2, 29), "n": "1.50", "t": "a'b"}]


def test_errors_point_into_the_statement(source: Source) -> None:
    with pytest.raises(StatementError) as caught:
        query(source, "select nothing from orders")
    assert caught.value.position == 8


def test_many_queries_at_once(source: Source) -> None:
    def total(number: int) -> int:
        with query(source, "select id from orders where id <= ?", number * 1000) as stream:
            return sum(batch.num_rows for batch in stream)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(total, range(1, 17))) == [number * 1000 for number in range(1, 17)]


def test_two_streams_advance_in_turn(source: Source) -> None:
    with query(source, "select id from orders order by id") as one, query(source, "select k from orders") as two:
        assert sum(a.num_rows for a in one) == sum(b.num_rows for b in two) == 20_000


def test_closing_half_way_ends_the_statement(source: Source, active: Callable[[], int]) -> None:
    stream = query(source, ENDLESS)
    assert next(stream).num_rows
    stream.close()
    until(lambda: active() == 0)
    assert query(source, "select 1 as one").table().to_pylist() == [{"one": 1}]


def test_cancelling_wakes_a_reader_and_ends_the_statement(source: Source, active: Callable[[], int]) -> None:
    cancellation = Cancellation()
    stream = query(source, ENDLESS, cancellation=cancellation)
    next(stream)

    def read_on() -> None:
        with pytest.raises(CancelledError, match="enough"):
            for _ in stream:
                pass

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_on)
        cancellation.cancel(CancelledError("enough"))
        reading.result(SECONDS)
    stream.close()
    until(lambda: active() == 0)


def test_cancelling_before_the_first_row(source: Source, active: Callable[[], int]) -> None:
    cancellation = Cancellation()

    def ask() -> None:
        with pytest.raises(CancelledError):
            query(source, SILENT, cancellation=cancellation).table()

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        until(lambda: active() == 1)
        cancellation.cancel()
        asking.result(SECONDS)
    until(lambda: active() == 0)


def test_what_was_cancelled_before_does_not_start(source: Source) -> None:
    cancellation = Cancellation()
    cancellation.cancel(CancelledError("never"))
    with pytest.raises(CancelledError, match="never"):
        query(source, "select 1", cancellation=cancellation)


def test_a_changed_schema_changes_the_fingerprint(source: Source, postgres_module_url: str) -> None:
    before = source.fingerprint(fresh=True)
    with psycopg.connect(postgres_module_url) as connection:
        connection.execute("create table later (id int)")
    try:
        assert source.fingerprint(fresh=True) != before
        assert "later" in [each.name for each in source.tables()]
    finally:
        with psycopg.connect(postgres_module_url) as connection:
            connection.execute("drop table later")
        source.fingerprint(fresh=True)


def test_connections_are_used_again() -> None:
    answer = Scripted(
        body=b'{"rows": 1, "size_bytes": null, "columns": {}}', headers={"Content-Type": "application/json"}
    )
    with ScriptedServer(answer) as server:
        source = ServiceSource("a", f"{server.url}/resources/x")
        for _ in range(5):
            assert source.statistics("t").rows == 1
        assert server.connections == 1
        source.close()


def test_a_busy_service_is_asked_again_until_it_is_cancelled() -> None:
    busy = Scripted(status=503, headers={"Retry-After": "20"})
    named = Scripted(body=b'{"name": "x", "dialect": "sqlite"}', headers={"Content-Type": "application/json"})
    with ScriptedServer(named, busy) as server:
        source = ServiceSource("a", f"{server.url}/resources/x")
        cancellation = Cancellation()

        def ask() -> None:
            with pytest.raises(CancelledError):
                source.query("select 1", cancellation=cancellation)

        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask)
            until(lambda: len(server.requests) == 2)
            cancellation.cancel()
            asking.result(SECONDS)
        assert len(server.requests) == 2
        source.close()


def test_a_service_that_is_away() -> None:
    source = ServiceSource("a", "http://127.0.0.1:9/resources/x")
    with pytest.raises(UnreachableError):
        source.tables()
    source.close()


def test_a_source_is_not_asked_before_it_is_needed() -> None:
    ServiceSource("a", "http://127.0.0.1:9/resources/x").close()
    with pytest.raises(ConfigurationError, match="names no resource"):
        ServiceSource("a", "http://127.0.0.1:9")


def test_what_is_only_described_does_not_run() -> None:
    with pytest.raises(DatabaseUnavailableError, match="only a description"):
        DescribedSource("a", "sqlite", ()).query("select 1", cancellation=Cancellation())


def test_sources_of_settings(tmp_path: Path) -> None:
    own = driver_for("sqlite://")
    settings = FederationSettings(
        sources=(
            SourceSettings(alias="far", url="http://127.0.0.1:9/resources/x", replicas=("http://127.0.0.1:9/y",)),
            SourceSettings(alias="here", resource="lite"),
            SourceSettings(alias="file", database=f"sqlite:///{tmp_path}/x.db"),
        )
    )
    made = sources_of(settings, Credentials(settings), {"lite": own}.__getitem__)
    try:
        assert [(each.alias, each.replica_of, each.address) for each in made] == [
            ("far", None, "http://127.0.0.1:9/resources/x"),
            ("far@1", "far", "http://127.0.0.1:9/resources/y"),
            ("here", None, "local:here"),
            ("file", None, "local:file"),
        ]
    finally:
        for each in made:
            each.close()
    # The driver of a resource is the service's to close.
    assert own.query("select 1 as one", cancellation=Cancellation()).table().num_rows == 1
    own.close()
    with pytest.raises(ConfigurationError, match="this process is not a service"):
        sources_of(settings, Credentials(settings))


def test_a_fingerprint_does_not_count_rows(source: Source) -> None:
    from dataclasses import replace

    tables = source.tables()
    assert fingerprint_of(tables) == fingerprint_of([replace(each, rows=5) for each in tables])
    assert fingerprint_of(tables) != fingerprint_of(tables[1:])


def test_threads_do_not_stay(source: Source) -> None:
    """Those that look whether a service lives end when nothing has waited for a while."""
    query(source, "select 1 as one").table()
    beats = [each for each in threading.enumerate() if each.name == "heartbeat"]
    until(lambda: not any(each.is_alive() for each in beats))
    before = threading.active_count()
    query(source, "select 1 as one").table()
    until(lambda: threading.active_count() <= before)


@pytest.mark.parametrize(
    "said", [b"[]", b"{}", b'{"tables": [1]}', b'{"tables": [{"name": 1}]}', b"<html>", b"[" * 99_999]
)
def test_an_address_that_answers_something_else(said: bytes) -> None:
    answer = Scripted(body=said, headers={"Content-Type": "application/json"})
    with ScriptedServer(answer) as server:
        source = ServiceSource("a", f"{server.url}/resources/x")
        for ask in (source.tables, lambda: source.dialect, lambda: source.statistics("t")):
            with pytest.raises(DataError):
                ask()


@pytest.mark.parametrize("names", [["b"], ["a", "a"], []])
def test_a_source_that_answers_with_other_columns(names: list[str]) -> None:
    with pytest.raises(DataError, match="other columns"):
        read_as("r1", [("a", "BIGINT")], pa.schema([(each, pa.int64()) for each in names]))
