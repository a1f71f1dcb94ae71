"""Where work stands in a trace, by W3C Trace Context (https://www.w3.org/TR/trace-context/).

A request that arrives with a ``traceparent``, or at a service that records traces, has a ``Span``; so has the work of a
program that uses OpenTelemetry. A ``Cancellation`` carries it to whatever works for the request, through all threads;
what asks another service sends its ``headers``. Without OpenTelemetry a span hands on what arrived; ``recorded`` has
those that are recorded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dai.streams.stream import Stream

Kind = Literal["internal", "server", "client"]
Value = str | bool | int | float
Attributes = Mapping[str, Value]
NONE: Attributes = {}
_PARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_MEMBERS, _STATE = 32, 512
"""Of a tracestate: members, characters."""


class Span:
    """A span that is recorded elsewhere, or nowhere: what belongs below it belongs to it."""

    texts: bool = False
    """Whether SQL may be recorded."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    @property
    def trace_id(self) -> str | None:
        """In hexadecimal digits; None where there is no trace after all."""
        return self._headers["traceparent"][3:35]

    @property
    def headers(self) -> Mapping[str, str]:
        """For a request to another service, which goes on with the trace."""
        return self._headers

    def child(self, name: str, attributes: Attributes = NONE, kind: Kind = "internal") -> Span:
        """A span below this one. Its maker ends it."""
        return self

    def set(self, attributes: Attributes) -> None:
        """Says more of it."""

    def rename(self, name: str) -> None:
        """Where its name was not known at its beginning."""

    def end(self, error: BaseException | None = None) -> None:
        """Idempotent. ``error``: why what it stands for failed; its kind is recorded, not what it says."""

    def over(self, stream: Stream) -> Stream:
        """The stream, with whose end the span ends."""
        return stream


@contextmanager
def ending(span: Span | None) -> Iterator[None]:
    """A block with which the span ends."""
    try:
        yield
    except BaseException as error:
        if span is not None:
            span.end(error)
        raise
    if span is not None:
        span.end()


def streamed(span: Span, opened: Callable[[], Stream]) -> Stream:
    """What ``opened`` gives: the span ends with it, or where it fails."""
    try:
        stream = opened()
    except BaseException as error:
        span.end(error)
        raise
    return span.over(stream)


def arrived(headers: Iterable[tuple[bytes, bytes]]) -> Span | None:
    """The span that the headers of a request name; None where they name none, or not as they should."""
    parents, states = [], []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value)
        elif name == b"tracestate":
            states.append(value)
    match = _PARENT.fullmatch(parents[0].strip()) if len(parents) == 1 else None
    if match is None or (match[1] == b"00" and match[5] is not None):
        return None
    known = {"traceparent": b"00-%s-%s-%s" % match.group(2, 3, 4)}
    state = _state(states)
    return Span({name: each.decode() for name, each in known.items()} | ({"tracestate": state} if state else {}))


def _state(values: list[bytes]) -> str | None:
    """The one ``tracestate`` of all headers; None where a part of it is not as it should be."""
    members = [each.strip(" \t") for each in b",".join(values).decode("latin-1").split(",")]
    members = [each for each in members if each]
    state = ",".join(members)
    proper = len(members) <= _MEMBERS and len(state) <= _STATE and all(map(_MEMBER.fullmatch, members))
    return state if proper else None
