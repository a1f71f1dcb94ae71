"""Names of callers from their certificates: of the connection, and of a proxy's; nobody becomes anybody else."""

import base64
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import dai
from dai.__main__ import main
from dai.api.server.serve import Background, background
from dai.config import parse
from dai.errors import ConfigurationError
from dai.security.identity.certificates import Certificates
from dai.service.identities import Identities
from tests.api.authorities import SECRET, Authority, Subject, audited, authority, behind, sent, told
from tests.api.conftest import configured
from tests.processes import ServiceProcess
from tests.servers.certificates import self_signed

ALICE: Subject = [("O", "Lab"), ("CN", "alice")]
ALICE_DN = "CN=alice,O=Lab"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    directory = tmp_path_factory.mktemp("authority")
    self_signed(directory, "server")
    return authority(directory)


# --- Of the connection ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory, book: str, ours: Authority) -> Iterator[Background]:
    directory = tmp_path_factory.mktemp("direct")
    tls = {
        "certificate": str(ours.directory / "server.pem"),
        "key": str(ours.directory / "server.key"),
        "client_ca": str(ours.file),
    }
    config = configured(
        directory,
        {"book": {"url": book}},
        service={"tls": tls},
        identity={"methods": ["token", "certificate"], "wrong_seconds": 0.0},
        audit={"file": "audit.jsonl"},
    )
    with background(config) as running:
        yield running


def asked(running: Background, ours: Authority, files: dict[str, Path], **headers: str) -> httpx.Response:
    trusted = ssl.create_default_context(cafile=ours.directory / "server.pem")
    trusted.load_cert_chain(files["certificate"], files["key"])
    return httpx.get(f"{running.url}/jobs", verify=trusted, headers=headers)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (ALICE, ALICE_DN),
        ([("O", "Lab"), ("CN", "alice,CN=admin")], r"CN=alice\,CN=admin,O=Lab"),
        ([("O", "Lab,CN=admin"), ("CN", "alice")], r"CN=alice,O=Lab\,CN=admin"),
        ([("CN", "alice+UID=admin")], r"CN=alice\+UID=admin"),
        ([("CN", r"alice\,CN=admin")], r"CN=alice\\\,CN=admin"),
        ([("CN", "admin"), ("CN", "alice")], "CN=alice,CN=admin"),
        ([("CN", "alice\0.evil")], r"CN=alice\00.evil"),
        ([("CN", " alice ")], r"CN=\ alice\ "),
        ([("CN", "#616c696365")], r"CN=\#616c696365"),
        ([("E", "alice@example.org"), ("CN", "Zoë")], "CN=Zoë,emailAddress=alice@example.org"),
    ],
)
def test_a_subject_is_one_name(direct: Background, ours: Authority, subject: Subject, name: str) -> None:
    answer = asked(direct, ours, ours.client(subject))
    assert answer.status_code == 200
    record = audited(direct, answer.headers["x-request-id"])
    assert (record["caller"], record["identified_by"]) == (name, "certificate")


@pytest.mark.parametrize(
    "subject",
    [
        [],
        [("CN", "alice\nCN=admin")],
        [("CN", "alice\r\n")],
        [("CN", "alice\u202egnp")],
        [("CN", "alice\x7f")],
        [("O", "x" * 64), ("OU", "y" * 64), ("OU", "z" * 64), ("CN", "w" * 64)],
    ],
)
def test_what_cannot_be_told_in_a_line_is_nobody(direct: Background, ours: Authority, subject: Subject) -> None:
    answer = asked(direct, ours, ours.client(subject))
    assert (answer.status_code, answer.json()["type"]) == (401, "unauthenticated")


def test_what_one_makes_is_ones_own(direct: Background, ours: Authority) -> None:
    trusted = {"ca": ours.directory / "server.pem", "retries": 0}
    alice = dai.connect(f"{direct.url}/book", **trusted, **ours.client(ALICE))
    with alice.session() as session:
        # another certificate of the same subject is the same caller, another subject is not
        for subject, there in [(ALICE, True), ([("CN", "alice"), ("O", "Lab")], False), ([("CN", "alice")], False)]:
            service = dai.connect(f"{direct.url}/book", **trusted, **ours.client(subject)).service
            reply = service.transport.send("GET", f"/sessions/{session.id}", accepted=frozenset({404}))
            with reply.body:
                assert (reply.status == 200) is there, subject


