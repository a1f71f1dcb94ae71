"""The HTTP face: catalogs that tell indexes on other servers, who may do what, bad requests."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from dai.api.server.serve import Background, background
from dai.client.testing import Scripted, ScriptedServer
from dai.config import Config, parse
from dai.errors import ConfigurationError
from dai.replicas.filters import Filter, arrow
from dai.replicas.replicas import ARROW, FILTER, MOST_NAMES, Local, Replicas
from dai.replicas.updates import fitting
from dai.security.identity.tokens import new
from tests.api.conftest import configured
from tests.processes import until

pytestmark = pytest.mark.server
Start = Callable[..., Background]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a service with a replica catalog, which several may do side by side."""
    with ExitStack() as stack:

        def started(name: str, sections: dict[str, Any] | None = None, **replicas: Any) -> Background:
            directory = tmp_path / name
            directory.mkdir(exist_ok=True)
            config = configured(
                directory, {}, replicas={"catalog": "sqlite:///replicas.db", **replicas}, **(sections or {})
            )
            return stack.enter_context(background(config))

        yield started


def mapped(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"mappings": [{"logical": logical, "target": target} for logical, target in pairs]}


def known(index: Background, name: str) -> list[str]:
    answer = httpx.get(f"{index.url}/replicas/index", params={"logical": name})
    return [] if answer.status_code == 404 else [each["catalog"] for each in answer.json()["names"]]


def test_catalogs_tell_an_index_and_that_one_above(start: Start) -> None:
    above = start("above")
    index = start("index", parents=[above.url])
    often = {"change_seconds": 0.05, "indexes": [index.url]}
    first = start("first", url="https://first", **often)
    httpx.post(f"{first.url}/replicas/mappings", json=mapped(("early", "1")))
    second = start("second", url="https://second", filters=True, **often)
    httpx.post(f"{second.url}/replicas/mappings", json=mapped(("shared", "2")))
    httpx.post(f"{first.url}/replicas/mappings", json=mapped(("shared", "1"), ("first", "1")))
    for each in (index, above):
        until(lambda each=each: known(each, "shared") == ["https://first", "https://second"])
        assert known(each, "first") == ["https://first"]
        assert known(each, "early") == ["https://first"]
    httpx.post(f"{first.url}/replicas/mappings/delete", json=mapped(("shared", "1")))
    for each in (index, above):
        until(lambda each=each: known(each, "shared") == ["https://second"])
    answer = httpx.get(f"{index.url}/replicas/index", params={"pattern": "*r*"}).json()
    assert answer["names"] == [{"logical": name, "catalog": "https://first"} for name in ("early", "first")]
    assert not answer["complete"], "a filter knows no patterns"
    listed = httpx.get(f"{above.url}/replicas/index/catalogs").json()["catalogs"]
    assert [(each["catalog"], each["filter"]) for each in listed] == [
        ("https://first", False),
        ("https://second", True),
    ]
    many = httpx.post(f"{index.url}/replicas/index/query", json={"names": ["first", "no"]}).json()
    assert many == {"found": {"first": ["https://first"]}, "missing": ["no"]}


def test_an_index_is_told_what_fits_and_again_after_its_restart(start: Start, tmp_path: Path) -> None:
    with ExitStack() as life:
        config = configured(tmp_path, {}, replicas={"catalog": "sqlite:///index.db"})
        index = life.enter_context(background(config))
        catalog = start("catalog", url="https://c", change_seconds=0.05)
        httpx.post(f"{catalog.url}/replicas/mappings", json=mapped(("a1", "x"), ("b1", "x")))
        told = httpx.post(f"{catalog.url}/replicas/indexes", json={"url": index.url, "pattern": "glob:a*"})
        assert told.status_code == 200, told.text
        assert (
            httpx.post(f"{catalog.url}/replicas/indexes", json={"url": index.url, "pattern": "glob:a*"}).status_code
            == 409
        )
        until(lambda: known(index, "a1") == ["https://c"])
        assert known(index, "b1") == []
        port = int(index.url.rpartition(":")[2])
    config = configured(tmp_path, {}, service={"port": port}, replicas={"catalog": "sqlite:///index.db"})
    with background(config) as index:
        assert known(index, "a1") == [], "nothing of it lasts"
        httpx.post(f"{catalog.url}/replicas/mappings", json=mapped(("a2", "x")))
        until(lambda: known(index, "a2") == ["https://c"])
        assert known(index, "a1") == ["https://c"], "it knew nothing, so it was told everything"
        gone = httpx.delete(f"{catalog.url}/replicas/indexes", params={"url": index.url})
        assert gone.status_code == 200
        assert httpx.get(f"{catalog.url}/replicas/indexes").json() == {"indexes": []}


