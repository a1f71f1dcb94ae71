"""Feeds: what is published once reaches all who follow, whole, in order and once; what is lost is told."""

import asyncio
import contextlib
import http.client
import itertools
import resource
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from dai.api.blocks import following as following_blocks
from dai.api.server.serve import Background, background
from dai.client import Event, Options, Service
from dai.errors import ConflictError, TruncatedError, UnauthenticatedError
from dai.formats import format_named
from dai.formats.frames import MEDIA_TYPE, Arriving, Asked, Frame, context_of, framed, read
from dai.security.identity.tokens import new
from dai.service.feeds import Feed
from dai.streams.stream import Block, Stream
from dai.streams.tally import Tally
from tests.api.conftest import Serve, configured
from tests.processes import ServiceProcess, until

JSON = {"Content-Type": "application/json"}
EVENTS = {"Accept": "text/event-stream"}
TABLE = pa.table({"i": range(250), "s": [f"number {i}" for i in range(250)]})


def numbered(client: httpx.Client, count: int, **keeps: Any) -> str:
    """The path of a feed in which so many messages were published."""
    path: str = client.post("/feeds", json=keeps).headers["location"]
    for number in range(count):
        answer = client.put(f"{path}/blocks/{number}", json={"n": number})
        assert answer.json()["next"] == number + 1
    return path


@pytest.mark.parametrize("format", ["webrowset", "arrow"])
@pytest.mark.parametrize("compression", ["identity", "zstd"])
def test_tuples_reach_who_follows_and_who_joins_late(shared: Background, format: str, compression: str) -> None:
    service = Service(shared.url, Options(compression=compression))
    feed, early = service.feed(), list[Event]()
    following = threading.Thread(target=lambda: early.extend(service.feed(feed.id).follow()))
    following.start()
    until(lambda: feed.properties["followers"])
    feed.publish(TABLE, format=format, blocksize=100)
    feed.publish(TABLE.slice(0, 10), format=format, last=True)
    following.join()
    late = list(service.feed(feed.id).follow("first"))
    for events in (early, late):
        assert [(each.number, each.rows, each.lost) for each in events] == [
            (0, 100, 0), (1, 100, 0), (2, 50, 0), (3, 10, 0),
        ]  # fmt: skip
        assert pa.concat_tables([each.table() for each in events[:3]]).to_pydict() == TABLE.to_pydict()
    with pytest.raises(ConflictError, match="another schema"):
        feed.publish(pa.table({"j": [1]}), format=format)


def test_single_blocks_in_each_form(client: httpx.Client, shared: Background) -> None:
    feed = Service(shared.url).feed()
    feed.publish(TABLE, blocksize=100)
    path = f"/feeds/{feed.id}"
    context = client.get(path).json()["context"]
    plain = client.get(f"{path}/blocks/1?count=2")
    assert (plain.headers["content-type"], plain.headers["x-dai-blocks"], plain.headers["x-block-rows"]) == (
        "application/vnd.webrowset+xml", "2", "150",
    )  # fmt: skip
    assert format_named("webrowset").decode([plain.content]).table().num_rows == 150, "a document by itself"
    for asked, static in (
        (Asked(), True),
        (Asked("0" * 64), True),
        (Asked(context), False),
        (Asked(context, True), False),
    ):
        (frame,) = read(client.get(f"{path}/blocks/1", headers={"Accept": str(asked)}).content)
        assert (bool(frame.static), frame.compressed, frame.number, frame.rows) == (static, asked.compressed, 1, 100)
        assert frame.context == context
    assert client.get(f"{path}/blocks/3").status_code == 202
    assert client.get(f"{path}/blocks/4").status_code == 409
    feed.end()
    assert client.get(f"{path}/blocks/3").status_code == 204
    assert client.get(f"{path}/blocks/2").headers["x-block-last"] == "true"
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404