def test_no_cache_that_others_share_keeps_an_answer(direct: Background, ours: Authority) -> None:
    """Of a request with Authorization none does by itself."""
    files = ours.client(ALICE)
    trusted = ssl.create_default_context(cafile=ours.directory / "server.pem")
    trusted.load_cert_chain(files["certificate"], files["key"])
    with httpx.Client(base_url=direct.url, verify=trusted) as client:
        for path in ("/jobs", "/resources/book/schema", "/resources/book/query?sql=select 1 as a"):
            answer = client.get(path)
            assert answer.status_code == 200
            assert "private" in answer.headers["cache-control"]


def test_a_token_that_does_not_hold_is_not_mended_by_a_certificate(direct: Background, ours: Authority) -> None:
    files = ours.client(ALICE)
    assert asked(direct, ours, files, authorization="Bearer dai_0123456789abcdef_no").status_code == 401
    assert asked(direct, ours, files).status_code == 200


def test_headers_name_nobody_where_there_is_no_proxy(direct: Background, ours: Authority) -> None:
    headers = {
        "X-Client-DN": "CN=admin",
        "Client-Cert": sent(ours.certificate([("CN", "admin")])),
        "X-Proxy-Secret": "",
    }
    answer = asked(direct, ours, ours.client(ALICE), **headers)
    assert audited(direct, answer.headers["x-request-id"])["caller"] == ALICE_DN


def test_a_certificate_of_another_authority_does_not_come_in(
    direct: Background, ours: Authority, tmp_path: Path
) -> None:
    for files in (authority(tmp_path).client(ALICE), ours.client(ALICE, seconds=-60.0)):
        with pytest.raises((httpx.TransportError, ssl.SSLError)):
            asked(direct, ours, files)


def test_one_that_expires_while_the_connection_stays(
    direct: Background, ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ours.client(ALICE, seconds=600.0)
    trusted = ssl.create_default_context(cafile=ours.directory / "server.pem")
    trusted.load_cert_chain(files["certificate"], files["key"])
    with httpx.Client(base_url=direct.url, verify=trusted) as client:
        assert client.get("/jobs").status_code == 200
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 700.0)
        answer = client.get("/jobs")
    assert (answer.status_code, answer.json()["detail"]) == (401, "This certificate has expired.")


def test_several_processes(tmp_path: Path, book: str, ours: Authority) -> None:
    """Whichever process has the TLS of a connection, the one that answers knows whose it is."""
    private = ours.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    ours.file.with_suffix(".key").write_bytes(private)
    service = ServiceProcess(
        *(tmp_path, {"book": book}),
        workers=2,
        tls=ours.directory / "server.pem",
        client_ca=ours.file,
        identity=["certificate"],
    )
    contexts = {}
    for name in ("alice", "bob"):
        contexts[name] = ssl.create_default_context(cafile=ours.directory / "server.pem")
        contexts[name].load_cert_chain(*ours.client([("CN", name)]).values())

    def client(name: str) -> httpx.Client:
        return httpx.Client(base_url=service.url, verify=contexts[name], timeout=60)

    service.start()
    try:
        sessions: dict[int, str] = {}
        while len(sessions) < 2:
            with client("alice") as alice:  # a new connection each time, so either process
                id = alice.post("/sessions").json()["id"]
                sessions[Identities(0, 2).owner(id)] = id
        with client("alice") as alice, client("bob") as bob:
            for id in (*sessions.values(), *sessions.values()):
                assert alice.get(f"/sessions/{id}").json()["id"] == id
                for headers in ({}, {"X-Client-DN": "CN=alice", "Client-Cert": "x"}):
                    assert bob.get(f"/sessions/{id}", headers=headers).status_code == 404
    finally:
        service.stop()


