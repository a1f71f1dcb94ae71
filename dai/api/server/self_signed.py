"""A certificate for trying TLS, for ``dai serve --self-signed``: no authority has signed it."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dai.config import ServiceConfig, TlsConfig
from dai.errors import ConfigurationError

DAYS = 30
NAME = "dai-self-signed"


@dataclass(frozen=True, slots=True)
class SelfSigned:
    """A certificate that no authority has signed."""

    tls: TlsConfig
    fingerprint: str


def self_signed(service: ServiceConfig, directory: Path) -> SelfSigned:
    """Of this machine's name, ``hosts`` and loopback, in files of the directory. The one that is there is taken while
    it is good for another day and has the same names."""
    certificate_file, key_file = directory / f"{NAME}.pem", directory / f"{NAME}.key"
    host = socket.gethostname()
    hosts = (each.partition(":")[0] if each.count(":") == 1 else each for each in service.hosts)
    every = dict.fromkeys(["localhost", host, "127.0.0.1", "::1", service.host, *hosts])
    names = [_name(each) for each in every if each != "*"]
    now = datetime.datetime.now(datetime.UTC)

    def result(certificate: x509.Certificate) -> SelfSigned:
        fingerprint = certificate.fingerprint(hashes.SHA256()).hex(":").upper()
        return SelfSigned(TlsConfig(certificate=certificate_file, key=key_file), fingerprint)

    with suppress(OSError, ValueError, x509.ExtensionNotFound):
        known = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        known_names = known.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        fits = set(known_names) == set(names) and known.not_valid_after_utc > now + datetime.timedelta(days=1)
        if fits and key_file.exists():
            return result(known)

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    public = key.public_key()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        _write(key_file, private, 0o600)
        _write(certificate_file, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"The self-signed certificate cannot be written here: {error.strerror}.",
            hint="Start the service in a directory that it may write to.",
        ) from error
    return result(certificate)


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write(path: Path, content: bytes, mode: int) -> None:
    """In one step, never with more rights than ``mode``."""
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    os.replace(part, path)
