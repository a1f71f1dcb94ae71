"""Signed documents that were changed, moved, wrapped, or signed in another form: refused, and nothing done."""

import hmac
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from lxml import etree

from dai.api.server.serve import Background
from tests.api.signed_documents import (
    DS,
    ENVELOPED,
    EXCLUSIVE,
    INCLUSIVE,
    INSERT,
    KEYS,
    OTHERS,
    PATH,
    SHA1,
    SHA256,
    Signed,
    b64,
    canonical,
    certificate,
    directory,
    hmac_with,
    key_value,
    paid,
    post,
    properties,
    reference,
    service,
)

__all__ = ["directory", "service"]


def changed(old: str, new: str, count: int = 1) -> Callable[[Signed], bytes]:
    """The signed document with another text in place of one."""

    def change(signed: Signed) -> bytes:
        text = signed.content.decode()
        assert old in text
        return text.replace(old, new, count).encode()

    return change


def of(**parts: Any) -> Callable[[Signed], bytes]:
    """Signed with a key that counts, in another form."""

    def make(signed: Signed) -> bytes:
        given = {name: value(signed) if callable(value) and name != "sign" else value for name, value in parts.items()}
        return Signed(signed.base, **given).content

    return make


def document_reference(signed: Signed, *transforms: str, digest: str = SHA256) -> str:
    return reference("", canonical(signed.document), *(transforms or (ENVELOPED, EXCLUSIVE)), digest=digest)


def property_reference(signed: Signed, *transforms: str, uri: str = "#p", digest: str = SHA256) -> str:
    assert signed.properties is not None
    return reference(uri, signed.properties.encode(), *(transforms or (EXCLUSIVE,)), digest=digest)


def parted(signed: Signed) -> tuple[str, str, str]:
    """Root and what is in it, and the signature."""
    text, signature = signed.document, signed.signature
    start = text.index(">") + 1
    return text[:start], text[start:].removesuffix("</gridDataServicePerform>"), signature


EVIL = (
    "<sqlUpdateStatement name=\"e\"><expression>insert into paid values ('mallory', 1)</expression>"
    '<resultStream name="r"/></sqlUpdateStatement>'
)
END = "</gridDataServicePerform>"


def wrapped_in_documentation(signed: Signed) -> bytes:
    """The whole signed document stands in another, where a reader looks elsewhere than the verifier."""
    root, _, _ = parted(signed)
    return f"{root}<documentation>{signed.content.decode()}</documentation>{EVIL}{END}".encode()


def wrapped_in_an_object(signed: Signed) -> bytes:
    root, inside, signature = parted(signed)
    original = f"<ds:Object>{root}{inside}{END}</ds:Object></ds:Signature>"
    return f"{root}{EVIL}{signature.replace('</ds:Signature>', original)}{END}".encode()


def signature_as_root(signed: Signed) -> bytes:
    root, inside, signature = parted(signed)
    return signature.replace("</ds:Signature>", f"<ds:Object>{root}{inside}{END}</ds:Object></ds:Signature>").encode()


def moved_into_an_activity(signed: Signed) -> bytes:
    root, inside, signature = parted(signed)
    return f"{root}{inside.replace('<resultStream', signature + '<resultStream')}{END}".encode()


def two_signatures(signed: Signed) -> bytes:
    root, inside, signature = parted(signed)
    evil = Signed(signed.base, key=OTHERS).signature
    return f"{root}{evil}{inside}{signature}{END}".encode()


def two_equal_signatures(signed: Signed) -> bytes:
    root, inside, signature = parted(signed)
    return f"{root}{signature}{inside}{signature}{END}".encode()


def property_outside(signed: Signed) -> bytes:
    """The signed property stands elsewhere, another one in its place."""
    text, own = signed.content.decode(), signed.properties
    assert own is not None
    later = own.replace('Id="p"', 'Id="q"').replace("<dsp:nonce>", "<dsp:nonce>9")
    return text.replace(own, later).replace("<documentation>", f"{own}<documentation>").encode()


def property_twice(signed: Signed) -> bytes:
    text, own = signed.content.decode(), signed.properties
    assert own is not None
    return text.replace(
        "<ds:Object>", f"<ds:Object>{own.replace('<dsp:nonce>', '<dsp:nonce>9')}</ds:Object><ds:Object>"
    ).encode()


