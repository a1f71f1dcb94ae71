"""Who may do what with replica location: every operation of the OpenAPI document by every sort of caller. What is not
granted is refused, changing nothing; what is granted is done, so each request would have changed something."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from dai.api.app import create_app
from dai.api.server.serve import Background, background
from dai.client.testing import Scripted, ScriptedServer
from dai.replicas.filters import Filter
from dai.replicas.replicas import ARROW, FILTER
from dai.security.identity.tokens import new
from tests.api.conftest import configured

pytestmark = pytest.mark.server
POLICY = {"read": ["reader", "writer", "loader", "admin", "root"], "write": ["writer", "admin"], "load": ["loader"]}
CALLERS = ("nobody", "stranger", "reader", "writer", "loader", "admin", "root")
"""``admin`` and ``root`` are administrators, ``nobody`` sends no credentials."""
MAPPED = {"mappings": [{"logical": "a", "target": "https://a"}]}
VALUE = {"values": [{"key": "a", "name": "size", "type": "int", "value": 1}]}


def names(*listed: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("logical", pa.string())])) as writer:
        writer.write_table(pa.table({"logical": [*listed]}))
    return sink.getvalue().to_pybytes()


def portion(update: str, catalog: str) -> dict[str, Any]:
    asked = {"catalog": catalog, "update": update, "expected": "1", "seconds": "60"}
    return {"params": asked, "content": names("x"), "headers": {"Content-Type": ARROW}}


def operations(index: str) -> dict[tuple[str, str], tuple[str, dict[str, Any]]]:
    """What each needs, and a request that does it. A new operation says here whom it is for."""
    changed = {"catalog": "https://p", "seconds": 60, "added": ["y"], "removed": []}
    here: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
        ("GET", ""): ("read", {}),
        ("GET", "/mappings"): ("read", {"params": {"logical": "a"}}),
        ("POST", "/mappings"): ("write", {"json": {"mappings": [{"logical": "b", "target": "https://b"}]}}),
        ("DELETE", "/mappings"): ("administer", {}),
        ("POST", "/mappings/query"): ("read", {"json": {"names": ["a"]}}),
        ("POST", "/mappings/delete"): ("write", {"json": MAPPED}),
        ("POST", "/names/rename"): ("write", {"json": {"names": [{"from": "a", "to": "c"}]}}),
        ("GET", "/attributes"): ("read", {}),
        ("POST", "/attributes"): ("write", {"json": {"attributes": [{"name": "further"}]}}),
        ("DELETE", "/attributes"): ("write", {"params": {"name": "size", "clear": "true"}}),
        ("GET", "/values"): ("read", {"params": {"key": "a"}}),
        ("POST", "/values"): (
            "write",
            {"params": {"mode": "modify"}, "json": {"values": [{**VALUE["values"][0], "value": 2}]}},
        ),
        ("GET", "/values/search"): ("read", {"params": {"name": "size"}}),
        ("POST", "/values/delete"): ("write", {"json": {"values": [{"key": "a", "name": "size"}]}}),
        ("GET", "/indexes"): ("read", {}),
        ("POST", "/indexes"): ("administer", {"json": {"url": f"{index}/new"}}),
        ("DELETE", "/indexes"): ("administer", {"params": {"url": f"{index}/there"}}),
        ("POST", "/updates"): ("administer", {}),
        ("GET", "/index"): ("read", {"params": {"logical": "x"}}),
        ("POST", "/index/query"): ("read", {"json": {"names": ["x"]}}),
        ("GET", "/index/catalogs"): ("read", {}),
        ("DELETE", "/index/catalogs"): ("load", {"params": {"catalog": "https://p"}}),
        ("POST", "/index/names"): ("load", portion("of-the-test", "https://n")),
        ("POST", "/index/filter"): (
            "load",
            {
                "params": {"catalog": "https://q", "seconds": "60"},
                "content": Filter.empty(1).to_bytes(),
                "headers": {"Content-Type": FILTER},
            },
        ),
        ("POST", "/index/changes"): ("load", {"json": changed}),
    }
    return {(method, f"/replicas{path}"): each for (method, path), each in here.items()}


def granted(work: str, who: str) -> bool:
    """Written down once more, from the documentation."""
    lists = {"administer": {"admin"}, **{name: set(each) for name, each in POLICY.items()}}
    return who in lists[work]


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    """The address of an index that takes everything."""
    with ScriptedServer(Scripted(body=b'{"taken": true}')) as server:
        yield server.url


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    replicas = {"catalog": "sqlite:///replicas.db", "url": "https://c", "policy": POLICY}
    identity = {"methods": ["token"], "wrong_seconds": 0.0}
    directory: Path = tmp_path_factory.mktemp("rights")
    with background(configured(directory, {}, identity=identity, replicas=replicas)) as running:
        yield running


@pytest.fixture(scope="module")
def clients(here: Background) -> Iterator[dict[str, httpx.Client]]:
    clients = {}
    for name in CALLERS:
        headers = {}
        if name != "nobody":
            token, stored = new(name, 3600, administrator=name in ("admin", "root"))
            here.service.store.add_token(stored)
            headers = {"Authorization": f"Bearer {token}"}
        clients[name] = httpx.Client(base_url=here.url, headers=headers, timeout=60)
    yield clients
    for each in clients.values():
        each.close()


def prepare(clients: dict[str, httpx.Client], index: str) -> None:
    """The same catalog and index each time, whatever was done to them."""
    admin, loader = clients["admin"], clients["loader"]
    admin.delete("/replicas/mappings").raise_for_status()
    for each in admin.get("/replicas/attributes").json()["attributes"]:
        admin.delete("/replicas/attributes", params={"name": each["name"], "clear": "true"}).raise_for_status()
    for each in admin.get("/replicas/indexes").json()["indexes"]:
        admin.delete("/replicas/indexes", params={"url": each["url"]}).raise_for_status()
    defined = {"attributes": [{"name": "size", "type": "int"}]}
    for path, body in (
        ("mappings", MAPPED),
        ("attributes", defined),
        ("values", VALUE),
        ("indexes", {"url": f"{index}/there"}),
    ):
        admin.post(f"/replicas/{path}", json=body).raise_for_status()
    for each in loader.get("/replicas/index/catalogs").json()["catalogs"]:
        loader.delete("/replicas/index/catalogs", params={"catalog": each["catalog"]}).raise_for_status()
    loader.post("/replicas/index/names", **portion("prepared", "https://p")).raise_for_status()


def state(running: Background) -> object:
    replicas = running.service.replicas
    assert replicas is not None
    catalog = replicas.catalog
    return (
        [*catalog.pages(0, "%")],
        catalog.attributes(0),
        [catalog.search(0, each.name, "all", [], 0, 10) for each in catalog.attributes(0)],
        replicas.told_indexes(),
        [(each.url, each.names) for each in replicas.index.senders()],
    )


def test_every_operation_has_a_rule() -> None:
    described = {
        (method.upper(), path)
        for path, operations_of_it in create_app().openapi()["paths"].items()
        for method in operations_of_it
        if path.startswith("/replicas")
    }
    assert described == set(operations(""))


@pytest.mark.parametrize("who", CALLERS)
def test_every_operation(here: Background, clients: dict[str, httpx.Client], index: str, who: str) -> None:
    prepare(clients, index)
    for (method, path), (work, request) in operations(index).items():
        before = state(here)
        answer = clients[who].request(method, path, **request)
        if granted(work, who):
            assert answer.is_success, (path, answer.text)
            assert answer.json().get("refused", []) == [], (path, answer.text)
            assert (state(here) == before) is (work == "read" or path == "/replicas/updates"), (method, path)
            if work != "read":
                prepare(clients, index)
        else:
            assert answer.status_code == (401 if who == "nobody" else 403), (path, answer.text)
            assert state(here) == before, (method, path)
            head = clients[who].head(path) if method == "GET" else None
            assert head is None or head.status_code == answer.status_code, path
