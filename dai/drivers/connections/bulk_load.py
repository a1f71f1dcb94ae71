"""The course of a bulk load, the same for every driver that inserts batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from dai.drivers import Driver, Session
from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

PORTION_ROWS = 16_384

Insert = Callable[[pa.RecordBatch, int], int]
"""Inserts a batch whose first row has that number (from 1): rows inserted."""
Prepare = Callable[[Session, bool], Insert]
"""Looks the table up in a session; creates it first if the flag says so."""


def load(
    driver: Driver, stream: Stream, prepare: Prepare, *, cancellation: Cancellation, create: bool, transactional: bool
) -> int:
    """All batches in one transaction, or each portion in its own; then an error says how many rows stayed, and so does
    its ``loaded``. Closes the stream."""
    with stream, stream.rebatch(PORTION_ROWS) as portions:
        if transactional:
            with driver.transaction(cancellation=cancellation) as session:
                insert = prepare(session, create)
                return sum(insert(batch, row) for batch, row in _numbered(portions))
        with driver.transaction(cancellation=cancellation) as session:
            prepare(session, create)
        stayed = 0
        try:
            for batch, row in _numbered(portions):
                with driver.transaction(cancellation=cancellation) as session:
                    loaded = prepare(session, False)(batch, row)
                stayed += loaded
        except DaiError as error:
            error.detail = f"{error.detail} {stayed} rows were loaded before and stay.".strip()
            error.extra["loaded"] = stayed
            raise
        return stayed


def _numbered(stream: Stream) -> Iterator[tuple[pa.RecordBatch, int]]:
    row = 1
    for batch in stream.checked():
        if batch.num_rows:
            yield batch, row
        row += batch.num_rows
