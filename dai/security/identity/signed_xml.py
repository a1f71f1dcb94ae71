"""Common to the methods that verify XML Signature: the keys that may sign documents, and the parts of a signature, each
in the only accepted form. ``check`` and its users raise ValueError for any other form."""

from __future__ import annotations

import datetime
import io
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from lxml import etree
from signxml.algorithms import DigestAlgorithm, SignatureMethod
from signxml.exceptions import SignXMLException
from signxml.verifier import SignatureConfiguration, VerifyResult, XMLVerifier

from dai.config.identity import IdentityConfig, SignaturesConfig
from dai.errors import ConfigurationError
from dai.security.identity import Caller, LookUp
from dai.security.identity.keys import PublicKey, caller_of, key_store, public_key
from dai.security.identity.replay import Seen, Window

DS = "http://www.w3.org/2000/09/xmldsig#"
EXCLUSIVE = "http://www.w3.org/2001/10/xml-exc-c14n#"
_RSA = frozenset(
    getattr(SignatureMethod, name.format(bits)) for name in ("RSA_SHA{}", "SHA{}_RSA_MGF1") for bits in (256, 384, 512)
)
_ECDSA = frozenset(getattr(SignatureMethod, f"ECDSA_SHA{bits}") for bits in (256, 384, 512))
DIGESTS = frozenset({DigestAlgorithm.SHA256, DigestAlgorithm.SHA384, DigestAlgorithm.SHA512})
MOST_PREFIXES, MOST_COMPARISONS = 32, 10**8
"""Limit of lists of prefixes: each is looked up among all declarations, at each element."""
UNREADABLE = (
    SignXMLException, InvalidSignature, etree.LxmlError, ValueError, TypeError, KeyError, AttributeError,
    NotImplementedError, RecursionError, OverflowError, UnsupportedAlgorithm, x509.InvalidVersion,
)  # fmt: skip
"""Exceptions that libraries of XML, base64 and keys raise for bad input."""


@dataclass(frozen=True, slots=True)
class Key:
    id: str
    caller: Caller
    certificate: x509.Certificate
    """The key as the library takes it."""
    methods: frozenset[SignatureMethod]


class Keys:
    """Those of the store that can sign documents, by their ids and by the public keys (DER)."""

    def __init__(self, signatures: SignaturesConfig, method: str) -> None:
        """ConfigurationError without any."""
        self.by_id: dict[str, Key] = {}
        self.by_public: dict[bytes, Key] = {}
        for id, each in signatures.keys.items():
            public = public_key(id, each)
            if isinstance(public, ed25519.Ed25519PublicKey):
                continue
            methods = _RSA if isinstance(public, rsa.RSAPublicKey) else _ECDSA
            key = Key(id, caller_of(each, method), _wrapped(public), methods)
            self.by_id[id] = self.by_public[encoded(public)] = key
        if not self.by_id:
            raise ConfigurationError(
                f'identity.methods has "{method}", but no key of identity.signatures.keys can sign documents.',
                hint="Keys of P-256, P-384 and RSA can, Ed25519 cannot.",
            )


class SignedMessages:
    """The common state of the methods for signed messages: the keys, and the time in which a signature counts."""

    name: ClassVar[str]
    """In ``identity.methods``."""

    def __init__(self, config: IdentityConfig, look_up: LookUp, seen: Seen | None = None) -> None:
        """ConfigurationError without keys that can sign documents."""
        signatures = key_store(config, self.name)
        self._keys = Keys(signatures, self.name)
        self._takes_without_time = signatures.documents_without_nonce
        self._window = Window(signatures.seconds, seen)
        XMLVerifier.schemas()  # type: ignore[no-untyped-call] # what the first request would wait for


def parsed(message: bytes) -> tuple[etree._Element, list[etree._Element]]:
    """The root, and all elements of XML Signature in it."""
    root = etree.fromstring(message, etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True))
    return root, list(root.iter(f"{{{DS}}}*"))


def verified(message: bytes, key: Key, location: str, references: int) -> list[VerifyResult]:
    """The content that the library has verified with the key: one result for each reference, in order."""
    expected = SignatureConfiguration(
        location=location, expect_references=references, signature_methods=key.methods, digest_algorithms=DIGESTS
    )
    results = XMLVerifier().verify(message, x509_cert=key.certificate, expect_config=expected)
    return results if isinstance(results, list) else [results]


def check(holds: bool) -> None:
    if not holds:
        raise ValueError("it has another form")


def children_of(element: etree._Element, names: tuple[str, ...], more: str = "") -> list[etree._Element]:
    """The children, which have these names in this order; and behind them some of the name ``more``."""
    children = list(element)
    wanted = [f"{{{DS}}}{name}" for name in names]
    check([each.tag for each in children[: len(wanted)]] == wanted)
    check(all(more and each.tag == f"{{{DS}}}{more}" for each in children[len(wanted) :]))
    return children


def reference(element: etree._Element, uri: str, before: tuple[str, ...]) -> None:
    transforms, digest, value = children_of(element, ("Transforms", "DigestMethod", "DigestValue"))
    check(element.get("URI") == uri and len(digest) == 0 and len(value) == 0)
    *others, last = children_of(transforms, (), "Transform")
    check(tuple(each.get("Algorithm") for each in others) == before and not any(map(len, others)))
    exclusive(last)


def exclusive(method: etree._Element) -> None:
    """Exclusive canonicalisation without comments; it may list prefixes, which values use."""
    check(method.get("Algorithm") == EXCLUSIVE and len(method) < 2)
    check(all(each.tag == f"{{{EXCLUSIVE}}}InclusiveNamespaces" and len(each) == 0 for each in method))
    prefixes = sum(len(each.get("PrefixList", "").split(" ")) for each in method)
    if prefixes:
        check(prefixes <= MOST_PREFIXES)
        events = etree.iterparse(io.BytesIO(etree.tostring(method.getroottree())), ("start", "start-ns"))
        kinds = Counter(kind for kind, _ in events)
        check(prefixes * kinds["start"] * kinds["start-ns"] <= MOST_COMPARISONS)


def encoded(key: object) -> bytes:
    check(isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey))
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined,no-any-return]


def _wrapped(key: PublicKey) -> x509.Certificate:
    """A certificate of the key, which the library asks for; nobody trusts it, nor who signs it."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a key of the configuration")])
    builder = x509.CertificateBuilder(name, name, key, 1)
    began, ends = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2000, 9999))
    builder = builder.not_valid_before(began).not_valid_after(ends)
    return builder.sign(ec.generate_private_key(ec.SECP256R1()), SHA256())
