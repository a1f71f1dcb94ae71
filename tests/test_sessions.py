import threading
import time

import pytest

from dai.cancellation import Cancellation
from dai.errors import BusyError, ClosedError, GoneError, NotFoundError
from dai.sessions import Session, Sessions
from dai.stream import Block


def sessions(limit: int = 10, timeout: float = 60.0) -> Sessions:
    return Sessions(limit, timeout, stream_bytes=1 << 20)


def test_an_explicit_session_lives_until_it_is_ended() -> None:
    known = sessions()
    session = known.create(5.0)
    assert known.get(session.id) is session
    with session.request():
        assert session.requests == 1
    known.reap()
    assert known.get(session.id) is session
    known.end(session)
    with pytest.raises(NotFoundError):
        known.get(session.id)
    with pytest.raises(ClosedError):
        session.output("x")


def test_an_implicit_session_is_known_from_its_first_stream_on() -> None:
    known = sessions()
    session = known.implicit()
    assert known.all() == []
    with session.request():
        session.output("rows")
        assert known.get(session.id) is session


def test_an_implicit_session_ends_when_its_streams_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dai.sessions.LINGER", 0.0)
    known = sessions()
    session = known.implicit()
    with session.request():
        mailbox = session.output("rows")
        mailbox.put(Block(b"a", 1), Cancellation())
        mailbox.finish()
    known.reap()
    assert known.all() == [session]
    mailbox.poll(1)
    known.reap()
    assert known.all() == []


def test_a_finished_session_lingers_for_repeated_calls() -> None:
    known = sessions()
    session = known.implicit()
    with session.request():
        session.output("rows").finish()
    known.reap()
    assert known.get(session.id) is session


def test_the_same_name_is_the_same_stream_in_each_direction() -> None:
    session = sessions().create()
    assert session.output("x") is session.output("x")
    assert session.output("x") is not session.input("x")
    assert [(direction, name) for direction, name, _ in session.streams()] == [("output", "x"), ("input", "x")]


def test_an_output_stream_may_still_come_while_a_request_is_at_work() -> None:
    session = sessions().create()
    with pytest.raises(NotFoundError, match="no output stream 'rows'"):
        session.find_output("rows")
    heard: list[int] = []
    remove = session.add_listener(lambda: heard.append(1))
    with session.request():
        assert session.find_output("rows") is None
        made = session.output("rows")
        assert heard == [1]
        assert session.find_output("rows") is made
    assert heard == [1, 1]
    remove()
    with pytest.raises(NotFoundError, match="Did you mean 'rows'"):
        session.find_output("row")


def test_time_outs_end_idle_sessions_and_stop_their_producers() -> None:
    known = sessions(timeout=0.0)
    session = known.implicit()
    stopped: list[BaseException] = []

    def produce() -> None:
        with session.request():
            mailbox = session.output("rows")
            try:
                while True:
                    mailbox.put(Block(b"a", 1), Cancellation())
            except ClosedError as error:
                stopped.append(error)

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    deadline = time.monotonic() + 30
    while not stopped:
        known.reap()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    producer.join(30)
    assert known.all() == []


def test_a_request_at_work_keeps_its_session_unless_it_waits_for_a_client() -> None:
    session = Session(sessions(), 0.0, explicit=True)
    assert session.expired()
    with session.request():
        assert not session.expired()
        mailbox = session.output("rows")
        assert not session.expired()
        for _ in range(mailbox.capacity):
            mailbox.put(Block(b"a", 1), Cancellation())
        assert session.expired()


def test_the_number_of_sessions_is_limited() -> None:
    known = sessions(limit=1)
    known.create()
    with pytest.raises(BusyError):
        known.create()
    implicit = known.implicit()
    with pytest.raises(BusyError):
        implicit.output("rows")


def test_closing_ends_all() -> None:
    known = sessions()
    mailbox = known.create().output("rows")
    known.close()
    assert known.all() == []
    with pytest.raises(GoneError):
        mailbox.poll(0)
