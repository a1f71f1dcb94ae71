"""Signed documents: what is signed is what runs, once; a signature over anything else is none."""

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from lxml import etree
from signxml import CanonicalizationMethod, XMLSigner

import dai
from dai.api.requests import early as early_module
from dai.api.server.serve import Background, background
from dai.client.http.signed_documents import DocumentSigner
from dai.config import IdentityConfig, parse
from dai.errors import BusyError, ConfigurationError, DeniedError, RequestError, UnauthenticatedError
from dai.perform.parser import parse as perform_of
from dai.security.identity import Head
from dai.security.identity.tokens import new
from dai.security.identity.xml_signatures import XmlSignatures
from tests.api.conftest import DOCUMENT, ENDLESS, XML, configured, statement
from tests.api.signed_documents import (
    DS,
    ECDSA,
    INSERT,
    KEYS,
    PATH,
    Signed,
    certificate,
    directory,
    paid,
    post,
    section,
    service,
)
from tests.processes import ServiceProcess, until

__all__ = ["directory", "service"]

# --- What is signed runs --------------------------------------------------------------------------------------------


def test_a_signed_document_runs_once(service: Background, directory: Path) -> None:
    before = paid(directory)
    signed = Signed(service.url).content
    answers = [post(service, signed) for _ in range(3)]
    assert [each.status_code for each in answers] == [200, 401, 401], answers[0].text
    assert "used before" in answers[1].text
    assert paid(directory) == [*before, ("alice", 5)]
    # the nonce is the key's own, and not that of other methods
    assert post(service, Signed(service.url, nonce="same").content).status_code == 200
    assert post(service, Signed(service.url, nonce="same").content).status_code == 401


@pytest.mark.parametrize("id", ["rsa", "p256", "p384"])
def test_the_client_signs_documents(service: Background, directory: Path, id: str) -> None:
    resource = dai.connect(
        f"{service.url}/resources/book", signing_key=directory / f"{id}.key", key_id=id, signs="documents"
    )
    document = DOCUMENT.format(statement("select count(*) as n from numbers where i < 7 and s <> '&'"))
    for _ in range(2):
        assert resource.perform(document, output="rows", format="arrow").arrow()["n"].to_pylist() == [7]
    answer = resource.perform(document, blocksize=3).results["rows"]
    assert answer.arrow()["n"].to_pylist() == [7]


def test_a_job_of_a_signed_document(service: Background, directory: Path) -> None:
    resource = dai.connect(
        f"{service.url}/resources/book", signing_key=directory / "p256.key", key_id="p256", signs="documents"
    )
    job = resource.submit(DOCUMENT.format(statement("select 1 as a")))
    kept = service.service.store
    until(lambda: [each.phase for each in kept.listed(owner="alice") if each.id == job.id] == ["COMPLETED"])