def test_producers_count_for_themselves_and_may_repeat_themselves(client: httpx.Client) -> None:
    path = client.post("/feeds", json={}).headers["location"]

    def put(producer: str, number: int, **options: Any) -> httpx.Response:
        query = {"producer": producer, **options}
        return client.put(f"{path}/blocks/{number}", params=query, json=[producer, number])

    for producer, number, following in (("a", 0, 1), ("b", 0, 2), ("a", 0, 2), ("a", 1, 3), ("b", 0, 3), ("b", 1, 4)):
        assert put(producer, number).json() == {"first": 0, "next": following}
    ahead = put("a", 4)
    assert (ahead.status_code, ahead.json()["expected"]) == (409, 2)
    assert (
        client.put(f"{path}/blocks/2?producer=a", content="x", headers={"Content-Type": "text/csv"}).status_code == 409
    )
    assert put("a", 2, last="true").json()["next"] == 5
    assert put("a", 2, last="true").json()["next"] == 5, "the reply was lost"
    assert put("b", 2).status_code == 409, "the feed has ended"
    followed = [each.json() for each in Service(str(client.base_url)).feed(path.rpartition("/")[2]).follow("first")]
    assert followed == [["a", 0], ["b", 0], ["a", 1], ["b", 1], ["a", 2]]


@pytest.mark.parametrize("body", [b"", b"no frame", b"DAIB" + bytes(64)])
def test_what_is_no_frame_is_refused(client: httpx.Client, body: bytes) -> None:
    path = client.post("/feeds", json={}).headers["location"]
    answer = client.put(f"{path}/blocks/0", content=body, headers={"Content-Type": MEDIA_TYPE})
    assert answer.status_code == (200 if not body else 502 if body == b"no frame" else 400), answer.text
    assert client.get(path).json()["next"] == 0


def test_tuples_without_a_context_and_frames_of_other_numbers_are_refused(client: httpx.Client) -> None:
    path = client.post("/feeds", json={}).headers["location"]
    blocks = list(format_named("webrowset").encode(Stream.of(TABLE), 100))
    static = blocks[0].static
    frame = bytes(framed(context_of(static), "", 0, blocks[1], static, whole=False, compressed=False))
    answer = client.put(f"{path}/blocks/0", content=frame, headers={"Content-Type": MEDIA_TYPE})
    assert (answer.status_code, "not that of the stream" in answer.text) == (400, True)
    most = 16 << 20
    large = Block(bytes(most + 1), 1)
    empty = context_of(b"")
    frame = bytes(framed(empty, "", 0, large, b"", whole=False, compressed=True))
    answer = client.put(f"{path}/blocks/0", content=frame, headers={"Content-Type": MEDIA_TYPE})
    assert (answer.status_code, len(frame) < 10_000) == (400, True), "small only as long as it is compressed"
    whole = bytes(framed(context_of(static), "", 1, blocks[1], static, whole=True, compressed=False))
    assert client.put(f"{path}/blocks/0", content=whole, headers={"Content-Type": MEDIA_TYPE}).status_code == 400


def test_who_comes_too_late_is_told_what_was_lost(client: httpx.Client, shared: Background) -> None:
    path = numbered(client, 7, blocks=3)
    lost = client.get(f"{path}/blocks/1")
    assert (lost.status_code, lost.json()["lost"], lost.json()["first"]) == (410, 3, 4)
    assert client.get(f"{path}/blocks/4?count=9").text == '{"n":4}{"n":5}{"n":6}'
    client.put(f"{path}/blocks/7?last=true")
    events = Service(shared.url).feed(path.rpartition("/")[2]).follow(1)
    assert [(each.number, each.lost) for each in events] == [(4, 3), (5, 0), (6, 0)]
    said = client.get(f"{path}/blocks?start=1", headers=EVENTS).text.split("\n\n")
    assert said[1:] == [
        'id: 3\nevent: lost\ndata: {"from":1,"lost":3}',
        *(f'id: {n}\ndata: {{"n":{n}}}' for n in (4, 5, 6)),
        "event: end\ndata:",
        "",
    ]
    again = client.get(f"{path}/blocks?start=first", headers={**EVENTS, "Last-Event-ID": "5"}).text
    assert [line for line in again.splitlines() if line.startswith("id")] == ["id: 6"]