def test_an_index_by_a_former_name_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was taken for this server's own."""
    former = {"catalog": f"sqlite:///{tmp_path}/r.db", "url": "rlsn://then"}
    with background(configured(tmp_path, {}, replicas=former)) as then:
        assert httpx.post(f"{then.url}/replicas/indexes", json={"url": "rlsn://then"}).status_code == 200
    settings = replicas(**{**former, "url": "rlsn://now"}).replicas
    with closing(Replicas(settings, tmp_path)) as now:
        assert isinstance(now.receiver("rlsn://now"), Local)
        with pytest.raises(
            ConfigurationError, match=r"(?s)'rlsn://then' is neither .*'rlsn://now'.*--forget rlsn://then"
        ):
            now.receiver("rlsn://then")
        until(lambda: "rlsn://then" in [getattr(each, "index", None) for each in caplog.records])
        assert now.sent("rlsn://then")[1] == 0


def test_the_token_is_for_the_indexes_of_the_configuration(start: Start) -> None:
    """Whoever may add an index could otherwise have it sent to an address of their own."""
    with ScriptedServer(Scripted(body=b"{}")) as listed, ScriptedServer(Scripted(body=b"{}")) as added:
        catalog = start("catalog", url="https://c", indexes=[listed.url], token="planted", change_seconds=0.05)
        assert httpx.post(f"{catalog.url}/replicas/indexes", json={"url": added.url}).status_code == 200
        until(lambda: bool(listed.requests and added.requests))
        assert {each.headers.get("authorization") for each in listed.requests} == {"Bearer planted"}
        assert {each.headers.get("authorization") for each in added.requests} == {None}


def test_indexes_that_a_registry_names_are_told_while_their_leases_hold(start: Start, tmp_path: Path) -> None:
    registry = start("registry", {"registry": {"store": "sqlite:///registry.db"}})
    with ScriptedServer(Scripted(body=b"{}")) as listed:
        index = start("index")
        published = {"listed": listed.url, "index": index.url, "odd": "urn:none", "gone": "http://127.0.0.1:9"}
        entries = [
            {"key": f"urn:{name}", "kind": "service", "name": name, "properties": {"replicaIndex": {"uri": url}}}
            for name, url in published.items()
        ]
        answer = httpx.post(f"{registry.url}/registry/entries", json={"entries": entries, "whole": False})
        assert answer.status_code == 200, answer.text
        httpx.post(f"{registry.url}/registry/deprecated", json={"key": "urn:gone"}).raise_for_status()
        own = {"url": registry.url, "address": "https://c", "look_seconds": 0.05}
        settings = {"url": "https://c", "change_seconds": 0.05, "token": "planted", "index_addresses": [listed.url]}
        catalog = start("catalog", {"registry": own}, index_publishers=[""], **settings)
        stranger = start(
            "other", {"registry": {**own, "address": "http://127.0.0.1:7"}}, index_publishers=["x"], **settings
        )
        httpx.post(f"{catalog.url}/replicas/mappings", json=mapped(("early", "1"))).raise_for_status()
        until(lambda: known(index, "early") == ["https://c"])
        until(lambda: bool(listed.requests))
        assert {each.headers.get("authorization") for each in listed.requests} == {"Bearer planted"}

        def told(service: Background) -> set[str]:
            return {each["url"] for each in httpx.get(f"{service.url}/replicas/indexes").json()["indexes"]}

        until(lambda: told(catalog) == {listed.url, index.url, "http://127.0.0.1:7"})
        assert told(stranger) == set()
        entry = httpx.get(f"{registry.url}/registry/entry", params={"key": "https://c"}).json()
        assert entry["properties"]["replicaIndex"] == {"uri": "https://c"}
        httpx.post(f"{registry.url}/registry/deprecated", json={"key": "urn:index"}).raise_for_status()
        until(lambda: told(catalog) == {listed.url, "http://127.0.0.1:7"})
    with pytest.raises(ConfigurationError, match=r"\[registry\]"):
        start("lonely", url="https://e", index_publishers=[""])


