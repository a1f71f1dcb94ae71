import dataclasses
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from dai.errors import ConfigurationError, DatabaseUnavailableError
from dai.service.state import lease as leases
from dai.service.state.store import Job, Store
from dai.service.state.tables import METADATA


def job(id: str, phase: str = "QUEUED", created: float = 1.0) -> Job:
    return Job(id, "here", "book", phase, "perform", b"<x/>", created=created, destruction=created + 10)


@pytest.fixture(params=["file", "memory", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    urls = {"file": f"sqlite:///{tmp_path / 'deep' / 'state.db'}", "memory": "sqlite://"}
    return urls.get(request.param) or str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = Store(url, "here")
    made.lease.claim()
    yield made
    made.close()


def changed(url: str, **values: object) -> None:
    """The lease, as another process would have written it."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.update(sa.table("dai_services", *map(sa.column, values))).values(**values))
    engine.dispose()


def test_what_is_stored_is_found(store: Store) -> None:
    store.lease.check()
    assert store.add(job("a")) == 1
    assert store.add(job("b", "COMPLETED", 2.0)) == 1
    assert store.get("a") == job("a")
    assert store.get("c") is None
    assert [each.id for each in store.listed()] == ["b", "a"]
    assert [each.id for each in store.listed({"QUEUED"})] == ["a"]
    assert [each.id for each in store.listed(limit=1)] == ["b"]
    assert store.due(11.5) == ["a"]
    store.remove("a")
    assert store.get("a") is None
    large = dataclasses.replace(job("c", created=1.7e9 + 0.125), request=b"x" * (1 << 20))
    store.add(large)
    assert store.get("c") == large


def test_what_a_program_says_need_not_be_text_that_has_an_encoding(tmp_path: Path) -> None:
    """Nor a number of 64 bits."""
    store = Store(f"sqlite:///{tmp_path / 'state.db'}", "here")
    store.add(job("a"))
    error = {"detail": "\ud800", "rows": 1 << 70}
    assert store.change(job("a"), {"QUEUED"}, error=error) is not None
    assert store.get("a") == dataclasses.replace(job("a"), error=error)
    assert store.change(job("a"), {"QUEUED"}, error=None) is not None
    assert store.get("a") == job("a")
    store.close()


def test_a_change_happens_only_from_the_phases_it_expects(store: Store) -> None:
    store.add(job("a"))
    outputs = [{"name": "x", "rows": 3}]
    changed = store.change(job("a"), {"QUEUED"}, phase="EXECUTING", outputs=outputs)
    assert changed is not None
    assert store.get("a") == changed
    assert changed.outputs == outputs
    assert store.change(job("a"), {"QUEUED"}, phase="ABORTED") is None
    description = store.get("a")
    assert description is not None
    assert description.phase == "EXECUTING"


def test_jobs_that_go_on_are_found_by_an_index_that_earlier_versions_had_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    Store(url, "here").close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX ix_dai_jobs_service_phase")
    engine.dispose()  # EXPLAIN believes what its connection knows of the tables
    store = Store(url, "here")
    for number, phase in enumerate(("PENDING", "QUEUED", "EXECUTING", "COMPLETED", "ERROR", "ABORTED")):
        store.add(job(str(number), phase))
    asked: list[tuple[str, object]] = []
    listened = store._database.engine, "before_cursor_execute"
    sa.event.listen(*listened, lambda _, __, statement, parameters, *___: asked.append((statement, parameters)))
    assert store.unended("") == 3
    assert store.unended("somebody") == 0
    statement, parameters = asked[0]
    with engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        assert "ix_dai_jobs_service_phase (service=? AND phase=?)" in str(plan.fetchall())
    engine.dispose()
    store.close()


def test_services_that_share_a_database_see_their_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    one, other = Store(url, "here"), Store(url, "there")
    one.add(job("a"))
    assert other.listed() == []
    assert other.get("a") is None
    one.close()
    other.close()


def test_stores_that_are_opened_at_once_make_their_tables_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    table = METADATA.sorted_tables[-1]
    create = table.create
    others: list[Store] = []

    def overtaken(engine: sa.Engine, checkfirst: bool) -> None:
        """Both have seen that the table is not there; the other makes it first."""
        monkeypatch.setattr(table, "create", create)
        others.append(Store(url, "other"))
        create(engine, checkfirst=False)

    monkeypatch.setattr(table, "create", overtaken)
    for each in (Store(url, "one"), *others):
        assert each.get("none") is None
        each.close()
    assert others


def test_a_state_database_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="state database"):
        Store("sqlite:////proc/nothing/state.db", "here")


def test_a_state_database_that_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Store(f"sqlite:///{path}", "here")
    store.close()
    path.unlink()
    for leftover in tmp_path.glob("state.db-*"):
        leftover.unlink()
    with pytest.raises(DatabaseUnavailableError) as caught:
        store.listed()
    assert str(path) not in str(caught.value)


def replaced(path: Path) -> None:
    path.rename(path.with_suffix(".away"))
    Store(f"sqlite:///{path}", "here").close()


def overwritten_by_another(path: Path) -> None:
    other = path.with_suffix(".other")
    Store(f"sqlite:///{other}", "here").close()
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize(
    "lose",
    [
        Path.unlink,
        replaced,
        overwritten_by_another,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"something else" * 10_000),
    ],
    ids=["deleted", "replaced", "overwritten by another", "emptied", "overwritten"],
)
def test_a_state_file_that_is_lost_is_noticed(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    path = tmp_path / "state.db"
    store = Store(f"sqlite:///{path}", "here")
    store.lease.claim()
    store.add(job("a"))
    store.lease.check()
    lose(path)
    asking: list[Callable[[], object]] = [
        store.lease.check,
        lambda: store.add(job("b")),
        store.listed,
        lambda: store.change(job("a"), {"QUEUED"}, phase="EXECUTING"),
    ]
    for ask in asking:
        with pytest.raises(DatabaseUnavailableError, match="deleted or overwritten"):
            ask()
    store.close()


def test_a_store_of_before_is_opened_and_checked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        connection.exec_driver_sql("create table t (a)")
        # another process has it open meanwhile
        one, other = Store(url, "here"), Store(url, "there")
        one.lease.claim()
        other.lease.claim()
    for store in (one, other):
        for number in range(200):
            store.add(dataclasses.replace(job(f"{store.service}{number}"), request=b"x" * 10_000))
        store.lease.check()
        store.close()
    engine.dispose()


def test_a_full_disk_is_noticed(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'state.db'}", "here")
    store.lease.claim()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(DatabaseUnavailableError):
            store.lease.check()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    store.lease.check()
    store.close()


def test_one_process_at_a_time_has_a_name(url: str) -> None:
    first = Store(url, "here")
    first.lease.claim()
    second, other = (first, first) if url == "sqlite://" else (Store(url, "here"), Store(url, "there"))
    with pytest.raises(ConfigurationError, match=f"'here' already keeps .*: process {os.getpid()} on ") as caught:
        second.lease.claim()
    assert "name" in (caught.value.hint or "")
    first.lease.check()
    if other is not first:
        other.lease.claim()
        first.close()
        second.lease.claim()
        second.lease.check()
        other.close()
    second.close()


@pytest.fixture
def shared(url: str) -> str:
    if url == "sqlite://":
        pytest.skip("a database of one process")
    return url


def test_the_name_of_a_process_that_died_is_free_at_once(shared: str) -> None:
    died = subprocess.Popen([sys.executable, "-c", ""])
    died.wait()
    first, second = Store(shared, "here"), Store(shared, "here")
    first.lease.claim()
    changed(shared, process=died.pid)
    second.lease.claim()
    second.lease.check()
    for ask in (first.lease.check, first.listed):
        with pytest.raises(DatabaseUnavailableError, match="Another process"):
            ask()
    first.close()
    second.lease.check()
    second.close()


def test_the_name_of_a_process_elsewhere_is_free_when_its_lease_ends(
    shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.02)
    first, second = Store(shared, "here"), Store(shared, "here")
    first.lease.claim()
    changed(shared, machine="elsewhere", host="far.example")
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(0.02):
            first.lease.check()

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with pytest.raises(ConfigurationError, match=r"on far\.example"):
            second.lease.claim()
    finally:
        stop.set()
        renewing.join()
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.2)
    second.lease.claim()
    second.lease.check()
    # who slept longer than its lease looks before it writes
    with pytest.raises(DatabaseUnavailableError, match="Another process"):
        first.add(job("a"))
    first.close()
    second.close()
