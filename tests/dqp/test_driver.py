"""A federation as a resource of a data service: what every resource does, it does."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import dai
from dai.api.server.serve import Background, background
from dai.config import parse
from dai.drivers import DriverOptions
from dai.errors import ConfigurationError, DatabaseUnavailableError, NotAQueryError, NotFoundError, ParameterError
from dai.service.resources import Resources
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.interfaces.driver import Federation
from dqp.settings import load

ROWS = 3000
JOIN = "select o.id, p.name from one.orders o join two.people p on o.person = p.id where o.id <= ? order by o.id"


def database(path: Path, *statements: str) -> str:
    with sqlite3.connect(path) as connection:
        for each in statements:
            connection.execute(each)
    connection.close()
    return f"sqlite:///{path}"


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("data")
    numbers = f"with recursive n(i) as (select 1 union all select i + 1 from n limit {ROWS}) "
    return {
        "one": database(
            directory / "one.db",
            "create table orders (id integer primary key, person int not null, amt decimal(12, 2))",
            f"insert into orders {numbers} select i, i % 100, i * 1.25 from n",
            "analyze",
        ),
        "two": database(
            directory / "two.db",
            "create table people (id integer primary key, name varchar(20) not null)",
            f"insert into people {numbers} select i, 'person ' || i from n where i < 100",
            "analyze",
        ),
    }


def configured(directory: Path, resources: dict[str, str], **federations: Any) -> Any:
    document = {
        "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
        "resources": {name: {"url": url} for name, url in resources.items()},
        "federations": federations,
    }
    return parse(document, directory, {})


@pytest.fixture(scope="module")
def service(urls: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    lab = {
        "sources": [{"alias": "one", "resource": "one"}, {"alias": "two", "resource": "two"}],
        "views": {"spent": "select person, sum(amt) as total from one.orders group by person", "lost": "from one.none"},
    }
    with background(configured(tmp_path_factory.mktemp("service"), urls, lab=lab)) as running:
        yield running


@pytest.fixture
def client(service: Background) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=60) as made:
        yield made


def test_it_is_a_resource(client: httpx.Client) -> None:
    body = client.get("/resources/lab").json()
    assert (body["kind"], body["dialect"], body["product"]) == (
        "federation",
        "duckdb",
        "dqp federation of 2 sources",
    )
    assert body["available"] is True
    assert client.get("/health/ready").json()["checks"]["resource lab"] == "ok"
    assert 'resource="lab"' in client.get("/metrics").text


def test_its_schema_and_statistics(client: httpx.Client) -> None:
    tables = {(each["schema"], each["name"]): each for each in client.get("/resources/lab/schema").json()["tables"]}
    assert tables.keys() == {("one", "orders"), ("two", "people"), (None, "spent")}
    orders = tables["one", "orders"]
    assert orders["primary_key"] == ["id"]
    assert [each["arrow"] for each in orders["columns"]] == ["int64", "int64", "decimal128(12, 2)"]
    assert orders["rows"] == ROWS
    assert [each["name"] for each in tables[None, "spent"]["columns"]] == ["person", "total"]
    one = client.get("/resources/lab/schema?tables=one.%25").json()["tables"]
    assert [each["name"] for each in one] == ["orders"]
    for name in ("one.orders", "one_orders"):
        body = client.get(f"/resources/lab/statistics?table={name}").json()
        assert body["rows"] == ROWS
        assert body["columns"]["id"]["distinct"] == ROWS
    missing = client.get("/resources/lab/statistics?table=one.ordrs")
    assert missing.status_code == 404
    assert "'orders'" in missing.json()["hint"]


def test_queries_in_every_form(client: httpx.Client, service: Background) -> None:
    lab = dai.connect(f"{service.url}/lab")
    table = lab.query(JOIN, 3).arrow()
    assert table.to_pylist() == [{"id": i, "name": f"person {i}"} for i in (1, 2, 3)]
    assert lab.query("select count(*) n from spent where total > 0").arrow().to_pylist() == [{"n": 100}]
    answer = client.post("/resources/lab/query", json={"sql": JOIN, "parameters": [2]}, headers={"Accept": "text/csv"})
    assert answer.text.splitlines() == ["id,name", "1,person 1", "2,person 2"]
    document = (
        '<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">'
        '<sqlQueryStatement name="q"><expression>select max(id) as m from one_orders</expression>'
        '<webRowSetStream name="out"/></sqlQueryStatement></gridDataServicePerform>'
    )
    performed = client.post("/resources/lab/perform", content=document, headers={"Content-Type": "application/xml"})
    assert f"<columnValue>{ROWS}</columnValue>" in performed.text
    assert "COMPLETED" in performed.text
    blocks = list(lab.query("select * from one.orders", blocksize=1000))
    assert [each.num_rows for each in blocks] == [1000] * 3
    job = lab.submit(JOIN, 5)
    assert job.wait(60).phase == "COMPLETED"
    assert job.result().arrow().num_rows == 5


def test_what_is_wrong_is_said(client: httpx.Client) -> None:
    answer = client.post("/resources/lab/query", json={"sql": "select nam from two.people"})
    assert answer.status_code == 400
    problem = answer.json()
    assert (problem["type"], problem["position"]) == ("sql-error", 8)
    assert "'name'" in problem["hint"]
    refused = client.post("/resources/lab/query", json={"sql": "delete from two.people"})
    assert refused.json()["type"] == "not-a-query"


def test_it_reads_only(urls: dict[str, str]) -> None:
    federation = Federation(load({"sources": {"one": urls["one"]}}))
    closed = []
    stream = Stream(pa.schema([]), [], lambda: closed.append(True))
    cancellation = Cancellation()
    try:
        with pytest.raises(NotAQueryError, match="read-only"):
            federation.update("delete from one.orders", cancellation=cancellation)
        with pytest.raises(ParameterError, match="cannot be written"):
            federation.load("one.orders", stream, cancellation=cancellation)
        assert closed
        with pytest.raises(ParameterError, match="no stored procedures"):
            federation.call("p", (), cancellation=cancellation)
        assert federation.pool_state() == {"open": 0, "idle": 0, "limit": 0}
    finally:
        federation.close()


def test_a_source_that_is_away(urls: dict[str, str]) -> None:
    away = "http://127.0.0.1:9/resources/x"
    federation = Federation(load({"sources": {"one": urls["one"], "away": away}}))
    try:
        assert federation.check() >= 0
        assert [each.schema for each in federation.tables()] == ["one"]
        stream = federation.query("select count(*) n from one.orders", cancellation=Cancellation())
        assert stream.table().to_pylist() == [{"n": ROWS}]
        with pytest.raises(DatabaseUnavailableError, match="'away' is not available"):
            federation.query("from away.t", cancellation=Cancellation())
    finally:
        federation.close()
    lonely = Federation(load({"sources": {"away": away}, "views": {"gone": "from away.t"}}))
    try:
        assert lonely.tables() == ()
        with pytest.raises(DatabaseUnavailableError, match=r"None of the federation's sources answers: away\.$"):
            lonely.check()
    finally:
        lonely.close()


def test_a_federation_of_federations(service: Background) -> None:
    outer = Federation(load({"sources": {"lab": f"{service.url}/resources/lab"}}))
    try:
        assert outer.catalog.sources["lab"].dialect == "duckdb"
        for sql in (
            "select count(*) n from lab.one.orders o join lab.two.people p on o.person = p.id",
            "select count(*) n from lab.orders o join lab_people p on o.person = p.id",
        ):
            table = outer.query(sql, cancellation=Cancellation()).table()
            assert table.to_pylist() == [{"n": ROWS - ROWS // 100}]
    finally:
        outer.close()


def test_of_a_file(tmp_path: Path, urls: dict[str, str]) -> None:
    (tmp_path / "federation.toml").write_text(f'[sources]\none = "{urls["one"]}"\n')
    federation = Federation.connect(f"dqp:///{tmp_path}/federation.toml", DriverOptions())
    try:
        assert federation.statistics("one.orders").rows == ROWS
    finally:
        federation.close()
    with pytest.raises(ConfigurationError, match="looks like dqp:///"):
        Federation.connect("sqlite://", DriverOptions())


@pytest.mark.parametrize(
    ("federation", "says"),
    [
        ({"sources": [{"alias": "a", "resource": "oen"}]}, "The source 'a': There is no data resource 'oen'"),
        ({"sources": [{"alias": "a", "resource": "lab"}]}, "The source 'a': There is no data resource 'lab'"),
        ({"surces": []}, r"\[federations.lab\] has no key 'surces'"),
        ({"sources": {"a": "sqlite://"}}, r"federations.lab.sources.a: a service's federation reads resources"),
    ],
)
def test_what_cannot_be_served_is_said_at_start(
    tmp_path: Path, urls: dict[str, str], federation: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Resources(configured(tmp_path, urls, lab=federation))


def test_an_unknown_table_is_not_found(urls: dict[str, str]) -> None:
    federation = Federation(load({"sources": {"one": urls["one"]}}))
    try:
        with pytest.raises(NotFoundError):
            federation.statistics("orders")
    finally:
        federation.close()
