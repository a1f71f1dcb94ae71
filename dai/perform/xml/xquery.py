"""XQuery 3.1 by SaxonC-HE (the package ``saxonche``)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import saxonche

from dai.perform.xml.worker import RESULT, RefusedError

_STATIC = re.compile(r"\bX[PQ]ST\d{4}\b|Static error")
_PLACE = re.compile(r" (of|in|at char \d+ of) file:\S*")
_WRITE = """
declare variable $items external;
declare variable $xml := map { 'method': 'xml', 'indent': false(), 'omit-xml-declaration': true() };
for $item in $items return '<resource>' || (
  typeswitch ($item)
  case element() | document-node() | comment() | processing-instruction() return serialize($item, $xml)
  case node() | xs:anyAtomicType return serialize(text { string($item) }, $xml)
  default return serialize(text { serialize($item, map { 'method': 'adaptive' }) }, $xml)
) || '</resource>&#10;'
"""
"""Saxon's own text of a node is indented."""


class XQuery:
    """Gives each item as ``<resource>…</resource>``. The document is the context item."""

    def __init__(self, expression: str, namespaces: dict[str, str]) -> None:
        self._query = _PROCESSOR.new_xquery_processor()
        for prefix, uri in namespaces.items():
            self._query.declare_namespace(prefix, uri)
        self._query.set_query_content(expression)
        try:
            for _ in self.run(b"<x/>"):
                continue
        except RefusedError as error:
            # what only a document can be wrong with is said there
            if _STATIC.search(str(error)):
                raise

    def run(self, document: bytes) -> Iterator[tuple[int, bytes]]:
        try:
            self._query.set_context(xdm_item=_PROCESSOR.parse_xml(xml_text=document.decode()))
            items = self._query.run_query_to_value()
            if items is None or not items.size:
                return
            _WRITER.set_parameter("items", items)
            written = _WRITER.run_query_to_value()
        except saxonche.PySaxonApiError as error:
            raise _refusal(" ".join(str(error).split())) from None
        for number in range(written.size):
            yield RESULT, written.item_at(number).string_value.encode()


def _refusal(message: str) -> Exception:
    if "OutOfMemory" in message:
        return MemoryError()
    if not _STATIC.search(message) and ("java." in message or "NullPointer" in message):
        return RefusedError("The XQuery fails: it may read nothing but the document; doc() and the like are refused.")
    return RefusedError(f"The XQuery fails: {_PLACE.sub('', message)}.")


_PROCESSOR = saxonche.PySaxonProcessor(license=False)
_WRITER = _PROCESSOR.new_xquery_processor()
_WRITER.set_query_content(_WRITE)
# what Saxon loads when it first runs: later nothing can be opened
_warming = XQuery("<a b='c'>{//x/@y, format-date(current-date(), '[D] [MNn]'), matches('a', 'a+')}</a>", {})
for _ in _warming.run(b"<x y='z'/>"):
    continue
