"""``/contexts`` over HTTP: what never changes under its hash, and documents with versions."""

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from dai.api.server.serve import Background
from tests.api.conftest import Serve
from tests.processes import ServiceProcess, until

TEXT = {"Content-Type": "text/plain"}


def id_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put(client: httpx.Client, content: bytes, query: str = "", **headers: str) -> httpx.Response:
    return client.put(f"/contexts/{id_of(content)}{query}", content=content, headers={**TEXT, **headers})


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"]


def test_a_context(client: httpx.Client) -> None:
    content = b"what never changes"
    first, again = put(client, content), put(client, content)
    assert (first.status_code, again.status_code) == (201, 200)
    described = again.json()
    assert first.json()["created"] == described["created"]
    assert first.json()["expires"] <= described["expires"]
    assert described["id"] == id_of(content)
    assert (described["type"], described["bytes"], described["version"], described["parents"]) == (
        "text/plain", len(content), 0, [],
    )  # fmt: skip
    assert 3600 <= round(described["expires"] - described["created"]) < 3700
    got = client.get(f"/contexts/{id_of(content)}")
    assert got.content == content
    assert got.headers["etag"] == first.headers["etag"] == f'"{id_of(content)}"'
    assert got.headers["content-type"] == "text/plain"
    assert "immutable" in got.headers["cache-control"]
    for known in (got.headers["etag"], f'"x", {got.headers["etag"]}', "*"):
        unchanged = client.get(f"/contexts/{id_of(content)}", headers={"If-None-Match": known})
        assert (unchanged.status_code, unchanged.content) == (304, b"")
    head = client.head(f"/contexts/{id_of(content)}")
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(content)))
    assert described in client.get("/contexts").json()["contexts"]
    assert client.delete(f"/contexts/{id_of(content)}").status_code == 204
    assert code(client.get(f"/contexts/{id_of(content)}")) == (404, "not-found")


def test_bytes_with_another_hash_are_refused(client: httpx.Client) -> None:
    answer = client.put(f"/contexts/{'0' * 64}", content=b"x", headers=TEXT)
    assert code(answer) == (400, "bad-data")
    assert id_of(b"x") in answer.json()["detail"]
    assert client.get(f"/contexts/{'0' * 64}").status_code == 404


def test_leases(client: httpx.Client) -> None:
    content = b"leased"
    until = put(client, content, "?seconds=100").json()["expires"]
    assert abs(until - time.time() - 100) < 60
    path = f"/contexts/{id_of(content)}/lease"
    longer = client.put(f"{path}?seconds=1000").json()["expires"]
    assert round(longer - until) >= 899
    assert client.put(f"{path}?seconds=1").json()["expires"] == longer
    assert client.get(path).json()["expires"] == longer
    assert client.put(f"{path}?seconds=1e9").json()["expires"] - time.time() < 7 * 86400 + 1


def test_parents(client: httpx.Client) -> None:
    put(client, b"above")
    put(client, b"beside")
    child = put(client, b"child", f"?parents={id_of(b'above')},{id_of(b'beside')}&seconds=90000")
    assert child.json()["parents"] == sorted([id_of(b"above"), id_of(b"beside")])
    link = client.get(f"/contexts/{id_of(b'child')}").headers["link"]
    assert f'</contexts/{id_of(b"above")}>; rel="up"' in link
    assert client.get(f"/contexts/{id_of(b'above')}/lease").json()["expires"] == child.json()["expires"]
    assert code(client.delete(f"/contexts/{id_of(b'above')}")) == (409, "conflict")
    assert code(put(client, b"orphan", f"?parents={'0' * 64}")) == (409, "conflict")
    for wrong in ("x", "0" * 63, ",".join(["0" * 64] * 17), f"{'0' * 64},"):
        assert code(put(client, b"orphan", f"?parents={wrong}")) == (400, "bad-parameter")