def test_no_client_certificate_without_an_authority(
    tmp_path: Path, book: str, ours: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "dai.toml"
    file.write_text(f'[identity]\nmethods = ["certificate"]\n[resources.book]\nurl = "{book}"\n')
    assert main(["check-config", str(file)]) == 2
    assert "client_ca" in capsys.readouterr().err


# --- Of a proxy -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory, book: str) -> Iterator[Background]:
    with behind(tmp_path_factory.mktemp("proxied"), book) as running:
        yield running


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, book: str) -> Iterator[Background]:
    """Its proxies have other addresses than we."""
    with behind(tmp_path_factory.mktemp("elsewhere"), book, proxies=["10.0.0.7", "::1", "192.0.2.0/24"]) as running:
        yield running


PROVEN = ("X-Proxy-Secret", SECRET)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (ALICE_DN, ALICE_DN),
        (r"CN=alice\,CN=admin,O=Lab", r"CN=alice\,CN=admin,O=Lab"),
        (r"CN=Zo\C3\AB", "CN=Zoë"),
        ("CN=Zoë".encode(), "CN=Zoë"),
        ("emailAddress=a@example.org,CN=alice", "emailAddress=a@example.org,CN=alice"),
        ("UID=7+CN=alice", "CN=alice+UID=7"),
    ],
)
def test_a_proxy_says_the_subject(proxied: Background, subject: str | bytes, name: str) -> None:
    assert told(proxied, PROVEN, ("X-Client-DN", subject)) == (200, name)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [("X-Client-DN", ALICE_DN)],
        [("X-Client-DN", ALICE_DN), ("X-Proxy-Secret", "")],
        [("X-Client-DN", ALICE_DN), ("X-Proxy-Secret", SECRET[:-1])],
        [("X-Client-DN", ALICE_DN), ("X-Proxy-Secret", SECRET + "x")],
        [("X-Client-DN", ALICE_DN), ("X-Proxy-Secret", "x"), PROVEN],
        [("X-Client-DN", ALICE_DN), PROVEN, PROVEN],
        [("X-Client-DN", ALICE_DN), ("X_Proxy_Secret", SECRET)],
        [("X_Client_DN", ALICE_DN), PROVEN],
        [("X-Client-DN", ""), PROVEN],
        [("X-Client-DN", "  "), PROVEN],
        [("Client-Cert", ":AAAA:"), PROVEN],
        [PROVEN],
    ],
)
def test_without_the_secret_or_the_header_nobody_is_named(proxied: Background, lines: list[tuple[str, str]]) -> None:
    assert told(proxied, *lines) == (401, "")


@pytest.mark.parametrize(
    "lines",
    [
        [("X-Client-DN", ALICE_DN), ("X-Client-DN", "CN=admin")],
        [("X-Client-DN", ALICE_DN), ("x-client-dn", ALICE_DN)],
        [("X-Client-DN", "admin")],
        [("X-Client-DN", "/O=Lab/CN=alice")],
        [("X-Client-DN", "CN=alice,")],
        [("X-Client-DN", "CN=alice\\")],
        [("X-Client-DN", "CN=alice\\0D\\0ACN=admin")],
        [("X-Client-DN", "CN=alice\\FF")],
        [("X-Client-DN", b"CN=alice\xff")],
        [("X-Client-DN", "CN=alice\tCN=admin")],
        [("X-Client-DN", "CN=")],
        [("X-Client-DN", "CN=" + "x" * 20_000)],
    ],
)
def test_what_a_proxy_should_not_say(proxied: Background, lines: list[tuple[str, str | bytes]]) -> None:
    assert told(proxied, PROVEN, *lines) == (401, "")


@pytest.mark.parametrize(
    "value",
    [
        b"CN=alice\r\n CN=admin",
        b"CN=alice\r\n\tCN=admin",
        b"CN=alice\x00",
        b"CN=alice\nX-Client-DN: CN=admin",
        b"CN=alice\rX-Client-DN: CN=admin",
    ],
)
def test_folded_and_broken_lines(proxied: Background, value: bytes) -> None:
    status, name = told(proxied, PROVEN, ("X-Client-DN", value))
    assert (status in (400, 401), name) == (True, "")


