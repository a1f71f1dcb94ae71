import base64
import gzip
import re

import httpx
import pytest
from lxml import etree

from dai.api.server.serve import Background
from tests.api.conftest import DOCUMENT, XML, statement, streamed

URL = "/resources/book/perform"
TWO = DOCUMENT.format(statement("select 1 as a", "q1", "one") + statement("select 2 as b", "q2", "two"))
ONE = DOCUMENT.format(statement("select i, s from numbers where i < 3 order by i"))


def perform(client: httpx.Client, document: str, query: str = "", **headers: str) -> httpx.Response:
    return client.post(URL + query, content=document.encode(), headers={**XML, **headers})


def test_the_response_document(client: httpx.Client) -> None:
    answer = perform(client, ONE)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/xml"
    assert "<![CDATA[" in answer.text
    assert "number 2" in answer.text
    assert f'<request id="{answer.headers["x-request-id"]}" status="COMPLETED"/>' in answer.text
    size = str(len(answer.content))  # which a slow machine does not know when the head leaves
    assert answer.headers.get("content-length", size) == size or answer.headers.get("content-encoding")


@pytest.mark.parametrize(
    ("accept", "starts"),
    [("text/csv", "i,s"), ("application/vnd.webrowset+xml", "<?xml"), ("application/x-ndjson", '{"i":0')],
)
def test_one_tabular_end_point_in_another_form(client: httpx.Client, accept: str, starts: str) -> None:
    answer = perform(client, ONE, Accept=accept)
    assert answer.headers["content-type"] == accept
    assert answer.text.startswith(starts)
    assert perform(client, ONE, "?format=" + {"t": "csv"}.get(accept[0], "webrowset")).status_code == 200


def test_one_end_point_alone(client: httpx.Client) -> None:
    answer = perform(client, TWO, "?output=two", Accept="text/csv")
    assert answer.text.splitlines() == ["b", "2"]
    own = perform(client, TWO, "?output=one")
    assert own.headers["content-type"] == "application/vnd.webrowset+xml"
    answer = perform(client, TWO, "?output=three")
    assert answer.status_code == 404
    assert answer.json()["hint"] == "Known: one, two."


def test_two_end_points_have_no_tabular_form(client: httpx.Client) -> None:
    answer = perform(client, TWO, Accept="text/csv")
    assert answer.status_code == 406
    assert "?output=NAME" in answer.json()["hint"]
    assert perform(client, TWO, "?format=csv").status_code == 406


def test_an_update_counts_and_is_no_table(client: httpx.Client) -> None:
    document = DOCUMENT.format(
        '<sqlUpdateStatement name="u"><expression>update numbers set s = s where i &lt; 3</expression>'
        '<resultStream name="count"/></sqlUpdateStatement>'
    )
    assert 'updateCount="3"' in perform(client, document).text
    alone = perform(client, document, "?output=count")
    assert alone.headers["content-type"] == "application/xml"
    assert 'updateCount="3"' in alone.text
    assert perform(client, document, "?output=count", Accept="text/csv").status_code == 406


def test_a_failure_of_the_document_is_a_problem_or_xml(client: httpx.Client) -> None:
    broken = ONE.replace("expression", "expresion")
    answer = perform(client, broken)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "invalid-document"
    assert answer.json()["line"] == 1
    answer = perform(client, broken, Accept="application/xml")
    assert answer.status_code == 400
    assert 'error id="invalid-document"' in answer.text
    assert answer.text.count("gridDataServiceResponse") == 2
    answer = perform(client, broken.replace("2003/07/gds/types", "2005/10/types"), Accept="text/xml")
    assert "2005/10/types" in answer.text or answer.status_code == 400


def test_bad_sql_is_refused_before_the_status_line(client: httpx.Client) -> None:
    document = DOCUMENT.format(statement("select nothing from numbers"))
    for query, accept in (("", "*/*"), ("", "application/xml"), ("?output=rows", "text/csv")):
        answer = perform(client, document, query, Accept=accept)
        assert answer.status_code == 400, query
        assert "sql-error" in answer.text


FAILING = {
    "query": statement("select nothing from numbers", "culprit"),
    "update": '<sqlUpdateStatement name="culprit"><expression>update nothing set i = 1</expression>'
    '<resultStream name="count"/></sqlUpdateStatement>',
    "bag": '<sqlBag name="culprit"><statement><expression>update nothing set i = 1</expression></statement>'
    '<resultStream name="count"/></sqlBag>',
    "load": statement("select 1 as i", "q", "rows") + '<sqlBulkLoadRowSet name="culprit"><webRowSetStream from="rows"/>'
    '<loadIntoTable tableName="nothing"/><resultStream name="count"/></sqlBulkLoadRowSet>',
}


@pytest.mark.parametrize(
    ("accept", "xml"),
    [
        (None, False),
        ("*/*", False),
        ("application/xml", True),
        ("text/xml, */*;q=0.1", True),
        ("application/problem+json, application/xml;q=0.5", False),
        ("application/xml, application/json", True),
    ],
)
@pytest.mark.parametrize("case", FAILING)
def test_an_error_has_the_form_that_accept_asks_for_and_names_its_activity(
    client: httpx.Client, case: str, accept: str | None, xml: bool
) -> None:
    if accept is None:
        client.headers.pop("accept")
    answer = perform(client, DOCUMENT.format(FAILING[case]), **({"Accept": accept} if accept else {}))
    assert answer.status_code in (400, 404)
    if xml:
        assert answer.headers["content-type"] == "application/xml"
        assert re.search('<error id="(sql-error|not-found)" activity="culprit">', answer.text)
    else:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] in ("sql-error", "not-found")
        assert answer.json()["activity"] == "culprit"


