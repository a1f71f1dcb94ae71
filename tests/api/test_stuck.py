"""Statements that go on though they were stopped: one call of a function over long texts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.processes import ServiceProcess, until

LIMITS = {"seconds": 0.5, "stuck_seconds": 0.5}
SQLITE = """
    select instr(replace(hex(zeroblob(4000000)), '00', 'aa'), replace(hex(zeroblob(2000000)), '00', 'aa') || 'b') as a
"""
DUCKDB = "select levenshtein(repeat('ab', 500000), repeat('ba', 500000)) as a"
"""Each takes many minutes, where nothing ends them."""
pytestmark = pytest.mark.server


@pytest.fixture(params=["sqlite", "duckdb", "one process"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceProcess]:
    url = "duckdb:///:memory:" if request.param == "duckdb" else f"sqlite:///{tmp_path / 'empty.db'}"
    (tmp_path / "empty.db").touch()
    workers = 1 if request.param == "one process" else 2
    service = ServiceProcess(tmp_path, {"data": url}, LIMITS, workers=workers)
    yield service.start()
    service.stop()


def test_a_worker_that_does_nothing_any_more_is_replaced(tmp_path: Path) -> None:
    """Before, one that waited for itself (a library that found no memory) kept its connections waiting for ever."""
    service = ServiceProcess(tmp_path, {"data": "sqlite://"}, {"stuck_seconds": 1}, workers=2).start()
    try:
        before = service.living_workers()
        stopped = next(iter(before))
        stopped.suspend()
        until(lambda: stopped not in service.living_workers() and len(service.living_workers()) == len(before))
        assert before - {stopped} < service.living_workers(), "the other goes on"
        assert "a worker does not answer and is killed" in service.log.read_text()
    finally:
        service.stop()


def test_its_process_is_replaced_or_it_is_said(service: ServiceProcess) -> None:
    sql = DUCKDB if "duckdb" in service.resources["data"] else SQLITE

    def ask() -> None:
        with suppress(httpx.TransportError), service.client() as client:
            client.post("/resources/data/query", json={"sql": sql})

    before = service.living_workers()
    asking = threading.Thread(target=ask)
    asking.start()
    with service.client() as client:
        if service.workers == 1:
            until(lambda: client.get("/health").json()["checks"].get("statements") == "stuck")
            until(lambda: "statements cannot be stopped" in service.log.read_text())
        else:
            until(lambda: len(before & service.living_workers()) < len(before))
            until(lambda: len(service.living_workers()) == len(before))
            said = [json.loads(line)["message"] for line in service.log.read_text().splitlines() if line[:1] == "{"]
            assert said.count("a worker has statements that cannot be stopped and ends") == 1
            assert len(before & service.living_workers()) == len(before) - 1, "the others go on"

            def answers() -> bool:
                with suppress(httpx.TransportError):
                    return (
                        client.post("/resources/data/query?format=csv", json={"sql": "select 1 as a"}).text
                        == "a\r\n1\r\n"
                    )
                return False

            until(answers)
            assert "statements" not in client.get("/health").json()["checks"]
    service.stop()
    asking.join()
