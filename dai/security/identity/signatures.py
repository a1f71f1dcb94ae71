"""HTTP Message Signatures (RFC 9421): each request is signed with a key that the configuration knows.

A signature covers what the request does: method, host, path, query, and of a body its type and its digest (RFC 9530),
which is compared while the body is read. It holds for ``seconds``, and once: its nonce is remembered for so long.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import re
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import http_sf
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from http_message_signatures import (
    HTTPMessageSignaturesException,
    HTTPMessageVerifier,
    HTTPSignatureAlgorithm,
    MappingKeyResolver,
    algorithms,
)

from dai.config import IdentityConfig
from dai.config.identity import KeyConfig
from dai.errors import ConfigurationError, UnauthenticatedError
from dai.security.identity import Caller, Head, LookUp
from dai.security.identity.replay import Seen

COVERED = ("@method", "@authority", "@path", "@query")
OF_A_BODY = ("content-type", "content-digest")
HASHES = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}
_LEAST_RSA_BITS = 2048
_MOST_NONCE = 200
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
        if config.signatures is None or not config.signatures.keys:
            raise ConfigurationError(
                'identity.methods has "signature", but there are no keys.',
                hint='It looks like [identity.signatures.keys.ID] with name = "alice", key = "alice.pem".',
            )
        self._seconds = config.signatures.seconds
        self._keys = {id: (_verifier(id, key), _caller(key)) for id, key in config.signatures.keys.items()}
        self._seen = Seen() if seen is None else seen
        self._began = math.floor(time.time())

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
        required = (*COVERED, *(each for each in OF_A_BODY if each.encode() in head))
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
                "This signature does not hold.",
                hint=f"It must cover {covered}, and be at most {self._seconds:g} seconds old by this service's clock.",
            ) from error
        created, nonce = int(result.parameters["created"]), result.nonce
        if not nonce or len(nonce) > _MOST_NONCE:
            raise UnauthenticatedError(
                "This signature has no nonce.", hint="Sign each request with a nonce of its own."
            )
        if created < self._began:
            # what was seen before is not known any more
            raise UnauthenticatedError("This signature is older than the service.", hint="Sign the request anew.")
        digest = hashlib.sha256(f"{id}\n{nonce}".encode()).digest()
        if not self._seen.first(digest, created + self._seconds + 2 * verifier.max_clock_skew.total_seconds()):
            raise UnauthenticatedError("This signature was used before.", hint="Sign each request with its own nonce.")
        head.forget = partial(self._seen.forget, digest)
        return caller


def _caller(key: KeyConfig) -> Caller:
    return Caller(key.name, "signature", frozenset(key.resources), key.administrator, frozenset(key.groups))


def _digests(value: bytes | None) -> dict[str, bytes]:
    """What the hashes of the body must be; none: there is no body."""
    if value is None:
        return {}
    parsed: Any = http_sf.parse(value, tltype="dictionary")
    digests = {name: bytes(digest) for name, (digest, _) in parsed.items()}
    if not digests or not digests.keys() <= HASHES.keys():
        raise ValueError("Content-Digest has sha-256 or sha-512")
    return digests


def _verifier(id: str, config: KeyConfig) -> HTTPMessageVerifier:
    where = f"identity.signatures.keys.{id}.key"
    algorithm: type[HTTPSignatureAlgorithm]
    try:
        key = load_pem_public_key(config.key.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"{where} is no file of a public key (PEM).") from error
    if isinstance(key, ed25519.Ed25519PublicKey):
        algorithm = algorithms.ED25519
    elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        algorithm = algorithms.ECDSA_P256_SHA256
    elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1):
        algorithm = algorithms.ECDSA_P384_SHA384
    elif isinstance(key, rsa.RSAPublicKey) and key.key_size >= _LEAST_RSA_BITS:
        algorithm = algorithms.RSA_PSS_SHA512
    else:
        raise ConfigurationError(f"{where} is none of Ed25519, P-256, P-384 and RSA with 2048 bits or more.")
    resolver = MappingKeyResolver(public_keys={id: key}, private_keys={})
    return HTTPMessageVerifier(signature_algorithm=algorithm, key_resolver=resolver)
