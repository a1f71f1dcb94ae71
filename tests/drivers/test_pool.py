"""The pool: limits, turns, health, and that nothing is lost. No database needed."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dai.drivers.connections.pool import Limit, Pool
from dai.errors import BusyError, CancelledError, DatabaseUnavailableError
from dai.streams.cancellation import Cancellation
from tests.processes import until


class Connections:
    """Numbers that stand for connections, and what was done with them."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed: list[int] = []
        self.broken: set[int] = set()
        self.interrupted: list[int] = []
        self.connecting: Callable[[], object] = lambda: None

    def connect(self) -> int:
        self.opened += 1
        self.connecting()
        return self.opened

    def pool(self, limit: Limit, idle: float = 60.0) -> Pool[int]:
        return Pool(
            self.connect,
            self.closed.append,
            limit=limit,
            idle=idle,
            check=lambda number: number not in self.broken,
            alive=lambda number: -number not in self.broken,
            interrupt=self.interrupted.append,
        )


@contextmanager
def thread(work: Callable[[], object]) -> Iterator[None]:
    running = threading.Thread(target=work)
    running.start()
    yield
    running.join(60)
    assert not running.is_alive()


def waiting(limit: Limit, count: int) -> None:
    """Until so many stand in the queue."""
    step = threading.Event()
    for _ in range(6000):
        if len(limit.queue) == count:
            return
        step.wait(0.01)
    raise AssertionError("nobody queues")


def test_the_connection_used_last_is_used_again() -> None:
    limit = Limit(2, 1)
    pool = Connections().pool(limit)
    with pool.connection(Cancellation()) as first, pool.connection(Cancellation()):
        assert limit.state() == {"open": 2, "idle": 0, "limit": 2}
    with pool.connection(Cancellation()) as again:
        assert again == first
    assert limit.state() == {"open": 2, "idle": 2, "limit": 2}


def test_a_full_pool_is_busy() -> None:
    pool = Connections().pool(Limit(1, 0.01))
    with pool.connection(Cancellation()), pytest.raises(BusyError):
        pool.take(Cancellation())
    pool.take(Cancellation())


def test_who_waits_gets_the_connection_that_comes_free_in_turn() -> None:
    limit = Limit(1, 10)
    pool = Connections().pool(limit)
    order: list[int] = []

    def work(number: int) -> None:
        with pool.connection(Cancellation()):
            order.append(number)

    held = pool.take(Cancellation())
    with thread(lambda: work(1)):
        waiting(limit, 1)
        with thread(lambda: work(2)):
            waiting(limit, 2)
            pool.give_back(held)
    assert order == [1, 2]


def test_cancelling_ends_the_wait() -> None:
    limit = Limit(1, 10)
    pool = Connections().pool(limit)
    pool.take(Cancellation())
    cancellation = Cancellation()
    causes: list[Exception] = []

    def work() -> None:
        try:
            pool.take(cancellation)
        except CancelledError as error:
            causes.append(error)

    with thread(work):
        waiting(limit, 1)
        cancellation.cancel()
    assert len(causes) == 1
    assert limit.state()["open"] == 1


@pytest.mark.parametrize(("mark", "idle"), [(1, 0.0), (-1, 60.0)])
def test_a_broken_idle_connection_is_replaced(mark: int, idle: float) -> None:
    connections = Connections()
    limit = Limit(1, 1)
    pool = connections.pool(limit, idle)
    pool.give_back(pool.take(Cancellation()))
    connections.broken.add(mark)
    assert pool.take(Cancellation()) == 2
    assert connections.closed == [1]
    assert limit.state() == {"open": 1, "idle": 0, "limit": 1}


def test_an_exception_discards() -> None:
    connections = Connections()
    limit = Limit(1, 1)
    pool = connections.pool(limit)
    with pytest.raises(KeyError), pool.connection(Cancellation()):
        raise KeyError
    assert connections.closed == [1]
    assert limit.state()["open"] == 0


def test_a_failure_to_connect_takes_no_place() -> None:
    def fail() -> int:
        raise DatabaseUnavailableError

    limit = Limit(1, 0.01)
    pool = Pool(fail, lambda _: None, limit=limit, idle=1)
    for _ in range(3):
        with pytest.raises(DatabaseUnavailableError):
            pool.take(Cancellation())
    assert limit.state()["open"] == 0


def test_pools_share_a_limit_and_take_idle_places_from_each_other() -> None:
    limit = Limit(1, 0.01)
    one, other = Connections(), Connections()
    first, second = one.pool(limit), other.pool(limit)
    first.give_back(first.take(Cancellation()))
    held = second.take(Cancellation())
    assert one.closed == [1]
    with pytest.raises(BusyError):
        first.take(Cancellation())
    second.give_back(held)
    assert limit.state() == {"open": 1, "idle": 1, "limit": 1}


