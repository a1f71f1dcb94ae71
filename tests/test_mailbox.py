import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.errors import CancelledError, ClosedError, ConflictError, DataError, GoneError
from dai.streams.cancellation import Cancellation
from dai.streams.mailbox import END, PENDING, Budget, Mailbox
from dai.streams.stream import Block


def block(text: str) -> Block:
    return Block(text.encode(), 1)


def filled(*texts: str, capacity: int = 10) -> Mailbox:
    mailbox = Mailbox(capacity)
    for text in texts:
        assert mailbox.put(block(text), Cancellation(), wait=0)
    return mailbox


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_who_has_requests_on_their_way_acknowledges_none_that_may_be_lost() -> None:
    """Each pull of two blocks leaves the four before it, so three may be on their way at once."""
    mailbox = filled("a", "b", capacity=2)
    assert mailbox.poll_many(0, 2, behind=4) == ([block("a"), block("b")], False)
    assert mailbox.capacity == 6
    assert mailbox.poll_many(4, 2, behind=4) == ([], True), "two ahead of what is there"
    assert mailbox.poll(0) == block("a"), "nothing was acknowledged"
    for text in "cdef":
        mailbox.put(block(text), Cancellation(), wait=0)
    assert mailbox.poll_many(4, 2, behind=4)[0] == [block("e"), block("f")]
    assert mailbox.poll_many(6, 2, behind=4) == ([], True)
    assert mailbox.acknowledged == 2
    with pytest.raises(ConflictError):
        mailbox.poll_many(11, 2, behind=4)
    mailbox.finish()
    assert mailbox.poll_many(8, 2, behind=4) == ([], False)
    assert mailbox.acknowledged == 4, "not what its reader may still ask for"
    assert mailbox.poll_many(6, 1) == ([], False)
    assert mailbox.drained


def test_a_lost_reply_is_repaired_by_asking_again_until_it_is_acknowledged() -> None:
    mailbox = filled("a", "b")
    assert mailbox.poll(0) == mailbox.poll(0) == block("a")
    assert mailbox.poll(1) == block("b")
    assert mailbox.held == (1, 1)
    with pytest.raises(GoneError, match="the first block left is 1"):
        mailbox.poll(0)


def test_pending_then_end() -> None:
    mailbox = filled("a")
    assert mailbox.poll(1) is PENDING
    mailbox.finish()
    assert mailbox.poll(1) is END
    assert mailbox.poll(1) is END
    assert mailbox.drained


def test_a_block_far_ahead_is_a_conflict() -> None:
    with pytest.raises(ConflictError, match="the next block is 1"):
        filled("a").poll(2)


@pytest.mark.parametrize("mailbox", [Mailbox(2), Mailbox(100, capacity_bytes=2)])
def test_the_producer_is_held_while_the_mailbox_is_full(mailbox: Mailbox) -> None:
    for text in "ab":
        mailbox.put(block(text), Cancellation())
    assert mailbox.full
    assert not mailbox.put(block("c"), Cancellation(), wait=0.01)
    producer = threading.Thread(target=mailbox.put, args=(block("c"), Cancellation()), daemon=True)
    producer.start()
    assert mailbox.poll(1) == block("b")
    producer.join(30)
    assert mailbox.expected == 3


def test_one_block_always_fits() -> None:
    mailbox = Mailbox(2, capacity_bytes=1)
    assert mailbox.put(Block(b"large", 1), Cancellation(), wait=0)
    assert not mailbox.put(block("b"), Cancellation(), wait=0)


def test_cancelling_wakes_a_held_producer_and_a_waiting_reader() -> None:
    for work in (
        lambda cancellation: filled("a", "b", capacity=2).put(block("c"), cancellation),
        lambda cancellation: filled().get(0, cancellation),
    ):
        cancellation = Cancellation()
        caught: list[BaseException] = []

        def run(work: Callable[[Cancellation], object] = work, cancellation: Cancellation = cancellation) -> None:
            try:
                work(cancellation)
            except CancelledError as error:
                caught.append(error)  # noqa: B023 - the thread is joined in this turn

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        until(lambda cancellation=cancellation: bool(cancellation._callbacks))
        cancellation.cancel()
        thread.join(30)
        assert len(caught) == 1


def test_a_failure_comes_after_the_blocks_before_it() -> None:
    mailbox = filled("a")
    mailbox.fail(DataError("broken"))
    mailbox.fail(DataError("a later cause"))
    assert mailbox.poll(0) == block("a")
    with pytest.raises(DataError, match="broken"):
        mailbox.poll(1)
    with pytest.raises(ClosedError):
        mailbox.put(block("b"), Cancellation())


