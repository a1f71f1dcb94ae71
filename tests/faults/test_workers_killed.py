"""One of two workers is killed amid its work: that breaks off and is told so, everything else goes on."""

import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import httpx
import psutil
import pytest

from tests.faults.conftest import Database, Start
from tests.faults.test_database_restart import stream_document
from tests.processes import SECONDS, ServiceProcess, address_of, until

QUERY = "/resources/lab/query"
PUSHED = 5_000_000
XML = {"Content-Type": "application/xml"}


@dataclass
class Work:
    """What a worker is in the middle of. ``broken`` checks that it broke off and what is said of it, ``goes_on`` that
    it did not; ``statements`` of it run in the database."""

    broken: Callable[[], None]
    goes_on: Callable[[], None]
    statements: int = 1


Begin = Callable[[ServiceProcess, psutil.Process, httpx.Client, Database, ExitStack], Work]
"""Begins work in that worker, which holds the client's connection."""


def a_streaming_answer(
    service: ServiceProcess, worker: psutil.Process, client: httpx.Client, database: Database, stack: ExitStack
) -> Work:
    headers = {"Accept-Encoding": "identity"}  # else a few pieces are a million rows
    answer = stack.enter_context(client.stream("POST", QUERY, json={"sql": database.endless}, headers=headers))
    pieces = answer.iter_raw()
    assert next(pieces)

    def broken() -> None:
        with pytest.raises(httpx.TransportError):
            deque(pieces, maxlen=0)

    def goes_on() -> None:
        assert all(next(pieces) for _ in range(200))

    return Work(broken, goes_on)


def an_answer_without_rows(
    service: ServiceProcess, worker: psutil.Process, client: httpx.Client, database: Database, stack: ExitStack
) -> Work:
    asking = stack.enter_context(ThreadPoolExecutor()).submit(client.post, QUERY, json={"sql": database.stuck})

    def broken() -> None:
        assert isinstance(asking.exception(SECONDS), httpx.TransportError)

    def goes_on() -> None:
        assert not asking.done()

    return Work(broken, goes_on)


def a_job(
    service: ServiceProcess, worker: psutil.Process, client: httpx.Client, database: Database, stack: ExitStack
) -> Work:
    created = client.post(QUERY, json={"sql": database.endless}, headers={"Prefer": "respond-async"})
    job = created.headers["location"]
    directory = service.results_directory / job.rpartition("/")[2]

    def written() -> int:
        return sum(each.stat().st_size for each in directory.glob("*.part"))

    until(written)

    def broken() -> None:
        with service.client() as other:
            until(lambda: other.get(job).json()["phase"] == "ERROR")
            assert "stopped while this job was" in other.get(job).json()["error"]["detail"]
            assert other.get(f"{job}/outputs/result").status_code == 410
        assert not list(directory.glob("*"))

    def goes_on() -> None:
        before = written()
        until(lambda: written() > before)

    return Work(broken, goes_on)


def a_pull_that_came_to_the_other_worker(
    service: ServiceProcess, worker: psutil.Process, client: httpx.Client, database: Database, stack: ExitStack
) -> Work:
    """It waits, for a block of a statement without rows, on a connection that moved."""
    session = client.post("/sessions").headers["location"]
    path = f"/resources/lab/perform?session={session.rpartition('/')[2]}"
    document = stream_document(database.stuck)
    assert client.post(path, content=document, headers=XML).status_code == 202
    other = next(each for at, each in service.connection_of_each(stack).items() if at != worker)
    address = address_of(other.get("/health/live"))
    stream = f"{session}/streams/out/blocks/0?wait=60"
    pulling = stack.enter_context(ThreadPoolExecutor()).submit(other.get, stream)
    until(lambda: service.has_connection(worker, address))

    def broken() -> None:
        assert isinstance(pulling.exception(SECONDS), httpx.TransportError)
        gone = httpx.get(service.url + stream, timeout=SECONDS)
        assert (gone.status_code, gone.json()["type"]) == (404, "not-found")

    def goes_on() -> None:
        assert not pulling.done()

    return Work(broken, goes_on)


def a_push_that_came_to_the_other_worker(
    service: ServiceProcess, worker: psutil.Process, client: httpx.Client, database: Database, stack: ExitStack
) -> Work:
    """Half of its body is there."""
    session = client.post("/sessions").headers["location"]
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS))
    head = f"PUT {session}/streams/in/blocks/0 HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\n"
    connection.sendall(f"{head}Content-Length: {PUSHED}\r\n\r\n".encode() + bytes(PUSHED // 2))
    until(lambda: service.has_connection(worker, connection.getsockname()))

    def broken() -> None:
        with suppress(ConnectionResetError):
            assert connection.recv(1000) == b""
        again = httpx.put(f"{service.url}{session}/streams/in/blocks/0", content=b"x", timeout=SECONDS)
        assert (again.status_code, again.json()["type"]) == (404, "not-found")

    def goes_on() -> None:
        connection.sendall(bytes(PUSHED // 2))
        assert connection.recv(1000).startswith(b"HTTP/1.1 204")

    return Work(broken, goes_on, statements=0)


WORK: tuple[Begin, ...] = (
    a_streaming_answer,
    an_answer_without_rows,
    a_job,
    a_pull_that_came_to_the_other_worker,
    a_push_that_came_to_the_other_worker,
)


def test_what_a_killed_worker_did_ends_and_the_rest_goes_on(start: Start, database: Database) -> None:
    service = start(resources={"lab": database.server.url}, workers=2)
    with ExitStack() as stack:
        victim, other = service.connection_of_each(stack)
        killed: list[Work] = []
        living: list[Work] = []
        for begin in WORK:
            clients = service.connection_of_each(stack)
            for worker, work in ((victim, killed), (other, living)):
                work.append(begin(service, worker, clients[worker], database, stack))
        statements = sum(each.statements for each in living)
        until(lambda: database.at_work == 2 * statements)
        victim.kill()
        for each in killed:
            each.broken()
        until(lambda: database.at_work == statements)
        for each in living:
            each.goes_on()
        until(lambda: len(service.living_workers()) == 2)
        assert other in service.living_workers()
        with ExitStack() as new:
            for client in service.connection_of_each(new).values():
                answer = client.post(f"{QUERY}?format=csv", json={"sql": "select 1 as a"})
                assert (answer.status_code, answer.text) == (200, "a\r\n1\r\n")
        # what still waits for the other worker ends with it
        assert service.stop() == 0
    until(lambda: database.connections == 0)
    assert not service.leftovers()
    assert service.log.read_text().count("a worker died and is replaced") == 1


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_no_statement_outlives_a_killed_supervisor(start: Start, database: Database) -> None:
    service = start(resources={"lab": database.server.url}, workers=2)
    with ExitStack() as stack:
        at_work = [
            begin(service, *each, database, stack)
            for each in service.connection_of_each(stack).items()
            for begin in (a_job, a_streaming_answer)
        ]
        until(lambda: database.at_work == 4)
        workers = service.living_workers()
        service.kill()
        until(lambda: not any(each.is_running() for each in workers))
        at_work[1].broken()
        until(lambda: database.connections == 0)
    service.start()
    with service.client() as client:
        assert {each["phase"] for each in client.get("/jobs").json()["jobs"]} == {"ERROR"}
    assert not service.leftovers()
