"""Rows a second of every format, encoding and decoding, beside pyarrow's own writers and readers in the same run.

    python perf/formats_codec.py [--rounds 5]

Two tables: 16,803 rows of two short strings (the shape of protein_goterm) and 200,000 rows of ten mixed columns.
Medians of the rounds after one to warm up; ours end with the bytes of the last block, or with a table of the original
types read from chunks of 64 KiB. pyarrow reads from one buffer: its Arrow reader then copies and checks nothing.
"""

from __future__ import annotations

import argparse
import datetime
import io
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from dai.formats import FORMATS, format_named
from dai.stream import Stream

BLOCK_ROWS = 10_000
WITH_SCHEMA = {"csv", "json"}


def goterms(rows: int = 16_803) -> pa.Table:
    return pa.table(
        {
            "ORF": [f"Y{'ABCDEFGHIJKLMNOP'[i % 16]}{'LR'[i % 2]}{i % 1000:03d}{'CW'[i % 2]}" for i in range(rows)],
            "GOTermIdentifier": [f"GO:{i * 7919 % 10_000_000:07d}" for i in range(rows)],
        }
    )


def mixed(rows: int = 200_000) -> pa.Table:
    random = np.random.default_rng(1)
    moments = pa.array(random.integers(0, 2 * 10**15, rows), pa.int64())
    return pa.table(
        {
            "id": pa.array(np.arange(rows)),
            "small": pa.array(random.integers(-1000, 1000, rows), pa.int16()),
            "x": pa.array(random.normal(size=rows)),
            "y": pa.array(random.normal(size=rows), mask=random.random(rows) < 0.1),
            "flag": pa.array(random.random(rows) < 0.5),
            "price": pa.array(
                [Decimal(int(n)).scaleb(-2) for n in random.integers(0, 10**9, rows)], pa.decimal128(12, 2)
            ),
            "day": pa.array(
                [datetime.date(2000, 1, 1) + datetime.timedelta(int(n)) for n in random.integers(0, 9000, rows)]
            ),
            "moment": moments.cast(pa.timestamp("us")),
            "name": [f"name {i % 5000} & co, {'x' * (i % 20)}" for i in range(rows)],
            "note": pa.array(
                [None if i % 4 == 0 else 'say "hi"\n' if i % 50 == 1 else f"note {i}" for i in range(rows)]
            ),
        }
    )


@dataclass(frozen=True)
class Peer:
    """What pyarrow itself offers for the format."""

    name: str
    encode: Callable[[pa.Table], bytes]
    decode: Callable[[bytes, pa.Schema], pa.Table] | None


def _ipc(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, BLOCK_ROWS)
    return sink.getvalue()


def _csv(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(table, sink)
    return sink.getvalue()


def _parquet(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=BLOCK_ROWS, compression="zstd")
    return sink.getvalue()


def _read_csv(data: bytes, schema: pa.Schema) -> pa.Table:
    return pa.csv.read_csv(
        pa.BufferReader(data),
        pa.csv.ReadOptions(use_threads=False),
        pa.csv.ParseOptions(newlines_in_values=True),
        pa.csv.ConvertOptions(column_types=schema),
    )


def _read_json(data: bytes, _: pa.Schema) -> pa.Table:
    return pa.json.read_json(pa.BufferReader(data), pa.json.ReadOptions(use_threads=False))


PEERS = {
    "arrow": Peer("pyarrow.ipc", _ipc, lambda data, _: pa.ipc.open_stream(data).read_all()),
    "csv": Peer("pyarrow.csv", _csv, _read_csv),
    "parquet": Peer("pyarrow.parquet", _parquet, lambda data, _: pq.read_table(io.BytesIO(data), use_threads=False)),
    "json": Peer("pyarrow.json / pandas", lambda table: _pandas_json(table), _read_json),
}


def _pandas_json(table: pa.Table) -> bytes:
    text: str = table.to_pandas().to_json(orient="records", lines=True, date_format="iso", default_handler=str)
    return text.encode()


def median(work: Callable[[], Any], rounds: int) -> float:
    """Seconds."""
    work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def encoded(name: str, table: pa.Table, blocksize: int) -> list[Any]:
    return [block.data for block in format_named(name).encode(Stream.of(table), blocksize)]


def decoded(name: str, chunks: list[bytes], schema: pa.Schema) -> pa.Table:
    options: dict[str, Any] = {"schema": schema} if name in WITH_SCHEMA else {}
    return format_named(name).decode(chunks, **options).table()


def chunked(data: bytes, size: int = 1 << 16) -> list[bytes]:
    """As a transport hands it over."""
    return [data[start : start + size] for start in range(0, len(data), size)]


def measure(name: str, label: str, table: pa.Table, rounds: int) -> None:
    rows = table.num_rows
    data = b"".join(memoryview(part) for part in encoded(name, table, BLOCK_ROWS))
    chunks = chunked(data)
    writing = median(lambda: encoded(name, table, BLOCK_ROWS), rounds)
    reading = median(lambda: decoded(name, chunks, table.schema), rounds)
    line = f"{name:10} {label:14} {len(data) / 1e6:7.1f} MB  encode {rows / writing / 1e6:7.2f} M rows/s"
    peer = PEERS.get(name)
    if peer is None:
        print(f"{line}  decode {rows / reading / 1e6:7.2f} M rows/s")
        return
    theirs = bytes(memoryview(peer.encode(table)))
    their_writing = median(lambda: peer.encode(table), rounds)
    line += f" ({writing / their_writing:5.2f} x the time of {peer.name})"
    line += f"  decode {rows / reading / 1e6:7.2f} M rows/s"
    if peer.decode is not None:
        decode = peer.decode
        their_reading = median(lambda: decode(theirs, table.schema), rounds)
        line += f" ({reading / their_reading:5.2f} x)"
    print(line)


def block_sizes(table: pa.Table, rounds: int) -> None:
    """What small blocks cost: encoding only."""
    for name in FORMATS:
        whole = median(lambda name=name: encoded(name, table, table.num_rows), rounds)  # type: ignore[misc]
        parts = []
        for size in (1, 10, 100, 1000):
            seconds = median(lambda name=name, size=size: encoded(name, table, size), max(1, rounds // 2))  # type: ignore[misc]
            parts.append(f"{size}: {seconds / whole:.2f} x")
        print(f"{name:10} encoding {table.num_rows} rows in blocks of {', '.join(parts)} the time of one block")


def throughput(rounds: int) -> None:
    """Arrow decoding of 100 MB in chunks of 64 KiB, values fully validated."""
    table = pa.concat_tables([mixed(100_000)] * 10).combine_chunks()
    data = b"".join(memoryview(part) for part in encoded("arrow", table, BLOCK_ROWS))
    chunks = chunked(data)
    seconds = median(lambda: decoded("arrow", chunks, table.schema), rounds)
    print(f"arrow      decoding {len(data) / 1e6:.0f} MB: {len(data) / seconds / 1e9:.2f} GB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for label, table in (("16,803 x 2", goterms()), ("200,000 x 10", mixed())):
        for name in FORMATS:
            measure(name, label, table, rounds)
    block_sizes(goterms(), rounds)
    throughput(rounds)


if __name__ == "__main__":
    main()
