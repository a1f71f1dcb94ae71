"""The half of a synchronous request that runs in worker threads: a pipeline whose bytes are pulled piece by piece."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from typing import Any

from dai.api.requests.negotiation import DOCUMENT, accepts_xml, best, media_types, not_acceptable
from dai.api.scheduling.turns import SMALL_BYTES, SMALL_SECONDS, Turns
from dai.config import LimitsConfig
from dai.errors import ClosedError, DaiError, InternalError, of_memory
from dai.formats import Format, format_named
from dai.formats.compression import IDENTITY, Compressor, compress
from dai.perform.activity import FRAGMENT, Source
from dai.perform.parser import EndPoint, Perform
from dai.perform.pipeline import Environment, Running
from dai.perform.pipeline.progress import COMPLETED_WITH_ERROR, ERROR, TERMINATED, overall
from dai.perform.response import Delivery, document
from dai.perform.statuses import MEDIA_TYPE, partial
from dai.service.limits import exceeded
from dai.service.resources import ROLES
from dai.streams.cancellation import Cancellation
from dai.streams.limited import is_truncated
from dai.streams.stream import Block, ByteStream, Encoded, Stream

GATHER_BYTES = 1 << 18
"""Small pieces leave together up to about this size …"""
GATHER_SECONDS = 0.02
"""… or when this much time has passed."""

PARTIAL = 207
"""The status where something failed and something else was done, nothing of a result having been delivered."""

Pieces = list[Any]


class Work:
    """One request. ``begin``, ``pull`` and ``close`` are called from any threads; each waits for the other.

    Without ``output`` the pieces are those of the response document; otherwise those of that end point alone, in
    ``form`` (None: its own form, which ``accept`` must allow). With ``replace_invalid`` characters that XML cannot
    carry are replaced in a WebRowSet. ``rows`` and ``size`` (bytes, before any coding) count
    what was pulled. ``awaited``: the client learns the session from the head of the response document, which leaves at
    once, and feeds or reads streams only then.
    """

    def __init__(
        self,
        perform: Perform,
        environment: Environment,
        limits: LimitsConfig,
        request: str,
        *,
        output: str | None = None,
        form: Format | None = None,
        accept: str | None = None,
        coding: str = IDENTITY,
        replace_invalid: bool = False,
        awaited: bool = False,
        turns: Turns | None = None,
        statement: int | None = None,
    ) -> None:
        self.perform, self.environment, self.limits, self.request = perform, environment, limits, request
        self.output, self.form, self.accept, self.coding, self.awaited = output, form, accept, coding, awaited
        self.replace_invalid = replace_invalid
        self.media_type = MEDIA_TYPE if output is None else form.media_type if form is not None else ""
        self.turns, self.statement = turns or Turns(1), statement
        self.status = 200
        self.small = False
        """Whether it ended soon after it was begun, with a small answer."""
        self.truncated = False
        """Whether a limit of the request cut the result on purpose."""
        self.rows = self.size = 0
        self.error: DaiError | None = None
        self.stages: dict[str, float] = {}
        self._running = Running(perform, environment)
        self._lock = threading.Lock()
        self._pieces: Iterator[Any] = iter(())
        self._compressor: Compressor | None = None
        self._began = self._gathering = self._fetch = self._produce = self._encode = self._resumed = 0.0
        self._closed = self._ended = self._sent = False
        self._late: DaiError | None = None
        self._counts: dict[str, bytes] = {}
        """What the end points gave that are no results."""

    @property
    def role(self) -> bool:
        """Whether it is asked of a role of the service, not of a resource with data."""
        driver = self.environment.driver
        return driver is not None and driver.role in ROLES

    @property
    def cancellation(self) -> Cancellation:
        return self.environment.cancellation

    def begin(self) -> tuple[Pieces, bool]:
        """Opens the pipeline and pulls for the first time; ``media_type`` and ``status`` are known then. Closed already
        when it raises, or when it says that this was all."""
        with self._lock:
            self._began = time.perf_counter()
            try:
                self.cancellation.check()
                if self._closed:
                    raise InternalError("This request was closed.")
                self._compressor = Compressor(self.coding) if self.coding != IDENTITY else None
                self._pieces = self._document() if self.output is None else self._end_point(self.output)
                try:
                    pieces, done = self._gather()
                except DaiError as error:
                    if not self._running.committed:
                        raise
                    pieces, done = [self._partial(self.output, error)], True
                self._sent = True
                return pieces, done
            except BaseException as error:
                self._close()
                raise self._translated(error) from error

    def pull(self) -> tuple[Pieces, bool]:
        """The next pieces, and whether they are the last. Closed already when it raises or was the last."""
        with self._lock:
            if self._late is not None:
                raise self._translated(self._late) from self._late
            if self._closed:
                raise self.cancellation.cause or InternalError("This request was closed.")
            try:
                return self._gather()
            except BaseException as error:
                self._close()
                raise self._translated(error) from error

    def close(self) -> None:
        """Frees everything, after the pull that may be under way. Idempotent."""
        with self._lock:
            self._close()

    @property
    def closed(self) -> bool:
        return self._closed

    def _translated(self, error: BaseException) -> BaseException:
        if isinstance(error, DaiError) and self.cancellation.cause is not None:
            return self.cancellation.cause
        return of_memory(error) or error

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            closing = getattr(self._pieces, "close", None)
            if closing is not None:
                closing()
        finally:
            self._running.close()
            self.stages["fetch"] = self._fetch
            self.stages["encode"] = max(0.0, self._produce - self._fetch)

    def _gather(self) -> tuple[Pieces, bool]:
        self._gathering = time.perf_counter()
        # What a role reports is wanted at once, and so is the session's id.
        seconds = 0.0 if self.role or self.awaited else GATHER_SECONDS
        pieces: Pieces = []
        size = 0
        try:
            for piece in self._pieces:
                pieces.append(piece if self._compressor is None else self._compressor.add(piece))
                size += memoryview(pieces[-1]).nbytes
                if not self._ended and (size >= GATHER_BYTES or time.perf_counter() - self._gathering > seconds):
                    return pieces, False
        except DaiError as error:
            if not pieces or not self._sent:
                raise
            # what came before it is delivered
            self._late = error
            self._close()
            return pieces, False
        finally:
            self._produce += time.perf_counter() - self._gathering
        if self._compressor is not None:
            pieces.append(self._compressor.end())
        self._close()
        self.small = self.size <= SMALL_BYTES and time.perf_counter() - self._began <= SMALL_SECONDS
        return pieces, True

    # --- what is pulled ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Opens the pipeline; the time of that is no time of gathering."""
        began = time.perf_counter()
        self._running.open()
        self._gathering = time.perf_counter()
        self.stages["execute"] = self._gathering - began

    def _document(self) -> Iterator[bytes]:
        if not (self.awaited and any(each.element == "inputStream" for each in self.perform.activities)):
            self._open()
        ends = {end.activity for end in self.perform.end_points}
        delivery = Delivery(self.awaited, functools.partial(exceeded, self.limits))
        for piece in document(self._running, self.environment.session.id, self.request, delivery):
            if not delivery.begun:
                self._ended = True
                self.status = self._outcome()
                if self.status >= 400 and not accepts_xml(self.accept):
                    self._running.raise_cause()
            self.size = delivery.size = delivery.size + len(piece)
            self.rows = self._running.progress.rows_of(ends)
            error = exceeded(self.limits, self.rows, self.size)
            if error is not None:
                error.detail += f" {self.rows:,} rows came before."
                error.extra["rows"] = self.rows
                self.cancellation.cancel(error)
            yield piece
        cause = self._running.cause
        if cause is not None:
            self.error = self.cancellation.cause or cause

    def _outcome(self) -> int:
        """The status of a request that has ended and delivered no result."""
        cause = self.cancellation.cause or self._running.cause
        if cause is None or isinstance(cause, ClosedError):
            return 200
        word = overall(self.perform, self._running.reports())
        if word == COMPLETED_WITH_ERROR or self._running.committed:
            return PARTIAL
        return cause.status if word in (ERROR, TERMINATED) else 200

    def _end_point(self, name: str) -> Iterator[Any]:
        """The bytes of one end point; the others are run and dropped. A failure anywhere is a failure of it. What
        is no result, such as the count of an update, waits for the end of everything."""
        self._open()
        for end, source in self._running.end_points():
            delivery = Delivery()
            waiting: list[Any] = []
            blocks: Iterator[Any] = self._bounded(self._encoded(end, source)) if end.name == name else source
            if fragment := isinstance(source, ByteStream) and source.media_type == FRAGMENT:
                blocks = delivery.watched(blocks)
            with source:
                for block in blocks:
                    if fragment and not delivery.begun:
                        waiting.append(block.data)
                        continue
                    if end.name == name:
                        yield from (*waiting, block.data)
                    waiting.clear()
            self._counts[end.name] = b"".join(waiting)
        self._running.raise_cause()
        self._ended = True
        if self._counts[name]:
            yield self._counts[name]

    def _partial(self, output: str | None, error: DaiError) -> bytes:
        """The response document in place of the end point, or of one that could not be begun; nothing has left."""
        self._close()
        self.error = self.cancellation.cause or error
        self.status, self.media_type, self.rows = PARTIAL, MEDIA_TYPE, 0
        session = self.environment.session.id
        body = partial(self._running, self._counts, output, self.error, session, self.request)
        return body if self.coding == IDENTITY else b"".join(compress(iter([body]), self.coding))

    def _encoded(self, end: EndPoint, source: Source) -> ByteStream:
        if isinstance(source, Stream):
            source = Encoded(source, format_named("webrowset"), self.environment.blocksize)
        if isinstance(source, Encoded):
            source.tuples = self._timed(source.tuples)
            self.truncated = is_truncated(source.tuples.schema)
            if self.form is not None and self.form.name != source.format.name:
                source = source.recoded(self.form)
            if self.replace_invalid and source.format.name in ("webrowset", "votable"):
                source.options = {**source.options, "on_invalid": "replace"}
            self.media_type = source.media_type
            return ByteStream(source.media_type, self._in_turn(source.pieces()), source.close)
        self.media_type = DOCUMENT if source.media_type == FRAGMENT else source.media_type
        if self.form is not None and self.form.media_type != self.media_type:
            raise not_acceptable(self.accept, [self.media_type])
        if best(self.accept, [self.media_type.partition(";")[0]]) is None:
            raise not_acceptable(self.accept, [self.media_type, *(media_types().values() if end.tabular else ())])
        return source

    def _timed(self, tuples: Stream) -> Stream:
        def batches() -> Iterator[Any]:
            while True:
                began = time.perf_counter()
                self.turns.leave()
                try:
                    batch = next(tuples, None)
                    self._fetch += time.perf_counter() - began
                finally:
                    self.turns.take(self._encode + began - self._resumed)
                # the time of the database, and of the wait for a turn, is not its own
                self._resumed += time.perf_counter() - began
                if batch is None:
                    return
                yield batch

        return Stream(tuples.schema, batches(), tuples.close)

    def _in_turn(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """The blocks of an encoder, which computes: beside others where there is room, else in turns."""
        while True:
            self.turns.take(self._encode)
            self._resumed = time.perf_counter()
            try:
                block = next(blocks, None)
            finally:
                self._encode += time.perf_counter() - self._resumed
                self.turns.leave()
            if block is None:
                return
            yield block

    def _bounded(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            rows, size = self.rows + block.rows, self.size + len(block)
            error = exceeded(self.limits, rows, size)
            if error is not None:
                raise error
            self.rows, self.size = rows, size
            yield block