def only_a_part(signed: Signed) -> bytes:
    document = INSERT.replace("<documentation>", '<documentation Id="part">')
    part = f'<documentation xmlns="{document.split(chr(34))[1]}" Id="part">pays</documentation>'
    references = [reference("#part", part.encode(), EXCLUSIVE), property_reference(signed)]
    made = Signed(signed.base, document=document, references=references, properties=signed.properties).content
    return made.replace(b"alice', 5", b"mallory', 1")


def duplicate_ids(signed: Signed) -> bytes:
    """Two elements have the id of the signed property; the whole document is not signed."""
    document = INSERT.replace("<documentation>", '<documentation Id="p">')
    return Signed(signed.base, document=document, properties=signed.properties).content


def prefixes(count: int, elements: int = 0) -> Callable[[Signed], bytes]:
    """Signed with a list of prefixes, whose names are declared in the root, as are those of many elements."""

    def make(signed: Signed) -> bytes:
        names = [f"p{number}" for number in range(count)]
        declared = "".join(f' xmlns:{name}="urn:{name}"' for name in names)
        more = "".join(f'<x:a xmlns:x="urn:{number}"/>' for number in range(elements))
        document = signed.document.replace("<documentation>", f"<documentation>{more}").replace(">", f"{declared}>", 1)
        root = etree.fromstring(document)
        data = etree.tostring(root, method="c14n", exclusive=True, inclusive_ns_prefixes=names)
        listed = f'<ec:InclusiveNamespaces xmlns:ec="{EXCLUSIVE}" PrefixList="{" ".join(names)}">'
        transform = f'<ds:Transform Algorithm="{EXCLUSIVE}">{listed}</ec:InclusiveNamespaces></ds:Transform>'
        both = [reference("", data, ENVELOPED, transform), property_reference(signed)]
        return Signed(signed.base, document=document, properties=signed.properties, references=both).content

    return make


def with_dtd(declaration: str, old: str = "", new: str = "") -> Callable[[Signed], bytes]:
    def change(signed: Signed) -> bytes:
        return f"<!DOCTYPE gridDataServicePerform [{declaration}]>{signed.content.decode().replace(old, new)}".encode()

    return change


