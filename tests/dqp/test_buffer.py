"""What waits between a source and DuckDB: what it leaves where it cannot be made or cannot write."""

from pathlib import Path

import pytest

from dai.errors import CancelledError, LimitError
from dai.streams.cancellation import Cancellation
from dqp.execution import buffer
from dqp.execution.buffer import Buffer
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
