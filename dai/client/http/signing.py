"""Signs requests (RFC 9421) with a private key: method, host, path, query, If-Match, and type and digest of a body."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, urlsplit

from dai.errors import MissingDependencyError, RequestError
from dai.plugins import extra_hint

try:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from http_message_signatures import HTTPSignatureAlgorithm, algorithms
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        f"Signed requests need the Python package {error.name!r}.", hint=extra_hint("identity")
    ) from error

_PORTS = {"http": 80, "https": 443}
_ID = re.compile(r"[A-Za-z0-9_.-]{1,200}")


PrivateKey = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def private_key(file: str | Path) -> PrivateKey:
    """RequestError for a file that holds none that services take."""
    try:
        key = load_pem_private_key(Path(file).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise RequestError(f"{str(file)!r} is not a file with a private key (PEM, without a passphrase).") from error
    if isinstance(key, ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey) or (
        isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.key_size in (256, 384)
    ):
        return key
    raise RequestError(f"The key in {str(file)!r} is not of a supported kind: Ed25519, P-256, P-384, RSA.")


def checked_id(id: str) -> str:
    if not _ID.fullmatch(id):
        raise RequestError(f"{id!r} is not a key id.", hint="A key id consists of letters, digits, '-', '_' and '.'.")
    return id


def address_of(parts: SplitResult) -> str:
    """Host and port of a URL as a request names them: without the port that its scheme has anyway."""
    return parts.netloc.lower().removesuffix(f":{_PORTS[parts.scheme]}")


class Signer:
    """With the private key in a file (PEM, without a passphrase), which the service knows by ``id``."""

    def __init__(self, file: str | Path, id: str) -> None:
        self._id = checked_id(id)
        key = private_key(file)
        algorithm: type[HTTPSignatureAlgorithm]
        if isinstance(key, ed25519.Ed25519PrivateKey):
            algorithm = algorithms.ED25519
        elif isinstance(key, rsa.RSAPrivateKey):
            algorithm = algorithms.RSA_PSS_SHA512
        else:
            algorithm = algorithms.ECDSA_P256_SHA256 if key.curve.key_size == 256 else algorithms.ECDSA_P384_SHA384
        self._algorithm: HTTPSignatureAlgorithm = algorithm(private_key=key)

    @classmethod
    def with_secret(cls, secret: str, id: str) -> Self:
        """With what the receiver knows as well (hmac-sha256)."""
        signer = cls.__new__(cls)
        signer._id = checked_id(id)
        signer._algorithm = algorithms.HMAC_SHA256(private_key=secret.encode())  # type: ignore[no-untyped-call]
        return signer

    def headers(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | memoryview | None
    ) -> dict[str, str]:
        """What a request has besides ``headers``, once: another one needs another signature."""
        parts = urlsplit(url)
        covered = {
            '"@method"': method,
            '"@authority"': address_of(parts),
            '"@path"': parts.path or "/",
            '"@query"': f"?{parts.query}",
        }
        for name, value in headers.items():
            if name.lower() in ("content-type", "if-match"):
                covered[f'"{name.lower()}"'] = value.strip()
        signed = {}
        if body:
            digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
            signed["Content-Digest"] = covered['"content-digest"'] = f"sha-256=:{digest}:"
        nonce = secrets.token_urlsafe(16)
        parameters = f'({" ".join(covered)});created={int(time.time())};keyid="{self._id}";nonce="{nonce}"'
        lines = [f"{name}: {value}" for name, value in covered.items()] + [f'"@signature-params": {parameters}']
        signature = base64.b64encode(self._algorithm.sign("\n".join(lines).encode())).decode()
        return {**signed, "Signature-Input": f"dai={parameters}", "Signature": f"dai=:{signature}:"}
