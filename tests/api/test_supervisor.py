"""Workers that die, hang or never begin: what their supervisor does about them, and what they had taken."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.api.conftest import ENDLESS
from tests.api.test_workers import NUMBERS
from tests.processes import SECONDS, ServiceProcess, until

QUERY = "/resources/book/query"
JOB = {"Prefer": "respond-async"}
Start = Callable[..., ServiceProcess]


@pytest.fixture
def service(tmp_path: Path, book: str) -> Iterator[ServiceProcess]:
    """Of two workers, not started yet."""
    service = ServiceProcess(tmp_path, {"book": book}, workers=2)
    yield service
    service.stop()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def entries(service: ServiceProcess, message: str) -> list[dict[str, Any]]:
    """Those of the log with that message."""
    lines = (json.loads(line) for line in service.log.read_text().splitlines() if line.startswith("{"))
    return [each for each in lines if each["message"] == message]


def successor(service: ServiceProcess, *known: psutil.Process) -> psutil.Process:
    """The worker that is none of those, as soon as it is there."""
    until(lambda: service.living_workers() - set(known))
    (new,) = service.living_workers() - set(known)
    return new


def suspended(worker: psutil.Process) -> None:
    """Returns when the worker has stopped: a signal that comes before would be taken first."""
    worker.suspend()
    until(lambda: worker.status() == psutil.STATUS_STOPPED)


# What a worker may take of the limits of the service: it takes all, another waits for it or is refused.


def session(client: httpx.Client) -> int:
    return client.post("/sessions").status_code


def push(client: httpx.Client, *, wait: int = 0) -> int:
    path = client.post("/sessions").headers["location"]
    return client.put(f"{path}/streams/in/blocks/0?wait={wait}", content=bytes(2500)).status_code


def phase(client: httpx.Client, id: str) -> str:
    return str(client.get(f"/jobs/{id}").json()["phase"])


def test_sessions_of_a_dead_worker_count_no_more(service: ServiceProcess) -> None:
    service.limits = {"sessions": 2}
    service.start()
    with ExitStack() as stack:
        (victim, theirs), (_, mine) = service.connection_of_each(stack).items()
        assert [session(each) for each in (theirs, theirs, mine)] == [201, 201, 503]
        victim.kill()
        until(lambda: session(mine) == 201)
        assert [session(mine), session(mine)] == [201, 503]


def test_a_place_of_a_dead_worker_goes_to_the_request_that_waits(
    service: ServiceProcess, pool: ThreadPoolExecutor
) -> None:
    service.limits = {"concurrent": 1, "queue": 1, "queue_seconds": SECONDS}
    service.start()
    with ExitStack() as stack:
        (victim, theirs), (_, mine) = service.connection_of_each(stack).items()
        streaming = stack.enter_context(theirs.stream("POST", QUERY, json={"sql": ENDLESS}))
        assert streaming.status_code == 200
        waiting = pool.submit(mine.post, f"{QUERY}?format=csv", json={"sql": "select 1 as a"})
        until(lambda: service.metrics()["dai_requests_queued"] == 1)
        victim.kill()
        assert waiting.result(SECONDS).text == "a\r\n1\r\n"


def test_a_queue_of_a_dead_worker_is_empty(service: ServiceProcess, pool: ThreadPoolExecutor) -> None:
    """The one that waited there is not waited for."""
    service.limits = {"concurrent": 1, "queue": 1, "queue_seconds": SECONDS}
    service.start()
    with ExitStack() as stack:
        (victim, theirs), (_, mine) = service.connection_of_each(stack).items()
        streaming = stack.enter_context(mine.stream("POST", QUERY, json={"sql": ENDLESS}))
        assert streaming.status_code == 200
        waiting = pool.submit(theirs.post, QUERY, json={"sql": "select 1 as a"})
        until(lambda: service.metrics()["dai_requests_queued"] == 1)
        with service.client() as other:
            assert other.post(QUERY, json={"sql": "select 1"}).status_code == 503
        victim.kill()
        assert isinstance(waiting.exception(SECONDS), httpx.TransportError)
        until(lambda: service.metrics()["dai_requests_queued"] == 0)
        streaming.close()
        with service.client() as other:
            assert other.post(f"{QUERY}?format=csv", json={"sql": "select 2 as a"}).text == "a\r\n2\r\n"
    until(service.at_rest)


def test_a_job_starts_where_that_of_a_dead_worker_ran(service: ServiceProcess) -> None:
    service.limits = {"jobs": 1, "job_queue": 1}
    service.start()
    with ExitStack() as stack:
        (victim, theirs), (_, mine) = service.connection_of_each(stack).items()
        first, second = (
            each.post(QUERY, json={"sql": ENDLESS}, headers=JOB).headers["location"].rpartition("/")[2]
            for each in (theirs, mine)
        )
        until(lambda: (phase(theirs, first), phase(mine, second)) == ("EXECUTING", "QUEUED"))
        victim.kill()
        until(lambda: phase(mine, second) == "EXECUTING")
        third = mine.post(QUERY, json={"sql": ENDLESS}, headers=JOB)
        assert third.status_code == 202
        assert mine.post(QUERY, json={"sql": ENDLESS}, headers=JOB).status_code == 503
        with service.client() as other:
            until(lambda: phase(other, first) == "ERROR")


def test_room_for_blocks_of_a_dead_worker_is_free(service: ServiceProcess, pool: ThreadPoolExecutor) -> None:
    service.limits = {"sessions_bytes": 4000, "session_bytes": 4000, "block_bytes": 4000}
    service.start()
    with ExitStack() as stack:
        (victim, theirs), (_, mine) = service.connection_of_each(stack).items()
        assert (push(theirs), push(mine)) == (204, 503)
        waiting: Future[int] = pool.submit(push, mine, wait=60)
        with service.client() as other:
            until(lambda: other.get("/metrics").text.count("dai_streams 3"))
        victim.kill()
        assert waiting.result(SECONDS) == 204


def test_results_of_a_dead_worker_count_as_before(service: ServiceProcess) -> None:
    service.start()
    with service.client() as client:
        client.post(QUERY, json={"sql": NUMBERS}, headers=JOB)
        until(service.at_rest)
        size = service.metrics()["dai_result_bytes"]
        assert size
    service.stop()
    service.limits = {"result_bytes": int(size * 2.5)}
    service.start()
    with ExitStack() as stack:
        (living, mine), (victim, theirs) = service.connection_of_each(stack).items()

        def third_has_no_room(client: httpx.Client) -> None:
            id = client.post(QUERY, json={"sql": NUMBERS}, headers=JOB).headers["location"].rpartition("/")[2]
            until(lambda: phase(client, id) == "ERROR")
            assert "space for job results" in client.get(f"/jobs/{id}").json()["error"]["detail"]

        second = theirs.post(QUERY, json={"sql": NUMBERS}, headers=JOB).headers["location"].rpartition("/")[2]
        until(lambda: phase(theirs, second) == "COMPLETED")
        third_has_no_room(mine)
        used = service.metrics()["dai_result_bytes"]
        assert used > 1.5 * size
        victim.kill()
        successor(service, victim, living)
        for each in service.connection_of_each(stack).values():
            third_has_no_room(each)
        assert service.metrics()["dai_result_bytes"] == used


# Workers that never begin, hang, or die again and again. Those that are forked may answer before a test has seen them.
# Only one thread may wait for a process: the test does so after the thread that starts it.


def test_a_worker_that_dies_before_it_answers_ends_the_service(
    service: ServiceProcess, pool: ThreadPoolExecutor
) -> None:
    service.anew = True
    starting = pool.submit(service.start)
    until(lambda: service.process is not None and len(service.processes()) == 3)
    process, workers = service.process, service.processes()[1:]
    assert process is not None
    workers[0].kill()
    assert isinstance(starting.exception(SECONDS), AssertionError)
    assert process.wait(SECONDS) == 1
    until(lambda: not any(each.is_running() for each in workers))
    assert not service.leftovers()


def test_what_a_worker_cannot_serve_ends_the_service(service: ServiceProcess, pool: ThreadPoolExecutor) -> None:
    """The supervisor knows no activities."""
    service.more = '[policy]\nactivities = ["nothing"]\n'
    starting = pool.submit(service.start)
    until(lambda: service.process is not None)
    process = service.process
    assert process is not None
    assert isinstance(starting.exception(SECONDS), AssertionError)
    assert process.wait(SECONDS) == 2
    assert service.log.read_text().count("dai: policy.activities: there is no activity 'nothing'") == 1
    assert "Data service at" not in service.log.read_text()
    assert not entries(service, "a worker died and is replaced")


def test_a_database_that_does_not_answer_is_told_once(service: ServiceProcess) -> None:
    service.resources = {**service.resources, "away": "postgresql://nobody@127.0.0.1:1/away"}
    service.start()
    with ExitStack() as stack:  # each has asked the database at its start, too
        for client in service.connection_of_each(stack).values():
            assert client.post("/resources/away/query", json={"sql": "select 1"}).status_code == 503
    until(lambda: entries(service, "the database of a resource does not answer"))
    assert [each["resource"] for each in entries(service, "the database of a resource does not answer")] == ["away"]


@pytest.mark.parametrize("ready", [False, True])
def test_a_worker_that_hangs_does_not_keep_the_service(
    service: ServiceProcess, pool: ThreadPoolExecutor, ready: bool
) -> None:
    service.anew = not ready
    starting = pool.submit(service.start)
    until(lambda: service.process is not None and len(service.processes()) == 3)
    process = service.process
    assert process is not None
    workers = process.children()
    if ready:
        starting.result(SECONDS)
    suspended(workers[1])
    process.send_signal(signal.SIGTERM)
    assert ready or isinstance(starting.exception(SECONDS), AssertionError)
    assert process.wait(SECONDS) == 0
    assert not any(each.is_running() for each in workers)
    assert [each["worker"] for each in entries(service, "a worker did not end and is killed")] == [workers[1].pid]
    assert not service.leftovers()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_service_that_is_stopped_while_it_starts_ends_at_once(
    service: ServiceProcess, pool: ThreadPoolExecutor, workers: int
) -> None:
    service.anew = True
    starting = pool.submit(service.start)
    until(lambda: service.process is not None and len(service.processes()) > workers)
    process = service.process
    assert process is not None
    known = process.children()
    process.send_signal(signal.SIGTERM)
    assert isinstance(starting.exception(SECONDS), AssertionError)
    assert process.wait(SECONDS) == 0
    assert not any(each.is_running() for each in known)
    assert not service.leftovers()
    assert not entries(service, "a worker did not end and is killed")


IGNORED = """
import os, pickle, signal, sys
from types import SimpleNamespace
from dai.api.server import worker

