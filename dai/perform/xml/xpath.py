"""XPath 1.0 with what libxslt and lxml have of EXSLT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

from lxml import etree

from dai.perform.xml.worker import RESULT, RefusedError, parsed, parser

EXSLT = {
    "date": "http://exslt.org/dates-and-times",
    "math": "http://exslt.org/math",
    "re": "http://exslt.org/regular-expressions",
    "set": "http://exslt.org/sets",
    "str": "http://exslt.org/strings",
}
"""Prefixes that need no declaration."""


class XPath:
    """Gives each result as ``<resource>…</resource>``. Relative paths begin at the root element."""

    def __init__(self, expression: str, namespaces: dict[str, str]) -> None:
        self._parser = parser()
        # lxml has no object for the document itself
        path = "/*" if expression.strip() == "/" else expression
        try:
            self._find = etree.XPath(path, namespaces={**EXSLT, **namespaces}, smart_strings=False)
            # names that are not there are noticed when it runs
            self._find(etree.fromstring("<x/>"))
        except Exception as error:  # noqa: BLE001 - EXSLT's regular expressions raise what Python's do
            raise refusal("The XPath expression cannot be run", error) from None

    def run(self, document: bytes) -> Iterator[tuple[int, bytes]]:
        tree = parsed(document, self._parser)
        try:
            results = self._find(tree)
        except Exception as error:  # noqa: BLE001 - EXSLT's regular expressions raise what Python's do
            raise refusal("The XPath expression fails", error) from None
        for each in results if isinstance(results, list) else [results]:
            yield RESULT, resource(each)


def refusal(what: str, error: Exception) -> Exception:
    """What to raise for an error in an expression."""
    if isinstance(error, MemoryError) or "Memory allocation" in str(error):
        return MemoryError()
    return RefusedError(f"{what}: {error}.")


def resource(result: Any) -> bytes:
    """An element of a resource set."""
    if isinstance(result, etree._Element):
        content = etree.tostring(result, encoding="UTF-8", xml_declaration=False, with_tail=False)
        return b"<resource>%b</resource>\n" % content
    return f"<resource>{escape(text_of(result), {chr(13): '&#13;'})}</resource>\n".encode()


def text_of(result: Any) -> str:
    """What the XPath function string() makes of a value (XPath 1.0, 4.2)."""
    if isinstance(result, bool):
        return "true" if result else "false"
    if isinstance(result, float):
        if result != result or result in (float("inf"), float("-inf")):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(result)]
        return str(int(result)) if result == int(result) else f"{result:.15g}"
    return str(result[1]) if isinstance(result, tuple) else str(result)