XPATH = '<ds:Transform Algorithm="http://www.w3.org/TR/1999/REC-xpath-19991116"><ds:XPath>not(ancestor-or-self::*)</ds:XPath></ds:Transform>'
XSLT = '<ds:Transform Algorithm="http://www.w3.org/TR/1999/REC-xslt-19991116"></ds:Transform>'
BASE64 = f"{DS}base64"
ATTACKS: dict[str, Callable[[Signed], bytes]] = {
    # changed after it was signed
    "another text": changed("'alice', 5", "'mallory', 5"),
    "another attribute": changed('name="count"', 'name="counts"'),
    "one more activity": changed("<documentation>", f"{EVIL}<documentation>"),
    "one activity less": lambda signed: re.sub(rb"<documentation>.*</documentation>", b"", signed.content),
    "one instruction more": changed("<documentation>", "<?dai x?><documentation>"),
    "a text beside the signature": changed("<ds:Signature ", "x<ds:Signature "),
    "another root": lambda signed: signed.content.replace(b"2003/07/gds", b"2005/10", 1),
    "another nonce": changed("<dsp:nonce>", "<dsp:nonce>1"),
    "another time": changed("<dsp:timestamp>2", "<dsp:timestamp>3"),
    "another target": changed('<target xmlns="urn:dai:signature">', '<target xmlns="urn:dai:signature">x'),
    "another key's name": changed("<ds:KeyName>p256", "<ds:KeyName>bobs"),
    "another value": lambda signed: re.sub(rb"<ds:SignatureValue>....", b"<ds:SignatureValue>AAAA", signed.content),
    "no value": lambda signed: re.sub(rb"<ds:SignatureValue>[^<]*", b"<ds:SignatureValue>", signed.content),
    "no signature": lambda signed: signed.document.encode(),
    "an empty signature": lambda signed: re.sub(
        rb"<ds:Signature .*</ds:Signature>", f'<ds:Signature xmlns:ds="{DS}"/>'.encode(), signed.content
    ),
    # wrapping
    "wrapped in another document": wrapped_in_documentation,
    "wrapped in the signature": wrapped_in_an_object,
    "the signature as root": signature_as_root,
    "the signature in an activity": moved_into_an_activity,
    "two signatures": two_signatures,
    "a signature twice": two_equal_signatures,
    "the property elsewhere": property_outside,
    "the property twice": property_twice,
    "a part is signed": only_a_part,
    "duplicate ids": duplicate_ids,
    # references
    "no reference": of(references=[]),
    "the property alone": of(references=lambda signed: [property_reference(signed)]),
    "the other order": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [property_reference(signed), document_reference(signed)],
    ),
    "the document twice": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [document_reference(signed), document_reference(signed)],
    ),
    "three references": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [document_reference(signed), property_reference(signed), document_reference(signed)],
    ),
    "without an address": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [
            reference(None, canonical(signed.document), ENVELOPED, EXCLUSIVE),
            property_reference(signed),
        ],
    ),
    "an address of the web": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [
            reference("http://127.0.0.1:1/x", b"", EXCLUSIVE),
            property_reference(signed),
        ],
    ),
    "a file": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [reference("file:///etc/passwd", b"", EXCLUSIVE), property_reference(signed)],
    ),
    "an expression": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [
            reference("#xpointer(/)", canonical(signed.document), ENVELOPED, EXCLUSIVE),
            property_reference(signed),
        ],
    ),
    # transforms
    "without the canonical form": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [document_reference(signed, ENVELOPED), property_reference(signed)],
    ),
    "the inclusive form": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [document_reference(signed, ENVELOPED, INCLUSIVE), property_reference(signed)],
    ),
    "a form with comments": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [
            document_reference(signed, ENVELOPED, f"{EXCLUSIVE}WithComments"),
            property_reference(signed),
        ],
    ),
    "a filter": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [document_reference(signed, ENVELOPED, XPATH, EXCLUSIVE), property_reference(signed)],
    ),
    "a style sheet": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [document_reference(signed, ENVELOPED, XSLT, EXCLUSIVE), property_reference(signed)],
    ),
    "a decoder": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [document_reference(signed), property_reference(signed, BASE64, EXCLUSIVE)],
    ),
    "the form twice": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [
            document_reference(signed, ENVELOPED, EXCLUSIVE, EXCLUSIVE),
            property_reference(signed),
        ],
    ),
    "the property enveloped": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [document_reference(signed), property_reference(signed, ENVELOPED, EXCLUSIVE)],
    ),
    "another form of what is signed": of(canonicalisation=f"{EXCLUSIVE}WithComments"),
    # keys and algorithms
    "an unknown key": of(id="nobodys", key=OTHERS),
    "somebody else's key": of(key=OTHERS),
    "a key of another kind": of(id="rsa", key=OTHERS),
    "a key that signs no documents": of(id="ed25519", key=OTHERS),
    "no key": of(key_info=""),
    "an empty name": of(key_info="<ds:KeyName></ds:KeyName>"),
    "two names": of(key_info="<ds:KeyName>p256</ds:KeyName><ds:KeyName>bobs</ds:KeyName>"),
    "a comment in the name": of(key_info="<ds:KeyName>p256<!-- -->s</ds:KeyName>"),
    "a key in the signature": of(key=OTHERS, key_info=key_value(OTHERS)),
    "a key beside its name": of(key=OTHERS, key_info=f"<ds:KeyName>p256</ds:KeyName>{key_value(OTHERS)}"),
    "a key's bytes": of(
        key=OTHERS,
        key_info='<dsig11:DEREncodedKeyValue xmlns:dsig11="http://www.w3.org/2009/xmldsig11#">'
        + b64(OTHERS.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
        + "</dsig11:DEREncodedKeyValue>",
    ),
    "a certificate of its own": of(key=OTHERS, key_info=certificate(OTHERS)),
    "a certificate of another key": of(key=OTHERS, key_info=certificate(KEYS["p256"])),
    "a certificate and a name": of(key=OTHERS, key_info=f"<ds:KeyName>p256</ds:KeyName>{certificate(OTHERS)}"),
    "two certificates": of(
        key_info=certificate(KEYS["p256"]).replace("</ds:X509Data>", "")
        + certificate(OTHERS).replace("<ds:X509Data>", "")
    ),
    "a certificate that is none": of(
        key_info="<ds:X509Data><ds:X509Certificate>AAAA</ds:X509Certificate></ds:X509Data>"
    ),
    "a key to fetch": of(key_info='<ds:RetrievalMethod URI="http://127.0.0.1:1/key"></ds:RetrievalMethod>'),
    "the public key as a secret (PEM)": of(
        method="http://www.w3.org/2001/04/xmldsig-more#hmac-sha256",
        sign=hmac_with(KEYS["p256"], PublicFormat.SubjectPublicKeyInfo, Encoding.PEM),
    ),
    "the public key as a secret": of(
        method="http://www.w3.org/2001/04/xmldsig-more#hmac-sha256",
        sign=hmac_with(KEYS["p256"], PublicFormat.SubjectPublicKeyInfo, Encoding.DER),
    ),
    "an empty secret": of(method=f"{DS}hmac-sha1", sign=lambda data: hmac.new(b"", data, "sha1").digest()),
    "a weak signature": of(method="http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha1", hash=hashes.SHA1()),
    "a weak digest": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [document_reference(signed, digest=SHA1), property_reference(signed)],
    ),
    "a weak digest of the property": of(
        properties=lambda signed: signed.properties,
        references=lambda signed: [document_reference(signed), property_reference(signed, digest=SHA1)],
    ),
    "an unknown algorithm": of(method="urn:none"),
    "no algorithm": of(method=""),
    # time and place
    "without a property": of(properties=None),
    "old": of(created=-100.0),
    "of the future": of(created=60.0),
    "of before the start": of(created=-50.0),
    "without a nonce": of(nonce=None),
    "with an empty nonce": of(nonce=" "),
    "with a long nonce": of(nonce="x" * 1000),
    "without a target": of(target=None),
    "for another resource": of(path="/resources/book/perform"),
    "for another host": of(target=f"data.example.org{PATH}"),
    "for an end point": of(path=f"{PATH}?output=count"),
    "with a time of no zone": of(properties=properties("2026-01-01T00:00:00", "n", "x")),
    "with no time": of(properties=properties("now", "n", "x")),
    "with a time that ended long ago": of(properties=properties("0001-01-01T00:00:00+14:00", "n", "x")),
    "with two nonces": of(
        properties=lambda signed: (signed.properties or "").replace(
            "<dsp:nonce>", "<dsp:nonce>1</dsp:nonce><dsp:nonce>"
        )
    ),
    # lists of prefixes that take long
    "many prefixes": prefixes(33),
    "many declarations and elements": prefixes(32, 2000),
    # comments in the signature itself
    "a comment in a digest": changed("<ds:DigestValue>", "<ds:DigestValue><!-- -->"),
    "a comment in the value": changed("<ds:SignatureValue>", "<ds:SignatureValue><!-- -->"),
    "an instruction in the signature": changed("<ds:KeyInfo>", "<?x y?><ds:KeyInfo>"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_way_in(service: Background, directory: Path, attack: str) -> None:
    before, ours = paid(directory), Signed(service.url)
    answer = post(service, ATTACKS[attack](ours))
    assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json"), answer.text
    assert answer.json()["type"] == "unauthenticated"
    assert paid(directory) == before


@pytest.mark.parametrize(
    "attack",
    [
        with_dtd('<!ENTITY who "mallory">', "'alice'", "'&who;'"),
        with_dtd("<!ATTLIST documentation Id ID #IMPLIED>"),
        with_dtd('<!ENTITY % x SYSTEM "http://127.0.0.1:1/x"> %x;'),
        with_dtd(""),
        lambda signed: signed.content[:-1],
        lambda signed: signed.content.replace(b"<documentation>", b"<documentation>" + b"<a>" * 500 + b"</a>" * 500),
        lambda signed: signed.content.replace(b"<documentation>", b"<documentation" + b" a='1'" * 3 + b">"),
    ],
    ids=["entity", "id", "parameter entity", "empty", "broken", "deep", "attribute twice"],
)
def test_documents_that_are_not_read(service: Background, directory: Path, attack: Callable[[Signed], bytes]) -> None:
    before = paid(directory)
    answer = post(service, attack(Signed(service.url)))
    assert answer.status_code in (400, 413), answer.text
    assert paid(directory) == before