class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        list(range(1000))

def bounded(config, member):
    Finalised()

orders = SimpleNamespace(config=None, number=0, workers=2, shared=frozenset())
worker.bounded, worker.run = bounded, lambda *_: 7
worker.part, worker._member, worker.Process = (lambda *_: None,) * 3
worker._end_with_the_supervisor = lambda _: None
pickle.load = lambda _: orders
sys.exit(worker.main())
"""
"""A worker that is told to end while Python runs a finaliser, and ignores what is raised there."""


def test_a_worker_that_is_stopped_while_it_starts_hears_it() -> None:
    ended = subprocess.run([sys.executable, "-c", IGNORED], capture_output=True, text=True, timeout=SECONDS)
    assert "SystemExit" in ended.stderr
    assert ended.returncode == 0


def test_a_successor_that_is_not_ready_gets_nothing_new(service: ServiceProcess, pool: ThreadPoolExecutor) -> None:
    """What belongs to it waits for it."""
    service.start()
    with ExitStack() as stack:
        clients = service.connection_of_each(stack)
        victim, living = clients
        lost = clients[victim].post("/sessions").headers["location"]
        victim.kill()
        new = successor(service, victim, living)
        suspended(new)
        for _ in range(8):
            with service.client() as client:
                assert client.post(f"{QUERY}?format=csv", json={"sql": "select 1 as a"}).text == "a\r\n1\r\n"
        waiting = pool.submit(clients[living].get, lost)
        with service.client() as client:
            assert client.get("/health/ready").status_code == 200
        assert not waiting.done()
        new.resume()
        assert waiting.result(SECONDS).status_code == 404
        assert set(service.connection_of_each(stack)) == {new, living}


def test_a_worker_that_dies_again_and_again_begins_less_often(service: ServiceProcess) -> None:
    service.start()
    with ExitStack() as stack:
        clients = service.connection_of_each(stack)
        victim, living = clients
        known = [living, victim]
        for _ in range(4):
            known[-1].kill()
            known.append(successor(service, *known))
            assert clients[living].post(QUERY, json={"sql": "select 1"}).status_code == 200
        assert set(service.connection_of_each(stack)) == {known[-1], living}
    died = entries(service, "a worker died and is replaced")
    assert [each["pause"] for each in died] == [0.1, 0.2, 0.4, 0.8]
    assert {each["status"] for each in died} == {-signal.SIGKILL}


def test_connections_wait_while_no_worker_is_there(service: ServiceProcess) -> None:
    service.start()
    workers = service.living_workers()
    for each in workers:
        each.kill()
    with service.client() as client:
        assert client.post(f"{QUERY}?format=csv", json={"sql": "select 1 as a"}).text == "a\r\n1\r\n"
    until(lambda: len(service.living_workers() - workers) == 2)


def test_connections_wait_while_the_supervisor_can_open_no_file(
    service: ServiceProcess, pool: ThreadPoolExecutor
) -> None:
    service.start()
    process = service.process
    assert process is not None
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (1, before[1]))
    asking = pool.submit(httpx.get, f"{service.url}/health/live", timeout=SECONDS)
    until(lambda: entries(service, "no connection can be accepted"))
    assert not asking.done()
    process.rlimit(psutil.RLIMIT_NOFILE, before)
    assert asking.result(SECONDS).status_code == 200


def test_what_is_more_than_hanging_workers_can_take_is_refused(service: ServiceProcess) -> None:
    service.start()
    workers = service.living_workers()
    for each in workers:
        suspended(each)
    answered = refused = 0
    with ExitStack() as stack:
        connections = []
        while not entries(service, "a connection was refused: every worker is busy with others"):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS))
            connection.sendall(f"GET /health/live HTTP/1.0\r\nHost: 127.0.0.1:{service.port}\r\n\r\n".encode())
            connections.append(connection)
            assert len(connections) < 5000
        for each in workers:
            each.resume()
        for connection in connections:
            try:
                said = b"".join(iter(lambda connection=connection: connection.recv(65536), b""))
            except ConnectionResetError:
                said = b""
            assert re.match(rb"HTTP/1.[01] 200 OK|$", said), said
            answered, refused = answered + bool(said), refused + (not said)
    assert answered > 100
    assert refused
    with closing(service.client()) as client:
        assert client.get("/health/live").status_code == 200
    assert service.living_workers() == workers


def test_ctrl_c_reaches_the_supervisor_alone(service: ServiceProcess) -> None:
    """A terminal sends it to a whole process group: the workers end in their own time, when they are told to."""
    service.start()
    supervisor, *workers = (each.pid for each in service.processes())
    assert all(os.getpgid(each) not in (os.getpgid(supervisor), os.getpgid(0)) for each in workers)
