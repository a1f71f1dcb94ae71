"""The faces for metadata, WSDL documents and queries over SOAP: zeep drives them by the WSDLs that are served."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
import zeep
from zeep.exceptions import Fault
from zeep.transports import Transport

from dai.api.server.serve import Background, background
from tests.api.conftest import configured
from tests.registry.conftest import Known, publish, service

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("error::UserWarning:zeep")]
M, U = "http://www.grimoires.org/metadata.xsd", "http://www.uddi.org/schema/uddi_v2.xsd#"
UNIT, REVIEW = "http://example.org/terms#unit", "http://example.org/terms#review"
SKY = "00000001-0000-0000-0000-000000000000"
WSDL = """<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" xmlns:t="urn:sky" targetNamespace="urn:sky" name="Sky">
<message name="ask"><part name="where"/><part name="radius"/></message>
<message name="told"><part name="flux"/></message>
<portType name="Sky"><operation name="cone"><input message="t:ask"/><output message="t:told"/></operation>
<operation name="ping"><input message="t:told"/></operation></portType></definitions>"""
CONE = {"portTypeNamespace": "urn:sky", "portTypeName": "Sky", "operationName": "cone"}
FLUX = {"messageNamespace": "urn:sky", "messageName": "told", "messagePartName": "flux"}


class Faces:
    """The ports for one caller."""

    def __init__(self, served: Background, headers: Any) -> None:
        session = requests.Session()
        session.headers.update({"Authorization": headers["Authorization"]} if "authorization" in headers else {})
        for part in ("metadata", "wsdl", "rdf"):
            client = zeep.Client(f"{served.url}/registry/uddi/{part}", transport=Transport(session=session))
            setattr(self, part, client.service)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@pytest.fixture(scope="module")
def alice(served: Background, known: Known) -> Faces:
    return Faces(served, known("alice").headers)


@pytest.fixture(scope="module")
def bob(served: Background, known: Known) -> Faces:
    return Faces(served, known("bob").headers)


def about(kind: str, key: str) -> dict[str, str]:
    return {"entityType": U + kind, "stringKey": key}


def said(type: str, key: str = "", **value: Any) -> dict[str, Any]:
    return {"metadataKey": key, "metadataType": type, "metadataValue": value}


def queries(*asked: dict[str, Any]) -> dict[str, Any]:
    return {"metadataQuery": list(asked)}


def query(type: str, **value: Any) -> dict[str, Any]:
    return {"metadataType": type, "metadataValue": value}


def test_metadata_is_added_changed_found_and_deleted(known: Known, alice: Faces, bob: Faces) -> None:
    other = "00000002-0000-0000-0000-000000000000"
    publish(known("alice"), service(f"urn:uuid:{SKY}"), service(f"urn:uuid:{other}"))
    sky = about("serviceKey", SKY)
    added = bob.metadata.addMetadataToEntity(entityReference=sky, metadata=said(UNIT, stringValue="mJy"))
    assert (added.metadataType, added.metadataValue.stringValue, added.author) == (UNIT, "mJy", "bob")
    bob.metadata.addMetadataToEntity(
        entityReference=about("serviceKey", other), metadata=said(UNIT, uriValue="http://example.org/mJy")
    )
    infos = alice.metadata.get_entityMetadata(sky)
    assert [each.metadataKey for each in infos] == [added.metadataKey]

    def found(**more: Any) -> list[str]:
        asked = query(UNIT, stringValue="mJy") | more
        listed = alice.metadata.find_entityByMetadata(metadataQueryBag=queries(asked))
        return [each.stringKey for each in listed]

    assert found() == found(author="bob") == found(date=added.date[:10]) == [SKY]
    assert found(author="alice") == found(date="1999") == []
    assert found(metadataValue={"uriValue": "http://example.org/mJy"}) == [other]
    with pytest.raises(Fault) as refused:
        alice.metadata.deleteMetadata(added.metadataKey)
    detail = refused.value.detail.find(f".//{{{M}}}faultDetail")
    assert (detail.get("errorNumber"), detail.get("errorCode")) == ("10140", "E_userMismatch")
    changed = said(UNIT, added.metadataKey, stringValue="Jy")
    bob.metadata.addMetadataToEntity(entityReference=sky, metadata=changed)
    assert found() == []
    assert alice.metadata.get_metadataDetail(added.metadataKey).metadataValue.stringValue == "Jy"
    of_metadata = {"entityType": "http://www.mygrid.ecs.soton.ac.uk/metadata.rdfs#hasMetadataKey"}
    alice.metadata.addMetadataToEntity(
        entityReference=of_metadata | {"metadataKey": added.metadataKey}, metadata=said(REVIEW, stringValue="doubtful")
    )
    (doubted,) = alice.metadata.find_entityByMetadata(metadataQueryBag=queries(query(REVIEW, stringValue="doubtful")))
    assert doubted.metadataKey == added.metadataKey
    assert bob.metadata.deleteMetadata(added.metadataKey) is True
    assert not alice.metadata.get_entityMetadata(sky)
    assert f"{U}tModelKey" in alice.metadata.get_supportedEntityType()


def test_structured_metadata_is_asked_in_sparql_and_rdql(known: Known, alice: Faces) -> None:
    publish(known("alice"), service("urn:s:sky"))
    triples = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:p="urn:p:">
        <rdf:Description rdf:about="urn:review"><p:rating><rdf:Description p:stars="4"/></p:rating></rdf:Description>
        </rdf:RDF>"""
    assertion = {"triples": triples, "language": "RDF/XML", "resourceIdentifier": "urn:review", "base": ""}
    about_sky = {"entityType": "", "stringKey": "urn:s:sky"}
    added = alice.metadata.addMetadataToEntity(
        entityReference=about_sky, metadata=said(REVIEW, triplesAssertion=assertion)
    )
    got = added.metadataValue.triplesAssertion
    again = {name: getattr(got, name) for name in ("triples", "language", "resourceIdentifier", "base")}
    replaced = alice.metadata.addMetadataToEntity(
        entityReference=about_sky, metadata=said(REVIEW, added.metadataKey, triplesAssertion=again)
    )
    assert replaced.metadataValue.triplesAssertion.triples == got.triples
    asked = f"SELECT ?stars WHERE (<urn:s:sky>, <{REVIEW}>, ?v) (?v, <urn:p:rating> ?r) (?r <urn:p:stars> ?stars)"
    answer = alice.rdf.inquire(language="RDQL", clause=asked)
    assert answer.header.field == ["stars"]
    assert [each.field for each in answer.record] == [["4"]]
    answer = alice.rdf.inquire(
        language="SPARQL", clause="select ?s ?n { ?s a <urn:dai:registry:Service> optional { ?s <urn:n> ?n } }"
    )
    assert [each.field for each in answer.record] == [["urn:s:sky", None]]
    other = '<urn:other> <urn:p> "x" .'
    wrong = {"triples": other, "language": "N-TRIPLE", "resourceIdentifier": "urn:review", "base": ""}
    with pytest.raises(Fault, match="may not be about"):
        alice.metadata.addMetadataToEntity(entityReference=about_sky, metadata=said(REVIEW, triplesAssertion=wrong))


