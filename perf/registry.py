"""The registry by the published method: services are published over UDDI, and found by their names, while it grows.

At each size 100 services are published one after the other and 100, chosen by chance, are inquired: by a name over
SOAP, by metadata and in SPARQL. Each publication is on the disk when it is answered. The services between two sizes are
published in bulk. By itself: ``python -m perf.registry``, where no database is needed.
"""

from __future__ import annotations

import http.client
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

import orjson

from perf.harness import Report, median
from perf.world import World
from tests.processes import ServiceProcess

SIZES = (100, 2_000, 20_000)
ASKED = 100
TYPE = "http://example.org/terms#subject"
PUBLISHED = {"publish": 62.4, "inquire": 42.7, "inquire by metadata": 80.5}
"""ms at 2,000 services, in a file (J. Papay et al.)."""
GOALS = {"publish": 2.5, "inquire": 1.5, "inquire by metadata": 1.5}
_SAVE = (
    '<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/"><e:Body><{0} xmlns="urn:uddi-org:api_v2"'
    ' generic="2.0">{1}</{0}></e:Body></e:Envelope>'
)
_SERVICE = (
    '<businessService serviceKey="" businessKey=""><name>Service {0}</name><description>measured</description>'
    '<bindingTemplates><bindingTemplate bindingKey="" serviceKey=""><accessPoint URLType="http">http://host/{0}'
    "</accessPoint></bindingTemplate></bindingTemplates></businessService>"
)


class Client:
    def __init__(self, base: str) -> None:
        split = urlsplit(base)
        self._connection = http.client.HTTPConnection(str(split.hostname), split.port, timeout=120)

    def ask(self, method: str, path: str, body: bytes | None = None, media_type: str = "application/json") -> bytes:
        self._connection.request(method, f"/registry{path}", body, {"Content-Type": media_type} if body else {})
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise AssertionError(data[:500])
        return data

    def call(self, part: str, name: str, content: str) -> bytes:
        return self.ask("POST", f"/uddi/{part}", _SAVE.format(name, content).encode(), "text/xml")

    def grow(self, first: int, last: int) -> None:
        for at in range(first, last, 1000):
            entries = []
            for each in range(at, min(at + 1000, last)):
                key, said = f"urn:bulk:{each}", {"type": TYPE, "value": f"subject {each}"}
                entries += [
                    {"key": key, "kind": "service", "name": f"Service {each}", "description": "of the measurement"},
                    {"key": f"{key}:m", "kind": "metadata", "parent": key, "metadata": said},
                ]
            self.ask("POST", "/entries", orjson.dumps({"entries": entries}))


def timed(work: Callable[[int], object], asked: list[int]) -> float:
    """The median in ms."""
    took = []
    for each in asked:
        began = time.perf_counter()
        work(each)
        took.append((time.perf_counter() - began) * 1000)
    return median(took)


def measure(report: Report) -> None:
    chance = random.Random(17)
    found: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as directory:
        running = ServiceProcess(Path(directory), {}, more='[registry]\nstore = "sqlite:///registry.db"\n').start()
        client, there = Client(running.url), 0

        def find(each: int) -> bytes:
            return client.call("inquiry", "find_service", f"<name>Service {each}</name>")

        def by_metadata(each: int) -> bytes:
            return client.ask("GET", f"/metadata?type={quote(TYPE, safe='')}&value=subject%20{each}")

        def sparql(each: int) -> bytes:
            query = f'select ?s {{ ?s <{TYPE}> "subject {each}" }}'
            return client.ask("POST", "/sparql", query.encode(), "application/sparql-query")

        for size in SIZES:
            client.grow(there, size - ASKED)
            there = size
            new = list(range(size - ASKED, size))
            found["publish", size] = timed(
                lambda each: client.call("publication", "save_service", _SERVICE.format(each)), new
            )
            asked = [chance.randrange(size - ASKED) if size > ASKED else each for each in new]
            found["inquire", size] = timed(find, asked)
            found["inquire by metadata", size] = timed(by_metadata, asked)
            sparql(asked[0])  # its process takes over what was published
            found["SPARQL", size] = timed(sparql, asked)
        running.stop()
    rows = [
        [what, *(f"{found[what, size]:.2f}" for size in SIZES), PUBLISHED.get(what, "")]
        for what in ("publish", "inquire", "inquire by metadata", "SPARQL")
    ]
    report.text(f"Medians of {ASKED}, in ms, over one connection; each publication is on the disk.")
    report.table(["", *(f"{size:,} services" for size in SIZES), "published, 2,000"], rows)
    for what, limit in GOALS.items():
        report.goal(f"{what}, ms at 2,000 services", found[what, 2_000], limit)
        report.goal(f"{what}, 20,000 services over 2,000", found[what, 20_000] / found[what, 2_000], 1.5)


def run(world: World, rounds: int) -> Report:
    report = Report("registry", "A registry by the published method")
    measure(report)
    return report


if __name__ == "__main__":
    alone = Report("registry", "A registry by the published method")
    measure(alone)
    print("\n\n".join(alone.parts))
    for goal in alone.goals:
        print(goal)