def test_a_feed_keeps_no_more_than_its_bounds(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    running = serve(limits={"feeds": 3, "feed_bytes": 10_000, "feeds_bytes": 15_000}, quotas={"feeds": 2})
    with httpx.Client(base_url=running.url) as client:
        first, second = numbered(client, 9, bytes=1 << 30), numbered(client, 0)
        assert client.get(first).json()["keeps"]["bytes"] == 10_000
        third = client.post("/feeds", json={})
        assert (third.status_code, third.json()["quota"]) == (429, "feeds")
        block = b"x" * 1900  # needs 4,000
        for path, kept in ((first, 2), (second, 1)):
            number = client.get(path).json()["next"]
            for each in range(number, number + 4):
                answer = client.put(f"{path}/blocks/{each}", content=block, headers=JSON)
                assert answer.status_code == 200
            assert answer.json()["next"] - answer.json()["first"] == kept, "the others of them have the room"
        large = client.put(f"{first}/blocks/13", content=b"x" * 5000, headers=JSON)
        assert large.status_code == 413
        feeds = running.service.feeds
        assert feeds.held.total == sum(each.held for each in feeds.all()) <= 15_000
        now = time_of(feeds.all()[0]) + 3601
        monkeypatch.setattr("dai.service.feeds.time.time", lambda: now)
        assert client.get(f"{first}/blocks/12").status_code == 410, "older than it keeps them"
        monkeypatch.setattr("dai.service.feeds.time.monotonic", lambda: now)
        feeds.reap()
        assert client.get(first).status_code == 404
        assert (feeds.held.total, feeds.all()) == (0, [])


def time_of(feed: Any) -> float:
    return float(feed._blocks[-1].time)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory, book: str) -> Iterator[dict[str, httpx.Client]]:
    config = configured(tmp_path_factory.mktemp("people"), {"book": {"url": book}}, identity={"methods": ["token"]})
    with background(config) as running:
        clients = {}
        for name, groups in {"alice": (), "bob": ("staff",), "carol": (), "root": ()}.items():
            token, stored = new(name, 3600, groups=groups, administrator=name == "root")
            running.service.store.add_token(stored)
            headers = {"Authorization": f"Bearer {token}"}
            clients[name] = httpx.Client(base_url=running.url, headers=headers, timeout=60)
        yield clients
        for each in clients.values():
            each.close()


@pytest.mark.parametrize(
    ("readers", "writers", "reads", "writes"),
    [
        ([], [], "alice root", "alice root"),
        (["group:staff"], [], "alice root bob", "alice root"),
        (["bob"], ["carol"], "alice root bob carol", "alice root carol"),
        (["*"], ["group:staff"], "alice root bob carol", "alice root bob"),
    ],
)
def test_owners_readers_and_writers(
    people: dict[str, httpx.Client], readers: list[str], writers: list[str], reads: str, writes: str
) -> None:
    feed = {"readers": readers, "writers": writers}
    path = people["alice"].post("/feeds", json=feed).headers["location"]
    for name, client in people.items():
        may = 200 if name in reads.split() else 404
        assert client.get(path).status_code == may
        assert client.get(f"{path}/blocks/0").status_code == (202 if may == 200 else 404)
        listed = path.rpartition("/")[2] in [each["id"] for each in client.get("/feeds").json()["feeds"]]
        assert listed is (may == 200)
    for name, client in people.items():
        put = client.put(f"{path}/blocks/0?producer={name}", json=name).status_code
        assert put == (200 if name in writes.split() else 403 if name in reads.split() else 404)
        if name not in ("alice", "root"):
            assert client.delete(path).status_code == (403 if name in reads.split() else 404)
    assert people["root"].get(path).json()["next"] == len(writes.split())
    assert people["root"].delete(path).status_code == 204


def test_who_follows_is_asked_again_who_it_is(tmp_path: Path, book: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_blocks, "FOLLOWED_SECONDS", 0.5)
    identity = {"methods": ["token"], "kept_seconds": 0.0}
    with background(configured(tmp_path, {"book": {"url": book}}, identity=identity)) as running:
        token, stored = new("alice", 3600)
        running.service.store.add_token(stored)
        alice = Service(running.url, Options(token=token, retries=0, read=60.0))
        feed = alice.feed()
        feed.publish([b"0", b"1"])
        events = alice.feed(feed.id).follow("first")
        assert [next(events).data for _ in range(2)] == [b"0", b"1"]
        assert running.service.store.remove_token(stored.id)
        with pytest.raises((UnauthenticatedError, TruncatedError)):
            next(events)
        with pytest.raises(UnauthenticatedError):
            next(alice.feed(feed.id).follow("first"))


def test_who_follows_goes_on_after_that_time(shared: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_blocks, "FOLLOWED_SECONDS", 0.1)
    connections, call = list[object](), following_blocks.Following.__call__

    async def counted(self: following_blocks.Following, *arguments: Any) -> None:
        connections.append(self)
        await call(self, *arguments)

    monkeypatch.setattr(following_blocks.Following, "__call__", counted)
    feed, numbers = Service(shared.url).feed(), list[int]()
    feed.publish([b"0"])

    def follow() -> None:
        numbers.extend(each.number for each in Service(shared.url).feed(feed.id).follow("first"))

    reader = threading.Thread(target=follow)
    reader.start()
    until(lambda: len(connections) > 2)
    feed.publish([b"1"], last=True)
    reader.join()
    assert numbers == [0, 1]


