"""Encoding and decoding alone: every format beside a peer that people know, on two and on ten columns.

Peers: lxml's incremental writer (``xmlfile``) for WebRowSet, which gets the columns as ready Python lists of text, so
that only its writing is timed while ours also makes the text; our own decoder's way through lxml's parser; pyarrow's
writers and readers for the others, which read one buffer where ours read chunks of 64 KiB, as a transport gives them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from lxml import etree

from dai.formats import FORMATS, format_named
from dai.formats.webrowset.decode import decoded_by_parser
from dai.streams.stream import Stream
from examples.demo.data import mixed, protein_goterm
from perf.harness import Report, measured, median
from perf.world import World

ROWS = 200_000
BLOCKS = 10_000
WITH_SCHEMA = ("csv", "json")
Case = Callable[[], Any]


def run(world: World, rounds: int) -> Report:
    report = Report("codecs", "Encoding and decoding, every format")
    del world  # nothing but this process is measured
    rounds = max(rounds, 5)
    for title, table in (("protein_goterm, 2 columns", protein_goterm(ROWS)), ("mixed, 10 columns", mixed(ROWS))):
        seconds = measured(_cases(table), rounds)
        report.text(f"## {title}, {ROWS:,} rows, blocks of {BLOCKS:,}\n\nMedians of {rounds} rounds.")
        report.table(
            ["case", "M rows/s", "peer", "times the peer's speed"],
            [
                [case, f"{ROWS / median(took) / 1e6:.2f}", *_beside(case, seconds)]
                for case, took in seconds.items()
                if case not in _PEERS.values()
            ],
        )
        if len(table.schema) == 2:
            faster = median(seconds["lxml xmlfile"]) / median(seconds["webrowset, encode"])
            decoding = ROWS / median(seconds["webrowset, decode"])
            report.goal("WebRowSet decoding, two columns, rows/s", decoding, 1e6, at_least=True)
            report.goal("WebRowSet encoding / lxml xmlfile, speed", faster, 10, at_least=True)
    return report


_PEERS = {
    "webrowset, encode": "lxml xmlfile",
    "webrowset, encode in blocks of 100": "lxml xmlfile",
    "webrowset, encode in blocks of 1": "lxml xmlfile",
    "webrowset, decode": "our reading through lxml",
    "csv, encode": "pyarrow.csv, write",
    "csv, decode": "pyarrow.csv, read",
    "arrow, encode": "pyarrow.ipc, write",
    "arrow, decode": "pyarrow.ipc, read",
    "parquet, encode": "pyarrow.parquet, write",
    "parquet, decode": "pyarrow.parquet, read",
    "json, decode": "pyarrow.json, read",
}


def _beside(case: str, seconds: dict[str, list[float]]) -> tuple[str, str]:
    peer = _PEERS.get(case)
    if peer is None:
        return "-", "-"
    return peer, f"{median(seconds[peer]) / median(seconds[case]):.2f}"


def _cases(table: pa.Table) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for name in FORMATS:
        data = b"".join(_encoded(name, table, BLOCKS))
        chunks = [data[start : start + (1 << 16)] for start in range(0, len(data), 1 << 16)]
        cases[f"{name}, encode"] = lambda name=name: _passed(name, table, BLOCKS)  # type: ignore[misc]
        cases[f"{name}, decode"] = lambda name=name, chunks=chunks: _decoded(name, chunks, table.schema)  # type: ignore[misc]
        if name == "webrowset":
            cases["webrowset, encode in blocks of 100"] = lambda: _passed("webrowset", table, 100)
            cases["webrowset, encode in blocks of 1"] = lambda: _passed("webrowset", table, 1)
            cases["our reading through lxml"] = lambda chunks=chunks: decoded_by_parser(chunks).table()  # type: ignore[misc]
    texts = [column.cast(pa.string()).to_pylist() for column in table.columns]
    cases["lxml xmlfile"] = lambda: _written_by_lxml(texts)
    cases.update(_pyarrow(table))
    return cases


def _encoded(name: str, table: pa.Table, blocksize: int) -> list[Any]:
    return [block.data for block in format_named(name).encode(Stream.of(table), blocksize)]


def _passed(name: str, table: pa.Table, blocksize: int) -> None:
    """Block by block, none kept: as a service sends them."""
    rows = sum(block.rows for block in format_named(name).encode(Stream.of(table), blocksize))
    assert rows == ROWS


def _decoded(name: str, chunks: list[bytes], schema: pa.Schema) -> None:
    options: dict[str, Any] = {"schema": schema} if name in WITH_SCHEMA else {}
    assert format_named(name).decode(chunks, **options).table().num_rows == ROWS


def _written_by_lxml(columns: Sequence[list[str]]) -> None:
    sink = io.BytesIO()
    with etree.xmlfile(sink, encoding="utf-8") as document, document.element("data"):
        for row in zip(*columns, strict=True):
            with document.element("currentRow"):
                for value in row:
                    with document.element("columnValue"):
                        document.write(value)


def _pyarrow(table: pa.Table) -> dict[str, Case]:
    def ipc() -> pa.Buffer:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, BLOCKS)
        return sink.getvalue()

    def comma_separated() -> pa.Buffer:
        sink = pa.BufferOutputStream()
        pa.csv.write_csv(table, sink)
        return sink.getvalue()

    def parquet() -> pa.Buffer:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=BLOCKS, compression="zstd")
        return sink.getvalue()

    lines = pa.py_buffer(b"".join(_encoded("json", table, BLOCKS)))
    stream, text, file = ipc(), comma_separated(), parquet()
    one = {"use_threads": False}
    return {
        "pyarrow.ipc, write": ipc,
        "pyarrow.ipc, read": lambda: pa.ipc.open_stream(stream).read_all(),
        "pyarrow.csv, write": comma_separated,
        "pyarrow.csv, read": lambda: pa.csv.read_csv(
            pa.BufferReader(text),
            pa.csv.ReadOptions(**one),
            pa.csv.ParseOptions(newlines_in_values=True),
            pa.csv.ConvertOptions(column_types=table.schema),
        ),
        "pyarrow.parquet, write": parquet,
        "pyarrow.parquet, read": lambda: pq.read_table(pa.BufferReader(file), **one),
        "pyarrow.json, read": lambda: pa.json.read_json(pa.BufferReader(lines), pa.json.ReadOptions(**one)),
    }
