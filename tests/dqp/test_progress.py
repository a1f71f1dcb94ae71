"""What the API says of a federated query while it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dai
from dai.api.server.serve import Background, background
from dai.config import parse
from dai.drivers import driver_for
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from tests.processes import until

ROWS = 400
OPENED = threading.Event()


def held(value: int) -> int:
    """An operation that takes as long as the test wants."""
    assert OPENED.wait(60)
    return value


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Background]:
    urls = {alias: f"sqlite:///{tmp_path / alias}.db" for alias in ("one", "two")}
    for alias, url in urls.items():
        driver = driver_for(url)
        table = pa.table({"id": list(range(ROWS)), "v": [each % 7 for each in range(ROWS)]})
        driver.load(f"t_{alias}", Stream.of(table), cancellation=Cancellation(), create=True)
        driver.close()
    function = {"python": f"{__name__}:held", "arguments": ["BIGINT"], "returns": "BIGINT", "concurrent": 1}
    document: dict[str, Any] = {
        "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
        "resources": {name: {"url": url} for name, url in urls.items()},
        "federations": {
            "lab": {
                "sources": [{"alias": alias, "resource": alias} for alias in urls],
                "functions": {"held": function},
            }
        },
    }
    with background(parse(document, tmp_path, {})) as running:
        yield running
    OPENED.set()


def test_a_job_says_how_far_each_source_is(service: Background) -> None:
    OPENED.clear()
    lab = dai.connect(f"{service.url}/lab")
    job = lab.submit("select a.id, held(b.v) as h from one.t_one a join two.t_two b on a.id = b.id")

    def parts() -> dict[str, dict[str, Any]]:
        (activity,) = job.progress
        return {each["name"]: each for each in activity["parts"]}

    def arrived() -> bool:
        now = parts()
        if not {"one", "two", "held"} <= now.keys():
            return False
        return all(now[each]["rows"] == ROWS for each in ("one", "two")) and now["two"]["state"] == "done"

    until(arrived)
    now = parts()
    assert now["one"]["bytes"] > ROWS
    assert now["held"]["state"] in ("waiting", "running")
    assert now["held"]["rows"] == 0
    OPENED.set()
    assert job.wait().phase == "COMPLETED"
    (activity,) = job.progress
    assert activity["rows"] == ROWS
    assert {each["name"]: each["state"] for each in activity["parts"]}["held"] == "done"
    # of one database there is nothing to tell apart
    plain = dai.connect(f"{service.url}/one").submit("select count(*) from t_one")
    assert plain.wait().progress[0]["parts"] == []
