import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dai.errors import CancelledError, LimitError
from dai.streams.cancellation import Cancellation
from dai.streams.waiting import Condition


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.mark.parametrize("shared", [True, False])
def test_two_threads_take_turns(pool, shared):
    lock = threading.Lock()
    turns = [Condition(lock), Condition(lock)] if shared else [Condition()] * 2
    taken: list[int] = []

    def take(me: int) -> None:
        for _ in range(500):
            with turns[me]:
                assert turns[me].wait_for(lambda: len(taken) % 2 == me, Cancellation(), 60)
                taken.append(me)
                turns[1 - me].notify_all()

    for each in [pool.submit(take, 0), pool.submit(take, 1)]:
        each.result()
    assert taken == [0, 1] * 500


@pytest.mark.parametrize("holding", [True, False], ids=["lock held", "lock free"])
def test_a_cancellation_ends_the_wait_whoever_holds_the_lock(pool, holding):
    condition, cancellation, looked = Condition(), Cancellation(), threading.Event()
    cause = LimitError("too long")

    def wait() -> bool:
        with condition:
            return condition.wait_for(looked.set, cancellation)

    waiting = pool.submit(wait)
    looked.wait()
    if holding:
        with condition:
            cancellation.cancel(cause)
    else:
        cancellation.cancel(cause)
    assert waiting.exception() is cause
    with condition:
        condition.notify_all()


def test_a_wait_ends_though_its_time_is_over_when_it_begins():
    """However short, and however busy the machine is."""
    condition, waits = Condition(), 60_000

    def wait() -> None:
        for _ in range(waits):
            with condition:
                condition.wait(seconds=1e-7)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()


def test_what_is_ready_does_not_wait_and_what_was_cancelled_does_not_begin_to():
    condition, cancellation = Condition(), Cancellation()
    cancellation.cancel()
    with condition:
        assert condition.wait_for(lambda: True, cancellation)
        with pytest.raises(CancelledError):
            condition.wait_for(lambda: False, cancellation)
        with pytest.raises(CancelledError):
            condition.wait_for(lambda: False, cancellation, 0)


@pytest.mark.parametrize("cancellation", [None, Cancellation()])
def test_the_time_is_over(cancellation):
    condition = Condition()
    with condition:
        assert not condition.wait_for(lambda: False, cancellation, 0.01)
