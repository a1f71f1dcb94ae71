"""The service's end of a process that runs one expression over documents (``worker``)."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from dai.errors import DataError, InternalError, LimitError, ParameterError
from dai.perform.xml.worker import (
    BUFFER_BYTES,
    DONE,
    FRAME,
    NUMBER,
    READY,
    REFUSED,
    RESULT,
    TOO_LARGE,
    WHOLE,
)
from dai.streams.cancellation import Cancellation
from dai.streams.program import Program

log = logging.getLogger("dai.perform.xml")

MEMORY_BYTES = 1 << 30
NO_MEMORY = 99
"""How Saxon's runtime ends a process that gets no more."""
SECONDS = 60.0
"""Of processor time, for one document."""


class Readable(Protocol):
    """A document as the process gets it; ``name`` stands in messages."""

    @property
    def name(self) -> str: ...

    @property
    def content(self) -> bytes: ...


Item = TypeVar("Item", bound=Readable)


@dataclass(frozen=True, slots=True)
class Answer(Generic[Item]):
    """``is_result``: ``data`` is a result, not what takes the place of the document."""

    document: Item
    is_result: bool
    data: bytes


class Process:
    """A context manager; leaving it ends the process. ``what``: the expression, in messages.

    Raises ParameterError for an expression that cannot be read, DataError for what it does to a document, LimitError
    beyond the bounds.
    """

    def __init__(
        self,
        language: str,
        expression: str,
        cancellation: Cancellation,
        namespaces: Mapping[str, str] | None = None,
        what: str = "The expression",
    ) -> None:
        self._cancellation, self._what = cancellation, what
        self._program = Program("-m", "dai.perform.xml.worker", pipe_bytes=BUFFER_BYTES)
        header = {"language": language, "expression": expression, "namespaces": dict(namespaces or {})}
        data = json.dumps({**header, "memory": MEMORY_BYTES, "seconds": SECONDS}).encode()
        try:
            with cancellation.on_cancel(self._program.kill):
                self._send(NUMBER.pack(len(data)), data)
                kind, _, text = self._frame()
            if kind != READY:
                raise self._failure(kind, text, None)
        except BaseException:
            self.close()
            raise

    def run(self, portions: Iterable[Sequence[Item]]) -> Iterator[Answer[Item]]:
        """What it gives for each document, portion by portion; the next portion is read while one is worked on."""
        source = iter(portions)
        portion = next(source, None)
        with self._cancellation.on_cancel(self._program.kill):
            while portion is not None:
                sizes = [NUMBER.pack(len(each.content)) for each in portion]
                self._send(NUMBER.pack(len(portion)), *sizes, *(each.content for each in portion))
                following = next(source, None)
                while (frame := self._frame())[0] != DONE:
                    kind, number, data = frame
                    document = portion[number] if number != WHOLE else None
                    if document is None or kind in (REFUSED, TOO_LARGE):
                        raise self._failure(kind, data, document)
                    yield Answer(document, kind == RESULT, data)
                portion = following

    def close(self) -> None:
        self._program.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, *parts: bytes) -> None:
        with suppress(BrokenPipeError):  # the next frame says why
            for part in parts:
                self._program.sink.write(part)
            self._program.sink.flush()

    def _frame(self) -> tuple[int, int, bytes]:
        head = self._program.source.read(FRAME.size)
        if len(head) == FRAME.size:
            kind, number, size = FRAME.unpack(head)
            data = self._program.source.read(size)
            if len(data) == size:
                return kind, number, data
        code = self._program.wait()
        self._cancellation.check()
        if code == -signal.SIGPROF:
            raise LimitError(
                f"{self._what} takes more than {SECONDS:g} seconds on one document.",
                hint="Make the expression select less.",
            )
        if code in (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT, NO_MEMORY):
            raise self._failure(TOO_LARGE, b"", None)
        log.error("the process of an XML expression failed with %s", code)
        raise InternalError("The process that runs XML expressions failed.")

    def _failure(self, kind: int, text: bytes, document: Readable | None) -> ParameterError | DataError | LimitError:
        at = f" (document {document.name!r})" if document is not None and document.name else ""
        if kind == TOO_LARGE:
            return LimitError(f"{self._what} needs more than {MEMORY_BYTES >> 20:,} MiB{at}.")
        message = text.decode(errors="replace")
        return DataError(f"{message}{at}") if document is not None else ParameterError(message)
