"""Federations that ask their sources for themselves, and federations that pass their callers on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from dai.api.server.serve import Background, background
from dai.config import parse
from dai.drivers import driver_for
from dai.errors import ConfigurationError, DeniedError
from dai.security.identity import Caller
from dai.security.identity.tokens import new
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.settings import TlsSettings
from dqp.settings import parse as federation_of

JOIN = "select count(*) as n from near.t a join far.t b on a.k = b.k"
FAR, NEAR = "select count(*) as n from far.t", "select count(*) as n from near.t"


class Recorder(BaseHTTPRequestHandler):
    """A service outside of the list: it answers nothing useful, and keeps what was sent."""

    heads: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.heads.append(str(self.headers))
        self.send_error(503)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing."""


@dataclass
class World:
    """``far`` answers alice and the federation's own token; ``near``, a resource of the federation's service, alice and
    bob. ``forward`` and ``own`` are federations over both, and over ``other``, which is outside of the list."""

    service: Background
    audit: Path
    tokens: dict[str, str] = field(default_factory=dict)

    def client(self, who: str | None) -> httpx.Client:
        headers = {} if who is None else {"Authorization": f"Bearer {self.tokens[who]}"}
        return httpx.Client(base_url=self.service.url, timeout=100, headers={"Accept": "text/csv", **headers})

    def ask(self, who: str | None, sql: str, federation: str = "forward") -> httpx.Response:
        with self.client(who) as client:
            return client.post(f"/resources/{federation}/query", json={"sql": sql})

    def askers(self) -> set[str | None]:
        """Who has asked ``far``, since the last look."""
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        self.audit.write_text("")
        return {each.get("caller") for each in lines}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("callers")
    urls = {name: f"sqlite:///{directory / name}.db" for name in ("near", "far")}
    for url in urls.values():
        with closing(driver_for(url)) as driver:
            rows = pa.table({"k": pa.array(range(100), pa.int64())})
            driver.load("t", Stream.of(rows), cancellation=Cancellation(), create=True)
    tokens, stored = {}, {}
    for name in ("alice", "bob", "carol", "lab"):
        tokens[name], stored[name] = new(name, seconds=3600.0)
    tokens["alice again"], stored["alice again"] = new("alice", seconds=3600.0)

    def started(name: str, known: tuple[str, ...], **sections: Any) -> Background:
        (directory / name).mkdir()
        service = {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2}
        running = stack.enter_context(background(parse({"service": service, **sections}, directory / name, {})))
        for each in known:
            running.service.store.add_token(stored[each])
        return running

    with ExitStack() as stack:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        audit = directory / "far.jsonl"
        far = started(
            *("source", tuple(stored)),
            identity={"methods": ["token"], "wrong_seconds": 0.0},
            audit={"file": str(audit)},
            resources={"far": {"url": urls["far"], "policy": {"read": ["alice", "lab"]}}},
        )
        url = f"{far.url}/resources/far"
        own = [{"alias": "near", "resource": "near"}, {"alias": "far", "url": url, "token": tokens["lab"]}]
        passed = [
            {"alias": "near", "resource": "near"},
            {"alias": "far", "url": url, "forward": True},
            {"alias": "other", "url": f"http://127.0.0.1:{server.server_port}/resources/other"},
        ]
        service = started(
            *("federation", ("alice", "bob", "carol", "alice again")),
            identity={"methods": ["token"], "anonymous": True, "wrong_seconds": 0.0},
            resources={"near": {"url": urls["near"], "policy": {"read": ["alice", "bob"]}}},
            federations={"own": {"sources": own}, "forward": {"callers": "forward", "sources": passed}},
        )
        yield World(service, audit, tokens)


def test_by_its_own_right(world: World) -> None:
    """Whoever may ask the federation reads what it joins."""
    world.askers()
    for who in ("alice", "carol", None):
        assert world.ask(who, JOIN, "own").text.split() == ["n", "100"]
    assert world.askers() == {"lab"}


def test_the_caller_is_passed_on(world: World) -> None:
    world.askers()
    assert world.ask("alice", JOIN).text.split() == ["n", "100"]
    assert world.askers() == {"alice"}


