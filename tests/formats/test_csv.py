"""CSV: the exact bytes, what other readers make of them, what others write, errors with their line."""

import csv
import io
from typing import Any

import pandas
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dai.errors import DataError, EncodingError, TruncatedError
from dai.formats import csv as module
from dai.formats.csv import Csv
from dai.streams.stream import Stream
from tests.formats.tables import mixed, same

CSV = Csv()
TWO = pa.schema([("a", pa.string()), ("b", pa.int64())])


def document(table: pa.Table, blocksize: int | None = None, **options: Any) -> bytes:
    return b"".join(memoryview(block.data) for block in CSV.encode(Stream.of(table), blocksize, **options))


def rows(data: bytes, **options: Any) -> list[list[Any]]:
    table = CSV.decode([data], **options).table()
    return [list(row) for row in zip(*[column.to_pylist() for column in table.columns], strict=True)]


def test_the_bytes() -> None:
    table = pa.table(
        {
            "plain": ["x", " y ", "NULL"],
            'na"me,': ["", None, 'say "hi", twice'],
            "lines": ["a\nb", "a\rb", "a\r\nb"],
            "n": [1, None, -3],
            "yes": [True, False, None],
        }
    )
    assert document(table) == (
        b'plain,"na""me,",lines,n,yes\r\n'
        b'x,"","a\nb",1,true\r\n'
        b' y ,,"a\rb",,false\r\n'
        b'NULL,"say ""hi"", twice","a\r\nb",-3,\r\n'
    )


def test_header_is_optional() -> None:
    table = mixed(5)
    with_header = document(table)
    assert document(table, includeHeader=False) == with_header.split(b"\r\n", 1)[1]
    assert same(
        CSV.decode([document(table, includeHeader=False)], schema=table.schema, includeHeader=False).table(), table
    )
    assert CSV.decode([b"1,x\r\n"], includeHeader=False).schema.names == ["column1", "column2"]


def test_no_rows_without_header_is_one_empty_block() -> None:
    blocks = list(CSV.encode(Stream.of(mixed(0)), 10, includeHeader=False))
    assert [(bytes(block.data), block.rows) for block in blocks] == [(b"", 0)]
    assert CSV.decode([], schema=TWO, includeHeader=False).table().num_rows == 0


def test_one_column_of_null_is_empty_lines() -> None:
    table = pa.table({"a": [None, "", "x", None]})
    assert document(table) == b'a\r\n\r\n""\r\nx\r\n\r\n'
    assert same(CSV.decode([document(table)]).table(), table)


@pytest.mark.parametrize("header", [True, False])
def test_a_byte_order_mark_is_read_and_data_that_looks_like_one_survives(header: bool) -> None:
    assert rows(b"\xef\xbb\xbfa\r\nx\r\n") == [["x"]]
    table = pa.table({"\ufeffa" if header else "a": ["\ufeffx", "\ufeffy"]})
    data = document(table, includeHeader=header)
    assert same(CSV.decode([data], schema=table.schema, includeHeader=header).table(), table)


def test_a_byte_order_mark_in_the_middle_is_data() -> None:
    table = pa.table({"a": ["\ufeffx"] * 150_000})
    chunks = [bytes(block.data) for block in CSV.encode(Stream.of(table), 10_000)]
    assert same(CSV.decode(chunks).table(), table)


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text('",\r\n ab', max_size=6)


@settings(deadline=None)
@given(values=st.lists(st.tuples(_text, _text), max_size=6))
@example(values=[("\r", "\n"), ("", '"')])
def test_the_standard_library_reads_the_same(values: list[tuple[str, str]]) -> None:
    table = pa.table(
        {"a": pa.array([a for a, _ in values], pa.string()), "b": pa.array([b for _, b in values], pa.string())}
    )
    text = document(table).decode()
    assert [tuple(row) for row in csv.reader(io.StringIO(text, newline=""), strict=True)] == [("a", "b"), *values]


