"""Partitioning and coalescing: every row once, in blocks."""

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.errors import DataError, InternalError, LimitError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.execution.exchange.exchange import BlockSize, Coalescer, distribute, split
from dqp.execution.exchange.outbox import Outbox
from tests.dqp.exchanges import SCHEMA, SIZE, batch, batches, ids

# --- split and coalesce


VALUES = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(max_size=8),
    st.lists(st.integers(0, 9), max_size=3),
    st.none() | st.sampled_from(["a", "b"]),
    st.none() | st.booleans(),
)
TYPES = [pa.int64(), pa.string(), pa.list_(pa.int8()), pa.dictionary(pa.int8(), pa.string()), pa.bool_()]
BUCKET_TYPES = st.sampled_from([pa.int16(), pa.int32(), pa.int64(), pa.uint64()])


@given(data=st.data(), partitions=st.sampled_from([1, 2, 3, 7, 300]), bucket_type=BUCKET_TYPES, large=st.booleans())
def test_split_keeps_every_row_and_the_order_of_each_bucket(data, partitions, bucket_type, large):
    rows = data.draw(st.lists(st.tuples(st.integers(0, partitions - 1), VALUES), max_size=60))
    if large:  # beyond the size up to which sorted batches are sliced
        rows = [(bucket, (number, "x" * 200, *values[2:])) for bucket, values in rows for number in range(300)]
    columns = [pa.array([values[at] for _, values in rows], kind) for at, kind in enumerate(TYPES)]
    columns.insert(2, pa.array([bucket for bucket, _ in rows], bucket_type))
    whole = pa.record_batch(columns, names=["a", "b", "bucket", "c", "d", "e"])
    start = data.draw(st.integers(0, len(rows)))  # a slice has offsets
    parts = split(whole.slice(start), "bucket", partitions, block_bytes=1 << 16)
    assert len(parts) == partitions
    for number, pieces in enumerate(parts):
        actual = []
        for piece in pieces:
            assert piece.schema.names == ["a", "b", "c", "d", "e"]
            assert piece.num_rows
            piece.validate(full=True)
            actual += [tuple(row.values()) for row in piece.to_pylist()]
        assert actual == [values for bucket, values in rows[start:] if bucket == number]


def test_split_makes_pieces_of_the_size_of_a_block_that_share_no_memory():
    rows = 100_000
    whole = pa.record_batch({"a": range(rows), "b": ["x" * 50] * rows, "bucket": [each % 2 for each in range(rows)]})
    parts = split(whole, "bucket", 2, block_bytes=1 << 19)
    for pieces in parts:
        assert len(pieces) == round(whole.nbytes / 2 / (1 << 19))
        for each in pieces:
            assert 1 << 18 <= each.nbytes <= 1 << 20
            assert each.get_total_buffer_size() < 1.1 * each.nbytes + 1000


@pytest.mark.parametrize("partitions", [2, 3, 5])
def test_split_keeps_every_row_of_a_large_batch(partitions):
    """Of which the pieces of a bucket are not all of one length."""
    rows = 10_007
    buckets = [each * each % 7 % partitions for each in range(rows)]
    whole = pa.record_batch({"a": range(rows), "b": ["x" * 200] * rows, "bucket": buckets})
    parts = split(whole, "bucket", partitions, block_bytes=1 << 17)
    for number, pieces in enumerate(parts):
        assert len(pieces) != 1
        actual = [each for piece in pieces for each in piece["a"].to_pylist()]
        assert actual == [each for each in range(rows) if buckets[each] == number]


@pytest.mark.parametrize(
    "buckets", [pa.array([0, 2]), pa.array([-1, 0]), pa.array([0, None]), pa.array(["0", "1"]), pa.array([0.0, 1.0])]
)
def test_split_refuses_buckets_that_would_lose_rows(buckets):
    with pytest.raises(DataError):
        split(pa.record_batch({"a": pa.array([1, 2]), "bucket": buckets}), "bucket", 2)