def test_a_service_that_takes_signed_requests_too(
    tmp_path: Path, book: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the client's key is enough for all that it asks."""
    identity = {**section(directory), "methods": ["signature", "xml-signature"]}
    config = configured(tmp_path, {"book": {"url": book}}, identity=identity, audit={"file": "audit.jsonl"})
    with background(config) as running:
        resource = dai.connect(
            f"{running.url}/resources/book", signing_key=directory / "p256.key", key_id="p256", signs="documents"
        )
        job = resource.submit(DOCUMENT.format(statement("select 1 as a")))
        job.wait()
        assert resource.query("select 2 as a").arrow()["a"].to_pylist() == [2]
        with resource.session() as session:
            document = DOCUMENT.format(statement("select 3 as a"))
            assert resource.perform(document, output="rows", session=session.id).arrow()["a"].to_pylist() == [3]
        file = running.service.config.audit.file
        assert file is not None
        until(lambda: '"identified_by":"xml-signature"' in file.read_text().replace(" ", ""))


def test_the_library_signs_for_us(tmp_path: Path, book: str, directory: Path) -> None:
    """As others sign: without time and nonce, which has to be allowed; by key name, and by certificate."""
    identity = section(directory)
    identity["signatures"]["documents_without_nonce"] = True
    with background(configured(tmp_path, {"book": {"url": book}}, identity=identity)) as running:
        for id, method in (
            ("rsa", "rsa-sha256"),
            ("rsa", "sha512-rsa-MGF1"),
            ("p256", "ecdsa-sha384"),
            ("bobs", ECDSA),
        ):
            signer = XMLSigner(
                signature_algorithm=method, c14n_algorithm=CanonicalizationMethod.EXCLUSIVE_XML_CANONICALIZATION_1_0
            )
            name = f'<ds:KeyInfo xmlns:ds="{DS}">{{}}</ds:KeyInfo>'
            for info in (f"<ds:KeyName>{id}</ds:KeyName>", certificate(KEYS[id])):
                root = etree.fromstring(DOCUMENT.format(statement("select 1 as a")).encode())
                signed = signer.sign(root, key=KEYS[id], key_info=etree.fromstring(name.format(info)))
                content = etree.tostring(signed)
                answers = [post(running, content, "/resources/book/perform") for _ in range(2)]
                assert [each.status_code for each in answers] == [200, 200], answers[0].text
        # what says when it was signed counts once all the same
        signed = Signed(
            running.url, document=DOCUMENT.format(statement("select 1 as a")), path="/resources/book/perform"
        )
        content = signed.content
        assert [post(running, content, "/resources/book/perform").status_code for _ in range(2)] == [200, 401]


def test_comments_are_not_signed_and_do_not_run(service: Background, directory: Path) -> None:
    """Put between two texts they do not shorten what is read: what runs is what was signed, without them."""
    before = paid(directory)
    signed = Signed(service.url).content.decode()
    changed = signed.replace("('alice', 5)", "('al<!-- ice -->ice', <!-- x -->5)").replace("pays", "<!-- -->pays")
    assert post(service, changed.encode()).status_code == 200
    assert paid(directory) == [*before, ("alice", 5)]


def test_white_space_and_forms_of_the_same_document(service: Background) -> None:
    """Empty elements, order of attributes, kinds of quotes and encodings are not what is signed."""
    text = DOCUMENT.format(
        statement("select 'Zoë' as a").replace(
            '<webRowSetStream name="rows"/>', "<webRowSetStream\n name='rows'></webRowSetStream>"
        )
    )
    signed = Signed(service.url, document=text, path="/resources/book/perform").content.decode()
    changed = f"<?xml version='1.0' encoding='utf-16'?>{signed.replace('></webRowSetStream>', '/>')}"
    answer = post(service, changed.encode("utf-16"), "/resources/book/perform")
    # nobody looks for a signature in it, so nobody has signed it
    assert answer.status_code == 401
    answer = post(service, signed.replace("></webRowSetStream>", " />").encode(), "/resources/book/perform")
    assert answer.status_code == 200, answer.text
    assert "Zoë" in answer.text


CORPUS = sorted((Path(__file__).parents[1] / "conformance/documents").glob("corpus/*.xml"))


@pytest.mark.parametrize("path", CORPUS, ids=[each.stem for each in CORPUS])
def test_what_is_verified_is_the_document(directory: Path, path: Path) -> None:
    """The client signs each document, the library verifies it, and it means the same or is refused as before."""
    document = path.read_bytes()
    signed = DocumentSigner(directory / "p256.key", "p256").signed(document, "http://localhost/resources/book/perform")
    verified = method(directory)._verified(signed)
    assert verified is not None
    try:
        meant = perform_of(document)
    except RequestError:
        with pytest.raises(RequestError):
            perform_of(verified[1])
    else:
        assert without_lines(perform_of(verified[1])) == without_lines(meant)


def without_lines(perform: Any) -> str:
    """Comments take their lines with them."""
    lines = re.compile(r"(line=\d+|steps=.*?$|'[^']*': \d+)")
    return lines.sub("", str(perform))


def method(directory: Path, **more: Any) -> XmlSignatures:
    identity = section(directory)
    identity["signatures"] |= more
    return XmlSignatures(parse({"identity": identity}, environment={}).identity, _nobody)


async def _nobody(id: str) -> None:
    return None


def test_where_a_signature_may_stand(service: Background, directory: Path) -> None:
    before, signed = paid(directory), Signed(service.url)
    start = INSERT.index(">") + 1
    first = f"{INSERT[:start]}{signed.signature}{INSERT[start:]}"
    assert post(service, first.encode()).status_code == 200
    assert paid(directory) == [*before, ("alice", 5)]


def test_a_right_document_by_a_wrong_path(service: Background, directory: Path) -> None:
    before = paid(directory)
    signed = Signed(service.url).content
    for path in (f"{PATH}?blocksize=1", "/resources/book/perform", f"{PATH}?phase=PENDING"):
        assert post(service, signed, path).status_code == 401
    for path in (
        "/sessions",
        "/jobs",
        "/resources/ledger/query",
        f"/{PATH}",
        f"{PATH}/",
        "/resources/ledger/p%65rform",
    ):
        answer = post(service, signed, path)
        assert answer.status_code == 401, path
    assert paid(directory) == before
    # it was refused before it was noted: at its own address it still counts
    assert post(service, signed).status_code == 200


def test_other_requests_say_what_to_do(service: Background) -> None:
    answer = httpx.post(f"{service.url}/resources/book/query", json={"sql": "select 1 as a"})
    assert (answer.status_code, answer.json()["type"]) == (401, "unauthenticated")
    assert "Sign the document and send it to /resources/NAME/perform" in answer.json()["hint"]
    assert "sqlQueryStatement" in answer.json()["hint"]
    assert httpx.get(f"{service.url}/jobs").status_code == 401
    assert httpx.get(f"{service.url}/health/live").status_code == 200


def test_a_certificate_of_a_version_that_there_is_not(service: Background) -> None:
    """Whoever reaches the service may send one: it is no failure of the service."""
    signed = Signed(service.url, key_info=certificate(KEYS["p256"], version=113))
    answer = post(service, signed.content)
    assert (answer.status_code, answer.json()["type"]) == (401, "unauthenticated")


def test_who_signed(service: Background, directory: Path) -> None:
    """Keys are for resources, callers for what policies say."""
    before = paid(directory)
    read = DOCUMENT.format(statement("select 1 as a"))
    bob = Signed(service.url, document=read, id="bobs", path="/resources/book/perform").content
    assert post(service, bob, "/resources/book/perform").status_code == 200
    answer = post(service, Signed(service.url, id="bobs").content)
    assert (answer.status_code, answer.json()["type"]) == (403, "denied")
    write = Signed(service.url, path="/resources/book/perform").content
    assert post(service, write, "/resources/book/perform").status_code == 403
    assert paid(directory) == before


def test_the_document_that_is_run_is_small_enough(tmp_path: Path, book: str, directory: Path) -> None:
    config = configured(
        tmp_path,
        {"book": {"url": book}},
        identity=section(directory),
        limits={"document_bytes": 4000, "receive_seconds": 2.0},
    )
    with background(config) as running:
        document = DOCUMENT.format(statement("select 1 as a"))
        path = "/resources/book/perform"
        assert post(running, Signed(running.url, document=document, path=path).content, path).status_code == 200
        assert post(running, b"<" * 4001, path).status_code == 413

        def pieces() -> Iterator[bytes]:
            yield from (b"<" * 3000, b"<" * 3000)

        assert httpx.post(running.url + path, content=pieces(), headers=XML).status_code == 413

        host, port = running.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 60) as connection:
            head = (
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/xml\r\nContent-Length: 9\r\n\r\n"
            )
            connection.sendall(head.encode() + b"<")
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408")


