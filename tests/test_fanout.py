import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.errors import DataError, LimitError
from dai.formats import format_named
from dai.streams.fanout import FanOut
from dai.streams.stream import Block, ByteStream, Encoded, Stream
from tests.documents import table


def stream(rows: int = 10, each: int = 1, closed: list[str] | None = None) -> Stream:
    closed = closed if closed is not None else []
    return Stream(table(rows).schema, table(rows).to_batches(each), lambda: closed.append("closed"))


@pytest.mark.parametrize("memory", [0, 50, 1 << 20])
def test_each_reader_sees_all_of_it(memory):
    for branch in FanOut(stream(), 3, memory).branches():
        assert branch.table().equals(table(10))


@given(order=st.lists(st.integers(0, 2), max_size=60), memory=st.sampled_from([0, 40, 1 << 20]))
def test_any_order_of_reading(order, memory):
    branches = FanOut(stream(), 3, memory).branches()
    seen: list[list[pa.RecordBatch]] = [[], [], []]
    for reader in order + [0] * 11 + [1] * 11 + [2] * 11:
        batch = next(branches[reader], None)
        if batch is not None:
            seen[reader].append(batch)
    for batches in seen:
        assert pa.Table.from_batches(batches, table(0).schema).equals(table(10))


def test_bytes_keep_their_rows_on_disk():
    blocks = [Block(b"a" * 100, 3), Block(b"", 0), Block(memoryview(b"b"), 1)]
    first, second = FanOut(ByteStream("text/plain", blocks), 2, memory=0).branches()
    assert first.read() == b"a" * 100 + b"b"
    assert [(bytes(block.data), block.rows) for block in second] == [(b"a" * 100, 3), (b"", 0), (b"b", 1)]
    assert first.media_type == second.media_type == "text/plain"


def test_encoded_stays_encoded():
    branches = FanOut(Encoded(stream(), format_named("csv"), 3), 2, memory=0).branches()
    assert all(isinstance(branch, Encoded) for branch in branches)
    assert branches[0].read() == branches[1].read()


def test_types_that_are_hard_to_spill():
    hard = pa.table(
        {
            "d": pa.array(["x", "y", "x"]).dictionary_encode(),
            "l": pa.array([[1], None, []]),
            "n": pa.nulls(3),
        }
    )
    first, second = FanOut(Stream.of(hard), 2, memory=0).branches()
    assert first.table().equals(hard)
    assert second.table().equals(hard)
    none = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    for branch in FanOut(Stream(none.schema, [none]), 2, memory=-1).branches():
        assert [batch.num_rows for batch in branch] == [3]


def test_memory_and_file_hold_only_the_distance_between_readers():
    fan = FanOut(stream(100), 2, memory=100)
    fast, slow = fan.branches()
    for _ in range(40):
        next(fast)
    assert fan._held <= 100
    assert fan._spool.size > 0
    for _ in range(40):
        next(slow)
    assert fan._held == 0
    assert fan._spool.size == 0
    assert len(list(fast)) == len(list(slow)) == 60


def test_closed_when_the_last_reader_leaves():
    closed: list[str] = []
    fan = FanOut(stream(closed=closed), 2, memory=0)
    fast, slow = fan.branches()
    next(fast)
    fast.close()
    assert not closed
    slow.close()
    assert closed == ["closed"]
    assert fan._spool.size == 0


def test_an_abandoned_reader_holds_nothing():
    fan = FanOut(stream(1000), 2, memory=1 << 20)
    stays, leaves = fan.branches()
    for _ in range(10):
        next(stays)
    leaves.close()
    assert not fan._window
    assert len(list(stays)) == 990


def test_every_reader_gets_the_failure_after_what_came_before_it():
    def batches():
        yield from table(2).to_batches(1)
        raise DataError("half-way")

    for branch in FanOut(Stream(table(0).schema, batches()), 2).branches():
        assert next(branch).num_rows == 1
        assert next(branch).num_rows == 1
        with pytest.raises(DataError, match="half-way"):
            next(branch)


def test_drain_holds_all_for_later_and_stops_when_nobody_wants_it():
    fan = FanOut(stream(), 1, memory=0)
    (branch,) = fan.branches()
    fan.drain()
    assert branch.table().equals(table(10))
    closed: list[str] = []
    fan = FanOut(stream(closed=closed), 1)
    fan.branches()[0].close()
    fan.drain()
    assert closed == ["closed"]


def test_no_room_on_disk_is_a_clear_error(tmp_path: Path):
    fast, _ = FanOut(stream(), 2, memory=0, scratch=tmp_path / "gone").branches()
    with pytest.raises(LimitError, match="No temporary file") as raised:
        next(fast)
    assert str(tmp_path) not in str(raised.value)


def test_readers_go_on_with_what_is_held_while_another_waits_for_the_source():
    waiting, go_on = threading.Event(), threading.Event()

    def batches():
        first, second = table(2).to_batches(1)
        yield first
        waiting.set()
        assert go_on.wait(30)
        yield second

    fast, slow = FanOut(Stream(table(0).schema, batches()), 2).branches()
    seen: list[pa.RecordBatch] = []
    reader = threading.Thread(target=lambda: seen.extend(fast))
    reader.start()
    assert waiting.wait(30)
    assert next(slow).num_rows == 1
    go_on.set()
    reader.join(30)
    assert len(seen) == 2
    assert next(slow).num_rows == 1


def test_readers_in_threads():
    branches = FanOut(stream(300), 4, memory=200).branches()
    by_name: dict[int, pa.Table] = {}

    def read(place: int) -> None:
        by_name[place] = branches[place].table()

    threads = [threading.Thread(target=read, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(by_name[place].equals(table(300)) for place in range(4))
