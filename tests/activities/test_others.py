"""Behaviour of the activities that take one table of cases each."""

from pathlib import Path

import pytest
from lxml import etree

from dai.drivers import driver_for
from dai.drivers.memory import Memory, Script
from dai.drivers.tables import Column, ForeignKey, Index, TableInfo
from dai.errors import ClosedError, DataError, ParameterError
from dai.formats import format_named
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block, Stream
from examples.demo.load import load
from tests.documents import Ends, answer, error_of, query, results, running, statuses, table, to_csv

SCHEMA = etree.XMLSchema(file=Path(__file__).parents[2] / "schemas/database-schema.xsd")
XML = '<sqlResultsToXML name="xml"{}><resultSet from="t"/><webRowSet name="e"/></sqlResultsToXML>'


def source(rows: int = 5, **more: object) -> Memory:
    return Memory({"q": Script(table(rows), batch_rows=2, **more), "u": Script(count=4)})  # type: ignore[arg-type]


# --- bag ------------------------------------------------------------------------------------------------------------


def bag(*statements: str) -> str:
    return f'<sqlBag name="b">{"".join(statements)}<resultStream name="e"/></sqlBag>'


def test_a_bag_is_one_transaction():
    driver = source()
    update = '<statement><sqlParameter position="1">v</sqlParameter><expression>u</expression></statement>'
    rows = '<statement returns="rows"><expression>q</expression></statement>'
    elements = results(answer(bag(update, rows, update), driver))["e"][0]
    assert [(each.get("position"), each.get("updateCount")) for each in elements] == [
        ("1", "4"),
        ("2", None),
        ("3", "4"),
    ]
    assert [sql for sql, _ in driver.executed] == ["u", "q", "u"]
    assert driver.committed == ["u", "u"]
    assert driver.executed[0][1] == ("v",)


# --- encode ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("header", "first"), [("", "id,name"), ("<includeHeader>false</includeHeader>", "0,name 0")])
def test_csv_header(header, first):
    body = (
        query("q", "q", "t")
        + f'<sqlResultsToCSV name="c"><resultSet from="t"/>{header}<csv name="e"/></sqlResultsToCSV>'
    )
    assert results(answer(body, source()))["e"].text.split("\r\n")[0] == first


@pytest.mark.parametrize(("policy", "status"), [("", "ERROR"), (' invalidCharacters="replace"', "COMPLETED")])
def test_characters_that_xml_cannot_carry(policy, status):
    import pyarrow as pa

    driver = Memory({"q": Script(pa.table({"x": ["a\x01b"]}))})
    response = answer(query("q", "q", "t") + XML.format(policy), driver)
    assert statuses(response)["request"] == status


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_arrow_compression(compression):
    body = query("q", "q", "t") + (
        f'<sqlResultsToArrow name="a" compression="{compression}"><resultSet from="t"/><arrow name="e"/>'
        "</sqlResultsToArrow>"
    )
    with running(body, source()) as work:
        ((_, data),) = [(end, bytes_.read()) for end, bytes_ in work.end_points()]
    assert format_named("arrow").decode([data]).table().equals(table(5))