def test_documents_of_nobody_have_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_little_room(monkeypatch))


async def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_module, "AT_ONCE", 2)
    bodies = early_module.EarlyBodies(100)

    def of_bytes(size: int, address: str | None = None) -> early_module.EarlyBody:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"x" * size}

        limits = type("Limits", (), {"receive_seconds": 60.0})
        state = type("State", (), {"service": type("S", (), {"config": type("C", (), {"limits": limits})})})
        scope: dict[str, Any] = {"type": "http", "headers": [], "app": type("App", (), {"state": state})}
        if address is not None:
            scope["client"] = (address, 1)
        return bodies.of(scope, receive)

    with of_bytes(90) as first, of_bytes(90) as second:
        assert await first.read() == await first.read() == b"x" * 90
        await second.read()
        with pytest.raises(BusyError), of_bytes(90) as third:
            await third.read()
        assert bodies.held == 180
    assert bodies.held == 0
    with of_bytes(90) as later:
        await later.read()

    # who sends slowly from one address leaves room for the others; a network of IPv6 is one sender
    monkeypatch.setattr(early_module, "AT_ONCE", 16)
    with ExitStack() as slow:
        for number in range(4):
            await slow.enter_context(of_bytes(90, f"2001:db8::{number}")).read()
        with pytest.raises(BusyError), of_bytes(90, "2001:db8::ffff") as fifth:
            await fifth.read()
        for address in ("2001:db8:0:1::1", "192.0.2.1", None):
            with of_bytes(90, address) as other:
                assert await other.read()
    assert (bodies.held, bodies.by_sender) == (0, {})


