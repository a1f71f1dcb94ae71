"""A service of two processes: it answers as one, whichever of them a request meets."""

import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import dai
from dai.service.identities import Identities
from tests.api.conftest import DOCUMENT, ENDLESS, FAILS_LATE, ROWS, XML, statement, streamed
from tests.processes import SECONDS, ServiceProcess, until
from tests.servers.certificates import self_signed

Clients = list[httpx.Client]
NUMBERS = "select * from numbers order by i"


def two_clients(service: ServiceProcess, stack: ExitStack) -> Clients:
    """One connection to each worker."""
    return list(service.connection_of_each(stack, headers={"Accept": "text/csv"}).values())


@pytest.fixture(scope="module", params=["plain", "tls"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, book: str
) -> Iterator[ServiceProcess]:
    directory = tmp_path_factory.mktemp("service")
    tls = self_signed(directory, "server") if request.param == "tls" else None
    service = ServiceProcess(directory, {"book": book}, workers=2, tls=tls, anew=tls is None)
    try:
        yield service.start()
    finally:
        service.stop()


@pytest.fixture
def clients(service: ServiceProcess) -> Iterator[Clients]:
    with ExitStack() as stack:
        yield two_clients(service, stack)


Start = Callable[..., ServiceProcess]


@pytest.fixture
def start(tmp_path: Path, book: str) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(**settings: Any) -> ServiceProcess:
            settings = {"resources": {"book": book}, "workers": 2, **settings}
            service = ServiceProcess(tmp_path / "service", **settings)
            (tmp_path / "service").mkdir(exist_ok=True)
            stack.callback(service.stop)
            return service.start()

        yield begin


def owner(id: str) -> int:
    return Identities(0, 2).owner(id)


def session_of_each(clients: Clients) -> list[str]:
    """A session of either worker; they are asked in turns until both have one."""
    sessions: dict[int, str] = {}
    while len(sessions) < 2:
        for each in clients:
            id = each.post("/sessions").json()["id"]
            sessions[owner(id)] = id
    return [sessions[0], sessions[1]]


def drained(clients: Clients, session: str) -> bytes:
    """All blocks of a stream, each pulled by the other client than the one before."""
    content, number = b"", 0
    while True:
        answer = clients[number % 2].get(f"/sessions/{session}/streams/out/blocks/{number}?wait=20")
        if answer.status_code == 204:
            return content
        assert answer.status_code == 200, answer.text
        content, number = content + answer.content, number + 1


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("client", [0, 1])
def test_a_stream_is_pulled_through_either_worker(clients: Clients, worker: int, client: int) -> None:
    session = session_of_each(clients)[worker]
    answer = clients[client].post(
        f"/resources/book/perform?session={session}&blocksize=7000", content=streamed(NUMBERS), headers=XML
    )
    assert answer.status_code == 202, answer.text
    assert owner(answer.headers["location"].rpartition("/")[2]) == worker
    assert drained(clients, session).count(b"<currentRow>") == ROWS
    assert clients[1 - client].delete(f"/sessions/{session}").status_code == 204
    assert clients[client].get(f"/sessions/{session}").status_code == 404


def test_frames_flow_from_either_worker(start: Start) -> None:
    service = start()
    with ExitStack() as stack, dai.connect(f"{service.url}/book") as resource:
        for id in session_of_each(two_clients(service, stack)):
            session = resource.session(id=id)
            session.perform(streamed(NUMBERS), blocksize=700)
            assert session.pull("out").result().arrow().column("i").to_pylist() == list(range(ROWS))
            assert resource.pull(streamed(NUMBERS), "out", blocksize=700).arrow().num_rows == ROWS


def test_a_request_for_another_protocol_moves_as_any_other(clients: Clients) -> None:
    """As Java's client sends them until it knows that there is no HTTP/2."""
    upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    for session in session_of_each(clients):
        for client in clients:
            assert client.get(f"/sessions/{session}", headers=upgrade).json()["id"] == session
            document = DOCUMENT.format(f'<session id="{session}"/>' + statement("select 1 as a"))
            answer = client.post("/resources/book/perform", content=document, headers=XML | upgrade)
            assert (answer.status_code, answer.text.split()) == (200, ["a", "1"])


@pytest.mark.parametrize("worker", [0, 1])
def test_a_document_moves_to_the_session_that_it_names(clients: Clients, worker: int) -> None:
    session = session_of_each(clients)[worker]
    for number, client in enumerate(clients):
        document = streamed(NUMBERS, f"out{number}").replace(
            "<sqlQueryStatement", f'<session id="{session}"/><sqlQueryStatement', 1
        )
        answer = client.post("/resources/book/perform", content=document, headers=XML)
        assert answer.status_code == 202, answer.text
        assert session in answer.text
        rest = client.get(f"/sessions/{session}/streams/out{number}?wait=20")
        assert rest.content.count(b"<currentRow>") == ROWS


@pytest.mark.parametrize("size", [10, 300_000, 5_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_push_moves_with_what_was_read_of_it(clients: Clients, size: int, chunked: bool) -> None:
    for session in session_of_each(clients):
        for client in clients:
            block = b"x" * size
            content = iter([block[: size // 2], block[size // 2 :]]) if chunked else block
            name = "in" + str(clients.index(client))
            answer = client.put(f"/sessions/{session}/streams/{name}/blocks/0", content=content)
            assert answer.status_code == 204, answer.text
        streams = clients[0].get(f"/sessions/{session}").json()["streams"]
        assert [each["bytes"] for each in streams] == [size, size]
        clients[0].delete(f"/sessions/{session}")


def test_a_job_is_listed_watched_and_stopped_through_either_worker(clients: Clients) -> None:
    jobs = [
        client.post("/resources/book/query", json={"sql": ENDLESS}, headers={"Prefer": "respond-async"})
        for client in clients
    ]
    ids = [each.headers["location"].rpartition("/")[2] for each in jobs]
    assert sorted(map(owner, ids)) == [0, 1]
    for client in clients:

        def progress(client: httpx.Client = client) -> list[int]:
            listed = {each["id"]: each for each in client.get("/jobs?phase=EXECUTING").json()["jobs"]}
            return [listed[id]["activities"][0]["rows"] for id in ids if id in listed]

        until(lambda progress=progress: len(progress()) == 2 and all(progress()))
        for id in ids:
            assert client.get(f"/jobs/{id}").json()["phase"] == "EXECUTING"
    for id, client in zip(ids, clients[::-1], strict=True):
        assert client.post(f"/jobs/{id}/phase", data={"PHASE": "ABORT"}).json()["phase"] in ("ABORTED", "EXECUTING")
        until(lambda id=id, client=client: client.get(f"/jobs/{id}?wait=20").json()["phase"] == "ABORTED")
        for each in clients:
            assert each.delete(f"/jobs/{id}").status_code in (204, 404)


def test_the_result_of_a_job_comes_through_either_worker(clients: Clients) -> None:
    job = clients[0].post("/resources/book/query", json={"sql": NUMBERS}, headers={"Prefer": "respond-async"})
    path = job.headers["location"]
    for client in clients:
        until(lambda client=client: client.get(f"{path}?wait=20").json()["phase"] == "COMPLETED")
        assert client.get(f"{path}/outputs/result").text.count("\r\n") == ROWS + 1


def test_why_an_answer_broke_off_is_said_by_either_worker(clients: Clients) -> None:
    for number, client in enumerate(clients):
        id = f"late-{number}"
        with pytest.raises(httpx.RemoteProtocolError):
            client.post("/resources/book/query", json={"sql": FAILS_LATE}, headers={"X-Request-ID": id})
        for each in clients:
            assert each.get(f"/problems/{id}").json()["rows"] > 0


def test_metrics_are_those_of_all_workers(service: ServiceProcess, clients: Clients) -> None:
    name = 'dai_requests_total{method="POST",route="/resources/{resource}/query",status="200"}'
    before = service.metrics()
    for client in clients * 3:
        client.post("/resources/book/query", json={"sql": "select 1"}).raise_for_status()
    sessions = [client.post("/sessions").json()["id"] for client in clients]
    after = service.metrics()
    assert after[name] - before.get(name, 0) == 6
    assert after["dai_sessions"] - before["dai_sessions"] == 2
    assert after['dai_pool_connections{resource="book",state="limit"}'] == 16
    for session in sessions:
        clients[0].delete(f"/sessions/{session}")


def test_pipelined_requests_are_answered_by_their_owner_or_not_at_all(
    service: ServiceProcess, clients: Clients
) -> None:
    """The client sends again what was not answered, as RFC 9112 section 9.3.2 says."""
    sessions = session_of_each(clients)
    for session in sessions:
        with service.connect() as connection:
            host = f"Host: 127.0.0.1:{service.port}\r\n"
            query = b'{"sql": "select 1 as a"}'
            connection.sendall(
                f"POST /resources/book/query HTTP/1.1\r\n{host}Content-Type: application/json\r\n"
                f"Content-Length: {len(query)}\r\n\r\n".encode()
                + query
                + f"GET /sessions/{session} HTTP/1.1\r\n{host}Connection: close\r\n\r\n".encode()
            )
            said = b"".join(iter(lambda: connection.recv(65536), b""))
        answers = said.count(b"HTTP/1.1 200 OK")
        assert answers == 1 + (session.encode() in said)


@pytest.mark.parametrize("together", [True, False])
def test_no_byte_of_the_next_head_is_lost_where_a_request_moves(
    service: ServiceProcess, clients: Clients, together: bool
) -> None:
    for session in session_of_each(clients):
        body = streamed("select 1 as a").replace(
            "<sqlQueryStatement", f'<session id="{session}"/><sqlQueryStatement', 1
        )
        host = f"Host: 127.0.0.1:{service.port}\r\n"
        head = f"POST /resources/book/perform HTTP/1.1\r\n{host}Content-Type: application/xml\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        begun, rest = b"GET /health/li", f"ve HTTP/1.1\r\n{host}Connection: close\r\n\r\n".encode()
        for _ in clients:  # the connections go to the workers in turns
            with service.connect() as connection:
                for part in (request + begun,) if together else (request, begun):
                    connection.sendall(part)
                said = connection.recv(65536)
                connection.sendall(rest)
                said += b"".join(iter(lambda: connection.recv(65536), b""))
            assert said.startswith((b"HTTP/1.1 202", b"HTTP/1.1 503")), said
            assert said.count(b"HTTP/1.1 200 OK") == 1, said


@pytest.mark.parametrize(
    ("limits", "asked", "status"),
    [
        ({"sessions": 3}, 4, 503),
        ({"sessions": 1}, 2, 503),
    ],
)
def test_sessions_are_limited_for_the_service(start: Start, limits: dict[str, float], asked: int, status: int) -> None:
    service = start(limits=limits)
    with ExitStack() as stack:
        clients = two_clients(service, stack)
        answers = [clients[number % 2].post("/sessions").status_code for number in range(asked)]
    assert answers == [201] * (asked - 1) + [status]


def test_requests_at_once_are_limited_for_the_service(start: Start) -> None:
    """One runs; one waits, wherever it is; the next is refused. The one that waits runs when the first has ended."""
    service = start(limits={"concurrent": 1, "queue": 1})
    with ExitStack() as stack:
        clients = two_clients(service, stack)
        first = stack.enter_context(
            clients[0].stream("POST", "/resources/book/query", json={"sql": ENDLESS}, headers={"Accept": "text/csv"})
        )
        assert first.status_code == 200
        answers: list[httpx.Response] = []
        waiting = threading.Thread(
            target=lambda: answers.append(clients[1].post("/resources/book/query", json={"sql": "select 1 as a"}))
        )
        waiting.start()
        until(lambda: service.metrics()["dai_requests_queued"] == 1)
        with service.client() as third, service.client() as fourth:
            for each in (third, fourth):
                refused = each.post("/resources/book/query", json={"sql": "select 1"})
                assert (refused.status_code, refused.json()["type"]) == (503, "busy")
        first.close()
        waiting.join(SECONDS)
    assert answers[0].text == "a\r\n1\r\n"
    until(service.at_rest)


def test_jobs_at_once_are_limited_for_the_service(start: Start) -> None:
    service = start(limits={"jobs": 1, "job_queue": 1})
    with ExitStack() as stack:
        clients = two_clients(service, stack)

        def submit(client: httpx.Client) -> httpx.Response:
            return client.post("/resources/book/query", json={"sql": ENDLESS}, headers={"Prefer": "respond-async"})

        first, second = (submit(each) for each in clients)
        assert (first.status_code, second.status_code) == (202, 202)
        for each in clients:
            assert submit(each).status_code == 503

        def phases() -> list[str]:
            return sorted(each["phase"] for each in clients[0].get("/jobs").json()["jobs"])

        until(lambda: phases() == ["EXECUTING", "QUEUED"])
        running = clients[0].get("/jobs?phase=EXECUTING").json()["jobs"][0]["id"]
        clients[1].delete(f"/jobs/{running}")
        until(lambda: phases() == ["EXECUTING"])
        left = clients[0].get("/jobs").json()["jobs"][0]["id"]
        clients[0].delete(f"/jobs/{left}")


def test_room_for_blocks_is_that_of_the_service(start: Start) -> None:
    """A block that has no room waits until the other worker's blocks leave."""
    service = start(limits={"sessions_bytes": 4000, "session_bytes": 4000, "block_bytes": 4000})
    with ExitStack() as stack:
        clients = two_clients(service, stack)
        mine, theirs = session_of_each(clients)
        assert clients[0].put(f"/sessions/{mine}/streams/in/blocks/0", content=b"x" * 2500).status_code == 204
        full = clients[1].put(f"/sessions/{theirs}/streams/in/blocks/0?wait=0", content=b"y" * 2500)
        assert full.status_code == 503
        answers: list[int] = []
        pushing = threading.Thread(
            target=lambda: answers.append(
                clients[1].put(f"/sessions/{theirs}/streams/in/blocks/0?wait=60", content=b"y" * 2500).status_code
            )
        )
        pushing.start()
        until(lambda: clients[0].get(f"/sessions/{theirs}").json()["streams"])
        clients[0].delete(f"/sessions/{mine}")
        pushing.join(SECONDS)
    assert answers == [204]


def test_a_worker_that_dies_is_replaced_and_the_other_goes_on(start: Start) -> None:
    service = start()
    with ExitStack() as stack:
        clients = two_clients(service, stack)
        headers = {"Accept-Encoding": "identity"}  # else a few pieces are a million rows
        answers = [
            stack.enter_context(client.stream("POST", "/resources/book/query", json={"sql": ENDLESS}, headers=headers))
            for client in clients
        ]
        streams = [each.iter_raw() for each in answers]
        for each in streams:
            assert next(each)
        sessions = session_of_each([stack.enter_context(service.client()) for _ in range(2)])
        jobs = []
        while sorted(set(map(owner, jobs))) != [0, 1]:
            with service.client() as client:
                job = client.post("/resources/book/query", json={"sql": ENDLESS}, headers={"Prefer": "respond-async"})
            jobs.append(job.headers["location"].rpartition("/")[2])
        assert service.process is not None
        workers = {each.pid for each in service.process.children()}
        assert len(workers) == 2
        by_number = sorted(workers, key=lambda pid: psutil.Process(pid).create_time())
        psutil.Process(by_number[0]).send_signal(signal.SIGKILL)
        until(lambda: len({each.pid for each in service.process.children()} - workers) == 1)
        broken: set[int] = set()
        while not broken:  # what the kernel holds comes before
            for number, each in enumerate(streams):
                try:
                    next(each)
                except httpx.TransportError:
                    broken.add(number)
        assert len(broken) == 1
        assert next(streams[1 - min(broken)])
        with service.client() as client:
            statuses = [client.get(f"/sessions/{session}").status_code for session in sessions]
            assert sorted(statuses) == [200, 404]
            lost = statuses.index(404)
            phases = {id: client.get(f"/jobs/{id}").json()["phase"] for id in jobs}
            assert {phase for id, phase in phases.items() if owner(id) == lost} == {"ERROR"}
            assert "ERROR" not in {phase for id, phase in phases.items() if owner(id) != lost}
            answer = client.post("/resources/book/query?format=csv", json={"sql": "select 1 as a"})
            assert answer.text == "a\r\n1\r\n"
    assert "a worker died and is replaced" in service.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_stops_with_all_its_workers(start: Start, number: signal.Signals) -> None:
    service = start()
    processes = service.processes()
    assert len(processes) == 3
    with ExitStack() as stack:
        for client in two_clients(service, stack):
            answer = stack.enter_context(client.stream("POST", "/resources/book/query", json={"sql": ENDLESS}))
            assert answer.status_code == 200
        assert service.stop(number) == 0
    assert not [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert not service.leftovers()
    service.start()


def test_the_workers_end_with_a_supervisor_that_is_killed(start: Start) -> None:
    service = start()
    workers = service.processes()[1:]
    service.kill()
    until(lambda: not any(each.is_running() for each in workers))
    assert not service.leftovers()
    service.start()


def test_what_only_one_process_can_open_belongs_to_one(start: Start, tmp_path: Path, book: str) -> None:
    duck = tmp_path / "duck.db"
    service = start(resources={"book": book, "duck": f"duckdb:///{duck}"})
    with ExitStack() as stack:
        clients = two_clients(service, stack)
        for client in clients:
            created = client.post("/resources/duck/query?format=csv", json={"sql": "select 41 + 1 as a"})
            assert created.text == "a\r\n42\r\n", created.text

            def available(client: httpx.Client = client) -> dict[str, bool]:
                listed = client.get("/resources").json()["resources"]
                return {each["name"]: each["available"] for each in listed}

            # a busy machine may take longer to say so than the service waits for it
            until(lambda available=available: available() == {"book": True, "duck": True})
            until(
                lambda client=client: (
                    client.get("/health/ready").json()["checks"]
                    == {"state": "ok", "resource book": "ok", "resource duck": "ok"}
                )
            )
            session = client.post("/sessions").json()["id"]
            for name in ("book", "duck"):
                answer = client.post(
                    f"/resources/{name}/query?session={session}&format=csv", json={"sql": "select 1 as a"}
                )
                assert answer.text == "a\r\n1\r\n"


@pytest.mark.parametrize(
    ("resources", "state", "said"),
    [
        ({"duck": "duckdb:///:memory:"}, "state.db", "only one process can have the resources (duck)"),
        ({"memory": "sqlite://"}, "state.db", "only one process can have the resources (memory)"),
    ],
)
def test_one_process_serves_what_only_one_can(start: Start, resources: dict[str, str], state: str, said: str) -> None:
    service = start(resources=resources)
    assert len(service.processes()) == 2  # it has a supervisor
    assert said in service.log.read_text()


def test_it_says_why_it_does_not_start(start: Start, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "book.db").close()
    service = start()
    second = ServiceProcess(service.directory, service.resources, workers=2)
    with pytest.raises(AssertionError, match="keeps its jobs in this state database"):
        second.start()
