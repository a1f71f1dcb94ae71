"""Parquet files: what other readers see, row groups, what becomes of the types, the temporary file."""

import datetime
import io
import tempfile
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dai.errors import DataError, EncodingError, ParameterError, TruncatedError
from dai.formats.parquet import Parquet
from dai.streams.stream import Stream
from tests.formats.tables import every_type, mixed, same

PARQUET = Parquet()


def document(table: pa.Table, blocksize: int | None = None, **options: Any) -> bytes:
    return b"".join(memoryview(block.data) for block in PARQUET.encode(Stream.of(table), blocksize, **options))


def test_other_readers_see_the_same_values() -> None:
    table = mixed(50)
    assert pq.read_table(io.BytesIO(document(table))).equals(table)
    assert polars.read_parquet(io.BytesIO(document(table))).to_arrow().cast(table.schema).equals(table)


def test_we_read_what_others_write() -> None:
    sink = io.BytesIO()
    table = mixed(50)
    pq.write_table(table, sink, row_group_size=7)
    assert same(PARQUET.decode([sink.getvalue()]).table(), table)
    sink = io.BytesIO()
    polars.from_arrow(table).write_parquet(sink)  # type: ignore[union-attr]
    assert PARQUET.decode([sink.getvalue()]).table().cast(table.schema).equals(table)


def test_a_block_is_a_row_group() -> None:
    file = pq.ParquetFile(io.BytesIO(document(mixed(5000), 2000)))
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [2000, 2000, 1000]


def test_small_blocks_share_row_groups() -> None:
    blocks = list(PARQUET.encode(Stream.of(mixed(2500)), 10))
    assert [block.rows for block in blocks] == [10] * 250
    file = pq.ParquetFile(io.BytesIO(b"".join(memoryview(block.data) for block in blocks)))
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [1024, 1024, 452]


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_compression(compression: str) -> None:
    data = document(mixed(2000), compression=compression)
    assert same(PARQUET.decode([data]).table(), mixed(2000))
    written = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(1).compression
    assert written == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


def test_unknown_compression() -> None:
    with pytest.raises(ParameterError, match="rar"):
        PARQUET.encode(Stream.of(mixed(1)), compression="rar")


@pytest.mark.parametrize(
    "array",
    [
        pa.array([datetime.date(2024, 2, 29), None], pa.date64()),
        pa.array([5, None], pa.timestamp("s")),
        pa.array([5, None], pa.timestamp("s", "UTC")),
        pa.array([5, None], pa.timestamp("ns")),
        pa.array([5, None], pa.time32("s")),
        pa.array([5, None], pa.duration("s")),
        pa.array(["x", None], pa.large_string()),
        pa.array([b"xx", None], pa.binary(2)),
        pa.array([["x"], None], pa.large_list(pa.string())),
        pa.array([[(1, 2, 3000)], None], pa.large_list(pa.month_day_nano_interval())),
        pa.array([[datetime.date(2024, 2, 29)], None], pa.list_(pa.date64())),
    ],
    ids=lambda array: str(array.type),
)
def test_types_of_the_same_families_come_back(array: pa.Array) -> None:
    table = pa.table({"a": array})
    actual = PARQUET.decode([document(table)]).table()
    assert actual.schema.equals(table.schema)
    assert actual.equals(table)


def test_an_interval_is_readable_text_for_others() -> None:
    table = pa.table({"i": pa.array([(14, 3, 0), None], pa.month_day_nano_interval())})
    assert pq.read_table(io.BytesIO(document(table)))["i"].to_pylist() == ["P1Y2M3D", None]


def test_metadata_that_no_longer_belongs_to_the_columns_is_not_believed() -> None:
    edited = pq.read_table(io.BytesIO(document(every_type()))).select(["int8", "interval"])
    sink = io.BytesIO()
    pq.write_table(edited, sink)
    table = PARQUET.decode([sink.getvalue()]).table()
    assert table.schema.types == [pa.int8(), pa.string()]
    assert b"dai.arrow" not in (table.schema.metadata or {})


def test_metadata_of_the_schema_stays() -> None:
    table = mixed(3).replace_schema_metadata({"k": "v"})
    assert same(PARQUET.decode([document(table)]).table(), table)


def test_a_type_that_parquet_cannot_hold_is_refused_by_name() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    with pytest.raises(EncodingError, match="Parquet cannot hold"):
        document(pa.table({"u": union}))


def test_a_large_file_waits_on_disk_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = tempfile.SpooledTemporaryFile

    def spooled(*args: Any, **options: Any) -> Any:
        made.append(real(*args, **{**options, "max_size": 100}))
        return made[0]

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", spooled)
    stream = PARQUET.decode([document(mixed(3000))])
    assert next(stream).num_rows == 3000
    assert made[0]._rolled
    assert not made[0].closed
    stream.close()
    assert made[0].closed


def test_the_temporary_file_goes_when_the_transfer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = tempfile.SpooledTemporaryFile
    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda **options: made.append(real(**options)) or made[0])
    for cut, error in ((100, TruncatedError), (1, TruncatedError), (0, TruncatedError)):
        made.clear()
        with pytest.raises(error):
            PARQUET.decode([document(mixed(30))[:cut]])
        assert made[0].closed


def test_damage_inside_is_an_error() -> None:
    whole = document(mixed(3000), compression="none")
    damaged = whole[:-100] + bytes(60) + whole[-40:]
    with pytest.raises(DataError):
        PARQUET.decode([damaged]).table()


def test_what_does_not_begin_like_parquet_is_none() -> None:
    with pytest.raises(DataError, match="PAR1"):
        PARQUET.decode([b"id,text\r\n1,x\r\n"])