def test_who_sends_no_signature_is_anonymous(tmp_path: Path, book: str, directory: Path) -> None:
    identity = {**section(directory), "anonymous": True}
    resources = {"book": {"url": book, "policy": {"read": ["anonymous", "alice"]}}}
    with background(configured(tmp_path, resources, identity=identity)) as running:
        path = "/resources/book/perform"
        document = DOCUMENT.format(statement("select 1 as a"))
        assert post(running, document.encode(), path).status_code == 200
        # the words of a signature make none
        named = DOCUMENT.format(f"<documentation>{DS}</documentation>" + statement("select 1 as a"))
        assert post(running, named.encode(), path).status_code == 200
        signed = Signed(running.url, document=document, path=path)
        assert post(running, signed.content.replace(b"select 1", b"select 2"), path).status_code == 401
        assert post(running, signed.content, path).status_code == 200
        assert httpx.post(f"{running.url}/resources/book/query", json={"sql": "select 1 as a"}).status_code == 200
        # a client that leaves while rows are on their way is noticed, though its body was read before
        endless = Signed(running.url, document=DOCUMENT.format(statement(ENDLESS)), path=path).content
        with httpx.stream("POST", running.url + path, content=endless, headers=XML, timeout=60) as answer:
            assert next(answer.iter_bytes())
        until(lambda: not running.service.working)


def test_other_methods_before_it(tmp_path: Path, book: str, directory: Path) -> None:
    identity = {**section(directory), "methods": ["token", "xml-signature", "signature"]}
    with background(configured(tmp_path, {"book": {"url": book}}, identity=identity)) as running:
        token, stored = new("alice", 600.0)
        running.service.store.add_token(stored)
        path = "/resources/book/perform"
        document = DOCUMENT.format(statement("select 1 as a"))
        assert post(running, document.encode(), path, Authorization=f"Bearer {token}").status_code == 200
        assert post(running, Signed(running.url, document=document, path=path).content, path).status_code == 200
        # a signed request whose body was read to look for a signature in it is compared all the same
        signer = dai.connect(f"{running.url}/resources/book", signing_key=directory / "p256.key", key_id="p256")
        assert signer.perform(document, output="rows").arrow().num_rows == 1
        headers = signer.service.transport._signed("POST", path, XML, document.encode())[0]
        assert post(running, document.replace("1", "2").encode(), path, **headers).status_code == 401


