"""Interrupts that come at the worst moment."""

import threading

import pytest

from dai.drivers.connections.interrupts import interruptible
from dai.errors import CancelledError
from dai.streams.cancellation import Cancellation


def test_work_that_ends_while_it_is_being_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    cancellation = Cancellation()
    beginning, left = threading.Event(), threading.Event()
    start = threading.Thread.start

    def slow(thread: threading.Thread) -> None:
        if thread.name == "interrupt":
            beginning.set()
            left.wait(1)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow)
    canceller = threading.Thread(target=cancellation.cancel)

    def work() -> None:
        with interruptible(cancellation, lambda: None):
            canceller.start()
            assert beginning.wait(30)

    with pytest.raises(CancelledError):
        work()
    canceller.join()
    assert [each.name for each in threading.enumerate()].count("interrupt") == 0
