"""Signs requests (RFC 9421) with a private key: method, host, path, query, and of a body its type and its digest."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dai.errors import MissingDependencyError, RequestError

try:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from http_message_signatures import HTTPMessageSigner, HTTPSignatureAlgorithm, MappingKeyResolver, algorithms
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        f"Signed requests need the Python package {error.name!r}.", hint="pip install 'dai-dqp[identity]'"
    ) from error

_COVERED = ("@method", "@authority", "@path", "@query")


@dataclass(frozen=True, slots=True)
class _Message:
    method: str
    url: str
    headers: dict[str, str]


class Signer:
    """With the private key in a file (PEM, without a passphrase), which the service knows by ``id``."""

    def __init__(self, file: str | Path, id: str) -> None:
        algorithm: type[HTTPSignatureAlgorithm]
        try:
            key = load_pem_private_key(Path(file).read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise RequestError(f"{str(file)!r} is no file of a private key (PEM, without a passphrase).") from error
        if isinstance(key, ed25519.Ed25519PrivateKey):
            algorithm = algorithms.ED25519
        elif isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.key_size in (256, 384):
            algorithm = algorithms.ECDSA_P256_SHA256 if key.curve.key_size == 256 else algorithms.ECDSA_P384_SHA384
        elif isinstance(key, rsa.RSAPrivateKey):
            algorithm = algorithms.RSA_PSS_SHA512
        else:
            raise RequestError(f"The key in {str(file)!r} is none of Ed25519, P-256, P-384 and RSA.")
        self._id = id
        resolver = MappingKeyResolver(public_keys={}, private_keys={id: key})
        self._signer = HTTPMessageSigner(signature_algorithm=algorithm, key_resolver=resolver)

    def headers(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | memoryview | None
    ) -> dict[str, str]:
        """What a request has besides ``headers``, once: another one needs another signature."""
        content_type = {name.lower(): value for name, value in headers.items()}.get("content-type")
        covered = {} if content_type is None else {"content-type": content_type}
        if body:
            digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
            covered["content-digest"] = f"sha-256=:{digest}:"
        message = _Message(method, url, dict(covered))
        self._signer.sign(
            message,
            key_id=self._id,
            nonce=secrets.token_urlsafe(16),
            label="dai",
            covered_component_ids=(*_COVERED, *covered),
            use_existing_digest="content-digest" in covered,
        )
        message.headers.pop("content-type", None)
        return message.headers
