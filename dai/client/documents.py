"""Makes perform documents from bytes, text, a file or elements.

``document(activity("sqlQueryStatement", element("expression", "select 1"), element("resultStream", name="rows"),
name="query"), …)`` builds one without writing XML by hand.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from dai.errors import RequestError

NAMESPACE = "http://ogsadai.org.uk/namespaces/2003/07/gds/types"


def element(tag: str, *content: ElementTree.Element | str, **attributes: Any) -> ElementTree.Element:
    """``<tag attributes>content</tag>``. ``from_`` is the attribute ``from``, since Python keeps that word; True and
    False are written as XML writes them."""
    built = ElementTree.Element(tag, {name.rstrip("_"): _text(value) for name, value in attributes.items()})
    for each in content:
        if isinstance(each, str):
            if len(built):
                raise RequestError(f"The text {each!r} is after an element in <{tag}>; put the text first.")
            built.text = (built.text or "") + each
        else:
            built.append(each)
    return built


activity = element
"""An activity is an element with a ``name``."""


def document(*activities: ElementTree.Element, documentation: str | None = None) -> bytes:
    """The perform document of these activities."""
    root = ElementTree.Element("gridDataServicePerform", {"xmlns": NAMESPACE})
    if documentation is not None:
        root.append(element("documentation", documentation))
    root.extend(activities)
    return _serialised(root)


def as_bytes(document: Any) -> bytes:
    """The document in ``given``: bytes; text that begins with ``<``; a path; an element of ElementTree or lxml.

    Raises RequestError for anything else, and where a file cannot be read.
    """
    if isinstance(document, bytes | bytearray | memoryview):
        return bytes(document)
    if isinstance(document, str):
        if document.lstrip("\ufeff \t\r\n").startswith("<"):
            return _encoded(document)
        raise RequestError(
            f"{document[:60]!r} is not an XML document.", hint="For a file give a pathlib.Path, for SQL use .query(…)."
        )
    if isinstance(document, os.PathLike):
        try:
            return Path(document).read_bytes()
        except OSError as error:
            raise RequestError(f"The document {os.fspath(document)} cannot be read: {error.strerror}.") from error
    if hasattr(document, "getroot"):
        document = document.getroot()
    if hasattr(document, "tag") and hasattr(document, "iter"):
        return _serialised(document)
    raise RequestError(f"A perform document is bytes, text, a path or an element, not {type(document).__name__}.")


def input_streams(document: bytes) -> list[str]:
    """Names of the inputStreams of a document that joins no session of its own: it waits for what is pushed into them.
    Empty for what is not well-formed, which the service tells better."""
    elements = _elements(document)
    joined = any(element == "session" for element, _ in elements)
    return [] if joined else [name for element, name in elements if element == "inputStream"]


def has_streams(document: bytes) -> bool:
    """Whether somebody has to push into a stream of the document, or to pull from one, while it runs."""
    return any(element in ("inputStream", "outputStream") for element, _ in _elements(document))


def _elements(document: bytes) -> list[tuple[str, str]]:
    """The elements of a document, each with its ``name``; none of one that is not well-formed."""
    elements: list[tuple[str, str]] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda element, attributes: elements.append(
        (element.rpartition(":")[2], attributes.get("name", ""))
    )
    try:
        parser.Parse(document, True)
    except expat.ExpatError:
        return []
    return elements


def _serialised(root: Any) -> bytes:
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written.replace(b"\r", b"&#13;")  # a reader would make a line feed of it


def _encoded(text: str) -> bytes:
    text = text.lstrip("\ufeff \t\r\n")
    if text.startswith("<?xml"):
        # The text is UTF-8 from here on, whatever its declaration said.
        text = text.partition("?>")[2].lstrip()
    return text.encode()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
