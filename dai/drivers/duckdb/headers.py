"""The header of a CSV file whose rows have not all as many cells: DuckDB then takes other columns or leaves rows out,
and does not say so."""

from __future__ import annotations

import csv
import glob
import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection

from dai.errors import DataError

_DELIMITERS = ",;\t|"
_BEFORE = 100
"""Lines that may stand before a header."""
_LINE = 1 << 21
"""Characters: DuckDB refuses longer lines."""
_ROWS = 20_480
"""So many DuckDB looks at to find the columns; where a row behind them has more or fewer cells, it says so."""
_SNIFFED = """
SELECT SkipRows, HasHeader, [each.name FOR each IN Columns], [each.type FOR each IN Columns], Delimiter
FROM sniff_csv(?)
"""


def check_headers(connection: DuckDBPyConnection, paths: Sequence[str], columns: Collection[str]) -> None:
    """DataError where a header is not among the ``columns`` that DuckDB has found in these files (none, where it
    failed), because some row has more or fewer cells. Sentences above it, and names with values, are none."""
    headers = [(path, header) for path in paths if (header := _header(path)) is not None]
    expected = {each.casefold() for each in columns if f"/{each}=" not in paths[0]}  # those of folders are in no header
    named = {each.strip().casefold() for _, (_, _, cells) in headers for each in cells}
    if named == expected or {len(cells) for _, (_, _, cells) in headers} == {len(expected)}:
        return
    for path, (line, delimiter, _) in headers:
        with suppress(csv.Error, OSError, UnicodeError):
            _check(connection, path, line, delimiter)


def _check(connection: DuckDBPyConnection, path: str, first: int, delimiter: str) -> None:
    with suppress(duckdb.Error):  # where DuckDB finds no columns at all
        skipped, has_header, names, types, sniffed = connection.execute(_SNIFFED, [glob.escape(path)]).fetchall()[0]
        if skipped:
            lost, delimiter = not has_header or {*types} == {"VARCHAR"}, sniffed
        else:
            lost = len(names) == 1 and (not has_header or delimiter in names[0])
        if not lost:
            return
    with _lines(path) as lines:
        reader = csv.reader(lines, delimiter=delimiter)
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
    with suppress(csv.Error, OSError, UnicodeError), _lines(path) as lines:
        for number, line in enumerate(islice(lines, _BEFORE), 1):
            split = {each: next(csv.reader([line], delimiter=each), []) for each in _DELIMITERS}
            delimiter, cells = max(split.items(), key=lambda each: len(each[1]))
            if len(cells) > 1 and not any(f"{each} " in line for each in ":,;"):
                return number, delimiter, cells
    return None


@contextmanager
def _lines(path: str) -> Iterator[Iterator[str]]:
    """Also of a compressed file. UnicodeError where it is not UTF-8: that is for DuckDB to say."""
    with closing(pa.input_stream(path)) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        yield iter(partial(text.readline, _LINE), "")
