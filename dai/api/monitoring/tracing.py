"""Traces of a service, and its audit as log records, by OpenTelemetry's library (extra ``telemetry``) to a collector.

What is recorded waits in a bounded queue for a thread that sends it (``otlp``): a collector that is slow or away costs
spans, which are counted, and no request any time. Each process of ``--workers`` has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dai.config import TelemetryConfig
from dai.errors import ConfigurationError, MissingDependencyError
from dai.streams.tracing import Span

if TYPE_CHECKING:
    from dai.api.monitoring.otlp import Pipeline

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Tracing:
    """Of one process. MissingDependencyError without the extra, ConfigurationError for what the library refuses."""

    def __init__(self, config: TelemetryConfig, dropped: Callable[[int], None]) -> None:
        try:
            from dai.api.monitoring.otlp import Pipeline
            from dai.streams.recorded import root
        except ImportError as error:
            raise MissingDependencyError(
                "[telemetry] needs OpenTelemetry's library.", hint="pip install -e '.[telemetry]'"
            ) from error
        self._root, self._texts = root, config.statements
        try:
            self._pipeline: Pipeline = Pipeline(config, dropped)
        except ValueError as error:
            raise ConfigurationError(f"OpenTelemetry's library refuses its configuration: {error}") from error

    def request(self, method: str, path: str, scheme: str, arrived: Span | None) -> Span:
        """The span of a request, below the one that it named."""
        known = method if method in _METHODS else "_OTHER"
        attributes = {"http.request.method": known, "url.path": path, "url.scheme": scheme}
        return self._root(self._pipeline.tracer, self._texts, known, attributes, "server", parent=arrived)

    def ended(
        self, span: Span, method: str, route: str | None, status: int, error: BaseException | None, broken: bool
    ) -> None:
        """The end of the span of a request. What a caller did wrong is no error of the service."""
        attributes: dict[str, Any] = {"http.response.status_code": status} if status else {}
        if route is not None:
            attributes["http.route"] = route
            span.rename(f"{method} {route}")
        span.set(attributes)
        span.end(error if broken or status >= 500 or not status else None)

    def job(self, id: str, resource: str, request: Span | None) -> Span:
        """The span of a job: a trace of its own, with a link to that of the request that made it."""
        attributes = {"dai.job": id, "dai.resource": resource}
        return self._root(self._pipeline.tracer, self._texts, "job", attributes, "internal", link=request)

    def audit(self) -> Callable[[Mapping[str, Any]], None]:
        """What sends a record of the audit as a log record."""
        return self._pipeline.logger()

    def close(self) -> None:
        """Sends what waits, for about two seconds at most."""
        self._pipeline.close()
