"""Feeds: blocks that are published once and followed by many.

Producers number their blocks, so that a block that is sent again is added once. A feed numbers them in the order in
which they came, and keeps the last ones, within its bounds. Nobody waits for a reader: who asks for a block that is not
kept any more is told how many were lost, and goes on with the first that is left.

A feed is in the memory of one process and ends with it, as sessions do.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dai.config import LimitsConfig
from dai.errors import (
    BusyError,
    ConflictError,
    DaiError,
    DeniedError,
    GoneError,
    NotFoundError,
    TooLargeError,
)
from dai.formats.frames import Frame, context_of, framed, tail_of, whole_parts
from dai.security.identity import Caller
from dai.security.policies import matches
from dai.service.identities import ALONE, Identities
from dai.streams.mailbox import Listeners
from dai.streams.stream import Block
from dai.streams.tally import Tally

PRODUCERS = 1000
"""Of one feed."""
USUAL_BLOCKS, USUAL_BYTES = 1000, 4 << 20
"""Defaults of what a feed keeps."""
_HEAD_BYTES = 200
"""Bytes of memory that a block needs besides its own bytes."""


@dataclass(slots=True)
class Published:
    """A block of a feed: its ``payload`` (tuples alone where the feed has a context), and its frames for readers."""

    number: int
    payload: memoryview
    rows: int
    time: float
    frame: bytes
    """With the payload as it is."""
    compressed: bytes | None = None


@dataclass(frozen=True, slots=True)
class Portion:
    """``blocks`` from a number on; ``lost``: how many of those before them are not kept any more; ``ended``: there will
    be no others after them."""

    blocks: Sequence[Published]
    lost: int = 0
    ended: bool = False


@dataclass(eq=False)
class Feed:
    """Thread-safe. ``most_blocks``, ``most_bytes`` and ``seconds`` bound what it keeps; ``readers`` and ``writers`` are
    who follows it and who publishes in it besides its owner, as in a policy."""

    id: str
    owner: str
    readers: tuple[str, ...]
    writers: tuple[str, ...]
    most_blocks: int
    most_bytes: int
    seconds: float
    title: str
    held_by_all: Tally = field(repr=False)
    room: int = field(repr=False)
    media_type: str = ""
    static: bytes = b""
    """The static part of the document of which its blocks are tuples; empty: each block is a message of its own."""
    first: int = 0
    next: int = 0
    held: int = 0
    """Bytes that its blocks need."""
    followers: int = 0
    ended: bool = False
    gone: DaiError | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: deque[Published] = deque()
        self._producers: dict[str, int] = {}
        self._listeners = Listeners()
        self._used = time.monotonic()

    def may_read(self, caller: Caller) -> bool:
        return caller.sees(self.owner) or matches((*self.readers, *self.writers), caller)

    def check_writer(self, caller: Caller) -> None:
        if not (caller.sees(self.owner) or matches(self.writers, caller)):
            raise DeniedError("You may follow this feed, not publish in it.", hint="Its owner names its writers.")

    def publish(
        self,
        producer: str,
        number: int,
        payloads: Sequence[tuple[bytes, int]],
        media_type: str,
        static: bytes = b"",
        *,
        last: bool = False,
    ) -> None:
        """Adds blocks (bytes and rows), which are those of the ``producer`` from its ``number`` on; what it has
        published before is not added again. ``last``: the feed ends with them.

        ConflictError for a number ahead (with the one that is expected), for another kind of block than before, and
        after the end; TooLargeError for a block that the feed cannot keep; BusyError where other feeds have all room.
        """
        with self._lock:
            if self.gone is not None:
                raise self.gone
            expected = self._producers.get(producer, 0)
            if number > expected:
                raise ConflictError(f"Block {number} was sent, but block {expected} is expected.", expected=expected)
            new = payloads[expected - number :]
            if self.ended and (new or not last):
                raise ConflictError("The feed has ended; nothing can be published any more.", expected=expected)
            if new:
                self._check_kind(media_type, static)
                self._check_producer(producer)
            for payload, rows in new:
                self._add(payload, rows)
                self._producers[producer] = expected = expected + 1
            self.ended = self.ended or last
            self._used = time.monotonic()
        self._listeners.notify()

    def _check_kind(self, media_type: str, static: bytes) -> None:
        if self.next and (media_type, static) != (self.media_type, self.static):
            raise ConflictError(
                f"The blocks of this feed must be {self.media_type}, with the context {context_of(self.static)}.",
                hint="All blocks of a feed must have the same format and schema.",
            )
        self.media_type, self.static = media_type, static

    def _check_producer(self, producer: str) -> None:
        if producer not in self._producers and len(self._producers) >= PRODUCERS:
            raise BusyError(f"{PRODUCERS} producers have published in this feed, which is the limit.", retry_after=60)

    def _add(self, payload: bytes, rows: int) -> None:
        size = 2 * len(payload) + _HEAD_BYTES  # the payload stands in its frame, and may stand in a compressed one
        if size > min(self.most_bytes, self.room):
            raise TooLargeError(
                f"A block of {len(payload):,} bytes does not fit into the {self.most_bytes:,} bytes that the feed "
                "keeps.",
                hint="A block counts twice: as it is, and compressed.",
            )
        now = time.time()
        self._drop_until(now - self.seconds)
        while self._blocks and (len(self._blocks) >= self.most_blocks or self.held + size > self.most_bytes):
            self._drop()
        while not self.held_by_all.take(size, self.room):
            if not self._blocks:
                raise BusyError("The service has no more room for blocks: those of all feeds fill it.", retry_after=1)
            self._drop()
        frame = bytes(Frame(context_of(self.static), self.id, self.next, rows, payload))
        view = memoryview(frame)[len(frame) - len(payload) :]
        self._blocks.append(Published(self.next, view, rows, now, frame))
        self.held += size
        self.next += 1

    def _drop(self) -> None:
        dropped = self._blocks.popleft()
        size = 2 * len(dropped.payload) + _HEAD_BYTES
        self.held -= size
        self.held_by_all.add(-size)
        self.first = dropped.number + 1

    def _drop_until(self, moment: float) -> None:
        while self._blocks and self._blocks[0].time < moment:
            self._drop()

    def since(self, number: int, most_blocks: int, most_bytes: float = float("inf")) -> Portion:
        """What is kept from that number on: blocks of so many bytes at most, but one at least. ConflictError for a
        number ahead, the cause where the feed is gone."""
        with self._lock:
            if self.gone is not None:
                raise self.gone
            if number > self.next:
                raise ConflictError(f"Block {number} was asked for, but the next block is {self.next}.")
            self._drop_until(time.time() - self.seconds)
            self._used = time.monotonic()
            at = max(number, self.first)
            blocks: list[Published] = []
            size = 0
            for place in range(at - self.first, min(at - self.first + most_blocks, len(self._blocks))):
                size += len(self._blocks[place].payload)
                if blocks and size > most_bytes:
                    break
                blocks.append(self._blocks[place])
            return Portion(blocks, at - number, self.ended and at + len(blocks) == self.next)

    def whole(self, published: Published) -> tuple[bytes | memoryview, ...]:
        """The parts of the frame of a block with the document that it is by itself; its tuples are not copied."""
        block = Block(published.payload, published.rows)
        return whole_parts(context_of(self.static), self.id, published.number, block, self.static)

    def compressed(self, published: Published) -> bytes:
        """The frame of a block for whoever has the context; made once for all of them."""
        if published.compressed is None:
            block, context = Block(published.payload, published.rows), context_of(self.static)
            frame = framed(context, self.id, published.number, block, self.static, whole=False, compressed=True)
            smaller = len(frame.payload) < len(published.payload)
            published.compressed = bytes(frame) if smaller else published.frame
        return published.compressed

    def document(self, blocks: Sequence[Published]) -> bytes:
        """The blocks as one document; messages one after the other."""
        return b"".join(self.document_parts(blocks))

    def document_parts(self, blocks: Sequence[Published]) -> tuple[bytes | memoryview, ...]:
        payloads = (each.payload for each in blocks)
        return (self.static, *payloads, tail_of(self.static)) if self.static else tuple(payloads)

    def lost(self, number: int, count: int) -> GoneError:
        return GoneError(
            f"{count} blocks from {number} on were lost: the feed does not keep them any more.",
            hint=f"Go on with block {number + count}.",
            lost=count,
            first=number + count,
        )

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context for a reader who waits for blocks, which keeps the feed in use."""
        with self._lock:
            self.followers += 1
        try:
            yield
        finally:
            with self._lock:
                self.followers -= 1
                self._used = time.monotonic()

    def expired(self) -> bool:
        """Nobody has used it for its seconds, or it has ended and nothing of it is kept any more."""
        with self._lock:
            self._drop_until(time.time() - self.seconds)
            if self.ended and not self._blocks:
                return True
            return not self.followers and time.monotonic() - self._used > self.seconds

    def end(self, why: DaiError) -> None:
        """Forgets all blocks; whoever follows gets the cause."""
        with self._lock:
            self.gone = self.gone or why
            while self._blocks:
                self._drop()
        self._listeners.notify()

    def add_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """``listener`` is called, from any thread, whenever blocks or the end arrive. Returns how to remove it."""
        return self._listeners.add(listener)


