"""Reads WSDL 1.1 documents: operations of port types, and parts of messages. Each is an entry under the name that
WSDL 1.1 Element Identifiers (W3C, 2007) gives it, so that a reference by names leads to it at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dai.errors import DocumentError
from dai.service.registry.entries import Entry, Reference
from dai.service.soap import tree

WSDL = "http://schemas.xmlsoap.org/wsdl/"
URL = "url"
"""The name of the identifier that says where a document is."""


def _key(namespace: str, kind: str, *names: str) -> str:
    return f"{namespace}{'' if '#' in namespace else '#'}wsdl11.{kind}({'/'.join(names)})"


def key_of_interface(namespace: str) -> str:
    """Of all that stands in a document: it is of one namespace."""
    return _key(namespace, "definitions")


def key_of_operation(namespace: str, port_type: str, name: str) -> str:
    return _key(namespace, "portTypeOperation", port_type, name)


def key_of_part(namespace: str, message: str, name: str) -> str:
    return _key(namespace, "messagePart", message, name)


def key_of_message(namespace: str, name: str) -> str:
    return _key(namespace, "message", name)


def entries(url: str, content: str, most: int) -> Iterator[Entry]:
    """The interface, and its operations and parts behind it. DocumentError for what is no WSDL 1.1 with operations."""
    root = tree(content.encode(), most)
    namespace = root.get("targetNamespace", "")
    port_types = root.findall(f"{{{WSDL}}}portType")
    if root.tag != f"{{{WSDL}}}definitions" or not namespace:
        raise DocumentError("The document is not WSDL 1.1: its root is not definitions with a targetNamespace.")
    if not any(len(each) for each in port_types):
        raise DocumentError("The WSDL has no portType with an operation.")
    key = key_of_interface(namespace)
    name = root.get("name") or port_types[0].get("name", "")
    yield Entry(
        key=key,
        kind="interface",
        names=((name or namespace, ""),),
        identifiers=(Reference("", url, URL),) if url else (),
        properties={"namespace": namespace} | ({"address": {"uri": url}} if url else {}),
        details={"wsdl": content},
    )
    for port_type in port_types:
        for operation in port_type.iterfind(f"{{{WSDL}}}operation"):
            yield _operation(key, namespace, port_type.get("name", ""), operation)
    for message in root.iterfind(f"{{{WSDL}}}message"):
        of = message.get("name", "")
        for part in message.iterfind(f"{{{WSDL}}}part"):
            named = part.get("name", "")
            yield Entry(
                key=key_of_part(namespace, of, named),
                kind="part",
                parent=key,
                names=((named, ""),),
                properties={
                    "namespace": namespace,
                    "messageName": of,
                    "message": {"uri": key_of_message(namespace, of)},
                },
            )


def _operation(interface: str, namespace: str, port_type: str, element: Any) -> Entry:
    name = element.get("name", "")
    messages: dict[str, list[dict[str, str]]] = {"input": [], "output": [], "fault": []}
    for each in element:
        at = each.tag.rpartition("}")[2] if isinstance(each.tag, str) else ""
        if at in messages and (said := each.get("message")):
            prefix, _, local = said.rpartition(":")
            space = each.nsmap.get(prefix or None)
            if space is None:
                raise DocumentError(f"The operation {name[:100]!r} names a message {said[:100]!r} of no namespace.")
            messages[at].append({"uri": key_of_message(space, local)})
    said = {at: named for at, named in messages.items() if named}
    return Entry(
        key=key_of_operation(namespace, port_type, name),
        kind="operation",
        parent=interface,
        names=((name, ""),),
        properties={"namespace": namespace, "portType": port_type} | said,
    )