def test_discarding_stops_the_producer_and_forgets() -> None:
    mailbox = filled("a", "b", capacity=2)
    stopped = threading.Event()

    def produce() -> None:
        try:
            mailbox.put(block("c"), Cancellation())
        except ClosedError:
            stopped.set()

    threading.Thread(target=produce, daemon=True).start()
    mailbox.discard(GoneError("the session has ended"))
    assert stopped.wait(30)
    assert mailbox.held == (0, 0)
    with pytest.raises(GoneError, match="session has ended"):
        mailbox.poll(0)


def test_who_asks_for_the_next_block_of_what_was_discarded_is_told_why() -> None:
    mailbox = filled("a", "b", capacity=2)
    assert mailbox.poll(0) == block("a")
    mailbox.discard(GoneError("the session has ended"))
    for number in (1, 2):
        with pytest.raises(GoneError, match="session has ended"):
            mailbox.poll(number)
    assert mailbox.held == (0, 0)


def test_nothing_can_be_put_after_the_end() -> None:
    mailbox = filled("a")
    mailbox.finish()
    with pytest.raises(ConflictError):
        mailbox.put(block("b"), Cancellation())
    with pytest.raises(ConflictError):
        mailbox.offer(1, block("b"))


def test_getting_waits_for_the_block() -> None:
    mailbox = Mailbox()
    assert mailbox.get(0, Cancellation(), wait=0.01) is PENDING
    got: list[object] = []
    reader = threading.Thread(target=lambda: got.extend(mailbox.blocks(Cancellation())), daemon=True)
    reader.start()
    for text in "abcde":
        mailbox.put(block(text), Cancellation())
    mailbox.finish()
    reader.join(30)
    assert got == [block(text) for text in "abcde"]


def test_offering_is_idempotent_ordered_and_bounded() -> None:
    mailbox = Mailbox(2)
    assert mailbox.offer(0, block("a"))
    assert mailbox.offer(0, block("a"))
    with pytest.raises(ConflictError) as caught:
        mailbox.offer(2, block("c"))
    assert caught.value.extra["expected"] == 1
    assert mailbox.offer(1, block("b"))
    assert not mailbox.offer(2, block("c"), last=True)
    assert not mailbox.ended
    assert mailbox.poll(1) == block("b")
    assert mailbox.offer(2, block("c"), last=True)
    assert mailbox.offer(2, block("c"), last=True)
    with pytest.raises(ConflictError):
        mailbox.offer(1, block("b"), last=True)
    assert [mailbox.poll(2), mailbox.poll(3)] == [block("c"), END]


def test_several_blocks_at_once_are_held_until_they_are_acknowledged() -> None:
    mailbox = filled("a", "b", capacity=2)
    assert mailbox.poll_many(0, 3) == ([block("a"), block("b")], True)
    assert mailbox.put(block("c"), Cancellation(), wait=0)
    assert mailbox.poll_many(0, 3) == ([block("a"), block("b"), block("c")], False)
    assert not mailbox.put(block("d"), Cancellation(), wait=0)
    assert mailbox.poll_many(3, 3) == ([], True)
    mailbox.put(block("d"), Cancellation())
    assert not mailbox.is_last(3)
    mailbox.finish()
    assert mailbox.is_last(3)
    assert mailbox.poll_many(3, 3) == ([block("d")], False)
    assert mailbox.poll_many(4, 3) == ([], False)


def test_more_are_made_while_the_reader_has_some() -> None:
    mailbox = Mailbox(capacity=1)
    mailbox.put(block("a"), Cancellation())
    assert mailbox.full
    assert mailbox.poll_many(0, 1, ahead=2) == ([block("a")], False)
    mailbox.put(block("b"), Cancellation(), wait=0)
    assert not mailbox.full
    mailbox.put(block("c"), Cancellation(), wait=0)
    assert mailbox.full


def test_several_blocks_never_exceed_the_bytes() -> None:
    mailbox = Mailbox(2, capacity_bytes=2)
    mailbox.put(block("a"), Cancellation())
    mailbox.put(block("b"), Cancellation())
    assert mailbox.poll_many(0, 100) == ([block("a"), block("b")], False)


