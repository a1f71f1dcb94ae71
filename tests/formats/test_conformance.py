"""What every format of the table promises. A new format is tested by being in the table."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from dai.errors import DaiError, DataError, EncodingError, TruncatedError
from dai.formats import FORMATS, Format, form_of, format_named, recognised, suffixes
from dai.streams.stream import Block, Stream
from tests.formats.tables import EVERY_TYPE, every_type, mixed, same, tables
from tests.thoroughness import examples

WITHOUT_TYPES = {"csv", "json", "json-array"}
"""Formats whose documents do not say what their columns are; ``decode`` takes the schema."""
WITHOUT_END = {"csv", "json"}
"""Formats whose documents do not say where they end: the transport must."""
WITHOUT_CONTROLS = {"webrowset", "votable"}
"""Formats that refuse a text with a character that XML 1.0 forbids."""
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


@pytest.fixture(params=list(FORMATS))
def format(request: pytest.FixtureRequest) -> Format:
    return format_named(request.param)


def decoded(format: Format, chunks: Iterable[bytes], schema: pa.Schema) -> Stream:
    options: dict[str, Any] = {"schema": schema} if format.name in WITHOUT_TYPES else {}
    return format.decode(chunks, **options)


def read(format: Format, chunks: Iterable[bytes], schema: pa.Schema) -> pa.Table:
    return decoded(format, chunks, schema).table()


def document(format: Format, table: pa.Table, blocksize: int | None = None, **options: Any) -> bytes:
    return b"".join(memoryview(block.data) for block in format.encode(Stream.of(table), blocksize, **options))


def through(format: Format, table: pa.Table) -> pa.Table:
    return read(format, [document(format, table)], table.schema)


def comes_back(format: Format, table: pa.Table) -> None:
    """The identity, or a refusal where the format cannot carry a text."""
    texts = (text for column in table.columns for value in column.to_pylist() for text in strings_in(value))
    if format.name in WITHOUT_CONTROLS and any(FORBIDDEN.search(text) for text in texts):
        with pytest.raises(EncodingError, match="XML cannot carry the character"):
            through(format, table)
    else:
        assert same(through(format, table), table)


def strings_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from strings_in(each)


def test_the_table_says_what_it_is(format: Format) -> None:
    assert FORMATS[format.name] is format
    assert form_of(format.media_type) == format.name
    assert {suffixes()[each] for each in format.suffixes} <= {format.name}
    assert type(format.codec).__doc__


def test_the_first_bytes_say_what_it_is(format: Format) -> None:
    assert recognised(document(format, pa.table({"a": [1]}))) == format.name


@pytest.mark.parametrize("type_", EVERY_TYPE)
def test_every_type_comes_back(format: Format, type_: str) -> None:
    comes_back(format, every_type().select([type_]))


def test_all_types_side_by_side_come_back(format: Format) -> None:
    table = every_type()
    comes_back(format, table.drop_columns(["control"]) if format.name in WITHOUT_CONTROLS else table)


@settings(max_examples=examples(30))
@given(table=tables())
@pytest.mark.parametrize("name", list(FORMATS))
def test_any_table_comes_back(name: str, table: pa.Table) -> None:
    comes_back(format_named(name), table)


def test_an_empty_result_is_one_block_and_a_whole_document(format: Format) -> None:
    empty = every_type().schema.empty_table()
    for batches in ([], empty.to_batches(), [pa.RecordBatch.from_pylist([], empty.schema)] * 2):
        blocks = list(format.encode(Stream(empty.schema, batches), 100))
        assert [block.rows for block in blocks] == [0]
        assert same(read(format, [bytes(blocks[0].data)], empty.schema), empty)


def test_no_columns_still_count_their_rows(format: Format) -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([])))
    for blocksize, rows in ((None, [5]), (2, [2, 2, 1])):
        blocks = list(format.encode(Stream.of(batch), blocksize))
        assert [block.rows for block in blocks] == rows
        stream = decoded(format, [bytes(block.data) for block in blocks], batch.schema)
        assert sum(each.num_rows for each in stream) == 5
    assert [block.rows for block in format.encode(Stream(batch.schema, []))] == [0]


def test_columns_of_one_name_stay_apart(format: Format) -> None:
    columns = [pa.array([1, 2]), pa.array(["x", None]), pa.array([0.5, 1.5]), pa.array([3, 4])]
    table = pa.table(columns, names=["a", "a", "", "a_2"])
    assert same(through(format, table), table)


@pytest.mark.parametrize("blocksize", [1, 7, 100, 1000])
@pytest.mark.parametrize("batch_rows", [3, 64, 250])
def test_blocks_are_exact_and_make_the_document(format: Format, blocksize: int, batch_rows: int) -> None:
    table = mixed(250)
    stream = Stream(table.schema, table.to_batches(max_chunksize=batch_rows))
    blocks = list(format.encode(stream, blocksize))
    full, rest = divmod(250, blocksize)
    assert [block.rows for block in blocks] == [blocksize] * full + [rest] * bool(rest)
    chunks = [bytes(block.data) for block in blocks]
    assert same(read(format, chunks, table.schema), table)
    if not format.binary:
        assert b"".join(chunks) == document(format, table)
        assert b"".join(chunks) == document(format, table, pieces=True)


@pytest.mark.parametrize("blocksize", [None, 7, 1000])
def test_pieces_make_the_document_too(format: Format, blocksize: int | None) -> None:
    table = mixed(250)
    blocks = list(format.encode(Stream.of(table), blocksize, pieces=True))
    assert sum(block.rows for block in blocks) == 250
    assert same(read(format, [bytes(block.data) for block in blocks], table.schema), table)


def test_a_large_block_leaves_in_bounded_pieces(format: Format) -> None:
    text = pa.array([str(number) * 200 for number in range(1000, 3000)])

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(12):
            yield pa.record_batch([text], ["text"])

    schema = pa.schema([("text", pa.string())])
    largest = max(len(block) for block in format.encode(Stream(schema, batches()), 10**7, pieces=True))
    assert largest < 3 * (1 << 22)


@pytest.mark.parametrize("blocksize", [0, -1])
def test_a_block_has_at_least_one_row(format: Format, blocksize: int) -> None:
    with pytest.raises(DataError, match="at least one row"):
        list(format.encode(Stream.of(mixed(3)), blocksize))


def test_the_first_block_leaves_before_the_source_is_read_to_its_end(format: Format) -> None:
    table = mixed(100)
    pulled = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal pulled
        for _ in range(1000):
            pulled += 1
            yield from table.to_batches()

    blocks = format.encode(Stream(table.schema, batches()), 100, pieces=True)
    next(blocks)
    assert pulled <= 12  # Parquet gathers 1,024 rows to a row group
    blocks.close()  # type: ignore[attr-defined]


def test_closing_an_encoder_closes_the_tuples(format: Format) -> None:
    closed = []
    table = mixed(10)
    stream = Stream(table.schema, itertools.cycle(table.to_batches()), lambda: closed.append(True))
    blocks = format.encode(stream, 5000)
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert closed == [True]


def test_a_source_that_fails_fails_the_document(format: Format) -> None:
    table = mixed(10)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from table.to_batches()
        raise TruncatedError("the database went away")

    for pieces in (False, True):
        with pytest.raises(TruncatedError, match="went away"):
            list(format.encode(Stream(table.schema, batches()), 3, pieces=pieces))


@pytest.mark.parametrize("failure", [TruncatedError("the line is dead"), ConnectionResetError("the line is dead")])
def test_a_transfer_that_fails_fails_the_stream(format: Format, failure: Exception) -> None:
    table = mixed(200)
    chunks = [bytes(block.data) for block in format.encode(Stream.of(table), 20)]

    def transfer() -> Iterator[bytes]:
        yield from chunks[:5]
        raise failure

    with pytest.raises(type(failure), match="the line is dead"):
        read(format, transfer(), table.schema)


@pytest.mark.parametrize("size", [1, 2, 13, 1000])
def test_chunks_may_be_cut_anywhere(format: Format, size: int) -> None:
    table = mixed(60)
    whole = document(format, table, 20)
    chunks = [whole[start : start + size] for start in range(0, len(whole), size)]
    assert same(read(format, chunks, table.schema), table)


def test_a_document_cut_at_any_byte_is_never_a_whole_one(format: Format) -> None:
    table = mixed(9)
    whole = document(format, table, 4)
    for end in range(len(whole)):
        try:
            actual = read(format, [whole[:end]], table.schema)
        except (TruncatedError, DataError):
            continue
        assert format.name in WITHOUT_END, f"taken for whole when cut at {end} of {len(whole)} bytes"
        # What the bytes cannot tell is whether more was to come: what is there is right, but for a last field.
        assert actual.num_rows <= table.num_rows
        sure = max(0, actual.num_rows - 1)
        assert same(actual.slice(0, sure), table.slice(0, sure))


def test_nonsense_is_refused(format: Format) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    for nonsense in (b"\x00\xff\xfe nonsense", b"{]", b"<a><b></a>", b"PAR1PAR1", b'x"y,"'):
        with pytest.raises(DaiError):
            read(format, [nonsense], schema)


def test_closing_a_decoded_stream_closes_the_chunks(format: Format) -> None:
    table = mixed(500)
    blocks = [bytes(block.data) for block in format.encode(Stream.of(table), 50)]
    closed = []

    def transfer() -> Iterator[bytes]:
        try:
            yield from blocks
        finally:
            closed.append(True)

    stream = decoded(format, transfer(), table.schema)
    next(stream)
    stream.close()
    assert closed == [True]


def test_dictionaries_become_values(format: Format) -> None:
    values = pa.array(["x", "y", None, "x"])
    table = pa.table({"d": values.dictionary_encode()})
    expected = pa.table({"d": values})
    assert same(read(format, [document(format, table)], expected.schema), expected)


def test_blocks_say_their_length() -> None:
    assert len(Block(pa.py_buffer(b"abc"), 1)) == 3
