"""JSON lines: the exact bytes, what other readers make of them, what others write, errors with their line."""

import json
import math
from decimal import Decimal
from typing import Any

import orjson
import polars
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dai.errors import DataError, EncodingError, TruncatedError
from dai.formats import format_named
from dai.formats.json import JsonLines, unique
from dai.streams.stream import TYPE_NAME, Stream
from tests.formats.tables import every_type, mixed, same

JSON = JsonLines()


def document(table: pa.Table, blocksize: int | None = None, **options: Any) -> bytes:
    return b"".join(memoryview(block.data) for block in JSON.encode(Stream.of(table), blocksize, **options))


def test_the_bytes() -> None:
    table = pa.table(
        {
            "id": pa.array([1, None], pa.int64()),
            'ke"y': ['say "hi"\\\n\x00', None],
            "d": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
            "x": [math.nan, -math.inf],
            "l": [["a", None], []],
            "b": [b"\x00\xff", b""],
            "t": pa.array([0, None], pa.timestamp("us", "UTC")),
        }
    )
    assert document(table) == (
        b'{"id":1,"ke\\"y":"say \\"hi\\"\\\\\\n\\u0000","d":1.50,"x":"NaN","l":["a",null],"b":"AP8=",'
        b'"t":"1970-01-01T00:00:00.000000Z"}\n'
        b'{"id":null,"ke\\"y":null,"d":null,"x":"-Infinity","l":[],"b":"","t":null}\n'
    )


def test_every_line_is_json_for_strict_readers() -> None:
    lines = document(every_type().drop_columns(["uint64", "decimal128", "decimal256"])).splitlines()
    for line in lines:
        assert list(orjson.loads(line)) == list(json.loads(line))


@settings(deadline=None)
@given(
    values=st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.text('"\\\n\t\r\x00\x1f/u,:{}'), max_size=8)
)
def test_any_text_is_escaped(values: list[str]) -> None:
    data = document(pa.table({"a": pa.array(values, pa.string())}))
    assert [orjson.loads(line)["a"] for line in data.split(b"\n")[:-1]] == values


def test_numbers_keep_all_their_digits() -> None:
    line = document(pa.table({"u": pa.array([2**64 - 1], pa.uint64()), "d": [Decimal("0." + "1" * 38)]}))
    assert line == b'{"u":18446744073709551615,"d":0.' + b"1" * 38 + b"}\n"


def test_polars_reads_it() -> None:
    table = mixed(40)
    actual = polars.read_ndjson(document(table))
    assert actual["text"].to_list() == table["text"].to_pylist()
    assert actual["id"].to_list() == table["id"].to_pylist()


def test_names_become_different() -> None:
    assert unique(["a", "a", "b", "a"]) == ["a", "a_2", "b", "a_3"]
    assert unique(["a", "a", "a_2"]) == ["a", "a_3", "a_2"]
    assert unique(["a_2", "a", "a", "a_2"]) == ["a_2", "a", "a_3", "a_2_2"]
    assert document(pa.table([[1], [2]], names=["n", "n"])) == b'{"n":1,"n_2":2}\n'


@settings(deadline=None)
@given(names=st.lists(st.sampled_from(["a", "a_2", "a_3", "a_2_2", "b"]), max_size=8))
def test_different_names_are_different(names: list[str]) -> None:
    actual = unique(names)
    assert len(set(actual)) == len(names)
    assert [
        name for name, given_ in zip(actual, names, strict=True) if names.count(given_) == 1 and name != given_
    ] == []


def test_without_a_schema_types_are_found() -> None:
    table = JSON.decode([b'{"i":1,"x":1.5,"s":"q","l":[1],"n":null}\n{"i":2,"x":2,"s":null,"l":[],"n":null}\n']).table()
    assert table.schema.types == [pa.int64(), pa.float64(), pa.string(), pa.list_(pa.int64()), pa.null()]
    assert table["x"].to_pylist() == [1.5, 2.0]