def test_a_catalog_that_stops_is_forgotten_at_once(start: Start, tmp_path: Path) -> None:
    index = start("index")
    (tmp_path / "catalog").mkdir()
    replicas = {"catalog": "sqlite:///r.db", "url": "https://c", "indexes": [index.url], "change_seconds": 0.05}
    with background(configured(tmp_path / "catalog", {}, replicas=replicas)) as catalog:
        httpx.post(f"{catalog.url}/replicas/mappings", json=mapped(("a", "x")))
        until(lambda: known(index, "a") == ["https://c"])
    assert known(index, "a") == []


def test_lines_and_pages(start: Start) -> None:
    here = start("here")
    lines = "".join(json.dumps({"logical": f"n{at:02}", "target": "t"}) + "\n" for at in range(25))
    answer = httpx.post(
        f"{here.url}/replicas/mappings?mode=create", content=lines, headers={"Content-Type": "application/x-ndjson"}
    )
    assert answer.json() == {"done": 25, "refused": []}
    listed = httpx.get(f"{here.url}/replicas/mappings", headers={"Accept": "application/x-ndjson"})
    assert listed.text == lines.replace('": "', '":"').replace('", "', '","')
    page = httpx.get(f"{here.url}/replicas/mappings", params={"logicalPattern": "n*", "limit": 20}).json()
    assert (len(page["mappings"]), page["next"]) == (20, 20)
    page = httpx.get(f"{here.url}/replicas/mappings", params={"logicalPattern": "n*", "limit": 20, "offset": 20}).json()
    assert (len(page["mappings"]), page["next"]) == (5, None)
    assert httpx.get(f"{here.url}/replicas").json()["catalog"] == {"logical": 25, "target": 1, "mappings": 25}


def test_values(start: Start) -> None:
    here = httpx.Client(base_url=start("here").url)
    here.post("/replicas/mappings", json=mapped(("t", "https://a"), ("u", "https://b")))
    defined = {
        "attributes": [
            {"name": "fresh", "of": "target", "type": "date"},
            {"name": "rows", "of": "target", "type": "int"},
        ]
    }
    assert here.post("/replicas/attributes", json=defined).json()["done"] == 2
    assert [each["code"] for each in here.post("/replicas/attributes", json=defined).json()["refused"]] == [22, 22]
    values = [
        {"of": "target", "key": "https://a", "name": "rows", "type": "int", "value": 5},
        {"of": "target", "key": "https://b", "name": "rows", "type": "int", "value": "7"},
        {"of": "target", "key": "https://a", "name": "fresh", "type": "date", "value": "2026-01-02T03:04:05+01:00"},
        {"of": "target", "key": "https://z", "name": "rows", "type": "int", "value": 1},
    ]
    answer = here.post("/replicas/values", json={"values": values}).json()
    assert (answer["done"], answer["refused"][0]["reason"]) == (3, "PFN doesn't exist")
    there = here.get("/replicas/values", params={"of": "target", "key": "https://a"}).json()["values"]
    assert [(each["name"], each["value"]) for each in there] == [("fresh", "2026-01-02 02:04:05"), ("rows", 5)]
    found = here.get(
        "/replicas/values/search",
        params={"of": "target", "name": "rows", "operator": "between", "value": 6, "value2": 9},
    ).json()["values"]
    assert [each["key"] for each in found] == ["https://b"]
    assert here.delete("/replicas/attributes", params={"of": "target", "name": "rows"}).status_code == 409
    assert here.post("/replicas/values?mode=modify", json={"values": [values[0] | {"value": 9}]}).json()["done"] == 1
    removed = {"values": [{"of": "target", "key": "https://a", "name": "rows"}]}
    assert here.post("/replicas/values/delete", json=removed).json()["done"] == 1
    assert (
        here.delete("/replicas/attributes", params={"of": "target", "name": "rows", "clear": "true"}).status_code == 200
    )
    assert here.get("/replicas/attributes", params={"of": "target", "name": "rows"}).status_code == 404
    assert (
        here.post(
            "/replicas/names/rename", json={"of": "target", "names": [{"from": "https://a", "to": "https://c"}]}
        ).json()["done"]
        == 1
    )
    assert (
        here.get("/replicas/values", params={"of": "target", "key": "https://c"}).json()["values"][0]["name"] == "fresh"
    )
    here.close()


