"""XML Signature (W3C, 1.1) in a perform document: what is signed is what runs.

One form counts: an enveloped signature, a child of the root, over the whole document by exclusive canonicalisation, and
over a property with the time, a nonce and where the document is sent. ``_Form`` reads that form and nothing else, the
library verifies it with the key that the configuration has, and what the library has verified takes the place of what
came. So what is outside of the signature, or means one thing to a verifier and another to a reader, never runs.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import re
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
from signxml.verifier import SignatureConfiguration, XMLVerifier

from dai.config import IdentityConfig
from dai.errors import ConfigurationError, UnauthenticatedError
from dai.perform.parser import DocumentLimits, scan
from dai.security.identity import Caller, Head, LookUp
from dai.security.identity.keys import PublicKey, caller_of, key_store, public_key
from dai.security.identity.replay import Seen, Window

DS = "http://www.w3.org/2000/09/xmldsig#"
PROPERTIES = "http://www.w3.org/2009/xmldsig-properties"
"""XML Signature Properties: ``ReplayProtect`` has ``timestamp`` and ``nonce``."""
TARGET = "urn:dai:signature"
EXCLUSIVE = "http://www.w3.org/2001/10/xml-exc-c14n#"
ENVELOPED = f"{DS}enveloped-signature"
_PERFORM = re.compile(rb"/resources/[^/?]+/perform(\?.*)?")
_BOUNDS = DocumentLimits(depth=200, elements=100_000)
"""Those of the document itself are checked when it is read to be run."""
_RSA = frozenset(
    getattr(SignatureMethod, name.format(bits)) for name in ("RSA_SHA{}", "SHA{}_RSA_MGF1") for bits in (256, 384, 512)
)
_ECDSA = frozenset(getattr(SignatureMethod, f"ECDSA_SHA{bits}") for bits in (256, 384, 512))
_DIGESTS = frozenset({DigestAlgorithm.SHA256, DigestAlgorithm.SHA384, DigestAlgorithm.SHA512})
_UNREADABLE = (
    SignXMLException, InvalidSignature, etree.LxmlError, ValueError, TypeError, KeyError, AttributeError,
    NotImplementedError, RecursionError, OverflowError, UnsupportedAlgorithm,
)  # fmt: skip
"""What libraries of XML, base64 and keys raise for what others wrote."""


@dataclass(frozen=True, slots=True)
class _Key:
    id: str
    caller: Caller
    certificate: x509.Certificate
    """The key as the library takes it."""
    methods: frozenset[SignatureMethod]


class XmlSignatures:
    hint: ClassVar[str] = (
        "Sign the document and send it to /resources/NAME/perform; a query is one, too: sqlQueryStatement. "
        'In Python: dai.connect(…, signing_key=…, key_id=…, signs="documents").perform(…).'
    )

    def __init__(self, config: IdentityConfig, look_up: LookUp, seen: Seen | None = None) -> None:
        """ConfigurationError without keys that can sign documents."""
        signatures = key_store(config, "xml-signature")
        self._by_id: dict[str, _Key] = {}
        self._by_public: dict[bytes, _Key] = {}
        for id, each in signatures.keys.items():
            public = public_key(id, each)
            if isinstance(public, ed25519.Ed25519PublicKey):
                continue
            methods = _RSA if isinstance(public, rsa.RSAPublicKey) else _ECDSA
            key = _Key(id, caller_of(each, "xml-signature"), _wrapped(public), methods)
            self._by_id[id] = self._by_public[_encoded(public)] = key
        if not self._by_id:
            raise ConfigurationError(
                'identity.methods has "xml-signature", but no key of identity.signatures.keys can sign documents.',
                hint="Keys of P-256, P-384 and RSA can, Ed25519 cannot.",
            )
        self._takes_without_nonce = signatures.documents_without_nonce
        self._window = Window(signatures.seconds, seen)
        XMLVerifier.schemas()  # type: ignore[no-untyped-call] # what the first request would wait for

    async def caller(self, head: Head) -> Caller | None:
        if head.method != "POST" or head.read is None or not _PERFORM.fullmatch(head.target):
            return None
        document = await head.read()
        if DS.encode() not in document:
            return None
        verified = await asyncio.to_thread(self._verified, document)
        if verified is None:
            return None
        key, signed, proof = verified
        if proof is not None:
            if proof.target != _target(head):
                raise UnauthenticatedError(
                    "This document was signed for another address.",
                    hint=f"It was sent to {_target(head)}. A proxy must leave host, path and query as they are.",
                )
            head.forget = self._window.take(f"xml\n{key.id}", proof.created, proof.nonce)
        head.document = signed
        return key.caller

    def _verified(self, document: bytes) -> tuple[_Key, bytes, _Proof | None] | None:
        """Whose it is, what is signed of it, and that it counts now; None for a document without a signature."""
        scan(document, _BOUNDS)
        try:
            root = etree.fromstring(document, etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True))
            found = list(root.iter(f"{{{DS}}}*"))
            if not found:
                return None
            form = _Form(root, found)
            key = self._by_id.get(form.key_name) if form.key_name else self._by_public.get(form.public_key)
            if key is None:
                raise UnauthenticatedError("This service does not know the key of this XML Signature.")
            if form.property_id is None and not self._takes_without_nonce:
                raise UnauthenticatedError(
                    "This XML Signature has no time and no nonce: whoever reads the document could send it again.",
                    hint="Sign a property with ReplayProtect and target, as docs/identity.md shows; or who runs the "
                    "service allows it: identity.signatures.documents_without_nonce.",
                )
            results = XMLVerifier().verify(
                document,
                x509_cert=key.certificate,
                expect_config=SignatureConfiguration(
                    location="./",
                    expect_references=1 if form.property_id is None else 2,
                    signature_methods=key.methods,
                    digest_algorithms=_DIGESTS,
                ),
            )
            first, *further = results if isinstance(results, list) else [results]
            proof = None
            for each in further:
                if each.signed_xml is None:
                    raise ValueError("the property is no element")
                proof = _proof(each.signed_xml)
            return key, first.signed_data, proof
        except _UNREADABLE as error:
            raise UnauthenticatedError(
                "This XML Signature does not hold.",
                hint="It is one enveloped signature in the root, over the whole document by exclusive "
                "canonicalisation, with a key that this service knows; docs/identity.md shows it.",
            ) from error


@dataclass(frozen=True, slots=True)
class _Proof:
    """That a document was signed just now, for here."""

    created: float
    nonce: str
    target: str


class _Form:
    """The one form of a signature that counts: ValueError for any other, whatever it signs.

    ``found``: all elements of DS in the document."""

    def __init__(self, root: etree._Element, found: list[etree._Element]) -> None:
        signature = found[0]
        _check(signature.tag == f"{{{DS}}}Signature" and signature.getparent() is root)
        _check(all(isinstance(each.tag, str) for each in signature.iter()))  # no comments and no instructions
        within = set(signature.iter())
        _check(all(each in within for each in found))
        info, value, key_info, *objects = _children(signature, ("SignedInfo", "SignatureValue", "KeyInfo"), "Object")
        _check(len(value) == 0)
        method, algorithm, *references = _children(info, ("CanonicalizationMethod", "SignatureMethod"), "Reference")
        _check(len(algorithm) == 0 and len(references) in (1, 2) and len(objects) == len(references) - 1)
        _exclusive(method)
        _reference(references[0], "", (ENVELOPED,))
        self.property_id: str | None = None
        if objects:
            (properties,) = _children(objects[0], ("SignatureProperties",))
            self.property_id = properties.get("Id", "")
            _check(bool(self.property_id))
            _reference(references[1], f"#{self.property_id}", ())
        self.key_name, self.public_key = "", b""
        (shown,) = key_info
        if shown.tag == f"{{{DS}}}KeyName":
            _check(len(shown) == 0)
            self.key_name = shown.text or ""
        else:
            _check(shown.tag == f"{{{DS}}}X509Data")
            (certificate,) = _children(shown, ("X509Certificate",))
            der = base64.b64decode(certificate.text or "")
            self.public_key = _encoded(x509.load_der_x509_certificate(der).public_key())


def _check(holds: bool) -> None:
    if not holds:
        raise ValueError("it has another form")


def _children(element: etree._Element, names: tuple[str, ...], more: str = "") -> list[etree._Element]:
    """The children, which have these names in this order; and behind them some of the name ``more``."""
    children = list(element)
    wanted = [f"{{{DS}}}{name}" for name in names]
    _check([each.tag for each in children[: len(wanted)]] == wanted)
    _check(all(more and each.tag == f"{{{DS}}}{more}" for each in children[len(wanted) :]))
    return children


def _reference(reference: etree._Element, uri: str, before: tuple[str, ...]) -> None:
    transforms, digest, value = _children(reference, ("Transforms", "DigestMethod", "DigestValue"))
    _check(reference.get("URI") == uri and len(digest) == 0 and len(value) == 0)
    *others, last = _children(transforms, (), "Transform")
    _check(tuple(each.get("Algorithm") for each in others) == before and not any(map(len, others)))
    _exclusive(last)


def _exclusive(method: etree._Element) -> None:
    """Exclusive canonicalisation without comments; it may list prefixes, which values use."""
    _check(method.get("Algorithm") == EXCLUSIVE and len(method) < 2)
    _check(all(each.tag == f"{{{EXCLUSIVE}}}InclusiveNamespaces" and len(each) == 0 for each in method))


def _proof(properties: etree._Element) -> _Proof:
    """ValueError where something lacks, or is there twice."""
    created, nonce, target = (
        _text(properties, name)
        for name in (f"{{{PROPERTIES}}}timestamp", f"{{{PROPERTIES}}}nonce", f"{{{TARGET}}}target")
    )
    when = datetime.datetime.fromisoformat(created)
    _check(when.tzinfo is not None)
    return _Proof(when.timestamp(), nonce, target)


def _text(within: etree._Element, name: str) -> str:
    (element,) = within.iter(name)
    _check(len(element) == 0)
    return (element.text or "").strip()


def _target(head: Head) -> str:
    """Where a request goes: host, path and query, without the scheme, which a proxy changes."""
    port = ":443" if head.scheme == "https" else ":80"
    return head.get(b"host", b"").decode("latin-1").lower().removesuffix(port) + head.target.decode("latin-1")


def _encoded(key: object) -> bytes:
    _check(isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey))
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined,no-any-return]


def _wrapped(key: PublicKey) -> x509.Certificate:
    """A certificate of the key, which the library asks for; nobody trusts it, nor who signs it."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a key of the configuration")])
    builder = x509.CertificateBuilder(name, name, key, 1)
    began, ends = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2000, 9999))
    builder = builder.not_valid_before(began).not_valid_after(ends)
    return builder.sign(ec.generate_private_key(ec.SECP256R1()), SHA256())
