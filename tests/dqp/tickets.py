"""Tickets of one query and the streams behind them, for tests of the Flight port."""

import pyarrow as pa

from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.runtimes.flight.client import fetch
from dqp.runtimes.flight.server import Ticket, new_token

SCHEMA = pa.schema([pa.field("id", pa.int64(), metadata={"dai.type": "bigint"}), ("text", pa.string())])
TOKEN = new_token()


def batch(first: int, rows: int = 100) -> pa.RecordBatch:
    ids = range(first, first + rows)
    return pa.record_batch([pa.array(ids), pa.array([f"row {each}" for each in ids])], schema=SCHEMA)


def ticket(fragment: str = "f1", partition: int = 0, token: str = "") -> Ticket:
    return Ticket("q1", 1, fragment, partition, token or TOKEN)


def get(address: str, which: Ticket, cancellation: Cancellation | None = None, timeout: float = 20) -> Stream:
    return fetch(address, which, cancellation=cancellation or Cancellation(), timeout=timeout)


def of(*batches: pa.RecordBatch):
    return lambda cancellation: Stream(SCHEMA, list(batches))
