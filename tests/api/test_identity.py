"""Who asks: every operation by every caller, what is not granted refused and nothing changed by it."""

import hashlib
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import dai
import dqp
from dai.api.app import create_app
from dai.api.requests.route import ChangingRoute, PullRoute, Route
from dai.api.routes.perform import DocumentRoute
from dai.api.server.serve import Background, background
from dai.client import Options
from dai.client.http.signing import Signer
from dai.errors import DeniedError, NotFoundError, RequestError, UnauthenticatedError
from dai.security.identity import Caller
from dai.security.identity.tokens import new
from tests.api.conftest import DOCUMENT, XML, Serve, configured, statement, streamed
from tests.api.described import paths
from tests.processes import ROOT, ServiceProcess, until
from tests.thoroughness import combined

DAY = 86400.0
SECRET = "what a proxy of this service knows"
HEALTH = {"/", "/health", "/health/live", "/health/ready"}
EVERYBODY = {
    ("GET", "/resources"), ("GET", "/jobs"), ("POST", "/sessions"), ("GET", "/openapi.json"),
    ("GET", "/docs"), ("GET", "/docs/{name}"), ("GET", "/schemas"), ("GET", "/schemas/{name}"), ("GET", "/contexts"),
    ("POST", "/contexts"), ("GET", "/wsctx"), ("POST", "/wsctx"), ("GET", "/feeds"), ("POST", "/feeds"),
}  # fmt: skip
"""What every known caller may ask, and what shows nobody's things but their own."""
OPERATIONS = sorted((method.upper(), path) for path, operations in paths().items() for method in operations)
HEADS = sorted({each.path for each in create_app().routes if "HEAD" in each.methods})  # type: ignore[attr-defined]
"""What answers with a head alone, too."""
SOAP = {
    "/wsctx": '<begin xmlns="http://docs.oasis-open.org/ws-caf/2005/10/wsctx"/>',
    "/registry/uddi/{part}": '<find_service xmlns="urn:uddi-org:api_v2" generic="2.0"><name>a</name></find_service>',
}
METHODS = ("token", "jwt", "signature", "certificate")
ISSUER = "https://login.example.org"
UNSIGNED = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImF1ZCI6ImRhaSIsImV4cCI6OTk5OTk5OTk5OX0."
"""A JSON Web Token of alice with ``alg=none``."""
FORGED_HEADERS = {
    "signature of nobody": {
        "Authorization": "",
        "Signature-Input": 'a=("@method" "@authority" "@path" "@query");created=1;keyid="none";nonce="x"',
        "Signature": "a=:AAAA:",
    },
    "signature without its key": {
        "Authorization": "",
        "Signature-Input": f'a=("@method" "@authority" "@path" "@query");created={int(time.time())};keyid="bobs"',
        "Signature": f"a=:{'A' * 86}==:",
    },
    "certificate without the secret": {"Authorization": "", "X-Client-DN": "CN=bob", "X-Proxy-Secret": "x" * 32},
}


@dataclass
class Known:
    """A service that asks who calls, a token by its name, and what is alice's: values of the parameters of paths.
    ``bob`` is known by each of METHODS."""

    running: Background
    tokens: dict[str, str]
    hers: dict[str, str]

    signer: Signer
    issuer: rsa.RSAPrivateKey

    def client(self, who: str | None, method: str = "token") -> httpx.Client:
        token = self.tokens.get(who or "", who)
        auth: Any = None
        if method == "jwt":
            claims = {"iss": ISSUER, "aud": "dai", "sub": who, "exp": int(time.time()) + 600}
            token = jwt.encode(claims, self.issuer, "RS256", {"kid": "1"})
        elif method == "signature":
            token, auth = None, Signed(self.signer)
        elif method == "certificate":
            token = None
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        headers |= FORGED_HEADERS.get(who or "", {})
        if method == "certificate":
            headers |= {"X-Client-DN": f"CN={who}", "X-Proxy-Secret": SECRET}
        return httpx.Client(base_url=self.running.url, timeout=60, headers=headers, auth=auth)