def test_without_a_schema_what_comes_later_must_fit() -> None:
    late = [b'{"a":1}\n' * 600_000, b'{"a":"x"}\n']
    with pytest.raises(DataError, match="schema"):
        JSON.decode(late).table()


def test_other_writers() -> None:
    schema = pa.schema(
        [("a", pa.int64()), ("d", pa.decimal128(5, 2)), ("x", pa.float64()), ("l", pa.list_(pa.float64()))]
    )
    data = b'{ "x": "NaN", "a" : 1, "d":"1.5"}\r\n\r\n{"l":[1,"Infinity",null],"a":"2","x":1e3,"d":2}'
    table = JSON.decode([data], schema=schema).table()
    assert table["a"].to_pylist() == [1, 2]
    assert table["d"].to_pylist() == [Decimal("1.50"), Decimal("2.00")]
    assert math.isnan(table["x"][0].as_py())
    assert table["l"].to_pylist() == [None, [1.0, math.inf, None]]


def test_a_key_that_looks_like_a_special_float_in_text_stays_text() -> None:
    table = pa.table({"x": [1.0, math.nan], "s": ['{"x":"NaN"}', ',"x":"NaN"'], 's"x': ["NaN", '"NaN"']})
    assert same(JSON.decode([document(table)], schema=table.schema).table(), table)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b'{"a":1}\nnonsense\n{"a":3}\n', 2),
        (b'{"a":1}\n{"a":2\n{"a":3}\n', 2),
        (b'{"a":1}\n{"a":2}\n{"b":3}\n', 3),
        (b'{"a":1}\n[1]\n', 2),
    ],
)
def test_errors_name_the_line(data: bytes, line: int) -> None:
    with pytest.raises(DataError, match=f"Line {line}"):
        JSON.decode([data], schema=pa.schema([("a", pa.int64())])).table()


def test_a_line_number_far_down() -> None:
    data = b'{"a":12345}\n' * 60_000 + b'{"a":}\n{"a":1}\n'
    chunks = [data[start : start + 10_000] for start in range(0, len(data), 10_000)]
    with pytest.raises(DataError, match="Line 60001"):
        JSON.decode(chunks, schema=pa.schema([("a", pa.int64())])).table()


def test_a_value_that_does_not_fit_names_row_and_column() -> None:
    schema = pa.schema([("a", pa.int8())])
    for value in (b"300", b'"x"', b"1.5", b"true", b"[1]", b"{}"):
        with pytest.raises(DataError):
            JSON.decode([b'{"a":1}\n{"a":' + value + b"}\n"], schema=schema).table()
    with pytest.raises(DataError, match="Row 2, column 'a': '300'"):
        JSON.decode([b'{"a":1}\n{"a":300}\n'], schema=schema).table()


def test_a_document_that_ends_inside_a_row() -> None:
    data = document(mixed(5))
    for end in range(data.rindex(b"{") + 1, len(data) - 2):
        with pytest.raises(TruncatedError):
            JSON.decode([data[:end]], schema=mixed(0).schema).table()


def test_bytes_that_are_no_utf8() -> None:
    for options in ({}, {"schema": pa.schema([("a", pa.string())])}):
        with pytest.raises(DataError):
            JSON.decode([b'{"a":"\xff"}\n'], **options).table()  # type: ignore[arg-type]


def test_a_type_without_text_is_refused_by_name() -> None:
    with pytest.raises(EncodingError) as caught:
        document(pa.table({"s": pa.array([{"x": 1}])}))
    assert caught.value.extra["column"] == "s"


def text_of(table: pa.Table) -> str:
    return document(table).decode()


def read(text: str, schema: pa.Schema) -> pa.Table:
    return JSON.decode([text.encode()], schema=schema).table()


def named(name: str, array: pa.Array) -> pa.Table:
    return pa.table([array], schema=pa.schema([pa.field("x", array.type, metadata={TYPE_NAME: name})]))


