"""Signed documents of any form, right and wrong, and a service that takes the right ones."""

import base64
import datetime
import hashlib
import hmac
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from lxml import etree

from dai.api.server.serve import Background, background
from tests.api.conftest import DOCUMENT, XML, configured
from tests.api.test_signatures import written

DS = "http://www.w3.org/2000/09/xmldsig#"
EXCLUSIVE = "http://www.w3.org/2001/10/xml-exc-c14n#"
INCLUSIVE = "http://www.w3.org/TR/2001/REC-xml-c14n-20010315"
ENVELOPED = f"{DS}enveloped-signature"
SHA1, SHA256 = f"{DS}sha1", "http://www.w3.org/2001/04/xmlenc#sha256"
ECDSA = "http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha256"
KEYS: dict[str, Any] = {
    "rsa": rsa.generate_private_key(65537, 2048),
    "p256": ec.generate_private_key(ec.SECP256R1()),
    "p384": ec.generate_private_key(ec.SECP384R1()),
    "bobs": ec.generate_private_key(ec.SECP256R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
}
OTHERS = ec.generate_private_key(ec.SECP256R1())
PATH = "/resources/ledger/perform"
INSERT = DOCUMENT.format(
    '<documentation>pays</documentation><sqlUpdateStatement name="u">'
    "<expression>insert into paid values ('alice', 5)</expression><resultStream name=\"count\"/></sqlUpdateStatement>"
)
"""What each attack sends, or something like it."""


def section(directory: Path) -> dict[str, Any]:
    keys = {id: {"name": "alice", "key": str(directory / f"{id}.pem")} for id in KEYS}
    keys["bobs"] |= {"name": "bob", "groups": ["curators"], "resources": ["book"]}
    return {"methods": ["xml-signature"], "wrong_seconds": 0.0, "signatures": {"keys": keys}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys")
    for id, key in KEYS.items():
        written(path, id, key)
    with sqlite3.connect(path / "ledger.db") as connection:
        connection.execute("create table paid (who text, amount integer)")
    return path


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, book: str, directory: Path) -> Iterator[Background]:
    resources = {
        "book": {"url": book},
        "ledger": {"url": f"sqlite:///{directory / 'ledger.db'}", "policy": {"write": ["alice"]}},
    }
    config = configured(tmp_path_factory.mktemp("signed"), resources, identity=section(directory))
    with background(config) as running:
        yield running


def paid(directory: Path) -> list[tuple[str, int]]:
    with sqlite3.connect(directory / "ledger.db") as connection:
        return connection.execute("select who, amount from paid").fetchall()


def post(running: Background, document: bytes, path: str = PATH, **headers: str) -> httpx.Response:
    return httpx.post(running.url + path, content=document, headers={**XML, **headers}, timeout=60)


@dataclass
class Signed:
    """A signed document, part by part. What is not said is as it should be."""

    base: str
    document: str = INSERT
    id: str = "p256"
    key: Any = None
    path: str = PATH
    created: float = 0.0
    nonce: str | None = ""
    target: str | None = ""
    properties: str | None = ""
    canonicalisation: str = EXCLUSIVE
    method: str = ECDSA
    hash: Any = field(default_factory=hashes.SHA256)
    references: list[str] | None = None
    key_info: str | None = None
    objects: str | None = None
    sign: Callable[[bytes], bytes] | None = None

    def __post_init__(self) -> None:
        if self.properties == "":
            self.properties = properties(
                at(self.created),
                str(time.perf_counter_ns()) if self.nonce == "" else self.nonce,
                self.base.partition("//")[2] + self.path if self.target == "" else self.target,
            )

    @property
    def info(self) -> str:
        references = self.references
        if references is None:
            references = [reference("", canonical(self.document), ENVELOPED, EXCLUSIVE)]
            if self.properties is not None:
                references.append(reference("#p", self.properties.encode(), EXCLUSIVE))
        return (
            f'<ds:SignedInfo xmlns:ds="{DS}"><ds:CanonicalizationMethod Algorithm="{self.canonicalisation}">'
            f'</ds:CanonicalizationMethod><ds:SignatureMethod Algorithm="{self.method}"></ds:SignatureMethod>'
            f"{''.join(references)}</ds:SignedInfo>"
        )

    @property
    def signature(self) -> str:
        info = self.info
        value = self.sign(info.encode()) if self.sign else ecdsa(self.key or KEYS[self.id], info.encode(), self.hash)
        key_info = f"<ds:KeyName>{self.id}</ds:KeyName>" if self.key_info is None else self.key_info
        objects = f"<ds:Object>{self.properties}</ds:Object>" if self.properties is not None else ""
        return (
            f'<ds:Signature xmlns:ds="{DS}">{info}<ds:SignatureValue>{b64(value)}</ds:SignatureValue>'
            f"<ds:KeyInfo>{key_info}</ds:KeyInfo>{objects if self.objects is None else self.objects}</ds:Signature>"
        )

    @property
    def content(self) -> bytes:
        return self.document.replace("</gridDataServicePerform>", f"{self.signature}</gridDataServicePerform>").encode()


def at(seconds: float) -> str:
    when = datetime.datetime.fromtimestamp(time.time() + seconds, datetime.UTC)
    return when.isoformat().replace("+00:00", "Z")


def properties(created: str | None, nonce: str | None, target: str | None) -> str:
    said = "".join(
        f"<dsp:{name}>{value}</dsp:{name}>"
        for name, value in (("timestamp", created), ("nonce", nonce))
        if value is not None
    )
    where = "" if target is None else f'<target xmlns="urn:dai:signature">{escape(target)}</target>'
    return (
        f'<ds:SignatureProperties xmlns:ds="{DS}" Id="p"><ds:SignatureProperty Target="#s"><dsp:ReplayProtect '
        f'xmlns:dsp="http://www.w3.org/2009/xmldsig-properties">{said}</dsp:ReplayProtect>{where}'
        "</ds:SignatureProperty></ds:SignatureProperties>"
    )


def reference(uri: str | None, data: bytes, *transforms: str, digest: str = SHA256, **attributes: str) -> str:
    """``transforms``: algorithms, or whole elements."""
    listed = "".join(
        each if each.startswith("<") else f'<ds:Transform Algorithm="{each}"></ds:Transform>' for each in transforms
    )
    named = {**attributes, **({} if uri is None else {"URI": uri})}
    shown = "".join(f' {name}="{value}"' for name, value in sorted(named.items()))
    hashed = (hashlib.sha1 if digest == SHA1 else hashlib.sha256)(data).digest()
    return (
        f"<ds:Reference{shown}><ds:Transforms>{listed}</ds:Transforms>"
        f'<ds:DigestMethod Algorithm="{digest}"></ds:DigestMethod><ds:DigestValue>{b64(hashed)}</ds:DigestValue>'
        "</ds:Reference>"
    )


def canonical(document: str | bytes) -> bytes:
    root = etree.fromstring(document.encode() if isinstance(document, str) else document)
    return etree.tostring(root, method="c14n", exclusive=True, with_comments=False)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def ecdsa(key: ec.EllipticCurvePrivateKey, data: bytes, hash: Any) -> bytes:
    return b"".join(each.to_bytes(key.key_size // 8) for each in decode_dss_signature(key.sign(data, ec.ECDSA(hash))))


def certificate(key: Any, version: int = 2) -> str:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "alice")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    der = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)
    der = der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01" + bytes([version]), 1)
    return f"<ds:X509Data><ds:X509Certificate>{b64(der)}</ds:X509Certificate></ds:X509Data>"


def key_value(key: ec.EllipticCurvePrivateKey) -> str:
    point = b64(key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint))
    return (
        '<ds:KeyValue><dsig11:ECKeyValue xmlns:dsig11="http://www.w3.org/2009/xmldsig11#">'
        f'<dsig11:NamedCurve URI="urn:oid:1.2.840.10045.3.1.7"/><dsig11:PublicKey>{point}</dsig11:PublicKey>'
        "</dsig11:ECKeyValue></ds:KeyValue>"
    )


def hmac_with(key: Any, form: PublicFormat, encoding: Encoding) -> Callable[[bytes], bytes]:
    """The public key, which everybody may know, taken for a shared secret."""
    secret = key.public_key().public_bytes(encoding, form)
    return lambda data: hmac.new(secret, data, "sha256").digest()
