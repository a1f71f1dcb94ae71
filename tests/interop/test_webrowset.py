"""WebRowSet documents of the running service, read by Java and checked by libxml2; and their blocks."""

import re
import shutil
from pathlib import Path

import pytest
from lxml import etree

from tests.interop.conftest import AMPERSANDS, EVERY_TYPE, GOTERM, asked
from tests.interop.java import java
from tests.processes import ROOT, ServiceProcess

WEBROWSET = "application/vnd.webrowset+xml"
RESOURCES = pytest.mark.parametrize("resource", ["postgresql", "mariadb"])
DIALECTS = {
    "2003-07": ("gridDataServicePerform", "http://ogsadai.org.uk/namespaces/2003/07/gds/types"),
    "2005-10": ("perform", "http://ogsadai.org.uk/namespaces/2005/10/types"),
}


def lines_of(program: str, *arguments: str | Path) -> list[str]:
    return [line for line in java(program, *arguments).split("\n") if line]


def schema(name: str) -> etree.XMLSchema:
    return etree.XMLSchema(etree.parse(ROOT / "schemas" / name))


def document(service: ServiceProcess, sql: str, resource: str, path: Path) -> Path:
    with asked(service, sql, WEBROWSET, resource) as answer, path.open("wb") as file:
        shutil.copyfileobj(answer, file)
    return path


@RESOURCES
def test_every_type_is_valid_and_read_by_java(service: ServiceProcess, tmp_path: Path, resource: str) -> None:
    path = document(service, EVERY_TYPE, resource, tmp_path / "every.xml")
    schema("webrowset.xsd").assertValid(etree.parse(path))
    lines = [line.split("\x1f") for line in lines_of("ReadWebRowSet", path)]
    columns = [line for line in lines if line[0] == "column"]
    rows = [line[1:] for line in lines if line[0] == "row"]
    assert [column[1] for column in columns] == ["id", *(f"c{number}" for number in range(len(columns) - 1))]
    assert lines[-1] == ["rows", str(len(rows))]
    assert rows[-1] == [str(len(rows) - 1), *["\x00"] * (len(columns) - 1)]
    assert "\x00" not in rows[0]


@RESOURCES
def test_many_ampersands(service: ServiceProcess, tmp_path: Path, resource: str) -> None:
    if resource == "postgresql":
        sql = f"select n, 'a & b <' as s from generate_series(1, {AMPERSANDS}) n"
    else:
        sql = f"select seq as n, 'a & b <' as s from seq_1_to_{AMPERSANDS}"
    path = document(service, sql, resource, tmp_path / "many.xml")
    characters = sum(len(str(n)) for n in range(1, AMPERSANDS + 1)) + AMPERSANDS * len("a & b <")
    (line,) = lines_of("ReadWebRowSet", "--count", path)
    assert line.split("\x1f") == ["rows", str(AMPERSANDS), str(characters)]


def streamed(service: ServiceProcess, sql: str, resource: str, blocksize: int) -> str:
    """The address of the stream of a document that is at work."""
    escaped = sql.replace("&", "&amp;").replace("<", "&lt;")
    content = (
        '<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">'
        f'<sqlQueryStatement name="q"><expression>{escaped}</expression><webRowSetStream name="rows"/>'
        '</sqlQueryStatement><outputStream name="out"><fromLocal from="rows"/></outputStream></gridDataServicePerform>'
    )
    with service.client() as client:
        answer = client.post(
            f"/resources/{resource}/perform?blocksize={blocksize}",
            content=content,
            headers={"Content-Type": "application/xml"},
        )
    assert answer.status_code == 202, answer.text
    schema("response-2003-07.xsd").assertValid(etree.fromstring(answer.content).getroottree())
    match = re.search(r'session id="([^"]+)"', answer.text)
    assert match is not None
    return f"{service.url}/sessions/{match[1]}/streams/out"


