"""A response document, read as it arrives.

The end points of a document come one after the other. The one being read streams; those that are passed over wait in
memory, beyond KEPT in an anonymous temporary file, so that they can be read in any order.
"""

from __future__ import annotations

import base64
import binascii
import re
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Self
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from dai.client.http.body import PIECE, Pieces
from dai.client.http.problems import error_members, from_problem
from dai.client.progress import DONE, STOPPED, Asked, Meter
from dai.client.results.result import Result, Source
from dai.errors import DaiError, DataError, NotFoundError, TruncatedError
from dai.plugins import nearest

KEPT = 32 << 20
_UNENDED = re.compile(rb' status="(?:UNSTARTED|PROCESSING)"')


class _Part(Pieces):
    """The bytes of one end point, as a source for a result."""

    def __init__(self, name: str, encoded: bool, response: Response) -> None:
        self.name, self.encoded, self._response = name, encoded, response
        self.complete = False
        self.error: DaiError | None = None
        self.received = 0
        self._streaming = self._closed = False
        self._pieces: deque[bytes] = deque()
        self._kept = tempfile.SpooledTemporaryFile(max_size=KEPT)  # noqa: SIM115 - closed with the part

    def feed(self, data: bytes) -> None:
        self.received += len(data)
        if self._closed or not data:
            return
        if self._streaming:
            self._pieces.append(data)
        else:
            self._kept.write(data)

    def piece(self) -> bytes | None:
        if not self._streaming:
            self._streaming = True
            self._kept.seek(0)
        if data := self._kept.read(PIECE):
            return data
        while not self._pieces and not self.complete:
            self._response.advance()
        if self._pieces:
            return self._pieces.popleft()
        if self.error is not None:
            raise self.error
        return None

    def close(self) -> None:
        self._closed = True
        self._pieces.clear()
        self._kept.close()


class ResponseResult(Result):
    """What a response says of one end point or activity: its ``status`` word, its ``error``, the ``update_count`` of an
    update; and its data, if it has any, like any other result. Reading a failed one raises its error."""

    def __init__(self, part: _Part, form: str | None, blocksize: int | None) -> None:
        super().__init__(part, form, blocksize=blocksize, progress=False)
        self._part = part
        self.name = part.name
        self.status: str | None = None
        self.committed = False
        """Of an activity beside which something failed: what it changed in the database stays changed."""
        self._count_of_update: int | None = None

    @property
    def error(self) -> DaiError | None:
        return self._part.error

    @property
    def update_count(self) -> int:
        """Rows that an update changed or a bulk load added; the error where it failed."""
        while not self._part.complete:
            self._part._response.advance()
        if self._part.error is not None:
            raise self._part.error
        if self._count_of_update is None:
            raise DataError(f"{self.name!r} is not the result of an update.")
        return self._count_of_update