def test_several_blocks_have_no_more_bytes_than_the_reader_wants() -> None:
    mailbox = Mailbox(2)
    mailbox.put(block("aa"), Cancellation())
    assert mailbox.poll_many(0, 100, ahead=100, size=3) == ([block("aa")], True)
    assert not mailbox.has(0, 100, 3)
    for text in ("bb", "cc"):
        assert mailbox.put(block(text), Cancellation(), wait=0)
    assert mailbox.has(0, 100, 3)
    assert not mailbox.put(block("dd"), Cancellation(), wait=0), "twice the bytes are there"
    assert mailbox.poll_many(0, 100, size=3) == ([block("aa")], False)
    assert mailbox.poll_many(1, 100, size=4) == ([block("bb"), block("cc")], False)
    assert mailbox.poll_many(1, 100, size=1) == ([block("bb")], False), "one may have more"
    assert mailbox.has(1, 2, 100)
    assert not mailbox.has(1, 3, 100)
    mailbox.finish()
    assert mailbox.has(1, 3, 100)


def test_listeners_hear_of_blocks_room_and_the_end_until_they_are_removed() -> None:
    mailbox, calls = Mailbox(), []
    remove = mailbox.add_listener(lambda: calls.append(1))
    mailbox.put(block("a"), Cancellation())
    assert len(calls) == 1
    mailbox.poll(0)
    assert len(calls) == 1
    mailbox.poll(1)
    assert len(calls) == 2
    mailbox.finish()
    assert len(calls) == 3
    remove()
    mailbox.fail(DataError("too late"))
    assert len(calls) == 3


@given(st.lists(st.binary(max_size=20), max_size=30), st.integers(1, 5), st.integers(1, 4), st.sets(st.integers(0, 30)))
def test_a_reader_that_repeats_itself_sees_every_block_once_in_order(
    blocks: list[bytes], capacity: int, count: int, repeated: set[int]
) -> None:
    mailbox = Mailbox(capacity)

    def produce() -> None:
        for each in blocks:
            mailbox.put(Block(each, 1), Cancellation())
        mailbox.finish()

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    seen: list[bytes] = []
    while True:
        actual, more = mailbox.poll_many(len(seen), count)
        if not actual:
            if not more:
                break
            time.sleep(0)
            continue
        if len(seen) in repeated:
            again, _ = mailbox.poll_many(len(seen), count)
            assert again[: len(actual)] == actual
        seen += [bytes(memoryview(each.data)) for each in actual]
        assert mailbox.held[0] <= max(capacity, count)
    producer.join(30)
    assert seen == blocks


def test_a_budget_counts_what_waits_and_gives_it_back() -> None:
    service = Budget(12, awaited_limit=16)
    session = Budget(8, within=service)
    mailbox = Mailbox(budget=session)
    assert session.reserve(6, awaited=False) is None
    assert mailbox.offer(0, block("abcdef"))
    session.release(6)
    assert (session.held, service.held) == (6, 6)
    assert session.reserve(3, awaited=False) is session
    assert session.reserve(3, awaited=True) is None, "a session takes what its reader waits for"
    session.release(3)
    heard = []
    service.add_listener(lambda: heard.append(service.held))
    mailbox.poll(1)
    assert heard == [0]
    assert mailbox.offer(1, block("abc"))
    mailbox.discard(DataError("gone"))
    assert (session.held, service.held) == (0, 0)


def test_a_budget_takes_one_block_of_any_size_and_keeps_room_for_those_awaited() -> None:
    service = Budget(12, awaited_limit=16)
    first, second = Budget(8, within=service), Budget(8, within=service)
    assert first.reserve(11, awaited=False) is None
    assert first.reserve(1, awaited=False) is first
    assert second.reserve(4, awaited=False) is service
    assert second.held == 0
    assert second.reserve(4, awaited=True) is None
    assert second.reserve(4, awaited=True) is service
    assert (first.held, second.held, service.held) == (11, 4, 15)


def test_a_block_is_awaited_from_when_a_reader_asks_until_it_comes() -> None:
    mailbox, begun = Mailbox(), threading.Event()
    mailbox.add_listener(begun.set)
    assert not mailbox.awaits(0)
    got: list[object] = []
    reader = threading.Thread(target=lambda: got.append(mailbox.get(0, Cancellation())), daemon=True)
    reader.start()
    assert begun.wait(30)
    assert mailbox.awaits(0)
    assert not mailbox.awaits(1)
    assert mailbox.offer(0, block("a"))
    reader.join(30)
    assert got == [block("a")]
    assert not mailbox.awaits(0)
