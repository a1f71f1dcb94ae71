"""Arrow streams: what other readers and writers make of them, compression, hostile bytes."""

import gc
import io
import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dai.errors import DataError, EncodingError, ParameterError, TooLargeError, TruncatedError
from dai.formats import messages
from dai.formats.arrow import Arrow
from dai.formats.blocks import OfSchema
from dai.formats.parquet import Parquet
from dai.streams.stream import Stream
from tests.formats.tables import every_type, mixed, same

ARROW = Arrow()


def document(table: pa.Table, blocksize: int | None = None, **options: object) -> bytes:
    return b"".join(memoryview(block.data) for block in ARROW.encode(Stream.of(table), blocksize, **options))  # type: ignore[arg-type]


def written_by_pyarrow(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_pyarrow_reads_what_we_write_and_we_what_it_writes(compression: str | None) -> None:
    table = every_type()
    ours = pa.ipc.open_stream(document(table, 2, compression=compression)).read_all()
    assert same(ours, table)
    assert same(ARROW.decode([written_by_pyarrow(table, compression=compression)]).table(), table)


def test_compression_compresses() -> None:
    table = mixed(5000)
    plain = len(document(table))
    assert len(document(table, compression="zstd")) < plain / 2
    assert len(document(table, compression="lz4")) < plain / 1.2


def test_unknown_compression() -> None:
    with pytest.raises(ParameterError, match="brotli"):
        ARROW.encode(Stream.of(mixed(1)), compression="brotli")


def test_a_block_is_one_record_batch() -> None:
    batches = list(pa.ipc.open_stream(document(mixed(250), 100)))
    assert [batch.num_rows for batch in batches] == [100, 100, 50]


def test_without_a_block_size_batches_stay_as_they_are() -> None:
    table = mixed(30)
    stream = Stream(table.schema, table.to_batches(max_chunksize=12))
    assert [block.rows for block in ARROW.encode(stream)] == [12, 12, 6]


def test_pieces_leave_before_the_next_batch_is_pulled() -> None:
    pulled = []

    def batches() -> object:
        for number in range(3):
            pulled.append(number)
            yield from mixed(10).to_batches()

    blocks = ARROW.encode(Stream(mixed(1).schema, batches()), 10, pieces=True)  # type: ignore[arg-type]
    assert next(blocks).rows == 10
    assert pulled == [0]


def test_a_large_block_becomes_several_record_batches_with_pieces() -> None:
    table = pa.table({"x": pa.array(range(2_000_000), pa.int64())})
    blocks = list(ARROW.encode(Stream.of(table), 2_000_000, pieces=True))
    assert max(len(block) for block in blocks) < 5 << 20
    assert same(ARROW.decode([memoryview(block.data) for block in blocks]).table(), table)  # type: ignore[misc]


def test_a_stream_without_its_end_marker_is_truncated() -> None:
    whole = document(mixed(20), 10)
    assert same(ARROW.decode([whole]).table(), mixed(20))
    with pytest.raises(TruncatedError, match="20 rows"):
        ARROW.decode([whole[:-8]]).table()


def test_bytes_behind_the_end_are_refused() -> None:
    with pytest.raises(DataError, match="more bytes after the end"):
        ARROW.decode([document(mixed(20)), b"x"]).table()


def test_offsets_that_point_elsewhere_are_refused() -> None:
    """An offset is an address: a batch whose offsets were not checked would read foreign memory."""
    table = pa.table({"text": pa.array(["abcd", "efgh"])})
    whole = document(table)
    offsets = (0).to_bytes(4, "little") + (4).to_bytes(4, "little") + (8).to_bytes(4, "little")
    assert whole.count(offsets) == 1
    hostile = whole.replace(offsets, (0).to_bytes(4, "little") + (4).to_bytes(4, "little") + b"\xff\xff\xff\x7f")
    with pytest.raises(DataError):
        ARROW.decode([hostile]).table()


def test_text_that_is_no_utf8_is_refused() -> None:
    hostile = document(pa.table({"text": ["abcdefgh"]})).replace(b"abcdefgh", b"abc\xffefgh")
    with pytest.raises(DataError):
        ARROW.decode([hostile]).table()


def test_random_damage_gives_an_error_or_a_valid_table() -> None:
    whole = document(every_type(), 3)
    chance = random.Random(1)
    for _ in range(1000):
        at = chance.randrange(len(whole))
        damaged = whole[:at] + chance.randbytes(1) + whole[at + 1 :]
        try:
            ARROW.decode([damaged]).table().validate(full=True)
        except (DataError, TruncatedError):
            continue


def test_stored_forms_become_values() -> None:
    values = pa.array(["x", "x", None])
    table = pa.table({"ree": pc.run_end_encode(values), "d": values.dictionary_encode()})
    expected = pa.table({"ree": values, "d": values})
    assert same(ARROW.decode([document(table)]).table(), expected)
    # Somebody else's dictionaries, with a delta.
    other = written_by_pyarrow(pa.table({"d": values.dictionary_encode()}), emit_dictionary_deltas=True)
    assert same(ARROW.decode([other]).table(), pa.table({"d": values}))


def test_a_dictionary_inside_a_list() -> None:
    type_ = pa.list_(pa.dictionary(pa.int8(), pa.string()))
    table = pa.table({"d": pa.array([["a", "b"], None], type_)})
    decoded = ARROW.decode([document(table)]).table()
    assert same(decoded, pa.table({"d": pa.array([["a", "b"], None])}))


def test_run_ends_deep_inside_are_refused_by_name() -> None:
    inner = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), pc.run_end_encode(pa.array(["a", "a"])))
    with pytest.raises(EncodingError) as caught:
        document(pa.table({"deep": inner}))
    assert caught.value.extra["column"] == "deep"


