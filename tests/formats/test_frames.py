"""Block frames: the static part travels once, every block can be read by itself, and damage is noticed."""

import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.errors import DaiError, DataError, EncodingError, NotFoundError, TruncatedError
from dai.formats import FORMATS, format_named, frames
from dai.formats.frames import (
    MEDIA_TYPE,
    MOST_BLOCKS,
    MOST_STATIC,
    Arriving,
    Asked,
    Frame,
    KnownContexts,
    context_of,
    format_of,
    framed,
    payloads_of,
    pushed,
    read,
    requested,
)
from dai.streams.mailbox import Mailbox
from dai.streams.spool import Spool
from dai.streams.stream import Block, ByteStream, Stream
from tests.formats.tables import every_type, same, tables
from tests.interop.java import java

FRAMED = [name for name, each in FORMATS.items() if each.tail is not None]
TEXTS = pa.table({"name": ["a", "b & c", "d", None, "e"], "number": [1, 2, None, 4, 5]})


@pytest.fixture(params=FRAMED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def blocks_of(name: str, table: pa.Table, rows: int | None = 2, **options: Any) -> list[Block]:
    return list(format_named(name).encode(Stream.of(table), rows, **options))


def static_of(blocks: list[Block]) -> bytes:
    return blocks[0].static


def frames_of(blocks: list[Block], *, whole: bool = False, compressed: bool = False) -> list[Frame]:
    static = static_of(blocks)
    return [
        framed(context_of(static), "session", number, each, static, whole=whole, compressed=compressed)
        for number, each in enumerate(blocks)
    ]


def test_the_formats_whose_static_part_travels_once() -> None:
    assert FRAMED == ["arrow", "webrowset"]


@pytest.mark.parametrize("options", [{}, {"pieces": True}])
def test_blocks_say_where_the_static_part_and_the_end_are(name: str, options: dict[str, Any]) -> None:
    for table in (TEXTS, TEXTS.slice(0, 0), TEXTS.slice(0, 1)):
        blocks = blocks_of(name, table, **options)
        document = b"".join(memoryview(each.data) for each in blocks)
        payloads = b"".join(each.payload for each in blocks)
        tail = format_named(name).tail or b""
        assert document == static_of(blocks) + payloads + tail
        assert [each.head > 0 for each in blocks] == [True] + [False] * (len(blocks) - 1)
        assert [each.tail for each in blocks] == [0] * (len(blocks) - 1) + [len(tail)]
        assert format_of(static_of(blocks)).name == name


def test_a_stream_has_one_static_part_whatever_its_rows(name: str) -> None:
    assert static_of(blocks_of(name, TEXTS)) == static_of(blocks_of(name, TEXTS.slice(3)))


def test_compressed_arrow_has_the_static_part_of_its_schema() -> None:
    plain, compressed = blocks_of("arrow", TEXTS), blocks_of("arrow", TEXTS, compression="zstd")
    assert static_of(plain) == static_of(compressed)
    document = static_of(compressed) + b"".join(each.payload for each in compressed)
    assert pa.ipc.open_stream(document).read_all().equals(TEXTS)


@given(tables(), st.integers(1, 5), st.booleans())
def test_frames_come_back(table: pa.Table, rows: int, compressed: bool) -> None:
    for name in FRAMED:
        try:
            blocks = blocks_of(name, table, rows)
        except EncodingError:
            continue
        contexts = KnownContexts()
        contexts.learn(context_of(static_of(blocks)), static_of(blocks))
        sent = b"".join(bytes(each) for each in frames_of(blocks, compressed=compressed))
        received = list(read(sent))
        assert [(each.number, each.rows, each.session) for each in received] == [
            (number, each.rows, "session") for number, each in enumerate(blocks)
        ]
        assert [bytes(contexts.tuples(each)) for each in received] == [bytes(each.payload) for each in blocks]
        parts = [format_named(name).decode([contexts.document(each)]).table() for each in received]
        assert same(pa.concat_tables(parts), table)


def test_a_whole_document_teaches_its_context(name: str) -> None:
    blocks = blocks_of(name, TEXTS)
    for frame in frames_of(blocks, whole=True)[::-1]:  # whichever comes first
        contexts = KnownContexts()
        (received,) = read(bytes(frame))
        assert bytes(received.payload) == contexts.document(received)
        assert contexts.static(received) == static_of(blocks)
        (other,) = read(bytes(frames_of(blocks)[0]))
        assert bytes(contexts.tuples(other)) == bytes(blocks[0].payload)


def test_a_payload_without_its_context(name: str) -> None:
    frame = frames_of(blocks_of(name, TEXTS))[0]
    with pytest.raises(NotFoundError, match=frame.context):
        KnownContexts().tuples(frame)
    with pytest.raises(DataError, match="hash does not match"):
        KnownContexts().learn(frame.context, b"something else")


@given(st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    """Whichever bit is another, and wherever a body ends."""
    sent = bytes(frames_of(blocks_of("webrowset", TEXTS), compressed=True)[1])
    at, bit = data.draw(st.integers(0, len(sent) - 1)), data.draw(st.integers(0, 7))
    with pytest.raises((DataError, TruncatedError)):
        list(read(sent[:at] + bytes([sent[at] ^ 1 << bit]) + sent[at + 1 :]))
    with pytest.raises(TruncatedError):
        list(read(sent + sent[: at or 1]))


@given(st.data())
def test_frames_arrive_in_pieces(data: st.DataObject) -> None:
    """However a body is cut, each frame comes with the piece that completes it."""
    sent = [*frames_of(blocks_of("webrowset", TEXTS), compressed=data.draw(st.booleans()))]
    sent.append(Frame(sent[0].context, "s", len(sent), data.draw(st.integers(0, 1)), b"", end=True))
    body = b"".join(map(bytes, sent))
    ends = list(accumulate(len(bytes(each)) for each in sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    arriving, received = Arriving(), []
    for begin, end in pairwise([0, *cuts, len(body)]):
        received += [replace(each, payload=bytes(each.payload)) for each in arriving.add(body[begin:end])]
        assert len(received) == sum(each <= end for each in ends)
        if end in (0, *ends):
            arriving.finish()
        else:
            with pytest.raises(TruncatedError):
                arriving.finish()
    assert received == [replace(each, payload=bytes(each.payload)) for each in sent]


@given(st.binary(max_size=200), st.sampled_from([b"", b"DAIB", b"DAIB\x01\x00"]))
def test_anything_else_is_refused(data: bytes, begin: bytes) -> None:
    contexts = KnownContexts()
    try:
        for each in read(begin + data):
            contexts.tuples(each)
    except DaiError:
        return
    assert not begin + data


@pytest.mark.parametrize(
    "wrong",
    [
        {"static": 10**6},
        {"static": 5, "compressed": True},
        {"static": 5},
        {"compressed": True},
        {"payload": b"x", "static": 1},
        {"payload": b"x", "end": True},
    ],
)
def test_a_frame_that_contradicts_itself(wrong: dict[str, Any]) -> None:
    blocks = blocks_of("arrow", TEXTS)
    contexts = KnownContexts()
    contexts.learn(context_of(static_of(blocks)), static_of(blocks))
    sent = bytes(replace(frames_of(blocks)[0], **wrong))
    with pytest.raises(DataError):
        [contexts.tuples(each) for each in read(sent)]


def test_pyarrow_reads_a_stored_schema_followed_by_payloads() -> None:
    blocks = blocks_of("arrow", every_type(), 1)
    stored = static_of(blocks)
    received = read(b"".join(bytes(each) for each in frames_of(blocks)[1:]))  # a late joiner
    schema = pa.ipc.read_schema(pa.py_buffer(stored))
    batches = [pa.ipc.read_record_batch(pa.py_buffer(bytes(each.payload)), schema) for each in received]
    whole = pa.ipc.open_stream(stored + b"".join(each.payload for each in blocks)).read_all()
    assert same(pa.Table.from_batches(batches), whole.slice(1))


def test_the_jdk_reads_a_block_with_its_context(tmp_path: Path) -> None:
    blocks = blocks_of("webrowset", TEXTS)
    contexts = KnownContexts()
    contexts.learn(context_of(static_of(blocks)), static_of(blocks))
    (frame,) = read(bytes(frames_of(blocks, compressed=True)[1]))
    (tmp_path / "block.xml").write_bytes(contexts.document(frame))
    lines = java("ReadWebRowSet", tmp_path / "block.xml", zone="UTC").split("\n")
    rows = [line.split("\x1f")[1:] for line in lines if line.startswith("row\x1f")]
    assert rows == [["d", "\0"], ["\0", "4"]]


def test_zstd_reads_a_compressed_block_with_the_context_as_its_dictionary(name: str, tmp_path: Path) -> None:
    blocks = blocks_of(name, TEXTS)
    frame = frames_of(blocks, compressed=True)[1]
    (tmp_path / "context").write_bytes(static_of(blocks))
    (tmp_path / "block.zst").write_bytes(frame.payload)
    command = ["zstd", "-q", "-d", "-D", tmp_path / "context", tmp_path / "block.zst", "-o", tmp_path / "block"]
    subprocess.run(command, check=True, timeout=60)
    assert (tmp_path / "block").read_bytes() == bytes(blocks[1].payload)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("*/*", None),
        ("application/vnd.webrowset+xml", None),
        (MEDIA_TYPE, (Asked(), 1.0)),
        (f"{MEDIA_TYPE};q=0.5, */*", (Asked(), 0.5)),
        (f"*/*;q=0.1,{MEDIA_TYPE} ; Context={'0a' * 32}", (Asked("0a" * 32), 1.0)),
        (f"{MEDIA_TYPE};context={'0A' * 32};compression=ZSTD", (Asked("0a" * 32, True), 1.0)),
        (f"{MEDIA_TYPE};context=0a;compression=br", (Asked(), 1.0)),
        (str(Asked("0a" * 32, True)), (Asked("0a" * 32, True), 1.0)),
        (str(Asked("0a" * 32, True, True)), (Asked("0a" * 32, True, True), 1.0)),
        (f"{MEDIA_TYPE};flow=false", (Asked(), 1.0)),
    ],
)
def test_what_accept_says_of_frames(accept: str, wanted: tuple[Asked, float] | None) -> None:
    assert requested(accept) == wanted


def test_streams_keep_what_is_static() -> None:
    """Joined to larger blocks, on disk, and in a mailbox."""
    blocks = blocks_of("arrow", TEXTS)

    def raw() -> Iterator[Block]:
        yield from blocks

    joined = list(ByteStream("application/vnd.apache.arrow.stream", raw()).reblock(4))
    assert [(each.head, each.tail) for each in joined] == [(blocks[0].head, 0), (0, 8)]
    spilled = Spool(None, "blocks").write(blocks[0])
    again = spilled.read()
    spilled.release()
    assert isinstance(again, Block)
    assert (again.static, bytes(again.payload)) == (blocks[0].static, bytes(blocks[0].payload))
    mailbox = Mailbox()
    mailbox.offer(0, blocks[0])
    mailbox.offer(1, blocks[1])
    mailbox.poll(1)
    assert mailbox.static == blocks[0].static


def test_a_large_static_part_stays_with_its_document() -> None:
    static = pa.schema([("i", pa.int64())], metadata={"m": "x" * MOST_STATIC}).serialize().to_pybytes()
    assert pushed(Block(static + b"rows", 1, len(static)), 0, static) is None
    frame = Frame(context_of(static), "", 0, 1, static + bytes(8), len(static))
    with pytest.raises(DataError, match="The context of a stream can have at most 1,048,576 bytes"):
        payloads_of(bytes(frame), b"", 0, 1 << 30)


def test_a_body_pushes_few_blocks() -> None:
    blocks = blocks_of("arrow", TEXTS)
    static = static_of(blocks)
    first = framed(context_of(static), "", 0, blocks[0], static, whole=True, compressed=False)
    others = [Frame(context_of(static), "", number, 0, b"") for number in range(1, MOST_BLOCKS + 1)]
    assert len(payloads_of(b"".join(map(bytes, (first, *others[:-1]))), b"", 0, 1 << 30)[0]) == MOST_BLOCKS
    with pytest.raises(DataError, match="A request can push at most 1,000 blocks"):
        payloads_of(b"".join(map(bytes, (first, *others))), b"", 0, 1 << 30)


def test_large_dictionaries_and_long_headers_are_not_remembered() -> None:
    before = frames._remembered.cache_info().currsize, frames._parse_accept.cache_info().currsize
    static = secrets.token_bytes(1 << 17)
    frames.dictionary_coded(b"rows", static)
    assert frames.requested(f"{MEDIA_TYPE};context={'0' * 64},{secrets.token_hex(1000)}") == (Asked("0" * 64), 1.0)
    assert (frames._remembered.cache_info().currsize, frames._parse_accept.cache_info().currsize) == before
