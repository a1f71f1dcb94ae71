"""The process that runs one expression over many documents: ``python -m dai.perform.xml.worker``.

It reads a description of its work, then documents in portions; it answers each portion with frames, the last of which
is DONE. It reads a portion to its end before it answers, so neither side waits for the other while it writes.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, BinaryIO, Protocol

FRAME = struct.Struct("<BIQ")
"""Kind of frame, number of the document in its portion (WHOLE: none) or a count, bytes that follow."""
NUMBER = struct.Struct("<Q")
READY, RESULT, DOCUMENT, DONE, REFUSED, TOO_LARGE = range(6)
WHOLE = (1 << 32) - 1
LANGUAGES = {
    "checking": "dai.perform.xml.checking:Checking",
    "xpath": "dai.perform.xml.xpath:XPath",
    "xupdate": "dai.perform.xml.xupdate:XUpdate",
    "xquery": "dai.perform.xml.xquery:XQuery",
}
RESULT_BYTES = 64 << 20
"""Of one result, which the service has in memory."""
BUFFER_BYTES = 1 << 18
_MESSAGE = 2_000


class RefusedError(Exception):
    """A document or an expression is refused; the message is for users."""


class Language(Protocol):
    """One expression, compiled. Raises RefusedError."""

    def __init__(self, expression: str, namespaces: dict[str, str]) -> None: ...

    def run(self, document: bytes) -> Iterator[tuple[int, bytes]]:
        """Frames for one document: RESULT with a result, DOCUMENT with what takes its place."""


def main(source: BinaryIO, sink: BinaryIO) -> None:
    header = json.loads(source.read(_number(source)))
    module, _, name = LANGUAGES[header["language"]].partition(":")
    kind = getattr(import_module(module), name)
    confine(header["language"], header["memory"])
    # where nothing handles its signal, it ends the process, whatever runs in it
    signal.setitimer(signal.ITIMER_PROF, header["seconds"])
    try:
        language: Language = kind(header["expression"], header["namespaces"])
    except Exception as error:  # noqa: BLE001 - the boundary of the process
        _write(sink, *_failure(error))
        return
    _write(sink, READY)
    while count := _number(source):
        sizes = [_number(source) for _ in range(count)]
        for number, document in enumerate([source.read(size) for size in sizes]):
            signal.setitimer(signal.ITIMER_PROF, header["seconds"])
            try:
                for kind, data in language.run(document):
                    if len(data) > RESULT_BYTES:
                        raise RefusedError(f"The result has more than {RESULT_BYTES >> 20} MiB.")
                    _write(sink, kind, data, number, flush=False)
            except Exception as error:  # noqa: BLE001 - the boundary of the process
                _write(sink, *_failure(error), number)
                return
        _write(sink, DONE)


def confine(language: str, most: int) -> None:
    """From here on the process opens no file and no socket, and has bounds."""
    # Saxon reserves more addresses than it uses
    resource.setrlimit(resource.RLIMIT_DATA if language == "xquery" else resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _number(source: BinaryIO) -> int:
    data = source.read(NUMBER.size)
    return int(NUMBER.unpack(data)[0]) if data else 0


def _write(sink: BinaryIO, kind: int, data: bytes = b"", number: int = WHOLE, flush: bool = True) -> None:
    sink.write(FRAME.pack(kind, number, len(data)))
    sink.write(data)
    if flush:
        sink.flush()


def _failure(error: Exception) -> tuple[int, bytes]:
    """The kind of its frame, and what it says."""
    if isinstance(error, MemoryError):
        return TOO_LARGE, b""
    if isinstance(error, RefusedError):
        return REFUSED, str(error)[:_MESSAGE].encode()
    raise error


def parser() -> Any:
    """Of documents: without DTDs, entities and the network."""
    from lxml import etree

    return etree.XMLParser(resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False)


def parsed(document: bytes, parser: Any, what: str = "A stored document is") -> Any:
    """The tree. RefusedError where it is not well-formed, or has a DTD; ``what`` begins its message."""
    from lxml import etree

    try:
        tree = etree.fromstring(document, parser).getroottree()
    except etree.XMLSyntaxError as error:
        raise RefusedError(f"{what} not well-formed XML: {error.msg}.") from None
    if tree.docinfo.doctype or tree.docinfo.internalDTD is not None:
        raise RefusedError(f"{what} refused: DTDs and entities are not accepted.")
    return tree


if __name__ == "__main__":
    # the languages import this module: there must be one of it
    worker = import_module("dai.perform.xml.worker")
    with open(1, "wb", worker.BUFFER_BYTES) as sink:
        worker.main(sys.stdin.buffer, sink)
