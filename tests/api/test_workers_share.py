"""What the workers of a service share: places among few, and the counts of what is lost."""

import asyncio
import socket
from contextlib import AbstractContextManager

import pytest

from dai.api.workers.admission import SharedAdmission
from dai.api.workers.peers import ACCEPTED, MOVED, Inbox, Peers
from dai.api.workers.table import Table
from dai.errors import BusyError
from tests.processes import SECONDS


@pytest.mark.parametrize(("concurrent", "small"), [(1, 0), (1, 2), (3, 3), (8, 2)])
def test_places_that_workers_share_are_never_too_many_and_never_lost(concurrent: int, small: int) -> None:
    """Every ``small``-th request is small; some give up while they wait."""
    table = Table.create(2)
    inboxes = [Inbox.create() for _ in range(2)]
    tables = [Table(table.descriptor, 2, number) for number in range(2)]
    at_work: list[int] = []
    most = ended = given_up = 0

    async def request(admission: SharedAdmission, number: int) -> None:
        nonlocal most, ended, given_up
        is_small = bool(small) and number % small == 0
        try:
            await admission.acquire(0 if number % 7 == 0 else None, small=is_small)
        except BusyError:
            given_up += 1
            return
        at_work.append(number)
        most = max(most, len(at_work))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        at_work.remove(number)
        admission.release(small=is_small)
        ended += 1

    async def all_of_them() -> None:
        peers = [Peers(number, inboxes) for number in range(2)]
        admissions = [
            SharedAdmission(concurrent, 1000, SECONDS, table, mine) for table, mine in zip(tables, peers, strict=True)
        ]
        for mine, admission in zip(peers, admissions, strict=True):
            mine.start(taken, admission.wake, lambda _: [])
        await asyncio.gather(*(request(admissions[number % 3 % 2], number) for number in range(400)))
        for mine in peers:
            mine.stop()

    async def taken(connection: socket.socket | None, origin: bytes, read: bytes, accepted: bool) -> None:
        raise AssertionError("no connection was sent")

    asyncio.run(all_of_them())
    assert most == concurrent
    assert (ended + given_up, at_work) == (400, [])
    for name in ("small", "large", "small_waiting", "large_waiting"):
        assert table.total(name) == 0


def test_a_request_among_few_locks_the_shared_table_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to begin and once to end: nobody waits for its place."""
    table = Table.create(2)
    table.own = 0
    admission = SharedAdmission(4, 4, SECONDS, table, Peers(0, [Inbox.create(), Inbox.create()]))
    locked, blocks = table.locked, 0

    def counted() -> AbstractContextManager[None]:
        nonlocal blocks
        blocks += 1
        return locked()

    monkeypatch.setattr(table, "locked", counted)

    async def request() -> None:
        await admission.acquire(small=True)
        admission.release(small=True)

    asyncio.run(request())
    assert (blocks, table.total("small")) == (2, 0)


def test_a_connection_that_is_lost_on_its_way_is_counted() -> None:
    """A process that has as many files open as it may gets the message without the connection."""
    inbox = Inbox.create()
    came: list[tuple[socket.socket | None, bool]] = []

    async def receive() -> None:
        done = asyncio.Event()

        async def take(connection: socket.socket | None, origin: bytes, read: bytes, accepted: bool) -> None:
            came.append((connection, accepted))
            if len(came) == 3:
                done.set()

        peers = Peers(0, [inbox])
        peers.start(take, lambda: None, lambda _: [])
        inbox.sending.send(ACCEPTED)
        inbox.sending.send(MOVED + b"\nGET / HTTP/1.1")
        with socket.socket() as connection:  # without the file that has what was read of it
            inbox.send(MOVED, b"", connection.fileno())
        async with asyncio.timeout(SECONDS):
            await done.wait()
        peers.stop()

    asyncio.run(receive())
    assert came == [(None, True), (None, False), (None, False)]
