"""Attempts of a query and what belongs to them."""

import threading

import pytest

from dai.errors import CancelledError, ClosedError, InternalError, StatementError
from dai.streams.cancellation import Cancellation
from tests.dqp.doubles import execution
from tests.processes import until


def test_a_thread_that_outlives_its_attempt_does_not_end_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver did not let go of its statement in time."""
    monkeypatch.setattr("dqp.execution.execution.END_SECONDS", 0.0)
    released, threads = threading.Event(), []

    def late() -> None:
        threads.append(threading.current_thread())
        assert released.wait(60)
        raise StatementError("too late")

    with execution() as running:
        running.start(late, "dqp-late")
        running.again()
        released.set()
        (thread,) = threads
        thread.join()
        assert running.failure is None
        running.start(late, "dqp-late")
        threads[-1].join()
        assert isinstance(running.failure, StatementError)


def test_a_thread_that_the_system_refuses_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with execution() as running, monkeypatch.context() as few:
        few.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            running.start(lambda: None, "refused")


def test_a_fault_in_a_thread_fails_the_attempt_and_says_nothing_but_its_kind() -> None:
    def fails() -> None:
        raise ZeroDivisionError("a secret")

    with execution() as running:
        running.start(fails, "dqp-faulty")
        until(lambda: running.failure is not None)
        assert isinstance(running.failure, InternalError)
        assert str(running.failure) == "Fetching failed: ZeroDivisionError."


def test_after_the_end_nothing_begins_and_what_is_left_is_closed_at_once() -> None:
    closed: list[str] = []
    with execution() as running:
        assert running.tree is None
        running.at_end(lambda: closed.append("first given"))
        running.at_end(lambda: closed.append("last given"))
        running.directory()
        assert closed == []
    assert closed == ["last given", "first given"]
    running.at_end(lambda: closed.append("given after the end"))
    assert closed[2:] == ["given after the end"]
    for begin in (running.directory, lambda: running.start(lambda: closed.append("ran"), "late")):
        with pytest.raises(ClosedError, match="The query has ended"):
            begin()
    running.close()
    assert len(closed) == 3


def test_a_cancellation_between_two_attempts_reaches_the_second() -> None:
    class Late(Cancellation):
        """Cancelled right after it was looked at."""

        late = False

        def check(self) -> None:
            super().check()
            if self.late:
                self.cancel(CancelledError("enough"))

    cancellation = Late()
    with execution(cancellation) as running:
        cancellation.late = True
        running.again()
        assert running.attempt == 2
        assert running.failure is cancellation.cause is not None
