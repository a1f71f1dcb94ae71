"""Signed requests: what was signed is what runs, and it runs once."""

import asyncio
import base64
import hashlib
import http.client
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from http_message_signatures import ContentDigest, HTTPMessageSigner, MappingKeyResolver, algorithms

import dai
from dai.api.server.serve import Background, background
from dai.client.http.signing import Signer
from dai.config import IdentityConfig, parse
from dai.errors import BusyError, ConfigurationError, RequestError, UnauthenticatedError
from dai.security.identity import Head, replay
from dai.security.identity.replay import Seen
from dai.security.identity.signatures import Signatures
from tests.api.conftest import DOCUMENT, XML, configured, statement
from tests.processes import ServiceProcess
from tests.servers.certificates import self_signed

KEYS: dict[str, tuple[Any, Any]] = {
    "ed25519": (ed25519.Ed25519PrivateKey.generate(), algorithms.ED25519),
    "p256": (ec.generate_private_key(ec.SECP256R1()), algorithms.ECDSA_P256_SHA256),
    "p384": (ec.generate_private_key(ec.SECP384R1()), algorithms.ECDSA_P384_SHA384),
    "rsa": (rsa.generate_private_key(65537, 2048), algorithms.RSA_PSS_SHA512),
}
OTHERS = ed25519.Ed25519PrivateKey.generate()
QUERY = b'{"sql": "select 1 as a"}'
COVERED = ("@method", "@authority", "@path", "@query", "content-type", "content-digest")
JSON = {"Content-Type": "application/json"}


def written(directory: Path, id: str, key: Any) -> Path:
    """The private key's file; beside it that of the public one."""
    private = directory / f"{id}.key"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (directory / f"{id}.pem").write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private


def section(directory: Path) -> dict[str, Any]:
    keys = {id: {"name": "alice", "key": str(directory / f"{id}.pem")} for id in KEYS}
    keys["bobs"] = {"name": "bob", "key": str(directory / "bobs.pem"), "groups": ["curators"], "resources": ["other"]}
    return {"methods": ["token", "signature"], "wrong_seconds": 0.0, "signatures": {"keys": keys}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys")
    for id, (key, _) in {**KEYS, "bobs": (OTHERS, None)}.items():
        written(path, id, key)
    return path


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, book: str, directory: Path) -> Iterator[Background]:
    resources = {"book": {"url": book}, "other": {"url": book}}
    with background(configured(tmp_path_factory.mktemp("signed"), resources, identity=section(directory))) as running:
        yield running


@dataclass
class Message:
    """A request to sign, and to send."""

    base: str
    method: str = "POST"
    path: str = "/resources/book/query"
    body: bytes = QUERY
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))
    sent: dict[str, Any] = field(default_factory=dict)
    """What is sent in place of what was signed."""

    @property
    def url(self) -> str:
        return self.base + self.path

    def signed(self, id: str = "ed25519", key: Any = None, **parameters: Any) -> "Message":
        own, algorithm = KEYS.get(id, (OTHERS, algorithms.ED25519))
        resolver = MappingKeyResolver(public_keys={}, private_keys={id: key or own})
        self.headers.setdefault("Content-Digest", digest(self.body))
        parameters = {"nonce": str(time.perf_counter_ns()), "covered_component_ids": COVERED, **parameters}
        Signing(signature_algorithm=algorithm, key_resolver=resolver).sign(self, key_id=id, **parameters)
        return self

    def send(self) -> httpx.Response:
        headers = {**self.headers, **self.sent.get("headers", {})}
        return httpx.request(
            self.sent.get("method", self.method),
            self.base + self.sent.get("path", self.path),
            content=self.sent.get("body", self.body),
            headers={name: value for name, value in headers.items() if value is not None},
        )


class AnyDigest(ContentDigest):
    @classmethod
    def prepare(cls, headers: Any, body: bytes | None, *, use_existing_digest: bool) -> None: ...


class Signing(HTTPMessageSigner):
    """One that signs whatever digest is there."""

    content_digest_class = AnyDigest


def digest(body: bytes, name: str = "sha256") -> str:
    value = base64.b64encode(hashlib.new(name, body).digest()).decode()
    return f"sha-{name[3:]}=:{value}:"


