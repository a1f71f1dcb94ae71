"""An XPath over all documents of a collection, beside lxml over the same files in a loop.

Both sides have their data in the page cache. The loop parses each file and evaluates the compiled expression; the
service also reads a database, writes the results as XML and sends them over HTTP. ``python -m perf.xml [--documents N]
[--rounds N]`` runs this benchmark without the databases of the others.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
from lxml import etree

from dai.drivers import DriverOptions
from dai.drivers.collections.driver import Collections
from dai.streams.cancellation import Cancellation
from perf.harness import Report, measured, median, ratio, shown
from perf.memory import GOAL_MIB, MIB, resident
from perf.world import World
from tests.processes import ServiceProcess

DOCUMENT_BYTES = 10_737
EXPRESSIONS = {
    "one document in a hundred": "/entry[@id mod 100 = 0]/phone",
    "one node of each document": "/entry/name",
    "all nodes, one number of each": "count(//item[@n > 20])",
}
PAUSE = 0.02


def run(world: World, rounds: int) -> Report:
    return searched(world.documents, rounds)


def searched(documents: int, rounds: int) -> Report:
    report = Report("xml", f"XPath over {documents:,} documents")
    with tempfile.TemporaryDirectory() as directory:
        files, database = Path(directory) / "files", Path(directory) / "notes.db"
        total = stored(documents, files, database)
        paths = [str(each) for each in sorted(files.iterdir())]
        service = ServiceProcess(Path(directory), {}, collections={"notes": str(database)}, workers=1).start()
        try:
            assert service.process is not None
            counted(service.url, "/entry/name", "d0")  # whatever is loaded at first use
            with peak(service.process) as figures:
                for expression in EXPRESSIONS.values():
                    counted(service.url, expression)
            cases: dict[str, Callable[[], object]] = {}
            for name, expression in EXPRESSIONS.items():
                assert counted(service.url, expression) == looped(paths, expression)
                cases[f"service: {name}"] = partial(counted, service.url, expression)
                cases[f"loop: {name}"] = partial(looped, paths, expression)
            seconds = measured(cases, rounds, warm=0)
        finally:
            service.stop()
    report.text(f"{documents:,} documents, {total / MIB:,.0f} MiB, in SQLite; medians of {rounds} rounds.")
    rows = []
    for name, expression in EXPRESSIONS.items():
        ours, loop = f"service: {name}", f"loop: {name}"
        speed = ratio(seconds, loop, ours)
        rate = f"{total / MIB / median(seconds[ours]):,.0f}"
        took = [shown(median(seconds[side])) for side in (ours, loop)]
        rows.append([name, f"`{expression}`", *took, rate, f"{speed:.2f}"])
        report.goal(f"XPath, {name}: speed as a multiple of the loop's", speed, 0.7, at_least=True)
    report.table(["results", "expression", "service", "lxml in a loop", "MiB/s", "times the loop's speed"], rows)
    report.text(f"The service and its processes grow by {figures['grown']:.0f} MiB at most.")
    report.goal("XPath: growth of the service, MiB", figures["grown"], GOAL_MIB)
    return report


def document(number: int) -> bytes:
    items = "".join(f'<item n="{n}" code="{number * n % 9973}">text number {n} of it</item>' for n in range(180))
    head = f'<entry id="{number}"><name>Name {number}</name><phone>0{number:09}</phone>'
    return f"{head}{items}</entry>".encode().ljust(DOCUMENT_BYTES)


def stored(documents: int, files: Path, database: Path) -> int:
    """The documents as files and in a collection: their bytes."""
    files.mkdir()
    total = 0
    driver = Collections.connect(f"sqlite:///{database}", DriverOptions())
    with driver.store.transaction(Cancellation(), write=True) as transaction:
        transaction.create_collection("", "perf")
        collection = transaction.collection("perf")
        for start in range(0, documents, 1000):
            some = [(f"d{number}", document(number)) for number in range(start, min(start + 1000, documents))]
            transaction.add(collection, some)
            for name, content in some:
                (files / f"{name}.xml").write_bytes(content)
                total += len(content)
    driver.close()
    return total


def looped(paths: list[str], expression: str) -> int:
    """How many nodes or values there are."""
    find, count = etree.XPath(expression), 0
    for path in paths:
        results = find(etree.parse(path))
        count += len(results) if isinstance(results, list) else 1
    return count


def counted(service: str, expression: str, resource: str | None = None) -> int:
    """The same, from the service."""
    one = f"<resourceId>{resource}</resourceId>" if resource else ""
    escaped = expression.replace(">", "&gt;")
    body = (
        '<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types"><xPathStatement name="q">'
        f"<collection>perf</collection>{one}<expression>{escaped}</expression>"
        '<resourceSetStream name="nodes"/></xPathStatement></gridDataServicePerform>'
    )
    request = urllib.request.Request(
        f"{service}/resources/notes/perform?output=nodes", body.encode(), {"Content-Type": "application/xml"}
    )
    count, rest = 0, b""
    with urllib.request.urlopen(request) as reply:
        while data := reply.read(1 << 18):
            data = rest + data
            count += data.count(b"<resource>")
            rest = data[-9:]
    assert data == b""
    return count


@contextmanager
def peak(process: psutil.Process) -> Iterator[Mapping[str, float]]:
    """MiB by which a process and its children grow inside the block at most."""
    figures, over, start = {"grown": 0.0}, threading.Event(), resident(process)

    def sample() -> None:
        while not over.wait(PAUSE):
            figures["grown"] = max(figures["grown"], (resident(process) - start) / MIB)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield figures
    finally:
        over.set()
        sampler.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m perf.xml")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(searched(options.documents, options.rounds).write())
