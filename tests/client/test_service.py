import datetime
import decimal
import json
import uuid
from pathlib import Path
from xml.etree import ElementTree

import pytest

import dai
from dai.client import Resource, Service, activity, document, element, parted
from dai.client.documents import as_bytes
from dai.client.http.problems import from_problem
from dai.client.testing import Scripted, ScriptedServer
from dai.errors import DataError, NotAcceptableError, NotFoundError, ParameterError, RequestError
from dai.formats import media_type
from dai.perform.parser import parse
from tests.client.replies import DATA, TABLE, arrow, problem, said

MISSING = problem(404, type="not-found", detail="There is no resource of this name.")
NAMES = said({"resources": [{"name": "book"}, {"name": "flights"}]})


@pytest.mark.parametrize(
    ("url", "base", "name"),
    [
        ("http://h:1/book", "http://h:1", "book"),
        ("http://h:1/book/", "http://h:1", "book"),
        ("http://h:1/resources/book", "http://h:1", "book"),
        ("https://h/lab/dai/resources/book", "https://h/lab/dai", "book"),
        ("http://h:1", "http://h:1", None),
        ("http://h:1/", "http://h:1", None),
        ("http://h:1/resources/", "http://h:1", None),
        ("http://h:1/a%20b", "http://h:1", "a b"),
    ],
)
def test_the_parts_of_an_address(url: str, base: str, name: str | None) -> None:
    assert parted(url) == (base, name)


def test_connecting_to_a_resource() -> None:
    with ScriptedServer(DATA) as server:
        resource = dai.connect(f"{server.url}/data")
        assert repr(resource) == f"<Resource data at {server.url}: PostgreSQL 17>"
        assert resource.url == f"{server.url}/resources/data"
        assert server.requests[0].target == "/resources/data"


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    message = r"(?s)no resource 'bok'.*Did you mean 'book'"
    with ScriptedServer(MISSING, NAMES) as server, pytest.raises(NotFoundError, match=message):
        dai.connect(f"{server.url}/bok")


def test_without_a_name_the_only_resource() -> None:
    with ScriptedServer(said({"resources": [{"name": "data"}]}), DATA) as server:
        assert dai.connect(server.url).name == "data"
    message = r"(?s)has 2 resources; name one.*/book.*/flights"
    with ScriptedServer(NAMES) as server, pytest.raises(NotFoundError, match=message):
        dai.connect(server.url)


def test_an_address_without_a_scheme() -> None:
    with pytest.raises(RequestError, match="Did you mean 'http://localhost:8080/book'"):
        dai.connect("localhost:8080/book")


def test_a_query_is_sent_as_it_was_meant() -> None:
    with ScriptedServer(DATA, arrow()) as server:
        resource = dai.connect(f"{server.url}/data")
        values = [
            1,
            2.5,
            None,
            True,
            "ä'",
            datetime.date(2026, 11, 21),
            decimal.Decimal("1.10"),
            uuid.UUID(int=7),
            bytearray(b"hello"),
            [b"x"],
        ]
        assert resource.query("select ?", *values, blocksize=5).arrow().equals(TABLE)
        request = server.requests[-1]
        assert (request.method, request.target) == ("POST", "/resources/data/query")
        assert request.headers["accept"] == media_type("arrow")
        assert json.loads(request.body) == {
            "sql": "select ?",
            "blocksize": 5,
            "parameters": [
                *[1, 2.5, None, True, "ä'"],
                {"type": "date", "value": "2026-11-21"},
                {"type": "decimal", "value": "1.10"},
                "00000000-0000-0000-0000-000000000007",
                {"type": "binary", "value": "aGVsbG8="},
                [{"type": "binary", "value": "eA=="}],
            ],
        }
        resource.query("select 1", format="webrowset").close()
        assert server.requests[-1].headers["accept"] == media_type("webrowset")
        with pytest.raises(NotAcceptableError, match="Did you mean 'webrowset'"):
            resource.query("select 1", format="webrowsets")


