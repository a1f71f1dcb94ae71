"""The store itself: what is put is there until its lease ends, whatever the state database and whoever else writes."""

import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dai.config import LimitsConfig, QuotaConfig, QuotasConfig
from dai.errors import (
    ConflictError,
    DatabaseUnavailableError,
    LimitError,
    NotFoundError,
    PreconditionError,
    QuotaError,
    TooLargeError,
)
from dai.security.identity import Caller
from dai.service.contexts.contexts import USUAL_SECONDS, Contexts
from dai.service.contexts.memory import _OVERHEAD, Memory, Stored
from dai.service.quotas import Quotas
from dai.service.state.store import Store

XML = "application/xml"
ALICE, BOB, ROOT = Caller("alice"), Caller("bob"), Caller("root", administrator=True)
Opened = Callable[..., Contexts]


def id_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(params=["file", "memory", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    urls = {"file": f"sqlite:///{tmp_path / 'state.db'}", "memory": "sqlite://"}
    return urls.get(request.param) or str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Stores of one service, as several workers have them."""
    closing: list[Callable[[], None]] = []

    def open(url: str, quotas: QuotasConfig | None = None, **limits: Any) -> Contexts:
        store = Store(url, "here")
        contexts = Contexts(store, LimitsConfig(**limits), Quotas(quotas or QuotasConfig(), store).check_contexts)
        closing.extend((store.close, contexts.close))
        return contexts

    yield open
    for close in reversed(closing):
        close()


def at(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """So many seconds later."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)


def test_a_context_is_put_read_and_ended(opened: Opened, url: str) -> None:
    contexts, content = opened(url), b"\x00static\xff" * 100
    stored, new = contexts.put(content, XML, ALICE).result()
    assert new
    assert stored.id == id_of(content)
    contexts.memory.forget("alice", stored.id)
    assert contexts.get(stored.id, ALICE) == stored
    assert contexts.known(stored.id, ALICE) == stored
    again, new = contexts.put(content, XML, ALICE, 10).result()
    assert (again, new) == (stored, False), "a lease never ends earlier"
    assert [(each.id, size) for each, size in contexts.listed(ALICE)] == [(stored.id, len(content))]
    contexts.end(stored.id, ALICE).result()
    assert contexts.known(stored.id, ALICE) is None
    with pytest.raises(NotFoundError):
        contexts.get(stored.id, ALICE)
    with pytest.raises(NotFoundError):
        contexts.end(stored.id, ALICE).result()


def test_a_document_has_versions(opened: Opened, url: str) -> None:
    contexts = opened(url)
    first = contexts.create(b"one", "text/plain", ALICE).result()
    second = contexts.replace(first.id, ALICE, {1}, b"two", XML).result()
    assert (first.version, second.version, second.media_type) == (1, 2, XML)
    with pytest.raises(PreconditionError, match="version 2"):
        contexts.replace(first.id, ALICE, {1, 7}, b"three", XML).result()
    assert contexts.replace(first.id, ALICE, None, b"four", XML).result().version == 3
    assert contexts.get(first.id, ALICE).content == b"four"
    context, _ = contexts.put(b"x", XML, ALICE).result()
    with pytest.raises(ConflictError, match="cannot change"):
        contexts.replace(context.id, ALICE, None, b"y", XML).result()


def test_what_belongs_to_others_is_not_there(opened: Opened, url: str) -> None:
    contexts = opened(url)
    context, _ = contexts.put(b"hers", XML, ALICE).result()
    document = contexts.create(b"hers", XML, ALICE).result()
    for who in (BOB, Caller("Alice"), Caller("alice ")):  # databases compare texts in ways of their own
        for id in (context.id, document.id):
            for work in (
                lambda: contexts.get(id, who),  # noqa: B023
                lambda: contexts.renew(id, who, 10).result(),  # noqa: B023
                lambda: contexts.end(id, who).result(),  # noqa: B023
                lambda: contexts.replace(id, who, None, b"his", XML).result(),  # noqa: B023
            ):
                with pytest.raises(NotFoundError):
                    work()
        assert contexts.listed(who) == []
    # the same bytes are his own context, and end by themselves
    assert contexts.put(b"hers", "text/plain", BOB).result()[1]
    contexts.end(context.id, BOB).result()
    assert contexts.get(context.id, ALICE).media_type == XML
    assert contexts.get(document.id, ROOT).content == b"hers"
    assert {each.owner for each, _ in contexts.listed(ROOT)} == {"alice"}
    contexts.end(context.id, ROOT).result()
    with pytest.raises(NotFoundError):
        contexts.get(context.id, ALICE)


def test_a_lease_ends_and_is_renewed(opened: Opened, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = opened(url, context_seconds=7200.0)
    short, _ = contexts.put(b"short", XML, ALICE, 100).result()
    usual, _ = contexts.put(b"usual", XML, ALICE).result()
    longest, _ = contexts.put(b"longest", XML, ALICE, 1e9).result()
    assert [round(each.expires - each.created) for each in (short, usual, longest)] == [100, USUAL_SECONDS, 7200]
    renewed = contexts.renew(short.id, ALICE, 200).result()
    assert contexts.renew(short.id, ALICE, 1).result().expires == renewed.expires
    at(monkeypatch, 150)
    assert contexts.get(short.id, ALICE).expires == renewed.expires
    at(monkeypatch, 100)
    with pytest.raises(NotFoundError):
        contexts.get(short.id, ALICE)
    assert contexts.put(b"short", "text/plain", ALICE).result()[1], "it may be put again, as another one"
    at(monkeypatch, USUAL_SECONDS)
    contexts.reap()
    assert {each.id for each, _ in contexts.listed(ALICE)} == {longest.id}


def test_parents_live_as_long_as_their_children(opened: Opened, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = opened(url)
    (top, _), (side, _) = (contexts.put(each, XML, ALICE, 10).result() for each in (b"top", b"side"))
    middle, _ = contexts.put(b"middle", XML, ALICE, 100, [top.id, side.id]).result()
    leaf, _ = contexts.put(b"leaf", XML, ALICE, 1000, [middle.id]).result()
    assert middle.parents == tuple(sorted((top.id, side.id)))
    assert contexts.get(leaf.id, ALICE).parents == (middle.id,)
    contexts.renew(leaf.id, ALICE, 2000).result()
    at(monkeypatch, 1500)
    contexts.reap()
    assert len(contexts.listed(ALICE)) == 4
    with pytest.raises(ConflictError, match=f"parent of {leaf.id}"):
        contexts.end(middle.id, ALICE).result()
    for wrong in (["0" * 64], [id_of(b"new")]):
        with pytest.raises(ConflictError, match="which is to be a parent"):
            contexts.put(b"new", XML, ALICE, None, wrong).result()
    with pytest.raises(ConflictError, match="other parents"):
        contexts.put(b"top", XML, ALICE, None, [side.id]).result()
    contexts.end(leaf.id, ALICE).result()
    contexts.end(middle.id, ALICE).result()
    contexts.end(top.id, ALICE).result()


def test_only_so_many_are_above_one(opened: Opened, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease prolongs all of them, and no one else writes meanwhile."""
    monkeypatch.setattr("dai.service.contexts.contexts.MOST_ABOVE", 3)
    contexts = opened(url)
    names = [b"0", b"1", b"2", b"3"]
    for parent, name in zip((None, *names), names, strict=False):
        contexts.put(name, XML, ALICE, None, [] if parent is None else [id_of(parent)]).result()
    for parents in ([b"3"], [b"0", b"3"]):
        with pytest.raises(LimitError, match="ancestors"):
            contexts.put(b"4", XML, ALICE, None, list(map(id_of, parents))).result()
    contexts.put(b"4", XML, ALICE, None, [id_of(b"2")]).result()


def test_what_has_no_room_is_refused_and_changes_nothing(opened: Opened, url: str) -> None:
    quotas = QuotasConfig(every=QuotaConfig(context_bytes=60))
    contexts = opened(url, quotas, contexts_bytes=100, context_bytes=50)
    with pytest.raises(TooLargeError, match="at most 50 bytes"):
        contexts.put(b"a" * 51, XML, ALICE)
    contexts.put(b"a" * 50, XML, ALICE).result()
    document = contexts.create(b"b" * 10, XML, ALICE).result()
    with pytest.raises(QuotaError, match="60 bytes"):
        contexts.put(b"c", XML, ALICE).result()
    with pytest.raises(QuotaError):
        contexts.replace(document.id, ALICE, None, b"b" * 11, XML).result()
    contexts.put(b"d" * 40, XML, BOB).result()
    with pytest.raises(LimitError, match="100 bytes"):
        contexts.create(b"e", XML, BOB).result()
    assert sorted(size for _, size in contexts.listed(ROOT)) == [10, 40, 50]
    contexts.replace(document.id, ALICE, None, b"", XML).result()
    contexts.put(b"f" * 10, XML, BOB).result()


def test_what_has_no_bytes_is_counted(opened: Opened, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dai.service.contexts.contexts.MOST_OF_ONE", 3)
    contexts = opened(url)
    first, *_ = [contexts.create(b"", XML, ALICE).result() for _ in range(3)]
    with pytest.raises(LimitError, match="This owner has 3 contexts and documents"):
        contexts.create(b"", XML, ALICE).result()
    with pytest.raises(LimitError):
        contexts.put(b"", XML, ALICE).result()
    contexts.create(b"", XML, BOB).result()
    contexts.end(first.id, ALICE).result()
    contexts.put(b"", XML, ALICE).result()


def test_two_workers_see_what_the_other_has_written(opened: Opened, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if url == "sqlite://":
        pytest.skip("a database in memory is one process's")
    one, other = opened(url), opened(url)
    stored, _ = one.put(b"x", XML, ALICE).result()
    assert other.get(stored.id, ALICE) == stored
    document = other.create(b"1", XML, ALICE).result()
    assert one.replace(document.id, ALICE, {1}, b"2", XML).result().version == 2
    with pytest.raises(PreconditionError):
        other.replace(document.id, ALICE, {1}, b"3", XML).result()
    one.end(stored.id, ALICE).result()
    assert other.get(stored.id, ALICE) == stored, "from its memory, for a few seconds"
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 6)
    with pytest.raises(NotFoundError):
        other.get(stored.id, ALICE)


def test_many_write_at_once(opened: Opened, url: str) -> None:
    """Of those who replace the same version one succeeds, whichever worker they ask."""
    workers = [opened(url)] if url == "sqlite://" else [opened(url), opened(url)]
    document = workers[0].create(b"0", XML, ALICE).result()
    won: list[int] = []

    def write(worker: Contexts, number: int) -> None:
        worker.put(b"%d" % (number % 5), XML, ALICE).result()
        for version in range(1, 6):
            try:
                worker.replace(document.id, ALICE, {version}, b"%d" % number, XML).result()
            except PreconditionError:
                continue
            won.append(version)

    threads = [threading.Thread(target=write, args=(workers[n % len(workers)], n)) for n in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(won)) == len(won)
    assert workers[0].get(document.id, ALICE).version == 1 + len(won)
    assert sum(not each.version for each, _ in workers[-1].listed(ALICE)) == 5


def test_a_change_that_fails_harms_no_other(opened: Opened, file: str) -> None:
    """Each in one group, and each where the group fails as a whole."""
    contexts = opened(file, context_seconds=1e9)
    waiting = threading.Event()
    contexts._writer.submit(lambda _: waiting.wait(30))
    content = [b"%d" % number for number in range(4)]
    put = [contexts.put(each, XML, ALICE) for each in content]
    refused = contexts.put(b"child", XML, ALICE, None, ["0" * 64])
    broken = contexts._writer.submit(lambda connection: connection.exec_driver_sql("select nothing"))
    late = contexts.put(b"late", XML, ALICE)
    waiting.set()
    assert [each.result()[0].content for each in (*put, late)] == [*content, b"late"]
    with pytest.raises(ConflictError):
        refused.result()
    with pytest.raises(DatabaseUnavailableError):
        broken.result()
    assert len(contexts.listed(ALICE)) == 5


def test_a_change_that_nobody_waits_for_any_more(opened: Opened, file: str) -> None:
    """One that was taken back before it began is not made, and the others are."""
    contexts = opened(file)
    writing, waiting = threading.Event(), threading.Event()
    begun = contexts._writer.submit(lambda _: (writing.set(), waiting.wait(30)))
    assert writing.wait(30)
    taken_back, kept = (contexts.put(each, XML, ALICE) for each in (b"taken back", b"kept"))
    assert taken_back.cancel()
    waiting.set()
    assert begun.result()
    assert kept.result()[1]
    assert contexts.put(b"later", XML, ALICE).result()[1]
    assert {each.id for each, _ in contexts.listed(ALICE)} == {id_of(b"kept"), id_of(b"later")}


def test_what_is_acknowledged_is_on_the_disk(opened: Opened, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite waits for the disk in these transactions, and only in these."""
    contexts = opened(file)

    def level() -> int:
        with contexts._store._database.engine.connect() as connection:
            return int(connection.exec_driver_sql("pragma synchronous").scalar_one())

    within = contexts._writer.submit(lambda c: int(c.exec_driver_sql("pragma synchronous").scalar_one())).result()
    assert (within, level()) == (2, 1)


def test_a_damaged_or_full_state_database_refuses(opened: Opened, file: str) -> None:
    contexts = opened(file)
    with sqlite3.connect(file.removeprefix("sqlite:///")) as connection:
        connection.execute("drop table dai_contexts")
    with pytest.raises(DatabaseUnavailableError):
        contexts.put(b"x", XML, ALICE).result()
    with pytest.raises(DatabaseUnavailableError):
        contexts.get("0" * 64, ALICE)


def test_publishing_again_writes_nothing(opened: Opened, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = opened(file)
    first = contexts.publish(b"static", XML, ALICE)
    assert first is not None
    first.result()
    assert contexts.publish(b"static", XML, ALICE) is None
    assert contexts.publish(b"static", XML, BOB) is not None
    at(monkeypatch, USUAL_SECONDS * 0.6)
    renewed = contexts.publish(b"static", XML, ALICE)
    assert renewed is not None
    assert renewed.result()[0].expires > first.result()[0].expires


def stored(id: str, size: int = 100, expires: float = 1e12) -> Stored:
    return Stored(id, "alice", XML, b"x" * size, 0, 0.0, expires)


def test_the_least_recently_used_leave_the_memory() -> None:
    memory = Memory(3 * (100 + _OVERHEAD))
    for id in "abc":
        memory.put(stored(id))
    assert memory.get("alice", "a") is not None
    memory.put(stored("d"))
    assert [id for id in "abcd" if memory.get("alice", id)] == ["a", "c", "d"]
    memory.put(stored("c", 0))
    memory.put(stored("e", 10_000))  # larger than all of it: nothing leaves for that
    assert [id for id in "acde" if memory.get("alice", id)] == ["a", "c", "d"]
    assert memory.held == 2 * (100 + _OVERHEAD) + _OVERHEAD
    memory.put(stored("f", expires=1.0))
    assert memory.get("alice", "f") is None
    assert memory.get("bob", "a") is None
    memory.forget("alice", "a")
    assert memory.get("alice", "a") is None
    Memory(0).put(stored("a"))


def test_documents_have_parents_and_leases_that_may_end_earlier(
    opened: Opened, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = opened(url)
    above = contexts.create(b"above", XML, ALICE, 1000).result()
    below = contexts.create(b"below", XML, ALICE, 100, [above.id]).result()
    assert below.parents == contexts.get(below.id, ALICE).parents == (above.id,)
    with pytest.raises(ConflictError, match=f"parent of {below.id}"):
        contexts.end(above.id, ALICE).result()
    shorter = contexts.renew(above.id, ALICE, 10, exact=True).result()
    assert shorter.expires == below.expires, "as long as what is below"
    assert contexts.renew(below.id, ALICE, 50, exact=True).result().expires < below.expires
    for wrong in ("0" * 32, "0" * 64):
        with pytest.raises(ConflictError, match="which is to be a parent"):
            contexts.create(b"x", XML, ALICE, None, [wrong]).result()
    with pytest.raises(ConflictError, match="which is to be a parent"):
        contexts.put(b"x", XML, ALICE, None, [above.id]).result()  # what changes is above nothing that does not
    with pytest.raises(ConflictError):
        contexts.create(b"his", XML, BOB, None, [above.id]).result()
    contexts.end(below.id, ALICE).result()
    assert contexts.renew(above.id, ALICE, 10, exact=True).result().expires < below.expires
