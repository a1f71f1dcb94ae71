"""WebRowSets of others, broken ones and hostile ones."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dai.errors import DaiError, DataError, TruncatedError
from dai.formats.webrowset import WebRowSet
from dai.formats.webrowset import decode as webrowset_decode
from dai.formats.webrowset.encode import DATA, TAIL
from dai.streams.stream import TYPE_NAME, Stream

FORMAT = WebRowSet()
NAMESPACE = "http://java.sun.com/xml/ns/jdbc"
HEAD = f"""<?xml version="1.0"?>
<webRowSet xmlns="{NAMESPACE}" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
  <properties><command>SELECT 1</command><map><type>a</type><class>b</class></map></properties>
  <metadata>
    <column-count>2</column-count>
    <column-definition><column-index>1</column-index><column-name>n</column-name><column-type>4</column-type>
      <column-type-name>INT</column-type-name></column-definition>
    <column-definition><column-index>2</column-index><column-name>s</column-name><column-type>12</column-type>
      <column-type-name>VARCHAR</column-type-name></column-definition>
  </metadata>
  <data>
"""
END = "</data></webRowSet>"
ROW = "<currentRow><columnValue>1</columnValue><columnValue>x</columnValue></currentRow>"


def read(text: str | bytes, size: int = 0) -> list[tuple[Any, ...]]:
    data = text.encode() if isinstance(text, str) else text
    chunks = [data[start : start + size] for start in range(0, len(data), size)] if size else [data]
    table = FORMAT.decode(chunks).table()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.parametrize("size", [0, 1, 5])
def test_foreign_spelling(size: int) -> None:
    rows = """
    <!-- a comment --><currentRow>
      <columnValue> 1 </columnValue>
      <columnValue>a &amp; b&lt;<![CDATA[<c>&amp;]]>&#x64;<!-- not here --> é</columnValue>
    </currentRow><?pi?>
    <currentRow><columnValue><null/></columnValue><columnValue/></currentRow>
    <currentRow><columnValue> <null></null> </columnValue><columnValue xsi:nil="true"></columnValue></currentRow>
    <insertRow><columnValue x="y">2</columnValue><columnValue>new</columnValue></insertRow>
    <deleteRow><columnValue>3</columnValue><columnValue>gone</columnValue></deleteRow>
    <modifyRow><columnValue>4</columnValue><updateValue>5</updateValue><columnValue>old</columnValue></modifyRow>
    <modifyRow><columnValue>6</columnValue><columnValue>old</columnValue><updateValue><null/></updateValue></modifyRow>
    <currentRow><columnValue>7</columnValue><columnValue> <emptyString/> </columnValue></currentRow>
    <currentRow><columnValue>8</columnValue><updateRow>9</updateRow><columnValue>old</columnValue>
      <updateRow><emptyString></emptyString></updateRow></currentRow>
    <modifyRow><columnValue>10</columnValue><columnValue>inserted</columnValue><updateRow>gone</updateRow></modifyRow>
    """
    expected = [(1, "a & b<<c>&amp;d é"), (None, ""), (None, None), (2, "new"), (5, "old"), (6, None)]
    expected += [(7, ""), (9, "")]
    assert read(HEAD + rows + END, size) == expected


def test_prefixes() -> None:
    text = HEAD + ROW + END
    text = text.replace("</", "</w:").replace("<", "<w:").replace("<w:/w:", "</w:").replace("<w:?", "<?")
    text = text.replace("xmlns=", "xmlns:w=")
    assert read(text) == [(1, "x")]


def test_no_namespace_and_another_namespace() -> None:
    assert read((HEAD + ROW + END).replace(f'xmlns="{NAMESPACE}"', "")) == [(1, "x")]
    with pytest.raises(DataError, match="does not belong to WebRowSet"):
        read((HEAD + ROW + END).replace(NAMESPACE, "urn:other"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "iso-8859-1", "utf-8-sig"])
def test_encodings(encoding: str) -> None:
    name = {"utf-8-sig": "utf-8", "utf-16-le": "utf-16", "utf-16-be": "utf-16"}.get(encoding, encoding)
    text = (HEAD + ROW.replace("x", "é") + END).replace('version="1.0"', f'version="1.0" encoding="{name}"')
    for size in (0, 1, 3):
        assert read(text.encode(encoding), size) == [(1, "é")]


def test_columns_in_the_order_of_their_index() -> None:
    text = HEAD.replace("<column-index>1<", "<column-index>0<").replace("<column-index>2<", "<column-index>1<")
    text = text.replace("<column-index>0<", "<column-index>2<")
    stream = FORMAT.decode([(text + ROW.replace("x", "2").replace("1", "x") + END).encode()])
    assert stream.schema.names == ["s", "n"]
    assert stream.table().to_pydict() == {"s": ["x"], "n": [2]}


@pytest.mark.parametrize(
    ("java_type", "text", "value"),
    [
        ("-7", "true", True), ("16", "false", False), ("-6", "-1", -1), ("5", "7", 7), ("-5", "8", 8),
        ("7", "1.5", 1.5), ("6", "1.0E10", 1e10), ("8", "NaN", "nan"), ("2", "1.50", "1.50"),
        ("91", "1709164800000", dt.date(2024, 2, 29)), ("91", "1709161200000", dt.date(2024, 2, 29)),
        ("91", "2024-02-29", dt.date(2024, 2, 29)),
        ("92", "1000", dt.time(0, 0, 1)),
        ("92", "-1", dt.time(23, 59, 59, 999000)),
        ("93", "1500", dt.datetime(1970, 1, 1, 0, 0, 1, 500000)),
        ("93", "2024-02-29 12:00:00", dt.datetime(2024, 2, 29, 12)),
        ("-3", "YWI=", b"ab"),
        ("1111", "whatever", "whatever"), ("2005", "long", "long"),
        ("-9", "n", "n"), ("1", "c ", "c "),
    ],
)  # fmt: skip
def test_java_types(java_type: str, text: str, value: Any) -> None:
    body = ROW.replace(">1<", f">{text}<")
    actual = read(HEAD.replace("<column-type>4<", f"<column-type>{java_type}<") + body + END)[0][0]
    assert (str(actual) if value == "nan" else actual) == value


@pytest.mark.parametrize(
    ("precision", "type_"), [(10, pa.decimal128(10, 2)), (60, pa.decimal256(60, 2)), (99, pa.string())]
)
def test_decimals_of_declared_precision(precision: int, type_: pa.DataType) -> None:
    declared = f"<column-precision>{precision}</column-precision><column-scale>2</column-scale><column-type>3<"
    stream = FORMAT.decode([(HEAD.replace("<column-type>4<", declared) + ROW + END).encode()])
    assert stream.schema.types[0] == type_
    value = stream.table().column(0)[0].as_py()
    assert value == (Decimal("1.00") if precision < 99 else "1")


@pytest.mark.parametrize(
    ("java_type", "name", "text", "type_"),
    [
        ("-6", "TINYINT UNSIGNED", "255", pa.uint8()), ("5", "SMALLINT UNSIGNED", "65535", pa.uint16()),
        ("4", "MEDIUMINT UNSIGNED", "16777215", pa.uint32()), ("4", "INT UNSIGNED", "4294967295", pa.uint32()),
        ("-5", "INTEGER UNSIGNED", "4294967295", pa.uint32()), ("4", "int(10) unsigned", "1", pa.uint32()),
        ("-5", "BIGINT UNSIGNED", "9223372036854775807", pa.uint64()), ("2", "", "1.50", pa.string()),
    ],
)  # fmt: skip
def test_type_names_of_jdbc_drivers(java_type: str, name: str, text: str, type_: pa.DataType) -> None:
    head = HEAD.replace("<column-type>4<", f"<column-type>{java_type}<").replace(">INT<", f">{name}<")
    table = FORMAT.decode([(head + ROW.replace(">1<", f">{text}<") + END).encode()]).table()
    assert table.schema.types[0] == type_
    assert str(table["n"][0]) == text
    if not name:
        assert table.schema.field("n").metadata[TYPE_NAME] == b"numeric"


def test_a_hint_says_what_java_does_not_escape() -> None:
    with pytest.raises(DataError) as raised:
        read(HEAD.replace(">n<", ">id<5&<") + ROW + END)
    assert "Java" in (raised.value.hint or "")


def canonical(rows: int = 1000) -> tuple[pa.Table, bytes]:
    table = pa.table({"n": pa.array(range(rows)), "s": pa.array([f"text {n}" for n in range(rows)])})
    return table, b"".join(memoryview(block.data) for block in FORMAT.encode(Stream.of(table)))


@pytest.mark.parametrize("size", [0, 1000])
@pytest.mark.parametrize(
    "change",
    [
        (b"text 700<", b"text <!-- -->700<"),
        (b"text 700<", b"<![CDATA[text 700]]><"),
        (b"text 700<", b"te&#120;t 700<"),
        (b"<columnValue>700</columnValue>", b"<columnValue a='b'>700</columnValue>"),
        (b"<currentRow><columnValue>700<", b"<!-- <currentRow> --><currentRow><columnValue>700<"),
        (b"\n<currentRow><columnValue>700<", b"<currentRow><columnValue>700<"),
        (b"<currentRow><columnValue>700<", b"   <currentRow><columnValue>700<"),
    ],
)
def test_the_parser_takes_over_in_the_middle(change: tuple[bytes, bytes], size: int) -> None:
    table, data = canonical()
    assert change[0] in data
    data = data.replace(*change)
    chunks = [data[start : start + size] for start in range(0, len(data), size)] if size else [data]
    assert FORMAT.decode(chunks).table().equals(table)


def test_what_we_write_needs_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    table, data = canonical()
    monkeypatch.delattr(webrowset_decode, "_parsed")
    assert FORMAT.decode([data]).table().equals(table)


def test_the_first_rows_come_before_the_rest_is_there() -> None:
    _, data = canonical(3)
    cut = data.index(b"</currentRow>\n") + 14
    seen: list[int] = []

    def chunks() -> Iterator[bytes]:
        for part in (data[:cut], data[cut:]):
            seen.append(len(part))
            yield part

    with FORMAT.decode(chunks()) as stream:
        assert next(stream).num_rows == 1
        assert len(seen) == 1


def test_an_error_says_its_row() -> None:
    _, data = canonical()
    cases = [
        (b"<columnValue>700</columnValue>", b"<columnValue>7oo</columnValue>", "Row 701, column 'n': '7oo'"),
        (b"<columnValue>700</columnValue>", b"", "Row 701 has 1 values, the metadata 2 columns"),
        (b"text 700<", b"text</columnValue><columnValue>700<", "Row 701 has 3 values"),
        (b"text 700</columnValue>", b"text 700", "In row 701: not well-formed"),
        (b"text 700<", b"a & b<", "In row 701: not well-formed"),
        (b"text 700<", b"a\x01b<", "In row 701: not well-formed"),
        (b"text 700<", b"&nbsp;<", "In row 701: not well-formed"),
        (b"text 700<", b"\xff<", "In row 701: not well-formed"),
        (b"text 700<", b"a<null/><", "In row 701: a value is NULL and has text"),
        (b"text 700<", b"a<emptyString/><", "In row 701: a value is empty and has text"),
        (b"text 700<", b"a<b/><", "In row 701: <b> may not stand in <columnValue>"),
        (b"<currentRow><columnValue>700<", b"junk<currentRow><columnValue>700<", "text outside a value: 'junk'"),
    ]
    for old, new, message in cases:
        assert old in data
        with pytest.raises(DataError, match="^" + message if message.startswith(("Row", "In")) else message):
            FORMAT.decode([data.replace(old, new)]).table()


def test_truncated_anywhere() -> None:
    table, data = canonical(3)
    for end in range(len(data)):
        with pytest.raises(TruncatedError):
            FORMAT.decode([data[:end]]).table()
    assert FORMAT.decode([data]).table().equals(table)
    foreign = (HEAD + ROW + END).encode()
    for end in range(len(foreign)):
        with pytest.raises(TruncatedError):
            FORMAT.decode([foreign[:end]]).table()


def test_bytes_behind_the_document() -> None:
    table, data = canonical(3)
    assert FORMAT.decode([data, b"\n", b"<!-- bye -->\n"]).table().equals(table)
    for more in (b"<a/>", b"x", data, data[data.index(DATA) :]):
        with pytest.raises(DataError):
            FORMAT.decode([data, more]).table()


BOMB = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))


@pytest.mark.parametrize(
    "doctype",
    [
        f'<!DOCTYPE webRowSet [<!ENTITY a0 "ha">{BOMB}]>',
        '<!DOCTYPE webRowSet [<!ENTITY a11 SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE webRowSet [<!ENTITY % p SYSTEM "http://127.0.0.1:1/x.dtd"> %p;]>',
        '<!DOCTYPE webRowSet SYSTEM "http://127.0.0.1:1/x.dtd">',
        "<!DOCTYPE webRowSet>",
    ],
)
@pytest.mark.parametrize("size", [0, 1])
def test_document_types_are_refused(doctype: str, size: int) -> None:
    text = (HEAD + ROW.replace("x", "&a11;") + END).replace("?>\n", "?>\n" + doctype, 1)
    with pytest.raises(DataError, match="document type"):
        read(text, size)


@pytest.mark.parametrize(
    "text",
    [
        "<html/>", "<webRowSet/>", "plain text", "<a>" * 1000, HEAD.replace("<data>", "<data>" * 100),
        HEAD + "<row/>" + END, HEAD + "<currentRow><currentRow/></currentRow>" + END,
        HEAD + "<currentRow><updateValue>1</updateValue></currentRow>" + END,
        HEAD + "<modifyRow><updateValue>1</updateValue></modifyRow>" + END,
        HEAD + "</data><data>" + END, HEAD + "</data><metadata/></webRowSet>",
        HEAD.replace("<column-count>2<", "<column-count>3<") + END,
        HEAD.replace("<column-count>2<", "<column-count>many<") + END,
        HEAD.replace("<column-count>2</column-count>", "") + END,
        HEAD.replace("<column-index>2<", "<column-index>1<") + END,
        HEAD.replace("<column-type>4<", "<column-type><") + END,
        HEAD.replace("<column-type>4<", "<column-type>four<") + END,
        HEAD.replace("<column-index>2<", "<column-colour>2</column-colour><column-index>2<") + END,
        HEAD.replace("</metadata>", "<column-definition/>" * 70_000 + "</metadata>"),
        HEAD.replace("<metadata>", "<metadata><?arrow-schema AAAA?>") + END,
        HEAD.replace("<metadata>", "<metadata><?arrow-schema *?>") + END,
        HEAD.replace("<metadata>", "<metadata><?arrow-schema ?>") + END,
        HEAD.replace("<command>", "<command>" + "<a>" * 20),
    ],
)  # fmt: skip
def test_no_webrowset(text: str) -> None:
    for size in (0, 7):
        with pytest.raises(DaiError):
            read(text, size)


def test_a_value_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dai.formats.webrowset import reader as webrowset_reader

    monkeypatch.setattr(webrowset_reader, "_LIMIT", 1 << 20)
    monkeypatch.setattr(webrowset_decode, "_ROW_BYTES", 1 << 20)
    head = canonical(0)[1].removesuffix(TAIL)

    def endless(start: bytes) -> Iterator[bytes]:
        yield start
        for _ in range(1000):
            yield b"x" * 65536
        raise AssertionError("read to the end")

    for start in (
        head + b"<currentRow><columnValue>", head + b"<!--", head + b"<currentRow><", head + b"<currentRow a='",
        HEAD.encode() + b"<currentRow><columnValue>",
        HEAD.replace("<column-name>s<", "<column-name>s").encode(), b"<?xml version='1.0'?><!--",
    ):  # fmt: skip
        with pytest.raises(DataError):
            FORMAT.decode(endless(start)).table()
