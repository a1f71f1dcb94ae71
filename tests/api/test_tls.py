"""The service with TLS: who is answered, what is refused, certificates that change while it runs."""

import json
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import dai
from dai.__main__ import main
from dai.api.server import tls as tls_module
from dai.api.server.self_signed import self_signed as self_signed_by_itself
from dai.api.server.serve import Background, background
from dai.commands.run import greeting
from dai.config import parse
from dai.errors import ConfigurationError, RequestError, UnreachableError
from dai.service.identities import Identities
from tests.api.conftest import ENDLESS, FAILS_LATE, configured
from tests.processes import ROOT, ServiceProcess, until
from tests.servers import free_port
from tests.servers.certificates import self_signed


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    for name in ("server", "other", "client"):
        self_signed(directory, name)
    return directory


def section(certificates: Path, **more: object) -> dict[str, object]:
    return {"certificate": str(certificates / "server.pem"), "key": str(certificates / "server.key"), **more}


@contextmanager
def serving(directory: Path, book: str, tls: dict[str, object]) -> Iterator[Background]:
    with background(configured(directory, {"book": {"url": book}}, service={"tls": tls})) as running:
        yield running


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, book: str, certificates: Path) -> Iterator[Background]:
    with serving(tmp_path_factory.mktemp("secure"), book, section(certificates)) as running:
        yield running


def shown(url: str, **limits: ssl.TLSVersion) -> str:
    """The certificate of the server, whatever it is."""
    context = ssl._create_unverified_context()
    for name, value in limits.items():
        setattr(context, name, value)
    host, port = url.partition("://")[2].split(":")
    with socket.create_connection((host, int(port)), 60) as plain, context.wrap_socket(plain) as connection:
        return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"")


def test_a_query_and_a_large_one(secure: Background, certificates: Path) -> None:
    assert secure.url.startswith("https://")
    book = dai.connect(f"{secure.url}/book", ca=certificates / "server.pem")
    assert book.query("select 1 as a").arrow().to_pylist() == [{"a": 1}]
    assert book.query("select * from numbers").arrow().num_rows == 30_000


def test_a_certificate_that_is_not_trusted_says_what_to_do(secure: Background, certificates: Path) -> None:
    for options in ({}, {"ca": certificates / "other.pem"}):
        with pytest.raises(UnreachableError, match="ca=FILE"):
            dai.connect(f"{secure.url}/book", retries=0, **options).query("select 1 as a")
    with pytest.raises(RequestError, match="PEM"):
        dai.connect(f"{secure.url}/book", ca=ROOT / "README.md")


