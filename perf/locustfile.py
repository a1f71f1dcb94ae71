"""Users who ask a data service for a result again and again.

``locust -f perf/locustfile.py --headless --host http://127.0.0.1:8080 -u 20 -t 10s --resource data --blocksize 100``

By itself it needs nothing but the service; ``python -m perf users`` runs it for a row of user numbers. Every answer
must be as long as the first one was: a short one is a failure, and so is a broken transfer. A service that says
"busy, try after" is obeyed; its refusals are counted apart.
"""

from __future__ import annotations

import json
import time
from html import escape
from typing import Any

from locust import FastHttpUser, constant, events, task
from locust.exception import RescheduleTask

MEDIA_TYPES = {
    "webrowset": "application/vnd.webrowset+xml",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
}
REFUSED = "refused"
WHOLE, STREAM = "query", "stream"
"""What one result is called in the statistics, asked for at once or pulled block by block."""
MOST_PATIENCE = 5.0
PULL = """<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">
  <sqlQueryStatement name="query"><expression>{sql}</expression><resultStream name="tuples"/></sqlQueryStatement>
  <{encoder} name="encode"><resultSet from="tuples"/><{output} name="encoded"/></{encoder}>
  <blockAggregator name="blocks">
    <input from="encoded"/><blocksize size="{blocksize}"/><output name="blocked"/>
  </blockAggregator>
  <outputStream name="out"><fromLocal from="blocked"/></outputStream>
</gridDataServicePerform>"""
ENCODERS = {
    "webrowset": ("sqlResultsToXML", "webRowSet"),
    "csv": ("sqlResultsToCSV", "csv"),
    "arrow": ("sqlResultsToArrow", "arrow"),
}


@events.init_command_line_parser.add_listener
def arguments(parser: Any) -> None:
    parser.add_argument("--resource", default="data", help="the data resource to ask")
    parser.add_argument("--sql", default="select * from protein_interaction", help="the query")
    parser.add_argument("--blocksize", type=int, default=1000, help="rows a block")
    parser.add_argument("--format", default="webrowset", choices=list(MEDIA_TYPES), help="form of the result")
    parser.add_argument(
        "--mode", default="whole", choices=["whole", "pull"], help="the result at once, or one request a block"
    )
    parser.add_argument("--times", default="", help="a file for the milliseconds of each result (locust rounds them)")


_times: list[float] = []


@events.request.add_listener
def timed(name: str, response_time: float, exception: Exception | None, **_: Any) -> None:
    if name in (WHOLE, STREAM) and exception is None:
        _times.append(response_time)


@events.quitting.add_listener
def told(environment: Any, **_: Any) -> None:
    if environment.parsed_options.times:
        with open(environment.parsed_options.times, "w") as file:
            json.dump(_times, file)


class Scientist(FastHttpUser):
    """Asks, reads the answer to its end, asks again."""

    wait_time = constant(0)
    connection_timeout = 60.0
    network_timeout = 60.0
    expected: int | None = None
    """Bytes of an answer; the first one says."""

    def on_start(self) -> None:
        self.options = options = self.environment.parsed_options
        self.query = json.dumps({"sql": options.sql, "blocksize": options.blocksize})
        encoder, output = ENCODERS[options.format]
        self.document = PULL.format(
            sql=escape(options.sql), encoder=encoder, output=output, blocksize=options.blocksize
        )

    @task
    def ask(self) -> None:
        if self.options.mode == "pull":
            self._pull()
            return
        path = f"/resources/{self.options.resource}/query"
        headers = {"Content-Type": "application/json", "Accept": MEDIA_TYPES[self.options.format]}
        self._send("POST", path, WHOLE, self.query, headers, whole=True)

    def _pull(self) -> None:
        began = time.perf_counter()
        _, created = self._send("POST", "/sessions", "session", "{}", {"Content-Type": "application/json"})
        identity = json.loads(created)["id"]
        try:
            perform = f"/resources/{self.options.resource}/perform?session={identity}"
            self._send("POST", perform, "perform", self.document, {"Content-Type": "application/xml"})
            status = number = size = 0
            while status != 204:
                path = f"/sessions/{identity}/streams/out/blocks/{number}?wait=20"
                status, block = self._send("GET", path, "block")
                if status == 200:
                    number += 1
                    size += len(block)
        finally:
            self._send("DELETE", f"/sessions/{identity}", "end of session")
        self.environment.events.request.fire(
            request_type="PULL",
            name=STREAM,
            response_time=(time.perf_counter() - began) * 1e3,
            response_length=size,
            exception=None if self._as_long(size) else AssertionError(f"{size} bytes instead of {self.expected}"),
            context={},
        )

    def _send(
        self,
        method: str,
        path: str,
        name: str,
        body: str | None = None,
        headers: dict[str, str] | None = None,
        *,
        whole: bool = False,
    ) -> tuple[int, bytes]:
        """Status and content of the reply; what fails is counted, and the task begun anew."""
        request = self.client.request(method, path, name=name, data=body, headers=headers, catch_response=True)
        with request as response:
            content: bytes = response.content or b""
            if response.status_code == 503:
                response.request_meta["name"] = REFUSED
                response.failure("503")
                time.sleep(min(float(response.headers.get("Retry-After", 1)), MOST_PATIENCE))
                raise RescheduleTask
            if not 200 <= response.status_code < 300:
                response.failure(f"{response.status_code}: {response.error or content[:200]!r}")
                raise RescheduleTask
            if whole and not self._as_long(len(content)):
                response.failure(f"{len(content)} bytes instead of {self.expected}")
            status: int = response.status_code
        return status, content

    @classmethod
    def _as_long(cls, size: int) -> bool:
        cls.expected = cls.expected or size
        return size == cls.expected
