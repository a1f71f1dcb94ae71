"""The response document: ``gridDataServiceResponse`` (2003/07) or ``response`` (2005/10), streamed.

The end points come first, each as it is pulled; then the activities and the request, when how they ended is known. Text
stands as CDATA, binary data as base64, XML fragments as they are. A failure half-way closes what is open and stands as
``error`` in the result it struck, so that the document stays well-formed and the reader sees it.
``schemas/response-*.xsd`` describe it.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from xml.sax.saxutils import quoteattr

from dai.errors import DaiError, EncodingError
from dai.formats import format_named
from dai.perform.activity import FRAGMENT, Source
from dai.perform.graph import EndPoint
from dai.perform.pipeline import Running
from dai.perform.pipeline.progress import COMPLETED, ERROR, PROCESSING
from dai.perform.statuses import FORBIDDEN, ending, error_of, head
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block, ByteStream, Encoded, Stream

AHEAD_BYTES = 1 << 16
"""An end point with up to so many bytes is known in full when its element opens …"""
AHEAD_SECONDS = 0.05
"""… unless more than this passes between its first block and a later one."""

_CONTROL = bytes(code for code in range(32) if code not in b"\t\n\r")


@dataclass(slots=True)
class Delivery:
    """``begun``: some of a result has been delivered. The count of an update is none; a fragment's rows are one.
    ``rows`` of results have been delivered, and ``size`` bytes in all, which who sends them counts; ``exceeded``: the
    error for so many."""

    begun: bool = False
    exceeded: Callable[[int, int], DaiError | None] = lambda rows, size: None
    rows: int = 0
    size: int = 0

    def bounded(self, result: Iterator[Block], cancellation: Cancellation) -> Iterator[Block]:
        """The blocks up to the limits: what is beyond is not sent, and stops the request."""
        for block in result:
            rows = self.rows + block.rows
            error = self.exceeded(rows, self.size + len(block))
            if error is not None:
                error.detail += f" {self.rows:,} rows came before."
                error.extra["rows"] = self.rows
                cancellation.cancel(error)
                raise error
            self.rows = rows
            yield block

    def watched(self, fragment: Iterator[Block]) -> Iterator[Block]:
        for block in fragment:
            self.begun = self.begun or block.rows > 0
            yield block


def document(running: Running, session: str | None, request: str, delivery: Delivery | None = None) -> Iterator[bytes]:
    """The whole response of a ``Running``, however it ends; yields at least one chunk a block.

    The first chunk comes with the beginning of the first result, and at the end where there is none: when it has come
    and ``delivery`` has not begun, everything has ended, nothing was delivered, and the HTTP status can still say how.
    Where it has begun before, the head alone comes at once; only then is a ``Running`` opened that is not.
    """
    perform, delivery = running.perform, delivery or Delivery()
    waiting = [head(perform.dialect, session)]
    missing = {end.name: end for end in perform.end_points}
    ends = running.end_points()
    if delivery.begun:
        yield waiting.pop()
        try:
            _ = running.opened or running.open()
        except DaiError:  # the activities say it
            ends = iter(())
    for end, source in ends:
        del missing[end.name]
        for chunk in _result(end, source, running, delivery):
            waiting.append(chunk)
            if delivery.begun:
                yield b"".join(waiting)
                waiting.clear()
    yield b"".join(waiting) + ending(running, request, missing.values())


def _result(end: EndPoint, source: Source, running: Running, delivery: Delivery) -> Iterator[bytes]:
    """One end point. Its status word is what is known when the element opens: COMPLETED or ERROR where the whole
    content is there by then, PROCESSING otherwise; how it ended stands in the activity's result."""
    if isinstance(source, Stream):
        source = Encoded(source, format_named("webrowset"), running.environment.blocksize)
    binary = source.format.binary if isinstance(source, Encoded) else _is_binary(source)
    encoding = ' encoding="base64"' if binary else ""
    error: DaiError | None = None
    ahead: list[Block] = []
    began = 0.0
    try:
        going_on = False
        blocks: Iterator[Block] = iter(())
        try:
            blocks = source.pieces() if isinstance(source, Encoded) else source
            if source.media_type == FRAGMENT:
                blocks = delivery.watched(blocks)
            else:
                blocks = delivery.bounded(blocks, running.environment.cancellation)
            for block in blocks:
                ahead.append(block)
                going_on = _enough(ahead, began)
                if going_on:
                    break
                began = began or time.monotonic()
        except DaiError as early:
            error = early
        content = _content(chain(ahead, blocks if going_on else ()), source, binary)
        begun: list[bytes] = []
        try:
            begun.extend(islice(content, 1 if going_on else None))
        except DaiError as early:
            error = error or early
        if ahead and begun and source.media_type != FRAGMENT:
            delivery.begun = True
        status = ERROR if error is not None else PROCESSING if going_on else COMPLETED
        yield f'<result name={quoteattr(end.name)} status="{status}"{encoding}>'.encode() + b"".join(begun)
        if error is None:
            try:
                yield from content
            except DaiError as late:
                error = late
        if error is not None:
            running.progress.failed(end.activity, error)
            yield error_of(error, running.progress.culprit(end.activity))
        yield b"</result>\n"
    finally:
        source.close()


