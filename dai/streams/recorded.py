"""Spans that OpenTelemetry records: those of a service, and those in a program that uses OpenTelemetry itself.

They name their parents: nothing is attached to threads, since a stream is pulled by several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TraceFlags, Tracer, TraceState

from dai.errors import ClosedError, code_of
from dai.streams.tracing import NONE, Attributes, Kind, Span

if TYPE_CHECKING:
    import pyarrow as pa

    from dai.streams.stream import Stream

_NOWHERE = Context()
_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


class RecordedSpan(Span):
    """A span of a ``tracer``."""

    def __init__(self, span: trace.Span, tracer: Tracer, texts: bool = False) -> None:
        self._span, self._tracer, self.texts = span, tracer, texts

    @property
    def trace_id(self) -> str | None:
        context = self._span.get_span_context()
        return f"{context.trace_id:032x}" if context.is_valid else None

    @property
    def headers(self) -> Mapping[str, str]:
        context = self._span.get_span_context()
        if not context.is_valid:
            return {}
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        state = context.trace_state.to_header()
        return {"traceparent": parent, "tracestate": state} if state else {"traceparent": parent}

    def child(self, name: str, attributes: Attributes = NONE, kind: Kind = "internal") -> Span:
        if not self._span.is_recording():  # nothing below it is, either
            return self
        within = trace.set_span_in_context(self._span, _NOWHERE)
        span = self._tracer.start_span(name, within, _KINDS[kind], dict(attributes))
        return RecordedSpan(span, self._tracer, self.texts)

    def set(self, attributes: Attributes) -> None:
        if self._span.is_recording():
            self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def end(self, error: BaseException | None = None) -> None:
        if not self._span.is_recording():
            return
        if error is not None and not isinstance(error, ClosedError | GeneratorExit):
            self._span.set_attribute("error.type", code_of(error))
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()

    def over(self, stream: Stream) -> Stream:
        from dai.streams.stream import Stream  # a program that only asks imports no pyarrow

        def batches() -> Iterator[pa.RecordBatch]:
            rows = 0
            failure: BaseException | None = None
            try:
                for batch in stream:
                    rows += batch.num_rows
                    yield batch
            except BaseException as error:
                failure = error
                raise
            finally:
                self.set({"db.response.returned_rows": rows})
                self.end(failure)

        def close() -> None:
            try:
                stream.close()
            finally:
                self.end()  # where nobody pulled

        return Stream(stream.schema, batches(), close) if self._span.is_recording() else stream


def root(
    tracer: Tracer,
    texts: bool,
    name: str,
    attributes: Attributes,
    kind: Kind,
    parent: Span | None = None,
    link: Span | None = None,
) -> RecordedSpan:
    """A span that begins here, or goes on below one of another process; ``link``: one of another trace."""
    within = _NOWHERE
    if parent is not None and (context := _context(parent)) is not None:
        within = trace.set_span_in_context(trace.NonRecordingSpan(context), _NOWHERE)
    linked = _context(link) if link is not None else None
    links = [] if linked is None else [Link(linked)]
    return RecordedSpan(tracer.start_span(name, within, _KINDS[kind], dict(attributes), links), tracer, texts)


def of_caller() -> RecordedSpan | None:
    """The current span of the program."""
    span = trace.get_current_span()
    return RecordedSpan(span, trace.get_tracer("dai")) if span.get_span_context().is_valid else None


def _context(span: Span) -> trace.SpanContext | None:
    headers = span.headers
    if "traceparent" not in headers:
        return None
    _, trace_id, span_id, flags = headers["traceparent"].split("-")
    state = TraceState.from_header([headers["tracestate"]]) if "tracestate" in headers else None
    return trace.SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)), state)
