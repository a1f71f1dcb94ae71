import base64
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lxml import etree

from dai.drivers.memory import Memory, Script
from dai.drivers.tables import TableInfo
from dai.errors import DataError, EncodingError, StatementError
from dai.formats import format_named
from dai.perform.activity import FRAGMENT
from dai.perform.parser import DIALECTS, GDS, WSI, parse
from dai.perform.pipeline import Running
from dai.perform.response import AHEAD_BYTES, _base64, _cdata, _is_binary, document
from dai.perform.statuses import failure, processing
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block, ByteStream
from tests.documents import answer, environment, error_of, query, results, running, statuses, table, to_csv, written

SCHEMAS = {
    dialect: etree.XMLSchema(file=Path(__file__).parents[1] / f"schemas/response-{dialect.name.replace('/', '-')}.xsd")
    for dialect in DIALECTS
}
XML = '<sqlResultsToXML name="xml"><resultSet from="tuples"/><webRowSet name="end"/></sqlResultsToXML>'


def valid(response: bytes, dialect=GDS) -> bytes:
    SCHEMAS[dialect].assertValid(etree.fromstring(response))
    return response


def cdata(parts: list[bytes]) -> str:
    """What an XML parser makes of the text that came in these blocks."""
    section = b"".join(_cdata(iter([Block(part, 1) for part in parts]), clean=False))
    return etree.fromstring(b"<r>" + section + b"</r>").text or ""


XML_TEXT = st.text(
    st.one_of(
        st.sampled_from("]>\r\n&<é\U0001f600"),
        st.characters(
            exclude_categories=["Cs"], exclude_characters=[*map(chr, set(range(32)) - {9, 10, 13}), "\ufffe", "\uffff"]
        ),
    )
)


@given(text=XML_TEXT, cuts=st.lists(st.integers(0, 200), max_size=6))
@example(text="a]]>b", cuts=[2, 3])
@example(text="]]>]]>]", cuts=[1, 2, 4, 5])
@example(text="]\r\n]>]]\r>", cuts=[1, 2, 3])
@example(text="\U0001f600", cuts=[1, 2, 3])
@example(text="\ufffd\U0001fffd", cuts=[1, 2, 3, 4])
def test_any_text_in_any_blocks_arrives(text, cuts):
    data = text.encode()
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    parts = [data[start:end] for start, end in pairwise(places)] or [data]
    assert cdata(parts) == text


def test_no_block_is_an_empty_text():
    assert cdata([]) == ""
    assert cdata([b"", b""]) == ""


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([b"a\x00b"], "U\\+0000"),
        ([b"ok", b"\x1f"], "U\\+001F"),
        ([b"\xef\xbf\xbe"], "U\\+FFFE"),
        ([b"\xef", b"\xbf", b"\xbf"], "U\\+FFFF"),
        ([b"\xed\xa0\x80"], "not UTF-8"),
        ([b"\xff"], "not UTF-8"),
        ([b"cut \xe2\x82"], "not UTF-8"),
        ([b"\x80"], "not UTF-8"),
    ],
)
def test_what_xml_cannot_carry_is_an_error_and_the_section_is_closed(parts, message):
    collected: list[bytes] = []

    def read() -> None:
        for piece in _cdata(iter([Block(part, 1) for part in parts]), clean=False):
            collected.append(piece)

    with pytest.raises(EncodingError, match=message):
        read()
    etree.fromstring(b"<r>" + b"".join(collected) + b"</r>")


@given(st.lists(st.binary(max_size=7), max_size=8))
def test_base64_across_blocks(parts):
    assert base64.b64decode(b"".join(_base64(iter([Block(part, 1) for part in parts]))), validate=True) == b"".join(
        parts
    )