def test_a_document(client: httpx.Client) -> None:
    made = client.post("/contexts", content=b"one", headers=TEXT)
    path, tag = made.headers["location"], made.headers["etag"]
    assert (made.status_code, tag, made.json()["version"]) == (201, '"1"', 1)
    assert code(client.put(path, content=b"two", headers=TEXT)) == (428, "precondition-required")
    replaced = client.put(path, content=b"two", headers={**TEXT, "If-Match": tag})
    assert (replaced.status_code, replaced.headers["etag"]) == (200, '"2"')
    for stale in (tag, 'W/"2"', '"x"'):
        refused = client.put(path, content=b"three", headers={**TEXT, "If-Match": stale})
        assert code(refused) == (412, "precondition-failed"), stale
    got = client.get(path)
    assert (got.content, got.headers["etag"], got.headers["cache-control"]) == (b"two", '"2"', "private, no-cache")
    assert client.get(path, headers={"If-None-Match": '"2"'}).status_code == 304
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 200
    assert client.put(path, content=b"any", headers={**TEXT, "If-Match": "*"}).headers["etag"] == '"3"'
    assert client.put(path, content=b"any", headers={**TEXT, "If-Match": '"1", "3"'}).headers["etag"] == '"4"'
    wrong = client.put(f"{path}?seconds=5", content=b"x", headers={**TEXT, "If-Match": "*"})
    assert code(wrong) == (400, "bad-parameter")
    assert client.put(f"{path}/lease?seconds=9000").json()["expires"] > made.json()["expires"]
    assert client.delete(path).status_code == 204
    assert client.put(path, content=b"x", headers={**TEXT, "If-Match": "*"}).status_code == 404


