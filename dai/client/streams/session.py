"""Sessions: named streams between requests, pulled and pushed in numbered blocks.

A block that was lost on its way is asked for, or sent, again under its number; so a retry never loses or repeats one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import quote

from dai.client.documents import activity, document, element
from dai.client.http.problems import from_reply
from dai.client.http.transport import Reply, Transport
from dai.client.jobs import Job
from dai.client.results.result import Result
from dai.client.streams.pull import HELD, Pull
from dai.errors import BackPressureError, DaiError, DataError, QuotaError
from dai.formats import format_named, frames, media_type

if TYPE_CHECKING:
    from dai.client.results.response import Response
    from dai.streams.stream import Block

PATIENCE = 60.0
"""Seconds a push waits for a reader that takes nothing."""
BACK_PRESSURE = frozenset({429, 503})
"""No room for the block: in its stream, its session, or the service."""


class Performing(Protocol):
    """A resource, as a session needs it."""

    @property
    def perform(self) -> Callable[..., Any]: ...

    @property
    def submit(self) -> Callable[..., Any]: ...


class Session:
    """A context manager: leaving it ends the session (if it is our ``own``), which stops and frees everything in it."""

    def __init__(self, resource: Performing, transport: Transport, id: str, *, own: bool = True) -> None:
        self.resource, self.id, self.transport = resource, id, transport
        self.path = f"/sessions/{quote(id, safe='')}"
        self._open = own
        self._owed: list[Callable[[], None]] = []
        """What acknowledges the last blocks of streams; not needed where the session ends."""

    @classmethod
    def create(cls, resource: Performing, transport: Transport, timeout: float | None = None) -> Self:
        """A new one; ``timeout``: seconds after its last use that it ends by itself."""
        import json

        body = json.dumps({"timeout": timeout} if timeout else {}).encode()
        reply = transport.send("POST", "/sessions", body, {"Content-Type": "application/json"})
        with reply.body:
            return cls(resource, transport, str(reply.json()["id"]))

    @property
    def url(self) -> str:
        """The address of the session, for deliverToGDT and deliverFromGDT of another service."""
        return self.transport.base + self.path

    def stream_path(self, stream: str) -> str:
        return f"{self.path}/streams/{quote(stream, safe='')}"

    def perform(self, document: Any, **options: Any) -> Response | Result:
        """Like ``Resource.perform``, in this session: its streams outlive the request."""
        self._settle()
        answer: Response | Result = self.resource.perform(document, session=self.id, **options)
        return answer

    def transfer(self, stream: str, source: Performing, sql: str, **options: Any) -> Job:
        """Has another service deliver the rows of a query into an inputStream of this session; no data passes through
        the client. Gives the job there, which is done when the stream was read. ``options`` as of
        ``Resource.submit``."""
        rows = element("webRowSetStream", name="rows")
        target = element("toGDT", self.url, streamId=stream, mode="block")
        query = activity("sqlQueryStatement", element("expression", sql), rows, name="query")
        delivery = activity("deliverToGDT", element("fromLocal", from_="rows"), target, name="deliver")
        job: Job = source.submit(document(query, delivery), **options)
        return job

    def pull(self, stream: str, count: int | None = None, start: int = 0, depth: int = 1) -> Pull:
        """The blocks of an outputStream from block ``start``, ``count`` a request; None: as many as pay. ``depth``: so
        many requests on their way at once, each on a connection of its own, which pays where the service is far."""
        self._settle()
        owing = self._owed.append if self._open else None
        return Pull(self.transport, self.stream_path(stream), count, start, depth, owing)

    def push(
        self,
        stream: str,
        batches: Any,
        *,
        format: str = "webrowset",
        blocksize: int | None = None,
        first: int = 0,
        last: bool = True,
        patience: float = PATIENCE,
    ) -> int:
        """Push into an inputStream and end it (unless ``last`` is False); gives the number of the next block.

        ``batches``: a table, record batches or a reader of them, encoded as ``format`` in blocks of ``blocksize`` rows;
        or blocks of bytes, sent as they are. Held back while the reader is slower; Ctrl-C leaves the stream open.

        Raises BackPressureError when there was no room for a block for ``patience`` seconds, because nobody reads or
        the reader is stuck: what was sent before stays in the stream. BusyError when the service had none for all its
        sessions. GoneError where the session ends meanwhile.
        """
        self._settle()
        number, static, kind = first, b"", media_type(format)
        # over a network tuples travel compressed with the static part of their document
        in_frames = not first and self.transport.compresses and bool(self.transport.json(self.path).get("frames"))
        pending: bytes | Block | None = None

        def put(block: bytes | Block, last: bool) -> None:
            frame = frames.pushed(block, number, static) if in_frames and not isinstance(block, bytes) else None
            data = frame or (block if isinstance(block, bytes) else memoryview(block.data))
            headers = {"Content-Type": frames.MEDIA_TYPE if frame else kind}
            self._put(stream, number, data, headers, patience, last=last)

        for block in blocks_of(batches, format, blocksize):
            if pending is not None:
                put(pending, last=False)
                number += 1
            elif not isinstance(block, bytes):
                static = block.static
            pending = block
        if pending is not None or last:
            put(pending or b"", last)
            number += 1
        return number

    def _put(
        self,
        stream: str,
        number: int,
        block: bytes | memoryview,
        headers: dict[str, str],
        patience: float,
        *,
        last: bool,
    ) -> None:
        path = f"{self.stream_path(stream)}/blocks/{number}?" + ("last=true&" if last else "")
        deadline = time.monotonic() + patience
        left = patience
        while True:
            wait = int(min(HELD, left))
            reply: Reply = self.transport.send("PUT", f"{path}wait={wait}", block, headers, BACK_PRESSURE)
            with reply.body:
                content = reply.body.read_all()
            if reply.status not in BACK_PRESSURE:
                return
            refusal = from_reply(reply.status, reply.media_type, content)
            if isinstance(refusal, QuotaError):
                raise refusal
            left = deadline - time.monotonic()
            if left <= 0:
                if reply.status == 503:
                    raise refusal
                raise self._stuck(stream, patience)
            time.sleep(min(reply.retry_after or 0.1, left))
            left = max(0.0, deadline - time.monotonic())

    def _stuck(self, stream: str, patience: float) -> BackPressureError:
        """Why a push gave up, from what the service says of the session's streams."""
        streams = self.transport.json(self.path)["streams"]
        others = [f"{each['name']} ({each['direction']})" for each in streams if each["name"] != stream]
        hint = f"Its other streams: {', '.join(others)}." if others else "It has no other stream."
        taken = next((each["next"] - each["blocks"] for each in streams if each["name"] == stream), 0)
        if taken:
            detail = f"The reader of the stream {stream!r} made no room for {patience:g} seconds, after {taken} blocks."
            return BackPressureError(detail, hint=hint + " For a slow reader set a longer patience= (seconds).")
        detail = f"Nobody reads the stream {stream!r} of this session; is there an inputStream of that name?"
        return BackPressureError(detail, hint=hint)

    def _settle(self) -> None:
        while self._owed:
            acknowledge = self._owed.pop()
            with suppress(DaiError):
                acknowledge()

    def close(self) -> None:
        """End the session if it is our own: what still runs in it stops."""
        if self._open:
            self._open = False
            with self.transport.send("DELETE", self.path, accepted=frozenset({404})).body:
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except DaiError:
            # The first failure counts; a session that cannot be ended ends by its time-out.
            if kind is None:
                raise

    def __repr__(self) -> str:
        return f"<Session {self.id} of {self.resource!r}>"


def blocks_of(batches: Any, format: str, blocksize: int | None) -> Iterator[bytes | Block]:
    """Of a table, record batches or a reader of them, encoded; bytes as they are."""
    if isinstance(batches, bytes):
        yield batches
        return
    import pyarrow as pa

    from dai.streams.stream import Stream

    if isinstance(batches, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        stream = Stream.of(batches)
    elif isinstance(batches, Iterable):
        iterator = iter(batches)
        first = next(iterator, None)
        if first is None:
            return
        if not isinstance(first, pa.RecordBatch):
            yield from _raw(chain([first], iterator))
            return
        stream = Stream(first.schema, chain([first], iterator))
    else:
        raise DataError(f"Blocks must be record batches or bytes, not {type(batches).__name__}.")
    with stream:
        yield from format_named(format).encode(stream, blocksize)


def _raw(blocks: Iterable[Any]) -> Iterator[bytes]:
    for each in blocks:
        if not isinstance(each, bytes | bytearray | memoryview):
            raise DataError(f"Blocks must be record batches or bytes, not {type(each).__name__}.")
        yield bytes(each)
