"""Webhooks: a receiver gets each change at least once and in order, signed, also after failures and a restart."""

import base64
import hashlib
import hmac
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from dai.api.server.serve import Background, background
from dai.config import IdentityConfig
from dai.config.identity import CertificateConfig, KeyConfig, SignaturesConfig, SubjectConfig
from dai.errors import DeniedError
from dai.security.identity import Caller
from dai.security.identity.tokens import new
from dai.security.standing import now
from dai.service.registry.webhooks import sender
from dai.service.registry.webhooks.store import Webhook, Webhooks
from tests.api.conftest import configured
from tests.processes import until
from tests.registry.conftest import publish, service

pytestmark = pytest.mark.server
ALICE = SubjectConfig(subject="CN=alice", name="alice", groups=("staff",), administrator=True)
SUBJECTS = CertificateConfig(subjects={"CN=alice": ALICE})
KEYS = SignaturesConfig(
    keys={
        "one": KeyConfig(id="one", name="alice", key=Path("one.pem"), groups=("staff",)),
        "two": KeyConfig(id="two", name="alice", key=Path("two.pem"), resources=("book",), administrator=True),
    }
)
Request = tuple[str, dict[str, str], bytes]


class Receiver(ThreadingHTTPServer):
    """Answers with the statuses in turn, then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Request] = []
        self.statuses: list[int] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.url = f"http://127.0.0.1:{self.server_port}/hook?of=registry"

    def changes(self) -> list[tuple[str, str]]:
        return [(each["action"], each["key"]) for _, _, body in self.requests for each in json.loads(body)["changes"]]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, dict(self.headers), body))
        self.server.may_answer.wait(60)
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def serve(tmp_path: Path, receiver: Receiver) -> Callable[..., Any]:
    def start(**more: Any) -> Any:
        registry = {"store": "sqlite:///registry.db", "policy": {"read": ["alice", "bob"], "write": ["alice", "bob"]}}
        delivery = {"urls": [f"http://127.0.0.1:{receiver.server_port}/"], "private": True, **more}
        identity = {"methods": ["token"], "wrong_seconds": 0.0}
        return background(configured(tmp_path, {}, identity=identity, registry=registry, delivery=delivery))

    return start


def client(running: Background, name: str, **rights: Any) -> httpx.Client:
    token, stored = new(name, 3600, **rights)
    running.service.store.add_token(stored)
    return httpx.Client(base_url=f"{running.url}/registry", headers={"Authorization": f"Bearer {token}"}, timeout=60)


def made(of: httpx.Client, url: str, **more: Any) -> dict[str, Any]:
    answer = of.post("/webhooks", json={"url": url, **more})
    assert answer.status_code == 200, answer.text
    hook: dict[str, Any] = answer.json()
    return hook


def state(of: httpx.Client) -> dict[str, Any]:
    (hook,) = of.get("/webhooks").json()["webhooks"]
    return dict(hook)


def holds(request: Request, secret: str, authority: str) -> bool:
    """Verified by the letter of RFC 9421, without a library."""
    path, headers, body = request
    parameters = headers["Signature-Input"].removeprefix("dai=")
    covered = re.findall(r'"([^"]+)"', parameters.partition(")")[0])
    target, _, query = path.partition("?")
    derived = {"@method": "POST", "@authority": authority, "@path": target, "@query": f"?{query}"}
    lower = {name.lower(): value for name, value in headers.items()}
    lines = [f'"{name}": {derived.get(name) or lower[name]}' for name in covered]
    base = "\n".join([*lines, f'"@signature-params": {parameters}']).encode()
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    signature = base64.b64decode(headers["Signature"].removeprefix("dai=:").removesuffix(":"))
    return (
        {"@method", "@authority", "@path", "content-digest"} <= set(covered)
        and headers["Content-Digest"] == f"sha-256=:{digest}:"
        and hmac.compare_digest(hmac.new(secret.encode(), base, hashlib.sha256).digest(), signature)
    )


def test_changes_are_sent_signed_to_who_may_see_them(serve: Callable[..., Any], receiver: Receiver) -> None:
    with serve() as running, client(running, "alice") as alice, client(running, "bob") as bob:
        hook = made(bob, receiver.url, kinds=["service"], actions=["published", "deleted"], prefix="urn:s:")
        publish(
            alice,
            service("urn:s:open"),
            service("urn:s:hidden", readers=["alice"]),
            service("urn:other"),
            {"key": "urn:s:b", "kind": "business", "name": "b"},
        )
        publish(alice, service("urn:s:open", description="changed"))
        alice.delete("/entries", params={"key": "urn:s:open"})
        until(lambda: ("deleted", "urn:s:open") in receiver.changes())
        assert receiver.changes() == [("published", "urn:s:open"), ("deleted", "urn:s:open")]
        assert all(holds(each, hook["secret"], f"127.0.0.1:{receiver.server_port}") for each in receiver.requests)
        assert not holds(receiver.requests[0], "another", f"127.0.0.1:{receiver.server_port}")
        assert "secret" not in state(bob)
        assert alice.get("/webhooks").json() == {"webhooks": []}
        assert alice.delete("/webhooks", params={"id": hook["id"]}).status_code == 404
        assert alice.post("/webhooks", json={"id": hook["id"], "url": receiver.url}).status_code == 404
        assert bob.delete("/webhooks", params={"id": hook["id"]}).status_code == 204
        assert bob.get("/webhooks").json() == {"webhooks": []}


def test_what_was_not_taken_is_sent_again_also_after_a_restart(
    serve: Callable[..., Any], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "FIRST_PAUSE", 0.01)
    with serve() as running, client(running, "alice") as alice:
        made(alice, receiver.url)
        receiver.statuses = [500] * 3
        publish(alice, service("urn:s:1"))
        until(lambda: len(receiver.requests) == 4)
        assert len({body for _, _, body in receiver.requests}) == 1
        assert len({headers["Signature"] for _, headers, _ in receiver.requests}) == 4, "each with its own nonce"
        until(lambda: state(alice)["number"] == 1)
        assert state(alice)["failures"] == 0
        receiver.statuses = [503] * 10
        publish(alice, service("urn:s:2"))
        until(lambda: len(receiver.requests) > 4)
    receiver.statuses = []
    before = len(receiver.requests)
    with serve() as running, client(running, "alice") as alice:
        publish(alice, service("urn:s:3"))
        until(lambda: state(alice)["number"] == 3)
    keys = [key for _, _, body in receiver.requests[before:] for key in [c["key"] for c in json.loads(body)["changes"]]]
    assert keys == ["urn:s:2", "urn:s:3"]


def test_a_request_that_ends_while_webhooks_are_read_is_not_sent_again(
    serve: Callable[..., Any], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve() as running, client(running, "alice") as alice:
        read, busy = Webhooks.all, running.service._sender._busy

        def slowly(webhooks: Webhooks) -> list[Webhook]:
            known = read(webhooks)
            if busy:
                receiver.may_answer.set()
                until(lambda: not busy)
            return known

        monkeypatch.setattr(Webhooks, "all", slowly)
        made(alice, receiver.url)
        receiver.may_answer.clear()
        publish(alice, service("urn:s:1"))
        until(lambda: len(receiver.requests) == 1)
        publish(alice, service("urn:s:2"))
        until(lambda: state(alice)["number"] == 2)
    assert receiver.changes() == [("published", "urn:s:1"), ("published", "urn:s:2")]


@pytest.mark.parametrize("statuses", [[410], [500] * 3, [302] * 3])
def test_who_refuses_is_not_asked_for_ever(
    serve: Callable[..., Any], receiver: Receiver, monkeypatch: pytest.MonkeyPatch, statuses: list[int]
) -> None:
    monkeypatch.setattr(sender, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(sender, "RETRIES", 3)
    with serve() as running, client(running, "alice") as alice:
        hook = made(alice, receiver.url)
        receiver.statuses = list(statuses)
        publish(alice, service("urn:s:1"))
        until(lambda: state(alice)["stopped"])
        assert len(receiver.requests) == len(statuses)
        assert str(statuses[0]) in state(alice)["problem"]
        publish(alice, service("urn:s:2"))
        resumed = alice.post("/webhooks", json={"id": hook["id"], "url": receiver.url})
        assert resumed.json()["stopped"] is False
        until(lambda: state(alice)["number"] == 2)
        sent = [each["key"] for each in json.loads(receiver.requests[-1][2])["changes"]]
        assert sent in (["urn:s:1", "urn:s:2"], ["urn:s:2"])


def test_what_is_not_kept_any_more_is_said(serve: Callable[..., Any], receiver: Receiver, monkeypatch: Any) -> None:
    with serve() as running, client(running, "alice") as alice:
        monkeypatch.setattr(running.service.registry, "changes", lambda after, most: None)
        made(alice, receiver.url)
        publish(alice, service("urn:s:1"))
        until(lambda: state(alice)["number"] == 1)
        assert json.loads(receiver.requests[0][2])["lost"] is True


@pytest.mark.parametrize(
    ("url", "private", "status", "says"),
    [
        ("http://192.0.2.1/hook", True, 403, "does not deliver"),
        ("ftp://127.0.0.1/hook", True, 403, "deliver"),
        ("http://127.0.0.1:{port}/../hook", True, 403, "parent directory"),
        ("http://alice:secret@127.0.0.1:{port}/hook", True, 400, "no user or password"),
    ],
)
def test_addresses_that_the_operator_does_not_allow(
    serve: Callable[..., Any], receiver: Receiver, url: str, private: bool, status: int, says: str
) -> None:
    with serve(private=private) as running, client(running, "alice") as alice:
        answer = alice.post("/webhooks", json={"url": url.format(port=receiver.server_port)})
        assert (answer.status_code, says in answer.text) == (status, True), answer.text


def test_no_host_with_a_private_address_is_called(serve: Callable[..., Any], receiver: Receiver) -> None:
    with serve(private=False) as running, client(running, "alice") as alice:
        made(alice, receiver.url)
        publish(alice, service("urn:s:1"))
        until(lambda: state(alice)["stopped"])
        assert "private address" in state(alice)["problem"]
        assert receiver.requests == []


def test_a_webhook_sees_what_its_owner_may_see_now(serve: Callable[..., Any], receiver: Receiver) -> None:
    """Not what they could when they made it: it went on for ever when their token was revoked."""
    with serve() as running, client(running, "alice", groups=("staff",), administrator=True) as alice:
        store = running.service.store
        (first,) = store.tokens("alice")
        made(alice, receiver.url)
        with client(running, "bob") as bob:
            publish(bob, service("urn:s:1", readers=["group:staff"]), service("urn:s:2", readers=["carol"]))
            until(lambda: len(receiver.changes()) == 2)
            store.add_token(new("alice", 3600, groups=("others",))[1])
            store.add_token(new("alice", 3600, ("elsewhere",), groups=("staff",), administrator=True)[1])
            store.add_token(new("alice", -1, groups=("staff",), administrator=True)[1])
            store.remove_token(first.id)
            publish(bob, service("urn:s:3", readers=["group:staff"]), service("urn:s:4", readers=["carol"]))
            publish(bob, service("urn:s:5", readers=["group:others"]), service("urn:s:6", readers=["alice"]))
            until(lambda: ("published", "urn:s:6") in receiver.changes())
            assert [key for _, key in receiver.changes()] == ["urn:s:1", "urn:s:2", "urn:s:6"]
            for each in store.tokens("alice"):
                store.remove_token(each.id)
            publish(bob, service("urn:s:7"))
            webhooks = running.service.webhooks
            until(lambda: webhooks.all()[0].stopped)
            assert "no longer knows" in webhooks.all()[0].problem
            assert ("published", "urn:s:7") not in receiver.changes()


@pytest.mark.parametrize(
    ("identity", "name", "rights"),
    [
        ({}, "", (frozenset(), False)),
        ({"methods": ("token",)}, "", None),
        ({"methods": ("token",), "anonymous": True}, "", (frozenset(), False)),
        ({"methods": ("jwt",)}, "alice", (frozenset(), False)),
        ({"methods": ("certificate",)}, "CN=anybody", (frozenset(), False)),
        ({"methods": ("certificate",), "certificate": SUBJECTS}, "CN=anybody", None),
        ({"methods": ("certificate",), "certificate": SUBJECTS}, "alice", ({"staff"}, True)),
        ({"methods": ("token",), "certificate": SUBJECTS}, "alice", None),
        ({"methods": ("signature",), "signatures": KEYS}, "alice", ({"staff"}, False)),
        ({"methods": ("signature",), "signatures": KEYS}, "bob", None),
    ],
)
def test_what_is_left_of_rights(identity: dict[str, Any], name: str, rights: Any) -> None:
    caller = Caller(name, "webhook", groups=frozenset({"staff", "root"} if name else ()), administrator=bool(name))
    config = IdentityConfig(**identity)
    if rights is None:
        with pytest.raises(DeniedError):
            now(caller, "registry", config, [])
    else:
        left = now(caller, "registry", config, [])
        assert (left.name, left.groups, left.administrator) == (name, *rights)


def test_silent_receivers_of_one_owner_keep_nobody_waiting(
    serve: Callable[..., Any], receiver: Receiver, monkeypatch: Any
) -> None:
    for name in ("SECONDS", "SILENCE"):
        monkeypatch.setattr(sender, name, 600.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        urls = [silent_url, f"http://127.0.0.1:{receiver.server_port}/"]
        with (
            serve(urls=urls, seconds=600, silence=600) as running,
            client(running, "alice") as alice,
            client(running, "bob") as bob,
        ):
            for _ in range(2 * sender.AT_ONCE):
                made(alice, silent_url)
            publish(alice, service("urn:s:a"))
            taken = [silent.accept()[0] for _ in range(sender.OF_ONE)]
            made(bob, receiver.url)
            publish(alice, service("urn:s:b"))
            until(lambda: ("published", "urn:s:b") in receiver.changes())
            for each in taken:
                each.close()
