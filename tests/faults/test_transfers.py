"""A delivery between two services, one of which is killed."""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

import dai
from tests.api.test_transfers import AGGREGATE, INTO, LOAD, errors, session, to_gdt
from tests.documents import query, to_csv, written
from tests.faults.conftest import Database, Start
from tests.processes import ServiceProcess, until

XML = {"Content-Type": "application/xml"}


@pytest.fixture
def target(tmp_path: Path, workers: int) -> ServiceProcess:
    """Service B, with an empty table. What is delivered comes to any of its workers."""
    with closing(sqlite3.connect(tmp_path / "store.db")) as store:
        store.execute("create table rows (i integer, s text)")
    return ServiceProcess(tmp_path / "target", {"store": f"sqlite:///{tmp_path / 'store.db'}"}, workers=workers)


@pytest.mark.parametrize(
    ("database", "restarted", "mode", "blocks", "workers"),
    [
        ("postgresql", True, "block", 20, 2),
        ("postgresql", True, "full", 0, 1),
        ("mariadb", False, "full", 3, 1),
    ],
    indirect=["database"],
)
def test_a_target_that_is_killed(
    database: Database,
    start: Start,
    target: ServiceProcess,
    restarted: bool,
    mode: str,
    blocks: int,
    record_property: Callable[[str, object], None],
) -> None:
    """When it has so many blocks: the delivery ends with an error, the query stops in the database, and nothing of it
    stays in the target."""
    target.start()
    try:
        source = start(resources={"lab": database.server.url}, delivery=[f"{target.url}/sessions"])
        with source.client() as a, target.client() as b, ThreadPoolExecutor() as pool:
            url = session(b)
            path = f"/resources/store/perform?session={url.rpartition('/')[2]}"
            reading = pool.submit(b.post, path, content=written(INTO + LOAD.format("rows")), headers=XML)
            until(lambda: b.get(url).json()["streams"])
            body = query("q", database.endless, "rows") + AGGREGATE.format(1000) + to_gdt(url, mode, "blocks")
            job = a.post("/resources/lab/perform", content=written(body), headers=XML).headers["location"]
            until(lambda: b.get(url).json()["streams"][0]["next"] >= blocks)
            target.kill()
            if restarted:
                target.start()
            stopped = until(lambda: database.at_work == 0)
            record_property("seconds until the query had stopped", stopped)
            with pytest.raises(httpx.TransportError):
                reading.result()
            until(lambda: a.get(job).json()["phase"] == "ERROR")
            failed = errors(a.get(job).json())
        assert failed.pop("deliver") in ("unreachable", "truncated", "gone")
        assert failed == {"q": "stream-closed", "a": "stream-closed"}
        until(source.at_rest)
        if restarted:
            count = dai.connect(f"{target.url}/store").query("select count(*) as n from rows").arrow()
            assert count.to_pylist() == [{"n": 0}]
    finally:
        target.stop()


@pytest.mark.parametrize(
    ("database", "mode", "blocks", "workers"),
    [("mariadb", "block", 20, 2), ("postgresql", "full", 3, 1)],
    indirect=["database"],
)
def test_a_source_that_is_killed(
    database: Database, start: Start, target: ServiceProcess, mode: str, blocks: int
) -> None:
    """What reads the stream waits no longer than the session's time-out."""
    target.start()
    source = start(resources={"lab": database.server.url}, delivery=[f"{target.url}/sessions"])
    try:
        with target.client() as b, ThreadPoolExecutor() as pool:
            url = target.url + b.post("/sessions", json={"timeout": 2}).headers["location"]
            path = f"/resources/store/perform?session={url.rpartition('/')[2]}"
            reading = pool.submit(b.post, path, content=written(INTO + LOAD.format("rows")), headers=XML)
            until(lambda: b.get(url).json()["streams"])
            body = query("q", database.endless, "rows") + AGGREGATE.format(1000) + to_gdt(url, mode, "blocks")
            httpx.post(f"{source.url}/resources/lab/perform", content=written(body), headers=XML)
            until(lambda: b.get(url).json()["streams"][0]["next"] >= blocks)
            source.kill()
            assert reading.result().json()["type"] == "gone"
        count = dai.connect(f"{target.url}/store").query("select count(*) as n from rows").arrow()
        assert count.to_pylist() == [{"n": 0}]
    finally:
        target.stop()


@pytest.mark.parametrize(
    ("database", "leaves", "workers"),
    [("postgresql", "source", 1), ("mariadb", "target", 2)],
    indirect=["database"],
)
def test_a_client_that_leaves(database: Database, start: Start, target: ServiceProcess, leaves: str) -> None:
    """A client waits for the document at one of the services, and leaves: both end, and the query stops."""
    target.start()
    try:
        source = start(resources={"lab": database.server.url}, delivery=[f"{target.url}/sessions"])
        with source.client() as a, target.client() as b, ThreadPoolExecutor() as pool:
            url = session(b)
            path = f"/resources/store/perform?session={url.rpartition('/')[2]}"
            body = query("q", database.endless, "rows") + to_gdt(url)
            if leaves == "source":
                reading = pool.submit(b.post, path, content=written(INTO + LOAD.format("rows")), headers=XML)
                until(lambda: b.get(url).json()["streams"])
                body += query("p", database.endless, "more") + to_csv("c", "more", "csv")
                with a.stream("POST", "/resources/lab/perform", content=written(body), headers=XML) as answer:
                    assert answer.status_code == 200
                    until(lambda: b.get(url).json()["streams"][0]["next"] > 2)
                problem = reading.result().json()
                assert (problem["type"], "closed it before the last block" in problem["detail"]) == (
                    "truncated",
                    True,
                ), problem
            else:
                job = a.post("/resources/lab/perform", content=written(body), headers=XML).headers["location"]
                document = written(INTO + to_csv("c", "came", "csv"))
                with b.stream("POST", path, content=document, headers=XML) as answer:
                    assert answer.status_code == 200
                    until(lambda: b.get(url).json()["streams"][0]["next"] > 2)
                until(lambda: a.get(job).json()["phase"] == "ERROR")
                assert errors(a.get(job).json()) == {"q": "stream-closed", "deliver": "gone"}
        until(lambda: database.at_work == 0)
        until(source.at_rest)
        until(target.at_rest)
        count = dai.connect(f"{target.url}/store").query("select count(*) as n from rows").arrow()
        assert count.to_pylist() == [{"n": 0}]
    finally:
        target.stop()
