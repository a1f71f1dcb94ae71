"""Prometheus metrics of one service."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counted as requests end. ``counters``: the directory in which the processes of a service count together, which
    prometheus_client takes from the environment as well."""

    def __init__(self, counters: Path | None = None) -> None:
        self._counters = counters
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
        self._dropped = Counter(
            "dai_telemetry_dropped", "spans and log records that did not reach the collector", registry=self.registry
        )
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

    def dropped(self, count: int) -> None:
        """Spans or log records that no collector will have."""
        self._dropped.inc(count)

    def text(self, gauges: Iterable[Gauge]) -> bytes:
        """All counters, and the gauges, each the sum of those with the same name and labels."""
        registry = self.registry
        if self._counters is not None:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, str(self._counters))  # type: ignore[no-untyped-call]
        return generate_latest(registry) + generate_latest(_Sums(gauges))


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value now, with its labels as pairs."""

    name: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class _Sums(CollectorRegistry):
    def __init__(self, gauges: Iterable[Gauge]) -> None:
        super().__init__()
        self._gauges = list(gauges)

    def collect(self) -> Iterable[Metric]:
        families: dict[str, GaugeMetricFamily] = {}
        sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        for each in self._gauges:
            families.setdefault(each.name, GaugeMetricFamily(each.name, each.help, labels=[n for n, _ in each.labels]))
            sums[each.name, each.labels] += each.value
        for (name, labels), value in sums.items():
            families[name].add_metric([text for _, text in labels], value)
        return families.values()
