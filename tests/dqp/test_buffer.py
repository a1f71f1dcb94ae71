"""What waits between a source and DuckDB: in memory and on the disk, and what it leaves where it cannot be made or
cannot write."""

from pathlib import Path

import pytest

from dai.errors import CancelledError, LimitError
from dai.streams.cancellation import Cancellation
from dqp.execution import buffer
from dqp.execution.buffer import Buffer
from dqp.execution.execution import Execution
from tests.dqp.doubles import batch, execution


def test_a_buffer_of_a_cancelled_query_takes_no_part_of_the_memory() -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    before = buffer._ROOM._buffers
    with execution() as running, pytest.raises(CancelledError):
        Buffer(1 << 20, 1, running.directory, cancellation, running.measure("a"))
    assert buffer._ROOM._buffers == before


def test_where_no_file_can_be_made_it_is_said(tmp_path: Path) -> None:
    with execution() as running:
        buffer = Buffer(1, 1, lambda: tmp_path / "missing", running.cancellation, running.measure("a"))
        buffer.put(batch(1, 100))
        with pytest.raises(LimitError, match="No temporary file"):
            buffer.put(batch(101, 100))
        buffer.close()


def _buffer(running: Execution, capacity: int, producers: int = 1) -> Buffer:
    buffer = Buffer(capacity, producers, running.directory, running.cancellation, running.measure("buffer"))
    running.at_end(buffer.close)
    return buffer


def test_a_buffer_that_nobody_reads_goes_to_the_disk() -> None:
    with execution() as running:
        buffer = _buffer(running, 100_000)
        for at in range(100):
            buffer.put(batch(at * 1_000, 1_000))
        buffer.finish()
        (measured,) = running.measurements()
        assert measured.spooled > 1_000_000
        assert buffer.whole(1 << 30) is None
        assert [row for each in buffer for row in each["id"].to_pylist()] == list(range(100_000))


def test_a_buffer_that_is_read_holds_its_producer() -> None:
    with execution() as running:
        buffer = _buffer(running, 1)
        buffer.put(batch(0, 10))
        rows = iter(buffer)
        next(rows)

        def fill() -> None:
            for at in range(1, 4):
                buffer.put(batch(at * 10, 10))
            buffer.finish()

        running.start(fill, "filling")
        assert [each["id"][0].as_py() for each in rows] == [10, 20, 30]
        (measured,) = running.measurements()
        assert measured.spooled == 0


def test_buffers_share_the_room_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = batch(0, 1_000)
    monkeypatch.setattr("dqp.execution.buffer.TOTAL", 100 * rows.nbytes)
    monkeypatch.setattr("dqp.execution.buffer.LEAST", 2 * rows.nbytes)

    def held() -> int:
        with execution() as running:
            buffer = _buffer(running, 1 << 30)
            for _ in range(200):
                buffer.put(rows)
            (measured,) = running.measurements()
            return (measured.bytes - measured.spooled) // rows.nbytes

    alone = held()
    assert 2 < alone <= 100
    with execution() as running:
        others = [_buffer(running, 1 << 30) for _ in range(9)]
        assert 2 < held() <= 10
        others += [_buffer(running, 1 << 30) for _ in range(90)]
        assert held() == 2
    assert held() == alone


def test_a_small_whole_stays_to_be_read() -> None:
    with execution() as running:
        buffer = _buffer(running, 1 << 20)
        buffer.put(batch(1, 10))
        buffer.finish()
        assert [each.num_rows for each in buffer.whole(1 << 20) or ()] == [10]
        assert buffer.whole(10) is None
        assert [each.num_rows for each in buffer] == [10]
