"""An outbox that is bounded, spills rather than deadlocks and leaves nothing behind."""

import os
import resource
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from dai.errors import CancelledError, ClosedError, ConflictError, DataError, LimitError, NotFoundError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.execution.exchange.exchange import BlockSize, distribute
from dqp.execution.exchange.outbox import Outbox
from dqp.execution.execution import Measure, Measurement
from tests.dqp.exchanges import SCHEMA, SIZE, batch, batches, ids
from tests.processes import until

EAGER = BlockSize(seconds=0)


def files_of(directory: Path) -> list[str]:
    """Names in the directory, and files in it that have none but are open."""
    opened = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            opened.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            continue
    return [*os.listdir(directory), *(each for each in opened if each.startswith(f"{directory}/"))]


def test_order_within_a_partition_through_memory_and_disk(pool, tmp_path):
    outbox = Outbox(SCHEMA, 2, memory_bytes=3 * SIZE, directory=tmp_path, grace=0.01)
    for each in batches(30):
        outbox.put(0, each, Cancellation())
        assert outbox.held[0] <= 3 * SIZE
    outbox.finish()
    assert outbox.measure.now.spooled == 27 * SIZE
    assert files_of(tmp_path)
    assert ids(outbox.stream(0)) == list(range(1000, 4000))
    assert ids(outbox.stream(1)) == []
    assert outbox.drained
    assert outbox.held == (0, 0)
    assert not files_of(tmp_path)


def crossed(pool, outboxes, producing):
    """Two consumers, each of which reads a partition of both exchanges, in opposite orders, one after the other; and
    how many batches each exchange has got."""
    put = Counter()

    def produce(outbox):
        for number, each in enumerate(batches(40)):
            outbox.put(number % 2, each, producing)
            put[id(outbox)] += 1
        outbox.finish()

    def consume(partition, order):
        return [ids(outboxes[which].stream(partition, producing)) for which in order]

    producers = [pool.submit(produce, outbox) for outbox in outboxes]
    consumers = [pool.submit(consume, 0, (0, 1)), pool.submit(consume, 1, (1, 0))]
    return producers, consumers, put


def test_consumers_that_wait_for_each_other_do_not_deadlock(pool, tmp_path):
    outboxes = [Outbox(SCHEMA, 2, memory_bytes=2 * SIZE, directory=tmp_path, grace=0.01) for _ in range(2)]
    producers, consumers, _ = crossed(pool, outboxes, Cancellation())
    for future in producers:
        future.result()
    everything = [[each + row for each in range(1000 + 100 * odd, 5000, 200) for row in range(100)] for odd in (0, 1)]
    assert consumers[0].result() == [everything[0], everything[0]]
    assert consumers[1].result() == [everything[1], everything[1]]
    assert any(outbox.measure.now.spooled > 0 for outbox in outboxes)
    assert not files_of(tmp_path)


def test_the_same_consumers_deadlock_without_a_place_to_spill(pool):
    """What the test above shows is not true by itself."""
    outboxes = [Outbox(SCHEMA, 2, memory_bytes=2 * SIZE) for _ in range(2)]
    producing = Cancellation()
    producers, consumers, put = crossed(pool, outboxes, producing)
    # two batches for the reader that does not read fill the memory; the next one finds no room
    until(lambda: [(each.held[0], put[id(each)]) for each in outboxes] == [(2 * SIZE, 4), (2 * SIZE, 3)])
    assert not any(future.done() for future in [*producers, *consumers])
    producing.cancel()
    for future in [*producers, *consumers]:
        with pytest.raises((CancelledError, ClosedError)):
            future.result()


def test_a_single_reader_holds_its_producer_and_nothing_is_spilled(pool, tmp_path):
    outbox = Outbox(SCHEMA, 1, memory_bytes=2 * SIZE, directory=tmp_path, grace=0)
    producer = pool.submit(distribute, Stream(SCHEMA, batches(20)), outbox, Cancellation(), block=EAGER)
    reader = outbox.stream(0)
    for first in range(1000, 3000, 100):
        assert next(reader)["id"][0].as_py() == first
        assert outbox.held[0] <= 2 * SIZE
    assert next(reader, None) is None
    producer.result()
    assert outbox.measure.now.spooled == 0


