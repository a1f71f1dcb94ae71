"""The one queue: bounded, its blocks numbered from 0, re-readable until acknowledged.

States and what moves between them::

    open ──finish()──> finished ──the last block acknowledged──> drained
      └──fail(cause)──> failed: a reader gets what was put before, then the cause

A producer thread calls ``put`` and is held while ``capacity`` blocks (or more than ``capacity_bytes``, or as much as
the ``budget`` that mailboxes share; one block always fits) wait unacknowledged. A producer over HTTP reserves bytes of
the budget, then calls ``offer``, which never waits. A reader asks for block n, which acknowledges all before n; a lost
reply is repaired by asking for n again. A reader that asks for several blocks at once needs all of them held until it
has them, so ``poll_many`` lets the mailbox hold as many, within the bytes that the reader wants at once. Readers wait
in a thread (``get``) or on an event loop (``add_listener`` and ``poll``).
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from dai.errors import ClosedError, ConflictError, DaiError, GoneError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block
from dai.streams.tally import Tally
from dai.streams.waiting import Condition

END = None
"""The result of ``get`` and ``poll`` for the number after the last block."""


class Pending:
    """The result of ``poll`` while the block is not there yet."""


PENDING = Pending()


class Listeners:
    """Callbacks for a change; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[object, Callable[[], None]] = {}

    def add(self, listener: Callable[[], None]) -> Callable[[], None]:
        key = object()
        with self._lock:
            self._known[key] = listener
        return lambda: self._remove(key)

    def _remove(self, key: object) -> None:
        with self._lock:
            self._known.pop(key, None)

    def notify(self) -> None:
        with self._lock:
            listeners = list(self._known.values())
        for listener in listeners:
            listener()


class Budget:
    """Bytes of blocks: those that wait in mailboxes, and those on their way into one; thread-safe.

    ``limit`` is for blocks that no reader waits for yet; one block always fits. A budget ``within`` another takes its
    bytes from that as well. ``awaited_limit`` is for blocks that a reader waits for, None for no limit of its own: so
    blocks that nobody reads never shut out those that a pipeline needs to go on.
    """

    def __init__(
        self,
        limit: int,
        awaited_limit: int | None = None,
        within: Budget | None = None,
        tally: Tally | None = None,
    ) -> None:
        self.limit, self.awaited_limit = limit, awaited_limit
        self._within = within
        self._tally = tally or Tally()
        self._listeners = Listeners()

    @property
    def held(self) -> int:
        return self._tally.total

    @property
    def full(self) -> bool:
        """No block that no reader waits for may be added, here or in the budget that this one is within."""
        return self.held >= self.limit or (self._within is not None and self._within.full)

    def reserve(self, size: int, awaited: bool) -> Budget | None:
        """Takes ``size`` bytes for a block that is to come, ``awaited`` where a reader waits for it. Gives the budget
        that has no room for it: nothing was taken then."""
        limit = self.awaited_limit if awaited else self.limit
        if not self._tally.take(size, math.inf if limit is None else limit, first=True):
            return self
        full = self._within.reserve(size, awaited) if self._within is not None else None
        if full is not None:
            self._tally.add(-size)
        return full

    def add(self, size: int) -> None:
        """Takes ``size`` bytes whether there is room or not."""
        self._tally.add(size)
        if self._within is not None:
            self._within.add(size)

    def release(self, size: int) -> None:
        self._tally.add(-size)
        if self._within is not None:
            self._within.release(size)
        self.notify()

    def notify(self) -> None:
        """Tells the listeners that there may be room again."""
        self._listeners.notify()

    def add_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """``listener`` is called, from any thread, whenever bytes are given back. Returns how to remove it."""
        return self._listeners.add(listener)