@pytest.mark.parametrize("line", [b"X-Client-DN: CN=admin", b"Authorization: Bearer x", b"Host: example.org"])
def test_trailers_name_nobody(proxied: Background, line: bytes) -> None:
    """Some proxies hand on what stands behind a body in chunks: their own headers are those before it."""
    host, port = proxied.url.removeprefix("http://").split(":")
    head = (
        f"POST /sessions HTTP/1.1\r\nHost: localhost\r\nX-Proxy-Secret: {SECRET}\r\nContent-Type: application/json\r\n"
    )
    with socket.create_connection((host, int(port)), 60) as connection:
        # in one piece, so that all of it is there when the request is looked at
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + line + b"\r\n\r\n")
        answer = b""
        while b"identified callers only." not in answer:
            piece = connection.recv(1 << 16)
            assert piece, answer
            answer += piece


def test_a_header_from_elsewhere_is_dropped(elsewhere: Background) -> None:
    """The answer tells neither that there are proxies nor that the secret was right."""
    assert told(elsewhere, PROVEN, ("X-Client-DN", ALICE_DN)) == (401, "")
    answers = [
        httpx.get(f"{elsewhere.url}/jobs", headers=headers).json() | {"instance": ""}
        for headers in ({}, dict([PROVEN, ("X-Client-DN", ALICE_DN)]), {"X-Client-DN": ALICE_DN})
    ]
    assert answers[0] == answers[1] == answers[2]


def test_anonymous_callers_stay_anonymous(tmp_path: Path, book: str) -> None:
    identity = {
        "methods": ["certificate"],
        "anonymous": True,
        "certificate": {"proxies": ["10.0.0.7"], "secret": SECRET},
    }
    config = configured(tmp_path, {"book": {"url": book}}, identity=identity, audit={"file": "audit.jsonl"})
    with background(config) as running:
        assert told(running, PROVEN, ("Client-Cert", "x")) == (200, "")


def test_a_proxy_sends_the_certificate(tmp_path: Path, book: str, ours: Authority) -> None:
    with behind(tmp_path, book, header="Client-Cert", proxies=["127.0.0.0/8"]) as running:
        assert told(running, PROVEN, ("Client-Cert", sent(ours.certificate(ALICE)))) == (200, ALICE_DN)
        expired = sent(ours.certificate(ALICE, seconds=-60.0))
        plain = sent(ours.certificate(ALICE))
        der = ours.certificate(ALICE).public_bytes(Encoding.DER)
        of_no_version = der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x71", 1)
        for wrong in (
            expired,
            f":{base64.b64encode(of_no_version).decode()}:",
            plain[1:],
            plain[:-1],
            plain.replace("A", "B"),
            ":!:",
            "::",
            "CN=alice",
            f"{plain}, {plain}",
        ):
            assert told(running, PROVEN, ("Client-Cert", wrong)) == (401, ""), wrong
        assert told(running, ("Client-Cert", plain)) == (401, "")


@pytest.mark.parametrize(
    ("kind", "names", "caller"),
    [
        ("cn", [], "alice"),
        ("email", [x509.RFC822Name("alice@example.org"), x509.DNSName("a.example.org")], "alice@example.org"),
        ("dns", [x509.RFC822Name("alice@example.org"), x509.DNSName("a.example.org")], "a.example.org"),
        ("uri", [x509.UniformResourceIdentifier("spiffe://example.org/alice")], "spiffe://example.org/alice"),
        ("email", [], ""),
        ("email", [x509.RFC822Name("alice@example.org"), x509.RFC822Name("bob@example.org")], ""),
        ("uri", [x509.DNSName("spiffe.example.org")], ""),
    ],
)
def test_other_names_of_a_certificate(
    tmp_path: Path, book: str, ours: Authority, kind: str, names: list[x509.GeneralName], caller: str
) -> None:
    with behind(tmp_path, book, header="Client-Cert", name=kind) as running:
        status, who = told(running, PROVEN, ("Client-Cert", sent(ours.certificate(ALICE, alternatives=names))))
        assert (status, who) == (200 if caller else 401, caller)


