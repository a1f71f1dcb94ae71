"""Verified copies: from service to service, compared with their original, registered only when they are the same."""

import datetime
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import dai
from dai.__main__ import main
from dai.api.server.serve import Background, background
from dai.client import Options
from dai.client.http.transport import Transport
from dai.errors import ConflictError, DaiError, DataError, NotFoundError, UnreachableError
from dai.replicas.client import ReplicaClient, TableTarget
from dai.replicas.copying import Checksum, Copied, Copying, _Place
from tests.api.conftest import configured
from tests.servers import free_port

pytestmark = pytest.mark.server
ROWS = 25_000


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, postgres_module_url: str, mariadb_module_url: str
) -> Iterator[Background]:
    """One service with the original and with databases of four kinds, which delivers to itself, and a catalog."""
    directory = tmp_path_factory.mktemp("copying")
    with closing(sqlite3.connect(directory / "original.db")) as connection:
        connection.execute('create table people (id integer primary key, "a name" text, height double, x blob)')
        rows = ((each, f"person {each}" if each % 7 else None, each / 8, b"\0\1") for each in range(ROWS))
        connection.executemany("insert into people values (?, ?, ?, ?)", rows)
        connection.execute("create table empty (id integer, name text)")
        connection.execute(
            "create table keyed (a integer not null, b integer not null, code text not null, n integer unique,"
            " note text, primary key (a, b), unique (code, a))"
        )
        connection.execute("create table coded (code text not null primary key)")
        connection.execute("insert into coded values ('x')")
        connection.execute("insert into keyed values (1, 1, 'x', 1, null), (1, 2, 'w', null, 'n'), (2, 1, 'y', 2, '')")
        connection.commit()
    (directory / "copy.db").touch()
    resources = {
        "original": {"url": f"sqlite:///{directory / 'original.db'}"},
        "sqlite": {"url": f"sqlite:///{directory / 'copy.db'}"},
        "duckdb": {"url": f"duckdb:///{directory / 'copy.duckdb'}"},
        "postgresql": {"url": postgres_module_url},
        "mariadb": {"url": mariadb_module_url},
    }
    replicas = {"catalog": f"sqlite:///{directory / 'replicas.db'}"}
    port = free_port()
    delivery = {"urls": [f"http://127.0.0.1:{port}/sessions"], "private": True}
    sections = {"replicas": replicas, "delivery": delivery, "service": {"port": port}}
    with background(configured(directory, resources, **sections)) as running:
        yield running


@pytest.fixture
def catalog(service: Background) -> Iterator[ReplicaClient]:
    """With the original alone."""
    with closing(ReplicaClient(service.url)) as client:
        client.ask("DELETE", "/mappings")
        client.register({("people", at(service, "original")): {"rows": ROWS}})
        yield client


@pytest.fixture
def copying(catalog: ReplicaClient) -> Copying:
    return Copying(catalog, Options())


@pytest.fixture
def made(service: Background) -> Iterator[Callable[[Copied], Copied]]:
    """Drops the copies that a test made."""
    with ExitStack() as stack:

        def drop(copied: Copied) -> None:
            resource = dai.connect(copied.target.address)
            _Place(resource, copied.target.table).drop()
            resource.close()

        def later(copied: Copied) -> Copied:
            stack.callback(drop, copied)
            return copied

        yield later


def at(service: Background, resource: str, table: str = "people") -> TableTarget:
    return TableTarget(f"{service.url}/resources/{resource}", table)


def tables(service: Background, resource: str) -> set[str]:
    with closing(dai.connect(f"{service.url}/resources/{resource}")) as connected:
        return {each["name"] for each in connected.schema(fresh=True)}


def change(service: Background, sql: str) -> None:
    with closing(dai.connect(f"{service.url}/resources/original")) as connected:
        _Place(connected, "").change(sql)


