"""The body of a reply: bytes as they come, counted, and never short without an error."""

from __future__ import annotations

import http.client
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol, Self

from dai.errors import (
    DaiError,
    DatabaseUnavailableError,
    LimitError,
    MissingDependencyError,
    RequestError,
    TruncatedError,
    UnreachableError,
)
from dai.streams.cancellation import Cancellation

PIECE = 1 << 18
"""Bytes asked for at once where nobody asked for a number."""
SMALL = 1 << 26
"""Most bytes of a description, a list or an error, because the answering server may be anything."""
MOST_AT_ONCE = 1 << 22
"""Bytes of one piece, where all of them are waited for."""


class Reading(Protocol):
    """``readinto`` fills the whole buffer unless the end comes first; ``read1`` gives what is there, b"" at the end.
    Both raise TruncatedError for a transfer that broke off, UnreachableError after too long a silence."""

    def readinto(self, buffer: memoryview) -> int: ...

    def read1(self, size: int = PIECE) -> bytes: ...


class Pieces(ABC):
    """``Reading`` of bytes that come in pieces."""

    _left = memoryview(b"")

    @abstractmethod
    def piece(self) -> bytes | memoryview | None:
        """The next piece; None after the last one."""

    def read1(self, size: int = PIECE) -> bytes:
        while not self._left:
            piece = self.piece()
            if piece is None:
                return b""
            if isinstance(piece, bytes) and 0 < len(piece) <= size:
                return piece
            self._left = memoryview(piece)
        taken, self._left = bytes(self._left[:size]), self._left[size:]
        return taken

    def readinto(self, buffer: memoryview) -> int:
        count = 0
        while count < len(buffer) and (piece := self.read1(len(buffer) - count)):
            buffer[count : count + len(piece)] = piece
            count += len(piece)
        return count


_UNTOLD = "The service stopped it (its log says why), or the connection was lost."


