"""JSON Web Tokens: what an issuer signs is taken, whatever anybody else makes of it is refused."""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import dai
from dai.api.server.serve import Background, background
from dai.config import Config, IdentityConfig, parse
from dai.errors import BusyError, ConfigurationError, UnauthenticatedError
from dai.security.identity import Caller
from dai.security.identity import jwt as method
from dai.security.identity.jwt import JsonWebTokens
from tests.api.conftest import Serve, configured
from tests.processes import ServiceProcess, until
from tests.servers.certificates import self_signed

KEYS: dict[str, tuple[str, Any]] = {
    "RS256": ("RS256", rsa.generate_private_key(65537, 2048)),
    "PS256": ("PS256", rsa.generate_private_key(65537, 2048)),
    "ES256": ("ES256", ec.generate_private_key(ec.SECP256R1())),
    "EdDSA": ("EdDSA", ed25519.Ed25519PrivateKey.generate()),
}
"""By key id: the algorithm and the private key."""
OTHERS = rsa.generate_private_key(65537, 2048)
SHORT = rsa.generate_private_key(65537, 1024)
pytestmark = pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits long")


def jwk(id: str, algorithm: str, key: Any, **members: Any) -> dict[str, Any]:
    """The public key as a member of a key set."""
    family = jwt.get_algorithm_by_name(algorithm)
    return {**family.to_jwk(key.public_key(), as_dict=True), "kid": id, "use": "sig", **members}


@dataclass
class Issuer:
    """An OpenID Connect provider: its discovery document, its keys and who asked for what."""

    url: str = ""
    keys: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    away: bool = False
    answer: bytes | None = None
    claims_issuer: str | None = None

    def show(self, *ids: str) -> None:
        self.keys = [jwk(id, *KEYS[id]) for id in ids]

    def token(self, id: str = "RS256", headers: dict[str, Any] | None = None, **claims: Any) -> str:
        algorithm, key = KEYS[id]
        return jwt.encode(self.claims(**claims), key, algorithm, {"kid": id, **(headers or {})})

    def claims(self, **claims: Any) -> dict[str, Any]:
        now = int(time.time())
        usual = {"iss": self.url, "aud": "dai", "sub": "alice", "iat": now, "exp": now + 600}
        return {name: value for name, value in {**usual, **claims}.items() if value is not None}

    def config(self, **keys: Any) -> dict[str, Any]:
        section = {"issuer": self.url, "audience": ["dai"], **keys}
        return {"methods": ["token", "jwt"], "wrong_seconds": 0.0, "jwt": section}

    def method(self, **keys: Any) -> JsonWebTokens:
        return JsonWebTokens(parse({"identity": self.config(**keys)}, environment={}).identity, _nobody)


async def _nobody(id: str) -> None:
    return None


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    yield from _issuer()


@pytest.fixture(scope="module")
def steady() -> Iterator[Issuer]:
    """One that does not change."""
    yield from _issuer()


def _issuer(certificate: Path | None = None) -> Iterator[Issuer]:
    shown = Issuer()
    shown.show(*KEYS)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.asked.append(self.path)
            if shown.away:
                self.send_error(503)
                return
            document: dict[str, Any] = {"keys": shown.keys}
            if self.path == "/.well-known/openid-configuration":
                document = {"issuer": shown.claims_issuer or shown.url, "jwks_uri": f"{shown.url}/keys"}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(shown.answer or json.dumps(document).encode())

        def log_message(self, format: str, *arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        scheme = "http"
        if certificate is not None:
            scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            server.socket = context.wrap_socket(server.socket, server_side=True)
        shown.url = f"{scheme}://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        yield shown
        server.shutdown()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, book: str, steady: Issuer) -> Iterator[Background]:
    identity = steady.config(groups="realm.roles", administrator="dai_root")
    with background(configured(tmp_path_factory.mktemp("jwt"), {"book": {"url": book}}, identity=identity)) as running:
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def asked(service: Background, token: str) -> httpx.Response:
    return httpx.get(f"{service.url}/jobs", headers=bearer(token))


def encoded(part: Any) -> str:
    text = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def unsigned(header: Any, claims: Any, signature: bytes = b"") -> str:
    return f"{encoded(header)}.{encoded(claims)}.{encoded(signature)}"


