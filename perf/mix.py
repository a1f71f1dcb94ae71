"""Thirty clients with different questions, and one who asks for a row: ``python -m perf.mix URL SECONDS``.

The service runs already (resource ``pg`` with the demo data). The figures are JSON, so that two versions of the service
can be asked in turns.
"""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import threading
import time
from urllib.parse import urlsplit

CLIENTS = 30
WARM_SECONDS = 3.0
ONE_ROW = "select id, name from littleblackbook where id = {}"
MIX = (
    ("select * from protein_goterm", "application/vnd.webrowset+xml"),
    ("select * from littleblackbook", "text/csv"),
    ("select * from protein_interaction", "application/x-ndjson"),
    ("select * from protein_goterm", "application/vnd.apache.arrow.stream"),
    ("select * from protein_interaction limit 100", "application/vnd.webrowset+xml"),
    ("select * from littleblackbook limit 3000", "application/vnd.webrowset+xml"),
)
"""What the others ask for: client number i the statement i modulo their number, without pauses."""


class _Client(threading.Thread):
    """Asks again and again until it is told to stop; ``times`` are those of whole answers."""

    def __init__(self, service: str, statements: list[tuple[str, str]]) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection(urlsplit(service).netloc, timeout=60)
        self._statements = statements
        self.times: list[float] = []
        self.bytes = self.failed = 0
        self.stopping = False

    def run(self) -> None:
        number = 0
        while not self.stopping:
            sql, accept = self._statements[number % len(self._statements)]
            number += 1
            began = time.perf_counter()
            headers = {"Content-Type": "application/json", "Accept": accept}
            self._connection.request("POST", "/resources/pg/query", json.dumps({"sql": sql}), headers)
            answer = self._connection.getresponse()
            size = len(answer.read())
            if answer.status == 200:
                self.times.append(time.perf_counter() - began)
                self.bytes += size
            else:
                self.failed += 1

    def forget(self) -> None:
        self.times, self.bytes, self.failed = [], 0, 0


def mixed(service: str, seconds: float) -> dict[str, float]:
    """Milliseconds of the one-row query, and what the others were given a second."""
    one = _Client(service, [(ONE_ROW.format(id), "text/csv") for id in range(1, 10_000, 7)])
    others = [_Client(service, [MIX[number % len(MIX)]]) for number in range(CLIENTS)]
    for each in (*others, one):
        each.start()
    time.sleep(WARM_SECONDS)
    for each in (*others, one):
        each.forget()
    began = time.perf_counter()
    time.sleep(seconds)
    took = time.perf_counter() - began
    times = sorted(one.times)
    speeds = {
        "p50": statistics.median(times) * 1e3,
        "p99": times[min(len(times) - 1, round(len(times) * 0.99))] * 1e3,
        "answers": len(times),
        "others": sum(len(each.times) for each in others) / took,
        "megabytes": sum(each.bytes for each in others) / took / 1e6,
        "failed": sum(each.failed for each in (*others, one)),
    }
    for each in (*others, one):
        each.stopping = True
    for each in (*others, one):
        each.join(60)
    return speeds


if __name__ == "__main__":
    print(json.dumps(mixed(sys.argv[1], float(sys.argv[2]))))
