"""The header of a CSV file whose rows have not all as many cells: DuckDB then takes other columns or leaves rows out,
and does not say so."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection

from dai.errors import DataError

_DELIMITERS = ",;\t|"
_BEFORE = 100
"""Lines that may stand before a header."""
_ROWS = 20_480
"""So many DuckDB looks at to find the columns; where a row behind them has more or fewer cells, it says so."""
_SNIFFED = "SELECT Delimiter, SkipRows, HasHeader, [each.type FOR each IN Columns] FROM sniff_csv(?)"


def check_header(connection: DuckDBPyConnection, path: str, columns: Collection[str]) -> None:
    """DataError where the header is not among the ``columns`` that DuckDB has found (none, where it failed), because
    some row has more or fewer cells. Sentences above it, and names with values, are none."""
    with suppress(csv.Error, OSError):
        if (header := _header(path)) is None or {each.strip() for each in header[2]} <= {*columns}:
            return
        first, delimiter, _ = header
        with suppress(duckdb.Error):  # where DuckDB finds no columns at all
            sniffed, skipped, has_header, types = connection.execute(_SNIFFED, [path]).fetchall()[0]
            lost = not has_header or {*types} == {"VARCHAR"} if skipped else len(types) == 1
            if not lost:
                return
            delimiter = sniffed if skipped else delimiter
        with _text(path) as file:
            reader = csv.reader(file, delimiter=delimiter)
            counts = [(reader.line_num, len(row)) for row in islice(reader, _ROWS) if row and reader.line_num >= first]
        wanted = counts[0][1]
        other = next((each for each in counts if each[1] != wanted), None)
        if wanted < 2 or other is None or 2 * sum(count > 1 for _, count in counts) < len(counts):
            return
        raise DataError(
            f"{Path(path).name}: line {other[0]} has {other[1]} cell{'' if other[1] == 1 else 's'}, the header (line "
            f"{first}) has {wanted}.",
            hint="Give each line as many cells as the header, or leave the line out.",
        )


def _header(path: str) -> tuple[int, str, list[str]] | None:
    """Number, delimiter and cells of the first line that may be one."""
    with _text(path) as file:
        for number, line in enumerate(islice(file, _BEFORE), 1):
            split = {each: next(csv.reader([line], delimiter=each), []) for each in _DELIMITERS}
            delimiter, cells = max(split.items(), key=lambda each: len(each[1]))
            if len(cells) > 1 and not any(f"{each} " in line for each in ":,;"):
                return number, delimiter, cells
    return None


@contextmanager
def _text(path: str) -> Iterator[io.TextIOWrapper]:
    """Also of a compressed file. What is not UTF-8 is for DuckDB to say."""
    with closing(pa.input_stream(path)) as file:
        yield io.TextIOWrapper(file, "utf-8-sig", "replace", newline="")
