"""The state of a service that is lost while it runs, and that another service wants."""

import time
from pathlib import Path

import httpx
import pytest

from dai.api.server.serve import background
from dai.errors import ConfigurationError
from dai.service.state.store import Store
from tests.api.conftest import Serve, configured

JOB = {"Prefer": "respond-async"}


def phase(client: httpx.Client, job: str, *before: str) -> str:
    """The phase of a job once it has left those before."""
    while (description := str(client.get(job).json()["phase"])) in before:
        time.sleep(0.01)
    return description


def test_jobs_are_refused_when_the_state_is_lost(serve: Serve, tmp_path: Path) -> None:
    running = serve()
    with httpx.Client(base_url=running.url, timeout=60) as client:

        def submitted() -> httpx.Response:
            return client.post("/resources/book/query", json={"sql": "select 1 as a"}, headers=JOB)

        assert client.get("/health/ready").status_code == 200
        job = submitted().headers["location"]
        assert phase(client, job, "QUEUED", "EXECUTING") == "COMPLETED"
        (tmp_path / "state.db").unlink()
        ready = client.get("/health/ready")
        assert (ready.status_code, ready.json()["checks"]["state"]) == (503, "database-unavailable")
        for answer in (submitted(), client.get("/jobs"), client.get(job)):
            assert (answer.status_code, answer.json()["type"]) == (503, "database-unavailable")
            assert "deleted" in answer.json()["detail"]
        # what needs no state goes on
        assert client.post("/resources/book/query", json={"sql": "select 1 as a"}).status_code == 200


def test_a_second_service_of_the_same_name_does_not_start(tmp_path: Path, book: str) -> None:
    resources = {"book": {"url": book}}
    config = configured(tmp_path, resources)
    with background(config) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        sql = "with recursive c(i) as (select 1 union all select i + 1 from c) select max(i) as m from c"
        job = client.post("/resources/book/query", json={"sql": sql}, headers=JOB).headers["location"]
        assert phase(client, job, "QUEUED") == "EXECUTING"
        with pytest.raises(ConfigurationError, match="Another service named 'dai'"), background(config):
            raise AssertionError("it started")
        assert client.get(job).json()["phase"] == "EXECUTING"
        # one of another name shares database and directory
        done = client.post("/resources/book/query", json={"sql": "select 1 as a"}, headers=JOB).headers["location"]
        assert phase(client, done, "QUEUED", "EXECUTING") == "COMPLETED"
        with background(configured(tmp_path, resources, service={"name": "other"})):
            assert client.get(job).json()["phase"] == "EXECUTING"
            assert client.get(f"{done}/outputs/result").status_code == 200
        client.delete(job)
    # its name is free again
    with background(config) as running:
        assert httpx.get(f"{running.url}/health/ready", timeout=60).status_code == 200


def test_a_service_that_does_not_start_gives_its_name_back(tmp_path: Path, book: str) -> None:
    (tmp_path / "results").write_text("no directory")
    config = configured(tmp_path, {"book": {"url": book}})
    with pytest.raises(ConfigurationError), background(config):
        raise AssertionError("it started")
    store = Store(config.service.state, config.service.name)
    store.lease.claim()
    store.close()


def test_a_state_database_that_cannot_be_reached_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Store("postgresql://me:sesame@127.0.0.1:1/lab", "dai")
    said = str(caught.value)
    assert "Connection refused." in said
    assert "Check service.state: host 127.0.0.1, port 1, database lab, user me." in said
    assert "sesame" not in said
    assert not caplog.records
