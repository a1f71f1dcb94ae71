"""VOTable as others read and write it."""

import base64
import io
import math
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dai.errors import DataError, TruncatedError
from dai.formats import format_named
from dai.streams.limited import limited
from dai.streams.stream import Stream
from tests.formats.tables import every_type, mixed

VOTABLE = format_named("votable")
FIELDS = {"unit": "deg", "ucd": "pos.eq.ra;meta.main", "description": "Right ascension < 360 & more"}
HEAD = '<VOTABLE version="1.3" xmlns="http://www.ivoa.net/xml/VOTable/v1.3"><RESOURCE><TABLE>'


def written(stream: Stream) -> bytes:
    return b"".join(bytes(block.data) for block in VOTABLE.encode(stream))


def by_astropy(document: bytes, verify: str = "exception") -> Any:
    """Any warning about the standard is an error."""
    from astropy.io import votable  # half a second, for each process that collects the tests

    return votable.parse(io.BytesIO(document), verify=verify)


def test_astropy_reads_it() -> None:
    table = pa.table(
        [
            pa.array([10.5, None, math.inf, -math.inf]),
            pa.array([1, None, -3, 2**62]),
            pa.array([True, False, None, True]),
            pa.array(["a < b", "é", "", None]),
            pa.array([Decimal("1.50"), None, Decimal("-2.25"), Decimal("0.00")]),
            pa.array([0, 1, 2, None], pa.timestamp("us")),
        ],
        schema=pa.schema(
            [
                pa.field("ra", pa.float64(), metadata=FIELDS),
                ("n", pa.int64()),
                ("flag", pa.bool_()),
                ("text", pa.string()),
                ("price", pa.decimal128(10, 2)),
                ("moment", pa.timestamp("us")),
            ]
        ),
    )
    read = by_astropy(written(Stream.of(table)))
    first = read.get_first_table()
    ra = first.get_field_by_id_or_name("ra")
    assert (str(ra.unit), ra.ucd, ra.description) == (FIELDS["unit"], FIELDS["ucd"], FIELDS["description"])
    array = first.array
    assert array["n"].tolist() == [1, None, -3, 2**62]
    assert array["flag"].tolist() == [True, False, None, True]
    assert [str(each) for each in array["text"].tolist()] == ["a < b", "é", "", ""]
    assert np.isnan(array["ra"].data[1])
    assert array["ra"].tolist()[2:] == [math.inf, -math.inf]
    assert array["price"].data[2] == -2.25
    assert str(array["moment"][1]) == "1970-01-01T00:00:00.000001"
    assert [each.value for each in read.resources[0].infos if each.name == "QUERY_STATUS"] == ["OK"]


def test_astropy_reads_every_type() -> None:
    table = every_type().drop_columns(["control"])
    assert len(by_astropy(written(Stream.of(table))).get_first_table().array) == table.num_rows


def test_what_astropy_writes_is_read() -> None:
    table = mixed(50)
    read = by_astropy(written(Stream.of(table)), "ignore")
    buffer = io.BytesIO()
    read.to_xml(buffer, tabledata_format="tabledata")
    data = buffer.getvalue()
    for size in (len(data), 100):
        again = VOTABLE.decode(data[at : at + size] for at in range(0, len(data), size)).table()
        assert again.num_rows == 50
        assert again.column_names == table.column_names
    buffer = io.BytesIO()
    read.to_xml(buffer, tabledata_format="binary2")
    with pytest.raises(DataError, match="BINARY2"):
        VOTABLE.decode([buffer.getvalue()])


def test_a_cut_result_says_so() -> None:
    table = pa.table({"a": [1, 2, 3]})
    cut = written(limited(Stream.of(table), 2, truncate=True, scratch=None))
    infos = by_astropy(cut).resources[0].infos
    assert [each.value for each in infos if each.name == "QUERY_STATUS"] == ["OK", "OVERFLOW"]
    assert VOTABLE.decode([cut]).table()["a"].to_pylist() == [1, 2]
    assert b"OVERFLOW" not in written(limited(Stream.of(table), 3, truncate=True, scratch=None))


def test_a_document_of_another_program() -> None:
    document = (
        HEAD + '<FIELD name="a" datatype="short" unit="s"/><FIELD name="b" datatype="char" arraysize="*"/>'
        '<FIELD name="c" datatype="boolean"/><FIELD name="d" datatype="double"/><DATA><TABLEDATA>'
        "<TR><TD>1</TD><TD> x &amp; y </TD><TD>T</TD><TD>NaN</TD></TR><TR><TD></TD><TD/><TD>?</TD><TD>-Inf</TD></TR>"
        "</TABLEDATA></DATA></TABLE><TABLE/></RESOURCE></VOTABLE>"
    )
    stream = VOTABLE.decode([document.encode()])
    assert stream.schema.types == [pa.int16(), pa.string(), pa.bool_(), pa.float64()]
    assert stream.schema.field("a").metadata == {b"unit": b"s"}
    table = stream.table()
    assert table.select(["a", "b", "c"]).to_pylist() == [
        {"a": 1, "b": " x & y ", "c": True},
        {"a": None, "b": None, "c": None},
    ]
    assert math.isnan(table["d"][0].as_py())


@pytest.mark.parametrize(
    ("document", "kind", "says"),
    [
        ("<html/>", DataError, "not a VOTable"),
        ("<!DOCTYPE VOTABLE [<!ENTITY a 'b'>]><VOTABLE/>", DataError, "DTD"),
        ("<VOTABLE/>", DataError, "no TABLE"),
        (HEAD, TruncatedError, "cannot be read"),
        (
            HEAD + '<FIELD name="a" datatype="int"/><DATA><TABLEDATA><TR><TD>x</TD></TR></TABLEDATA></DATA></TABLE>'
            "</RESOURCE></VOTABLE>",
            DataError,
            "Column 'a'",
        ),
        (
            HEAD + "<DATA><TABLEDATA><TR><TD>x</TD></TR></TABLEDATA></DATA></TABLE></RESOURCE></VOTABLE>",
            DataError,
            "1 cells instead of 0",
        ),
    ],
)
def test_what_cannot_be_read_says_why(document: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        VOTABLE.decode([document.encode()]).table()


def test_what_is_no_utf8_and_no_schema() -> None:
    """What begins as our own encoder writes it, and is damaged."""
    whole = written(Stream.of(pa.table({"s": ["abcdefgh"]})))
    own = re.search(rb"arrow-schema ([A-Za-z0-9+/=]+)", whole)
    assert own is not None
    batch = base64.b64encode(pa.record_batch({"a": [1]}).serialize().to_pybytes())
    for damaged in (whole.replace(b"abcdefgh", b"abc\xffefgh"), whole.replace(own[1], batch)):
        with pytest.raises(DataError):
            VOTABLE.decode([damaged]).table()