def test_broadcast_gives_every_reader_the_same_batches(tmp_path):
    outbox = Outbox(SCHEMA, 3, broadcast=True, memory_bytes=100 * SIZE, directory=tmp_path)
    distribute(Stream(SCHEMA, batches(5)), outbox, Cancellation(), block=EAGER)
    first, second, third = ([id(each) for each in outbox.stream(reader)] for reader in range(3))
    assert len(first) == 5
    assert first == second == third
    assert outbox.held == (0, 0)


@pytest.mark.parametrize("broadcast", [False, True])
def test_several_consumers_read_all_partitions(pool, tmp_path, broadcast):
    outbox = Outbox(SCHEMA, 2, copies=3, broadcast=broadcast, memory_bytes=3 * SIZE, directory=tmp_path, grace=0.01)
    fast = [pool.submit(ids, outbox.stream(reader)) for reader in (0, 1, 2, 3)]
    for number, each in enumerate(batches(20)):
        outbox.put(0 if broadcast else number % 2, each, Cancellation())
    outbox.finish()
    odd = [[each + row for each in range(1000 + 100 * part, 3000, 200) for row in range(100)] for part in (0, 1)]
    expected = [list(range(1000, 3000))] * 2 if broadcast else odd
    assert [each.result() for each in fast] == expected * 2
    # the third one, who comes late, finds everything on disk or in memory
    assert outbox.measure.now.spooled > 0
    assert not outbox.drained
    assert [ids(outbox.stream(reader)) for reader in (4, 5)] == expected
    assert outbox.drained
    assert outbox.held == (0, 0)
    with pytest.raises(NotFoundError):
        outbox.stream(6)
    assert not files_of(tmp_path)


