"""Attempts of a query and what belongs to them."""

import threading

import pytest

from dai.errors import StatementError
from tests.dqp.doubles import execution


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