def confused(issuer: Issuer, secret: bytes, id: str | None = "RS256") -> str:
    """HS256 with what everybody knows as the secret."""
    signed = f"{encoded({'alg': 'HS256', 'typ': 'JWT', 'kid': id})}.{encoded(issuer.claims())}"
    return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def public(encoding: Encoding, format: PublicFormat) -> bytes:
    key: bytes = KEYS["RS256"][1].public_key().public_bytes(encoding, format)
    return key


@pytest.mark.parametrize("id", KEYS)
def test_a_token_of_the_issuer(service: Background, steady: Issuer, id: str) -> None:
    for _ in range(2):
        assert asked(service, steady.token(id)).status_code == 200
    resource = dai.connect(f"{service.url}/resources/book", token=steady.token(id))
    assert resource.query("select 1 as a").arrow()["a"].to_pylist() == [1]


FORGED: dict[str, Callable[[Issuer], str]] = {
    "expired": lambda issuer: issuer.token(exp=int(time.time()) - 60),
    "without an end": lambda issuer: issuer.token(exp=None),
    "an end that is no number": lambda issuer: issuer.token(exp="soon"),
    "an end beyond all numbers": lambda issuer: issuer.token(exp=float("inf")),
    "not yet valid": lambda issuer: issuer.token(nbf=int(time.time()) + 60),
    "issued tomorrow": lambda issuer: issuer.token(iat=int(time.time()) + 86400),
    "another audience": lambda issuer: issuer.token(aud="another"),
    "no audience": lambda issuer: issuer.token(aud=None),
    "part of the audience": lambda issuer: issuer.token(aud="da"),
    "another issuer": lambda issuer: issuer.token(iss="https://login.example.org"),
    "no issuer": lambda issuer: issuer.token(iss=None),
    "the issuer with a slash": lambda issuer: issuer.token(iss=issuer.url + "/"),
    "nobody's": lambda issuer: issuer.token(sub=None),
    "an empty name": lambda issuer: issuer.token(sub=""),
    "a name of two lines": lambda issuer: issuer.token(sub="alice\r\nX-Admin: yes"),
    "a name with an escape": lambda issuer: issuer.token(sub="\x1b[2Jalice"),
    "a name of a thousand letters": lambda issuer: issuer.token(sub="a" * 1000),
    "groups that are no names": lambda issuer: issuer.token(realm={"roles": [{}]}),
    "signed by somebody else": lambda issuer: jwt.encode(issuer.claims(), OTHERS, "RS256", {"kid": "RS256"}),
    "signed by another of its keys": lambda issuer: jwt.encode(
        issuer.claims(), KEYS["PS256"][1], "RS256", {"kid": "RS256"}
    ),
    "a key for another algorithm": lambda issuer: jwt.encode(
        issuer.claims(), KEYS["RS256"][1], "RS512", {"kid": "RS256"}
    ),
    "unknown key": lambda issuer: jwt.encode(issuer.claims(), OTHERS, "RS256", {"kid": "other"}),
    "no key id": lambda issuer: jwt.encode(issuer.claims(), OTHERS, "RS256"),
    "a key id with a path": lambda issuer: jwt.encode(issuer.claims(), OTHERS, "RS256", {"kid": "../../dev/null"}),
    "a key id with SQL": lambda issuer: jwt.encode(issuer.claims(), OTHERS, "RS256", {"kid": "x' union select '1"}),
    "a key id with lines": lambda issuer: jwt.encode(issuer.claims(), OTHERS, "RS256", {"kid": "x\r\nalice: y"}),
    "its own key": lambda issuer: jwt.encode(
        issuer.claims(), OTHERS, "RS256", {"kid": "RS256", "jwk": jwk("RS256", "RS256", OTHERS)}
    ),
    "unsigned": lambda issuer: unsigned({"alg": "none", "typ": "JWT"}, issuer.claims()),
    "unsigned, in other letters": lambda issuer: unsigned({"alg": "nOnE", "kid": "RS256"}, issuer.claims()),
    "unsigned by a key": lambda issuer: unsigned({"alg": "RS256", "kid": "RS256"}, issuer.claims()),
    "signed by zeros": lambda issuer: unsigned({"alg": "ES256", "kid": "ES256"}, issuer.claims(), bytes(64)),
    "confused: PEM": lambda issuer: confused(issuer, public(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)),
    "confused: PKCS 1": lambda issuer: confused(issuer, public(Encoding.PEM, PublicFormat.PKCS1)),
    "confused: DER": lambda issuer: confused(issuer, public(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)),
    "confused, without an id": lambda issuer: confused(
        issuer, public(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), None
    ),
    "confused: an empty secret": lambda issuer: confused(issuer, b"", "nothing"),
    "an extension it does not know": lambda issuer: issuer.token(headers={"crit": ["exp2"], "exp2": 1}),
    "deep": lambda issuer: unsigned(b"[" * 9000, {}),
    "a header that is a list": lambda issuer: unsigned([], {}),
    "an algorithm that is a list": lambda issuer: unsigned({"alg": ["RS256"], "kid": "RS256"}, issuer.claims()),
    "a number of many digits": lambda issuer: unsigned(b'{"alg": ' + b"1" * 9000 + b"}", {}),
    "no base64": lambda issuer: "a.b!.c",
    "empty parts": lambda issuer: "..",
    "long": lambda issuer: issuer.token(x="x" * 20_000),
    "other claims under its signature": lambda issuer: ".".join(
        [
            (parts := issuer.token().split("."))[0],
            encoded(issuer.claims(sub="root")),
            parts[2],
        ]
    ),
}