class Signed(httpx.Auth):
    requires_request_body = True

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:
        headers = self._signer.headers(request.method, str(request.url), request.headers, request.content)
        request.headers.update(headers)
        yield request


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, book: str) -> Iterator[Known]:
    directory = tmp_path_factory.mktemp("known")
    own, issuer = ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65537, 2048)
    (directory / "bob.key").write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (directory / "bob.pem").write_bytes(own.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    public = jwt.get_algorithm_by_name("RS256").to_jwk(issuer.public_key(), as_dict=True)
    (directory / "keys.json").write_text(json.dumps({"keys": [{**public, "kid": "1"}]}))
    identity = {
        "methods": list(METHODS),
        "kept_seconds": 0.0,
        "wrong_seconds": 0.0,
        "jwt": {"issuer": ISSUER, "audience": ["dai"], "jwks": "keys.json"},
        "signatures": {"keys": {"bobs": {"name": "bob", "key": "bob.pem"}}},
        "certificate": {"proxies": ["127.0.0.1"], "secret": SECRET, "header": "X-Client-DN", "name": "cn"},
    }
    config = configured(
        directory,
        {"book": {"url": book}, "other": {"url": book}},
        identity=identity,
        replicas={"catalog": "sqlite:///replicas.db"},
        registry={"store": "sqlite:///registry.db"},
    )
    with background(config) as running:
        tokens = {}
        for name, kept in {
            "alice": {}, "bob": {}, "root": {"administrator": True}, "limited": {"resources": ("other",)},
            "expired": {"seconds": -1.0}, "revoked": {},
        }.items():  # fmt: skip
            tokens[name], stored = new(name, **{"seconds": DAY, **kept})  # type: ignore[arg-type]
            running.service.store.add_token(stored)
            if name == "revoked":
                assert running.service.store.remove_token(stored.id)
        service = Known(running, tokens, {}, Signer(directory / "bob.key", "bobs"), issuer)
        with service.client("alice") as alice:
            session = alice.post("/sessions", json={}).json()["id"]
            document = streamed("select * from numbers where i < 10")
            job = alice.post(f"/resources/book/perform?session={session}", content=document, headers=XML)
            id = job.headers["location"].rpartition("/")[2]
            broken = alice.post("/resources/book/query", json={"sql": "select nothing from numbers"})
            done = alice.post(
                "/resources/book/query", json={"sql": "select 1 as a"}, headers={"Prefer": "respond-async"}
            )
            finished = done.headers["location"].rpartition("/")[2]
            context = hashlib.sha256(b"hers").hexdigest()
            assert alice.put(f"/contexts/{context}", content=b"hers").status_code == 201
            feed = alice.post("/feeds", json={}).json()["id"]
            assert alice.put(f"/feeds/{feed}/blocks/0?last=true", content=b"hers").status_code == 200
            until(lambda: alice.get(f"/jobs/{finished}").json()["phase"] == "COMPLETED")
            until(lambda: [each["ended"] for each in alice.get(f"/sessions/{session}").json()["streams"]] == [True])
        running.service.problems.keep("her-request", DeniedError("Hers alone."), 0, "alice")
        assert broken.status_code == 400
        service.hers = {
            "session": session, "job": id, "stream": "out", "number": "0", "output": "result", "request": "her-request",
            "resource": "book", "context": context, "part": "inquiry", "feed": feed,
        }  # fmt: skip
        yield service


def asked(client: httpx.Client, method: str, path: str, hers: dict[str, str]) -> httpx.Response:
    body: dict[str, Any] = {}
    if path.endswith("/perform"):
        body = {"content": DOCUMENT.format(statement("select 1 as a")), "headers": XML}
    elif path.endswith("/query") and method == "POST":
        body = {"json": {"sql": "select 1 as a"}}
    elif path.endswith("/phase"):
        body = {"data": {"PHASE": "ABORT"}}
    elif path.endswith("/destruction"):
        body = {"data": {"DESTRUCTION": "2001-01-01T00:00:00Z"}}
    elif path in SOAP and method == "POST":
        envelope = f'<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/"><e:Body>{SOAP[path]}</e:Body></e:Envelope>'
        body = {"content": envelope, "headers": {"Content-Type": "text/xml"}}
    elif method in ("PATCH", "PUT"):
        body = {"json": {}} if method == "PATCH" else {"content": b"x", "headers": {"Content-Type": "text/plain"}}
    parameters = {"table": "numbers"} if path.endswith("/statistics") else None
    if path == "/resources/{resource}/query" and method != "POST":
        parameters = {"sql": "select 1 as a"}
    hers = {**hers, "name": "swagger-ui.css" if path.startswith("/docs") else "perform.xsd"}
    return client.request(method, path.format(**hers), params=parameters, **body)


def theirs(known: Known) -> tuple[object, ...]:
    """All that belongs to anybody, as it is kept."""
    service = known.running.service
    jobs = [(each.id, each.phase, each.destruction) for each in service.store.listed()]
    sessions = [
        (each.id, each.ended, each.attributes, [name for _, name, _ in each.streams()])
        for each in service.sessions.all()
    ]
    assert service.replicas is not None
    assert service.registry is not None
    return (
        jobs,
        sessions,
        (service.replicas.catalog.counts(), service.replicas.told_indexes(), service.replicas.index.counts()),
        service.registry.number(),
        [(each.id, each.next, each.ended) for each in service.feeds.all() if each.owner == "alice"],
        [each for each, _ in service.contexts.listed(Caller("root", administrator=True)) if each.owner == "alice"],
        [(each.acknowledged, each.expected) for s in service.sessions.all() for _, _, each in s.streams()],
    )


def test_every_endpoint_is_described() -> None:
    """What the description does not have, no test would ask for."""
    routes = create_app().routes
    assert {type(each) for each in routes} <= {Route, ChangingRoute, PullRoute, DocumentRoute}
    asked = {(method, each.path) for each in routes for method in each.methods}  # type: ignore[attr-defined]
    assert asked - {("HEAD", path) for path in HEADS} == set(OPERATIONS)
    assert {("GET", path) for path in HEADS} <= set(OPERATIONS)


UNKNOWN = [None, "expired", "revoked", "dai_0123456789abcdef_no", "dai_", "x", "dai_" + "x" * 500, UNSIGNED]


@pytest.mark.parametrize(
    ("method", "path", "who"), [(*each, who) for each, who in combined(OPERATIONS, [*UNKNOWN, *FORGED_HEADERS])]
)
def test_nobody_unknown_is_answered(known: Known, who: str | None, method: str, path: str) -> None:
    before = theirs(known)
    with known.client(who) as client:
        answer = asked(client, method, path, known.hers)
    if path in HEALTH:
        assert answer.status_code == 200
        return
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="dai"')
    assert answer.json()["type"] == "unauthenticated"
    assert known.tokens.get(who or "", "dai_") not in answer.text
    assert theirs(known) == before


@pytest.mark.parametrize(("method", "path", "how"), [(*each, how) for each, how in combined(OPERATIONS, METHODS)])
def test_what_is_anothers_is_not_there(known: Known, how: str, method: str, path: str) -> None:
    """A new operation says here whom it is for: by the parameters of its path, or as one for everybody."""
    before = theirs(known)
    with known.client("bob", how) as bob:
        answer = asked(bob, method, path, known.hers)
    if any(part in path for part in ("{session}", "{job}", "{request}", "{context}", "{feed}")):
        # who puts a context names its bytes: these are not alice's
        assert answer.status_code == (400 if (method, path) == ("PUT", "/contexts/{context}") else 404), answer.text
        assert theirs(known) == before
        with known.client("root") as root:
            seen = root.get(path.format(**known.hers)) if method == "GET" and "/streams" not in path else None
        assert seen is None or seen.status_code != 404 or "/outputs" in path
    elif "{resource}" in path:
        with known.client("limited") as limited:
            refused = asked(limited, method, path, known.hers)
            other = asked(limited, method, path, known.hers | {"resource": "other"})
        assert (refused.status_code, refused.json()["type"]) == (403, "denied")
        assert other.status_code == answer.status_code < 400
    elif path.startswith(("/replicas", "/registry")):
        with known.client("limited") as limited:
            assert asked(limited, method, path, known.hers).status_code == 403
        changes = method != "GET" and not path.endswith(("/query", "/sparql", "/{part}"))
        assert (answer.status_code == 403) is changes, "without a policy everybody reads and nobody changes"
        assert answer.status_code < 500
    elif path == "/metrics":
        assert (answer.status_code, answer.json()["type"]) == (403, "denied"), "its labels name all resources"
        with known.client("root") as root:
            assert root.get(path).status_code == 200
    else:
        assert path in HEALTH or (method, path) in EVERYBODY, "whom is this for?"
        assert answer.status_code < 400


@pytest.mark.parametrize(
    ("metrics", "statuses"),
    [
        ([], {None: 401, "alice": 403, "prometheus": 403, "limited": 403, "root": 200}),
        (["prometheus"], {None: 401, "alice": 403, "prometheus": 200, "limited": 403, "root": 200}),
        (["group:watch", "*"], {None: 401, "alice": 200, "prometheus": 200, "limited": 403, "root": 200}),
        (["anonymous"], {None: 200, "alice": 200, "limited": 200, "root": 200}),
    ],
)
def test_who_sees_the_metrics(serve: Serve, metrics: list[str], statuses: dict[str | None, int]) -> None:
    running = serve(identity={"methods": ["token"], "metrics": metrics, "wrong_seconds": 0.0})
    kept = {"limited": {"resources": ("book",)}, "root": {"administrator": True}}
    for who, status in statuses.items():
        headers = {}
        if who is not None:
            token, stored = new(who, DAY, **kept.get(who, {}))  # type: ignore[arg-type]
            running.service.store.add_token(stored)
            headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.get(f"{running.url}/metrics", headers=headers)
        assert (answer.status_code, "dai_requests_total" in answer.text) == (status, status == 200), who
        assert httpx.get(f"{running.url}/metrics/../jobs").status_code == 401


@pytest.mark.parametrize("path", HEADS)
def test_a_head_tells_no_more_than_its_answer(known: Known, path: str) -> None:
    for who in (None, "expired", "bob", "limited"):
        with known.client(who) as client:
            whole = asked(client, "GET", path, known.hers)
            head = asked(client, "HEAD", path, known.hers)
        assert head.status_code == whole.status_code, who
        assert head.content == b""
        assert who in ("bob", "limited") or path in HEALTH or head.status_code == 401


def test_two_callers_choose_the_same_id_of_a_request(known: Known) -> None:
    """Neither sees the other's problem, and neither takes it away."""
    for who in ("alice", "bob"):
        known.running.service.problems.keep("same-request", DeniedError(f"That of {who}."), 0, who)
    for who in ("alice", "bob"):
        with known.client(who) as client:
            assert f"That of {who}." in client.get("/problems/same-request").json()["detail"]
    with known.client("limited") as client:
        assert client.get("/problems/same-request").status_code == 404


def test_lists_have_what_is_ones_own(known: Known) -> None:
    numbers = {}
    for who in ("alice", "bob", "root"):
        with known.client(who) as client:
            numbers[who] = {each["id"] for each in client.get("/jobs").json()["jobs"] if each["owner"] == "alice"}
    assert numbers["alice"] == numbers["root"] >= {known.hers["job"]}
    assert numbers["bob"] == set()
    with known.client("limited") as limited:
        assert [each["name"] for each in limited.get("/resources").json()["resources"]] == ["other"]


def test_another_session_cannot_be_joined(known: Known) -> None:
    session = known.hers["session"]
    document = DOCUMENT.format(f'<session><joinSession id="{session}"/></session>' + statement("select 1 as a"))
    with known.client("bob") as bob:
        joined = bob.post(f"/resources/book/perform?session={session}", content=streamed("select 1 as a"), headers=XML)
        asked = bob.post(f"/resources/book/query?session={session}", json={"sql": "select 1 as a"})
        named = bob.post("/resources/book/perform", content=document, headers=XML)
    assert (joined.status_code, asked.status_code) == (404, 404)
    assert named.status_code in (400, 404)


def test_several_credentials(known: Known) -> None:
    """A proxy and we might each take another one."""
    connection = http.client.HTTPConnection(known.running.url.removeprefix("http://"))
    connection.putrequest("GET", "/jobs")
    for who in ("alice", "root"):
        connection.putheader("Authorization", f"Bearer {known.tokens[who]}")
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()


@pytest.mark.parametrize("value", ["Basic YWxpY2U6eA==", "Bearer", "bearer\tx", "Token x", "Bearer dai_\xff_x"])
def test_credentials_of_another_kind(known: Known, value: str) -> None:
    with httpx.Client(base_url=known.running.url, headers={"Authorization": value.encode("latin-1")}) as client:
        assert client.get("/jobs").status_code == 401


def test_anonymous_callers_beside_known_ones(serve: Serve) -> None:
    running = serve(identity={"methods": ["token"], "anonymous": True})
    token, stored = new("alice", DAY)
    running.service.store.add_token(stored)
    with httpx.Client(base_url=running.url) as anybody:
        id = anybody.post("/sessions", json={}).json()["id"]
        hers = {"Authorization": f"Bearer {token}"}
        assert anybody.get(f"/sessions/{id}").status_code == 200
        assert anybody.get(f"/sessions/{id}", headers=hers).status_code == 404
        # credentials that do not hold make nobody anonymous
        assert anybody.get(f"/sessions/{id}", headers={"Authorization": f"Bearer {token}x"}).status_code == 401


def test_python_and_federations_with_a_token(known: Known) -> None:
    url, token = f"{known.running.url}/resources/book", known.tokens["alice"]
    assert dai.connect(url, token=token).query("select count(*) as n from numbers").arrow()["n"].to_pylist() == [30_000]
    with pytest.raises(UnauthenticatedError, match="identified callers"):
        dai.connect(url)
    with pytest.raises(RequestError, match="without encryption"):
        dai.connect("http://data.example.org/book", token=token)
    assert token not in repr(Options(token=token))
    with dqp.connect({"sources": {"b": {"url": url, "token": token}}}) as lab:
        assert lab.sql("select max(i) as i from b.numbers").arrow()["i"].to_pylist() == [29_999]


def test_the_log_says_who_asked(known: Known, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "dai.access"), known.client("alice") as alice:
        alice.get("/jobs?last=1")
        until(lambda: any(getattr(each, "caller", None) == "alice" for each in caplog.records))
    assert known.tokens["alice"] not in caplog.text


def test_several_processes(tmp_path: Path, book: str) -> None:
    """Whichever process a request meets, it knows who asks and whose the session is."""
    with_tokens = ServiceProcess(tmp_path, {"book": book}, identity=["token"], workers=2)
    with_tokens.start()
    try:
        tokens = {}
        for name in ("alice", "bob"):
            command = [sys.executable, "-m", "dai", "tokens", "create", name, "--config", str(tmp_path / "dai.toml")]
            token = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
            tokens[name] = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=with_tokens.url, headers=tokens["alice"]) as alice:
            sessions = [alice.post("/sessions", json={}).json()["id"] for _ in range(8)]
        for who, status in (("alice", 200), ("bob", 404)):
            for id in sessions:
                assert httpx.get(f"{with_tokens.url}/sessions/{id}", headers=tokens[who]).status_code == status
                assert httpx.get(f"{with_tokens.url}/sessions/{id}").status_code == 401
    finally:
        with_tokens.stop()


def test_nothing_is_said_of_what_is_not_there(known: Known) -> None:
    """What another has and what nobody has look the same."""
    with known.client("bob") as bob:
        hers, nobodys = known.hers["session"], known.hers["session"][:-1] + "x"
        answers = [bob.get(f"/sessions/{id}").json() for id in (hers, nobodys)]
    assert answers[0]["detail"].replace(hers, "") == answers[1]["detail"].replace(nobodys, "")
    with pytest.raises(NotFoundError):
        raise NotFoundError(answers[0]["detail"])
