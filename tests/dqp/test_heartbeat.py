"""A service that is gone while a statement waits for its bytes, and one that only takes its time."""

import json
import threading

import pytest

from dai.client import Options, Service
from dai.client.testing import Request, Scripted, ScriptedServer
from dai.errors import BusyError, CancelledError, DatabaseUnavailableError, UnreachableError
from dai.streams.cancellation import Cancellation
from dqp.catalog.heartbeat import Heartbeat
from dqp.catalog.sources.service import ServiceSource
from tests.processes import SECONDS, until

RESOURCE = {"dialect": "postgresql", "product": "PostgreSQL", "name": "odd", "kind": "database", "activities": []}


class Health:
    """Answers as it is told, and notes that it was asked. ``enough`` is set when it was asked five times."""

    def __init__(self, answer: Exception | None) -> None:
        self.answer, self.asked, self.enough = answer, 0, threading.Event()

    def __call__(self) -> None:
        self.asked += 1
        if self.asked >= 5:
            self.enough.set()
        if self.answer is not None:
            raise self.answer


def beat(health: Health) -> Heartbeat:
    return Heartbeat(health, "The service at x", patience=0.05, after=0.01)


def test_what_waits_for_a_service_that_is_gone_fails() -> None:
    cancellation, ended = Cancellation(), threading.Event()
    with beat(Health(UnreachableError("gone"))).waiting(cancellation), cancellation.on_cancel(ended.set):
        assert ended.wait(SECONDS)
    assert isinstance(cancellation.cause, UnreachableError)
    assert "The service at x accepted the request and no longer answers" in str(cancellation.cause)


def test_what_begins_to_wait_for_a_service_that_is_silent_already_fails_too() -> None:
    health, first, second, ended = Health(UnreachableError("gone")), Cancellation(), Cancellation(), threading.Event()
    heartbeat = beat(health)
    with heartbeat.waiting(first):
        until(lambda: health.asked > 0)
        with heartbeat.waiting(second), second.on_cancel(ended.set):
            assert ended.wait(SECONDS)
    assert first.cancelled


@pytest.mark.parametrize("answer", [None, BusyError("later"), ValueError("no JSON")])
def test_a_service_that_lives_is_waited_for(answer: Exception | None) -> None:
    health, cancellation = Health(answer), Cancellation()
    with beat(health).waiting(cancellation):
        assert health.enough.wait(SECONDS)
    assert not cancellation.cancelled


def test_what_waits_no_longer_is_left_alone() -> None:
    health, done, still = Health(UnreachableError("gone")), Cancellation(), Cancellation()
    ended = threading.Event()
    heartbeat = beat(health)
    with heartbeat.waiting(done):
        pass
    with heartbeat.waiting(still), still.on_cancel(ended.set):
        assert ended.wait(SECONDS)
    assert not done.cancelled


def test_what_waits_for_a_database_that_is_gone_fails() -> None:
    cancellation, ended = Cancellation(), threading.Event()
    with beat(Health(DatabaseUnavailableError("gone"))).waiting(cancellation), cancellation.on_cancel(ended.set):
        assert ended.wait(SECONDS)
    assert isinstance(cancellation.cause, DatabaseUnavailableError)
    assert "its database no longer answers" in str(cancellation.cause)
    assert cancellation.cause.hint


def test_a_statement_of_a_service_that_stopped() -> None:
    asked = threading.Event()

    def answer(request: Request) -> Scripted:
        if request.method == "POST":
            asked.set()
            return Scripted(status=0)  # Silence.
        if request.target == "/resources/odd/alive":
            return Scripted(status=0) if asked.is_set() else Scripted()
        return Scripted(body=json.dumps(RESOURCE).encode(), headers={"Content-Type": "application/json"})

    with ScriptedServer(answer) as server:
        source = ServiceSource("odd", f"{server.url}/resources/odd")  # A statement may take ten minutes.
        source._alive = Service(server.url, Options(read=0.1, retries=0))
        source._heartbeat = Heartbeat(source._lives, "The service", patience=0.1, after=0.05)
        with pytest.raises(UnreachableError, match="no longer answers"):
            source.query("select 1", cancellation=Cancellation())
        source.close()


def test_cancelling_a_statement_that_waits() -> None:
    def answer(request: Request) -> Scripted:
        if request.method == "POST":
            return Scripted(status=0)
        return Scripted(body=json.dumps(RESOURCE).encode(), headers={"Content-Type": "application/json"})

    with ScriptedServer(answer) as server:
        source = ServiceSource("odd", f"{server.url}/resources/odd")
        cancellation = Cancellation()
        threading.Timer(0.1, cancellation.cancel).start()
        with pytest.raises(CancelledError) as raised:
            source.query("select 1", cancellation=cancellation)
        assert raised.value is cancellation.cause
        source.close()
