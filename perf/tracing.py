"""A one-row query at services that record traces, hand them on, or know nothing of them, side by side.

A service a case, and one more without traces, which shows what two processes differ by; all over the same database. The
requests take turns. The collector is a process of its own, as it would be.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

from perf.harness import Report, shown
from perf.identity import NONE, NONE_DOCUMENT, REQUESTS, Requests, anybody, document, query, started, take_turns
from perf.world import World
from tests.processes import ServiceProcess
from tests.servers.collector import Collector

PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
ALL, NOTHING, ALL_DOCUMENT = "all traces", "no trace (share 0)", "all traces, a document"
HANDED_ON = "handed on, not recorded"
PEERS = {ALL_DOCUMENT: NONE_DOCUMENT}
GOALS = {HANDED_ON: 1.05, NOTHING: 1.15, ALL: 1.15}


def run(world: World, rounds: int) -> Report:
    report = Report("tracing", "A one-row query with and without traces")
    requests = REQUESTS * max(1, rounds // 5)
    with _collector() as (endpoint, received), ExitStack() as stack:
        starts = {
            NONE: anybody,
            "none, another process": anybody,
            NONE_DOCUMENT: document,
            HANDED_ON: lambda _: lambda: query(PARENT),
            NOTHING: _recording(endpoint, 0, anybody),
            ALL: _recording(endpoint, 1, anybody),
            ALL_DOCUMENT: _recording(endpoint, 1, document),
        }
        cases = {name: stack.enter_context(started(world.postgres.url, start)) for name, start in starts.items()}
        processor = take_turns(cases, requests)
        stack.close()  # sends what waits
        spans = received()
    usual = {name: statistics.median(case.seconds) for name, case in cases.items()}
    ratios = {name: usual[name] / usual[PEERS.get(name, NONE)] for name in cases}
    report.text(
        f"{requests} requests each, taking turns, a process and a kept-alive connection a service. The ratio of a "
        "document is that to the same document without traces. Processor time is the service's, a request, with what "
        f"sends spans behind it. The collector has {spans:,} spans."
    )
    report.table(
        ["traces", "p50", "p95", "ratio of p50", "processor time", "ratio"],
        [
            [
                name,
                shown(usual[name]),
                shown(statistics.quantiles(case.seconds, n=20)[18]),
                f"{ratios[name]:.3f}",
                shown(processor[name]),
                f"{processor[name] / processor[PEERS.get(name, NONE)]:.3f}",
            ]
            for name, case in cases.items()
        ],
    )
    for name, goal in GOALS.items():
        report.goal(f"one-row query, {name} / none, p50", ratios[name], goal)
    return report


def _recording(
    endpoint: str, share: int, then: Callable[[ServiceProcess], Requests]
) -> Callable[[ServiceProcess], Requests]:
    def start(service: ServiceProcess) -> Requests:
        service.more = f'[telemetry]\nendpoint = "{endpoint}"\nsample = {share}\n'
        return then(service)

    return start


@contextmanager
def _collector() -> Iterator[tuple[str, Callable[[], int]]]:
    """Its address, and how many spans it has; that ends it."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_collect, args=(there,), daemon=True)
    process.start()

    def received() -> int:
        here.send("how many?")
        return int(here.recv())

    try:
        yield str(here.recv()), received
    finally:
        process.terminate()
        process.join()


def _collect(parent: Connection) -> None:
    with Collector() as collector:
        parent.send(collector.url)
        parent.recv()
        parent.send(len(collector.spans))