@pytest.mark.parametrize(
    ("who", "sql", "source"),
    [
        ("bob", FAR, "far"),
        ("bob", JOIN, "far"),
        ("carol", NEAR, "near"),
        (None, FAR, "far"),
        (None, NEAR, "near"),
    ],
)
def test_a_caller_that_a_source_refuses(world: World, who: str | None, sql: str, source: str) -> None:
    """Also after one who may was answered: the error says which source it is. Nothing else is refused."""
    assert world.ask("alice", sql).status_code == 200
    answer = world.ask(who, sql)
    assert (answer.status_code, answer.json()["type"]) == (403, "denied"), answer.text
    assert f"The source '{source}' refuses" in answer.json()["detail"]
    if who == "bob":
        assert world.ask(who, NEAR).text.split() == ["n", "100"]


def test_what_is_cached_is_the_callers_own(world: World) -> None:
    """Tables, columns, statistics and plans: of sources that refuse a caller, there is nothing to see."""
    assert world.ask("alice", JOIN).status_code == 200
    seen = {}
    for who in ("alice", "bob"):
        with world.client(who) as client:
            client.headers["Accept"] = "application/json"
            tables = client.get("/resources/forward/schema").json()["tables"]
            seen[who] = {each["schema"] for each in tables}
            statistics = client.get("/resources/forward/statistics?table=far.t")
            explained = client.post("/resources/forward/query?format=csv", json={"sql": f"explain {JOIN}"})
            allowed = who == "alice"
            assert (statistics.status_code == 200) is allowed, statistics.text
            assert (explained.status_code == 200) is allowed, explained.text
            assert "k" not in statistics.json().get("columns", {}) or allowed
    assert seen == {"alice": {"near", "far"}, "bob": {"near"}}


def test_a_source_outside_of_the_list_gets_no_token(world: World) -> None:
    """Whatever was asked of it, here and before."""
    assert world.ask("alice", "select * from other.t").status_code == 503
    assert Recorder.heads
    assert not any("uthorization" in head or "dai_" in head for head in Recorder.heads)


def test_the_whole_policy_of_a_local_source_counts(tmp_path: Path) -> None:
    """Not to read alone: who may not see statistics there sees none here, and what is no query there is none here."""
    urls = {}
    for name in ("near", "narrow"):
        urls[name] = f"sqlite:///{tmp_path / name}.db"
        with closing(driver_for(urls[name])) as driver:
            rows = pa.table({"k": pa.array(range(100), pa.int64())})
            driver.load("t", Stream.of(rows), cancellation=Cancellation(), create=True)
    who = {"read": ["alice", "bob"]}
    resources = {
        "near": {"url": urls["near"], "policy": {**who, "statistics": ["alice"], "load": ["alice"]}},
        "narrow": {"url": urls["narrow"], "policy": {**who, "activities": ["Echo"]}},
    }
    sources = [{"alias": name, "resource": name} for name in resources]
    config = {
        "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
        "identity": {"methods": ["token"]},
        "resources": resources,
        "federations": {"forward": {"callers": "forward", "sources": sources}},
    }
    with background(parse(config, tmp_path, {})) as service:
        takes_tables = {}
        for name in ("alice", "bob"):
            token, stored = new(name, seconds=3600.0)
            service.service.store.add_token(stored)
            headers = {"Authorization": f"Bearer {token}", "Accept": "text/csv"}
            with httpx.Client(base_url=service.url, timeout=100, headers=headers) as client:
                counted = client.post("/resources/forward/query", json={"sql": NEAR})
                assert counted.text.split() == ["n", "100"]
                direct = client.post("/resources/narrow/query", json={"sql": "select 1 as a"})
                through = client.post("/resources/forward/query", json={"sql": "select * from narrow.t"})
                for answer in (direct, through):
                    assert (answer.status_code, "sqlQueryStatement may not run" in answer.text) == (403, True)
                forward = service.service.resources["forward"].of(Caller(name, "token", bearer=token)).driver
                source = forward.catalog.sources["near"]  # type: ignore[attr-defined]
                takes_tables[name] = source.takes_tables()
                if name == "bob":
                    with pytest.raises(DeniedError, match="The source 'near' refuses"):
                        source.statistics("t")
                else:
                    assert source.statistics("t") is not None
        assert takes_tables == {"alice": True, "bob": False}