def test_one_of_many_replaces_a_version(client: httpx.Client) -> None:
    path = client.post("/contexts", content=b"0", headers=TEXT).headers["location"]

    def replace(number: int) -> int:
        return client.put(path, content=b"%d" % number, headers={**TEXT, "If-Match": '"1"'}).status_code

    with ThreadPoolExecutor(8) as threads:
        statuses = sorted(threads.map(replace, range(16)))
    assert statuses == [200] + [412] * 15


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/contexts/x", 400),
        ("GET", f"/contexts/{'A' * 64}", 400),
        ("GET", f"/contexts/{'0' * 32}", 404),
        ("PUT", f"/contexts/{'0' * 64}?seconds=0", 400),
        ("PUT", f"/contexts/{'0' * 64}/lease?seconds=-1", 400),
        ("PUT", f"/contexts/{'0' * 64}/lease", 404),
        ("DELETE", f"/contexts/{'0' * 64}", 404),
        ("PATCH", f"/contexts/{'0' * 64}", 405),
        ("POST", "/contexts?seconds=nan", 400),
    ],
)
def test_what_is_wrong_is_said(client: httpx.Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status, answer.text
    assert answer.json()["detail"]


def test_a_type_is_kept(client: httpx.Client) -> None:
    for sent, kept in (("text/plain; charset=utf-8", "text/plain"), (None, "application/octet-stream")):
        headers = {} if sent is None else {"Content-Type": sent}
        path = client.post("/contexts", content=b"x", headers=headers).headers["location"]
        answer = client.get(path)
        assert answer.headers["content-type"] == kept
        assert answer.headers["x-content-type-options"] == "nosniff"
    answer = client.post("/contexts", content=b"x", headers={"Content-Type": "a/" + "b" * 300})
    assert code(answer) == (400, "bad-parameter")


def test_limits(serve: Serve) -> None:
    limits = {"context_bytes": 100, "contexts_bytes": 250, "contexts_memory": 0, "context_seconds": 60.0}
    running = serve(limits=limits, quotas={"context_bytes": 200})
    with httpx.Client(base_url=running.url) as client:
        assert code(put(client, b"x" * 101)) == (413, "too-large")
        for number in range(2):
            assert put(client, b"%d" % number * 100).status_code == 201
        full = put(client, b"more")
        assert code(full) == (429, "quota-exceeded")
        assert full.headers["retry-after"]
        lease = client.put(f"/contexts/{id_of(b'0' * 100)}/lease?seconds=9999").json()
        assert lease["expires"] - lease["created"] < 61
        assert client.get(f"/contexts/{id_of(b'0' * 100)}").content == b"0" * 100
    assert running.service.contexts.memory.held == 0


def test_what_has_ended_is_forgotten(serve: Serve) -> None:
    running = serve()
    with httpx.Client(base_url=running.url) as client:
        put(client, b"short", "?seconds=0.1")
        put(client, b"long")
        count = sa.text("select count(*) from dai_contexts")
        until(lambda: running.service.store.read(count)[0][0] == 1)
        assert [each["id"] for each in client.get("/contexts").json()["contexts"]] == [id_of(b"long")]


def test_the_limit_of_the_service(serve: Serve) -> None:
    with httpx.Client(base_url=serve(limits={"contexts_bytes": 10}).url) as client:
        full = put(client, b"x" * 11)
        assert code(full) == (422, "limit-exceeded")
        assert "limits.contexts_bytes" in full.text


@pytest.fixture
def process(tmp_path: Path, book: str) -> Iterator[ServiceProcess]:
    running = ServiceProcess(tmp_path / "service", {"book": book}).start()
    yield running
    running.kill()


@pytest.mark.server
def test_what_was_acknowledged_survives_a_kill(process: ServiceProcess) -> None:
    """Killed while many write: every context and every version that was acknowledged is there afterwards."""
    acknowledged: list[bytes] = []
    versions: list[tuple[str, int]] = []

    def write(number: int) -> None:
        with httpx.Client(base_url=process.url, timeout=30) as client:
            try:
                path = client.post("/contexts", content=b"0", headers=TEXT).headers["location"]
                for step in range(10_000):
                    content = b"%d of %d" % (step, number)
                    if put(client, content, "?seconds=86400").status_code == 201:
                        acknowledged.append(content)
                    answer = client.put(path, content=content, headers={**TEXT, "If-Match": f'"{step + 1}"'})
                    if answer.status_code == 200:
                        versions.append((path, step + 2))
            except httpx.HTTPError:
                return

    for _ in range(2):
        with ThreadPoolExecutor(4) as threads:
            writing = [threads.submit(write, number) for number in range(4)]
            before = len(acknowledged)
            until(lambda: len(acknowledged) >= before + 40 or all(each.done() for each in writing))  # noqa: B023
            process.kill()
        assert len(acknowledged) >= before + 40
        process.start()
        with httpx.Client(base_url=process.url, timeout=30) as client:
            for content in acknowledged:
                assert client.get(f"/contexts/{id_of(content)}").content == content
            for path, version in dict(versions).items():
                assert int(client.get(path).headers["etag"].strip('"')) >= version


def test_contexts_of_all_workers(tmp_path: Path, book: str) -> None:
    """What one process has stored another one has; of a version there is one successor."""
    running = ServiceProcess(tmp_path / "service", {"book": book}, workers=2).start()
    with ExitStack() as stack:
        stack.callback(running.kill)
        clients = [stack.enter_context(running.client()) for _ in range(4)]
        assert put(clients[0], b"shared").status_code == 201
        assert {each.get(f"/contexts/{id_of(b'shared')}").content for each in clients} == {b"shared"}
        path = clients[1].post("/contexts", content=b"0", headers=TEXT).headers["location"]

        def replace(client: httpx.Client) -> int:
            return client.put(path, content=b"1", headers={**TEXT, "If-Match": '"1"'}).status_code

        with ThreadPoolExecutor(4) as threads:
            assert sorted(threads.map(replace, clients)) == [200, 412, 412, 412]
        assert {each.get(path).headers["etag"] for each in clients} == {'"2"'}


def test_a_context_from_memory_needs_no_database(
    shared: Background, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, b"in memory")
    reads: list[Any] = []
    monkeypatch.setattr(shared.service.store, "read", reads.append)
    assert client.get(f"/contexts/{id_of(b'in memory')}").content == b"in memory"
    assert reads == []
