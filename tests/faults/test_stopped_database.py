"""The service is told to stop while its databases have stopped answering: it ends all the same, and says so."""

import contextlib
import http.client
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest

import dai
from dai.service.state.store import Store
from tests.faults.conftest import Database, Start
from tests.faults.test_service_killed import working_job
from tests.processes import SECONDS, ServiceProcess, until

GRACE = 1


@contextmanager
def stopped(database: Database, *, whole: bool) -> Iterator[None]:
    """Inside the block the database's processes do nothing; not ``whole``: those that serve a connection each, while
    new connections are accepted. A session may end at any moment, the one that counted the others
    first of all: one that has ended needs no signal."""
    server = psutil.Process(database.server.pid)
    sessions = server.children()
    try:
        if whole:
            server.suspend()
        for each in sessions:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.suspend()
        yield
    finally:
        for each in sessions:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()
        server.resume()


def busy(service: ServiceProcess) -> int:
    """Connections to the database that are not idle."""
    opened, idle = service.connections("lab")
    return opened - idle


def ask(answers: list[httpx.Response], method: str, url: str, sql: str | None = None) -> threading.Thread:
    """Asks in a thread."""

    def asking() -> None:
        answers.append(httpx.request(method, url, json={"sql": sql} if sql else None, timeout=100))

    thread = threading.Thread(target=asking, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("database", "number", "whole"),
    [
        pytest.param("postgresql", signal.SIGTERM, True, id="postgresql"),
        pytest.param("postgresql", signal.SIGTERM, False, id="sessions of postgresql"),
        pytest.param("mariadb", signal.SIGINT, True, id="mariadb"),
    ],
    indirect=["database"],
)
def test_it_ends_after_its_time_of_grace(start: Start, database: Database, number: signal.Signals, whole: bool) -> None:
    database.run("drop view if exists never", f"create view never as {database.stuck}")
    service = start(
        resources={"lab": database.server.url}, federations={"all": {"lab": {"resource": "lab"}}}, grace=GRACE
    )
    lab = dai.connect(f"{service.url}/lab", retries=0)
    jobs = [working_job(service, database.endless), lab.submit(database.stuck).id]
    lab.close()
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    headers = {"Content-Type": "application/json", "Accept": "text/csv"}
    connection.request("POST", "/resources/lab/query", f'{{"sql": "{database.endless}"}}', headers)
    answer = connection.getresponse()
    refused: list[httpx.Response] = []
    asking = [
        ask(refused, "POST", f"{service.url}/resources/lab/query", database.stuck),
        ask(refused, "POST", f"{service.url}/resources/all/query", "select s from lab.never"),
    ]
    until(lambda: database.at_work == 5)

    with stopped(database, whole=whole):
        at_work = busy(service)
        statistics = ask(refused, "GET", f"{service.url}/resources/lab/statistics?table=never")
        until(lambda: busy(service) > at_work or not statistics.is_alive())
        asking.append(statistics)
        # far sooner than the statements, of which each takes ten minutes
        assert service.stop(number) == 0
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()
        connection.close()
        for each in asking:
            each.join(SECONDS)
    queries = [each for each in refused if each.request.method == "POST"]
    assert [(each.status_code, each.json()["detail"]) for each in queries] == [(503, "The service is stopping.")] * 2
    assert all(each.headers["Retry-After"] for each in queries)
    assert len(refused) == len(asking)
    until(lambda: database.connections == 0)
    assert not service.leftovers()
    store = Store(f"sqlite:///{service.directory / 'state.db'}", "dai")
    for id in jobs:
        job = store.get(id)
        assert job is not None
        assert job.phase == "ERROR"
        assert "stopped while this job was running" in (job.error or {})["detail"]
        assert not list(service.results_directory.glob(f"{id}/*"))
    store.close()