def test_a_stuck_reader_of_small_blocks_is_told_what_it_lost(client: httpx.Client, shared: Background) -> None:
    path = numbered(client, 0, blocks=4)
    with followed(shared.url, path, receives=4096) as stuck:
        until(lambda: client.get(path).json()["followers"] == 1)
        for number in range(100):  # more than the connection takes
            client.put(f"{path}/blocks/{number}", content=b"%010d" % number * 1000, headers=JSON)
        client.put(f"{path}/blocks/100?last=true")
        at, told = 0, 0
        for frame in frames_of(stuck):
            assert frame.number == at
            at += frame.rows if frame.lost else 1
            told += frame.rows if frame.lost else 0
            assert frame.lost or bytes(frame.payload) == b"%010d" % frame.number * 1000
    assert at == 100
    assert told > 0


def test_a_block_that_is_dropped_before_all_of_it_was_read_breaks_the_connection_off(
    client: httpx.Client, shared: Background
) -> None:
    path = numbered(client, 0, blocks=2)
    with followed(shared.url, path, receives=4096) as stuck:
        until(lambda: client.get(path).json()["followers"] == 1)
        for number in range(5):
            client.put(f"{path}/blocks/{number}", content=b"%010d" % number * 50_000, headers=JSON)
        until(lambda: client.get(path).json()["followers"] == 0)
        with pytest.raises((TruncatedError, ConnectionError)):
            list(frames_of(stuck))
    assert client.get(f"{path}/blocks/0").json()["first"] == 3, "who comes again is told"


def followed(url: str, path: str, receives: int | None = None) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    if receives is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
    connection.settimeout(60)
    connection.connect((host, int(port)))
    connection.sendall(request(path))
    return connection


def request(path: str, start: int | str = "next") -> bytes:
    head = f"GET {path}/blocks?start={start} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {MEDIA_TYPE}\r\n\r\n"
    return head.encode()


def frames_of(connection: socket.socket) -> Iterator[Frame]:
    """Until the body ends; TruncatedError where the connection ends before it."""
    answer, arriving = http.client.HTTPResponse(connection), Arriving()
    answer.begin()
    try:
        while piece := answer.read1():
            yield from arriving.add(piece)
    except http.client.IncompleteRead as error:
        raise TruncatedError from error
    arriving.finish()


KINDS = ("early", "late", "lags", "vanishes")
CONSUMERS, BLOCKS, BURST, KEPT, SIZE = 1000, 60, 5, 20, 4000
Seen = list[tuple[int, int]]
"""Numbers of blocks, and how many were lost before each."""


@dataclass
class Publishing:
    """How many blocks there are."""

    url: str
    path: str
    count: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def reached(self, count: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.count >= count)

    async def connected(
        self, start: int | str, receives: int | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket.socket()
        connection.setblocking(False)
        if receives is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        host, port = self.url.removeprefix("http://").split(":")
        await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=connection, limit=receives or 1 << 16)
        writer.write(request(self.path, start))
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer


