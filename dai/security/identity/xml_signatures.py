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
from lxml import etree

from dai.errors import UnauthenticatedError
from dai.perform.parser import DocumentLimits, scan
from dai.security.identity import Caller, Head
from dai.security.identity.signed_xml import (
    DS,
    UNREADABLE,
    Key,
    SignedMessages,
    check,
    children_of,
    encoded,
    exclusive,
    parsed,
    reference,
    verified,
)  # fmt: skip

PROPERTIES = "http://www.w3.org/2009/xmldsig-properties"
"""XML Signature Properties: ``ReplayProtect`` has ``timestamp`` and ``nonce``."""
TARGET = "urn:dai:signature"
ENVELOPED = f"{DS}enveloped-signature"
_PERFORM = re.compile(rb"/resources/[^/?]+/perform(\?.*)?")
_BOUNDS = DocumentLimits(depth=200, elements=100_000)
"""Those of the document itself are checked when it is read to be run."""


class XmlSignatures(SignedMessages):
    name: ClassVar[str] = "xml-signature"
    hint: ClassVar[str] = (
        "Sign the document and send it to /resources/NAME/perform; for a query use sqlQueryStatement. "
        'In Python: dai.connect(…, signing_key=…, key_id=…, signs="documents").perform(…).'
    )

    async def caller(self, head: Head) -> Caller | None:
        if head.method != "POST" or head.read is None or not _PERFORM.fullmatch(head.target):
            return None
        document = await head.read()
        if DS.encode() not in document:
            return None
        trusted = await asyncio.to_thread(self._verified, document)
        if trusted is None:
            return None
        key, signed, proof = trusted
        if proof is not None:
            if proof.target != _target(head):
                raise UnauthenticatedError(
                    "This document was signed for another address.",
                    hint=f"It was sent to {_target(head)}. A proxy must leave host, path and query as they are.",
                )
            head.forget = self._window.take(f"xml\n{key.id}", proof.created, proof.nonce)
        head.document = signed
        return key.caller

    def _verified(self, document: bytes) -> tuple[Key, bytes, _Proof | None] | None:
        """Whose it is, what is signed of it, and that it counts now; None for a document without a signature."""
        scan(document, _BOUNDS)
        try:
            root, elements = parsed(document)
            if not elements:
                return None
            form = _Form(root, elements)
            key = self._keys.by_id.get(form.key_name) if form.key_name else self._keys.by_public.get(form.public_key)
            if key is None:
                raise UnauthenticatedError("This service does not know the key of this XML Signature.")
            if form.property_id is None and not self._takes_without_time:
                raise UnauthenticatedError(
                    "This XML Signature has no time and no nonce: whoever reads the document could send it again.",
                    hint="Sign a property with ReplayProtect and target, as docs/identity.md shows; or ask the "
                    "operator of the service to set identity.signatures.documents_without_nonce.",
                )
            first, *further = verified(document, key, "./", 1 if form.property_id is None else 2)
            proof = None
            for each in further:
                if each.signed_xml is None:
                    raise ValueError("the property is no element")
                proof = _proof(each.signed_xml)
            return key, first.signed_data, proof
        except UNREADABLE as error:
            raise UnauthenticatedError(
                "This XML Signature is not valid.",
                hint="It must be one enveloped signature in the root, over the whole document by exclusive "
                "canonicalisation, with a key that this service knows; docs/identity.md shows one.",
            ) from error


@dataclass(frozen=True, slots=True)
class _Proof:
    """That a document was signed just now, for here."""

    created: float
    nonce: str
    target: str


class _Form:
    """The one form of a signature that counts: ValueError for any other, whatever it signs.

    ``elements``: all elements of DS in the document."""

    def __init__(self, root: etree._Element, elements: list[etree._Element]) -> None:
        signature = elements[0]
        check(signature.tag == f"{{{DS}}}Signature" and signature.getparent() is root)
        check(all(isinstance(each.tag, str) for each in signature.iter()))  # no comments and no instructions
        within = set(signature.iter())
        check(all(each in within for each in elements))
        info, value, key_info, *objects = children_of(signature, ("SignedInfo", "SignatureValue", "KeyInfo"), "Object")
        check(len(value) == 0)
        method, algorithm, *references = children_of(info, ("CanonicalizationMethod", "SignatureMethod"), "Reference")
        check(len(algorithm) == 0 and len(references) in (1, 2) and len(objects) == len(references) - 1)
        exclusive(method)
        reference(references[0], "", (ENVELOPED,))
        self.property_id: str | None = None
        if objects:
            (properties,) = children_of(objects[0], ("SignatureProperties",))
            self.property_id = properties.get("Id", "")
            check(bool(self.property_id))
            reference(references[1], f"#{self.property_id}", ())
        self.key_name, self.public_key = "", b""
        (shown,) = key_info
        if shown.tag == f"{{{DS}}}KeyName":
            check(len(shown) == 0)
            self.key_name = shown.text or ""
        else:
            check(shown.tag == f"{{{DS}}}X509Data")
            (certificate,) = children_of(shown, ("X509Certificate",))
            der = base64.b64decode(certificate.text or "")
            self.public_key = encoded(x509.load_der_x509_certificate(der).public_key())


def _proof(properties: etree._Element) -> _Proof:
    """ValueError where something lacks, or is there twice."""
    created, nonce, target = (
        _text(properties, name)
        for name in (f"{{{PROPERTIES}}}timestamp", f"{{{PROPERTIES}}}nonce", f"{{{TARGET}}}target")
    )
    when = datetime.datetime.fromisoformat(created)
    check(when.tzinfo is not None)
    return _Proof(when.timestamp(), nonce, target)


def _text(within: etree._Element, name: str) -> str:
    (element,) = within.iter(name)
    check(len(element) == 0)
    return (element.text or "").strip()


def _target(head: Head) -> str:
    """Where a request goes: host, path and query, without the scheme, which a proxy changes."""
    port = ":443" if head.scheme == "https" else ":80"
    return head.get(b"host", b"").decode("latin-1").lower().removesuffix(port) + head.target.decode("latin-1")
