"""WS-Security 1.0 (OASIS, X.509 token profile): SOAP messages to the registry that are signed with an X.509 key.

One form counts: one ``Security`` header with one signature over the body and over a ``Timestamp``, each by exclusive
canonicalisation, whose certificate has a key that the configuration knows; the certificate proves nothing itself. The
body that the library has verified takes the place of the message that came, so whatever was wrapped around it, or put
beside it, is gone. The same signature counts once.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import re
import time
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
    verified,
)
from dai.security.identity.signed_xml import reference as checked_reference

SOAP = "http://schemas.xmlsoap.org/soap/envelope/"
_OASIS = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss"
WSSE, WSU = f"{_OASIS}-wssecurity-secext-1.0.xsd", f"{_OASIS}-wssecurity-utility-1.0.xsd"
X509 = f"{_OASIS}-x509-token-profile-1.0#X509v3"
_PATH = re.compile(rb"/registry/uddi/[a-z]+(\?.*)?")
_BOUNDS = DocumentLimits(bytes=4 << 20, depth=200, elements=100_000)
_ID = f"{{{WSU}}}Id"


class WsSecurity(SignedMessages):
    name: ClassVar[str] = "ws-security"
    hint: ClassVar[str] = (
        "Sign the SOAP body and a Timestamp with an X.509 key that this service knows (WS-Security), and send it to "
        "/registry/uddi/…."
    )

    async def caller(self, head: Head) -> Caller | None:
        if head.method != "POST" or head.read is None or not _PATH.fullmatch(head.target):
            return None
        message = await head.read()
        if WSSE.encode() not in message:
            return None
        signed = await asyncio.to_thread(self._verified, message)
        if signed is None:
            return None
        key, body, created, nonce = signed
        if created is not None:
            head.forget = self._window.take(f"wss\n{key.id}", created, nonce)
        head.document = b'<s:Envelope xmlns:s="%s">%s</s:Envelope>' % (SOAP.encode(), body)
        return key.caller

    def _verified(self, message: bytes) -> tuple[Key, bytes, float | None, str] | None:
        """Whose it is, the body, when it was signed, and what counts once; None without a signature."""
        scan(message, _BOUNDS)
        try:
            root, elements = parsed(message)
            if not elements:
                return None
            form = _Form(root, elements)
            key = self._keys.by_public.get(form.public_key)
            if key is None:
                raise UnauthenticatedError("This service does not know the key of this WS-Security signature.")
            if form.created is None and not self._takes_without_time:
                raise UnauthenticatedError(
                    "This WS-Security signature covers no Timestamp: whoever reads the message could send it again.",
                    hint="Sign a Timestamp with the body; or ask the operator of the service to set "
                    "identity.signatures.documents_without_nonce.",
                )
            if form.expires is not None and form.expires < time.time():
                raise UnauthenticatedError("The Timestamp of this WS-Security signature has expired.")
            location = f"./{{{SOAP}}}Header/{{{WSSE}}}Security/"
            body = verified(message, key, location, len(form.references))[form.references.index(form.body_id)]
            check(body.signed_xml is not None and body.signed_xml.tag == f"{{{SOAP}}}Body")
            return key, body.signed_data, form.created, form.nonce
        except UNREADABLE as error:
            raise UnauthenticatedError(
                "This WS-Security signature is not valid.",
                hint="It must be one signature by RSA or ECDSA with SHA-256 or more over the Body and a Timestamp, by "
                "exclusive canonicalisation; docs/identity.md shows one.",
            ) from error


class _Form:
    """The one form of a signed message that counts: ValueError for any other, whatever it signs.

    ``elements``: all elements of DS in the message."""

    def __init__(self, root: etree._Element, elements: list[etree._Element]) -> None:
        check([each.tag for each in root] == [f"{{{SOAP}}}Header", f"{{{SOAP}}}Body"])
        header, body = root
        (security,) = root.iter(f"{{{WSSE}}}Security")
        check(root.tag == f"{{{SOAP}}}Envelope" and security.getparent() is header)
        signature = elements[0]
        check(signature.tag == f"{{{DS}}}Signature" and signature.getparent() is security)
        check(all(isinstance(each.tag, str) for each in security.iter()))  # no comments and no instructions
        within = set(signature.iter())
        check(all(each in within for each in elements))
        info, value, key_info = children_of(signature, ("SignedInfo", "SignatureValue", "KeyInfo"))
        check(len(value) == 0)
        method, algorithm, *references = children_of(info, ("CanonicalizationMethod", "SignatureMethod"), "Reference")
        check(len(algorithm) == 0)
        exclusive(method)
        times = [each for each in security if each.tag == f"{{{WSU}}}Timestamp"]
        check(len(times) < 2)
        tokens = [each for each in security if each.tag == f"{{{WSSE}}}BinarySecurityToken"]
        check(len(tokens) < 2 and len(security) == 1 + len(times) + len(tokens))
        self.references = []
        for each in references:
            uri = each.get("URI", "")
            check(uri.startswith("#"))
            checked_reference(each, uri, ())
            self.references.append(uri[1:])
        known = [each.get(_ID, "") for each in (body, *times, *tokens)]
        self.body_id = known[0]
        check(bool(self.body_id) and len(set(self.references)) == len(self.references))
        check(self.body_id in self.references and set(self.references) <= set(known) and len(set(known)) == len(known))
        # what an id leads to is the same by whatever attribute somebody looks for it
        ids = [text for each in root.iter() for name, text in each.attrib.items() if str(name).lower().endswith("id")]
        check(all(ids.count(each) == 1 for each in self.references))
        self.created = self.expires = None
        for each in times:
            if each.get(_ID) in self.references:
                self.created, self.expires = _time(each, "Created"), _time(each, "Expires")
                check(self.created is not None)
        # who changes the value of a signature so that it still holds does not change what it signs
        self.nonce = hashlib.sha256(etree.tostring(info, method="c14n", exclusive=True)).hexdigest()
        self.public_key = encoded(x509.load_der_x509_certificate(_certificate(key_info, tokens)).public_key())


def _certificate(key_info: etree._Element, tokens: list[etree._Element]) -> bytes:
    """The one that is named: a token beside the signature, or in the signature."""
    (reference,) = key_info
    check(reference.tag == f"{{{WSSE}}}SecurityTokenReference")
    (said,) = reference
    if said.tag == f"{{{WSSE}}}Reference":
        (token,) = tokens
        check(said.get("URI") == f"#{token.get(_ID, '')}" and token.get("ValueType") == X509 and len(token) == 0)
        return base64.b64decode(token.text or "")
    check(said.tag == f"{{{DS}}}X509Data")
    (certificate,) = said.findall(f"{{{DS}}}X509Certificate")
    check(len(certificate) == 0)
    return base64.b64decode(certificate.text or "")


def _time(timestamp: etree._Element, name: str) -> float | None:
    moments = timestamp.findall(f"{{{WSU}}}{name}")
    check(len(moments) < 2 and not any(len(each) for each in moments))
    if not moments:
        return None
    when = datetime.datetime.fromisoformat((moments[0].text or "").strip())
    check(when.tzinfo is not None)
    return when.timestamp()