class Plain:
    """The bytes as they travel. At its end the connection is given back; closed before, after a failure or an
    interrupt, the connection is closed, which makes the service stop the work. ``interrupt`` wakes whoever reads when
    the work is cancelled: its cause is raised instead of what was read. Where nobody reads at that moment it is closed
    at once: half a connection whose buffers are full would tell the service nothing. ``why`` asks the service, by the
    correlation id, for what made it break a transfer off."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        give_back: Callable[[], None],
        cancellation: Cancellation,
        interrupt: Callable[[], None],
        why: Callable[[str], DaiError | None] = lambda _: None,
    ) -> None:
        self._connection, self._response, self._give_back = connection, response, give_back
        self._cancellation = cancellation
        self._interrupt, self._why = interrupt, why
        self._lock = threading.Lock()
        self._open, self._reading = True, False
        self.ended = False
        self.received = 0
        self._listening = ExitStack()
        own = weakref.WeakMethod(self._interrupted)  # who forgets the body closes it, too

        def interrupted() -> None:
            if (method := own()) is not None:
                method()

        try:
            self._listening.enter_context(cancellation.on_cancel(interrupted))
        except BaseException:
            self.close()
            raise
        if response.length == 0:
            self._finish()

    def readinto(self, buffer: memoryview) -> int:
        if self.ended or not buffer:
            return 0
        count: int = self._guarded(self._response.readinto, buffer)
        self.received += count
        if count < len(buffer) or self._response.length == 0:
            self._finish()
        return count

    def read1(self, size: int = PIECE) -> bytes:
        if self.ended:
            return b""
        piece: bytes = self._guarded(self._response.read1, size)
        self.received += len(piece)
        if not piece or self._response.length == 0:
            self._finish()
        return piece

    def rest(self) -> Iterator[bytes]:
        """All pieces that are left, a large one where it is known how much that is."""
        while not self.ended:
            piece: bytes = self._guarded(self._response.read, min(self._response.length or PIECE, MOST_AT_ONCE))
            self.received += len(piece)
            if not piece or self._response.length == 0:
                self._finish()
            yield piece

    def _guarded(self, read: Callable[[Any], Any], argument: Any) -> Any:
        with self._lock:
            self._reading = True
        try:
            self._cancellation.check()
            if not self._open:
                raise TruncatedError("This result was closed before it was read to its end.")
            result = read(argument)
        except TimeoutError as error:
            self.close()
            raise UnreachableError(
                f"The service stopped sending after about {self.received:,} bytes.",
                hint="Run long work as a job: .submit(…); or connect with a longer read= (seconds).",
            ) from error
        except (http.client.HTTPException, OSError, ValueError) as error:
            self.close()
            self._cancellation.check()
            raise self._truncated() from error
        except BaseException:
            self.close()
            raise
        finally:
            with self._lock:
                self._reading = False
        if self._cancellation.cancelled:  # until now that has only woken this thread
            self.close()
            self._cancellation.check()
        return result

    def _interrupted(self) -> None:
        with self._lock:
            reading = self._reading
        if reading:
            self._interrupt()
        else:
            self.close()

    def _finish(self) -> None:
        # Without a length and without chunks nobody can tell the end from a lost connection.
        if self._response.length != 0 and not self._response.chunked:
            self.close()
            raise self._truncated()
        self.ended = True
        self._response.close()
        if self._mark_closed():
            self._listening.close()
            if self._response.will_close:
                self._connection.close()
            else:
                self._give_back()

    def _truncated(self) -> DaiError:
        correlation = self._response.headers.get("x-request-id")
        reason = self._why(correlation) if correlation and self._response.chunked else None
        if isinstance(reason, RequestError | LimitError | DatabaseUnavailableError):
            reason.detail += " What arrived is not the whole result."
            return reason
        return TruncatedError(
            f"The transfer broke off after about {self.received:,} bytes; what arrived is not the whole result.",
            hint=(f"The service stopped it: {reason.detail}" if reason is not None else _UNTOLD)
            + (f"\nCorrelation id: {correlation}" if correlation else ""),
        )

    def close(self) -> None:
        if self._mark_closed():
            self._listening.close()
            self._connection.close()
            self._response.close()

    def _mark_closed(self) -> bool:
        """Says once that it was open, and is no more: who cancels may close it while its reader comes to the end."""
        with self._lock:
            was, self._open = self._open, False
        return was


class Body:
    """What the reply holds, decompressed. Read from one thread; closing is idempotent."""

    def __init__(self, plain: Plain, encoding: str = "identity") -> None:
        self._plain = plain
        self._reading: Reading = _decoded(plain, encoding)

    @property
    def received(self) -> int:
        """Bytes received, as they travel."""
        return self._plain.received

    @property
    def ended(self) -> bool:
        """The whole body has been received."""
        return self._plain.ended

    def readinto(self, buffer: memoryview) -> int:
        """Fill ``buffer``; fewer bytes only at the end of the body."""
        return self._reading.readinto(buffer)

    def read1(self, size: int = PIECE) -> bytes:
        """Up to ``size`` bytes as soon as some are there; b"" at the end."""
        return self._reading.read1(size)

    def __iter__(self) -> Iterator[bytes]:
        while piece := self._reading.read1():
            yield piece

    def read_all(self) -> bytes:
        return b"".join(self._plain.rest() if self._reading is self._plain else self)

    def read_small(self, most: int = SMALL) -> bytes:
        """All of an answer that is small; LimitError for one that is not, however it was compressed."""
        pieces, size = [], 0
        for piece in self._plain.rest() if self._reading is self._plain else self:
            pieces.append(piece)
            size += len(piece)
            if size > most:
                self.close()
                raise LimitError(
                    f"The service answered with more than the {most:,} bytes expected here.",
                    hint="Is this the address of a data service?",
                )
        return b"".join(pieces)

    def close(self) -> None:
        self._plain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Decompressing:
    """A decompressor's own reader over the plain bytes; ``broken`` is what it raises for bytes it cannot read."""

    def __init__(self, plain: Plain, reader: Any, broken: tuple[type[Exception], ...]) -> None:
        self._plain, self._reader, self._broken = plain, reader, broken

    def readinto(self, buffer: memoryview) -> int:
        count: int = self._guarded(self._reader.readinto, buffer)
        if count < len(buffer):
            self._drain()
        return count

    def read1(self, size: int = PIECE) -> bytes:
        piece: bytes = self._guarded(self._reader.read1, size)
        if not piece:
            self._drain()
        return piece

    def _drain(self) -> None:
        while self._plain.read1():
            pass

    def _guarded(self, read: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return read(argument)
        except self._broken as error:
            self._plain.close()
            raise TruncatedError(f"The compressed transfer cannot be read: {error}.") from error


class _Readable:
    """What decompressors read from."""

    def __init__(self, plain: Plain) -> None:
        self._plain = plain

    def read(self, size: int = PIECE) -> bytes:
        return self._plain.read1(size if size > 0 else PIECE)


def _decoded(plain: Plain, encoding: str) -> Reading:
    if encoding == "identity" or plain.ended:
        return plain
    if encoding == "gzip":
        import gzip
        import zlib

        return _Decompressing(
            plain,
            gzip.GzipFile(fileobj=_Readable(plain), mode="rb"),  # type: ignore[call-overload]
            (gzip.BadGzipFile, EOFError, zlib.error),
        )
    if encoding == "zstd":
        try:
            import zstandard
        except ModuleNotFoundError as error:
            plain.close()
            raise MissingDependencyError(
                "Results compressed with zstd need the Python package 'zstandard'.", hint="pip install zstandard"
            ) from error
        source: Any = _Readable(plain)
        reader = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)
        return _Decompressing(plain, reader, (zstandard.ZstdError,))
    plain.close()
    raise TruncatedError(f"The service answered with a Content-Encoding that was not asked for: {encoding!r}.")