def _enough(ahead: list[Block], began: float) -> bool:
    """Further blocks are not awaited before the element opens; ``began``: when the first one had come."""
    return len(ahead) > 1 and (sum(map(len, ahead)) > AHEAD_BYTES or time.monotonic() - began > AHEAD_SECONDS)


def _content(blocks: Iterator[Block], source: ByteStream, binary: bool) -> Iterator[bytes]:
    if binary:
        return _base64(blocks)
    if source.media_type == FRAGMENT:
        return (bytes(memoryview(block.data)) for block in blocks)
    return _cdata(blocks, isinstance(source, Encoded) and source.format.name == "webrowset")


def _is_binary(source: ByteStream) -> bool:
    kind = source.media_type.split(";")[0].strip()
    return not (kind.startswith("text/") or kind.endswith(("xml", "json")) or kind == FRAGMENT)


def _cdata(blocks: Iterator[Block], clean: bool) -> Iterator[bytes]:
    """``clean`` text holds neither a carriage return nor what XML forbids, nor ``]]>`` behind its first block (a
    WebRowSet of ours). A failure closes the section before it goes on."""
    opening = b"<![CDATA["
    rest = b""
    try:
        for block in blocks:
            data = bytes(memoryview(block.data))
            if not clean:
                data = rest + data
                end = _whole(data)
                data, rest = _cdata_text(data[:end]), data[end:]
            elif opening:
                data = data.replace(b"]]>", _CDATA_END)
            yield opening + data
            opening = b""
        last = _cdata_text(rest)
    except DaiError:
        if not opening:
            yield b"]]>"
        raise
    yield opening + last + b"]]>"


def _whole(data: bytes) -> int:
    """How much of the text does not depend on what follows it: all but brackets that may begin a ``]]>``, and all but
    the first bytes of a character."""
    end = len(data.rstrip(b"]"))
    if end < len(data):
        return end
    for back in range(1, min(4, len(data) + 1)):
        lead = data[-back]
        if lead >= 0xC0:
            return len(data) - back if back < (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4) else len(data)
        if lead < 0x80:
            break
    return len(data)


def _cdata_text(data: bytes) -> bytes:
    """The text inside a CDATA section. EncodingError for what XML 1.0 cannot carry."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise EncodingError("The text is not UTF-8.", hint=_ELSEWHERE) from error
    if len(data.translate(None, _CONTROL)) < len(data) or b"\xef\xbf\xbe" in data or b"\xef\xbf\xbf" in data:
        match = FORBIDDEN.search(data.decode())
        assert match is not None
        raise EncodingError(
            f"The text holds the character U+{ord(match[0]):04X}, which XML cannot carry.", hint=_ELSEWHERE
        )
    data = data.replace(b"]]>", _CDATA_END)
    # a parser turns a raw carriage return into a line feed
    return data.replace(b"\r", b"]]>&#13;<![CDATA[") if b"\r" in data else data


_CDATA_END = b"]]]]><![CDATA[>"
_ELSEWHERE = (
    "Ask for this end point alone (?output=NAME), or have the character replaced in WebRowSet (invalidCharacters)."
)


def _base64(blocks: Iterator[Block]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        data = rest + bytes(memoryview(block.data))
        whole = len(data) - len(data) % 3
        rest = data[whole:]
        yield base64.b64encode(data[:whole])
    yield base64.b64encode(rest)