def test_users_share_a_limit_and_none_has_all_of_it() -> None:
    limit = Limit(3, 0.01)
    connections = Connections()
    first, second, third = (connections.pool(Limit(2, 0.01, limit)) for _ in range(3))
    held = [first.take(Cancellation()), first.take(Cancellation())]
    with pytest.raises(BusyError, match="All 2"):
        first.take(Cancellation())
    second.take(Cancellation())
    for pool in (second, third):
        with pytest.raises(BusyError, match="All 3"):
            pool.take(Cancellation())
    for each in held:
        first.give_back(each)
    assert limit.state() == {"open": 3, "idle": 2, "limit": 3}
    second.take(Cancellation())  # in the place of what the first leaves idle, the oldest of it
    third.take(Cancellation())
    assert connections.closed == held
    assert limit.state() == {"open": 3, "idle": 0, "limit": 3}


def test_of_users_who_wait_the_one_with_the_fewest_connections_is_served_first() -> None:
    limit = Limit(5, 10)
    first, second, third = (Connections().pool(Limit(4, 10, limit)) for _ in range(3))
    held = [pool.take(Cancellation()) for pool in (first, first, first, second, third)]
    order: list[str] = []

    def work(pool: Pool[int], name: str) -> None:
        with pool.connection(Cancellation()):
            order.append(name)

    with thread(lambda: work(first, "first")):
        waiting(limit, 1)
        with thread(lambda: work(second, "second")):
            waiting(limit, 2)
            third.discard(held[4])
    assert order == ["second", "first"]


def test_closing_one_users_pools_leaves_the_others() -> None:
    limit = Limit(4, 10)
    connections = Connections()
    own = Limit(2, 10, limit)
    first, beside = connections.pool(own), connections.pool(own)
    other = connections.pool(Limit(2, 10, limit))
    held, kept = first.take(Cancellation()), other.take(Cancellation())
    beside.give_back(beside.take(Cancellation()))
    failures: list[Exception] = []
    full = first.take(Cancellation())

    def work() -> None:
        try:
            beside.take(Cancellation())
        except DatabaseUnavailableError as error:
            failures.append(error)

    with thread(work):
        waiting(limit, 1)
        first.close()
    assert len(failures) == 1
    assert set(connections.interrupted) == {held, full}
    other.give_back(kept)
    assert other.take(Cancellation()) == kept
    for each in (held, full):
        first.give_back(each)
    assert limit.state() == {"open": 1, "idle": 0, "limit": 4}
    assert limit.pools == [other]


def test_connections_that_were_idle_for_long_are_closed() -> None:
    limit = Limit(4, 10)
    connections = Connections()
    pools = [connections.pool(Limit(2, 10, limit)) for _ in range(2)]
    held = [pool.take(Cancellation()) for pool in pools]
    limit.close_idle(0)
    assert connections.closed == []
    for pool, each in zip(pools, held, strict=True):
        pool.give_back(each)
    limit.close_idle(60)
    assert connections.closed == []
    limit.close_idle(0)
    assert connections.closed == held
    assert limit.state()["open"] == 0


def test_closing_interrupts_what_runs_and_wakes_who_waits() -> None:
    connections = Connections()
    limit = Limit(1, 10)
    pool = connections.pool(limit)
    held = pool.take(Cancellation())
    failures: list[Exception] = []

    def work() -> None:
        try:
            pool.take(Cancellation())
        except DatabaseUnavailableError as error:
            failures.append(error)

    with thread(work):
        waiting(limit, 1)
        pool.close()
    assert len(failures) == 1
    until(lambda: connections.interrupted.count(held) > 2)  # once may come before its statement
    pool.give_back(held)
    assert connections.closed == [held]
    assert limit.state()["open"] == 0


def test_a_connection_that_is_open_after_the_pool_was_closed_is_not_used() -> None:
    connections = Connections()
    limit = Limit(1, 10)
    connections.connecting = lambda: pool.close()
    pool = connections.pool(limit)
    with pytest.raises(DatabaseUnavailableError):
        pool.take(Cancellation())
    assert len(connections.closed) == 1
    assert limit.state()["open"] == 0


def test_many_threads_never_exceed_the_limit() -> None:
    limit = Limit(3, 30)
    pool = Connections().pool(limit)
    inside, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with pool.connection(Cancellation()):
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert most <= 3
    assert limit.state()["open"] <= 3
    assert limit.state()["idle"] == limit.state()["open"]
