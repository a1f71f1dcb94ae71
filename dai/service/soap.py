"""SOAP 1.1 messages, document/literal: one call in the body, one answer or a fault."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

from lxml import etree

from dai.errors import DaiError, DocumentError
from dai.perform.parser import DocumentLimits, scan

SOAP = "http://schemas.xmlsoap.org/soap/envelope/"


def tree(document: bytes, most: int) -> Any:
    """DocumentError for what is not well-formed, has a document type or more than ``most`` bytes."""
    scan(document, DocumentLimits(bytes=most))
    try:
        return etree.fromstring(document, etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True))
    except etree.XMLSyntaxError as error:
        raise DocumentError(f"This is not well-formed XML: {error.msg}.") from error


def opened(envelope: bytes, namespace: str, most: int) -> tuple[Any, Any]:
    """The envelope and the one call in its body. DocumentError for what is none of that namespace."""
    root = tree(envelope, most)
    bodies = [each for each in root if each.tag == f"{{{SOAP}}}Body"]
    calls = [each for body in bodies for each in body if isinstance(each.tag, str)]
    if root.tag != f"{{{SOAP}}}Envelope" or len(calls) != 1:
        raise DocumentError("The message is not a SOAP 1.1 envelope with one call in its body.")
    name = etree.QName(calls[0])
    if name.namespace != namespace:
        raise DocumentError(f"The call {name.localname[:100]!r} is not in the namespace {namespace}.")
    return root, calls[0]


def envelope(body: str, namespace: str = "") -> bytes:
    """``namespace``: of names without a prefix. Those of a fault have none."""
    default = f' xmlns="{namespace}"' if namespace else ""
    declaration = '<?xml version="1.0" encoding="UTF-8"?>'
    return f'{declaration}\n<s:Envelope xmlns:s="{SOAP}"><s:Body{default}>{body}</s:Body></s:Envelope>'.encode()


def fault(error: DaiError, detail: str) -> bytes:
    """``detail``: XML."""
    side = "Client" if error.status < 500 else "Server"
    text = escape(str(error))
    return envelope(
        f"<s:Fault><faultcode>s:{side}</faultcode><faultstring>{text}</faultstring><detail>{detail}</detail></s:Fault>"
    )