def names(*texts: str, rows: int = 0) -> dict[str, Any]:
    """A body of names, or of many empty ones."""
    sink = pa.BufferOutputStream()
    table = pa.table({"logical": pa.array([""] * rows) if rows else pa.array(texts)})
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd" if rows else None)
    ) as w:
        w.write_table(table)
    return {"content": sink.getvalue().to_pybytes(), "headers": {"Content-Type": ARROW}}


def beyond() -> dict[str, Any]:
    """Names of which one ends far behind all that was sent. The service read what is not there, and ended."""
    body = names("abcd", "efgh")
    offsets = b"".join(each.to_bytes(4, "little") for each in (0, 4, 8))
    assert body["content"].count(offsets) == 1
    return {**body, "content": body["content"].replace(offsets, offsets[:8] + b"\xff\xff\xff\x7f")}


NAMES = "/replicas/index/names?catalog=c&update=12345678&expected=1"
BAD: list[tuple[str, str, dict[str, Any], int]] = [
    ("GET", "/replicas/mappings?logical=a&target=b", {}, 400),
    ("GET", "/replicas/mappings?logical=a&logicalPattern=b", {}, 400),
    ("GET", "/replicas/mappings?limit=0", {}, 400),
    ("GET", "/replicas/mappings?nope=1", {}, 400),
    ("GET", "/replicas/mappings?logical=nope", {}, 404),
    ("POST", "/replicas/mappings", {"json": {"mappings": [{"logical": "a"}]}}, 400),
    ("POST", "/replicas/mappings", {"json": {"mappings": [{"logical": "", "target": "x"}]}}, 400),
    ("POST", "/replicas/mappings", {"json": {"mappings": [{"logical": "a\0", "target": "x"}]}}, 400),
    ("POST", "/replicas/mappings", {"json": [1]}, 400),
    ("POST", "/replicas/mappings", {"content": b"{", "headers": {"Content-Type": "application/json"}}, 400),
    ("POST", "/replicas/mappings?mode=other", {"json": mapped(("a", "b"))}, 400),
    ("POST", "/replicas/mappings", {"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415),
    ("GET", "/replicas/index", {}, 400),
    ("GET", "/replicas/values/search?name=nope", {}, 404),
    ("POST", "/replicas/indexes", {"json": {"url": "file:///etc/passwd"}}, 400),
    ("POST", "/replicas/indexes", {"json": {"url": "http://[x]"}}, 400),
    ("POST", "/replicas/indexes", {"json": {"url": "https://x", "pattern": "("}}, 400),
    ("POST", NAMES, {"content": b"x", "headers": {"Content-Type": ARROW}}, 400),
    ("POST", NAMES, {**names("a"), "content": names("a")["content"][:-8]}, 400),
    ("POST", NAMES, beyond(), 400),
    ("POST", NAMES, names(rows=MOST_NAMES + 1), 413),
    ("POST", "/replicas/index/filter?catalog=c&seconds=1", {"content": b"x", "headers": {"Content-Type": FILTER}}, 400),
    ("POST", "/replicas/index/filter?catalog=c&seconds=inf",
     {"content": Filter.empty(1).to_bytes(), "headers": {"Content-Type": FILTER}}, 400),
    ("POST", "/replicas/index/changes",
     {"json": {"catalog": "c", "seconds": 1, "added": [""], "removed": []}}, 400),
]  # fmt: skip


def test_bad_requests_are_refused_and_change_nothing(located: Background) -> None:
    with httpx.Client(base_url=located.url) as client:
        before = client.get("/replicas").json()
        for method, path, body, status in BAD:
            answer = client.request(method, path, **body)
            assert answer.status_code == status, (path, body, answer.text)
            assert answer.json()["detail"]
        assert client.get("/replicas").json() == before


def test_portions_of_two_updates_are_kept_apart(located: Background) -> None:
    def portion(update: str, names: list[str], catalog: str = "https://p", **more: Any) -> httpx.Response:
        sink = pa.BufferOutputStream()
        table = pa.table({"logical": arrow(names)})
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        asked = {"catalog": catalog, "update": update, "expected": 3, **more}
        return httpx.post(
            f"{located.url}/replicas/index/names",
            params=asked, content=sink.getvalue().to_pybytes(), headers={"Content-Type": ARROW},
        )  # fmt: skip

    assert portion("update-1", ["p1"]).json() == {"taken": 1}
    assert portion("update-2", ["p2"]).json() == {"taken": 1}
    assert portion("update-1", ["p3"], catalog="https://q").status_code == 409
    assert portion("update-2", ["p4"], seconds=60).json() == {"taken": 1}
    assert (known(located, "p2"), known(located, "p4"), known(located, "p1")) == (["https://p"], ["https://p"], [])
    assert portion("update-1", [], seconds=60).status_code == 200
    assert (known(located, "p1"), known(located, "p2")) == (["https://p"], [])
    httpx.delete(f"{located.url}/replicas/index/catalogs", params={"catalog": "https://p"})
    assert known(located, "p1") == []


def test_who_may(start: Start) -> None:
    """Readers read, writers write, those who load tell the index; administrators see to the catalog as a whole."""
    policy = {"read": ["*"], "write": ["writer", "admin"], "load": ["loader"]}
    here = start("here", {"identity": {"methods": ["token"]}}, policy=policy, url="https://c")
    answers: dict[str, list[int]] = {}
    for name in ("reader", "writer", "loader", "admin"):
        token, stored = new(name, 3600, administrator=name == "admin")
        here.service.store.add_token(stored)
        with httpx.Client(base_url=here.url, headers={"Authorization": f"Bearer {token}"}) as client:
            answers[name] = [
                client.get("/replicas").status_code,
                client.post("/replicas/mappings", json=mapped(("a", "b"))).status_code,
                client.delete("/replicas/index/catalogs", params={"catalog": "x"}).status_code,
                client.post("/replicas/updates").status_code,
                client.post("/replicas/indexes", json={"url": "https://other", "pattern": name}).status_code,
                client.delete("/replicas/mappings").status_code,
            ]
    assert answers == {
        "reader": [200, 403, 403, 403, 403, 403],
        "writer": [200, 200, 403, 403, 403, 403],
        "loader": [200, 403, 200, 403, 403, 403],
        "admin": [200, 200, 403, 202, 200, 200],
    }
    assert httpx.get(f"{here.url}/replicas").status_code == 401


def test_a_service_without_replica_location_says_so(tmp_path: Path) -> None:
    with background(configured(tmp_path, {})) as running:
        answer = httpx.get(f"{running.url}/replicas/mappings")
        assert answer.status_code == 404
        assert "[replicas]" in answer.json()["hint"]


def replicas(**keys: Any) -> Config:
    return parse({"replicas": keys}, ".", {"SECRET": "s3cret"})


def test_configuration() -> None:
    read = replicas(catalog="sqlite:///r.db", token="env:SECRET").replicas
    assert (read.token, read.rpc_port) == ("s3cret", None)
    assert "s3cret" not in repr(read)
    assert replicas(url="rlsn://c", indexes=["rlsn://c"]).replicas.indexes == ("rlsn://c",)
    for wrong in (
        {"indexes": ["https://x"]},
        {"url": "https://c", "indexes": ["ftp://x"]},
        {"url": "rlsn://c", "indexes": ["rlsn://x"]},
        {"url": "rlsn://c", "parents": ["rlsn://c"]},
        {"nope": 1},
        {"rpc_port": 70000},
        {"policy": "all"},
    ):
        with pytest.raises(ConfigurationError, match="replicas"):
            replicas(**wrong)


def test_patterns_of_partitions() -> None:
    assert fitting("")("anything")
    assert [bool(fitting("glob:a*b?c")(each)) for each in ("aXYbZc", "abc", "a\nbxc")] == [True, False, True]
    assert [bool(fitting("lfn[0-9]+")(each)) for each in ("lfn12", "xlfn12")] == [True, False]
