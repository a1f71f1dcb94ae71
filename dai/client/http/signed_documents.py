"""Signs perform documents by XML Signature: the whole document, and a property with the time, a nonce and where it is
sent.

All that is signed is written as exclusive canonicalisation would write it, so nothing but the document needs a library
for that.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import io
import secrets
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from lxml import etree

from dai.client.http.signing import address_of, checked_id, private_key
from dai.errors import RequestError

DS = "http://www.w3.org/2000/09/xmldsig#"
EXCLUSIVE = "http://www.w3.org/2001/10/xml-exc-c14n#"
DIGEST = "http://www.w3.org/2001/04/xmlenc#sha256"
RSA_PSS = "http://www.w3.org/2007/05/xmldsig-more#sha256-rsa-MGF1"
ECDSA = "http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha256"
_ENVELOPED = f'<ds:Transform Algorithm="{DS}enveloped-signature"></ds:Transform>'


class DocumentSigner:
    """With the private key in a file (PEM, without a passphrase), which the service knows by ``id``."""

    def __init__(self, file: str | Path, id: str) -> None:
        key = private_key(file)
        self._id = checked_id(id)
        self._sign: Callable[[bytes], bytes]
        if isinstance(key, rsa.RSAPrivateKey):
            pss = padding.PSS(padding.MGF1(SHA256()), SHA256.digest_size)
            self._method, self._sign = RSA_PSS, lambda data: key.sign(data, pss, SHA256())
        elif isinstance(key, ec.EllipticCurvePrivateKey):
            size = (key.key_size + 7) // 8

            def sign(data: bytes) -> bytes:
                numbers = decode_dss_signature(key.sign(data, ec.ECDSA(SHA256())))
                return b"".join(each.to_bytes(size) for each in numbers)

            self._method, self._sign = ECDSA, sign
        else:
            raise RequestError(
                f"The key in {str(file)!r} cannot sign documents.", hint="Use a key of P-256, P-384 or RSA."
            )

    def signed(self, document: bytes, url: str) -> bytes:
        """The document with its signature, for one request to that address. RequestError for what is no document."""
        canonical, prefixes = _canonical(document)
        id, parts = f"_{secrets.token_hex(8)}", urlsplit(url)
        target = address_of(parts) + (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        properties = (
            f'<ds:SignatureProperties xmlns:ds="{DS}" Id="{id}"><ds:SignatureProperty Target="#{id}s">'
            '<dsp:ReplayProtect xmlns:dsp="http://www.w3.org/2009/xmldsig-properties">'
            f"<dsp:timestamp>{now}</dsp:timestamp><dsp:nonce>{secrets.token_urlsafe(16)}</dsp:nonce>"
            f'</dsp:ReplayProtect><target xmlns="urn:dai:signature">{escape(target)}</target>'
            "</ds:SignatureProperty></ds:SignatureProperties>"
        )
        info = (
            f'<ds:SignedInfo xmlns:ds="{DS}">'
            f'<ds:CanonicalizationMethod Algorithm="{EXCLUSIVE}"></ds:CanonicalizationMethod>'
            f'<ds:SignatureMethod Algorithm="{self._method}"></ds:SignatureMethod>'
            + _reference("", canonical, _ENVELOPED, _listed(prefixes))
            + _reference(f"#{id}", properties.encode())
            + "</ds:SignedInfo>"
        )
        signature = (
            f'<ds:Signature xmlns:ds="{DS}" Id="{id}s">{info}'
            f"<ds:SignatureValue>{_base64(self._sign(info.encode()))}</ds:SignatureValue>"
            f"<ds:KeyInfo><ds:KeyName>{self._id}</ds:KeyName></ds:KeyInfo>"
            f"<ds:Object>{properties}</ds:Object></ds:Signature>"
        )
        end = canonical.rindex(b"</")
        return canonical[:end] + signature.encode() + canonical[end:]


def _canonical(document: bytes) -> tuple[bytes, list[str]]:
    """The document as it is signed, and its prefixes, which values in it may have, too."""
    try:
        names = etree.iterparse(io.BytesIO(document), ("start-ns",), resolve_entities=False, no_network=True)
        prefixes = sorted({prefix for _, (prefix, _) in names if prefix})
        root = etree.fromstring(document, etree.XMLParser(resolve_entities=False, no_network=True))
    except etree.XMLSyntaxError as error:
        raise RequestError(f"The document cannot be signed: {error.msg}.") from error
    canonical = etree.tostring(root, method="c14n", exclusive=True, with_comments=False, inclusive_ns_prefixes=prefixes)
    return canonical, prefixes


def _listed(prefixes: list[str]) -> str:
    if not prefixes:
        return ""
    names = " ".join(prefixes)
    return f'<ec:InclusiveNamespaces xmlns:ec="{EXCLUSIVE}" PrefixList="{names}"></ec:InclusiveNamespaces>'


def _reference(uri: str, data: bytes, before: str = "", listed: str = "") -> str:
    return (
        f'<ds:Reference URI="{uri}"><ds:Transforms>{before}'
        f'<ds:Transform Algorithm="{EXCLUSIVE}">{listed}</ds:Transform></ds:Transforms>'
        f'<ds:DigestMethod Algorithm="{DIGEST}"></ds:DigestMethod>'
        f"<ds:DigestValue>{_base64(hashlib.sha256(data).digest())}</ds:DigestValue></ds:Reference>"
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
