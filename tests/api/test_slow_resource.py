"""A database that accepts connections and then says nothing: nobody waits for it who does not need it."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice

import httpx
import pytest

from dai.api.server.serve import Background
from tests.api.conftest import Serve

SOON = 45.0
"""Seconds after which an answer is no longer one that waited for nothing, on a busy machine too."""
SILENT = 60.0
"""Seconds for which the drivers wait for the database."""


QUESTIONS = ("", "/schema", "/statistics?table=a", "/schema?tables=a%25")


class Silent:
    """A server that lets everybody in and answers nobody."""

    def __init__(self, scheme: str) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        self._accepted: list[socket.socket] = []
        url = f"{scheme}://dai:dai@127.0.0.1:{self._listening.getsockname()[1]}/none"
        self.resources = {f"s{number}": {"url": url, "connect_wait": SILENT} for number in range(3)}

    def accept(self) -> None:
        """Waits for the next who asks."""
        self._accepted.append(self._listening.accept()[0])

    def close(self) -> None:
        for each in (self._listening, *self._accepted):
            each.close()

    @contextmanager
    def asked_in_vain(self, running: Background) -> Iterator[None]:
        """While the block runs, 24 requests about s0 wait for its database."""
        paths = [f"/resources/s0{each}" for each in islice(cycle(QUESTIONS), 24)]
        with (
            httpx.Client(base_url=running.url, timeout=2 * SILENT, limits=httpx.Limits()) as client,
            ThreadPoolExecutor(len(paths)) as threads,
        ):
            waiting = [threads.submit(client.get, path) for path in paths]
            try:
                for _ in QUESTIONS[:3]:  # who reads a second schema waits for the first
                    self.accept()
                yield
                assert not any(each.done() for each in waiting)
            finally:
                self.close()


@pytest.fixture(params=["postgresql", "mariadb"])
def silent(request: pytest.FixtureRequest) -> Iterator[Silent]:
    made = Silent(request.param)
    yield made
    made.close()


def test_what_needs_no_slow_database_does_not_wait_for_it(serve: Serve, silent: Silent) -> None:
    running = serve(resources=silent.resources)
    sql = "select i from numbers"
    with httpx.Client(base_url=running.url, timeout=SOON) as client, silent.asked_in_vain(running):
        job = client.post("/resources/book/query?phase=RUN", json={"sql": sql}).headers["location"]
        assert client.get(f"{job}?wait=5").json()["phase"] in ("EXECUTING", "COMPLETED")
        while client.get(f"{job}?wait=5").json()["phase"] != "COMPLETED":
            continue
        for form in ("arrow", "csv"):  # as it is kept, and rendered
            assert client.get(f"{job}/outputs/result?format={form}").status_code == 200
        assert client.get("/jobs").status_code == 200
        large = {"sql": sql + " limit 1" + " " * 100_000}  # parsed in a thread
        assert client.post("/resources/book/query", json=large).status_code == 200
        assert client.get("/resources/book/schema").status_code == 200
        assert client.get("/resources/book/statistics?table=numbers").status_code == 200
        description = {each["name"]: each["available"] for each in client.get("/resources").json()["resources"]}
        assert description == {"book": True, "s0": False, "s1": False, "s2": False}


def test_readiness_asks_side_by_side_and_within_a_bound(
    serve: Serve, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dai.api.service.ALIVE_SECONDS", 3.0)
    running = serve(resources=silent.resources)
    with httpx.Client(base_url=running.url, timeout=SOON) as client:
        for _ in range(2):  # who asks again takes no more threads
            ready = client.get("/health/ready")
            assert ready.status_code == 200
            assert ready.json()["checks"] == {
                "state": "ok",
                "resource book": "ok",
                **{f"resource {name}": "database-unavailable" for name in silent.resources},
            }


def test_a_known_schema_is_answered_while_another_is_read(serve: Serve) -> None:
    running = serve()
    book = running.service.resources["book"]
    with httpx.Client(base_url=running.url, timeout=SOON) as client:
        known = client.get("/resources/book/schema").content
        with book._lock:  # as long as the database reads other tables
            assert client.get("/resources/book/schema").content == known
