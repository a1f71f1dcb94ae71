"""The first rows of a result on purpose: whether that cut it is known before any of them leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from dai.errors import LimitError
from dai.streams.spool import Spilled, Spool
from dai.streams.stream import Stream, size_of

TRUNCATED = b"dai.truncated"
"""Key in the metadata of a schema: ``true`` if the caller's limit cut the result."""
HELD_BYTES = 32 << 20
"""Most bytes of rows that wait in memory; more wait in a temporary file."""


def limited(stream: Stream, rows: int, *, truncate: bool, scratch: Path | None) -> Stream:
    """The tuples where there are at most ``rows``. If there are more: with ``truncate`` the first ones, whose schema
    says so, else LimitError. Reads them before it returns, and closes ``stream`` then."""
    spool = Spool(scratch, "the first rows of a result")
    held: list[pa.RecordBatch | Spilled] = []
    size = count = 0

    def release() -> None:
        for each in held:
            if isinstance(each, Spilled):
                each.release()
        held.clear()

    try:
        with stream:
            for batch in stream:
                part = batch.slice(0, rows - count)
                count += batch.num_rows
                size += size_of(part)
                if part.num_rows:
                    held.append(part if size <= HELD_BYTES else spool.write(part))
                if count > rows:
                    break
        if count > rows and not truncate:
            raise LimitError(
                f"The result has more rows than limit={rows} allows.",
                hint="For the first rows set truncate=true; for more rows raise limit.",
                limit="limit",
            )
    except BaseException:
        release()
        raise
    schema = stream.schema
    if count > rows:
        schema = schema.with_metadata({**(schema.metadata or {}), TRUNCATED: b"true"})

    def batches() -> Iterator[pa.RecordBatch]:
        while held:
            each = held.pop(0)
            batch: pa.RecordBatch = each
            if isinstance(each, Spilled):
                batch = each.read()
                each.release()
            yield batch.replace_schema_metadata(schema.metadata)

    return Stream(schema, batches(), release)


def is_truncated(schema: pa.Schema) -> bool:
    return (schema.metadata or {}).get(TRUNCATED) == b"true"