def test_decimals_that_travel_as_text_are_numbers() -> None:
    texts = ["1.50", None, "-0.5", "1E+3", "12345678901234567890.5", "NaN", "Infinity", "01", "+1", ".5", "1\n", "one"]
    table = named("numeric", pa.array(texts))
    lines = text_of(table).splitlines()
    assert lines[:5] == [f'{{"x":{text}}}' for text in ("1.50", "null", "-0.5", "1E+3", "12345678901234567890.5")]
    assert [json.loads(line)["x"] for line in lines[5:]] == texts[5:]
    assert read(text_of(table), table.schema).equals(table)
    lists = named("numeric[]", pa.array([["1.50", None, "NaN"], None, []]))
    assert text_of(lists) == '{"x":[1.50,null,"NaN"]}\n{"x":null}\n{"x":[]}\n'
    assert read(text_of(lists), lists.schema).equals(lists)
    assert text_of(named("bignum", pa.array(["12345678901234567890123"]))) == '{"x":12345678901234567890123}\n'
    assert text_of(named("text", pa.array(["1"]))) == '{"x":"1"}\n'


@pytest.mark.parametrize("name", ["json", "jsonb", "struct", "map"])
def test_json_is_json_in_json(name: str) -> None:
    texts = ['{"a": [1, 2.50, "\\n", null], "é": {}}', None, "[]", '"text"', "12345678901234567890.125", "true"]
    table = named(name, pa.array(texts).slice(1))
    table = pa.concat_tables([table, named(name, pa.array(texts))])
    lines = text_of(table).splitlines()
    assert lines[-6:] == [f'{{"x":{"null" if text is None else text}}}' for text in texts]
    assert read(text_of(table), table.schema).combine_chunks().equals(table.combine_chunks())
    lists = named(f"{name}[]", pa.array([[texts[0], None, "1"], []]))
    assert [json.loads(line)["x"] for line in text_of(lists).splitlines()] == [
        [json.loads(texts[0] or ""), None, 1],
        [],
    ]
    assert read(text_of(lists), lists.schema).equals(lists)


def test_json_with_line_breaks_stays_on_its_line_and_what_is_no_json_is_a_string() -> None:
    assert text_of(named("json", pa.array(['{"a":\r\n 1,\n"b":"\\n"}']))) == '{"x":{"a":   1, "b":"\\n"}}\n'
    texts = ["[1", "2]", "1,2", "", '"', "a\nb", '{"a": 1}', "}, {", "\u2028"]
    lines = text_of(named("json", pa.array(texts))).split("\n")
    got = [json.loads(line)["x"] for line in lines[:-1]]
    assert got == [{"a": 1} if text == '{"a": 1}' else text for text in texts]


ARRAY = format_named("json-array")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("[]", []),
        (" [ ] \n", []),
        ('[{"a": 1}]', [{"a": 1}]),
        (
            '[\n  {"a": 1,\n   "b": "x, ] } {"\n  },\n  {"b": "\\\\\\"", "a": 2}\n]\n',
            [{"a": 1, "b": "x, ] } {"}, {"a": 2, "b": '\\"'}],
        ),
        ('[{"a": [1, 2]}, {"a": [3]}]', [{"a": [1, 2]}, {"a": [3]}]),
        ('[{"a": {"b": [true, null]}}]', [{"a": {"b": [True, None]}}]),
    ],
)
def test_an_array_however_it_is_written(text: str, rows: list[dict[str, object]]) -> None:
    data = text.encode()
    for size in (1, 2, 3, len(data)):
        chunks = [data[at : at + size] for at in range(0, len(data), size)]
        assert ARRAY.decode(chunks).table().to_pylist() == rows


@pytest.mark.parametrize("text", ['{"a": 1}', '[{"a": 1}] x', '[{"a": 1}] []', "7", "[1, 2]", '["a"]'])
def test_what_is_no_array_of_objects_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        ARRAY.decode([text.encode()]).table()


def test_an_array_is_json() -> None:
    table = pa.table({"a": [1, None], "b": ["x\n", '"']})
    text = b"".join(bytes(block.data) for block in ARRAY.encode(Stream.of(table), 1))
    assert json.loads(text) == [{"a": 1, "b": "x\n"}, {"a": None, "b": '"'}]
    assert text.count(b"\n") == 1
