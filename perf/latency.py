"""A one-row query through the service and through a bare FastAPI handler with pooled psycopg; validation alone."""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from dai.perform.parser import parse
from perf.harness import Report, shown
from perf.world import World
from tests.processes import until
from tests.servers import free_port

SQL = "select id, name from littleblackbook where id = 42"
REQUESTS = 400
EXAMPLE = Path(__file__).parents[1] / "examples" / "query.xml"


def run(world: World, rounds: int) -> Report:
    report = Report("latency", "A one-row query")
    query = json.dumps({"sql": SQL}).encode()
    perform = EXAMPLE.read_bytes().replace(b"id &lt;= ?", b"id = ?").replace(b">10<", b">42<")
    with _bare(world.postgres.dsn) as bare:
        calls = {
            "bare FastAPI handler, pooled psycopg": _caller(bare, "/query", query, "application/json"),
            "service, /query, Arrow": _caller(world.service, "/resources/pg/query", query, "application/json"),
            "service, perform document": _caller(world.service, "/resources/pg/perform", perform, "application/xml"),
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(REQUESTS * max(1, rounds // 5) + 50):
            for name, call in calls.items():
                began = time.perf_counter()
                call()
                if number >= 50:
                    times[name].append(time.perf_counter() - began)
    peer = statistics.median(times["bare FastAPI handler, pooled psycopg"])
    report.text(
        f"{len(times['service, /query, Arrow'])} requests each, taking turns, on kept-alive connections, warm. The "
        "same client (http.client) asks all of them."
    )
    report.table(
        ["case", "p50", "p95", "ratio of p50"],
        [
            [name, shown(statistics.median(took)), shown(statistics.quantiles(took, n=20)[18]), _over(took, peer)]
            for name, took in times.items()
        ],
    )
    document = EXAMPLE.read_bytes()
    validations = [_timed(lambda: parse(document)) for _ in range(300)]
    report.text(
        f"Validation of `examples/query.xml`: median {shown(statistics.median(validations))} (published: 140 ms)."
    )
    report.goal("one-row query / bare handler, p50", statistics.median(times["service, /query, Arrow"]) / peer, 1.3)
    report.goal("validation of a document, ms", statistics.median(validations) * 1e3, 1)
    return report


def _over(took: list[float], peer: float) -> str:
    return f"{statistics.median(took) / peer:.2f}"


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _caller(base: str, path: str, body: bytes, kind: str) -> Callable[[], bytes]:
    connection = http.client.HTTPConnection(urlsplit(base).netloc)
    connection.connect()
    assert connection.sock is not None
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call() -> bytes:
        connection.request("POST", path, body, {"Content-Type": kind})
        reply = connection.getresponse()
        content = reply.read()
        assert reply.status == 200, content
        return content

    return call


@contextmanager
def _bare(dsn: str) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "perf.bare", dsn, str(port)])
    try:
        until(partial(_listens, port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