@settings(deadline=None)
@given(values=st.lists(st.tuples(_text, _text), max_size=6), ending=st.sampled_from(["\r\n", "\n"]))
def test_what_the_standard_library_writes_is_read(values: list[tuple[str, str]], ending: str) -> None:
    sink = io.StringIO(newline="")
    csv.writer(sink, lineterminator=ending, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *values])
    assert rows(sink.getvalue().encode()) == [list(row) for row in values]


def test_pandas_reads_it() -> None:
    table = mixed(40)
    actual = pandas.read_csv(io.BytesIO(document(table)), keep_default_na=False, dtype=str)
    assert actual["text"].tolist() == [text or "" for text in table["text"].to_pylist()]


def test_the_last_line_break_may_be_missing() -> None:
    assert rows(b"a,b\nx,1\ny,2") == [["x", "1"], ["y", "2"]]


def test_empty_lines_between_records_of_several_columns_are_no_records() -> None:
    assert rows(b"a,b\nx,1\n\ny,2\n\n") == [["x", "1"], ["y", "2"]]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"a,b\r\nx,1\r\ny\r\nz,3\r\n", 3),
        (b"a,b\r\nx,1\r\ny,2,3\r\n", 3),
        (b'a,b\r\n"x\r\n\r\n",1\r\ny,2,3\r\n', 5),
        (b'a,b\r\nx,1\r\nsay "no",1\r\n', 3),
        (b'a,b\r\nx,1\r\n"say" no,1\r\n', 3),
    ],
)
def test_errors_name_the_line(data: bytes, line: int) -> None:
    with pytest.raises(DataError, match=f"Line {line}:"):
        CSV.decode([data]).table()


def test_a_line_number_far_down() -> None:
    data = b"a,b\r\n" + b'"x\r\ny",1\r\n' * 60_000 + b"z\r\n"
    chunks = [data[start : start + 10_000] for start in range(0, len(data), 10_000)]
    with pytest.raises(DataError, match="Line 120002:"):
        CSV.decode(chunks).table()


def test_an_open_quote_is_truncated() -> None:
    with pytest.raises(TruncatedError, match="line 3"):
        CSV.decode([b'a,b\r\nx,1\r\n"y,2\r\nz,3\r\n']).table()
    with pytest.raises(TruncatedError, match="header"):
        CSV.decode([])


def test_a_value_that_does_not_fit_names_row_and_column() -> None:
    with pytest.raises(DataError, match="Row 3, column 'b': 'no'"):
        CSV.decode([b"a,b\r\nx,1\r\ny,2\r\nz,no\r\n"], schema=TWO).table()
    with pytest.raises(DataError, match="column 'b'"):
        CSV.decode([b'a,b\r\nx,""\r\n'], schema=TWO).table()


def test_a_header_that_is_not_the_schemas() -> None:
    with pytest.raises(DataError, match="header"):
        CSV.decode([b"b,a\r\n1,x\r\n"], schema=TWO)


def test_bytes_that_are_no_utf8() -> None:
    for data in (b"a,b\r\n\xff,1\r\n", b"\xff\r\nx\r\n"):
        with pytest.raises(DataError):
            CSV.decode([data]).table()


def test_a_record_longer_than_what_is_parsed_at_a_time() -> None:
    table = pa.table({"a": ['"\r\n' * 400_000, "x"], "b": ["y", "," * 300_000]})
    data = document(table)
    chunks = [data[start : start + 50_000] for start in range(0, len(data), 50_000)]
    assert same(CSV.decode(chunks).table(), table)


def test_a_quote_that_never_closes_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RECORD_BYTES", 1 << 20)
    taken = 0

    def endless() -> Any:
        nonlocal taken
        yield b'a,b\r\n"'
        while True:
            taken += 1 << 16
            yield b"x\n" * (1 << 15)

    with pytest.raises(DataError, match="longer than"):
        CSV.decode(endless()).table()
    assert taken < 8 << 20


def test_a_type_without_text_is_refused_by_name() -> None:
    with pytest.raises(EncodingError) as caught:
        document(pa.table({"s": pa.array([{"x": 1}])}))
    assert caught.value.extra["column"] == "s"