@pytest.mark.parametrize("forged", FORGED)
def test_forged_tokens(service: Background, steady: Issuer, forged: str, caplog: pytest.LogCaptureFixture) -> None:
    token = FORGED[forged](steady)
    with caplog.at_level("INFO"):
        answer = asked(service, token)
    assert (answer.status_code, answer.json()["type"]) == (401, "unauthenticated"), forged
    assert token not in caplog.text + answer.text
    assert not any("\n" in str(each.__dict__.get(name, "")) for each in caplog.records for name in ("caller", "error"))
    assert asked(service, steady.token()).status_code == 200


@pytest.mark.parametrize("header", ["jku", "x5u"])
def test_nobody_asks_where_a_token_says(issuer: Issuer, steady: Issuer, header: str) -> None:
    """A key set elsewhere, with the key that signed."""
    issuer.keys = [jwk("theirs", "RS256", OTHERS)]
    token = jwt.encode(steady.claims(), OTHERS, "RS256", {"kid": "theirs", header: f"{issuer.url}/keys"})
    with pytest.raises(UnauthenticatedError):
        asyncio.run(_caller(steady.method(), token))
    assert issuer.asked == []


async def _caller(tokens: JsonWebTokens, token: str) -> Caller | None:
    return await tokens.caller({b"authorization": f"Bearer {token}".encode()})


def test_claims(steady: Issuer) -> None:
    keys = {"name": "https://example.org/name", "groups": "realm.roles", "resources": "only", "administrator": "root"}

    def caller(**claims: Any) -> Caller | None:
        claims = {"https://example.org/name": "ann", "only": ["book"], **claims}
        return asyncio.run(_caller(steady.method(**keys), steady.token(**claims)))

    assert caller() == Caller("ann", "jwt", frozenset({"book"}))
    assert caller(realm={"roles": ["a", "b"]}, root=True) == Caller(
        "ann", "jwt", frozenset({"book"}), True, frozenset({"a", "b"})
    )
    assert caller(realm={"roles": "a"}, only="other") == Caller(
        "ann", "jwt", frozenset({"other"}), groups=frozenset({"a"})
    )
    for no_administrator in ("true", 1, ["x"], {}):
        assert caller(root=no_administrator) == Caller("ann", "jwt", frozenset({"book"}))
    # a token that names no resource is good for none, not for all
    for nothing in ([], None, ""):
        with pytest.raises(UnauthenticatedError, match="only"):
            caller(only=nothing)
    for others in (b"Bearer dai_0123456789abcdef_x", b"Basic a.b.c"):
        assert asyncio.run(steady.method().caller({b"authorization": others})) is None


def test_what_is_anothers_is_not_there(service: Background, steady: Issuer) -> None:
    id = httpx.post(f"{service.url}/sessions", json={}, headers=bearer(steady.token())).json()["id"]
    status = {
        who: httpx.get(f"{service.url}/sessions/{id}", headers=bearer(steady.token(**claims))).status_code
        for who, claims in {"alice": {}, "bob": {"sub": "bob"}, "root": {"sub": "root", "dai_root": True}}.items()
    }
    assert status == {"alice": 200, "bob": 404, "root": 200}


