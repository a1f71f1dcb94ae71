"""The key store ``[identity.signatures.keys]``: public keys by the ids that signatures name, and whose they are."""

from __future__ import annotations

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from dai.config import IdentityConfig
from dai.config.identity import KeyConfig, SignaturesConfig
from dai.errors import ConfigurationError
from dai.security.identity import Caller

PublicKey = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey | rsa.RSAPublicKey
_LEAST_RSA_BITS = 2048


def key_store(config: IdentityConfig, method: str) -> SignaturesConfig:
    """ConfigurationError where the ``method`` has no keys."""
    if config.signatures is None or not config.signatures.keys:
        raise ConfigurationError(
            f'identity.methods has "{method}", but there are no keys.',
            hint='It looks like [identity.signatures.keys.ID] with name = "alice", key = "alice.pem".',
        )
    return config.signatures


def public_key(id: str, config: KeyConfig) -> PublicKey:
    """ConfigurationError for a file that holds none, or one that is too weak."""
    where = f"identity.signatures.keys.{id}.key"
    try:
        key = load_pem_public_key(config.key.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"{where} is not a file with a public key (PEM).") from error
    if (
        isinstance(key, ed25519.Ed25519PublicKey)
        or (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1))
        or (isinstance(key, rsa.RSAPublicKey) and key.key_size >= _LEAST_RSA_BITS)
    ):
        return key
    raise ConfigurationError(
        f"{where} is not of a supported kind: Ed25519, P-256, P-384, or RSA with 2048 bits or more."
    )


def caller_of(key: KeyConfig, method: str) -> Caller:
    return Caller(key.name, method, frozenset(key.resources), key.administrator, frozenset(key.groups))
