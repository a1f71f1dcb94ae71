"""Prometheus metrics of one service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from dai.api.call import Call
    from dai.api.service import Service

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counted as requests end; gauges are read when somebody asks."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("dai_requests", "requests", ["route", "method", "status"], registry=self.registry)
        self._seconds = Histogram(
            "dai_request_seconds", "duration of requests", ["route"], registry=self.registry, buckets=_SECONDS
        )
        self._rows = Counter("dai_rows", "rows sent", registry=self.registry)
        self._bytes = Counter(
            "dai_bytes", "bytes of answers, before the coding of the connection", registry=self.registry
        )
        self._stages = Counter("dai_stage_seconds", "seconds by stage", ["stage"], registry=self.registry)
        self._broken = Counter("dai_broken_transfers", "answers that were broken off", registry=self.registry)
        self.registry.register(_Gauges(service))

    def ended(self, call: Call, seconds: float, broken: bool) -> None:
        route = call.operation.path if call.operation is not None else "none"
        self._requests.labels(route, call.scope["method"] if call.operation else "other", str(call.status)).inc()
        self._seconds.labels(route).observe(seconds)
        if call.rows:
            self._rows.inc(call.rows)
        if call.sent:
            self._bytes.inc(call.sent)
        for stage, spent in call.stages.items():
            self._stages.labels(stage).inc(spent)
        if broken:
            self._broken.inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service = self._service
        running, queued = service.jobs.counts()
        both = service.admission, service.role_admission
        running_now, waiting = sum(each.running for each in both), sum(each.waiting for each in both)
        yield GaugeMetricFamily("dai_requests_running", "synchronous requests at work", running_now)
        yield GaugeMetricFamily("dai_requests_queued", "synchronous requests that wait", waiting)
        yield GaugeMetricFamily("dai_jobs_running", "jobs at work", running)
        yield GaugeMetricFamily("dai_jobs_queued", "jobs that wait", queued)
        yield GaugeMetricFamily("dai_sessions", "sessions", len(service.sessions.all()))
        yield GaugeMetricFamily("dai_streams", "streams of sessions", service.sessions.open_streams())
        held = [mailbox.held for each in service.sessions.all() for _, _, mailbox in each.streams()]
        yield GaugeMetricFamily("dai_stream_blocks", "blocks that wait in streams", sum(blocks for blocks, _ in held))
        yield GaugeMetricFamily("dai_stream_bytes", "bytes of them", sum(size for _, size in held))
        yield GaugeMetricFamily("dai_result_bytes", "bytes of kept results", service.results.used)
        pools = GaugeMetricFamily("dai_pool_connections", "database connections", labels=["resource", "state"])
        for name, resource in service.resources.items():
            for state, count in resource.driver.pool_state().items():
                pools.add_metric([name, state], count)
        yield pools

    def describe(self) -> Iterator[Metric]:
        return iter(())
