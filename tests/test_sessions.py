import threading
import time
import tracemalloc

import orjson
import pytest

import dai.service.sessions
from dai.errors import (
    BusyError,
    ClosedError,
    ConflictError,
    GoneError,
    NotFoundError,
    ParameterError,
    StatementError,
    TooLargeError,
)
from dai.perform.activities.delivery.streams import InputStream, OutputStream
from dai.perform.activity import Input, Output
from dai.service.identities import Identities
from dai.service.sessions import MOST_NAME, STREAMS_A_SESSION, Session, Sessions
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block


def sessions(limit: int = 10, timeout: float = 60.0) -> Sessions:
    return Sessions(limit, timeout, stream_bytes=1 << 20)


def test_an_explicit_session_lives_until_it_is_ended() -> None:
    known = sessions()
    session = known.create(5.0)
    assert known.get(session.id) is session
    with session.request(Cancellation()):
        assert session.requests == 1
    known.reap()
    assert known.get(session.id) is session
    known.end(session)
    with pytest.raises(NotFoundError):
        known.get(session.id)
    for use in (lambda: session.output("x"), lambda: session.find_output("x"), lambda: session.keep("x", object)):
        with pytest.raises(GoneError, match="has ended"):
            use()  # type: ignore[no-untyped-call]


def test_an_implicit_session_is_known_from_its_first_stream_on() -> None:
    known = sessions()
    session = known.implicit()
    assert known.all() == []
    with session.request(Cancellation()):
        session.output("rows")
        assert known.get(session.id) is session


def test_an_implicit_session_ends_when_its_streams_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dai.service.sessions.LINGER", 0.0)
    known = sessions()
    session = known.implicit()
    with session.request(Cancellation()):
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
    with session.request(Cancellation()):
        session.output("rows").finish()
    known.reap()
    assert known.get(session.id) is session


def test_the_same_name_is_the_same_stream_in_each_direction() -> None:
    session = sessions().create()
    assert session.output("x") is session.output("x")
    assert session.output("x") is not session.input("x")
    assert [(direction, name) for direction, name, _ in session.streams()] == [("output", "x"), ("input", "x")]


OUT = OutputStream(name="rows", source=Input("document"))
IN = InputStream(name="rows", result=Output("uploaded"))


def test_a_request_declares_its_streams() -> None:
    session = sessions().create()
    with pytest.raises(NotFoundError, match="no output stream 'rows'"):
        session.find_output("rows")
    with session.request(Cancellation(), [OUT, IN]):
        assert session.find_output("rows") is session.output("rows")
        assert session.find_input("rows") is session.input("rows")
        with pytest.raises(NotFoundError, match="Did you mean 'rows'"):
            session.find_output("row")
        with pytest.raises(NotFoundError, match="Did you mean 'rows'"):
            session.find_input("row")


def test_clients_may_push_before_the_document_comes() -> None:
    session = sessions().create()
    assert session.find_input("early").offer(0, Block(b"a", 1))
    assert session.input("early").expected == 1


def test_streams_that_were_never_written_fail_with_the_request() -> None:
    for explicit in (True, False):
        known = sessions()
        session = known.create() if explicit else known.implicit()
        with session.request(Cancellation(), [OUT]) as request:
            mailbox = session.find_output("rows")
            request.error = StatementError("no such table")
        with pytest.raises(StatementError):
            mailbox.poll(0)
        if explicit:
            with pytest.raises(NotFoundError):
                session.find_output("rows")
            with session.request(Cancellation(), [OUT]):
                assert not session.find_output("rows").ended
        else:
            assert session.find_output("rows") is mailbox


def test_time_outs_end_idle_sessions_and_stop_their_producers() -> None:
    known = sessions(timeout=0.0)
    session = known.implicit()
    stopped: list[BaseException] = []

    def produce() -> None:
        with session.request(Cancellation()):
            mailbox = session.output("rows")
            try:
                while True:
                    mailbox.put(Block(b"a", 1), Cancellation())
            except ClosedError as error:
                stopped.append(error)

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    deadline = time.monotonic() + 90
    while not stopped:
        known.reap()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    producer.join(30)
    assert known.all() == []