@pytest.mark.parametrize("database", ["sqlite", "duckdb", "postgresql", "mariadb"])
def test_a_copy_is_the_same_in_any_database(
    service: Background, catalog: ReplicaClient, copying: Copying, made: Callable[[Copied], Copied], database: str
) -> None:
    copied = made(copying.copy("people", f"{service.url}/resources/{database}"))
    assert (copied.target, copied.rows) == (at(service, database), ROWS)
    found = catalog.find(["people"])
    assert set(found.targets["people"]) == {str(at(service, "original")), str(copied.target)}
    known = found.attributes[str(copied.target)]
    assert (known["rows"], known["checksum"]) == (ROWS, copied.checksum)
    assert "expires" not in known
    assert tables(service, database) == {"people"}


@pytest.mark.parametrize("database", ["sqlite", "duckdb", "postgresql", "mariadb"])
def test_keys_are_copied(
    service: Background, catalog: ReplicaClient, copying: Copying, made: Callable[[Copied], Copied], database: str
) -> None:
    catalog.register({("keyed", at(service, "original", "keyed")): {}})
    copied = made(copying.copy("keyed", f"{service.url}/resources/{database}"))
    assert copied.missing == ()
    with closing(dai.connect(f"{service.url}/resources/{database}")) as resource:
        described = resource.schema(fresh=True)["keyed"]
        assert described["primary_key"] == ["a", "b"]
        assert [each["name"] for each in described["columns"] if not each["nullable"]] == ["a", "b", "code"]
        unique = {tuple(each["columns"]) for each in described["indexes"] if each["unique"]} - {("a", "b")}
        assert unique == {("code", "a"), ("n",)}
        for twice in ("(1, 1, 'z', 5, null)", "(7, 7, 'z', 1, null)", "(7, 7, null, 7, null)"):
            with pytest.raises(DaiError):
                _Place(resource, "").change(f"insert into keyed values {twice}")
    change(service, f"update keyed set note = '{database}'")
    renewed = copying.refresh("keyed", str(copied.target))
    assert (renewed.renewed, renewed.missing) == (True, ())


def test_keys_that_the_database_has_not_are_told(
    service: Background, catalog: ReplicaClient, copying: Copying, made: Callable[[Copied], Copied]
) -> None:
    """MariaDB has no primary key of long texts."""
    catalog.register({("coded", at(service, "original", "coded")): {}})
    copied = made(copying.copy("coded", f"{service.url}/resources/mariadb"))
    (missing,) = copied.missing
    assert missing.startswith("primary key (code): ")
    assert copied.rows == 1


def test_refresh(
    service: Background, catalog: ReplicaClient, copying: Copying, made: Callable[[Copied], Copied]
) -> None:
    copied = made(copying.copy("people", f"{service.url}/resources/postgresql", name="people 2"))
    target = str(copied.target)
    assert copied.target.table == "people 2"
    catalog.register({("people", copied.target): {"copied": 0.0}})
    assert copying.refresh("people", target) == Copied(copied.target, ROWS, copied.checksum, renewed=False)
    assert catalog.find(["people"]).attributes[target]["copied"] > 1_000_000
    change(service, "update people set height = 3 where id = 77")
    renewed = copying.refresh("people", target)
    assert renewed.renewed
    assert renewed.checksum != copied.checksum
    assert catalog.find(["people"]).attributes[target]["checksum"] == renewed.checksum
    assert tables(service, "postgresql") == {"people 2"}
    change(service, "update people set height = 77.0 / 8 where id = 77")
    assert copying.refresh("people", target).checksum == copied.checksum


def test_a_table_without_rows(
    service: Background, catalog: ReplicaClient, copying: Copying, made: Callable[[Copied], Copied]
) -> None:
    catalog.register({("empty", at(service, "original", "empty")): {}})
    copied = made(copying.copy("empty", f"{service.url}/resources/postgresql"))
    assert (copied.rows, copied.checksum) == (0, "0" * 16)


