"""WS-Context 1.0: zeep drives it by its WSDL, and what is wrong is a SOAP fault that changes nothing."""

import datetime
from typing import Any

import httpx
import pytest
import requests
import zeep
from lxml import etree
from zeep.exceptions import Fault
from zeep.transports import Transport

from dai.api.server.serve import Background
from dai.security.identity.tokens import new
from tests.api.conftest import Serve

NAMESPACE = "http://docs.oasis-open.org/ws-caf/2005/10/wsctx"
SOAP = "http://schemas.xmlsoap.org/soap/envelope/"
ENVELOPE = (
    f'<s:Envelope xmlns:s="{SOAP}" xmlns="{NAMESPACE}"><s:Header>{{}}</s:Header><s:Body>{{}}</s:Body></s:Envelope>'
)
CONTEXT = "<context><context-identifier>{}</context-identifier></context>"


def service_of(url: str, token: str | None = None) -> Any:
    session = requests.Session()
    if token is not None:
        session.headers["Authorization"] = f"Bearer {token}"
    return zeep.Client(f"{url}/wsctx", transport=Transport(session=session)).service


@pytest.fixture(scope="module")
def face(shared: Background) -> Any:
    return service_of(shared.url)


def header(context: Any) -> dict[str, Any]:
    return {"_soapheaders": {"context": {"context-identifier": context["context-identifier"]}}}


def test_the_life_of_an_activity(face: Any, client: httpx.Client) -> None:
    context = face.begin(type="urn:example:type", timeout=100)
    assert context["context-identifier"].startswith("urn:uuid:")
    assert context["context-service"].endswith("/wsctx")
    assert context["type"] == "urn:example:type"
    left = context["expiresAt"] - datetime.datetime.now(datetime.UTC)
    assert 0 < left.total_seconds() < 101
    assert face.getStatus(**header(context)) == "activity.status.ACTIVE"
    assert 0 < face.getTimeout(**header(context)) <= 100
    for seconds in (1000, 10):
        face.setTimeout(timeout=seconds, **header(context))
        assert seconds - 10 < face.getTimeout(**header(context)) <= seconds
    inside = etree.fromstring('<m:row xmlns:m="urn:mine" a="1">text &amp; more<m:b/></m:row>')
    face.setContents(_value_1=[inside], **header(context))
    contents = face.getContents(**header(context))
    (kept,) = contents["_value_1"]
    assert etree.tostring(kept, method="c14n", exclusive=True) == etree.tostring(inside, method="c14n", exclusive=True)
    id = context["context-identifier"].removeprefix("urn:uuid:").replace("-", "")
    document = client.get(f"/contexts/{id}")
    assert (document.headers["etag"], b"text &amp; more" in document.content) == ('"2"', True)
    face.complete(**header(context))
    assert client.get(f"/contexts/{id}").status_code == 404
    with pytest.raises(Fault, match="There is no context") as raised:
        face.getStatus(**header(context))
    assert raised.value.detail[0].tag == f"{{{NAMESPACE}}}InvalidContextFault"


def test_activities_within_activities(face: Any) -> None:
    above = face.begin()
    below = face.begin(**header(above))
    assert below["parent-context"]["context-identifier"] == above["context-identifier"]
    with pytest.raises(Fault) as raised:
        face.complete(**header(above))
    assert raised.value.detail[0].tag == f"{{{NAMESPACE}}}ChildActivityPendingFault"
    face.complete(**header(below))
    face.complete(**header(above))


@pytest.mark.parametrize("wrong", [0, -1, 2**31 - 1])
def test_time_outs_out_of_range(face: Any, wrong: int) -> None:
    with pytest.raises(Fault) as raised:
        face.begin(timeout=wrong)
    assert raised.value.detail[0].tag == f"{{{NAMESPACE}}}TimeoutOutOfRangeFault"
    context = face.begin()
    with pytest.raises(Fault):
        face.setTimeout(timeout=wrong, **header(context))
    assert face.getTimeout(**header(context)) > 3000