def test_services_are_found_by_metadata_and_by_what_uddi_knows(known: Known, alice: Faces) -> None:
    names = {"urn:s:a": "Sky one", "urn:s:b": "Sky two", "urn:s:c": "Sea"}
    publish(known("alice"), *(service(key, name=name) for key, name in names.items()))
    for key, unit in {"urn:s:a": "mJy", "urn:s:b": "K", "urn:s:c": "mJy"}.items():
        known("bob").post("/metadata", json={"about": key, "type": UNIT, "value": unit}).raise_for_status()
    known("bob").post("/metadata", json={"about": "urn:s:a", "type": REVIEW, "value": "good"}).raise_for_status()

    def found(*asked: dict[str, Any], **more: Any) -> list[str]:
        bag = {"metadataQueryBag": queries(*asked)} if asked else {}
        listed = alice.metadata.find_service(generic="2.0", **bag, **more).serviceInfos
        return [each.serviceKey for each in listed.serviceInfo] if listed else []

    sky = [{"_value_1": "sky"}]
    assert sorted(found(query(UNIT, stringValue="mJy"))) == ["urn:s:a", "urn:s:c"]
    assert found(query(UNIT, stringValue="mJy"), name=sky) == ["urn:s:a"]
    assert found(query(UNIT, stringValue="mJy"), query(REVIEW)) == ["urn:s:a"]
    assert sorted(found(query(UNIT), name=sky)) == found(name=sky) == ["urn:s:a", "urn:s:b"]
    assert found(query(UNIT, stringValue="lost")) == []