def test_split_needs_its_column():
    with pytest.raises(DataError, match="'bucket'"):
        split(pa.record_batch({"a": [1]}), "bucket", 2)


@given(
    lengths=st.lists(st.integers(0, 400), max_size=20),
    rows=st.integers(1, 300),
    size=st.integers(1, 5000),
    late=st.booleans(),
)
def test_coalescing_keeps_the_sequence_and_the_sizes(lengths, rows, size, late):
    coalescer = Coalescer(BlockSize(bytes=size, rows=rows, seconds=0 if late else math.inf))
    source, blocks, begin = [], [], 0
    for length in lengths:
        source.append(batch(1000 + begin, length))
        begin += length
        blocks += coalescer.add(source[-1])
    early = len(blocks)
    blocks += coalescer.rest()
    assert list(coalescer.rest()) == []
    assert pa.Table.from_batches(blocks, SCHEMA).equals(pa.Table.from_batches(source, SCHEMA))
    assert all(0 < block.num_rows <= rows for block in blocks)
    assert all(block.nbytes < 2 * size + SIZE for block in blocks)
    if late:
        assert early == len(blocks)  # nothing is kept back


def test_small_batches_become_one_block_after_the_first_which_goes_at_once():
    coalescer = Coalescer(BlockSize(bytes=10 * SIZE, seconds=1000))
    ready = [list(coalescer.add(each)) for each in batches(11)]
    assert [len(each) for each in ready] == [1] + [0] * 9 + [1]
    assert ready[-1][0].num_rows == 1000


def test_a_batch_of_half_a_block_goes_uncopied_after_what_is_held():
    coalescer = Coalescer(BlockSize(bytes=10 * SIZE, seconds=1000))
    list(coalescer.add(batch(0)))
    assert list(coalescer.add(batch(100))) == []
    large = batch(1000, 600)
    ready = list(coalescer.add(large))
    assert [each.num_rows for each in ready] == [100, 600]
    assert ready[1].column(0).buffers()[1].address == large.column(0).buffers()[1].address


# --- distribute


def hashed(rows: int, partitions: int) -> Stream:
    whole = batch(0, rows).append_column("bucket", pa.array([each * 7919 % partitions for each in range(rows)]))
    return Stream.of(pa.Table.from_batches([whole])).rebatch(500)


def test_distribute_by_hash(pool, tmp_path):
    outbox = Outbox(SCHEMA, 3, memory_bytes=4 * SIZE, directory=tmp_path)
    readers = [pool.submit(ids, outbox.stream(partition)) for partition in range(3)]
    distribute(hashed(10_000, 3), outbox, Cancellation(), buckets="bucket", block=BlockSize(bytes=2000))
    for partition, reader in enumerate(readers):
        assert reader.result() == [each for each in range(10_000) if each * 7919 % 3 == partition]
    assert outbox.drained


def test_distribute_fails_the_outbox_with_what_the_stream_raises():
    def broken():
        yield batch(0)
        raise LimitError("too much")

    outbox = Outbox(SCHEMA, 1)
    with pytest.raises(LimitError):
        distribute(Stream(SCHEMA, broken()), outbox, Cancellation())
    with pytest.raises(LimitError, match="too much"):
        outbox.stream(0).table()


def test_distribute_tells_readers_nothing_of_a_foreign_failure():
    def broken():
        yield batch(0)
        raise RuntimeError("/secret/path")

    outbox = Outbox(SCHEMA, 1)
    with pytest.raises(RuntimeError):
        distribute(Stream(SCHEMA, broken()), outbox, Cancellation())
    with pytest.raises(InternalError, match=r"^(?!.*secret)"):
        outbox.stream(0).table()


def test_distribute_to_several_partitions_needs_their_column():
    outbox = Outbox(SCHEMA, 2)
    with pytest.raises(DataError):
        distribute(Stream(SCHEMA, [batch(0)]), outbox, Cancellation())
