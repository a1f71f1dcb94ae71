"""Interrupts that come at the worst moment."""

import threading
from types import SimpleNamespace

import pytest

from dai.drivers.connections import interrupts
from dai.drivers.connections.interrupts import interruptible, stuck
from dai.errors import CancelledError
from dai.streams.cancellation import Cancellation
from tests.processes import until


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


def test_a_thread_that_cannot_begin_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "interrupt":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    cancellation, before = Cancellation(), stuck(0)
    with pytest.raises(CancelledError), interruptible(cancellation, lambda: None, here=True):
        cancellation.cancel()
    assert stuck(0) == before


@pytest.mark.parametrize("waits", [False, True])
def test_what_waits_for_rows_of_others_is_not_stuck(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    now = 0.0
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(interrupts, "_going_on", {})
    cancellation = Cancellation()
    looks: list[None] = []

    def work() -> None:
        nonlocal now
        with interruptible(cancellation, lambda: looks.append(None), here=True, waits=lambda: waits):
            cancellation.cancel()
            now = 100.0
            seen = len(looks)
            until(lambda: len(looks) > seen + 1)
            assert stuck(60) == (0 if waits else 1)

    with pytest.raises(CancelledError):
        work()
    assert not interrupts._going_on
