"""Tab-separated values."""

import io
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv

from dai.formats import Format
from dai.streams.stream import Block, Stream

TSV = Format(
    "tsv",
    "text/tab-separated-values",
    (".tsv", ".tab"),
    "toy.format:Tsv",
    signature=b"#tsv",
    aliases=("text/x-tsv",),
)
FIRST = b"#tsv\n"


class Tsv:
    """A first line that says what it is, one with the names, then the rows."""

    def encode(self, stream: Stream, blocksize: int | None = None, **options: Any) -> Iterator[Block]:
        with stream:
            yield Block(FIRST + self._written(stream.schema.empty_table(), names=True), 0)
            for batch in stream.rebatch(blocksize) if blocksize else stream:
                yield Block(self._written(pa.Table.from_batches([batch]), names=False), batch.num_rows)

    def decode(self, chunks: Iterable[bytes], **options: Any) -> Stream:
        data = pa.BufferReader(b"".join(chunks))  # a file of Python is read by a thread, even when Python ends
        return Stream.of(pa.csv.read_csv(data, pa.csv.ReadOptions(skip_rows=1), pa.csv.ParseOptions(delimiter="\t")))

    def _written(self, table: pa.Table, *, names: bool) -> bytes:
        out = io.BytesIO()
        pa.csv.write_csv(table, out, pa.csv.WriteOptions(include_header=names, delimiter="\t", quoting_style="none"))
        return out.getvalue()