class Results(Mapping[str, ResponseResult]):
    """By the name of the end point or activity, in the order of the document. A name that has not come yet is waited
    for; iterating and counting read the document to its end."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self._seen: dict[str, ResponseResult] = {}

    def __repr__(self) -> str:
        come = ", ".join(self._seen) or "none yet"
        return f"<Results: {come}{'' if self._response.complete else ', more may come'}>"

    def __getitem__(self, name: str) -> ResponseResult:
        while name not in self._seen and not self._response.complete:
            self._response.advance()
        if name not in self._seen:
            raise NotFoundError(f"The response has no result {name!r}.", hint=nearest(name, list(self._seen)))
        return self._seen[name]

    def __contains__(self, name: object) -> bool:
        try:
            return self[str(name)] is not None
        except NotFoundError:
            return False

    def __iter__(self) -> Iterator[str]:
        self._response.read_all()
        return iter(self._seen)

    def __len__(self) -> int:
        self._response.read_all()
        return len(self._seen)


class Response:
    """``results["name"]`` is what a document's end point or activity gave; ``status`` the word for the whole request.

    Nothing is read before it is asked for; a context manager that closes, which stops what still runs in the service.
    ``job`` is the job of a document without end points (None otherwise), ``completed`` whether that has ended.
    """

    def __init__(self, source: Source, *, blocksize: int | None = None, progress: Asked = None) -> None:
        self._source, self._blocksize = source, blocksize
        self._meter = Meter(progress)
        self._parser = _parser(self)
        self._open: ResponseResult | None = None
        self._depth = 0
        self._error: dict[str, Any] | None = None
        self._rest = b""
        self._copy: BinaryIO | None = None
        self._status: str | None = None
        self._failure: DaiError | None = None
        self.job: Any = None
        self.completed = False
        self._session: str | None = None
        self.request: str | None = None
        """The correlation id."""
        self.complete = False
        self.results = Results(self)

    @property
    def session(self) -> str | None:
        """The session the request belongs to; reads the document up to where it says so."""
        while self._session is None and not self.complete:
            self.advance()
        return self._session

    @property
    def status(self) -> str:
        """COMPLETED, COMPLETED_WITH_ERROR, PROCESSING …; reads the document to its end."""
        self.read_all()
        return self._status or "UNSTARTED"

    def read_all(self) -> Self:
        """Read to the end of the document, whatever it says."""
        while not self.complete:
            self.advance()
        return self

    def copy_to(self, file: BinaryIO) -> None:
        """Write the document itself to ``file`` as it arrives, each piece at once, to its end; of its results words and
        errors are kept.

        To be called before anything was read.
        """
        self._copy = file
        while not self.complete:
            self.advance()
            for result in self.results._seen.values():
                result.close()

    def check(self) -> Self:
        """Read to the end of the document and raise the first cause of a failure, if it tells of one. The error says
        what was committed all the same: in its text, in ``extra["committed"]`` (activities) and
        ``extra["update_counts"]``."""
        self.read_all()
        failed = [result for result in self.results.values() if result.error is not None]
        # The activity that failed before those that were stopped because of it.
        failed.sort(key=lambda result: (result.status != "ERROR", result.status == "TERMINATED"))
        if self._failure is not None:
            raise self._failure
        if failed and (error := failed[0].error) is not None:
            raise self._with_commits(error)
        return self

    def _with_commits(self, error: DaiError) -> DaiError:
        results = self.results.values()
        counts = {
            each.name: each._count_of_update
            for each in results
            if each._count_of_update is not None and each.error is None
        }
        return error.with_commits([each.name for each in results if each.committed], counts)

    def advance(self) -> None:
        """Read the next piece of the document."""
        try:
            piece = self._source.read1()
            if self.completed:  # which the document, small and older, does not say
                piece = _UNENDED.sub(b' status="COMPLETED"', b"".join([piece, *iter(self._source.read1, b"")]))
            self._meter.update(0, self._source.received)
            if self._copy is not None:
                self._copy.write(piece)
                self._copy.flush()  # whoever reads it may need the session's id to go on
            self._parser.Parse(piece, not piece)
        except expat.ExpatError as error:
            self.close()
            if error.code == expat.errors.codes[expat.errors.XML_ERROR_NO_ELEMENTS] or not piece:
                raise TruncatedError("The response document broke off; only a part of it arrived.") from error
            raise DataError(f"The response is not well-formed: {error}.") from error
        except BaseException:
            self.close()
            raise
        if not piece:
            self.complete = True
            self.close()

    def close(self) -> None:
        """Stop reading: before the end, the service stops what still runs."""
        self._meter.finish(0, self._source.received, DONE if self.complete else STOPPED)
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        seen = self.results._seen
        state = self._status if self.complete else "being read"
        return f"<Response: {state}, results {', '.join(seen) or 'none yet'}>"

    # --- what the parser calls ---

    def on_start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._error is not None:
            return
        if name == "error":
            self._error = error_members(attributes)
        elif self._open is not None:
            self._on_fragment(name, attributes)
        elif name == "session":
            self._session = attributes.get("id")
        elif name == "request":
            self.request, self._status = attributes.get("id"), attributes.get("status")
        elif name == "result" and self._depth == 2:
            self._on_result(attributes)

    def _on_result(self, attributes: dict[str, str]) -> None:
        name = attributes.get("name", "")
        result = self.results._seen.get(name)
        if result is None:
            part = _Part(name, attributes.get("encoding") == "base64", self)
            result = self.results._seen[name] = ResponseResult(part, None, self._blocksize)
        result.status = attributes.get("status", result.status)
        result.committed = attributes.get("committed") == "true"
        self._open = result

    def _on_fragment(self, name: str, attributes: dict[str, str]) -> None:
        assert self._open is not None
        if name == "resultStream" and attributes.get("updateCount", "").lstrip("-").isdigit():
            self._open._count_of_update = int(attributes["updateCount"])
        words = "".join(f" {key}={quoteattr(value)}" for key, value in attributes.items())
        self._open._part.feed(f"<{name}{words}>".encode())

    def on_data(self, text: str) -> None:
        if self._error is not None:
            self._error["detail"] = self._error.get("detail", "") + text
        elif self._open is not None:
            part = self._open._part
            if self._depth > 2:  # inside XML that stands in the result as it is
                text = escape(text)
            part.feed(self._unpacked(text.encode()) if part.encoded else text.encode())

    def _unpacked(self, data: bytes) -> bytes:
        data = self._rest + b"".join(data.split())
        whole = len(data) - len(data) % 4
        self._rest = data[whole:]
        try:
            return base64.b64decode(data[:whole], validate=True)
        except binascii.Error as error:
            raise DataError(f"The response holds binary data that is not base64: {error}.") from error

    def on_end(self, name: str) -> None:
        self._depth -= 1
        if name == "error" and self._error is not None:
            failure = from_problem(self._error)
            self._error = None
            if self._open is not None:
                self._open._part.error = failure
            else:
                self._failure = self._failure or failure
        elif self._open is not None and self._error is None:
            if self._depth == 1:
                if self._rest and self._open._part.error is None:
                    raise DataError(f"The binary data of {self._open.name!r} is incomplete.")
                self._open._part.complete = True
                self._open, self._rest = None, b""
            else:
                self._open._part.feed(f"</{name}>".encode())


def _local(name: str) -> str:
    return name.rpartition(":")[2]


def _refused(*_: object) -> None:
    raise DataError("The response holds a document type declaration, which a response of a data service never has.")


def _parser(response: Response) -> Any:
    parser = expat.ParserCreate()
    parser.buffer_text, parser.buffer_size = True, PIECE
    parser.StartElementHandler = lambda name, attributes: response.on_start(_local(name), attributes)
    parser.EndElementHandler = lambda name: response.on_end(_local(name))
    parser.CharacterDataHandler = response.on_data
    parser.StartDoctypeDeclHandler = _refused
    return parser