class Mailbox:
    """One stream's blocks between one producer and its reader; thread-safe. What it holds counts in the ``budget``."""

    def __init__(self, capacity: int = 2, capacity_bytes: int = 64 << 20, budget: Budget | None = None) -> None:
        self.capacity, self.capacity_bytes = capacity, capacity_bytes
        self._usual, self._wanted_bytes = capacity, math.inf
        self._budget = budget
        self._awaited = -1
        self.media_type = "application/octet-stream"
        self.forms: tuple[str, ...] = ()
        """Media types that its reader takes, whatever form the producer has; empty where only the bytes count."""
        self.static = b""
        """The static part of the document, known from its first block on; empty where it has none."""
        self.framed = False
        """Readers get frames (``dai.formats.frames``) unless they ask for the document itself."""
        self._producer: str | None = None
        self._changed = Condition()
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self._held_bytes = 0
        self._next = 0
        self._acknowledged = 0
        self._finished = False
        self._cause: DaiError | None = None
        self._listeners = Listeners()

    @property
    def expected(self) -> int:
        """The number of the next block to put."""
        return self._next

    @property
    def acknowledged(self) -> int:
        """The number of the first block that is not acknowledged."""
        return self._acknowledged

    @property
    def held(self) -> tuple[int, int]:
        """Blocks and bytes that wait."""
        with self._changed:
            return len(self._blocks), self._held_bytes

    @property
    def full(self) -> bool:
        """The next block that a thread puts has to wait for the reader."""
        with self._changed:
            return self._full()

    @property
    def ended(self) -> bool:
        """Finished or failed: nothing will be put any more."""
        return self._finished or self._cause is not None

    def awaits(self, number: int) -> bool:
        """A reader waits for block ``number``, which is the next to come."""
        return number == self._awaited == self._next and not self.ended

    @property
    def drained(self) -> bool:
        """Finished, and every block acknowledged."""
        return self._finished and not self._blocks

    def _full(self) -> bool:
        return self._at_capacity() or (bool(self._blocks) and self._budget is not None and self._budget.full)

    def _at_capacity(self) -> bool:
        count = len(self._blocks)
        wanted = self._wanted_bytes if count >= self._usual else self.capacity_bytes
        return count > 0 and (count >= self.capacity or self._held_bytes >= min(wanted, self.capacity_bytes))

    def put(self, block: Block, cancellation: Cancellation, wait: float | None = None) -> bool:
        """Put the next block, held while the mailbox is full. False if ``wait`` seconds passed first.

        Raises the cancellation's cause, ClosedError when the reader is gone, ConflictError after the end.
        """
        if not self._wait_for_room(cancellation, wait):
            return False
        self._add(block)
        return True

    def fill(self, blocks: Iterator[Block], cancellation: Cancellation) -> None:
        """Puts all blocks and finishes. None is made before there is room for it. Raises as ``put`` does, and what
        ``blocks`` raises; the mailbox is not failed by that."""
        while self._wait_for_room(cancellation) and (block := next(blocks, None)) is not None:
            self._add(block)
        self.finish()

    def _add(self, block: Block) -> None:
        with self._changed:
            self._hold(block)
        self._notify()

    def _hold(self, block: Block) -> None:
        if not self._next:
            self.static = block.static
        self._blocks[self._next] = block
        self._next += 1
        self._held_bytes += len(block)
        if self._budget is not None:
            self._budget.add(len(block))

    def _released(self, size: int) -> None:
        """Tells the budget; without the lock, because who listens to a budget may ask the mailbox."""
        if self._budget is not None and size:
            self._budget.release(size)

    def _wait_for_room(self, cancellation: Cancellation, wait: float | None = None) -> bool:
        with self._changed, ExitStack() as stack:
            if self._budget is not None and self._full():
                stack.callback(self._budget.add_listener(self._wake))
            if not self._changed.wait_for(lambda: self._cause is not None or not self._full(), cancellation, wait):
                return False
            cancellation.check()
            if self._cause is not None:
                raise ClosedError("The reader of this stream is gone.") from self._cause
            if self._finished:
                raise ConflictError("This stream has ended; nothing more can be put into it.")
        return True

    def check_offer(self, number: int, producer: str | None = None) -> None:
        """Raises what ``offer`` raises for any block of that number."""
        if self._cause is not None:
            raise ClosedError("The reader of this stream is gone.") from self._cause
        self.check_producer(producer)
        if number > self._next or (number == self._next and self._finished):
            raise ConflictError(
                f"Block {number} was sent, but "
                + ("the stream has ended." if self._finished else f"block {self._next} is expected."),
                expected=self._next,
            )

    def check_producer(self, producer: str | None) -> None:
        if self._next and producer != self._producer:
            raise ConflictError(
                "Another producer is writing this stream.", hint="Each producer needs a stream of its own."
            )

    def offer(self, number: int, block: Block, last: bool = False, producer: str | None = None) -> bool:
        """Put block ``number`` without waiting; False while there is no room. A block that was put already is not put
        again, so a producer may repeat itself after a lost reply; ``last`` ends the stream. The first block says who
        the ``producer`` is: blocks of another one would look like blocks that are repeated, and are refused.

        Raises ConflictError (with the number expected) for a block out of order, or for a new one after the end, and
        ClosedError when the reader is gone.
        """
        with self._changed:
            self.check_offer(number, producer)
            if number == self._next:
                if self._at_capacity():
                    return False
                self._producer = producer
                self._hold(block)
            if last:
                if number != self._next - 1:
                    raise ConflictError(
                        f"Block {number} cannot be the last: {self._next} blocks were sent.", expected=self._next
                    )
                self._finished = True
        self._notify()
        return True

    def finish(self) -> None:
        """No more blocks will come."""
        with self._changed:
            self._finished = self._cause is None
        self._notify()

    def fail(self, cause: DaiError) -> None:
        """The producer failed or the reader is gone: the first cause stays; held blocks can still be read."""
        with self._changed:
            if not self._finished and self._cause is None:
                self._cause = cause
        self._notify()

    def discard(self, cause: DaiError) -> None:
        """The reader is gone for good: forget the blocks and stop the producer."""
        with self._changed:
            self._blocks.clear()
            released, self._held_bytes = self._held_bytes, 0
            if self._cause is None:
                self._cause = cause
            self._finished = False
        self._released(released)
        self._notify()

    def poll(self, number: int, behind: int = 0) -> Block | Pending | None:
        """Block ``number``, PENDING, or END. Acknowledges all blocks before it, but for as many as are ``behind`` it,
        which are still on their way to the reader: who asks so may be as many ahead.

        Raises GoneError for an acknowledged block, ConflictError for one far ahead, the producer's failure once all
        that was put before has been read.
        """
        with self._changed:
            if number < self._acknowledged:
                raise GoneError(
                    f"Block {number} was acknowledged and removed; the first block left is {self._acknowledged}."
                )
            if number > self._next + behind:
                raise ConflictError(f"Block {number} was asked for, but the next block is {self._next}.")
            freed, before = False, self._held_bytes
            while self._acknowledged < min(number - behind, self._next):
                block = self._blocks.pop(self._acknowledged, None)
                if block is not None:  # else all were discarded
                    self._held_bytes -= len(block)
                self._acknowledged += 1
                freed = True
            released = before - self._held_bytes
            wanted = self._blocks.get(number)
            cause, finished = self._cause, self._finished
        if freed:
            self._released(released)
            self._notify()
        if wanted is not None:
            return wanted
        if cause is not None:
            raise cause
        return END if finished else PENDING

    def poll_many(
        self, number: int, count: int, ahead: int = 0, behind: int = 0, size: float = math.inf
    ) -> tuple[list[Block], bool]:
        """Up to ``count`` blocks from ``number`` that have ``size`` bytes at most (one may have more), and whether
        there is reason to wait for more of them. No block and no reason to wait is the end. ``ahead``: how many more
        may be made while the reader has these. Acknowledges and raises as ``poll`` does."""
        if (capacity := behind + count + ahead) > self.capacity:
            with self._changed:
                self.capacity, self._wanted_bytes = capacity, (3 if behind else 2) * size
                self._changed.notify_all()
        first = self.poll(number, behind)
        if isinstance(first, Pending):
            return [], True
        if first is END:
            return [], False
        return self._there([first], number, count, size)

    def peek(self, number: int, count: int, size: float) -> tuple[list[Block], bool]:
        """As ``poll_many``, of blocks whose first need not be there yet and may not be too large either. Acknowledges
        nothing, and tells of no failure."""
        return self._there([], number, count, size)

    def _there(self, blocks: list[Block], number: int, count: int, size: float) -> tuple[list[Block], bool]:
        """``blocks`` from ``number`` on and those behind them."""
        with self._changed:
            total = sum(map(len, blocks))
            while len(blocks) < count and (block := self._blocks.get(number + len(blocks))) is not None:
                total += len(block)
                if total > size:
                    return blocks, False
                blocks.append(block)
            return blocks, len(blocks) < count and total < size and not self.ended and not self._full()

    def bytes_before(self, number: int) -> int:
        """Of the blocks that are held and have smaller numbers."""
        with self._changed:
            return sum(len(block) for at, block in self._blocks.items() if at < number)

    def has(self, number: int, count: int, size: float) -> bool:
        """Whether ``poll_many`` may give no reason to wait; next to nothing to ask."""
        with self._changed:
            return self.ended or self._next - number >= count or self._held_bytes >= size or self._full()

    def is_last(self, number: int) -> bool:
        """Block ``number`` is known to be the last one."""
        with self._changed:
            return self._finished and number == self._next - 1

    def get(self, number: int, cancellation: Cancellation, wait: float | None = None) -> Block | Pending | None:
        """Like ``poll``, but waits up to ``wait`` seconds (None: for ever) for the block to come."""
        cancellation.check()
        block = self.poll(number)
        if block is not PENDING:
            return block
        if self._awaited != number:
            self._awaited = number
            self._listeners.notify()
        with self._changed:
            came = self._changed.wait_for(lambda: self._next > number or self.ended, cancellation, wait)
        return self.poll(number) if came else PENDING

    def blocks(self, cancellation: Cancellation) -> Iterator[Block]:
        """All blocks from the first unacknowledged one, each acknowledged when the next is asked for."""
        number = self._acknowledged
        while True:
            block = self.get(number, cancellation)
            if block is END or isinstance(block, Pending):
                return
            yield block
            number += 1

    def add_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """``listener`` is called, from any thread, whenever a block or the end arrives, room is made or a reader begins
        to wait. Returns how to remove it."""
        return self._listeners.add(listener)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._listeners.notify()