def test_keys_are_read_once_and_rotate(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_rotated(issuer, monkeypatch))


async def _rotated(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer.show("RS256")
    tokens, old, new = issuer.method(), issuer.token(), issuer.token("ES256")
    callers = await asyncio.gather(*(_caller(tokens, old) for _ in range(20)))
    assert {each.name for each in callers if each} == {"alice"}
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]
    # an unknown key is looked for once in PAUSE seconds, however many ask
    for _ in range(20):
        with pytest.raises(UnauthenticatedError, match="does not publish"):
            await _caller(tokens, new)
    assert len(issuer.asked) == 2
    issuer.show("ES256")
    monkeypatch.setattr(method, "PAUSE", -1.0)
    assert await _caller(tokens, new) is not None
    assert len(issuer.asked) == 4
    with pytest.raises(UnauthenticatedError, match="does not publish"):  # also one that was checked before
        await _caller(tokens, old)
    # a key that was taken back is noticed though no token names another
    issuer.show("PS256")
    assert await _caller(tokens, new) is not None
    monkeypatch.setattr(method, "FRESH", -1.0)
    async with asyncio.timeout(60):
        while await _known(tokens, new):
            await asyncio.to_thread(lambda: None)


async def _known(tokens: JsonWebTokens, token: str) -> bool:
    try:
        return await _caller(tokens, token) is not None
    except UnauthenticatedError:
        return False


def test_an_issuer_that_is_away(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_away(issuer, monkeypatch))


async def _away(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method, "PAUSE", -1.0)
    issuer.away = True
    tokens = issuer.method()
    with pytest.raises(BusyError, match="keys of the issuer"):
        await _caller(tokens, issuer.token())
    issuer.away = False
    assert await _caller(tokens, issuer.token()) is not None
    issuer.away = True
    monkeypatch.setattr(method, "FRESH", -1.0)
    for id in ("RS256", "ES256", "EdDSA"):
        assert await _caller(tokens, issuer.token(id)) is not None


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{", b'{"keys": 1}', b'{"keys": [1]}', b"[" * 100_000, b'{"keys": []}' + b" " * (2 << 20)]
)
def test_what_is_no_key_set(issuer: Issuer, answer: bytes) -> None:
    issuer.answer = answer or b" "
    with pytest.raises(BusyError):
        asyncio.run(_caller(issuer.method(jwks=f"{issuer.url}/keys"), issuer.token()))


def test_an_issuer_behind_tls(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path, "issuer")
    with contextmanager(_issuer)(certificate) as issuer:
        with pytest.raises(BusyError):
            asyncio.run(_caller(issuer.method(), issuer.token()))
        assert issuer.asked == []
        assert asyncio.run(_caller(issuer.method(authorities=str(certificate)), issuer.token())) is not None


def test_another_issuer_is_not_discovered(issuer: Issuer) -> None:
    issuer.claims_issuer = "https://login.example.org"
    with pytest.raises(BusyError):
        asyncio.run(_caller(issuer.method(), issuer.token()))
    assert issuer.asked == ["/.well-known/openid-configuration"]


def test_keys_that_are_not_for_this(issuer: Issuer) -> None:
    """Secrets, keys to encrypt, too short ones and those for other algorithms are none."""
    usable = jwk("ES256", *KEYS["ES256"])
    issuer.keys = [
        {"kty": "oct", "k": encoded(b"secret" * 8), "kid": "oct", "alg": "HS256"},
        jwk("RS256", "RS256", KEYS["RS256"][1], use="enc"),
        jwk("short", "RS256", SHORT),
        jwk("PS256", "PS256", KEYS["PS256"][1], alg="RS512"),
        usable,
    ]
    tokens = issuer.method()
    assert asyncio.run(_caller(tokens, issuer.token("ES256"))) is not None
    short = jwt.encode(issuer.claims(), SHORT, "RS256", {"kid": "short"})
    for token in (issuer.token("RS256"), issuer.token("PS256"), short, confused(issuer, b"secret" * 8, "oct")):
        with pytest.raises(UnauthenticatedError):
            asyncio.run(_caller(issuer.method(), token))


def test_a_key_that_cannot_be_used_leaves_the_others(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    """A set may hold what this service does not understand (RFC 7517, 5)."""
    usable = jwk("ES256", *KEYS["ES256"])
    unusable = ["text", 7, {"kty": ["RSA"]}, {**usable, "kid": ["x"]}, {**usable, "kid": "odd", "x": "AA"}]
    issuer.keys = [*unusable, usable]
    assert asyncio.run(_caller(issuer.method(), issuer.token("ES256"))) is not None
    assert [each for each in caplog.records if getattr(each, "key", "") == "odd"]


def test_keys_in_a_file(issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    with pytest.raises(ConfigurationError, match="holds no keys"):
        issuer.method(jwks=str(file))
    file.write_text(json.dumps({"keys": issuer.keys}))
    assert asyncio.run(_caller(issuer.method(jwks=str(file)), issuer.token())) is not None
    assert issuer.asked == []
    for wrong in ("{}", '{"keys": ["text"]}'):
        file.write_text(wrong)
        with pytest.raises(ConfigurationError, match="holds no keys"):
            issuer.method(jwks=str(file))


def test_a_checked_token_expires(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, token, now = issuer.method(leeway=0.0), issuer.token(), time.time()
    assert asyncio.run(_caller(tokens, token)) is not None
    monkeypatch.setattr(time, "time", lambda: now + 601)
    with pytest.raises(UnauthenticatedError, match="expired"):
        asyncio.run(_caller(tokens, token))


def test_few_tokens_are_kept(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method, "MOST_KEPT", 3)
    tokens = issuer.method()

    async def ask() -> None:
        for number in range(20):
            assert await _caller(tokens, issuer.token("EdDSA", sub=f"caller {number}")) is not None
            assert len(tokens._checked) <= 3

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"issuer": None}, "must be a section with issuer and audience"),
        ({"audience": None}, "must be a section with issuer and audience"),
        ({"audience": []}, "audience must be a list"),
        ({"audience": "dai"}, "must be a list"),
        ({"issuer": "http://login.example.org"}, "https"),
        ({"issuer": "https://"}, "https"),
        ({"jwks": "http://login.example.org/keys"}, "https"),
        ({"jwks": "ftp://login.example.org/keys"}, "https"),
        ({"jwks": 1}, "the URL or the file"),
        ({"algorithms": ["HS256"]}, "can also make one"),
        ({"algorithms": ["none"]}, "this service does not take"),
        ({"leway": 1}, "leeway"),
    ],
)
def test_wrong_configurations(issuer: Issuer, keys: dict[str, Any], message: str) -> None:
    section = issuer.config(**keys)
    section["jwt"] = {name: value for name, value in section["jwt"].items() if value is not None}
    with pytest.raises(ConfigurationError) as raised:
        parse({"identity": section}, environment={})
    assert message in str(raised.value)