def test_jobs_have_the_credentials_of_their_maker(world: World) -> None:
    """In memory only: what a job needs is not in the state database, and one whose credentials are gone says so."""
    with world.client("alice") as client:
        headers = {"Prefer": "respond-async"}
        job = client.post("/resources/forward/query", json={"sql": JOIN}, headers=headers).headers["location"]
        while (phase := client.get(f"{job}?wait=20").json()["phase"]) in ("QUEUED", "EXECUTING"):
            continue
        assert phase == "COMPLETED"
        waiting = client.post("/resources/forward/query?phase=PENDING", json={"sql": JOIN}).headers["location"]
        state = Path(str(world.service.service.config.service.state).removeprefix("sqlite:///"))
        written = b"".join(each.read_bytes() for each in state.parent.glob(f"{state.name}*"))
        assert world.tokens["alice"].encode() not in written
        with world.client("alice again") as other:
            refused = other.post(f"{waiting}/phase", data={"PHASE": "RUN"})
            assert (refused.status_code, "other credentials" in refused.text) == (403, True)
        callers = world.service.service.resources["forward"].callers
        assert callers is not None
        callers.close()
        client.post(f"{waiting}/phase", data={"PHASE": "RUN"})
        while (described := client.get(f"{waiting}?wait=20").json())["phase"] in ("QUEUED", "EXECUTING"):
            continue
        assert described["phase"] == "COMPLETED", "who runs it sent the credentials anew"


def test_tables_of_a_session_are_there_whatever_credentials_its_owner_sends(world: World) -> None:
    with world.client("alice") as one, world.client("alice again") as two, world.client("bob") as three:
        session = one.post("/sessions").json()["id"]
        resource = world.service.service.resources["forward"]
        kept = world.service.service.sessions.get(session)
        federation = resource.of(_caller("alice", world)).driver.within(kept, lambda _: None)
        rows = pa.table({"k": pa.array([1, 2], pa.int64())})
        federation.load("mine", Stream.of(rows), cancellation=Cancellation(), create=True)
        sql = {"sql": "select count(*) as n from mine join far.t on mine.k = t.k"}
        for client in (one, two):
            answer = client.post(f"/resources/forward/query?session={session}", json=sql)
            assert answer.text.split() == ["n", "2"], answer.text
        assert three.post(f"/resources/forward/query?session={session}", json=sql).status_code == 404


def _caller(name: str, world: World) -> Caller:
    return Caller(name, "token", bearer=world.tokens[name])


def test_no_credentials_in_what_is_shown(world: World) -> None:
    caller = _caller("alice", world)
    assert world.tokens["alice"] not in repr(caller)
    resource = world.service.service.resources["forward"].of(caller)
    assert world.tokens["alice"] not in repr(resource.database_user)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"callers": "forwards"}, "one of own, forward"),
        ({"callers": "forward", "evaluators": ["http://127.0.0.1:1"]}, "can only use this process"),
        ({"sources": {"a": {"url": "https://x/resources/a", "forward": True}}}, 'needs callers = "forward"'),
        ({"callers": "forward", "sources": {"a": {"resource": "a", "forward": True}}}, "for services"),
        (
            {"callers": "forward", "sources": {"a": {"url": "https://x/a", "forward": True, "token": "t"}}},
            "in the place of a token",
        ),
        ({"callers": "forward", "sources": {"a": {"url": "http://x/a", "forward": True}}}, "without encryption"),
        (
            {
                "callers": "forward",
                "sources": {"a": {"url": "https://x/a", "forward": True, "replicas": ["http://192.0.2.1/a"]}},
            },
            "without encryption",
        ),
    ],
)
def test_settings_that_cannot_be(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        federation_of({"sources": {}, **keys}, name="lab", where="federations.lab", served=TlsSettings())


def test_only_a_service_has_callers() -> None:
    with pytest.raises(ConfigurationError, match="only a federation of a service"):
        federation_of({"callers": "forward", "sources": {}})