def at(seconds: float) -> Any:
    import datetime

    return datetime.datetime.fromtimestamp(time.time() + seconds, datetime.UTC)


@pytest.mark.parametrize("id", KEYS)
def test_each_kind_of_key(service: Background, directory: Path, id: str) -> None:
    assert Message(service.url).signed(id).send().status_code == 200
    url = f"{service.url}/resources/book"
    resource = dai.connect(url, signing_key=directory / f"{id}.key", key_id=id)
    assert resource.query("select count(*) as n from numbers").arrow()["n"].to_pylist() == [30_000]
    document = DOCUMENT.format(statement("select 1 as a")).encode()
    assert Message(service.url, path="/resources/book/perform", body=document, headers=dict(XML)).signed(id).send()


CHANGED: dict[str, Callable[[Message], Message]] = {
    "body": lambda each: replaced(each.signed(), body=b'{"sql": "select 2 as a"}'),
    "an empty body": lambda each: replaced(each.signed(), body=b""),
    "a longer body": lambda each: replaced(each.signed(), body=QUERY + b" "),
    "body and its digest": lambda each: replaced(each.signed(), body=b"{}", headers={"Content-Digest": digest(b"{}")}),
    "without a digest": lambda each: replaced(each.signed(), headers={"Content-Digest": None}),
    "a further digest": lambda each: replaced(
        each.signed(), headers={"Content-Digest": f"{digest(QUERY)}, {digest(QUERY, 'sha512')}"}
    ),
    "another path": lambda each: replaced(each.signed(), path="/resources/other/query"),
    "another query": lambda each: replaced(each.signed(), path="/resources/book/query?blocksize=1"),
    "another method": lambda each: replaced(each.signed(), method="PUT"),
    "another host": lambda each: replaced(each.signed(), headers={"Host": "localhost"}),
    "another type": lambda each: replaced(each.signed(), headers={"Content-Type": "application/json; a=b"}),
    "another If-Match": lambda each: replaced(
        Message(each.base, headers={**JSON, "If-Match": '"1"'}).signed(covered_component_ids=(*COVERED, "if-match")),
        headers={"If-Match": "*"},
    ),
    "If-Match is not covered": lambda each: Message(each.base, headers={**JSON, "If-Match": '"1"'}).signed(),
    "no signature": lambda each: replaced(each.signed(), headers={"Signature": None}),
    "no input": lambda each: replaced(each.signed(), headers={"Signature-Input": None, "Authorization": "Signature x"}),
    "another nonce": lambda each: parameter(each.signed(nonce="mine"), "mine", "yours"),
    "another time": lambda each: parameter(each.signed(created=at(-7000)), "created=", "created=9"),
    "another key's id": lambda each: parameter(each.signed("ed25519"), '"ed25519"', '"bobs"'),
    "two signatures": lambda each: each.signed(label="a").signed(label="b", append_if_signature_exists=True),
    "of somebody else": lambda each: each.signed("ed25519", key=OTHERS),
    "an unknown key": lambda each: each.signed("nobodys"),
    "a key id with a path": lambda each: each.signed("../../etc/passwd"),
    "without a nonce": lambda each: each.signed(nonce=None),
    "an empty nonce": lambda each: each.signed(nonce=""),
    "a long nonce": lambda each: each.signed(nonce="x" * 1000),
    "old": lambda each: each.signed(created=at(-100)),
    "of the future": lambda each: each.signed(created=at(60)),
    "expired": lambda each: each.signed(expires=at(-30)),
    "the method is not covered": lambda each: each.signed(covered_component_ids=COVERED[1:]),
    "the host is not covered": lambda each: each.signed(covered_component_ids=("@method", *COVERED[2:])),
    "the path is not covered": lambda each: each.signed(
        covered_component_ids=("@method", "@authority", "@query", *COVERED[4:])
    ),
    "the query is not covered": lambda each: each.signed(covered_component_ids=(*COVERED[:3], *COVERED[4:])),
    "the type is not covered": lambda each: each.signed(covered_component_ids=(*COVERED[:4], COVERED[5])),
    "the digest is not covered": lambda each: each.signed(covered_component_ids=COVERED[:5]),
    "part of the digest is covered": lambda each: each.signed(
        covered_component_ids=(*COVERED[:5], '"content-digest";key="sha-256"')
    ),
    "nothing is covered": lambda each: each.signed(covered_component_ids=()),
    "no structured field": lambda each: replaced(each.signed(), headers={"Signature-Input": "x=(((("}),
    "a list": lambda each: replaced(each.signed(), headers={"Signature-Input": "pyhms=1"}),
    "deep": lambda each: replaced(each.signed(), headers={"Signature-Input": "a=" + "(" * 20_000}),
    "a digest that is none": lambda each: unhashed(each, "sha-256=1"),
    "a number, which is no count of bytes": lambda each: unhashed(each, "sha-256=999999999999999"),
    "a digest of a weak hash": lambda each: unhashed(each, "md5=:" + "A" * 22 + "==:"),
    "no digest": lambda each: unhashed(each, ""),
}


