"""Operation calls of 50 ms a row over 1,000 rows, on 1, 2, 4 and 8 evaluators: the speed-up against one.

The service that is called is a process of ours that sleeps: no evaluator waits for another's call. Each evaluator is a
data service of its own with four calls at once, which is the default.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import uvicorn

from dai.drivers import driver_for
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
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
            [count, shown(median(seconds[f"{count} evaluators"])), f"{speedup:.2f}", f"{speedup / count:.2f}"]
            for count, speedup in speedups.items()
        ],
    )
    for count, speedup in speedups.items():
        report.goal(f"speed-up on {count} evaluators", speedup, 0.9 * count, at_least=True)
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


async def slow(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that takes its time, without a thread a call: 32 of them wait at once."""
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    arguments = json.loads(body + message["body"])["arguments"]
    await asyncio.sleep(SECONDS * len(arguments))
    answer = json.dumps({"results": [value for (value,) in arguments]}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def _serve(listening: socket.socket) -> None:
    config = uvicorn.Config(slow, lifespan="off", log_level="warning", access_log=False)
    uvicorn.Server(config).run([listening])


@contextmanager
def service() -> Iterator[str]:
    """The address of the slow service."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=(listening,), daemon=True)
        process.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/slow"
        finally:
            process.terminate()
            process.join()