def _other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the copy, a row arrives otherwise."""
    checksum = _Place.checksum

    def changed(self: _Place, names: Any) -> Checksum:
        made = checksum(self, names)
        if self.table.startswith(("rowset_", "keyed_")):
            made.add(pa.record_batch({"i": [1]}))
        return made

    monkeypatch.setattr(_Place, "checksum", changed)


def _fails(method: str) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(self: _Place, *_: Any) -> Any:
            raise DataError("It broke.")

        monkeypatch.setattr(_Place, method, fail)

    return patch


def _refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dai.client.streams.session.Session.transfer", _broken)


def _cannot_take_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rename = _Place.rename

    def renamed(self: _Place, name: str) -> _Place:
        if self.table.startswith(("rowset_", "keyed_")):
            raise DataError("It broke.")
        return rename(self, name)

    monkeypatch.setattr(_Place, "rename", renamed)


def _broken(*_: Any, **__: Any) -> Any:
    raise DataError("It broke.")


FAILURES = [_other_rows, _fails("checksum"), _fails("rename"), _refuses]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_copy_that_fails_in_between_registers_nothing(
    service: Background,
    catalog: ReplicaClient,
    copying: Copying,
    monkeypatch: pytest.MonkeyPatch,
    failure: Callable[[pytest.MonkeyPatch], None],
) -> None:
    before = catalog.find(["people"])
    failure(monkeypatch)
    with pytest.raises(DataError):
        copying.copy("people", f"{service.url}/resources/postgresql")
    assert catalog.find(["people"]) == before
    assert tables(service, "postgresql") == set()


def test_a_refresh_that_fails_leaves_the_copy(
    service: Background,
    catalog: ReplicaClient,
    copying: Copying,
    made: Callable[[Copied], Copied],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = made(copying.copy("people", f"{service.url}/resources/duckdb"))
    before = catalog.find(["people"])
    change(service, "update people set height = 4 where id = 78")
    for failure in (_other_rows, _refuses, _cannot_take_the_name):
        with monkeypatch.context() as patched:
            failure(patched)
            with pytest.raises(DataError):
                copying.refresh("people", str(copied.target))
        assert catalog.find(["people"]) == before
        assert tables(service, "duckdb") == {"people"}
    change(service, "update people set height = 78.0 / 8 where id = 78")


def test_what_cannot_be_copied(service: Background, catalog: ReplicaClient, copying: Copying) -> None:
    here, original = f"{service.url}/resources/duckdb", str(at(service, "original"))
    cases: list[tuple[Callable[[], object], type[DaiError], str]] = [
        (lambda: copying.copy("none", here), NotFoundError, "no table with the name 'none'"),
        (lambda: copying.copy("people", f"{service.url}/resources/none"), NotFoundError, "no resource 'none'"),
        (
            lambda: copying.copy("people", f"{service.url}/resources/original"),
            ConflictError,
            "There is already a table",
        ),
        (lambda: copying.copy("people", here, source="http://h/resources/a#t"), NotFoundError, "has no table"),
        (lambda: copying.refresh("people", "http://h/resources/a#t"), NotFoundError, "has no copy"),
        (lambda: copying.refresh("people", original), ConflictError, "is an original, not a copy"),
    ]
    for ask, kind, said in cases:
        with pytest.raises(kind, match=said):
            ask()
    catalog.register({("people", at(service, "original")): {"copied": 0.0}})
    with pytest.raises(NotFoundError, match="has no original, only copies"):
        copying.copy("people", here)
    assert tables(service, "duckdb") == set()


def test_the_commands(
    service: Background, catalog: ReplicaClient, made: Callable[[Copied], Copied], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["replicas", *arguments, "--server", service.url])
        said = capsys.readouterr()
        return code, said.out, said.err

    target = at(service, "mariadb", "theirs")
    code, said, _ = run("copy", "people", "--to", target.address, "--name", "theirs")
    assert code == 0
    made(Copied(target, 0, ""))
    assert said.startswith(f"{target}: {ROWS:,} rows, checksum ")
    code, said, _ = run("refresh", "people")
    assert code == 0
    assert said.startswith(f"{target}: was the same already, {ROWS:,} rows")
    code, _, said = run("copy", "people", "--to", target.address, "--name", "theirs")
    assert code == 1
    assert "There is already a table 'theirs'" in said
    code, _, said = run("refresh", "people", str(at(service, "original")))
    assert code == 1
    assert "is an original, not a copy" in said
    assert run("refresh", "none")[0] == 1


@pytest.mark.parametrize("role", ["original", "copy"])
def test_credentials_go_to_no_service_that_only_the_catalog_names(
    service: Background, role: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever may write into the catalog got the token of who copied."""
    asked: list[str] = []
    send = Transport.send

    def sent(self: Transport, *request: Any, **more: Any) -> Any:
        if "elsewhere" not in self.base:
            return send(self, *request, **more)
        asked.append(str(self.options.token))
        raise UnreachableError("It is not there.")

    elsewhere = TableTarget("https://elsewhere.example.org/resources/sky", "people")
    with closing(ReplicaClient(service.url)) as client:
        client.ask("DELETE", "/mappings")
        client.register({("people", elsewhere if role == "original" else at(service, "original")): {"rows": 1}})
        if role == "copy":
            client.register({("people", elsewhere): {"copied": 1.0, "rows": 1}})
    monkeypatch.setenv("DAI_TOKEN", "secret")
    verb = ["copy", "people", "--to", at(service, "sqlite").address] if role == "original" else ["refresh", "people"]
    command = ["replicas", *verb, "--server", service.url]
    monkeypatch.setattr(Transport, "send", sent)
    assert main(command) == 1
    assert "--service https://elsewhere.example.org" in capsys.readouterr().err
    assert asked == []
    assert main([*command, "--service", "https://elsewhere.example.org"]) == 1
    assert asked[:1] == ["secret"]


