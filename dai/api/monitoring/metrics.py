"""Prometheus metrics of one service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counted as requests end; gauges are read when somebody asks."""

    def __init__(self, gauges: Callable[[], Iterable[Metric]]) -> None:
        self.registry = CollectorRegistry()
        requests = Counter("dai_requests", "requests", ["route", "method", "status"], registry=self.registry)
        durations = Histogram(
            "dai_request_seconds", "duration of requests", ["route"], registry=self.registry, buckets=_SECONDS
        )
        self._rows = Counter("dai_rows", "rows sent", registry=self.registry)
        self._bytes = Counter(
            "dai_bytes", "bytes of answers, before the coding of the connection", registry=self.registry
        )
        stages = Counter("dai_stage_seconds", "seconds by stage", ["stage"], registry=self.registry)
        self._broken = Counter("dai_broken_transfers", "answers that were broken off", registry=self.registry)
        self.registry.register(_Gauges(gauges))
        # looking one up takes longer than counting
        self._requests_of: Callable[..., Counter] = cache(requests.labels)
        self._seconds_of: Callable[..., Histogram] = cache(durations.labels)
        self._stage_of: Callable[..., Counter] = cache(stages.labels)

    def ended(
        self,
        route: str,
        method: str,
        status: int,
        seconds: float,
        *,
        rows: int,
        sent: int,
        stages: Mapping[str, float],
        broken: bool,
    ) -> None:
        """Counts a request. ``sent``: bytes of its answer; ``stages``: seconds by name."""
        self._requests_of(route, method, str(status)).inc()
        self._seconds_of(route).observe(seconds)
        if rows:
            self._rows.inc(rows)
        if sent:
            self._bytes.inc(sent)
        for stage, spent in stages.items():
            self._stage_of(stage).inc(spent)
        if broken:
            self._broken.inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, gauges: Callable[[], Iterable[Metric]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        return self._gauges()

    def describe(self) -> Iterable[Metric]:
        return ()