def replaced(message: Message, **sent: Any) -> Message:
    message.sent = sent
    return message


def parameter(message: Message, old: str, new: str) -> Message:
    value = message.headers["Signature-Input"]
    assert old in value
    return replaced(message, headers={"Signature-Input": value.replace(old, new, 1)})


def unhashed(message: Message, value: str) -> Message:
    message.headers["Content-Digest"] = value
    return message.signed()


@pytest.mark.parametrize("change", CHANGED)
def test_what_was_not_signed_so(service: Background, change: str) -> None:
    answer = CHANGED[change](Message(service.url)).send()
    assert (answer.status_code, answer.json()["type"]) == (401, "unauthenticated"), change
    assert Message(service.url).signed().send().status_code == 200


@pytest.mark.parametrize("name", ["sha256", "sha512"])
def test_hashes_of_the_body(service: Background, name: str) -> None:
    right = Message(service.url, headers={**JSON, "Content-Digest": digest(QUERY, name)}).signed()
    wrong = Message(service.url, headers={**JSON, "Content-Digest": digest(b"x", name)}).signed()
    assert [each.send().status_code for each in (right, wrong)] == [200, 401]


def test_a_body_that_nobody_signed(service: Background) -> None:
    """Neither a digest nor a type: the head alone is signed."""
    message = Message(service.url, path="/sessions", body=b"", headers={})
    message.headers["Content-Digest"] = digest(b"")
    assert message.signed(covered_component_ids=(*COVERED[:4], "content-digest")).send().status_code < 300
    signer = Signer(Path(service_key(service)), "ed25519")
    headers = signer.headers("POST", f"{service.url}/resources/book/query", {}, None)
    assert httpx.post(f"{service.url}/resources/book/query", content=QUERY, headers=headers).status_code in (401, 415)
    headers = signer.headers("POST", f"{service.url}/resources/book/query", JSON, None)
    answer = httpx.post(f"{service.url}/resources/book/query", content=QUERY, headers={**JSON, **headers})
    assert (answer.status_code, answer.json()["detail"]) == (401, "This body is not signed.")


def service_key(service: Background) -> str:
    signatures = service.service.config.identity.signatures
    assert signatures is not None
    return str(signatures.keys["ed25519"].key.with_suffix(".key"))


def test_once(service: Background) -> None:
    message = Message(service.url).signed()
    answers = [message.send() for _ in range(3)]
    assert [each.status_code for each in answers] == [200, 401, 401]
    assert "used before" in answers[1].text
    # the nonce is the key's own
    assert Message(service.url).signed("p256", nonce="same").send().status_code == 200
    assert Message(service.url).signed("p384", nonce="same").send().status_code == 200
    assert Message(service.url).signed("p256", nonce="same").send().status_code == 401


def test_what_is_replaced_is_signed(service: Background, directory: Path) -> None:
    signer, url = Signer(directory / "ed25519.key", "ed25519"), f"{service.url}/contexts"
    text = {"Content-Type": "text/plain"}
    made = httpx.post(url, content=b"1", headers=text | signer.headers("POST", url, text, b"1")).json()
    url, headers = f"{url}/{made['id']}", {**text, "If-Match": '"1"'}
    answer = httpx.put(url, content=b"2", headers=headers | signer.headers("PUT", url, headers, b"2"))
    assert (answer.status_code, answer.json()["version"]) == (200, 2)


