"""HTTP Message Signatures (RFC 9421): each request is signed with a key that the configuration knows.

A signature covers what the request does: method, host, path, query, If-Match, and of a body its type and its digest
(RFC 9530), which is compared while the body is read. It holds for ``seconds``, and once: its nonce is remembered for so
long.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import http_sf
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from http_message_signatures import (
    HTTPMessageSignaturesException,
    HTTPMessageVerifier,
    HTTPSignatureAlgorithm,
    MappingKeyResolver,
    algorithms,
)

from dai.config import IdentityConfig
from dai.config.identity import KeyConfig
from dai.errors import UnauthenticatedError
from dai.security.identity import Caller, Head, LookUp
from dai.security.identity.keys import caller_of, key_store, public_key
from dai.security.identity.replay import Seen, Window

COVERED = ("@method", "@authority", "@path", "@query")
IF_SENT = ("content-type", "content-digest", "if-match")
HASHES = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}
_FIELDS = frozenset({b"signature-input", b"signature"})
_KEY_ID = re.compile(r';keyid="([\w.-]+)"', re.ASCII)
"""Which verifier to ask: it reads the field itself, and knows this one key."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """Of a request, as the library asks for them: names may come several times."""

    lines: list[tuple[str, str]]

    def items(self) -> list[tuple[str, str]]:
        return self.lines


@dataclass(frozen=True, slots=True)
class _Message:
    method: str
    url: str
    headers: _Lines


class Signatures:
    hint: ClassVar[str] = "Sign the request (RFC 9421). In Python: dai.connect(…, signing_key=…, key_id=…)."

    def __init__(self, config: IdentityConfig, look_up: LookUp, seen: Seen | None = None) -> None:
        """ConfigurationError without keys, or for a file that holds none."""
        signatures = key_store(config, "signature")
        self._seconds = signatures.seconds
        self._keys = {id: (_verifier(id, key), caller_of(key, "signature")) for id, key in signatures.keys.items()}
        self._window = Window(signatures.seconds, seen)

    async def caller(self, head: Head) -> Caller | None:
        if b"signature-input" not in head:
            return None
        signed = head[b"signature-input"]
        lines = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in head.lines
            if name in signed or name in _FIELDS
        ]
        authority = head.get(b"host", b"").decode("latin-1")
        message = _Message(head.method, f"{head.scheme}://{authority}{head.target.decode('latin-1')}", _Lines(lines))
        required = (*COVERED, *(each for each in IF_SENT if each.encode() in head))
        try:
            (id,) = _KEY_ID.findall(signed.decode("latin-1"))
            if id not in self._keys:
                raise UnauthenticatedError("This service does not know the key of this signature.")
            verifier, caller = self._keys[id]
            (result,) = verifier.verify(message, max_age=datetime.timedelta(seconds=self._seconds))
            if not {f'"{each}"' for each in required} <= result.covered_components.keys():
                raise ValueError("it covers too little")
            head.digests = _digests(head.get(b"content-digest"))
        except (HTTPMessageSignaturesException, ValueError, TypeError, KeyError, RecursionError) as error:
            covered = ", ".join(required)
            raise UnauthenticatedError(
                "This signature is not valid.",
                hint=f"It must cover {covered}, and be at most {self._seconds:g} seconds old by this service's clock.",
            ) from error
        head.forget = self._window.take(id, int(result.parameters["created"]), result.nonce)
        return caller


def _digests(value: bytes | None) -> dict[str, bytes]:
    """What the hashes of the body must be; none: there is no body."""
    if value is None:
        return {}
    parsed: Any = http_sf.parse(value, tltype="dictionary")
    digests = {name: digest for name, (digest, _) in parsed.items()}
    if not digests or not digests.keys() <= HASHES.keys() or any(type(each) is not bytes for each in digests.values()):
        raise ValueError("Content-Digest has sha-256 or sha-512")
    return digests


def _verifier(id: str, config: KeyConfig) -> HTTPMessageVerifier:
    algorithm: type[HTTPSignatureAlgorithm]
    key = public_key(id, config)
    if isinstance(key, ed25519.Ed25519PublicKey):
        algorithm = algorithms.ED25519
    elif isinstance(key, rsa.RSAPublicKey):
        algorithm = algorithms.RSA_PSS_SHA512
    else:
        algorithm = algorithms.ECDSA_P256_SHA256 if key.key_size == 256 else algorithms.ECDSA_P384_SHA384
    resolver = MappingKeyResolver(public_keys={id: key}, private_keys={})
    return HTTPMessageVerifier(signature_algorithm=algorithm, key_resolver=resolver)