@pytest.mark.parametrize(
    ("media_type", "binary"),
    [
        ("text/csv; charset=utf-8", False),
        ("application/xml", False),
        ("application/vnd.webrowset+xml", False),
        ("application/json ", False),
        (FRAGMENT, False),
        ("application/gzip", True),
        ("application/octet-stream", True),
    ],
)
def test_what_is_text(media_type, binary):
    assert _is_binary(ByteStream(media_type, ())) is binary


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("blocksize", [None, 1, 2, 100])
def test_end_points_in_every_form(dialect, rows, blocksize):
    driver = Memory({"q": Script(table(rows), batch_rows=2), "u": Script(count=3)})
    body = (
        query("q", "q", "tuples")
        + XML
        + to_csv("csv", "tuples", "text")
        + '<sqlResultsToArrow name="arrow"><resultSet from="tuples"/><arrow name="ipc"/></sqlResultsToArrow>'
        + query("w", "q", "raw", "webRowSetStream")
        + '<sqlUpdateStatement name="u"><expression>u</expression><resultStream name="n"/></sqlUpdateStatement>'
    )
    with Running(parse(written(body, dialect)), environment(driver, blocksize=blocksize)) as work:
        response = b"".join(document(work.open(), "my session", 'a "request"'))
    valid(response, dialect)
    root = etree.fromstring(response)
    assert root.tag == f"{{{dialect.namespace}}}{dialect.response}"
    assert root[0].get("id") == "my session"
    assert root[-1].get("id") == 'a "request"'
    elements = results(response)
    for name in ("end", "raw"):
        assert (
            format_named("webrowset").decode([elements[name].text.encode()]).table().to_pydict()
            == table(rows).to_pydict()
        )
    assert elements["text"].text.split("\r\n")[1:-1] == [f"{n},name {n}" for n in range(rows)]
    assert elements["ipc"].get("encoding") == "base64"
    assert pa.ipc.open_stream(base64.b64decode(elements["ipc"].text)).read_all().equals(table(rows))
    assert elements["n"][0].get("updateCount") == "3"
    assert all(
        elements[name].get("status") == "COMPLETED" for name in ("q", "xml", "csv", "arrow", "w", "u", "request")
    )


@given(st.lists(st.one_of(st.none(), XML_TEXT), max_size=6), XML_TEXT.filter(bool), st.sampled_from([None, 1, 2]))
@example(["]]>", "\r\n", "\r]]", "]", ">"], "a]]>\r&<b", 1)
def test_any_webrowset_arrives_in_the_response(values, name, blocksize):
    """What the encoder writes needs no second look: not in names, not in values, not across blocks."""
    whole = pa.table({name: pa.array(values, pa.string())})
    response = answer(query("q", "q", "tuples") + XML, Memory({"q": Script(whole, batch_rows=2)}), blocksize=blocksize)
    elements = format_named("webrowset").decode([results(response)["end"].text.encode()]).table()
    assert elements.column(0).to_pylist() == values
    assert elements.schema.names == [name]


def test_the_concatenated_blocks_do_not_depend_on_their_size():
    driver = Memory({"q": Script(table(30))})
    texts = set()
    for blocksize in (None, 1, 7, 100):
        response = answer(query("q", "q", "tuples") + XML, driver, blocksize=blocksize)
        texts.add(results(response)["end"].text)
    assert len(texts) == 1


def long(rows: int) -> pa.Table:
    """Rows so long that an end point with three of them is not known in full when its element opens."""
    return table(rows).set_column(1, "name", [[f"name {n} " + "x" * AHEAD_BYTES for n in range(rows)]])


@pytest.mark.parametrize(
    "body",
    [
        query("q", "q", "tuples") + XML,
        query("q", "q", "tuples") + to_csv("csv", "tuples", "end"),
        query("q", "q", "tuples")
        + '<sqlResultsToArrow name="arrow"><resultSet from="tuples"/><arrow name="end"/></sqlResultsToArrow>',
        '<extractDatabaseSchema name="schema"><getTables name="%"/><output name="end"/></extractDatabaseSchema>',
    ],
    ids=["webrowset", "csv", "arrow", "schema"],
)
def test_an_end_point_that_is_complete_when_its_element_opens_says_so(body, monkeypatch):
    monkeypatch.setattr("dai.perform.response.AHEAD_SECONDS", 60)
    driver = Memory({"q": Script(table(30), batch_rows=3)}, tables=tuple(TableInfo(f"t{n}", ()) for n in range(9)))
    assert statuses(valid(answer(body, driver, blocksize=5)))["end"] == "COMPLETED"


def test_an_end_point_that_goes_on_says_so(monkeypatch):
    body = query("q", "q", "tuples") + XML
    assert statuses(answer(body, Memory({"q": Script(long(3), batch_rows=1)})))["end"] == "PROCESSING"
    monkeypatch.setattr("dai.perform.response.AHEAD_SECONDS", -1)
    assert statuses(answer(body, Memory({"q": Script(table(30), batch_rows=1)})))["end"] == "PROCESSING"


@pytest.mark.parametrize("batches", [0, 1, 2, 7])
def test_a_failure_half_way_is_visible_in_a_well_formed_document(batches):
    driver = Memory({"q": Script(long(batches), batch_rows=1, fails=DataError("it <broke> & ]]> \x00"))})
    response = valid(answer(query("q", "q", "tuples") + XML, driver))
    elements = results(response)
    assert error_of(elements["end"]) == ("bad-data", "q", "it <broke> & ]]> ?")
    assert elements["end"].get("status") in (("PROCESSING",) if batches > 2 else ("ERROR", "PROCESSING"))
    # an encoder may hold one batch back until it knows whether another follows
    assert (elements["end"].text or "").count("<currentRow>") in (batches, batches - 1)
    assert error_of(elements["q"])[:2] == ("bad-data", "q")
    assert error_of(elements["xml"])[0] == "stream-closed"
    assert elements["request"].get("status") == "ERROR"


