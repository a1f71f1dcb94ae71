"""What we write is one document whatever the blocks, valid, and read back as it was, by whole buffers or by lxml."""

import datetime as dt
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from dai.errors import DaiError, DataError, EncodingError
from dai.formats.webrowset import WebRowSet
from dai.formats.webrowset import decode as webrowset_decode
from dai.formats.webrowset.decode import decoded_by_parser
from dai.formats.webrowset.encode import DATA, TAIL
from dai.streams.stream import PRECISION, SCHEMA_NAME, TABLE, TYPE_NAME, Block, Stream
from tests.formats.columns import COLUMNS, TEXTS, columns, plain_values, same
from tests.thoroughness import examples

FORMAT = WebRowSet()
SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).parents[2] / "schemas" / "webrowset.xsd"))


def joined(blocks: Iterator[Block]) -> bytes:
    return b"".join(memoryview(block.data) for block in blocks)


def document(table: pa.Table, blocksize: int | None = None, **options: Any) -> bytes:
    return joined(FORMAT.encode(Stream.of(table), blocksize, **options))


def valid(data: bytes) -> None:
    SCHEMA.assertValid(etree.fromstring(data))


@pytest.fixture
def no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vectorised way has to do it alone."""

    def refuse(*_: object) -> Iterator[pa.RecordBatch]:
        raise AssertionError("handed over to the parser")

    monkeypatch.setattr(webrowset_decode, "_parsed", refuse)


@pytest.mark.parametrize("type_", COLUMNS, ids=str)
def test_round_trip_of_every_type(type_: pa.DataType, no_parser: None) -> None:
    @settings(max_examples=examples(15))
    @given(columns(type_), st.sampled_from([None, 1, 2, 1000]))
    def check(array: pa.Array, blocksize: int | None) -> None:
        data = document(pa.table({"x": array, "y": array}), blocksize)
        valid(data)
        for column in FORMAT.decode([data]).table().columns:
            column.validate(full=True)
            assert same(column.combine_chunks(), array)

    check()


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_both_ways_of_reading_agree(data: st.DataObject) -> None:
    """On what we write, and on what somebody made of it."""
    type_ = data.draw(st.sampled_from(COLUMNS))
    table = pa.table({"x": data.draw(columns(type_))})
    text = document(table)
    start = text.index(DATA)
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(start, len(text)))
        text = text[:place] + data.draw(_INSERTED) + text[place + data.draw(st.integers(0, 2)) :]
    size = data.draw(st.integers(1, len(text)))
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    fast, parsed = outcome(FORMAT.decode, chunks), outcome(decoded_by_parser, chunks)
    # of several faults, each way names the one that it comes to first
    assert fast == parsed or all(isinstance(each, type) and issubclass(each, DaiError) for each in (fast, parsed))


def test_both_ways_of_reading_agree_wherever_something_stands() -> None:
    """In each place of two rows."""
    text = document(pa.table({"n": pa.array([None, 7]), "s": ["a&b", None]}))
    start = text.index(DATA)
    for place in range(start, len(text)):
        for inserted in (b"<null/>", b"x", b"&", b"<"):
            chunks = [text[:place] + inserted + text[place:]]
            assert outcome(FORMAT.decode, chunks) == outcome(decoded_by_parser, chunks), (place - start, inserted)


def test_both_ways_of_reading_agree_whichever_tags_change_places() -> None:
    """As many as before, of each kind."""
    tags = re.compile(rb"<columnValue>|</columnValue>|<currentRow>|</currentRow>\n")
    text = document(pa.table({"n": [1, 7, 9], "s": ["a", "b", ""]}))
    start = text.index(DATA) + len(DATA)
    places = list(tags.finditer(text, start))
    for one, other in combinations(places, 2):
        parts = text[: one.start()], other[0], text[one.end() : other.start()], one[0], text[other.end() :]
        chunks = [b"".join(parts)]
        assert outcome(FORMAT.decode, chunks) == outcome(decoded_by_parser, chunks), chunks
    # so many that they could be those of two rows, for which there is no room
    chunks = [document(pa.table({"n": ["a"]})).replace(b">a<", b"><<<<<")]
    assert outcome(FORMAT.decode, chunks) == outcome(decoded_by_parser, chunks) == DataError


_INSERTED = st.sampled_from(
    [b"", b" ", b"\r", b"\n", b"\t", b"<", b">", b"&", b"&amp;", b"&#38;", b"&#x26;", b"&#60;", b"&#29;", b"&lt;",
     b"<null/>", b"<!-- -->", b"]]>", b"<![CDATA[", b"\x1d", b"\x1e", b"\xff", b"\xef\xbf\xbf", b"\xed\xa0\x80",
     b"</columnValue><columnValue>", b"</columnValue></currentRow>\n<currentRow><columnValue>", b"<?x?>", b"7"]
)  # fmt: skip


def outcome(decode: Any, chunks: list[bytes]) -> Any:
    try:
        table = decode(chunks).table()
    except Exception as error:  # noqa: BLE001 - the kind is compared
        return type(error)
    return table.schema, [repr(plain_values(column.combine_chunks())) for column in table.columns]


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(st.none() | TEXTS, st.none() | st.integers(0, 9)), max_size=30), st.integers(1, 11))
def test_blocks_are_exact_and_concatenate_to_the_document(rows: list[tuple[Any, Any]], cut: int) -> None:
    table = pa.table(
        {"a": pa.array([row[0] for row in rows], pa.string()), "b": pa.array([row[1] for row in rows], pa.int8())}
    )
    whole = document(table)
    for size in (1, 7, 100, 10**9):
        blocks = list(FORMAT.encode(Stream(table.schema, table.to_batches(max_chunksize=cut)), size))
        full, rest = divmod(len(rows), size)
        assert [block.rows for block in blocks] == ([size] * full + [rest] * bool(rest) or [0])
        assert joined(iter(blocks)) == whole
        assert document(table, size, pieces=True) == whole


def test_pieces_leave_as_they_are_full_and_a_small_result_is_one() -> None:
    table = pa.table({"n": pa.array(range(10))})
    assert [block.rows for block in FORMAT.encode(Stream.of(table), 100, pieces=True)] == [10]
    assert [block.rows for block in FORMAT.encode(Stream.of(table), None, pieces=True)] == [10]
    pulled: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            pulled.append(number)
            yield from table.to_batches()

    blocks = FORMAT.encode(Stream(table.schema, batches()), 10, pieces=True)
    assert next(blocks).rows == 10
    assert pulled == [0]
    assert [block.rows for block in blocks] == [10, 10, 0]


def test_blocks_across_slices_and_batches(no_parser: None) -> None:
    table = pa.table({"n": pa.array(range(100_000)), "s": pa.array([f"a & b {n}" for n in range(100_000)])})
    whole = document(table)
    for size in (7, 100, 70_000):
        blocks = list(FORMAT.encode(Stream(table.schema, table.to_batches(max_chunksize=33_333)), size))
        assert {block.rows for block in blocks[:-1]} == {size}
        assert joined(iter(blocks)) == whole
    chunks = [whole[start : start + 100_003] for start in range(0, len(whole), 100_003)]
    assert FORMAT.decode(chunks).table().equals(table)


def test_bounded_slices_of_wide_and_of_narrow_rows() -> None:
    wide = pa.table({"s": pa.array(["x" * 1_000_000] * 12)})
    narrow = pa.table({f"b{n}": pa.array([True] * 10_000) for n in range(300)})
    for table in (wide, narrow):
        assert max(len(block) for block in FORMAT.encode(Stream.of(table), 10**6, pieces=True)) < 1 << 24


def test_metadata_of_a_column_comes_back_without_an_arrow_schema() -> None:
    def field(name: str, type_: pa.DataType, type_name: str, **more: str) -> pa.Field:
        keys = {"precision": PRECISION, "table": TABLE, "schema": SCHEMA_NAME}
        return pa.field(
            name, type_, metadata={TYPE_NAME: type_name, **{keys[key]: value for key, value in more.items()}}
        )

    schema = pa.schema(
        [
            field("i", pa.int32(), "int4", table="t", schema="public"),
            field("u", pa.uint64(), "bigint unsigned"),
            field("u8", pa.uint8(), "tinyint unsigned"),
            field("d", pa.decimal128(12, 2), "numeric"),
            field("n", pa.string(), "numeric"),
            field("v", pa.string(), "varchar", precision="55"),
            field("id", pa.string(), "uuid"),
            field("t", pa.timestamp("us"), "timestamp"),
            field("t0", pa.timestamp("us"), "datetime", precision="0"),
            field("t6", pa.timestamp("us"), "timestamp", precision="6"),
            field("tz", pa.timestamp("us", "UTC"), "timestamptz"),
            field("h", pa.time64("us"), "time", precision="3"),
            field("iv", pa.month_day_nano_interval(), "interval"),
            field("b", pa.binary(), "bytea"),
        ]
    )
    data = document(schema.empty_table())
    assert b"<?arrow-schema" not in data
    assert FORMAT.decode([data]).schema.equals(schema, check_metadata=True)
    types = etree.fromstring(data).findall(".//{*}column-type")
    assert [int(each.text or "") for each in types] == [4, 3, 5, 2, 12, 12, 12, 12, 93, 12, 12, 92, 12, -3]


@pytest.mark.parametrize(
    "field",
    [
        pa.field("x", pa.string(), metadata={TYPE_NAME: "timestamp"}),
        pa.field("x", pa.duration("us"), metadata={TYPE_NAME: "time"}),
        pa.field("x", pa.list_(pa.int32()), metadata={TYPE_NAME: "int4[]"}),
        pa.field("x", pa.uint8(), metadata={TYPE_NAME: "utinyint"}),
        pa.field("\x00\x1f\ufffe", pa.int8(), metadata={"other": "\x00"}),
        pa.field("", pa.int8(), nullable=False),
    ],
)
def test_what_a_column_definition_cannot_say_comes_back_too(field: pa.Field) -> None:
    schema = pa.schema([field], metadata={"k": "v"})
    data = document(schema.empty_table())
    valid(data)
    assert FORMAT.decode([data]).schema.equals(schema, check_metadata=True)


def test_each_schema_has_a_head_of_its_own() -> None:
    """Also those that Arrow calls equal: what is kept of one is not said of another."""
    for name in ("varchar", "uuid", "varchar"):
        schema = pa.schema([pa.field("a", pa.string(), metadata={TYPE_NAME: name})])
        for _ in range(2):
            restored = FORMAT.decode([document(pa.table({"a": ["x"]}, schema=schema))]).schema
            assert restored.equals(schema, check_metadata=True)


def test_dates_and_short_times_are_milliseconds() -> None:
    short = {PRECISION: "3"}
    schema = pa.schema(
        [
            pa.field("d", pa.date32()),
            pa.field("t", pa.time64("us"), metadata=short),
            pa.field("s", pa.timestamp("us"), metadata=short),
        ]
    )
    rows = [
        [dt.date(1969, 12, 31), dt.date(2024, 2, 29), None],
        [dt.time(0, 0, 1), dt.time(23, 59, 59, 999_000), None],
        [dt.datetime(1969, 12, 31, 23, 59, 59, 999_000), dt.datetime(2024, 2, 29, 12), None],
    ]
    table = pa.table(rows, schema=schema)
    data = document(table)
    first = etree.fromstring(data).find(".//{*}currentRow")
    assert first is not None
    assert [value.text for value in first] == ["-86400000", "1000", "-1"]
    assert FORMAT.decode([data]).table().equals(table)
    with pytest.raises(EncodingError, match="'s' has a time with more than the 3 decimal places"):
        document(pa.table([[dt.datetime(2024, 1, 1, 0, 0, 0, 1)]], schema=pa.schema([schema.field("s")])))


def test_empty_text_is_not_null() -> None:
    data = document(pa.table({"s": pa.array(["", None, "<null/>", "&lt;", "]]>", "a\rb\tc\n d "])}))
    body = data[data.index(DATA) + len(DATA) : -len(TAIL)].decode()
    inner = body.replace("</columnValue></currentRow>\n", "|").replace("<currentRow><columnValue>", "")
    assert inner == "|<null/>|&#60;null/&#62;|&#38;lt;|]]&#62;|a&#13;b\tc\n d |"


@pytest.mark.parametrize("bad", ["\x00", "\x1f", "\x0b", "\ufffe", "\uffff"])
def test_forbidden_characters(bad: str) -> None:
    texts = pa.array(["ok", None, "é\uffed"] * 20_000 + [f"a{bad}b", f"{bad}"])
    table = pa.table({"fine": texts.is_valid(), "sad": texts})
    with pytest.raises(
        EncodingError, match=f"Row 60001, column 'sad': XML cannot carry the character U\\+{ord(bad):04X}"
    ) as raised:
        document(table)
    assert (raised.value.extra["row"], raised.value.extra["column"]) == (60001, "sad")
    back = FORMAT.decode([document(table, on_invalid="replace")]).table()["sad"]
    assert back.to_pylist()[-2:] == ["a\ufffdb", "\ufffd"]


def test_text_that_is_no_utf8() -> None:
    raw = pa.array([b"fine", None, "é".encode(), b"\xed\xa0\x80", b"a\xff"])
    broken = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    with pytest.raises(EncodingError, match="Row 4, column 's': the text is not valid UTF-8"):
        document(pa.table({"s": broken}))
    back = FORMAT.decode([document(pa.table({"s": broken}), on_invalid="replace")]).table()["s"].to_pylist()
    assert back[:3] == ["fine", None, "é"]
    assert back[4] == "a\ufffd"


def test_forbidden_characters_in_lists_and_dictionaries() -> None:
    for array in (pa.array([["\x01"]]), pa.array(["\x01"]).dictionary_encode()):
        with pytest.raises(EncodingError, match=r"U\+0001"):
            document(pa.table({"x": array}))
    for values in (pa.array([["<a>"]]), pa.array([["&", None]])):
        assert FORMAT.decode([document(pa.table({"x": values}))]).table()["x"].to_pylist() == values.to_pylist()


def test_a_type_without_text_is_refused_by_name() -> None:
    with pytest.raises(EncodingError, match=r"Column 's'.*struct"):
        document(pa.table({"s": pa.array([{"a": 1}])}))


def test_properties_say_what_they_are_told_and_nothing_else() -> None:
    data = document(pa.table({"a": [1]}), command='SELECT "a" < 1 & \x00', table_name="t")
    valid(data)
    root = etree.fromstring(data)
    assert root.findtext(".//{*}command") == 'SELECT "a" < 1 & \ufffd'
    assert root.findtext("{*}properties/{*}table-name") == "t"
    assert etree.tostring(root.find(".//{*}url"), with_tail=False).endswith(b"<null/></url>")  # type: ignore[arg-type]
    assert FORMAT.decode([data]).table().num_rows == 1


def test_what_becomes_of_invalid_characters_is_one_of_two() -> None:
    with pytest.raises(DataError, match="on_invalid is 'error' or 'replace', not 'ignore'"):
        FORMAT.encode(Stream.of(pa.table({"a": [1]})), on_invalid="ignore")