class Feeds:
    """The feeds of one process; thread-safe. ``held`` counts the bytes in those of other processes, too. ``check``
    raises where an owner who has so many feeds may have no more."""

    def __init__(
        self,
        limits: LimitsConfig,
        *,
        identities: Identities = ALONE,
        count: Tally | None = None,
        held: Tally | None = None,
        check: Callable[[str, int], None] = lambda owner, count: None,
    ) -> None:
        self._limits, self._identities, self._check = limits, identities, check
        self._count, self.held = count or Tally(), held or Tally()
        self._lock = threading.Lock()
        self._known: dict[str, Feed] = {}

    def create(
        self,
        owner: str,
        readers: Sequence[str] = (),
        writers: Sequence[str] = (),
        *,
        blocks: int | None = None,
        bytes: int | None = None,
        seconds: float | None = None,
        title: str = "",
    ) -> Feed:
        """BusyError where there are too many; bounds beyond those of the service are those of the service."""
        limits = self._limits
        feed = Feed(
            self._identities.new(),
            owner,
            tuple(readers),
            tuple(writers),
            blocks or USUAL_BLOCKS,
            min(bytes or USUAL_BYTES, limits.feed_bytes),
            min(seconds or limits.feed_seconds, limits.feed_seconds),
            title,
            self.held,
            limits.feeds_bytes,
        )
        with self._lock:
            self._check(owner, sum(each.owner == owner for each in self._known.values()))
            if not self._count.take(1, limits.feeds):
                raise BusyError(f"The service already has {limits.feeds} feeds, which is the limit.", retry_after=10)
            self._known[feed.id] = feed
        return feed

    def get(self, id: str, caller: Caller) -> Feed:
        """NotFoundError where there is none, or none that the caller may read."""
        feed = self._known.get(id)
        if feed is None or not feed.may_read(caller):
            raise NotFoundError(f"There is no feed {id!r}; it may have ended.", hint="POST /feeds makes one.")
        return feed

    def all(self) -> list[Feed]:
        with self._lock:
            return list(self._known.values())

    @property
    def followers(self) -> int:
        return sum(each.followers for each in self.all())

    def end(self, feed: Feed, why: str = "The feed was ended.") -> None:
        with self._lock:
            if self._known.pop(feed.id, None) is None:
                return
            self._count.add(-1)
        feed.end(GoneError(why))

    def reap(self) -> None:
        """Ends those that nobody uses; to be called regularly."""
        for feed in self.all():
            if feed.expired():
                self.end(feed, "The feed has ended, or nobody used it, and nothing of it is kept any more.")

    def close(self) -> None:
        for feed in self.all():
            self.end(feed, "The process of the service that kept this feed is stopping.")


def described(feed: Feed) -> dict[str, Any]:
    return {
        "id": feed.id,
        "title": feed.title,
        "owner": feed.owner,
        "readers": list(feed.readers),
        "writers": list(feed.writers),
        "type": feed.media_type,
        "context": context_of(feed.static) if feed.static else None,
        "first": feed.first,
        "next": feed.next,
        "bytes": feed.held,
        "followers": feed.followers,
        "ended": feed.ended,
        "keeps": {"blocks": feed.most_blocks, "bytes": feed.most_bytes, "seconds": feed.seconds},
    }
