"""Whether a document can be stored: well-formed, without a DTD, and what every parser here reads."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from lxml import etree

from dai.perform.xml.worker import DOCUMENT, parsed, parser

_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""Byte order marks. A document in UTF-16 needs to say no more than that."""


class Checking:
    """Gives each document back in UTF-8, without a byte order mark."""

    def __init__(self, expression: str, namespaces: dict[str, str]) -> None:
        self._parser = parser()

    def run(self, document: bytes) -> Iterator[tuple[int, bytes]]:
        tree = parsed(document, self._parser, "The document is")
        named = (tree.docinfo.encoding or "UTF-8").upper()
        if named not in ("UTF-8", "ASCII", "US-ASCII") or document.startswith(_MARKS):
            document = etree.tostring(tree, encoding="UTF-8", xml_declaration=True)
        yield DOCUMENT, document