def test_commands_trust_what_the_environment_says(
    secure: Background, certificates: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["query", f"{secure.url}/book", "select 1 as a", "--format", "csv"]
    monkeypatch.setenv("DAI_CA", str(certificates / "server.pem"))
    assert main(command) == 0
    assert capsys.readouterr().out.split() == ["a", "1"]
    assert main(["resources", "--server", secure.url]) == 0


def test_plain_http_ends_without_an_answer(secure: Background, certificates: Path) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(secure.url.replace("https", "http") + "/health/live")
    with pytest.raises(UnreachableError):
        dai.connect(secure.url.replace("https", "http") + "/book", retries=0).query("select 1 as a")
    assert (
        dai.connect(f"{secure.url}/book", ca=certificates / "server.pem").query("select 1 as a").arrow().num_rows == 1
    )


def test_what_ends_connections_ends_them_here(secure: Background, certificates: Path) -> None:
    context = ssl.create_default_context(cafile=certificates / "server.pem")
    with httpx.Client(base_url=secure.url, verify=context, timeout=60) as client:
        assert client.get("/jobs", headers={"X": "x" * 100_000}).status_code == 431
        with pytest.raises(httpx.TransportError):
            client.post("/resources/book/query", json={"sql": FAILS_LATE}, headers={"Accept": "text/csv"})
        with client.stream("POST", "/resources/book/query", json={"sql": ENDLESS}) as answer:
            assert next(answer.iter_bytes())
    until(lambda: not secure.service.working)


@pytest.mark.parametrize(("minimum", "most", "spoken"), [("1.2", "TLSv1_2", True), ("1.3", "TLSv1_2", False)])
def test_old_versions(tmp_path: Path, book: str, certificates: Path, minimum: str, most: str, spoken: bool) -> None:
    with serving(tmp_path, book, section(certificates, minimum_version=minimum)) as running:
        try:
            shown(running.url, maximum_version=ssl.TLSVersion[most])
        except ssl.SSLError:
            assert not spoken
        else:
            assert spoken


def test_clients_without_a_certificate_are_not_answered(tmp_path: Path, book: str, certificates: Path) -> None:
    known = {"ca": certificates / "server.pem", "retries": 0}
    with serving(tmp_path, book, section(certificates, client_ca=str(certificates / "client.pem"))) as running:
        address = f"{running.url}/book"
        for shown_by in ({}, {"certificate": certificates / "other.pem", "key": certificates / "other.key"}):
            with pytest.raises(UnreachableError):
                dai.connect(address, **known, **shown_by).query("select 1 as a")
        client = {"certificate": certificates / "client.pem", "key": certificates / "client.key"}
        assert dai.connect(address, **known, **client).query("select 1 as a").arrow().num_rows == 1


def test_a_certificate_that_changes(
    tmp_path: Path, book: str, certificates: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A new one is for new connections; one that cannot be used changes nothing, and the log says so."""
    monkeypatch.setattr(tls_module, "LOOK_SECONDS", 0.02)
    caplog.set_level(logging.INFO)

    def put(name: str) -> None:
        for suffix in (".pem", ".key"):
            shutil.copy((certificates / name).with_suffix(suffix), tmp_path / f"new{suffix}")
            os.replace(tmp_path / f"new{suffix}", tmp_path / f"now{suffix}")

    def said(text: str) -> bool:
        return any(text in record.getMessage() for record in caplog.records)

    put("server")
    files = {"certificate": str(tmp_path / "now.pem"), "key": str(tmp_path / "now.key")}
    with serving(tmp_path, book, files) as running:
        assert shown(running.url) == (certificates / "server.pem").read_text()
        with httpx.Client(base_url=running.url, verify=False) as kept:
            kept.get("/health/live")
            put("other")
            until(lambda: shown(running.url) == (certificates / "other.pem").read_text())
            assert kept.get("/health/live").status_code == 200
        caplog.clear()
        (tmp_path / "now.key").write_text("nonsense")
        until(lambda: said("the former one stays"))
        assert shown(running.url) == (certificates / "other.pem").read_text()
        put("server")
        until(lambda: shown(running.url) == (certificates / "server.pem").read_text())


def test_authorities_of_clients_that_change(
    tmp_path: Path, book: str, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An authority that is removed is not trusted any more, nor a session that one of its clients has begun; a client
    shows the certificate that its files have now."""
    monkeypatch.setattr(tls_module, "LOOK_SECONDS", 0.02)
    shutil.copy(certificates / "client.pem", tmp_path / "ca.pem")
    with serving(tmp_path, book, section(certificates, client_ca=str(tmp_path / "ca.pem"))) as running:
        for suffix in (".pem", ".key"):
            shutil.copy(certificates / f"client{suffix}", tmp_path / f"mine{suffix}")
        known = {"ca": certificates / "server.pem", "retries": 0}
        mine = {"certificate": tmp_path / "mine.pem", "key": tmp_path / "mine.key"}
        book_ = dai.connect(f"{running.url}/book", **known, **mine)
        assert book_.query("select 1 as a").arrow().num_rows == 1
        host, port = running.url.removeprefix("https://").split(":")
        context = ssl.create_default_context(cafile=certificates / "server.pem")
        context.load_cert_chain(certificates / "client.pem", certificates / "client.key")

        def session(begun: ssl.SSLSession | None) -> ssl.SSLSession | None:
            with (
                socket.create_connection((host, int(port)), 60) as plain,
                context.wrap_socket(plain, server_hostname=host, session=begun) as connection,
            ):
                connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                said = b"".join(iter(lambda: connection.recv(65536), b""))
                return connection.session if said.startswith(b"HTTP/1.1 200") else None

        begun = session(None)
        assert begun is not None
        shutil.copy(certificates / "other.pem", tmp_path / "ca.pem")

        def refused(with_session: ssl.SSLSession | None) -> bool:
            try:
                return session(with_session) is None
            except OSError:
                return True

        until(lambda: refused(None))
        assert refused(begun)
        book_.close()
        for suffix in (".pem", ".key"):
            shutil.copy(certificates / f"other{suffix}", tmp_path / f"mine{suffix}")
        assert book_.query("select 1 as a").arrow().num_rows == 1


def test_a_process_reads_it_again_when_told_to(tmp_path: Path, book: str, certificates: Path) -> None:
    for suffix in (".pem", ".key"):
        shutil.copy(certificates / f"server{suffix}", tmp_path / f"now{suffix}")
    service = ServiceProcess(tmp_path, {"book": book}, workers=2, tls=tmp_path / "now.pem").start()
    try:
        assert service.url in service.log.read_text()
        assert shown(service.url) == (certificates / "server.pem").read_text()
        for suffix in (".pem", ".key"):
            shutil.copy(certificates / f"other{suffix}", tmp_path / f"now{suffix}")
        assert service.process is not None
        service.process.send_signal(signal.SIGHUP)
        until(lambda: shown(service.url) == (certificates / "other.pem").read_text())
    finally:
        assert service.stop() == 0, service.log.read_text()


@pytest.mark.parametrize(
    "tls",
    [
        {"certificate": "nowhere.pem"},
        {"certificate": "server.pem", "key": "other.key"},
        {"certificate": "server.pem"},
        {"certificate": "server.pem", "key": "secret.key"},
        {"certificate": "server.pem", "key": "server.key", "client_ca": "server.key"},
        {"certificate": "server.pem", "key": "server.key", "minimum_version": "1.1"},
        {"key": "server.key"},
        {"certificate": "server.pem", "keys": "server.key"},
    ],
)
def test_settings_that_cannot_be_used(tmp_path: Path, book: str, certificates: Path, tls: dict[str, str]) -> None:
    secret = certificates / "secret.key"
    if not secret.exists():
        encrypt = [
            "openssl",
            "rsa",
            "-aes256",
            "-passout",
            "pass:x",
            "-in",
            certificates / "server.key",
            "-out",
            secret,
        ]
        subprocess.run(encrypt, check=True, capture_output=True)
    settings = {name: str(certificates / value) if name != "minimum_version" else value for name, value in tls.items()}
    with pytest.raises(ConfigurationError), serving(tmp_path, book, dict(settings)):
        pass


def test_several_processes(tmp_path: Path, book: str, certificates: Path) -> None:
    """Sessions, jobs and streams: ``test_workers``, with and without TLS. Here what a relayed connection adds."""
    audit = tmp_path / "audit.jsonl"
    service = ServiceProcess(tmp_path, {"book": book}, workers=2, tls=certificates / "server.pem", audit=audit, grace=5)
    service.start()
    try:
        with service.connect() as plain_end, service.client() as client:
            ids: set[str] = set()
            while len({Identities(0, 2).owner(each) for each in ids}) < 2:
                with service.client() as other:  # a new connection each time, so either worker
                    ids.add(other.post("/sessions").json()["id"])
            audit.write_text("")
            for id in ids:
                assert client.get(f"/sessions/{id}").status_code == 200
                context = service.trusted
                assert isinstance(context, ssl.SSLContext)
                with service.connect() as old:
                    old.sendall(f"GET /sessions/{id} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
                    said = b"".join(iter(lambda old=old: old.recv(65536), b""))
                    assert (b" 200 " in said) != (b" 400 " in said and b"HTTP/1.1" in said), said
            until(lambda: len(audit.read_text().splitlines()) >= len(ids))
            addresses = [json.loads(line)["address"] for line in audit.read_text().splitlines()]
            assert set(addresses) == {"127.0.0.1"}
            # a client that speaks no TLS is not answered and costs nobody anything
            with socket.create_connection(("127.0.0.1", service.port), 60) as plain:
                plain.sendall(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert b"HTTP" not in plain.recv(65536)
            assert client.get("/health/live").status_code == 200
            assert plain_end.version() in ("TLSv1.2", "TLSv1.3")
            # an answer that another worker gives is not cut off when all are told to stop
            id = ids.pop()
            with client.stream("GET", f"/sessions/{id}") as answer:
                assert service.process is not None
                service.process.terminate()
                assert json.loads(answer.read())["id"] == id
        assert service.stop() == 0
    finally:
        service.stop()


def test_a_certificate_of_its_own_to_try(tmp_path: Path, book: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Made once, of names by which the service is reached; the key is its owner's; the greeting says it all."""
    config = parse(
        {"service": {"hosts": ["data.example.org:8443", "*"]}, "resources": {"book": {"url": book}}}, ".", {}
    )
    signed = self_signed_by_itself(config.service, tmp_path)
    assert signed.tls.key is not None
    assert signed.tls.key.stat().st_mode & 0o777 == 0o600
    text = greeting(config, "https://127.0.0.1:1", signed)
    assert signed.fingerprint in text
    assert f'ca="{signed.tls.certificate}"' in text
    assert "To try it only" in text
    again = self_signed_by_itself(config.service, tmp_path)
    assert again.fingerprint == signed.fingerprint
    assert "data.example.org" in shown_names(signed.tls.certificate)
    other = self_signed_by_itself(replace(config.service, hosts=()), tmp_path)
    assert other.fingerprint != signed.fingerprint
    with serving(tmp_path, book, {"certificate": str(other.tls.certificate), "key": str(other.tls.key)}) as running:
        book_ = dai.connect(f"{running.url}/book", ca=other.tls.certificate)
        assert book_.query("select 1 as a").arrow().num_rows == 1
        assert dai.connect(f"{running.url.replace('127.0.0.1', 'localhost')}/book", ca=other.tls.certificate)
        with pytest.raises(UnreachableError, match="ca=FILE"):
            dai.connect(f"{running.url}/book", retries=0).query("select 1 as a")


def shown_names(certificate: Path) -> str:
    command = ["openssl", "x509", "-in", str(certificate), "-noout", "-ext", "subjectAltName"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_serving_with_a_certificate_of_its_own(tmp_path: Path, book: str) -> None:
    port = free_port()
    command = [sys.executable, "-m", "dai", "serve", book, "--self-signed", "--port", str(port), "--workers", "1"]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=-1) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, b"")
            assert any(b"SHA-256 fingerprint" in line for line in lines)
            data = dai.connect(f"https://127.0.0.1:{port}/data", ca=tmp_path / "dai-self-signed.pem")
            assert data.query("select 1 as a").arrow().num_rows == 1
        finally:
            process.terminate()
            process.communicate()
    assert process.returncode == 0


def test_a_certificate_of_its_own_beside_another(
    tmp_path: Path, certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = "\n".join(f'{name} = "{value}"' for name, value in section(certificates).items())
    (tmp_path / "dai.toml").write_text(f"[service.tls]\n{tls}\n")
    assert main(["serve", "--config", str(tmp_path / "dai.toml"), "--self-signed"]) == 2
    assert "cannot be used with [service.tls]" in capsys.readouterr().err