def test_a_request_at_work_keeps_its_session_unless_it_waits_for_a_client() -> None:
    session = Session(sessions(), 0.0, explicit=True)
    assert session.expired()
    with session.request(Cancellation()):
        assert not session.expired()
        mailbox = session.output("rows")
        assert not session.expired()
        for _ in range(mailbox.capacity):
            mailbox.put(Block(b"a", 1), Cancellation())
        assert session.expired()


def test_a_client_that_waits_keeps_the_session() -> None:
    session = Session(sessions(), 0.0, explicit=True)
    with session.waiting():
        assert not session.expired()
    assert session.expired()


def test_the_end_of_a_session_cancels_what_is_at_work() -> None:
    known = sessions()
    session = known.create()
    cancellation = Cancellation()
    with session.request(cancellation):
        known.end(session)
        assert isinstance(cancellation.cause, GoneError)
    late = Cancellation()
    with session.request(late):
        assert isinstance(late.cause, GoneError)


def test_the_number_of_sessions_is_limited() -> None:
    known = sessions(limit=1)
    known.create()
    with pytest.raises(BusyError):
        known.create()
    implicit = known.implicit()
    with pytest.raises(BusyError):
        implicit.output("rows")


def test_the_number_of_streams_of_a_session_is_limited() -> None:
    session = sessions().create()
    for number in range(STREAMS_A_SESSION):
        (session.output if number % 2 else session.input)(f"stream {number}")
    with pytest.raises(BusyError, match=f"already has {STREAMS_A_SESSION} streams"):
        session.output("one more")
    session.output("stream 1")


def test_names_of_streams_are_short() -> None:
    session = sessions().create()
    session.input("x" * MOST_NAME)
    with pytest.raises(ParameterError, match="can have at most"):
        session.input("x" * (MOST_NAME + 1))


def test_a_session_of_another_process_is_named_as_that() -> None:
    own, other = (Sessions(10, 60, 1 << 20, identities=Identities(number, 2)) for number in range(2))
    session = own.create()
    with pytest.raises(ConflictError, match="in another process"):
        other.get(session.id)
    own.end(session)
    with pytest.raises(NotFoundError):
        own.get(session.id)


def test_closing_ends_all() -> None:
    """Of this process: that of one worker may end alone, and be replaced."""
    known = sessions()
    mailbox = known.create().output("rows")
    known.close()
    assert known.all() == []
    with pytest.raises(GoneError, match="The process of the service that kept this session is stopping"):
        mailbox.poll(0)


def test_attributes() -> None:
    session = sessions().create(attributes={"a": 1, "b": [None]})
    session.change({"a": None, "c": "x"})
    assert session.attributes == {"b": [None], "c": "x"}
    with pytest.raises(TooLargeError):
        session.change({"d": "x" * (1 << 16)})
    with pytest.raises(ParameterError, match="cannot be kept as JSON"):
        session.change({"d": object()})
    assert session.attributes == {"b": [None], "c": "x"}


def test_attributes_take_no_more_memory_than_as_json() -> None:
    known = sessions(limit=20)
    values = orjson.loads("[" + ",".join(["{}"] * 20_000) + "]")
    known.create(attributes={"a": values})
    tracemalloc.start()
    for _ in range(10):
        known.create(attributes={"a": orjson.loads(orjson.dumps(values))})
    files = [tracemalloc.Filter(True, each) for each in (__file__, dai.service.sessions.__file__)]
    own = tracemalloc.take_snapshot().filter_traces(files)  # other tests may have left threads
    tracemalloc.stop()
    assert 0 < sum(each.size for each in own.traces) < 10 * 100_000


def test_what_a_driver_keeps_for_a_session_is_made_once_and_closed_with_it() -> None:
    class Kept:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    known = sessions()
    session, other = known.create(), known.create()
    kept = session.keep("key", Kept)
    assert session.keep("key", Kept) is kept
    assert other.keep("key", Kept) is not kept
    known.end(session)
    session.end("again")
    assert kept.closed == 1


def test_a_request_that_fails_fails_the_streams_that_it_declared() -> None:
    known = sessions()
    session = known.create()
    declared = []

    def fails() -> None:
        with session.request(Cancellation(), [OUT]):
            declared.append(session.find_output("rows"))
            assert known.open_streams() == 1
            raise StatementError("no such table")

    with pytest.raises(StatementError):
        fails()
    with pytest.raises(StatementError, match="no such table"):
        declared[0].poll(0)
    assert session.requests == known.open_streams() == 0