# --- the checksum ---


def checksum(*columns: pa.Array) -> str:
    made = Checksum()
    made.add(pa.record_batch(list(columns), names=[f"c{at}" for at in range(len(columns))]))
    return f"{made.rows} {made}"


def test_order_and_batches_do_not_count() -> None:
    table = pa.table({"i": range(1000), "s": [f"text {each}" * (each % 50) for each in range(1000)]})
    turned = table.take(pa.array(range(999, -1, -1)))
    sums = []
    for each, size in ((table, 1000), (turned, 7)):
        made = Checksum()
        for batch in each.to_batches(max_chunksize=size):
            made.add(batch)
        sums.append((made.rows, str(made)))
    assert sums[0] == sums[1]
    assert sums[0][0] == 1000


MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1, None], pa.int32()), pa.array([1, None], pa.int64())),
        (pa.array([True, False]), pa.array([1, 0], pa.int8())),
        (pa.array([0.5, -0.0], pa.float32()), pa.array([0.5, 0.0], pa.float64())),
        (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), pa.array([Decimal("1.5")], pa.decimal128(38, 10))),
        (pa.array([Decimal("-20.00")], pa.decimal128(5, 2)), pa.array([-20], pa.int64())),
        (pa.array([MOMENT], pa.timestamp("s")), pa.array([MOMENT], pa.timestamp("us"))),
        (pa.array(["a"]), pa.array(["a"], pa.large_string())),
    ],
)
def test_equal_values_of_other_types(one: pa.Array, other: pa.Array) -> None:
    assert checksum(one) == checksum(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([pa.array(["a", "b"])], [pa.array(["a", "a"])]),
        ([pa.array([""])], [pa.array([None], pa.string())]),
        ([pa.array(["N"])], [pa.array([None], pa.string())]),
        ([pa.array(["a,1:b"])], [pa.array(["a"]), pa.array(["b"])]),
        ([pa.array(["a"]), pa.array(["b"])], [pa.array(["b"]), pa.array(["a"])]),
        ([pa.array([1, 2]), pa.array([1, 2])], [pa.array([1, 2]), pa.array([2, 1])]),
        ([pa.array([Decimal("10")], pa.decimal128(5, 0))], [pa.array([Decimal("1")], pa.decimal128(5, 0))]),
        ([pa.array([b"\0"])], [pa.array([b"\0\0"])]),
        ([pa.array(["x" * 5000 + "a"])], [pa.array(["x" * 5000 + "b"])]),
    ],
)
def test_other_rows_have_another(one: list[pa.Array], other: list[pa.Array]) -> None:
    assert checksum(*one) != checksum(*other)


def test_a_type_without_text_is_an_error() -> None:
    with pytest.raises(DaiError):
        checksum(pa.array([{"a": 1}]))