def test_an_error_of_a_query_without_a_document_names_no_activity(client: httpx.Client) -> None:
    answer = client.post("/resources/book/query", json={"sql": "select nothing from numbers"})
    assert "activity" not in answer.json()


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded", "text/csv"])
def test_other_content_types_are_refused(client: httpx.Client, kind: str) -> None:
    assert client.post(URL, content=ONE, headers={"Content-Type": kind}).status_code == 415


COMPRESSED = (
    ("POST", URL),
    ("POST", "/resources/book/query"),
    ("POST", "/sessions"),
    ("PATCH", "/sessions/x"),
    ("PUT", "/sessions/x/streams/y/blocks/0"),
    ("POST", "/jobs/x/phase"),
    ("POST", "/jobs/x/destruction"),
)


@pytest.mark.parametrize(("method", "path"), COMPRESSED)
@pytest.mark.parametrize("coding", ["gzip", "zstd", "identity, br"])
def test_a_compressed_body_is_refused(client: httpx.Client, method: str, path: str, coding: str) -> None:
    """It is not read, so none can be a bomb."""
    body = gzip.compress(b"0" * (1 << 20))
    answer = client.request(method, path, content=body, headers={**XML, "Content-Encoding": coding})
    assert answer.status_code == 415
    assert "Content-Encoding" in answer.text


def test_hostile_documents_change_nothing(client: httpx.Client) -> None:
    for document in (
        "",
        "\x00",
        "<a/>",
        '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>',
        DOCUMENT.format(""),
        "<" * 10000,
        "<a>" * 5000,
    ):
        answer = perform(client, document)
        assert answer.status_code in (400, 413), document[:50]
        assert "root:" not in answer.text


def test_a_document_as_a_job_says_where(client: httpx.Client) -> None:
    json = perform(client, ONE, Prefer="respond-async", Accept="application/json").json()
    assert json["phase"] in ("QUEUED", "EXECUTING", "COMPLETED")
    assert "select" in json["sql"].lower()
    answer = perform(client, ONE, Prefer="respond-async")
    assert answer.status_code == 202
    assert answer.headers["location"].startswith("/jobs/")
    assert answer.headers["preference-applied"] == "respond-async"
    assert 'status="PROCESSING"' in answer.text


def test_the_document_may_make_join_and_end_a_session(client: httpx.Client, shared: Background) -> None:
    session = client.post("/sessions").json()["id"]
    assert f'session id="{session}"' in perform(client, ONE, f"?session={session}").text
    assert perform(client, ONE, "?session=none").status_code == 404


def test_binary_in_a_response_document_is_base64(client: httpx.Client) -> None:
    document = DOCUMENT.format(
        '<sqlQueryStatement name="q"><expression>select 1 as a</expression><resultStream name="r"/>'
        '</sqlQueryStatement><sqlResultsToArrow name="e"><resultSet from="r"/><arrow name="stream"/>'
        "</sqlResultsToArrow>"
    )
    answer = perform(client, document)
    assert answer.status_code == 200, answer.text
    match = re.search(r'encoding="base64">([^<]+)<', answer.text)
    assert match is not None
    assert base64.b64decode(match[1]).startswith(b"\xff\xff\xff\xff")
    alone = perform(client, document, "?output=stream")
    assert alone.headers["content-type"] == "application/vnd.apache.arrow.stream"


def test_a_document_without_end_points_goes_on_as_a_job(client: httpx.Client) -> None:
    answer = perform(client, streamed("select 1 as a"))
    assert answer.status_code == 202
    session = re.search(r'session id="([^"]+)"', answer.text)
    assert session is not None
    block = client.get(f"/sessions/{session[1]}/streams/out/blocks/0?wait=20")
    assert block.status_code == 200
    assert b"<columnValue>1</columnValue>" in block.content


PREVIEW = """<gridDataServicePerform xmlns="http://ogsadai.org.uk/P2R2/schemas/gds"><request name="r">{}
<parameter name="text" value="none"/><sqlQueryStatement name="q"><sqlParameter position="1" from="text"/>
<expression>select count(*) as n from numbers where s = ?</expression><webRowSetStream name="rows"/></sqlQueryStatement>
<deliverToResponse name="d"><fromLocal from="rows"/></deliverToResponse></request>{}</gridDataServicePerform>"""
EXECUTE = '<execute name="e" requestName="r">{}</execute>'


def test_a_request_of_the_preview_runs_with_its_values(client: httpx.Client) -> None:
    document = PREVIEW.format("<dataResource>book</dataResource>", EXECUTE.format(""))
    root = etree.fromstring(perform(client, document).content)
    assert etree.QName(root).text == "{http://ogsadai.org.uk/P2R2/schemas/gds}gridDataServiceResponse"
    results = {(each.get("name"), each.get("status")) for each in root.iterfind("{*}result")}
    assert results == {("d", "COMPLETED"), ("q", "COMPLETED")}
    value = EXECUTE.format("<withParameter name=\"text\">x' or '1'='1</withParameter>")
    answer = perform(client, PREVIEW.format("", value), "?output=d", Accept="text/csv")
    assert answer.text.splitlines() == ["n", "0"]


def test_a_request_of_the_preview_is_refused(client: httpx.Client) -> None:
    answer = perform(client, PREVIEW.format("", ""))
    assert answer.status_code == 400
    assert "no execute" in answer.text
    elsewhere = PREVIEW.format("\n<dataResource>shelf</dataResource>", EXECUTE.format(""))
    answer = perform(client, elsewhere, Accept="application/json")
    assert answer.status_code == 400
    assert answer.json()["line"] == 2
    assert answer.json()["hint"] == "Send it to /resources/shelf/perform."
