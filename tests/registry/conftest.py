"""A service with a registry, and callers whom it knows."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dai.api.server.serve import Background, background
from dai.security.identity.tokens import new
from tests.api.conftest import configured

Known = Callable[[str], httpx.Client]
LABEL = "http://www.w3.org/2000/01/rdf-schema#label"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    directory: Path = tmp_path_factory.mktemp("registry")
    registry = {
        "store": "sqlite:///registry.db",
        "query_seconds": 2,
        "query_bytes": 1 << 20,
        "policy": {"read": ["*"], "write": ["alice", "bob", "root"]},
    }
    identity = {"methods": ["token"], "wrong_seconds": 0.0}
    delivery = {"urls": ["http://127.0.0.1:9/hook"]}
    with background(configured(directory, {}, identity=identity, registry=registry, delivery=delivery)) as running:
        yield running


@pytest.fixture(scope="module")
def known(served: Background) -> Iterator[Known]:
    """A client of the caller of that name; ``root`` is an administrator, ``nobody`` sends no credentials."""
    made: dict[str, httpx.Client] = {}

    def client(name: str) -> httpx.Client:
        if name not in made:
            headers = {}
            if name != "nobody":
                token, stored = new(name, 3600, administrator=name == "root")
                served.service.store.add_token(stored)
                headers = {"Authorization": f"Bearer {token}"}
            made[name] = httpx.Client(base_url=f"{served.url}/registry", headers=headers, timeout=60)
        return made[name]

    yield client
    for each in made.values():
        each.close()


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    """Nothing is published when a test begins that has the service."""
    if "served" in request.fixturenames or "known" in request.fixturenames:
        root = request.getfixturevalue("known")("root")
        while entries := root.get("/entries", params={"deprecated": "true"}).json()["entries"]:
            tops = [each["key"] for each in entries if "parent" not in each]
            for key in tops:
                root.delete("/entries", params={"key": key}).raise_for_status()


def publish(client: httpx.Client, *entries: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    answer = client.post("/entries", json={"entries": list(entries), **more})
    assert answer.status_code == 200, answer.text
    listed: list[dict[str, Any]] = answer.json()["entries"]
    return listed


def service(key: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "kind": "service", "name": key.rpartition(":")[2], **more}


def counts(client: httpx.Client) -> dict[str, int]:
    """Of the whole registry: entries, and the number of the last change."""
    answer: dict[str, int] = client.get(str(client.base_url).rstrip("/")).json()
    return {name: answer[name] for name in ("entries", "number")}