def test_several_processes(tmp_path: Path, book: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document counts once in all of them, also one that moves to the worker of its session."""
    monkeypatch.setenv("DAI_IDENTITY__WRONG_SECONDS", "0")
    keys = f'[identity.signatures.keys.p256]\nname = "alice"\nkey = "{directory / "p256.pem"}"\n'
    running = ServiceProcess(tmp_path, {"book": book}, identity=["xml-signature", "token"], workers=2, more=keys)
    running.start()
    try:
        path = "/resources/book/perform"

        def sent(content: bytes) -> int:
            # each request opens a connection of its own, which meets either worker
            return httpx.post(running.url + path, content=content, headers=XML, timeout=60).status_code

        for _ in range(4):
            content = Signed(running.url, document=DOCUMENT.format(statement("select 1 as a")), path=path).content
            assert sorted(sent(content) for _ in range(4)) == [200, 401, 401, 401]
        create = DOCUMENT.format("<session/>" + statement("select 1 as a"))
        ids = []
        for _ in range(4):
            content = Signed(running.url, document=create, path=path).content
            answer = httpx.post(running.url + path, content=content, headers=XML, timeout=60)
            ids += re.findall(r'<session id="([^"]+)"', answer.text)
        assert len(ids) == 4
        for id in ids * 3:
            joining = DOCUMENT.format(f'<session id="{id}"/>' + statement("select 1 as a"))
            content = Signed(running.url, document=joining, path=path).content
            assert [sent(content), sent(content)] == [200, 401]
    finally:
        running.stop()


# --- The client -----------------------------------------------------------------------------------------------------


def test_values_with_prefixes_keep_what_they_mean(directory: Path) -> None:
    """Exclusive canonicalisation drops what no name uses, so the signature lists it."""
    document = DOCUMENT.format(
        '<xPathStatement name="x"><namespace prefix="r">http://example.org/r</namespace><expression xmlns:q="urn:q">'
        '/q:a</expression><resourceSetStream name="out"/></xPathStatement>'
    )
    signed = DocumentSigner(directory / "p256.key", "p256").signed(document.encode(), "http://x/resources/r/perform")
    verified = method(directory)._verified(signed)
    assert verified is not None
    assert b'xmlns:q="urn:q"' in verified[1]


def test_each_attempt_has_a_signature_of_its_own(directory: Path) -> None:
    signer = DocumentSigner(directory / "rsa.key", "rsa")
    ours = method(directory)
    first, second = (signer.signed(INSERT.encode(), "http://localhost:80" + PATH) for _ in range(2))
    assert first != second
    head = [(b"host", b"LOCALHOST"), (b"content-type", b"application/xml")]

    async def caller(content: bytes, target: str = PATH) -> str:
        async def read() -> bytes:
            return content

        found = await ours.caller(Head(head, "POST", "http", target.encode(), read=read))
        return found.name if found else ""

    assert [asyncio.run(caller(each)) for each in (first, second)] == ["alice", "alice"]
    with pytest.raises(UnauthenticatedError):
        asyncio.run(caller(first))
    third = signer.signed(INSERT.encode(), f"https://localhost:443{PATH}?output=a%20b&session=1")
    with pytest.raises(UnauthenticatedError, match="another address"):
        asyncio.run(caller(third))
    assert asyncio.run(caller(third, f"{PATH}?output=a%20b&session=1")) == "alice"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"signs": "documents"}, "need signing_key"),
        ({"signs": "nothing", "signing_key": "p256.key", "key_id": "p256"}, 'signs must be "requests" or'),
        ({"signs": "documents", "signing_key": "ed25519.key", "key_id": "ed25519"}, "cannot sign documents"),
        ({"signs": "documents", "signing_key": "p256.key", "key_id": "a b"}, "is not a key id"),
    ],
)
def test_options_of_the_client(directory: Path, options: dict[str, Any], message: str) -> None:
    if "signing_key" in options:
        options = {**options, "signing_key": directory / options["signing_key"]}
    with pytest.raises(RequestError, match=message):
        dai.connect("http://127.0.0.1:1/resources/book", **options)


def test_what_the_client_cannot_sign(directory: Path) -> None:
    resource = dai.connect(
        "http://127.0.0.1:1/resources/book", signing_key=directory / "p256.key", key_id="p256", signs="documents"
    )
    with pytest.raises(RequestError, match="cannot be signed"):
        resource.perform("<a>")


def test_the_client_says_what_the_service_said(service: Background, directory: Path) -> None:
    resource = dai.connect(
        f"{service.url}/resources/book", signing_key=directory / "p256.key", key_id="bobs", signs="documents"
    )
    with pytest.raises(UnauthenticatedError, match="is not valid"):
        resource.perform(DOCUMENT.format(statement("select 1 as a")))
    bob = dai.connect(
        f"{service.url}/resources/ledger", signing_key=directory / "bobs.key", key_id="bobs", signs="documents"
    )
    with pytest.raises(DeniedError):
        bob.perform(INSERT)


def test_wrong_configurations(directory: Path) -> None:
    with pytest.raises(ConfigurationError, match="there are no keys"):
        XmlSignatures(IdentityConfig(), _nobody)
    identity = section(directory)
    identity["signatures"]["keys"] = {"ed25519": identity["signatures"]["keys"]["ed25519"]}
    with pytest.raises(ConfigurationError, match="can sign documents"):
        XmlSignatures(parse({"identity": identity}, environment={}).identity, _nobody)