@pytest.mark.parametrize("value", [[{"a": 1}], object(), [object()]])
def test_a_parameter_that_no_column_holds_is_refused(value: object) -> None:
    data = Resource(Service("http://127.0.0.1:1"), "data", {})
    with pytest.raises(DataError):
        data.query("select ?", value)


def test_documents_in_every_form(tmp_path: Path) -> None:
    query = activity(
        "sqlQueryStatement",
        element("sqlParameter", "7", position=1),
        element("expression", "select 'a<b' where 1 < ?"),
        element("webRowSetStream", name="rows"),
        name="q",
    )
    built = document(query, documentation="What we want to know.")
    perform = parse(built)
    assert [each.name for each in perform.end_points] == ["rows"]
    assert perform.documentation == "What we want to know."
    path = tmp_path / "perform.xml"
    path.write_bytes(built)
    lxml = pytest.importorskip("lxml.etree").fromstring(built)
    text = '<?xml version="1.0" encoding="ISO-8859-1"?>\n' + built.decode().partition("?>")[2]
    for form in (built, bytearray(built), text, path, ElementTree.fromstring(built), lxml, lxml.getroottree()):
        assert parse(as_bytes(form)).end_points == perform.end_points
    for form in ("select 1", 7, None):
        with pytest.raises(RequestError):
            as_bytes(form)
    assert element("a", from_="x", flag=True).attrib == {"from": "x", "flag": "true"}
    with pytest.raises(RequestError, match="put the text first"):
        element("a", element("b"), "text")


def test_performing_asks_for_what_is_wanted() -> None:
    response = Scripted(body=b"<gridDataServiceResponse/>", headers={"Content-Type": "application/xml"})
    with ScriptedServer(DATA, response, arrow(), response) as server:
        resource = dai.connect(f"{server.url}/data")
        assert resource.perform("<perform/>").job is None
        assert server.requests[-1].target == "/resources/data/perform"
        assert server.requests[-1].headers["accept"] == "application/xml"
        result = resource.perform(b"<perform/>", "a&b", format="arrow", blocksize=7)
        assert server.requests[-1].target == "/resources/data/perform?output=a%26b&blocksize=7"
        assert server.requests[-1].headers["accept"] == media_type("arrow")
        assert result.arrow().equals(TABLE)


def test_the_schema() -> None:
    tables = [
        {"name": "flights", "rows": 336776, "columns": [{"name": "year", "type": "integer"}]},
        {"name": "planes", "columns": []},
    ]
    with ScriptedServer(DATA, said({"tables": tables})) as server:
        schema = dai.connect(f"{server.url}/data").schema()
        assert len(schema) == 2
        assert schema["flights"]["columns"][0]["name"] == "year"
        assert repr(schema).startswith("flights (about 336,776 rows): year integer")
        with pytest.raises(NotFoundError, match="Did you mean 'planes'"):
            schema["plane"]


def test_options_are_checked() -> None:
    with pytest.raises(ParameterError, match=r"(?s)patiance.*patience"):
        dai.connect("http://h/x", patiance=3)


def test_statistics_of_a_table() -> None:
    known = {"rows": 5, "size_bytes": None, "columns": {"id": {"distinct": 5.0}}}
    with ScriptedServer(DATA, said(known)) as server:
        assert dai.connect(f"{server.url}/data").statistics("a b")["columns"]["id"] == {"distinct": 5.0}
        assert server.requests[-1].target == "/resources/data/statistics?table=a%20b"


def test_a_correlation_id_that_was_passed_on_is_told_once() -> None:
    """A federation hands on what a service that it asked has told it."""
    source = from_problem({"type": "sql-error", "detail": "No.", "hint": "Try it.", "instance": "abc"})
    actual = from_problem(source.problem("def"))
    assert str(actual).split("\n") == ["No.", "Try it.", "Correlation id: abc"]
