"""Whether a document can be stored: well-formed, without a DTD, and what every parser here reads."""

from __future__ import annotations

from collections.abc import Iterator

from lxml import etree

from dai.perform.xml.worker import DOCUMENT, parsed, parser


class Checking:
    """Gives each document back in UTF-8."""

    def __init__(self, expression: str, namespaces: dict[str, str]) -> None:
        self._parser = parser()

    def run(self, document: bytes) -> Iterator[tuple[int, bytes]]:
        tree = parsed(document, self._parser, "The document is")
        if (tree.docinfo.encoding or "UTF-8").upper() not in ("UTF-8", "ASCII", "US-ASCII"):
            document = etree.tostring(tree, encoding="UTF-8", xml_declaration=True)
        yield DOCUMENT, document
