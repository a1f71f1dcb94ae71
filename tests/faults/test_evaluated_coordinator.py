"""Who asked a query dies while evaluators run it: they and the databases notice at once, and stop; or it stops without
a word, as behind a network that has parted: they notice in time."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.faults.evaluated import BIG, World, at_rest, world
from tests.faults.federation import ROWS, SOON, WIDTH, Side, large
from tests.processes import ROOT, ServiceProcess, until

CLIENT = """
import json, sys
import dqp
from tests.faults.evaluated import ALWAYS
given = json.loads(sys.argv[1])
lab = dqp.connect({"sources": given["sources"], "evaluators": given["evaluators"]})
lab._coordinator.runtime._thresholds = ALWAYS
print(json.dumps(lab.sql(given["sql"]).arrow().to_pylist(), default=int))
"""
LIVENESS_TIMEOUT = 3.0
"""Seconds that a coordinator may be silent."""


@pytest.fixture(scope="module")
def evaluated(both: Mapping[str, Side], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    for each in both.values():
        each.begin()
    with world(tmp_path_factory.mktemp("evaluated"), both, f"liveness_timeout = {LIVENESS_TIMEOUT}") as setting:
        yield setting


def all_rest(evaluated: World) -> bool:
    return all(map(at_rest, evaluated.evaluators)) and all(each.idle for each in evaluated.sides.values())


@contextmanager
def asking(evaluated: World) -> Iterator[subprocess.Popen[str]]:
    """A process with a query that both evaluators work on; some rows come when the gate opens."""
    reached = evaluated.gates["pg"].shut("/query ", "big", after=BIG // 4)
    urls = [each.url for each in evaluated.evaluators]
    given = {"sources": evaluated.urls(), "evaluators": urls, "sql": large("pg", "maria").sql}
    command = [sys.executable, "-c", CLIENT, json.dumps(given)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as client:
        try:
            assert reached.wait(2 * SOON)
            until(lambda: not any(map(at_rest, evaluated.evaluators)))
            yield client
        finally:
            client.kill()
            evaluated.gates["pg"].open()


def test_a_client_that_is_killed(evaluated: World) -> None:
    with asking(evaluated) as client:
        client.kill()
        evaluated.gates["pg"].open()
        until(lambda: all_rest(evaluated))


def test_a_client_that_stops_and_goes_on(evaluated: World) -> None:
    """Its connections stand, and what it is sent its kernel takes. No row was handed out: it asks again."""
    with asking(evaluated) as client:
        client.send_signal(signal.SIGSTOP)
        evaluated.gates["pg"].open()
        until(lambda: all_rest(evaluated))
        client.send_signal(signal.SIGCONT)
        answer, _ = client.communicate(timeout=2 * SOON)
        assert json.loads(answer) == [{"n": ROWS, "s": 2 * ROWS * WIDTH}]
    until(lambda: all_rest(evaluated))


def test_a_service_that_is_killed(evaluated: World, tmp_path: Path) -> None:
    sources = {"lab": {alias: {"url": url} for alias, url in evaluated.urls().items()}}
    urls = [each.url for each in evaluated.evaluators]
    service = ServiceProcess(tmp_path, {}, federations=sources, evaluators=urls).start()
    reached = evaluated.gates["pg"].shut("/query ", "big", after=BIG // 4)

    def ask() -> None:
        with suppress(httpx.TransportError):
            httpx.post(f"{service.url}/resources/lab/query", json={"sql": large("pg", "maria").sql}, timeout=2 * SOON)

    waiting = threading.Thread(target=ask)
    waiting.start()
    try:
        assert reached.wait(2 * SOON)
        assert not all(map(at_rest, evaluated.evaluators))
    finally:
        service.kill()
    evaluated.gates["pg"].open()
    until(lambda: all_rest(evaluated))
    waiting.join()