async def consumer(feed: Publishing, kind: str) -> Seen:
    """One is ``early``; one joins ``late``, from the first block that is kept; one ``lags``: does not read for a while;
    one ``vanishes`` and comes again. Where the service breaks the connection off, each comes again."""
    seen: Seen = []
    start: int | str = 0
    lost, away = 0, False
    if kind == "late":
        await feed.reached(BLOCKS // 2)
        start = "first"
    while True:
        reader, writer = await feed.connected(start, 4096 if kind == "lags" else None)
        arriving = Arriving()
        with contextlib.suppress(asyncio.IncompleteReadError):
            while size := int((await reader.readuntil(b"\r\n")), 16):
                for frame in arriving.add((await reader.readexactly(size + 2))[:-2]):
                    assert start in ("first", frame.number)
                    start = frame.number + (frame.rows if frame.lost else 1)
                    if frame.lost:
                        lost += frame.rows
                    else:
                        assert bytes(frame.payload) == content(frame.number)
                        seen.append((frame.number, lost))
                        lost = 0
                if not away and kind == "lags" and seen:
                    away = True
                    await feed.reached(BLOCKS)
                if not away and kind == "vanishes" and len(seen) >= 10:
                    away = True
                    writer.transport.abort()
                    assert isinstance(start, int)
                    await feed.reached(min(BLOCKS, start + KEPT + 5))
                    break
            else:
                arriving.finish()
                writer.close()
                return seen


def content(number: int) -> bytes:
    return b"%010d" % number * (SIZE // 10)


def test_a_thousand_consumers_of_one_feed(tmp_path: Path, book: str) -> None:
    """They join late, lag and vanish. The producer waits for nobody, what the service holds is bounded, and each gets
    every block whole, in order and once, or is told how many it lost."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 16), hard))
    process = ServiceProcess(tmp_path, {"book": book}, workers=1).start()

    async def run() -> tuple[list[Seen], int]:
        async with httpx.AsyncClient(base_url=process.url, timeout=90) as client:
            path = (await client.post("/feeds", json={"blocks": KEPT})).headers["location"]
            feed, memory = Publishing(process.url, path), process.processes()[0].memory_info
            before = most = memory().rss
            consumers = [asyncio.create_task(consumer(feed, KINDS[each % 4])) for each in range(CONSUMERS)]
            while (await client.get(path)).json()["followers"] < CONSUMERS * 3 // 4:
                await asyncio.sleep(0.05)
            for number in range(BLOCKS):
                put = await client.put(f"{path}/blocks/{number}", content=content(number), headers=JSON)
                assert put.status_code == 200
                if (number + 1) % BURST == 0:
                    async with feed.changed:
                        feed.count = number + 1
                        feed.changed.notify_all()
                    most = max(most, memory().rss)
            await client.put(f"{path}/blocks/{BLOCKS}?last=true")
            return await asyncio.gather(*consumers), most - before

    try:
        seen, grown = asyncio.run(run())
    finally:
        process.kill()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    told = dict.fromkeys(KINDS, 0)
    for number, each in enumerate(seen):
        kind = KINDS[number % 4]
        assert kind == "late" or each[0][0] == each[0][1], "what was lost before the first block was told, too"
        assert each[-1][0] == BLOCKS - 1
        assert all(after == before + 1 + lost for (before, _), (after, lost) in itertools.pairwise(each))
        told[kind] += sum(lost for _, lost in each)
    assert told["lags"] > 0
    assert told["vanishes"] > 0
    assert grown < 150 << 20, f"{grown:,} bytes for {CONSUMERS} consumers"


def test_many_blocks_at_once_have_one_context(client: httpx.Client, shared: Background) -> None:
    """Before, each had all of it: a thousand blocks with a context of megabytes were an answer of gigabytes."""
    feed = Service(shared.url).feed()
    feed.publish(TABLE, blocksize=50)
    answer = client.get(f"/feeds/{feed.id}/blocks/1?count=3", headers={"Accept": str(Asked())})
    assert [(each.number, each.static > 0) for each in read(answer.content)] == [(1, True), (2, False), (3, False)]


@pytest.mark.parametrize("text", ["", "\n", "a", "a\r\nb\rc\n\nd\n", "\n" * 40_000, "\r\n" * 40_001, "x\r" * 40_000])
def test_events_are_made_as_they_leave(text: str) -> None:
    """Before, each reader had them whole: eight megabytes of lines became 56 for each, at once."""
    feed = Feed("f", "", (), (), 10, 1 << 20, 60, "", Tally(), 1 << 20)
    feed.publish("", 0, [(text.encode(), 0)], "text/plain")
    parts = list(following_blocks._event(feed, feed.since(0, 1).blocks[0], False))
    assert b"".join(parts) == b"id: 0\ndata: " + b"\ndata: ".join(text.encode().splitlines()) + b"\n\n"
    assert max(map(len, parts)) <= 8 * following_blocks.PIECE


def test_who_follows_has_no_copy_of_a_block() -> None:
    feed = Feed("f", "", (), (), 10, 1 << 22, 60, "", Tally(), 1 << 22)
    (block,) = format_named("arrow").encode(Stream.of(pa.table({"s": ["x" * 1_000_000]})), None)
    feed.publish("", 0, [(bytes(block.payload), 1)], "application/vnd.apache.arrow.stream", block.static)
    published = feed.since(0, 1).blocks[0]
    whole = feed.whole(published)
    assert [bytes(each.payload) for each in read(b"".join(whole))] == [feed.document([published])]
    assert any(isinstance(each, memoryview) and each.obj is published.payload.obj for each in whole)
