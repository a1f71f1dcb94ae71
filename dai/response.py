"""The response document: ``gridDataServiceResponse`` (2003/07) or ``response`` (2005/10), streamed.

The end points come first, each as it is pulled; then the activities, when how they ended is known. Text stands as
CDATA, binary data as base64, XML fragments as they are. A failure half-way closes what is open and stands as
``error`` in the result it struck, so that the document stays well-formed and the reader sees it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from itertools import islice
from xml.sax.saxutils import escape, quoteattr

from dai.activity import FRAGMENT, Source
from dai.errors import DaiError, EncodingError
from dai.formats import format_named
from dai.perform_graph import Dialect, EndPoint, Perform
from dai.pipeline import COMPLETED, ERROR, PROCESSING, TERMINATED, UNSTARTED, Report, Running
from dai.stream import Block, ByteStream, Encoded, Stream

MEDIA_TYPE = "application/xml"
WITH_ERROR = "_WITH_ERROR"

_FORBIDDEN = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|\xef\xbf[\xbe\xbf]")


def document(running: Running, session: str, request: str) -> Iterator[bytes]:
    """The whole response of an opened ``Running``, however it ends; yields at least one chunk a block."""
    dialect = running.perform.dialect
    yield _head(dialect, session)
    try:
        for end, source in running.end_points():
            yield from _result(end, source, running)
    except DaiError:
        pass  # a later step could not be opened: its activity's report says why
    reports = running.reports()
    for report in reports:
        yield _activity_result(report)
    yield _tail(dialect, request, _status(reports))


def processing(perform: Perform, session: str, request: str) -> bytes:
    """The answer to a document that goes on by itself as a job."""
    results = b"".join(_activity_result(Report(each.name, each.element)) for each in perform.activities)
    return _head(perform.dialect, session) + results + _tail(perform.dialect, request, PROCESSING)


def failure(error: DaiError, dialect: Dialect, request: str) -> bytes:
    """The answer where nothing ran."""
    return _head(dialect, None) + _error(error) + b"\n" + _tail(dialect, request, ERROR)


def _head(dialect: Dialect, session: str | None) -> bytes:
    joined = f"\n<session id={quoteattr(session)}/>" if session else ""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<{dialect.response} xmlns="{dialect.namespace}">{joined}\n'
    ).encode()


def _tail(dialect: Dialect, request: str, status: str) -> bytes:
    return f'<request id={quoteattr(request)} status="{status}"/>\n</{dialect.response}>\n'.encode()


def _status(reports: tuple[Report, ...]) -> str:
    words = {report.status for report in reports}
    if ERROR in words:
        return f"{COMPLETED}{WITH_ERROR}" if COMPLETED in words else ERROR
    return next((word for word in (TERMINATED, PROCESSING, UNSTARTED) if word in words), COMPLETED)


def _result(end: EndPoint, source: Source, running: Running) -> Iterator[bytes]:
    """One end point. Its status word is what is known when the element opens: COMPLETED or ERROR where the whole
    content is there by then (two pieces of lookahead), PROCESSING otherwise; how it ended stands in the activity's
    result."""
    if isinstance(source, Stream):
        source = Encoded(source, format_named("webrowset"), running.environment.blocksize)
    binary = source.format.binary if isinstance(source, Encoded) else _is_binary(source)
    encoding = ' encoding="base64"' if binary else ""
    content = _content(source, binary)
    try:
        ahead: list[bytes] = []
        status, error = COMPLETED, None
        try:
            ahead.extend(islice(content, 3))
            if len(ahead) == 3:
                status = PROCESSING
        except DaiError as early:
            status, error = ERROR, early
        yield f'<result name={quoteattr(end.name)} status="{status}"{encoding}>'.encode() + b"".join(ahead)
        if error is None:
            try:
                yield from content
            except DaiError as late:
                error = late
        if error is not None:
            running.note(error)
            yield _error(error, end.activity)
        yield b"</result>\n"
    finally:
        source.close()


def _content(source: ByteStream, binary: bool) -> Iterator[bytes]:
    blocks: Iterator[Block] = source.in_pieces() if isinstance(source, Encoded) else source
    if binary:
        return _base64(blocks)
    if source.media_type == FRAGMENT:
        return (bytes(memoryview(block.data)) for block in blocks)
    return _cdata(blocks, isinstance(source, Encoded) and source.format.name == "webrowset")


def _is_binary(source: ByteStream) -> bool:
    kind = source.media_type.split(";")[0]
    return not (kind.startswith("text/") or kind.endswith(("xml", "json")) or kind == FRAGMENT)


def _cdata(blocks: Iterator[Block], clean: bool) -> Iterator[bytes]:
    """``clean`` text holds neither ``]]>`` nor a carriage return nor what XML forbids (a WebRowSet of ours). A failure
    closes the section before it goes on."""
    opening = b"<![CDATA["
    kept = b""
    try:
        for block in blocks:
            data = bytes(memoryview(block.data))
            if not clean:
                data = kept + data
                # brackets at the end may be the first two of a "]]>" that the next block completes
                keep = len(data) - len(data.rstrip(b"]"))
                data, kept = data[: len(data) - keep], data[len(data) - keep :]
                data = _cdata_text(data)
            yield opening + data
            opening = b""
    except DaiError:
        if not opening:
            yield b"]]>"
        raise
    yield opening + kept + b"]]>"


def _cdata_text(data: bytes) -> bytes:
    if (found := _FORBIDDEN.search(data)) is not None:
        raise EncodingError(
            f"The text holds the character U+{data[found.start()]:04X}, which XML cannot carry.",
            hint="Ask for this end point alone (?output=NAME), or for WebRowSet with a replacement policy.",
        )
    data = data.replace(b"]]>", b"]]]]><![CDATA[>")
    # a parser turns a raw carriage return into a line feed
    return data.replace(b"\r", b"]]>&#13;<![CDATA[") if b"\r" in data else data


def _base64(blocks: Iterator[Block]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        data = rest + bytes(memoryview(block.data))
        whole = len(data) - len(data) % 3
        rest = data[whole:]
        yield base64.b64encode(data[:whole])
    yield base64.b64encode(rest)


def _activity_result(report: Report) -> bytes:
    error = _error(report.error, report.activity) if report.error is not None else b""
    name, status = quoteattr(report.activity), report.status
    if error:
        return f'<result name={name} status="{status}">'.encode() + error + b"</result>\n"
    return f'<result name={name} status="{status}"/>\n'.encode()


def _error(error: DaiError, activity: str | None = None) -> bytes:
    at = f" activity={quoteattr(activity)}" if activity else ""
    message = _FORBIDDEN.sub(b"?", escape(str(error)).encode())
    return f"<error id={quoteattr(error.code)}{at}>".encode() + message + b"</error>"