def test_a_signature_of_before_the_start(service: Background) -> None:
    assert "made before the service started" in Message(service.url).signed(created=at(-50)).send().text


def test_who_signed(service: Background, directory: Path) -> None:
    alice = dai.connect(f"{service.url}/resources/book", signing_key=directory / "rsa.key", key_id="rsa")
    assert alice.query("select 1 as a").arrow().num_rows == 1
    bob = Message(service.url).signed("bobs").send()
    assert (bob.status_code, bob.json()["type"]) == (403, "denied")
    assert Message(service.url, path="/resources/other/query").signed("bobs").send().status_code == 200
    with pytest.raises(UnauthenticatedError):
        dai.connect(f"{service.url}/resources/book", signing_key=directory / "rsa.key", key_id="p256")
    made = Message(service.url, path="/sessions", body=b"{}").signed().send().json()["id"]
    signer = Signer(directory / "bobs.key", "bobs")
    url = f"{service.url}/sessions/{made}"
    assert httpx.get(url, headers=signer.headers("GET", url, {}, None)).status_code == 404


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("DATA.example.org", "/"),
        ("data.example.org:80", ""),
        ("data.example.org:8080", "/a%20b/c?x=%2F&y"),
        ("[::1]:80", "/?"),
        ("127.0.0.1", "/a//b;c=1?"),
    ],
)
def test_addresses_as_a_library_signs_them(directory: Path, host: str, path: str) -> None:
    """What our client signs, the library verifies of the request as it arrives."""
    method = Signatures(parse({"identity": section(directory)}, environment={}).identity, _nobody)
    headers = Signer(directory / "ed25519.key", "ed25519").headers("GET", f"http://{host}{path}", {}, None)
    lines = [(b"host", host.encode()), *((name.lower().encode(), text.encode()) for name, text in headers.items())]
    caller = asyncio.run(method.caller(Head(lines, "GET", "http", path.encode() or b"/")))
    assert caller is not None
    assert caller.name == "alice"


def test_the_client_signs_each_attempt(service: Background, directory: Path) -> None:
    signer = Signer(str(directory / "p256.key"), "p256")
    headers = [signer.headers("GET", service.url + "/jobs", {}, None) for _ in range(2)]
    assert headers[0]["Signature-Input"] != headers[1]["Signature-Input"]
    assert [httpx.get(service.url + "/jobs", headers=each).status_code for each in headers] == [200, 200]


