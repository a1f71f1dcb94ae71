"""Authorities that make certificates of callers, and a service behind a proxy that sends them."""

import base64
import datetime
import json
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from dai.api.server.serve import Background, background
from tests.api.conftest import configured
from tests.processes import until

SECRET = "a secret of a proxy, long enough"
NAMES = {
    "CN": NameOID.COMMON_NAME, "O": NameOID.ORGANIZATION_NAME, "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "UID": NameOID.USER_ID, "E": NameOID.EMAIL_ADDRESS,
}  # fmt: skip
Subject = list[tuple[str, str]]


@dataclass
class Authority:
    directory: Path
    key: ec.EllipticCurvePrivateKey
    name: x509.Name

    @property
    def file(self) -> Path:
        return self.directory / "authority.pem"

    def certificate(
        self,
        subject: Subject | x509.Name,
        alternatives: list[x509.GeneralName] | None = None,
        seconds: float = 86400.0,
        key: Any = None,
    ) -> x509.Certificate:
        """One that it signs, for the ``key``."""
        name = subject if isinstance(subject, x509.Name) else named(*subject)
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(self.name)
        builder = builder.public_key((key or self.key).public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=2))
        builder = builder.not_valid_after(now + datetime.timedelta(seconds=seconds))
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def client(self, subject: Subject | x509.Name, **more: Any) -> dict[str, Path]:
        """``certificate`` and ``key``, as files."""
        key = ec.generate_private_key(ec.SECP256R1())
        files = {each: self.directory / f"{time.perf_counter_ns()}.{each}" for each in ("certificate", "key")}
        files["certificate"].write_bytes(self.certificate(subject, key=key, **more).public_bytes(Encoding.PEM))
        files["key"].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return files


def named(*attributes: tuple[str, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(NAMES[kind], value, _validate=False) for kind, value in attributes])


def authority(directory: Path) -> Authority:
    key, name = ec.generate_private_key(ec.SECP256R1()), named(("CN", "an authority"))
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now - datetime.timedelta(days=3))
    builder = builder.not_valid_after(now + datetime.timedelta(days=3))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    (directory / "authority.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return Authority(directory, key, name)


def audited(running: Background, id: str) -> dict[str, Any]:
    """The record of that request, which is written after its answer."""
    file = running.service.config.audit.file
    assert file is not None
    records: list[dict[str, Any]] = []

    def written() -> bool:
        records[:] = [each for each in map(json.loads, file.read_text().splitlines()) if each["id"] == id]
        return bool(records)

    until(written)
    return records[0]


def sent(certificate: x509.Certificate) -> str:
    """As RFC 9440 writes it."""
    return f":{base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()}:"


def behind(directory: Path, book: str, **certificate: Any) -> Any:
    identity = {
        "methods": ["certificate"],
        "wrong_seconds": 0.0,
        "certificate": {"proxies": ["127.0.0.1"], "secret": SECRET, "header": "X-Client-DN", **certificate},
    }
    return background(configured(directory, {"book": {"url": book}}, identity=identity, audit={"file": "audit.jsonl"}))


def told(running: Background, *lines: tuple[str, str | bytes]) -> tuple[int, str]:
    """The status of a request with these header lines as they are, and who it was, with a mark for administrators."""
    host, port = running.url.removeprefix("http://").split(":")
    id = secrets.token_hex(8)
    head = b"".join(
        name.encode() + b": " + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
        for name, value in [("Host", "localhost"), ("Connection", "close"), ("X-Request-ID", id), *lines]
    )
    with socket.create_connection((host, int(port)), 60) as connection:
        connection.sendall(b"GET /jobs HTTP/1.1\r\n" + head + b"\r\n")
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    status = int(answer.split(b" ", 2)[1])
    if status != 200:
        return status, ""
    record = audited(running, id)
    return status, record.get("caller", "") + ("*" if record.get("administrator") else "")
