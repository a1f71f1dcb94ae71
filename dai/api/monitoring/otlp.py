"""How spans and log records get to a collector: OpenTelemetry's library, whose queues are bounded here.

It reads what the configuration does not say from the environment (``OTEL_…``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider, LogRecordLimits, ReadableLogRecord
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

import dai
from dai.config import TelemetryConfig

WAITING = 2048
"""Spans that wait to be sent at most, and as many log records."""
TEXT = 4096
"""Characters of an attribute at most: statements, addresses that callers make up."""
CLOSE_SECONDS = 2.0
"""To send what waits when the service stops."""
_FIELDS = frozenset({"time", "event", "trace_id"})
"""Members of a record of the audit for which a log record has fields."""


class Room:
    """The queue of records for the collector; thread-safe. ``dropped`` gets the number of records that were dropped."""

    def __init__(self, dropped: Callable[[int], None]) -> None:
        self.dropped = dropped
        self._waiting, self._lock = 0, threading.Lock()

    def take(self) -> bool:
        with self._lock:
            if self._waiting < WAITING:
                self._waiting += 1
                return True
        self.dropped(1)
        return False

    def leave(self, count: int) -> None:
        with self._lock:
            self._waiting -= count


class Pipeline:
    """To one collector. ``tracer`` makes spans. ValueError for what the library refuses."""

    def __init__(self, config: TelemetryConfig, dropped: Callable[[int], None]) -> None:
        base = config.endpoint.rstrip("/") if config.endpoint is not None else None
        self._endpoint = {signal: base and f"{base}/v1/{signal}" for signal in ("traces", "logs")}
        self._headers, self._dropped = dict(config.headers), dropped
        self._resource = _resource(config)
        spans = OTLPSpanExporter(self._endpoint["traces"], headers=self._headers)
        room = Room(dropped)
        sampler = None if config.sample is None else ParentBased(TraceIdRatioBased(config.sample))
        limits = SpanLimits(max_attribute_length=TEXT)
        traces = TracerProvider(sampler, self._resource, False, span_limits=limits)
        traces.sampler = _AsLinked(traces.sampler)
        traces.add_span_processor(_Spans(BatchSpanProcessor(_SpanExporter(spans, room), WAITING), room))
        self.tracer = traces.get_tracer("dai", dai.__version__)
        self._closing: list[tuple[Callable[[], object], Callable[[], object]]] = [(traces.shutdown, spans.shutdown)]

    def logger(self) -> Callable[[Mapping[str, Any]], None]:
        """Sends records of the audit."""
        records = OTLPLogExporter(self._endpoint["logs"], headers=self._headers)
        room = Room(self._dropped)
        limits = LogRecordLimits(max_attribute_length=TEXT)
        logs = LoggerProvider(self._resource, False, log_record_limits=limits)
        logs.add_log_record_processor(BatchLogRecordProcessor(_LogExporter(records, room), max_queue_size=WAITING))
        self._closing.append((logs.shutdown, records.shutdown))
        logger = logs.get_logger("dai.audit", dai.__version__)

        def log(record: Mapping[str, Any]) -> None:
            if room.take():
                moment = datetime.fromisoformat(record["time"])
                said = LogRecord(
                    timestamp=int(moment.timestamp() * 1e6) * 1000,
                    context=Context(),
                    severity_number=SeverityNumber.INFO,
                    severity_text="INFO",
                    body=record["event"],
                    event_name=f"dai.audit.{record['event']}",
                    attributes={name: value for name, value in record.items() if name not in _FIELDS},
                )
                said.trace_id = int(record.get("trace_id", "0"), 16)
                logger.emit(said)

        return log

    def close(self) -> None:
        """Sends what waits, for CLOSE_SECONDS at most."""
        ending = [threading.Thread(target=end, name="telemetry", daemon=True) for end, _ in self._closing]
        for each in ending:
            each.start()
        for thread, (_, interrupt) in zip(ending, self._closing, strict=True):
            thread.join(CLOSE_SECONDS)
            if thread.is_alive():
                interrupt()
                thread.join(CLOSE_SECONDS)


def _resource(config: TelemetryConfig) -> Resource:
    known = {"service.version": dai.__version__}
    if config.service_name is not None:
        known[SERVICE_NAME] = config.service_name
    resource = Resource.create(known)
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "dai"}))
    return resource


class _AsLinked(Sampler):
    """A trace with a link to another is recorded if that one is: a job, where its request is."""

    def __init__(self, others: Sampler) -> None:
        self._others = others

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        sampler = self._others
        if links:
            sampler = ALWAYS_ON if links[0].context.trace_flags.sampled else ALWAYS_OFF
        return sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return self._others.get_description()


class _Spans(SpanProcessor):
    """Lets in what there is room for."""

    def __init__(self, batches: BatchSpanProcessor, room: Room) -> None:
        self._batches, self._room = batches, room

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled and self._room.take():
            self._batches.on_end(span)

    def shutdown(self) -> None:
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._batches.force_flush(timeout_millis)


class _SpanExporter(SpanExporter):
    def __init__(self, exporter: SpanExporter, room: Room) -> None:
        self._exporter, self._room = exporter, room

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._room.leave(len(spans))
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._room.dropped(len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _LogExporter(LogRecordExporter):
    def __init__(self, exporter: LogRecordExporter, room: Room) -> None:
        self._exporter, self._room = exporter, room

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        self._room.leave(len(batch))
        result = self._exporter.export(batch)
        if result is not LogRecordExportResult.SUCCESS:
            self._room.dropped(len(batch))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True