def test_the_method_without_its_section() -> None:
    with pytest.raises(ConfigurationError, match=r"\[identity.jwt\]"):
        JsonWebTokens(IdentityConfig(methods=("jwt",)), _nobody)
    assert Config().identity.jwt is None


def test_several_processes(tmp_path: Path, book: str, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads the keys by itself, and a session is its owner's in all of them."""
    monkeypatch.setenv("DAI_IDENTITY__JWT__ISSUER", issuer.url)
    monkeypatch.setenv("DAI_IDENTITY__JWT__AUDIENCE", "other, dai")
    service = ServiceProcess(tmp_path, {"book": book}, identity=["jwt"], workers=2)
    service.start()
    try:
        alice, bob = bearer(issuer.token()), bearer(issuer.token("ES256", sub="bob"))
        ids = [httpx.post(f"{service.url}/sessions", json={}, headers=alice).json()["id"] for _ in range(8)]
        for id in ids:
            url = f"{service.url}/sessions/{id}"
            assert [httpx.get(url, headers=each).status_code for each in (alice, bob, {})] == [200, 404, 401]
        issuer.away = True
        assert httpx.get(f"{service.url}/jobs", headers=alice).status_code == 200
    finally:
        service.stop()


def test_the_service_starts_before_its_issuer(serve: Serve, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer.away = True
    running = serve(identity=issuer.config())
    assert httpx.get(f"{running.url}/health/ready").status_code == 200
    answer = asked(running, issuer.token())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    issuer.away = False
    monkeypatch.setattr(method, "PAUSE", -1.0)
    until(lambda: asked(running, issuer.token()).status_code == 200)