def test_two_common_names_are_none(tmp_path: Path, book: str) -> None:
    with behind(tmp_path, book, name="cn") as running:
        assert told(running, PROVEN, ("X-Client-DN", "CN=alice,O=Lab")) == (200, "alice")
        for subject in ("CN=admin,CN=alice", "CN=admin+CN=alice", "O=Lab", r"CN=alice\00", r"CN=a\0Ab"):
            assert told(running, PROVEN, ("X-Client-DN", subject)) == (401, ""), subject


def test_subjects_and_who_has_them(tmp_path: Path, book: str) -> None:
    subjects = {
        "CN=alice,O=Lab": {"name": "alice", "groups": ["staff"]},
        r"1.2.840.113549.1.9.1=b@example.org,CN=Bob\2c the second": {"name": "bob", "administrator": True},
    }
    with behind(tmp_path, book, subjects=subjects) as running:
        assert told(running, PROVEN, ("X-Client-DN", ALICE_DN)) == (200, "alice")
        assert told(running, PROVEN, ("X-Client-DN", r"emailAddress=b@example.org,CN=Bob\, the second")) == (
            200,
            "bob*",
        )
        for subject in ("CN=carol,O=Lab", "CN=alice", "CN=alice,O=Lab,C=UK", "CN=Alice,O=Lab"):
            assert told(running, PROVEN, ("X-Client-DN", subject)) == (401, ""), subject


def test_an_address_that_is_written_as_ipv6(book: str) -> None:
    certificate = {"proxies": ["10.0.0.0/8", "2001:db8::/32"], "secret": SECRET}
    config = parse({"identity": {"methods": ["certificate"], "certificate": certificate}}, environment={}).identity
    method = Certificates(config, _nobody)
    known = {address: method._is_proxy(address) for address in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1")}
    assert all(known.values())
    assert not any(map(method._is_proxy, ("11.1.2.3", "::ffff:11.1.2.3", "2001:db9::1", "", "10.1", "proxy")))


async def _nobody(id: str) -> None:
    return None


@pytest.mark.parametrize(
    ("certificate", "message"),
    [
        ({"proxies": ["10.0.0.7"]}, "must have 16 characters"),
        ({"proxies": ["10.0.0.7"], "secret": "short"}, "must have 16 characters"),
        ({"proxies": ["10.0.0.7"], "secret": "env:NOT_THERE"}, "NOT_THERE"),
        ({"proxies": ["10.0.0.7/8"], "secret": SECRET}, "neither an address nor a network"),
        ({"proxies": ["proxy"], "secret": SECRET}, "neither an address nor a network"),
        ({"proxies": ["10.0.0.7"], "secret": SECRET, "header": "X Client"}, "not the name of a header"),
        ({"proxies": ["10.0.0.7"], "secret": SECRET, "header": "X-Client-DN", "name": "email"}, "not its email name"),
        ({"name": "san"}, "must be one of dn"),
        ({"subjects": {"CN=alice": {}}}, "must be a section"),
        ({"subjects": {"CN=alice": "alice"}}, "must be a section"),
        ({"subjects": []}, "must be a section"),
        ([], "must be a section"),
        ({}, "clients are not asked for certificates"),
    ],
)
def test_wrong_configurations(certificate: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse({"identity": {"methods": ["certificate"], "certificate": certificate}}, environment={})


def test_a_subject_that_is_none() -> None:
    certificate = {"proxies": ["10.0.0.7"], "secret": SECRET, "subjects": {"alice": {"name": "alice"}}}
    config = parse({"identity": {"methods": ["certificate"], "certificate": certificate}}, environment={})
    with pytest.raises(ConfigurationError, match="'alice' is not a subject"):
        Certificates(config.identity, _nobody)


def test_check_config_says_where_the_secret_comes_from(
    tmp_path: Path, book: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROXY_SECRET", SECRET)
    file = tmp_path / "dai.toml"
    file.write_text(
        '[identity]\nmethods = ["certificate"]\n[identity.certificate]\nproxies = ["10.0.0.7"]\n'
        f'secret = "env:PROXY_SECRET"\n[resources.book]\nurl = "{book}"\n'
    )
    assert main(["check-config", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "secret identity.certificate.secret: from the environment variable PROXY_SECRET" in printed
    assert SECRET not in printed