# --- blocks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_blocks_have_the_size_asked_for_and_the_same_text(size):
    blocks = (
        f'<blockAggregator name="b"><input from="e"/><blocksize size="{size}"/><output name="f"/></blockAggregator>'
    )
    with running(query("q", "q", "t") + XML.format("") + blocks, source()) as work:
        ((_, actual),) = [(end, list(stream)) for end, stream in work.end_points()]
    assert [block.rows for block in actual] == [size] * (5 // size) + ([5 % size] if 5 % size else [])
    whole = results(answer(query("q", "q", "t") + XML.format(""), source()))["e"].text
    assert b"".join(bytes(memoryview(block.data)) for block in actual).decode() == whole


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_has_a_row(size):
    blocks = (
        f'<blockAggregator name="b"><input from="e"/><blocksize size="{size}"/><output name="f"/></blockAggregator>'
    )
    driver = source()
    with (
        pytest.raises(ParameterError, match="at least one row"),
        running(query("q", "q", "t") + XML.format("") + blocks, driver),
    ):
        pass
    assert driver.open_streams == 0


# --- bulk load ------------------------------------------------------------------------------------------------------

LOAD = '<sqlBulkLoadRowSet name="l"><webRowSetStream from="{}"/>{}<resultStream name="n"/></sqlBulkLoadRowSet>'
INTO = '<loadIntoTable tableName="x"{}/>'


@pytest.mark.parametrize("link", ["t", "e"])
def test_load_takes_tuples_without_a_detour(link):
    driver = source()
    response = answer(
        query("q", "q", "t") + (XML.format("") if link == "e" else "") + LOAD.format(link, INTO.format("")), driver
    )
    assert results(response)["n"][0].get("updateCount") == "5"
    assert driver.loaded["x"].equals(table(5))
    assert set(statuses(response).values()) == {"COMPLETED"}


def test_load_into_a_new_table_says_its_name():
    driver = source()
    elements = results(answer(query("q", "q", "t") + LOAD.format("t", ""), driver))["n"][0]
    assert driver.loaded.keys() == {elements.get("tableName")}


@pytest.mark.parametrize(("how", "rows"), [("", None), (' transactionally="false"', 5)])
def test_load_that_fails(how, rows):
    driver = source(fails=DataError("half-way"))
    response = answer(query("q", "q", "t") + LOAD.format("t", INTO.format(how)), driver)
    assert statuses(response)["request"] == "ERROR"
    assert (driver.loaded["x"].num_rows if rows else None) == rows
    assert ("x" in driver.loaded) is (rows is not None)


@pytest.mark.parametrize("form", ["webrowset", "arrow"])
@pytest.mark.parametrize("cut", [1, 3, 100_000])
def test_load_from_an_input_stream(form, cut):
    driver, session = Memory({}), Ends(capacity=100_000)
    data = b"".join(bytes(memoryview(block.data)) for block in format_named(form).encode(Stream.of(table(5))))
    box = session.input("in")
    for start in range(0, len(data), cut):
        box.put(Block(data[start : start + cut], 0), Cancellation())
    box.finish()
    body = '<inputStream name="in"><toLocal name="t"/></inputStream>' + LOAD.format("t", INTO.format(""))
    response = answer(body, driver, session=session)
    assert results(response)["n"][0].get("updateCount") == "5"
    assert driver.loaded["x"].to_pydict() == table(5).to_pydict()
    assert box.drained


def test_what_is_pushed_is_no_result():
    session = Ends()
    session.input("in").put(Block(b"hello, world", 1), Cancellation())
    session.input("in").finish()
    body = '<inputStream name="in"><toLocal name="t"/></inputStream>' + LOAD.format("t", INTO.format(""))
    response = answer(body, Memory({}), session=session)
    assert error_of(results(response)["l"])[0] in ("bad-data", "truncated")


def test_who_pushes_is_refused_once_the_request_has_ended():
    session = Ends()
    with running(
        '<inputStream name="in"><toLocal name="t"/></inputStream>' + LOAD.format("t", ""), Memory({}), session=session
    ):
        pass
    with pytest.raises(ClosedError):
        session.input("in").put(Block(b"x", 1), Cancellation())


# --- schema ---------------------------------------------------------------------------------------------------------

INFO = TableInfo(
    "orders",
    (
        Column("id", "integer", "int64", nullable=False, autoincrement=True),
        Column("note", "varchar", "string", length=40, default="'<&\x01'", comment='a "comment"'),
        Column("price", "numeric", "decimal128(8, 2)", precision=8, scale=2),
    ),
    schema="public",
    primary_key=("id",),
    foreign_keys=(ForeignKey(("note",), "notes", ("text",), "public", "fk"),),
    indexes=(Index("by_note", ("note", "id"), unique=False),),
    rows=12,
    comment="all <orders>",
)
EXTRACT = '<extractDatabaseSchema name="s">{}<output name="e"/></extractDatabaseSchema>'


def test_schema_document():
    text = results(answer(EXTRACT.format(""), Memory({}, (INFO, TableInfo("v", (), kind="view")))))["e"].text
    root = etree.fromstring(text.encode())
    SCHEMA.assertValid(root)
    name = "{http://ogsadai.org.uk/namespaces/2003/07/gds/schema}"
    orders = root.find(f"{name}table")
    assert (orders.get("name"), orders.get("rowEstimate"), orders.get("kind")) == ("orders", "12", "table")
    assert orders.find(f"{name}comment").text == "all <orders>"
    columns = orders.findall(f"{name}column")
    assert [each.get("nullable") for each in columns] == ["false", "true", "true"]
    assert columns[0].get("autoIncrement") == "true"
    assert columns[1].get("default") == "'<&\N{REPLACEMENT CHARACTER}'"
    assert (columns[2].get("precision"), columns[2].get("scale")) == ("8", "2")
    assert [each.get("name") for each in orders.find(f"{name}index")] == ["note", "id"]
    assert orders.find(f"{name}foreignKey").get("table") == "notes"


@pytest.mark.parametrize("database", ["sqlite", "duckdb", "postgres", "mariadb"])
def test_schema_of_real_databases_is_valid(database, request):
    url = request.getfixturevalue(f"{database}_url")
    load(url, ["littleblackbook", "protein_goterm"], rows=10)
    driver = driver_for(url)
    try:
        response = answer(EXTRACT.format('<getTables name="little%"/>'), driver)
    finally:
        driver.close()
    root = etree.fromstring(results(response)["e"].text.encode())
    SCHEMA.assertValid(root)
    assert [each.get("name") for each in root] == ["littleblackbook"]


MANAGE = '<relationalResourceManagement name="m">{}<resultStream name="e"/></relationalResourceManagement>'
CREATE = '<createTable tableName="{}"><column name="id" type="{}" nullable="false" primaryKey="true"/></createTable>'


def test_tables_are_made_and_dropped_in_one_transaction():
    make, drop = 'CREATE TABLE "a""b"."t" ("id" varchar(4) NOT NULL, PRIMARY KEY ("id"))', 'DROP TABLE "old"'
    driver = Memory({make: Script(count=0), drop: Script(count=0)})
    body = MANAGE.format('<dropTable tableName="old"/>' + CREATE.format("a&quot;b.t", "varchar(4)"))
    response = answer(body, driver)
    assert statuses(response)["request"] == "COMPLETED"
    assert driver.committed == [make, drop]


@pytest.mark.parametrize(
    "type", ["integer); drop table x; --", "int -- x", "int, y int", "varchar('4')", "", "1int", 'int "x"', "int\x0b;"]
)
def test_types_are_names_and_nothing_else(type):
    escaped = type.replace('"', "&quot;").replace("\x0b", "&#10;")
    driver = Memory({})
    with (
        pytest.raises(ParameterError, match="is not a type"),
        running(MANAGE.format(CREATE.format("t", escaped)), driver),
    ):
        pass
    assert driver.executed == []


def test_nothing_to_manage():
    with pytest.raises(ParameterError, match="Name a table to create"), running(MANAGE.format(""), Memory({})):
        pass


def test_output_streams_are_named_after_their_activity():
    session = Ends(capacity=10)
    body = (
        query("q", "q", "t") + to_csv("c", "t", "e") + '<outputStream name="mine"><fromLocal from="e"/></outputStream>'
    )
    with running(body, source(), session=session) as work:
        work.finish()
    assert session.outputs.keys() == {"mine"}
