"""A process of the service has so much memory: what asks for more is refused, and the next request is answered."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import duckdb
import psutil
import pytest

from dai.api.server.memory import STACKS_BYTES, by_itself
from dai.config import LEAST_MEMORY, parse
from dai.errors import LimitError, of_memory
from dai.streams import machine
from tests.processes import ServiceProcess, until

MEMORY = 300_000_000
UNCOUNTED = "select length(repeat('x', 1500000000) || 'y') as a"
"""DuckDB does not count it: 3 GB where nothing bounds it."""
pytestmark = pytest.mark.server


def service(directory: Path, workers: int, kind: str = "duckdb") -> ServiceProcess:
    duckdb.connect(directory / "data.duckdb").close()
    plenty = "memory_bytes = 20_000_000_000"
    return ServiceProcess(
        directory,
        {"lite": f"sqlite:///{directory / 'lite.db'}"},
        {"memory_bytes": MEMORY},
        workers=workers,
        roles={"evaluator": plenty},
        more=f"""
            [resources.duck]
            url = "duckdb:///{directory / "data.duckdb"}"
            {plenty}
            [federations.lab]
            {plenty}
            [[federations.lab.sources]]
            alias = "duck"
            resource = "duck"
        """,
        anew=True,
    )


def bound_of(process: psutil.Process) -> int:
    limit = re.search(r"Max data size +(\d+)", Path(f"/proc/{process.pid}/limits").read_text())
    return int(limit[1]) if limit else 0


FREED = """
import os, sys
from pathlib import Path
from dai.api.server import memory
from dai.api.server.serve import bounded
from dai.config import parse
document = {"service": {"state": "sqlite://"}, "limits": {"memory_bytes": 1 << 30}}
if sys.argv[1] == "evaluator":
    document["roles"] = {"evaluator": {}}
service = bounded(parse(document, Path(sys.argv[2]), {}))
statm = os.open("/proc/self/statm", os.O_RDONLY)
before, small = memory._mapped(statm), []
for _ in range(20):
    large = []
    for _ in range(10):
        large.append(bytes(13 << 20))
        small.append(bytes(2000))
    del large
print(memory._mapped(statm) - before, flush=True)
os._exit(0)
"""


GARBAGE = """
import gc, threading, time
from dai.api.server import memory
grown, collect = threading.Event(), memory._collect
memory._collect = lambda *given: (grown.wait(), collect(*given))  # its thread may begin late
memory.bound(0)
gc.set_threshold(50_000, 20, 20)
statm = memory.os.open("/proc/self/statm", memory.os.O_RDONLY)
before = memory._mapped(statm)
for _ in range(100):
    circle = [bytes(13 << 20)]
    circle.append(circle)
grown.set()
until = time.monotonic() + 20
while memory._mapped(statm) - before > 100 << 20 and time.monotonic() < until:
    time.sleep(0.02)
print(memory._mapped(statm) - before)
"""


GARBAGE_OF_MANY = """
import gc, time
from dai.api.server import memory
calls, grown = [], []
gc.collect = lambda: (calls.append(1), time.sleep(0.1))
memory.bound(0)
until = time.monotonic() + 3
while time.monotonic() < until:
    grown.append(bytes(40 << 20))
    time.sleep(0.1)
