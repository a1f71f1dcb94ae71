"""Certificates for servers that speak TLS."""

import subprocess
from pathlib import Path

from tests.servers import Server


def self_signed(directory: Path, name: str) -> Path:
    """``NAME.pem`` of 127.0.0.1, signed by itself, with ``NAME.key`` beside it."""
    certificate = directory / f"{name}.pem"
    files = ["-keyout", str(certificate.with_suffix(".key")), "-out", str(certificate)]
    names = ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *names], capture_output=True, check=True
    )
    return certificate


def with_certificate(
    server: Server, certificate: Path, settings: dict[str, str | int], names: tuple[str, str]
) -> Server:
    """The server with a copy of the certificate and its key, which it alone may read."""
    for name, source in zip(names, (certificate, certificate.with_suffix(".key")), strict=True):
        copy = server._write(source.name, source.read_text())
        copy.chmod(0o600)
        settings[name] = str(copy)
    server.settings = settings
    return server
