import threading

import pytest

from dai.errors import CancelledError, LimitError
from dai.streams.cancellation import Cancellation


def test_calls_back_inside_the_block_only():
    cancellation, called = Cancellation(), []
    with cancellation.on_cancel(lambda: called.append("left")):
        pass
    with cancellation.on_cancel(lambda: called.append("inside")):
        cancellation.cancel()
    assert called == ["inside"]


def test_first_cause_stays():
    cancellation, first = Cancellation(), LimitError("too long")
    cancellation.cancel(first)
    cancellation.cancel(CancelledError("again"))
    with pytest.raises(LimitError) as raised:
        cancellation.check()
    assert raised.value is first
    assert cancellation.cancelled


def test_a_cancelled_block_is_not_entered():
    cancellation = Cancellation()
    cancellation.cancel()
    entered = False
    with pytest.raises(CancelledError), cancellation.on_cancel(lambda: None):
        entered = True
    assert not entered


def test_one_failing_callback_does_not_keep_the_others_from_being_called():
    cancellation, called = Cancellation(), []

    def fails() -> None:
        raise OSError

    with cancellation.on_cancel(fails), cancellation.on_cancel(lambda: called.append(1)):
        cancellation.cancel()
    assert called == [1]


def test_no_callback_runs_after_its_block():
    """An interrupt under way is waited for: it must not strike the next statement of the connection."""
    cancellation, begun, go_on = Cancellation(), threading.Event(), threading.Event()
    order = []

    def slow() -> None:
        begun.set()
        go_on.wait(30)
        order.append("interrupted")

    def work() -> None:
        with cancellation.on_cancel(slow):
            begun.wait(30)
        order.append("left")

    worker = threading.Thread(target=work)
    worker.start()
    canceller = threading.Thread(target=cancellation.cancel)
    canceller.start()
    assert begun.wait(30)
    go_on.set()
    for thread in (worker, canceller):
        thread.join(30)
    assert order == ["interrupted", "left"]


def test_a_callback_that_comes_too_late_is_not_called():
    """Of two callbacks the first makes the second block end: the second is not called any more."""
    cancellation, called = Cancellation(), []
    second_may_leave, second_left = threading.Event(), threading.Event()
    both_in = threading.Barrier(3)

    def first() -> None:
        second_may_leave.set()
        second_left.wait(30)

    def one() -> None:
        with cancellation.on_cancel(first):
            both_in.wait(30)
            second_left.wait(30)

    def two(registered: threading.Event) -> None:
        registered.wait(30)
        with cancellation.on_cancel(lambda: called.append("late")):
            both_in.wait(30)
            second_may_leave.wait(30)
        second_left.set()

    registered = threading.Event()
    threads = [threading.Thread(target=one), threading.Thread(target=two, args=(registered,))]
    threads[0].start()
    while not cancellation._callbacks:  # until the first stands before the second
        pass
    registered.set()
    threads[1].start()
    both_in.wait(30)
    cancellation.cancel()
    for thread in threads:
        thread.join(30)
    assert called == []


def test_leaving_from_within_the_callback_thread():
    cancellation = Cancellation()

    def work() -> None:
        with cancellation.on_cancel(lambda: None):
            cancellation.cancel()
            cancellation.check()

    with pytest.raises(CancelledError):
        work()
    assert not cancellation._callbacks
