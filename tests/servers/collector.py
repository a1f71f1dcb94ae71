"""An OpenTelemetry collector on loopback, which keeps what it is sent by OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Kept:
    """A span, in hexadecimal digits; ``parent`` is empty for the first of a trace."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    failed: bool
    links: tuple[str, ...]
    attributes: Mapping[str, Any] = field(hash=False)


class Collector:
    """``answer``: of its answers, the status; ``held``: its answers wait until that is set."""

    def __init__(self, answer: int = 200, held: threading.Event | None = None) -> None:
        self.spans: list[Kept] = []
        self.logs: list[Mapping[str, Any]] = []
        self.raw: list[bytes] = []
        self.headers: list[Mapping[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if held is not None:
                    held.wait()
                collector.headers.append(dict(self.headers))
                if answer == 200:
                    collector.take(self.path, body)
                self.send_response(answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, body: bytes) -> None:
        self.raw.append(body)
        if path == "/v1/logs":
            for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
                for scope in resource.scope_logs:
                    for each in scope.log_records:
                        self.logs.append(
                            {
                                "event": _value(each.body),
                                **({"trace_id": each.trace_id.hex()} if each.trace_id else {}),
                                **_attributes(each.attributes),
                            }
                        )
            return
        assert path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                for each in scope.spans:
                    self.spans.append(
                        Kept(
                            service,
                            each.name,
                            each.trace_id.hex(),
                            each.span_id.hex(),
                            each.parent_span_id.hex(),
                            each.status.code == 2,
                            tuple(link.span_id.hex() for link in each.links),
                            _attributes(each.attributes),
                        )
                    )

    def named(self, name: str, service: str | None = None) -> list[Kept]:
        return [each for each in self.spans if each.name == name and service in (None, each.service)]

    def above(self, span: Kept) -> list[str]:
        """The names of the spans above a span, the nearest first, each with its service."""
        by_id = {each.id: each for each in self.spans}
        names = []
        while span.parent in by_id:
            span = by_id[span.parent]
            names.append(f"{span.service}: {span.name}")
        return names

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _attributes(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))
