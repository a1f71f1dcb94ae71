"""Batches of numbered rows, for tests of exchanges."""

import pyarrow as pa

from dai.streams.stream import Stream

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def batch(first: int, rows: int = 100) -> pa.RecordBatch:
    ids = range(first, first + rows)
    return pa.record_batch([pa.array(ids), pa.array([f"row {each}" for each in ids])], schema=SCHEMA)


SIZE = batch(1000).nbytes


def batches(count: int) -> list[pa.RecordBatch]:
    return [batch(1000 + 100 * number) for number in range(count)]


def ids(stream: Stream) -> list[int]:
    return stream.table()["id"].to_pylist()
