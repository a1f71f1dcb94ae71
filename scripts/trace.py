#!/usr/bin/env python3
"""The modules that a federated query or a perform document goes through, thread by thread, from a trace of its calls
(``sys.setprofile``).

Of each function the first call in a thread counts, unless below it less than a share of the thread's calls are made. A
*stay* is a run of such calls in one module; a *return* is a stay in a module that the thread has left. Threads that go
the same way are shown once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--share", type=float, default=0.03)
parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
parser.add_argument("where", help="a federation.toml, or the URL of a database that a service is to serve")
parser.add_argument("what", help="a query, or the path of a perform document")
asked = parser.parse_args()
sys.path.insert(0, str(asked.root))


class Way(threading.local):
    """What one thread has called: functions with their modules, how many calls each made below, which have not
    returned. Not by the thread's number, which a later thread may have again."""

    def __init__(self) -> None:
        self.calls: list[tuple[CodeType, str]] = []
        self.below: dict[int, int] = {}
        self.begun: dict[FrameType, int] = {}
        threads.append((self.calls, self.below))


threads: list[tuple[list[tuple[CodeType, str]], dict[int, int]]] = []
way = Way()
recording = False


def traced(frame: FrameType, event: str, _: object) -> None:
    if not recording:
        return
    path = frame.f_code.co_filename
    if event == "call" and path.startswith((f"{asked.root}/dqp/", f"{asked.root}/dai/")):
        way.begun[frame] = len(way.calls)
        way.calls.append((frame.f_code, path[len(str(asked.root)) + 1 : -3].replace("/", ".")))
    elif event == "return" and (at := way.begun.pop(frame, None)) is not None:
        way.below[at] = len(way.calls) - at


@contextmanager
def federation() -> Iterator[Callable[[int], object]]:
    from dai.streams.cancellation import Cancellation
    from dqp.coordinator import Coordinator
    from dqp.settings import load

    coordinator = Coordinator(load(asked.where))
    # A space more: the query is planned anew.
    yield lambda number: coordinator.query(asked.what + " " * number, cancellation=Cancellation()).table()
    coordinator.close()


@contextmanager
def service() -> Iterator[Callable[[int], object]]:
    from starlette.testclient import TestClient

    from dai.api.app import create_app
    from dai.api.service import Service
    from dai.config import parse

    with tempfile.TemporaryDirectory() as directory:
        kept = {"state": "sqlite:///state.db", "results_directory": "results"}
        config = parse({"service": kept, "resources": {"data": {"url": asked.where}}}, directory, {})
        document, headers = Path(asked.what).read_bytes(), {"Content-Type": "application/xml"}
        with TestClient(create_app(Service(config)), "http://127.0.0.1") as client:
            yield lambda _: client.post("/resources/data/perform", content=document, headers=headers).raise_for_status()


threading.setprofile(traced)
with service() if "://" in asked.where else federation() as run:
    run(0)  # connects, and reads the catalog
    recording = True
    sys.setprofile(traced)
    run(1)
    sys.setprofile(None)
    recording = False
ways: dict[tuple[str, ...], None] = {}  # ordered
for called, below in threads:
    first = {function: at for at, (function, _) in reversed([*enumerate(called)])}
    # what has not returned has made all calls that follow
    large = sorted(at for at in first.values() if below.get(at, len(called) - at) >= asked.share * len(called))
    if large:
        ways[tuple(module for module, _ in groupby(called[at][1] for at in large))] = None
print(*(" > ".join(each) for each in ways), sep="\n\n")
stays, back = sum(map(len, ways)), sum(len(each) - len(set(each)) for each in ways)
print(f"\n{stays} stays in {len(set().union(*ways))} modules, {back} returns")
