"""Documents of the technology preview: requests, and what executes them with which values."""

import pytest
from lxml import etree

from dai.errors import DocumentError, TooLargeError
from dai.perform.activity import ACTIVITIES
from dai.perform.parser import GDS, PREVIEW, DocumentLimits, parse, xsd
from tests.documents import query, rooted, to_csv, written

QUERY = (
    '<sqlQueryStatement name="q">{}<sqlParameter position="1" from="id"/><expression>select ?</expression>'
    '<webRowSetStream name="rows"/></sqlQueryStatement><deliverToResponse name="d"><fromLocal from="rows"/>'
    "</deliverToResponse>"
)
ID = '<parameter name="id" value="7"/>'
EXECUTE = '<execute name="e" requestName="r">{}</execute>'


def preview(requests: str, executions: str = EXECUTE.format("")) -> bytes:
    return rooted(requests + executions, PREVIEW)


def request(body: str, name: str = "r") -> str:
    return f'<request name="{name}">{body}</request>'


def with_value(text: str, name: str = "id") -> str:
    return EXECUTE.format(f'<withParameter name="{name}">{text}</withParameter>')


@pytest.mark.parametrize(
    ("parameter", "execute", "value"),
    [
        (ID, EXECUTE.format(""), "7"),
        ('<parameter name="id"><value>7</value></parameter>', EXECUTE.format(""), "7"),
        ('<parameter name="id">7</parameter>', EXECUTE.format(""), "7"),
        ('<parameter name="id" value=""/>', EXECUTE.format(""), ""),
        (ID, with_value("8"), "8"),
        ('<parameter name="id"/>', with_value("8"), "8"),
        (ID, EXECUTE.format('<withParameter name="id" value="9"/>'), "9"),
        (ID, EXECUTE.format('<withParameter name="id"><value>9</value></withParameter>'), "9"),
        (ID, with_value("&lt;a/> or 1=1 --"), "<a/> or 1=1 --"),
    ],
)
def test_the_value_of_a_parameter_is_bound(parameter: str, execute: str, value: str) -> None:
    perform = parse(preview(request(parameter + QUERY.format("")), execute))
    statement = perform.activities[0]
    assert statement.expression == "select ?"
    assert [(each.position, each.constant()) for each in statement.parameters] == [(1, value)]
    assert statement.inputs == ()
    assert [(each.name, each.activity, each.tabular) for each in perform.end_points] == [("d", "d", True)]


def test_a_value_may_be_the_input_of_any_activity() -> None:
    body = '<parameter name="text">&lt;a b="c"/></parameter><Counter name="c"><input from="text"/><output name="n"/>'
    perform = parse(preview(request(body + "</Counter>")))
    assert {each.name: type(each).__name__ for each in perform.activities} == {"c": "Counter", "text": "Echo"}
    assert next(each for each in perform.activities if each.name == "text").source.content == '<a b="c"/>'


def test_only_what_is_executed_runs() -> None:
    requests = request(query("q", "x", "t") + to_csv("c", "t", "e")) + request(
        query("p", "x", "t", "webRowSetStream"), "other"
    )
    perform = parse(preview("<documentation>why</documentation>" + requests))
    assert [each.name for each in perform.activities] == ["q", "c"]
    both = request(query("q", "x", "t", "webRowSetStream"))
    both += request(query("p", "x", "u", "webRowSetStream"), "other")
    perform = parse(preview(both, EXECUTE.format("") + '<execute name="f" requestName="other"/>'))
    assert [each.name for each in perform.activities] == ["q", "p"]


def test_lines_are_those_of_the_document() -> None:
    body = f'\n{ID}\n<sqlQueryStatement name="q">\n<sqlParameter position="1" from="nothing"/>'
    rest = '<expression>x</expression>\n<webRowSetStream name="w"/></sqlQueryStatement>'
    with pytest.raises(DocumentError, match="'nothing'") as error:
        parse(preview(request(body + rest)))
    assert error.value.line == 4


def test_resources_are_named_in_requests_and_activities() -> None:
    named = f"<dataResource>one</dataResource>{ID}" + QUERY.format(" <dataResource>two</dataResource> ")
    assert list(parse(preview(request(named))).resources) == ["one", "two"]
    assert parse(written(query("q", "x", "t", "webRowSetStream"))).resources == {}


@pytest.mark.parametrize(
    ("requests", "executions", "message"),
    [
        (request(ID + QUERY.format("")), "", "no execute"),
        ("", "", "no execute"),
        (request(ID + QUERY.format("")), '<execute name="e" requestName="R"/>', "No request has the name 'R'"),
        (request(ID + QUERY.format("")), EXECUTE.format("") * 2, "Two executions have the name 'e'"),
        (
            request(ID + QUERY.format("")),
            EXECUTE.format("") + '<execute name="f" requestName="r"/>',
            "'r' is executed twice",
        ),
        (request(QUERY.format("")) * 2, EXECUTE.format(""), "Two requests have the name 'r'"),
        (request(ID * 2 + QUERY.format("")), EXECUTE.format(""), "Two parameters have the name 'id'"),
        (request('<parameter name="id"/>' + QUERY.format("")), EXECUTE.format(""), "no value and no default"),
        (request(ID + QUERY.format("")), with_value("1", "di"), "no parameter 'di'"),
        (request('<parameter name="id" value="1">2</parameter>'), EXECUTE.format(""), "2 values"),
        (request(ID), '<execute name="e"/>', "lacks the attribute 'requestName'"),
        (request("<parameter/>"), EXECUTE.format(""), "lacks the attribute 'name'"),
        (request("<other/>"), EXECUTE.format(""), "'other' is not expected"),
        (query("q", "x", "t"), EXECUTE.format(""), "'sqlQueryStatement' is not expected"),
        (request("<dataResource><a/></dataResource>"), EXECUTE.format(""), "holds an element"),
        (request(ID), EXECUTE.format(""), "no activity"),
    ],
)
def test_what_is_refused(requests: str, executions: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        parse(preview(requests, executions))


def test_the_other_dialects_have_no_requests() -> None:
    with pytest.raises(DocumentError, match="'request' is not expected"):
        parse(written(request(query("q", "x", "t")), GDS))


def test_a_value_that_stands_in_many_places_is_bounded() -> None:
    uses = "".join(f'<Counter name="c{i}"><input from="id"/><output name="n{i}"/></Counter>' for i in range(20))
    document = preview(request(ID + uses), with_value("x" * 1000))
    parse(document, DocumentLimits(bytes=20_000))
    with pytest.raises(TooLargeError, match="values"):
        parse(document, DocumentLimits(bytes=19_999))


def test_a_group_counts_the_activities_of_a_request() -> None:
    body = "".join(query(f"q{i}", "x", f"t{i}") for i in range(3))
    with pytest.raises(TooLargeError, match="2 activities"):
        parse(preview(request(body)), DocumentLimits(activities=2))


def test_its_schema_accepts_what_is_accepted() -> None:
    schema = etree.XMLSchema(etree.fromstring(xsd(PREVIEW)))
    examples = "".join(declared.example for declared in ACTIVITIES.values())
    body = f"<documentation>d</documentation><dataResource>one</dataResource>{ID}{QUERY.format('')}{examples}"
    for text in (preview(request(body)), preview(request(ID + QUERY.format("")), with_value("8"))):
        schema.assertValid(etree.fromstring(text))
    assert not schema.validate(etree.fromstring(rooted(query("q", "x", "t"), PREVIEW)))
