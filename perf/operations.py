"""Operation calls of 50 ms a row over 1,000 rows, on 1, 2, 4 and 8 evaluators: the speed-up against one.

The service that is called is a process of ours that sleeps: no evaluator waits for another's call. Each evaluator is a
data service of its own with four calls at once, which is the default.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from dai.cancellation import Cancellation
from dai.drivers import driver_for
from dai.stream import Stream
from dqp.coordinator import Coordinator
from dqp.settings import load
from perf.harness import Report, measured, median, ratio, shown
from perf.world import World
from tests.processes import ServiceProcess

ROWS = 1_000
SECONDS = 0.05
EVALUATORS = (1, 2, 4, 8)
SQL = "SELECT count(*), sum(slow(id)) FROM lite.samples"


def run(world: World, rounds: int) -> Report:
    del world  # a file and processes of its own
    report = Report("operations", "Operation calls over evaluators")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(service())
        source = f"sqlite:///{directory / 'samples.db'}"
        fill(source)
        services = []
        for number in range(max(EVALUATORS)):
            started = ServiceProcess(directory / str(number), {}, roles={"evaluator": ""})
            started.directory.mkdir()
            stack.callback(started.stop)
            services.append(started.start())
        cases = {}
        for count in EVALUATORS:
            lab = Coordinator(load(settings(source, url, [each.url for each in services[:count]])))
            stack.callback(lab.close)
            cases[f"{count} evaluators"] = asked(lab)
        seconds = measured(cases, min(rounds, 3))
    one = f"{EVALUATORS[0]} evaluators"
    report.text(f"{ROWS:,} rows, a call of {SECONDS * 1000:.0f} ms each; medians of {min(rounds, 3)} rounds.")
    speedups = {count: 1 / ratio(seconds, f"{count} evaluators", one) for count in EVALUATORS}
    report.table(
        ["evaluators", "seconds", "speed-up", "of the ideal"],
        [
            [count, shown(median(seconds[f"{count} evaluators"])), f"{found:.2f}", f"{found / count:.2f}"]
            for count, found in speedups.items()
        ],
    )
    for count, found in speedups.items():
        report.goal(f"speed-up on {count} evaluators", found, 0.9 * count, at_least=True)
    return report


def fill(url: str) -> None:
    driver = driver_for(url)
    driver.update("CREATE TABLE samples (id integer PRIMARY KEY)", cancellation=Cancellation())
    driver.load("samples", Stream.of(pa.table({"id": range(ROWS)})), cancellation=Cancellation())
    driver.close()


def settings(source: str, url: str, evaluators: list[str]) -> dict[str, Any]:
    function = {"url": url, "arguments": ["BIGINT"], "returns": "BIGINT", "seconds": SECONDS}
    return {"sources": {"lite": source}, "functions": {"slow": function}, "evaluators": evaluators}


def asked(lab: Coordinator) -> Any:
    def case() -> None:
        (row,) = lab.query(SQL, cancellation=Cancellation()).table().to_pylist()
        assert list(row.values()) == [ROWS, sum(range(ROWS))]

    return case


class _Slow(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))["arguments"]
        time.sleep(SECONDS * len(given))
        body = json.dumps({"results": [value for (value,) in given]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line a call would be measured too."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


def _serve(told: Connection) -> None:
    with _Server(("127.0.0.1", 0), _Slow) as server:
        told.send(server.server_address[1])
        server.serve_forever()


@contextmanager
def service() -> Iterator[str]:
    """The address of the slow service."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}/slow"
    finally:
        process.terminate()
        process.join()