print(len(calls))
"""


def test_garbage_is_collected_when_a_process_grows() -> None:
    """Before, hundreds of requests left what they had sent in memory until garbage had 50,000 objects."""
    ran = subprocess.run([sys.executable, "-c", GARBAGE], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 100 << 20


def test_a_process_that_grows_does_not_only_collect_garbage() -> None:
    """With many objects that takes long, and nothing runs beside it."""
    ran = subprocess.run([sys.executable, "-c", GARBAGE_OF_MANY], capture_output=True, text=True, check=True)
    assert 0 < int(ran.stdout) <= 3


@pytest.mark.parametrize("role", ["", "evaluator"])
def test_large_blocks_are_given_back_where_memory_is_bounded(tmp_path: Path, role: str) -> None:
    """Before, their addresses counted for good: a process stood at its bound with next to nothing in use. An evaluator
    keeps them all the same, by its ``keep_freed_memory``."""
    ran = subprocess.run([sys.executable, "-c", FREED, role, tmp_path], capture_output=True, text=True, check=True)
    assert (int(ran.stdout) < 4 << 20) is not bool(role), ran.stdout


@pytest.mark.parametrize("workers", [1, 2])
def test_one_query_takes_no_more_than_a_process_may_have(tmp_path: Path, workers: int) -> None:
    with_service = service(tmp_path, workers)
    try:
        with with_service.start().client() as client:
            processes = with_service.processes()
            for each in processes[1:] or processes:
                until(lambda each=each: MEMORY < bound_of(each) < MEMORY + STACKS_BYTES + (2 << 30))
            for name in ("duck", "lab") * 2:
                refused = client.post(f"/resources/{name}/query", json={"sql": UNCOUNTED})
                assert refused.status_code == 422, refused.text
                assert refused.json()["type"] == "limit-exceeded"
                assert "memory_bytes" in refused.json()["hint"]
                answer = client.post(f"/resources/{name}/query?format=csv", json={"sql": "select 1 as a"})
                assert (answer.status_code, answer.text.split()) == (200, ["a", "1"])
            assert all(each.is_running() for each in processes)
    finally:
        with_service.stop()


@pytest.mark.parametrize(("url", "whole"), [("sqlite:///{}/a.db", 0.9), ("duckdb:///{}/data.duckdb", 1.8)])
def test_workers_that_have_all_resources_share_the_memory_of_the_machine(
    tmp_path: Path, url: str, whole: float
) -> None:
    duckdb.connect(tmp_path / "data.duckdb").close()
    one, lite = url.format(tmp_path), f"sqlite:///{tmp_path / 'lite.db'}"
    started = ServiceProcess(tmp_path, {"one": one, "lite": lite}, workers=2).start()
    try:
        workers = started.processes()[1:]
        assert len(workers) == 2
        until(lambda: all(0 < bound_of(each) < 1 << 50 for each in workers))
        assert sum(map(bound_of, workers)) == pytest.approx(whole * machine.memory(), rel=0.05)
    finally:
        started.stop()


def test_engines_have_a_share_of_it() -> None:
    document = {
        "limits": {"memory_bytes": MEMORY},
        "resources": {"a": {"url": "duckdb://"}, "b": {"url": "duckdb://", "memory_bytes": 5}},
        "federations": {"lab": {}},
        "roles": {"evaluator": {}},
    }
    config = parse(document, environment={})
    assert [each.memory_bytes for each in config.resources.values()] == [MEMORY // 4, 5]
    assert [each.content for each in (config.federations["lab"], config.roles["evaluator"])] == [
        {"memory_bytes": MEMORY // 2}
    ] * 2
    free = parse({**document, "limits": {}}, environment={})
    assert free.resources["a"].memory_bytes == 0
    assert free.federations["lab"].content == {}


def test_a_share_is_enough_and_stands_in_for_0() -> None:
    config = parse(
        {
            "limits": {"memory_bytes": 150_000_000},
            "resources": {"a": {"url": "duckdb://", "memory_bytes": 0}},
            "federations": {"lab": {"memory_bytes": 0}},
            "roles": {"evaluator": {}, "other": {}},
        },
        environment={},
    )
    assert config.resources["a"].memory_bytes == 150_000_000 // 4
    assert config.federations["lab"].content == {"memory_bytes": LEAST_MEMORY}
    assert config.roles["evaluator"].content == {"memory_bytes": LEAST_MEMORY}
    assert config.roles["other"].content == {}


def test_by_itself_it_is_a_part_of_the_machines() -> None:
    assert 0 < machine.memory() <= psutil.virtual_memory().total
    begun = 1_700_000_000
    for size in (4_000_000_000, 16_000_000_000):
        assert by_itself(begun, size) == int(0.9 * size)
    assert by_itself(begun, 2_000_000_000) == begun + 500_000_000


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_memory_that_is_refused_is_a_limit(error: Exception) -> None:
    assert isinstance(of_memory(error), LimitError)
    assert of_memory(RuntimeError("else")) is None