@RESOURCES
@pytest.mark.parametrize(("blocksize", "rows"), [(1, 500), (7, 5000), (100, None), (1_000_000, None)])
def test_concatenated_blocks_are_the_synchronous_document(
    service: ServiceProcess, resource: str, blocksize: int, rows: int | None
) -> None:
    sql = GOTERM if rows is None else f"{GOTERM} limit {rows}"
    with asked(service, sql, WEBROWSET, resource) as answer:
        whole = answer.read()
    stream = streamed(service, sql, resource, blocksize)
    number, got = 0, []
    with service.client() as client:
        while (block := client.get(f"{stream}/blocks/{number}?wait=20")).status_code != 204:
            assert block.status_code in (200, 202), block.text
            if block.status_code == 200:
                got.append(block.content)
                number += 1
    assert b"".join(got) == whole
    assert number == -(-(rows or 16_803) // blocksize)


def test_java_pulls_blocks(service: ServiceProcess, tmp_path: Path) -> None:
    stream = streamed(service, GOTERM, "postgresql", 1000)
    assert lines_of("PullBlocks", stream, tmp_path / "pulled.xml") == ["17"]
    with asked(service, GOTERM, WEBROWSET) as answer:
        assert (tmp_path / "pulled.xml").read_bytes() == answer.read()


@pytest.mark.parametrize("dialect", DIALECTS)
@RESOURCES
def test_responses_are_valid(service: ServiceProcess, resource: str, dialect: str) -> None:
    element, namespace = DIALECTS[dialect]
    with service.client() as client:
        for sql in (EVERY_TYPE, "select nothing from nowhere"):
            content = (
                f'<{element} xmlns="{namespace}"><sqlQueryStatement name="q"><expression>{sql}</expression>'
                f'<webRowSetStream name="rows"/></sqlQueryStatement></{element}>'
            )
            answer = client.post(
                f"/resources/{resource}/perform",
                content=content,
                headers={"Content-Type": "application/xml", "Accept": "application/xml"},
            )
            assert answer.status_code == (200 if sql == EVERY_TYPE else 400)
            schema(f"response-{dialect}.xsd").assertValid(etree.fromstring(answer.content).getroottree())


@RESOURCES
def test_what_java_wrote_is_loaded(service: ServiceProcess, tmp_path: Path, resource: str) -> None:
    sql = "select n as id, concat('s', n) as name from (select 1 as n union select 2 union select 3 union select 4) t"
    original = document(service, f"{sql} order by n", resource, tmp_path / "original.xml")
    changed = tmp_path / "changed.xml"
    lines_of("WriteWebRowSet", original, changed)
    assert "<emptyString/>" in changed.read_text()
    assert "<updateRow>" in changed.read_text()
    namespace = DIALECTS["2003-07"][1]
    with service.client() as client:

        def perform(activities: str, session: str = "") -> str:
            answer = client.post(
                f"/resources/{resource}/perform{session}",
                content=f'<gridDataServicePerform xmlns="{namespace}">{activities}</gridDataServicePerform>',
                headers={"Content-Type": "application/xml"},
            )
            assert answer.status_code == 200, answer.text
            return answer.text

        perform(
            '<sqlUpdateStatement name="create"><expression>create table from_java (id bigint, name varchar(20))'
            '</expression><resultStream name="count"/></sqlUpdateStatement>'
        )
        session = client.post("/sessions").json()["id"]
        block = f"/sessions/{session}/streams/in/blocks/0?last=true"
        headers = {"Content-Type": WEBROWSET}
        assert client.put(block, content=changed.read_bytes(), headers=headers).status_code == 204
        perform(
            '<inputStream name="in"><toLocal name="pushed"/></inputStream><sqlBulkLoadRowSet name="load">'
            '<webRowSetStream from="pushed"/><loadIntoTable tableName="from_java"/><resultStream name="count"/>'
            "</sqlBulkLoadRowSet>",
            f"?session={session}",
        )
    with asked(service, "select id, name from from_java order by id", "text/csv", resource) as answer:
        assert answer.read().decode().split() == ["id,name", '1,""', "20,", "100,new", "101,newer"]


@RESOURCES
def test_java_reads_the_names_of_columns(service: ServiceProcess, tmp_path: Path, resource: str) -> None:
    names = ["id<5", "a&b", "m[1][2]"]
    quote = '"' if resource == "postgresql" else "`"
    sql = f"select {', '.join(f'1 as {quote}{name}{quote}' for name in names)}"
    lines = lines_of("ReadWebRowSet", document(service, sql, resource, tmp_path / "names.xml"))
    assert [line.split("\x1f")[1] for line in lines[: len(names)]] == names