def test_a_partition_with_nearly_all_rows_neither_grows_nor_holds_the_others(pool, tmp_path):
    """The reader of the heavy partition comes when all others have read theirs to the end."""
    outbox = Outbox(SCHEMA, 4, memory_bytes=4 * SIZE, directory=tmp_path, grace=0.01)
    light = [pool.submit(ids, outbox.stream(partition)) for partition in (1, 2, 3)]
    most = []

    def rows():
        for first in range(0, 40_000, 500):
            most.append(outbox.held[0])
            numbers = pa.array([0 if each % 40 else 1 + each // 40 % 3 for each in range(first, first + 500)])
            yield batch(first, 500).append_column("bucket", numbers)

    schema = SCHEMA.append(pa.field("bucket", pa.int64()))
    distribute(Stream(schema, rows()), outbox, Cancellation(), buckets="bucket", block=BlockSize(bytes=SIZE // 2))
    for partition, reader in enumerate(light, 1):
        expected = [each for each in range(0, 40_000, 40) if 1 + each // 40 % 3 == partition]
        assert reader.result() == expected
    assert max(most) <= 4 * SIZE
    assert outbox.held[0] <= 4 * SIZE
    assert outbox.measure.now.spooled > 100 * SIZE
    assert ids(outbox.stream(0)) == [each for each in range(40_000) if each % 40]
    assert not files_of(tmp_path)


def test_broadcast_spills_for_the_reader_that_is_behind(pool, tmp_path):
    outbox = Outbox(SCHEMA, 2, broadcast=True, memory_bytes=3 * SIZE, directory=tmp_path, grace=0.01)
    fast = pool.submit(ids, outbox.stream(0))
    distribute(Stream(SCHEMA, batches(30)), outbox, Cancellation(), block=EAGER)
    assert fast.result() == list(range(1000, 4000))
    assert outbox.measure.now.spooled > 0
    assert ids(outbox.stream(1)) == list(range(1000, 4000))
    assert outbox.held == (0, 0)
    assert not files_of(tmp_path)


def test_disk_space_comes_back_while_a_partition_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("dai.streams.spool.FILE_BYTES", 4 * SIZE)
    outbox = Outbox(SCHEMA, 2, memory_bytes=SIZE, directory=tmp_path, grace=0)
    for each in batches(40):
        outbox.put(0, each, Cancellation())
    full = outbox.held[1]
    reader = outbox.stream(0)
    for _ in range(20):
        next(reader)
    assert 0 < outbox.held[1] < 0.7 * full
    reader.close()
    assert outbox.held == (0, 0)
    assert not files_of(tmp_path)


def test_a_full_disk_is_a_clear_error_and_leaves_no_file(tmp_path):
    outbox = Outbox(SCHEMA, 2, memory_bytes=1, directory=tmp_path, grace=0)
    whole = Stream(SCHEMA, [batch(1000 + number * 10_000, 10_000) for number in range(20)])
    put = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))

    def fill():
        for each in whole:
            outbox.put(0, each, Cancellation())
            put.append(each)

    try:
        with pytest.raises(LimitError, match="no room on disk"):
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    # what was put is whole; the batch that found no room is not part of it
    outbox.finish()
    read = ids(outbox.stream(0))
    assert read == list(range(1000, 1000 + len(read)))
    assert len(read) == sum(each.num_rows for each in put)
    outbox.close()
    assert not files_of(tmp_path)


def test_what_producers_wait_and_what_goes_to_disk_is_measured(tmp_path):
    measure = Measure(Measurement("exchange"))
    outbox = Outbox(SCHEMA, 2, memory_bytes=3 * SIZE, directory=tmp_path, grace=0.01, measure=measure)
    for each in batches(10):
        outbox.put(0, each, Cancellation())
    assert measure.now.spooled == 7 * SIZE
    assert measure.now.held > 0


def test_dictionaries_travel_through_the_disk(tmp_path):
    schema = pa.schema([("d", pa.dictionary(pa.int8(), pa.string()))])
    outbox = Outbox(schema, 2, memory_bytes=1, directory=tmp_path, grace=0)
    for words in (["a", "b"], ["c", None], ["b", "d"]):
        outbox.put(
            0,
            pa.record_batch([pa.array(words).dictionary_encode().cast(schema[0].type)], schema=schema),
            Cancellation(),
        )
    outbox.finish()
    assert outbox.stream(0).table()["d"].to_pylist() == ["a", "b", "c", None, "b", "d"]


def test_a_slice_does_not_keep_its_parent_in_memory():
    outbox = Outbox(SCHEMA, 1)
    outbox.put(0, batch(0, 100_000).slice(500, 10), Cancellation())
    held = next(outbox.stream(0))
    assert held.get_total_buffer_size() < 2000
    assert held["id"].to_pylist() == list(range(500, 510))


def test_disk_use_has_a_limit(tmp_path):
    outbox = Outbox(SCHEMA, 2, memory_bytes=SIZE, directory=tmp_path, disk_bytes=4 * SIZE, grace=0, patience=0.05)
    most = []

    def put_all():
        for each in batches(20):
            outbox.put(0, each, Cancellation())
            most.append(outbox.held[1])

    with pytest.raises(LimitError, match="on disk"):
        put_all()
    assert 4 * SIZE <= max(most) <= 6 * SIZE
    outbox.close()
    assert not files_of(tmp_path)


def test_at_the_limit_of_the_disk_a_producer_waits_for_a_reader_that_goes_on(pool, tmp_path):
    outbox = Outbox(SCHEMA, 2, memory_bytes=SIZE, directory=tmp_path, disk_bytes=4 * SIZE, grace=0, patience=60)

    def produce():
        for each in batches(60):
            outbox.put(0, each, Cancellation())
        outbox.finish()

    producer = pool.submit(produce)
    until(lambda: outbox.held[1] >= 4 * SIZE)
    assert ids(outbox.stream(0)) == list(range(1000, 7000))
    producer.result()


def test_a_disk_that_cannot_be_written_is_a_clear_error(tmp_path):
    outbox = Outbox(SCHEMA, 2, memory_bytes=SIZE, directory=tmp_path / "missing", grace=0)
    outbox.put(0, batch(0), Cancellation())
    with pytest.raises(LimitError, match=r"^(?!.*missing)"):
        outbox.put(0, batch(100), Cancellation())


@pytest.mark.parametrize("end", ["close", "fail", "leave"])
def test_nothing_is_left_behind(end, tmp_path):
    outbox = Outbox(SCHEMA, 2, memory_bytes=2 * SIZE, directory=tmp_path, grace=0)
    for number, each in enumerate(batches(20)):
        outbox.put(number % 2, each, Cancellation())
    streams = [outbox.stream(partition) for partition in range(2)]
    next(streams[0])
    assert outbox.held[1]
    if end == "close":
        outbox.close()
        with pytest.raises(ClosedError):
            next(streams[0])
    elif end == "fail":
        outbox.fail(LimitError("enough"))
        with pytest.raises(LimitError):
            next(streams[0])
        with pytest.raises(LimitError):
            outbox.put(0, batch(0), Cancellation())
    else:
        for stream in streams:
            stream.close()
    assert outbox.held == (0, 0)
    assert not files_of(tmp_path)


def test_a_reader_that_leaves_does_not_hold_the_others(tmp_path):
    left = []
    outbox = Outbox(SCHEMA, 2, memory_bytes=SIZE, directory=None, abandoned=lambda: left.append(True))
    outbox.stream(0).close()
    for each in batches(5):
        outbox.put(0, each, Cancellation())  # dropped
    outbox.put(1, batch(0), Cancellation())
    assert not left
    outbox.stream(1).close()
    assert left == [True]
    with pytest.raises(ClosedError):
        outbox.put(1, batch(0), Cancellation())


def test_the_last_reader_that_leaves_frees_a_producer_that_waits(pool):
    outbox = Outbox(SCHEMA, 1, memory_bytes=SIZE)
    producer = pool.submit(distribute, Stream(SCHEMA, batches(5)), outbox, Cancellation(), block=EAGER)
    until(lambda: outbox.held[0] == SIZE)
    outbox.stream(0).close()
    with pytest.raises(ClosedError):
        producer.result()


def test_reading_to_the_end_is_not_leaving():
    left = []
    outbox = Outbox(SCHEMA, 1, abandoned=lambda: left.append(True))
    distribute(Stream(SCHEMA, batches(2)), outbox, Cancellation())
    assert len(ids(outbox.stream(0))) == 200
    assert not left


def test_cancelling_a_producer_that_waits(pool):
    outbox, cancellation = Outbox(SCHEMA, 1, memory_bytes=SIZE), Cancellation()
    producer = pool.submit(distribute, Stream(SCHEMA, batches(5)), outbox, cancellation, block=EAGER)
    until(lambda: outbox.held[0] == SIZE)
    cancellation.cancel()
    with pytest.raises(CancelledError):
        producer.result()
    with pytest.raises(CancelledError):
        outbox.stream(0).table()
    assert outbox.held == (0, 0)


def test_cancelling_a_reader_that_waits(pool):
    outbox, cancellation, left = Outbox(SCHEMA, 1), Cancellation(), []
    outbox._abandoned = lambda: left.append(True)
    reader = pool.submit(outbox.stream(0, cancellation).table)
    cancellation.cancel()
    with pytest.raises(CancelledError):
        reader.result()
    assert left == [True]


def test_one_reader_a_partition():
    outbox = Outbox(SCHEMA, 2)
    outbox.stream(1)
    with pytest.raises(ConflictError):
        outbox.stream(1)
    with pytest.raises(NotFoundError):
        outbox.stream(2)


def test_the_end_is_the_end():
    outbox = Outbox(SCHEMA, 1)
    outbox.finish()
    with pytest.raises(ConflictError):
        outbox.put(0, batch(0), Cancellation())
    with pytest.raises(DataError):
        outbox.put(0, pa.record_batch({"other": [1]}), Cancellation())


def test_several_producers_keep_each_ones_order(pool, tmp_path):
    outbox = Outbox(SCHEMA, 2, memory_bytes=2 * SIZE, directory=tmp_path, grace=0)

    def produce(base):
        for number in range(20):
            outbox.put(0, batch(base + 100 * number), Cancellation())

    producers = [pool.submit(produce, base) for base in (100_000, 200_000, 300_000)]
    reader = outbox.stream(0)
    actual = [next(reader)["id"].to_pylist() for _ in range(60)]
    for producer in producers:
        producer.result()
    for base in (100_000, 200_000, 300_000):
        mine = [row for rows in actual for row in rows if base <= row < base + 100_000]
        assert mine == list(range(base, base + 2000))
