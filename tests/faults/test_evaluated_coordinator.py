"""Who asked a query dies while evaluators run it: they and the databases notice at once, and stop."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.faults.evaluated import BIG, World, at_rest, world
from tests.faults.federation import SOON, Side, large
from tests.processes import ROOT, ServiceProcess, until

CLIENT = """
import json, sys
import dqp
from tests.faults.evaluated import ALWAYS
given = json.loads(sys.argv[1])
lab = dqp.connect({"sources": given["sources"], "evaluators": given["evaluators"]})
lab._coordinator.runtime._thresholds = ALWAYS
print(lab.sql(given["sql"]).arrow())
"""


@pytest.fixture(scope="module")
def evaluated(both: Mapping[str, Side], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    for each in both.values():
        each.begin()
    with world(tmp_path_factory.mktemp("evaluated"), both) as made:
        yield made


def all_rest(evaluated: World) -> bool:
    return all(map(at_rest, evaluated.evaluators)) and all(each.idle for each in evaluated.sides.values())


def test_a_client_that_is_killed(evaluated: World) -> None:
    reached = evaluated.gates["pg"].shut("/query ", "big", after=BIG // 4)
    urls = [each.url for each in evaluated.evaluators]
    given = {"sources": evaluated.urls(), "evaluators": urls, "sql": large("pg", "maria").sql}
    with subprocess.Popen([sys.executable, "-c", CLIENT, json.dumps(given)], cwd=ROOT) as client:
        try:
            assert reached.wait(2 * SOON)
            assert not any(map(at_rest, evaluated.evaluators)), "both had something to do"
        finally:
            client.kill()
        evaluated.gates["pg"].open()
        until(lambda: all_rest(evaluated), 10)


def test_a_service_that_is_killed(evaluated: World, tmp_path: Path) -> None:
    sources = {"lab": {alias: {"url": url} for alias, url in evaluated.urls().items()}}
    urls = [each.url for each in evaluated.evaluators]
    service = ServiceProcess(tmp_path, {}, federations=sources, evaluators=urls).start()
    reached = evaluated.gates["pg"].shut("/query ", "big", after=BIG // 4)

    def ask() -> None:
        with suppress(httpx.TransportError):
            httpx.post(f"{service.url}/resources/lab/query", json={"sql": large("pg", "maria").sql}, timeout=2 * SOON)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert reached.wait(2 * SOON)
        assert not all(map(at_rest, evaluated.evaluators))
    finally:
        service.kill()
    evaluated.gates["pg"].open()
    until(lambda: all_rest(evaluated), 10)
    asking.join()
