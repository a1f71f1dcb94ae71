"""WebRowSet encoding and decoding against lxml's incremental writer and its parser: rows a second, medians of rounds.

    python -m perf.webrowset_codec [--rows N] [--rounds N]

Two columns are ``protein_goterm``'s shape; ten are mixed types. The writer of lxml gets the columns as Python lists of
text, so that only writing is timed there, while our encoder also makes the text.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from lxml import etree

from dai.formats.webrowset import WebRowSet
from dai.formats.webrowset_decode import decoded_by_parser
from dai.stream import Stream

FORMAT = WebRowSet()


def two_columns(rows: int) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table(
        {
            "orf": pa.array([f"Y{n % 6000:04d}W-{n % 7}" for n in numbers.tolist()]),
            "go": pa.array([f"GO:{n % 9999999:07d}" for n in numbers.tolist()]),
        }
    )


def ten_columns(rows: int) -> pa.Table:
    random = np.random.default_rng(2)
    cents = pa.array(random.integers(-(10**9), 10**9, rows))
    numeric = cents.cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2))
    return pa.table(
        {
            "a": pa.array(random.integers(0, 10**6, rows), pa.int32()),
            "b": pa.array(random.integers(0, 100, rows), pa.int32()),
            "c": pa.array(random.integers(-(2**62), 2**62, rows), pa.int64()),
            "d": pa.array(random.normal(size=rows)),
            "e": numeric.cast(pa.decimal128(12, 2)),
            "f": pa.array(random.integers(0, 20_000, rows).astype(np.int32)).cast(pa.date32()),
            "g": pa.array(random.integers(0, 2 * 10**15, rows)).cast(pa.timestamp("us")),
            "h": pa.array(random.random(rows) < 0.5),
            "i": pa.array([f"some text, number {n}" for n in range(rows)]),
            "j": pa.array([f"{n * 0x9E3779B97F4A7C15 % 2**128:032x}" for n in range(rows)]),
        }
    )


def encode(table: pa.Table, blocksize: int | None = None) -> int:
    return sum(len(block) for block in FORMAT.encode(Stream.of(table), blocksize))


def write_with_lxml(columns: Sequence[list[str]]) -> int:
    sink = io.BytesIO()
    with etree.xmlfile(sink, encoding="utf-8") as document, document.element("data"):
        for row in zip(*columns, strict=True):
            with document.element("currentRow"):
                for value in row:
                    with document.element("columnValue"):
                        document.write(value)
    return sink.tell()


def drain(stream: Stream) -> int:
    return sum(batch.num_rows for batch in stream)


def measured(cases: dict[str, Callable[[], int]], rows: int, rounds: int) -> dict[str, float]:
    """Rows a second of each case: the rounds go round the cases, so that what disturbs one disturbs all."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(rounds + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if round_:
                seconds[name].append(time.perf_counter() - start)
    return {name: rows / statistics.median(each) for name, each in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for title, table in (("two columns", two_columns(options.rows)), ("ten mixed columns", ten_columns(options.rows))):
        texts = [column.cast(pa.string()).to_pylist() for column in table.columns]
        chunks = [bytes(memoryview(block.data)) for block in FORMAT.encode(Stream.of(table))]
        cases: dict[str, Callable[[], int]] = {
            "encode": lambda table=table: encode(table),  # type: ignore[misc]
            "encode, blocks of 1": lambda table=table: encode(table, 1),  # type: ignore[misc]
            "encode, blocks of 100": lambda table=table: encode(table, 100),  # type: ignore[misc]
            "lxml xmlfile": lambda texts=texts: write_with_lxml(texts),  # type: ignore[misc]
            "decode": lambda chunks=chunks: drain(FORMAT.decode(chunks)),  # type: ignore[misc]
            "decode by lxml": lambda chunks=chunks: drain(decoded_by_parser(chunks)),  # type: ignore[misc]
        }
        figures = measured(cases, options.rows, options.rounds)
        print(f"{title}, {options.rows} rows, {sum(map(len, chunks)) / options.rows:.0f} bytes a row")
        for name, figure in figures.items():
            against = "decode by lxml" if name.startswith("decode") else "lxml xmlfile"
            print(f"  {name:24} {figure / 1e6:8.3f} M rows/s  {figure / figures[against]:6.1f} x {against}")


if __name__ == "__main__":
    main()