def test_several_lines_of_one_field(service: Background) -> None:
    """A second Signature-Input is read with the first, not in its place."""
    message = Message(service.url).signed()
    connection = http.client.HTTPConnection(service.url.removeprefix("http://"))
    connection.putrequest("POST", message.path)
    for name, value in [*message.headers.items(), ("Content-Length", str(len(QUERY)))]:
        connection.putheader(name, value)
    connection.putheader("Signature-Input", 'other=("@method");created=1;keyid="ed25519"')
    connection.endheaders(QUERY)
    assert connection.getresponse().status == 401
    connection.close()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"signing_key": "x"}, "both signing_key and key_id"),
        ({"key_id": "x"}, "both signing_key and key_id"),
        ({"signing_key": "x", "key_id": 'x"'}, "is not a key id"),
        ({"signing_key": "nothing.key", "key_id": "x"}, "not a file with a private key"),
        ({"signing_key": __file__, "key_id": "x"}, "not a file with a private key"),
    ],
)
def test_keys_of_the_client(keys: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        dai.connect("http://127.0.0.1:1/resources/book", **keys)


def test_wrong_configurations(directory: Path) -> None:
    right = section(directory)["signatures"]["keys"]["bobs"]
    written(directory, "short", rsa.generate_private_key(65537, 1024))
    written(directory, "curve", ec.generate_private_key(ec.SECP521R1()))
    for wrong, message in [
        ({}, "needs name"),
        ({**right, "name": ""}, "needs name"),
        ({**right, "keey": 1}, "'key'"),
        ({**right, "key": "nothing.pem"}, "not a file with a public key"),
        ({**right, "key": str(directory / "bobs.key")}, "not a file with a public key"),
        ({**right, "key": str(directory / "short.pem")}, "2048 bits"),
        ({**right, "key": str(directory / "curve.pem")}, "not of a supported kind: Ed25519"),
    ]:
        config = {"identity": {"methods": ["signature"], "signatures": {"keys": {"x": wrong}}}}
        with pytest.raises(ConfigurationError) as raised:
            Signatures(parse(config, environment={}).identity, _nobody)
        assert message in str(raised.value)
    with pytest.raises(ConfigurationError, match="there are no keys"):
        Signatures(IdentityConfig(), _nobody)
    for other in ({"signatures": 1}, {"signatures": {"keys": []}}, {"signatures": {"seconds": 0}}):
        with pytest.raises(ConfigurationError):
            parse({"identity": other}, environment={})


async def _nobody(id: str) -> None:
    return None


def test_requests_of_another_kind(directory: Path) -> None:
    method = Signatures(parse({"identity": section(directory)}, environment={}).identity, _nobody)
    assert asyncio.run(method.caller(Head([(b"authorization", b"Bearer x"), (b"signature", b"x")]))) is None


def test_what_was_seen_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, now = Seen(), time.time()
    same_bucket = [number.to_bytes(16, "big") + bytes(16) for number in range(1, 40)]
    until = now + 100
    assert [seen.first(each, until) for each in (same_bucket[0], same_bucket[0])] == [True, False]
    seen.forget(same_bucket[0])
    assert seen.first(same_bucket[0], until)

    def fill() -> None:
        for each in same_bucket[1:]:
            assert seen.first(each, until)

    with pytest.raises(BusyError):
        fill()
    assert not seen.first(same_bucket[0], until)
    assert seen.first(hashlib.sha256(b"another").digest(), until)
    monkeypatch.setattr(time, "time", lambda: now + 101)
    assert all(seen.first(each, now + 200) for each in same_bucket[:16])
    assert replay.BYTES < 10_000_000


def test_over_tls(tmp_path: Path, book: str, directory: Path) -> None:
    """The service knows the scheme, where it speaks TLS itself."""
    certificate = self_signed(tmp_path, "server")
    tls = {"certificate": str(certificate), "key": str(certificate.with_suffix(".key"))}
    config = configured(tmp_path, {"book": {"url": book}}, identity=section(directory), service={"tls": tls})
    with background(config) as running:
        trusted = ssl.create_default_context(cafile=certificate)
        resource = dai.connect(
            f"{running.url}/resources/book", signing_key=directory / "p256.key", key_id="p256", tls=trusted
        )
        assert resource.query("select 1 as a").arrow().num_rows == 1
        whole = Message(running.url).signed(covered_component_ids=(*COVERED, "@scheme", "@target-uri"))
        answers = [httpx.post(whole.url, content=QUERY, headers=whole.headers, verify=trusted) for _ in range(2)]
        assert [each.status_code for each in answers] == [200, 401]
        plain = Message(running.url.replace("https:", "http:")).signed(covered_component_ids=(*COVERED, "@scheme"))
        answer = httpx.post(whole.url, content=QUERY, headers=plain.headers, verify=trusted)
        assert answer.status_code == 401


def test_several_processes(tmp_path: Path, book: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request counts once in all of them, also one that moves with its body to the worker of its session."""
    monkeypatch.setenv("DAI_IDENTITY__WRONG_SECONDS", "0")
    keys = "".join(
        f'[identity.signatures.keys.{id}]\nname = "alice"\nkey = "{directory / id}.pem"\n' for id in ("ed25519", "p256")
    )
    service = ServiceProcess(tmp_path, {"book": book}, identity=["signature"], workers=2, more=keys)
    service.start()
    try:
        for _ in range(8):
            message = Message(service.url).signed()
            # each request opens a connection of its own, which meets either worker
            assert sorted(message.send().status_code for _ in range(4)) == [200, 401, 401, 401]
        sessions = [
            Message(service.url, path="/sessions", body=b"{}").signed("p256").send().json()["id"] for _ in range(4)
        ]
        for id in sessions * 4:
            document = DOCUMENT.format(f'<session id="{id}"/>' + statement("select 1 as a"))
            joining = Message(service.url, path="/resources/book/perform", body=document.encode(), headers=dict(XML))
            answers = [joining.signed().send() for _ in range(2)]
            assert {each.status_code for each in answers} == {200}, answers[0].text
    finally:
        service.stop()