def test_a_failure_in_base64():
    driver = Memory({"q": Script(table(3), batch_rows=1, fails=DataError("x"))})
    body = (
        query("q", "q", "t") + '<sqlResultsToArrow name="a"><resultSet from="t"/><arrow name="e"/></sqlResultsToArrow>'
    )
    valid(answer(body, driver))


def test_text_that_xml_cannot_carry_stands_as_an_error_of_its_activity():
    driver = Memory({"q": Script(pa.table({"x": ["fine", "a\x01"]}), batch_rows=1)})
    response = valid(answer(query("q", "q", "t") + to_csv("csv", "t", "e"), driver, blocksize=1))
    elements = results(response)
    assert error_of(elements["e"])[:2] == ("cannot-encode", "csv")
    assert elements["csv"].get("status") == "ERROR"
    assert elements["request"].get("status") == "ERROR"
    assert driver.open_streams == 0


def test_the_first_chunk_says_whether_it_began_well():
    body = '<sqlUpdateStatement name="u"><expression>u</expression><resultStream name="n"/></sqlUpdateStatement>'
    with running(body, Memory({"u": Script(fails=StatementError("no such table"))})) as work:
        response = document(work, "s", "r")
        next(response)
        assert isinstance(work.cause, StatementError)
        list(response)
    with running(body, Memory({"u": Script(count=1)})) as work:
        first = next(document(work, "s", "r"))
        assert work.cause is None
        assert b"updateCount" in first


def test_first_bytes_leave_before_the_query_has_ended():
    driver = Memory({"q": Script(long(100), batch_rows=1)})
    with running(query("q", "q", "tuples") + to_csv("csv", "tuples", "e"), driver) as work:
        response = document(work, "s", "r")
        assert b"0,name 0" in next(response)
        assert {each.activity: each.rows for each in work.reports()}["q"] <= 3
        response.close()
    assert driver.open_streams == 0


def bag(*statements: str) -> str:
    return f'<sqlBag name="bag">{"".join(statements)}<resultStream name="e"/></sqlBag>'


ROWS = '<statement returns="rows"><expression>q</expression></statement>'
UPDATE = "<statement><expression>u</expression></statement>"


@pytest.mark.parametrize(
    "broken",
    [
        {"q": Script(table(5), batch_rows=1, fails=DataError("x"))},
        {"q": Script(refused=DataError("x"))},
        {"u": Script(fails=DataError("x"))},
    ],
)
def test_fragments_are_closed_where_they_fail(broken):
    driver = Memory({"q": Script(table(5), batch_rows=1), "u": Script(count=1), **broken})
    response = valid(answer(bag(UPDATE, ROWS, UPDATE, ROWS), driver))
    assert error_of(results(response)["e"])[:2] == ("bad-data", "bag")
    assert driver.committed == []
    assert driver.open_streams == 0


def test_cancelled_in_a_fragment():
    driver, cancellation = Memory({"q": Script(long(50), batch_rows=1), "u": Script(count=1)}), Cancellation()
    with running(bag(ROWS, UPDATE), driver, cancellation=cancellation) as work:
        response = document(work, "s", "r")
        begun = next(response)
        cancellation.cancel()
        whole = begun + b"".join(response)
    valid(whole)
    assert statuses(whole)["request"] == "TERMINATED"
    assert error_of(results(whole)["e"])[0] == "cancelled"
    assert driver.committed == []


def test_cancelled_in_a_text():
    driver, cancellation = Memory({"q": Script(long(50), batch_rows=1)}), Cancellation()
    with running(query("q", "q", "tuples") + XML, driver, cancellation=cancellation) as work:
        response = document(work, "s", "r")
        begun = next(response)
        cancellation.cancel()
        whole = valid(begun + b"".join(response))
    assert set(statuses(whole).values()) == {"PROCESSING", "TERMINATED"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_where_nothing_ran(dialect):
    root = etree.fromstring(valid(failure(DataError("a\ud800 <b>", hint="try"), dialect, "r"), dialect))
    assert root[0].text == "a? <b>\ntry"
    assert root[-1].get("status") == "ERROR"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_goes_on_by_itself(dialect):
    perform = parse(written(query("q", "q", "tuples") + XML, dialect))
    response = valid(processing(perform, "s", "r"), dialect)
    assert statuses(response) == {"q": "UNSTARTED", "xml": "UNSTARTED", "request": "PROCESSING"}


def test_dialects_answer_in_their_own_words():
    assert (GDS.response, WSI.response) == ("gridDataServiceResponse", "response")


def test_only_a_session():
    assert statuses(valid(answer("<session/>", None))) == {"request": "COMPLETED"}