def asked(client: httpx.Client, message: str | bytes, kind: str = "text/xml") -> httpx.Response:
    return client.post("/wsctx", content=message, headers={"Content-Type": kind, "SOAPAction": '""'})


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("", "XML"),
        ("<a", "XML"),
        ("<a/>", "not a SOAP 1.1 envelope"),
        (ENVELOPE.format("", ""), "one call"),
        (ENVELOPE.format("", "<begin/><begin/>"), "one call"),
        (ENVELOPE.format("", '<begin xmlns="urn:x"/>'), "not in the namespace"),
        (ENVELOPE.format("", "<finish/>"), "no operation &apos;finish&apos;".replace("&apos;", "'")),
        (ENVELOPE.format("", "<getStatus/>"), "needs the context"),
        (ENVELOPE.format("", '<begin expiresAt="yesterday"/>'), "not a time"),
        (ENVELOPE.format("", '<begin expiresAt="2001-01-01T00:00:00Z"/>'), "in the future"),
        (ENVELOPE.format("", "<begin><timeout>x</timeout></begin>"), "not a number"),
        (ENVELOPE.format(CONTEXT.format("urn:x"), "<getStatus/>"), "not from this service"),
        (ENVELOPE.format(CONTEXT.format(f"urn:uuid:{'0' * 32}"), "<getStatus/>"), "There is no context"),
        (ENVELOPE.format(CONTEXT.format(f"urn:uuid:{'0' * 32}"), "<begin/>"), "There is no context"),
        (f'<!DOCTYPE x [<!ENTITY e "e">]>{ENVELOPE.format("", "<begin/>")}', "DTD"),
        (ENVELOPE.format("", "<begin>" + "<a>" * 100 + "</a>" * 100 + "</begin>"), "deep"),
    ],
)
def test_a_wrong_message_is_a_fault(client: httpx.Client, message: str, said: str) -> None:
    before = client.get("/contexts").json()
    answer = asked(client, message)
    assert answer.status_code == 500
    fault = etree.fromstring(answer.content).find(f".//{{{SOAP}}}Fault")
    assert fault is not None
    assert fault.findtext("faultcode") == "s:Client"
    assert said in str(fault.findtext("faultstring"))
    assert client.get("/contexts").json() == before


def test_documents_of_others_kinds_are_no_activities(client: httpx.Client) -> None:
    id = client.post("/contexts", content=b"{}").json()["id"]
    answer = asked(client, ENVELOPE.format(CONTEXT.format(f"urn:uuid:{id}"), "<getContents/>"))
    assert "is not an activity" in answer.text
    made = asked(client, ENVELOPE.format("", "<begin/>"))
    urn = etree.fromstring(made.content).findtext(f".//{{{NAMESPACE}}}context-identifier") or ""
    own = urn.removeprefix("urn:uuid:").replace("-", "")
    broken = {"Content-Type": "application/vnd.dai.wsctx+xml", "If-Match": "*"}
    assert client.put(f"/contexts/{own}", content=b"</s:Body>", headers=broken).status_code == 200
    for call in ("<getContents/>", "<setContents/>"):
        answer = asked(client, ENVELOPE.format(CONTEXT.format(urn), call))
        assert (answer.status_code, "InvalidContextStructureFault" in answer.text) == (500, True)


def test_what_is_no_soap_message_is_refused_before(client: httpx.Client) -> None:
    assert asked(client, "<a/>", "application/json").status_code == 415
    assert client.get("/wsctx").headers["content-type"].startswith("text/xml")


@pytest.fixture
def identified(serve: Serve) -> tuple[Any, Any]:
    """The faces of two callers."""
    running = serve(identity={"methods": ["token"]})
    faces = []
    for name in ("alice", "bob"):
        token, stored = new(name, 3600)
        running.service.store.add_token(stored)
        faces.append(service_of(running.url, token))
    return faces[0], faces[1]


def test_an_activity_belongs_to_who_began_it(identified: tuple[Any, Any]) -> None:
    hers, his = identified
    context = hers.begin(timeout=100)
    calls = [his.getStatus, his.getTimeout, his.getContents, his.complete]
    for call in calls:
        with pytest.raises(Fault, match="There is no context"):
            call(**header(context))
    with pytest.raises(Fault):
        his.setTimeout(timeout=1, **header(context))
    with pytest.raises(Fault):
        his.setContents(_value_1=[], **header(context))
    with pytest.raises(Fault):
        his.begin(**header(context))
    assert hers.getTimeout(**header(context)) > 50


def test_contents_that_are_too_large(serve: Serve) -> None:
    with httpx.Client(base_url=serve(limits={"context_bytes": 1000}).url) as client:
        made = asked(client, ENVELOPE.format("", "<begin/>"))
        urn = etree.fromstring(made.content).findtext(f".//{{{NAMESPACE}}}context-identifier")
        large = ENVELOPE.format(CONTEXT.format(urn), f"<setContents>{'x' * 1001}</setContents>")
        answer = asked(client, large)
        assert "too-large" in answer.text
        assert asked(client, "x" * 100_000).status_code == 413


def test_contents_bring_a_namespace_along_once(client: httpx.Client) -> None:
    """Before, each child had all of them: a message of a megabyte became gigabytes."""
    made = asked(client, ENVELOPE.format("", "<begin/>"))
    urn = etree.fromstring(made.content).findtext(f".//{{{NAMESPACE}}}context-identifier") or ""
    call = '<setContents xmlns:x="urn:{}">{}</setContents>'.format("x" * 10_000, "<x:a/>" * 1000)
    answer = asked(client, ENVELOPE.format(CONTEXT.format(urn), call))
    assert (answer.status_code, "contentsSet" in answer.text) == (200, True), answer.text
    answer = asked(client, ENVELOPE.format(CONTEXT.format(urn), "<getContents/>"))
    assert len(answer.content) < 20_000
    assert len(etree.fromstring(answer.content).findall(f".//{{urn:{'x' * 10_000}}}a")) == 1000