def test_what_stands_for_much_is_decoded_in_pieces() -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 3_000, pa.int16()), pa.array(["x" * 100_000]))
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([300_000], pa.int32()), pa.array(["x" * 1_000]))
    lists = pa.ListArray.from_arrays(pa.array(range(3_001), pa.int32()), words)
    for column in (words, runs, lists):
        data = written_by_pyarrow(pa.table({"a": column}))
        before, most, rows = pa.total_allocated_bytes(), 0, 0
        with ARROW.decode([data]) as stream:
            for batch in stream:
                most, rows = max(most, pa.total_allocated_bytes() - before), rows + batch.num_rows
        assert rows == len(column)
        assert most < 40 << 20


def test_schemas_that_differ_in_metadata_alone_have_heads_of_their_own() -> None:
    """Arrow takes them for equal, and for the same key of a dictionary."""
    array = pa.array([1])
    for unit in (b"kg", b"m", b"kg"):
        schema = pa.schema([pa.field("x", pa.int64(), metadata={b"unit": unit})])
        batch = pa.RecordBatch.from_arrays([array], schema=schema)
        data = b"".join(memoryview(each.data) for each in Arrow().encode(Stream.of(batch)))
        assert pa.ipc.open_stream(data).schema.field("x").metadata == {b"unit": unit}


def test_what_was_computed_of_a_schema_goes_with_it() -> None:
    computed: list[str] = []

    def names(schema: pa.Schema) -> list[str]:
        computed.extend(schema.names)
        return list(schema.names)

    names_of = OfSchema(names)
    schemas = [pa.schema([("a", pa.int8())]), pa.schema([("b", pa.int8())])]
    for _ in range(2):
        assert [names_of(each) for each in schemas] == [["a"], ["b"]]
    assert computed == ["a", "b"]
    assert len(names_of._known) == 2
    schemas.clear()
    gc.collect()
    assert not names_of._known


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("where", ["column", "dictionary", "list"])
@pytest.mark.parametrize("piece", [1 << 30, 7])
def test_few_bytes_do_not_become_all_memory(
    codec: str, where: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """33 KB took a gigabyte."""
    arrays = {
        "column": pa.array(range(1000), pa.int64()),
        "dictionary": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["x" * 8000])),
        "list": pa.array([list(range(1000))], pa.list_(pa.int64())),
    }
    hostile = written_by_pyarrow(pa.table({"a": arrays[where]}), compression=codec)
    chunks = [hostile[at : at + piece] for at in range(0, len(hostile), piece)]
    table = ARROW.decode(chunks).table()
    monkeypatch.setattr(messages, "UNPACKED_BYTES", 7000)
    with pytest.raises(TooLargeError, match="unpacks"):
        ARROW.decode(chunks).table()
    monkeypatch.setattr(messages, "UNPACKED_BYTES", 9000)
    assert ARROW.decode(chunks).table().equals(table)


def test_sizes_that_are_lies_are_refused() -> None:
    """What is said to be small and is not does not fit the memory that was taken for it."""
    hostile = written_by_pyarrow(pa.table({"a": pa.array([7] * 100_000)}), compression="zstd")
    size = (800_000).to_bytes(8, "little")
    assert hostile.count(size) == 1
    for said in (1 << 62, 1 << 40, 8, 0):
        with pytest.raises((DataError, TooLargeError)):
            ARROW.decode([hostile.replace(size, said.to_bytes(8, "little"))]).table()


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "x" * 1000, "+99:99"])
@pytest.mark.parametrize("codec", [ARROW, Parquet()])
def test_a_time_zone_that_nobody_knows_is_refused_by_the_name_of_its_column(codec: Arrow | Parquet, zone: str) -> None:
    """SQLite's loads failed as an internal error, where they wanted the text of a moment."""
    for type in (pa.timestamp("s", zone), pa.list_(pa.timestamp("us", zone))):
        table = pa.table({"seen": pa.nulls(1, type)})
        written = b"".join(memoryview(block.data) for block in codec.encode(Stream.of(table)))
        with pytest.raises(DataError, match="'seen' has the time zone"):
            codec.decode([written])
    for zone in ("UTC", "Europe/London", "+05:30"):
        table = pa.table({"seen": pa.array([0], pa.timestamp("s", zone))})
        assert ARROW.decode([document(table)]).table().num_rows == 1