def test_interfaces_are_found_by_their_operations_and_parts(known: Known, alice: Faces, bob: Faces) -> None:
    url = "http://data.example.org/sky.wsdl"
    key = alice.wsdl.addWSDLFileAdvert(url=url, content=WSDL)
    assert alice.wsdl.getWSDLAdvertContent(key) == alice.wsdl.getWSDLAdvertContentByURL(url) == WSDL
    assert alice.wsdl.getAllWSDLFiles() == [url]
    assert [each.operationName for each in alice.wsdl.getOperationsByURL(url)] == ["cone", "ping"]
    message = alice.wsdl.getInputMessageOfOperation(**CONE)
    assert (message.messageNamespace, message.messageName, message.partsName.name) == (
        "urn:sky",
        "ask",
        ["radius", "where"],
    )
    assert alice.wsdl.findInterfaceByOperation(**CONE) == key
    part = {"messageNamespace": "urn:sky", "messageName": "ask", "partName": "where"}
    assert alice.wsdl.findOperationByMessagePart(**part).operationName == "cone"

    operation = {"entityType": f"{M}#operationReference", "operationReference": CONE}
    of_flux = {"entityType": f"{M}#messagePartReference", "messagePartReference": FLUX}
    bob.metadata.addMetadataToEntity(entityReference=operation, metadata=said(REVIEW, stringValue="good"))
    bob.metadata.addMetadataToEntity(entityReference=of_flux, metadata=said(UNIT, stringValue="mJy"))
    good, unit = queries(query(REVIEW, stringValue="good")), queries(query(UNIT, stringValue="mJy"))
    assert alice.metadata.find_interfaceByOperationMetadata(metadataQueryBag=good) == [key]
    assert alice.metadata.find_interfaceByMessagePartMetadata(metadataQueryBag=unit) == [key]
    assert not alice.metadata.find_interfaceByOperationMetadata(metadataQueryBag=unit)

    def operations(**asked: Any) -> list[str]:
        return [each.operationName for each in alice.metadata.find_operation(**asked) or []]

    assert operations(operationMetadataQueryBag=good) == operations(messagePartName=["where"]) == ["cone"]
    assert operations(messagePartMetadataQueryBag=unit) == ["cone", "ping"]
    assert operations(messagePartMetadataQueryBag=unit, name=["ping"]) == ["ping"]
    (found,) = alice.metadata.find_entityByMetadata(metadataQueryBag=unit)
    assert found.messagePartReference.messagePartName == "flux"

    # published again, the document keeps what was said about what it still has
    alice.wsdl.addWSDLFileAdvert(
        url=url, content=WSDL.replace('<operation name="ping"><input message="t:told"/></operation>', "")
    )
    assert operations(messagePartMetadataQueryBag=unit) == operations(operationMetadataQueryBag=good) == ["cone"]
    with pytest.raises(Fault, match="belongs to another owner"):
        bob.wsdl.addWSDLFileAdvert(url="http://elsewhere", content=WSDL)
    model = {"key": "urn:t:sky", "kind": "tmodel", "name": "sky", "implements": []}
    binding = {"key": "urn:b", "kind": "binding", "parent": "urn:s:sky", "implements": [key]}
    publish(known("alice"), model, service("urn:s:sky"), binding)
    assert alice.wsdl.findServicesByInterface(key) == ["urn:s:sky"]
    assert alice.wsdl.removeWSDLFile(key) is True
    assert not alice.metadata.find_entityByMetadata(metadataQueryBag=unit)


def test_a_wsdl_is_fetched_from_where_the_operator_allows_it(tmp_path: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = WSDL.encode() if self.path == "/wsdl/sky.wsdl" else b"\xff"
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = f"http://127.0.0.1:{server.server_port}"
        delivery = {"urls": [f"{at}/wsdl/"], "private": True}
        registry = {"store": "sqlite:///registry.db"}
        with background(configured(tmp_path, {}, registry=registry, delivery=delivery)) as running:
            faces = Faces(running, {})
            faces.wsdl.addWSDLFile(f"{at}/wsdl/sky.wsdl")
            assert faces.wsdl.getWSDLAdvertContentByURL(f"{at}/wsdl/sky.wsdl") == WSDL
            with pytest.raises(Fault, match=r"does not deliver|Nothing can be delivered"):
                faces.wsdl.addWSDLFile(f"{at}/elsewhere.wsdl")
            with pytest.raises(Fault, match="not UTF-8"):
                faces.wsdl.addWSDLFile(f"{at}/wsdl/other")
        server.shutdown()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("<a/>", "is not WSDL 1.1"),
        ("<a", "Not well-formed"),
        ('<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', "no DTD"),
        (WSDL.replace("t:ask", "q:ask"), "of no namespace"),
        ('<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" targetNamespace="urn:sky"/>', "no portType"),
    ],
)
def test_what_is_no_wsdl(alice: Faces, content: str, says: str) -> None:
    with pytest.raises(Fault, match=says):
        alice.wsdl.addWSDLFileAdvert(url="http://data.example.org/x.wsdl", content=content)


def test_what_is_not_there_or_not_allowed(alice: Faces, known: Known) -> None:
    publish(known("alice"), service("urn:s:sky"))
    with pytest.raises(Fault, match="no service"):
        alice.metadata.get_entityMetadata(about("serviceKey", SKY))
    with pytest.raises(Fault, match="no business"):
        alice.metadata.get_entityMetadata(about("businessKey", "urn:s:sky"))
    with pytest.raises(Fault, match=r"does not deliver|Nothing can be delivered"):
        alice.wsdl.addWSDLFile("http://127.0.0.1:1/a.wsdl")
    with pytest.raises(Fault, match="no language"):
        alice.rdf.inquire(language="SQL", clause="select 1")
