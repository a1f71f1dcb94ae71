"""UDDI v2: zeep drives inquiry and publication by the WSDLs; find operations with every combination of qualifiers
against a model of lists; faults; clients that say things in other ways."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import zeep
from lxml import etree
from zeep.exceptions import Fault
from zeep.transports import Transport

from dai.api.server.serve import Background, background
from tests.api.conftest import configured
from tests.registry.conftest import Known

pytestmark = pytest.mark.server
U, SOAP = "{urn:uddi-org:api_v2}", "{http://schemas.xmlsoap.org/soap/envelope/}"
T1, T2 = (f"uuid:0000000{each}-0000-0000-0000-000000000000" for each in (1, 2))


@pytest.fixture(scope="module")
def uddi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    directory: Path = tmp_path_factory.mktemp("uddi")
    with background(configured(directory, {}, registry={"store": "sqlite:///registry.db"})) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing(uddi: Background) -> None:
    for each in httpx.get(f"{uddi.url}/registry/entries", params={"deprecated": "true"}).json()["entries"]:
        httpx.delete(f"{uddi.url}/registry/entries", params={"key": each["key"]})


def client(url: str, part: str, token: str | None = None) -> Any:
    session = requests.Session()
    if token is not None:
        session.headers["Authorization"] = token
    return zeep.Client(f"{url}/registry/uddi/{part}", transport=Transport(session=session)).service


@pytest.fixture(scope="module")
def inquiry(uddi: Background) -> Any:
    return client(uddi.url, "inquiry")


@pytest.fixture(scope="module")
def publication(uddi: Background) -> Any:
    return client(uddi.url, "publication")


def call(url: str, body: str, part: str = "inquiry", **headers: str) -> tuple[int, Any]:
    message = f'<e:Envelope xmlns:e="{SOAP[1:-1]}"><e:Body>{body}</e:Body></e:Envelope>'
    answer = httpx.post(
        f"{url}/registry/uddi/{part}", content=message, headers={"Content-Type": "text/xml; charset=utf-8", **headers}
    )
    return answer.status_code, etree.fromstring(answer.content)


def texts(*said: str) -> list[dict[str, str]]:
    return [{"_value_1": each, "lang": "en"} for each in said]


def bag(*references: tuple[str, str]) -> dict[str, Any]:
    return {"keyedReference": [{"tModelKey": tmodel, "keyName": "", "keyValue": value} for tmodel, value in references]}


def business(publication: Any, name: str, services: list[dict[str, Any]] | None = None, **more: Any) -> Any:
    entity = {"businessKey": "", "name": texts(name), **more}
    if services is not None:
        entity["businessServices"] = {"businessService": services}
    return publication.save_business(generic="2.0", authInfo="a", businessEntity=[entity]).businessEntity[0]


def test_publication_and_inquiry_by_the_wsdls(inquiry: Any, publication: Any, uddi: Background) -> None:
    token = publication.get_authToken(generic="2.0", userID="alice", cred="secret").authInfo
    tmodel = publication.save_tModel(
        generic="2.0", authInfo=token, tModel=[{"tModelKey": "", "name": texts("queries")[0]}]
    ).tModel[0]
    assert tmodel.tModelKey.startswith("uuid:")
    instance = {"tModelInstanceInfo": [{"tModelKey": tmodel.tModelKey, "description": texts("as ever")}]}
    point = {"_value_1": "http://data/service", "URLType": "http"}
    binding = {"bindingKey": "", "serviceKey": "", "accessPoint": point, "tModelInstanceDetails": instance}
    service = {
        "serviceKey": "", "businessKey": "", "name": texts("Sky & sea", "Himmel"), "description": texts("a < b"),
        "bindingTemplates": {"bindingTemplate": [binding]}, "categoryBag": bag((tmodel.tModelKey, "sky")),
    }  # fmt: skip
    contact = {"contact": [{"useType": "all", "personName": "Ada", "email": [{"_value_1": "a@b", "useType": ""}]}]}
    saved = business(publication, "Observatory", [service], contacts=contact, identifierBag=bag((T1, "42")))
    detail = inquiry.get_businessDetail(generic="2.0", businessKey=[saved.businessKey]).businessEntity[0]
    assert detail.contacts.contact[0].personName == "Ada"
    assert detail.identifierBag.keyedReference[0].tModelKey == T1
    (there,) = detail.businessServices.businessService
    assert [each._value_1 for each in there.name] == ["Sky & sea", "Himmel"]
    assert there.businessKey == saved.businessKey
    (bound,) = there.bindingTemplates.bindingTemplate
    assert (bound.accessPoint._value_1, bound.accessPoint.URLType) == ("http://data/service", "http")
    assert bound.tModelInstanceDetails.tModelInstanceInfo[0].description[0]._value_1 == "as ever"
    fingerprint = {"tModelKey": [tmodel.tModelKey]}
    found = inquiry.find_service(generic="2.0", businessKey="", name=texts("sky"), tModelBag=fingerprint)
    assert [each.serviceKey for each in found.serviceInfos.serviceInfo] == [there.serviceKey]
    found = inquiry.find_binding(generic="2.0", serviceKey=there.serviceKey, tModelBag=fingerprint)
    assert [each.bindingKey for each in found.bindingTemplate] == [bound.bindingKey]
    found = inquiry.find_tModel(generic="2.0", name=texts("QUERIES")[0])
    assert [each.tModelKey for each in found.tModelInfos.tModelInfo] == [tmodel.tModelKey]
    extended = inquiry.get_businessDetailExt(generic="2.0", businessKey=[saved.businessKey])
    assert extended.businessEntityExt[0].businessEntity.businessKey == saved.businessKey
    registered = publication.get_registeredInfo(generic="2.0", authInfo=token)
    assert [each.businessKey for each in registered.businessInfos.businessInfo] == [saved.businessKey]
    assert httpx.get(f"{uddi.url}/registry/find", params={"text": "Himmel"}).json()["found"][0]["kind"] == "service"
    publication.delete_tModel(generic="2.0", authInfo=token, tModelKey=[tmodel.tModelKey])
    with pytest.raises(Fault) as raised:
        publication.delete_tModel(generic="2.0", authInfo=token, tModelKey=[tmodel.tModelKey])
    assert "10310" in etree.tostring(raised.value.detail).decode()
    with pytest.raises(Fault) as raised:
        publication.get_registeredInfo(generic="2.0", authInfo="authToken:somebody else")
    assert "10110" in etree.tostring(raised.value.detail).decode()
    assert not inquiry.find_tModel(generic="2.0", name=texts("queries")[0]).tModelInfos
    assert inquiry.get_tModelDetail(generic="2.0", tModelKey=[tmodel.tModelKey]).tModel[0].name._value_1 == "queries"
    deleted = publication.delete_business(generic="2.0", authInfo=token, businessKey=[saved.businessKey])
    assert deleted.result[0].errno == "0"
    with pytest.raises(Fault):
        inquiry.get_serviceDetail(generic="2.0", serviceKey=[there.serviceKey])
    assert publication.discard_authToken(generic="2.0", authInfo=token).result[0].errno == "0"


def test_what_is_saved_again_takes_the_place_of_what_was_there(inquiry: Any, publication: Any) -> None:
    def service(name: str, key: str = "") -> dict[str, Any]:
        return {"serviceKey": key, "businessKey": "", "name": texts(name)}

    saved = business(publication, "a", [service("one"), service("two")])
    first = saved.businessServices.businessService[0].serviceKey
    again = {
        "businessKey": saved.businessKey,
        "name": texts("b"),
        "businessServices": {"businessService": [service("1", first)]},
    }
    publication.save_business(generic="2.0", authInfo="", businessEntity=[again])
    (found,) = inquiry.find_business(generic="2.0", name=texts("b")).businessInfos.businessInfo
    assert [(each.serviceKey, each.name[0]._value_1) for each in found.serviceInfos.serviceInfo] == [(first, "1")]
    kept = {"serviceKey": "", "businessKey": saved.businessKey, "name": texts("three")}
    key = publication.save_service(generic="2.0", authInfo="", businessService=[kept]).businessService[0].serviceKey
    binding = {"bindingKey": "", "serviceKey": key, "accessPoint": {"_value_1": "http://a", "URLType": "http"}}
    bound = publication.save_binding(generic="2.0", authInfo="", bindingTemplate=[binding]).bindingTemplate[0]
    assert inquiry.get_bindingDetail(generic="2.0", bindingKey=[bound.bindingKey]).bindingTemplate[0].serviceKey == key
    publication.delete_binding(generic="2.0", authInfo="", bindingKey=[bound.bindingKey])
    publication.delete_service(generic="2.0", authInfo="", serviceKey=[key])
    assert len(inquiry.find_service(generic="2.0", businessKey=saved.businessKey).serviceInfos.serviceInfo) == 1


NAMES = ["Alpha", "alpha", "Alphabet", "Beta", "alp%"]
BAGS: list[list[tuple[str, str]]] = [[], [(T1, "1")], [(T1, "2")], [(T1, "1"), (T2, "1")], [(T2, "2")]]
MATCHES = [(), ("exactNameMatch",), ("caseSensitiveMatch",), ("exactNameMatch", "caseSensitiveMatch")]
KEYS = [(), ("orLikeKeys",), ("orAllKeys",), ("andAllKeys",)]
SORTS = [(), ("sortByNameAsc",), ("sortByNameDesc",), ("sortByNameDesc", "sortByDateAsc"), ("sortByDateDesc",)]
SCOPES = [(), ("combineCategoryBags",), ("serviceSubset",)]
ASKED_NAMES = [[], ["alpha"], ["Al%a"], ["%bet"], ["beta", "Alphabet"]]
ASKED_BAGS = [[], [(T1, "1")], [(T1, "1"), (T1, "2")], [(T1, "1"), (T2, "1")]]


def fits_name(name: str, asked: list[str], qualifiers: tuple[str, ...]) -> bool:
    """Written anew: letter by letter."""

    def match(text: str, pattern: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "%":
            return any(match(text[at:], pattern[1:]) for at in range(len(text) + 1))
        return bool(text) and text[0] == pattern[0] and match(text[1:], pattern[1:])

    def cased(text: str) -> str:
        return text if "caseSensitiveMatch" in qualifiers else text.lower()

    end = "" if "exactNameMatch" in qualifiers else "%"
    return not asked or any(match(cased(name), cased(each) + end) for each in asked)


def fits_bag(
    there: list[tuple[str, str]], asked: list[tuple[str, str]], qualifiers: tuple[str, ...], *, every: bool
) -> bool:
    if not asked:
        return True
    if "orLikeKeys" in qualifiers:
        return all(
            any(each in there for each in asked if each[0] == tmodel) for tmodel in {tmodel for tmodel, _ in asked}
        )
    return all(each in there for each in asked) if every else any(each in there for each in asked)


def test_every_combination_of_qualifiers_finds_what_a_model_finds(uddi: Background, publication: Any) -> None:
    known: list[tuple[str, list[tuple[str, str]], list[tuple[str, str]]]] = []
    for number, name in enumerate(NAMES * 2):
        own, of_service = BAGS[number % 5], BAGS[(number * 3 + number // 5) % 5]
        services = [{"serviceKey": "", "businessKey": "", "name": texts("s"), "categoryBag": bag(*of_service)}]
        business(publication, name, services, categoryBag=bag(*own), identifierBag=bag(*of_service))
        known.append((name, own, of_service))

    def references(name: str, asked: list[tuple[str, str]]) -> str:
        inner = "".join(f'<keyedReference tModelKey="{t}" keyName="" keyValue="{value}"/>' for t, value in asked)
        return f"<{name}>{inner}</{name}>" if asked else ""

    count = 0
    for match, keys, sort, scope in itertools.product(MATCHES, KEYS, SORTS, SCOPES):
        qualifiers = (*match, *keys, *sort, *scope)
        for at, (names, asked) in enumerate(itertools.product(ASKED_NAMES, ASKED_BAGS)):
            if (at + count) % 4:
                continue  # each combination of qualifiers with a quarter of the questions, in turn
            identifiers = asked if at % 3 == 0 else []
            body = (
                '<find_business xmlns="urn:uddi-org:api_v2" generic="2.0"><findQualifiers>'
                + "".join(f"<findQualifier>{each}</findQualifier>" for each in qualifiers)
                + "</findQualifiers>"
                + "".join(f"<name>{each}</name>" for each in names)
                + references("identifierBag", identifiers)
                + references("categoryBag", asked)
                + "</find_business>"
            )
            status, answer = call(uddi.url, body)
            assert status == 200, etree.tostring(answer)
            found = [each.findtext(f"{U}name") for each in answer.iter(f"{U}businessInfo")]

            def bag_of(own: list[Any], of_service: list[Any], scope: tuple[str, ...] = scope) -> list[Any]:
                return of_service if "serviceSubset" in scope else own + of_service if scope else own

            fitting = [
                name
                for name, own, of_service in known
                if fits_name(name, names, qualifiers)
                and fits_bag(bag_of(own, of_service), asked, qualifiers, every="orAllKeys" not in qualifiers)
                and fits_bag(of_service, identifiers, qualifiers, every="andAllKeys" in qualifiers)
            ]
            assert sorted(found) == sorted(fitting), (qualifiers, names, asked)
            cased = [each if "caseSensitiveMatch" in qualifiers else each.lower() for each in found]
            if "sortByNameDesc" in sort:
                assert cased == sorted(cased, reverse=True)
            elif sort == ("sortByDateDesc",):
                assert found == fitting[::-1]
            else:
                assert cased == sorted(cased)
        count += 1


def qualified(*names: str) -> str:
    said = "".join(f"<findQualifier>{each}</findQualifier>" for each in names)
    return f'<find_business generic="2.0"><findQualifiers>{said}</findQualifiers></find_business>'


def got(kind: str, key: str) -> str:
    return f'<get_{kind}Detail generic="2.0"><{kind}Key>{key}</{kind}Key></get_{kind}Detail>'


def saved(kind: str, entity: str) -> str:
    return f'<save_{kind} generic="2.0">{entity}</save_{kind}>'


STATUS = '<get_assertionStatusReport generic="2.0"><completionStatus>{}</completionStatus></get_assertionStatusReport>'
RELATED = (
    f'<{{0}}_publisherAssertions generic="2.0"><publisherAssertion><fromKey>{T1[5:]}</fromKey><toKey>{T2[5:]}</toKey>'
    f'<keyedReference tModelKey="{T1}" keyValue="a"/></publisherAssertion></{{0}}_publisherAssertions>'
)
ENTITY = '<businessEntity businessKey="{}"><name>a</name></businessEntity>'
SERVICE = '<businessService serviceKey="" businessKey="0"><name>a</name></businessService>'


@pytest.mark.parametrize(
    ("part", "body", "errno", "says"),
    [
        ("inquiry", qualified("x"), 10050, "no find qualifier"),
        ("inquiry", qualified("orAllKeys", "andAllKeys"), 10050, "exclude each other"),
        ("inquiry", '<find_business generic="1.0"/>', 10040, "version 2"),
        ("inquiry", '<save_business generic="2.0"/>', 10050, "no operation save_business"),
        ("inquiry", '<find_relatedBusinesses generic="2.0"/>', 10210, "no key"),
        ("inquiry", f'<find_service generic="2.0">{"<name>a</name>" * 6}</find_service>', 10030, "5 may be"),
        ("inquiry", f'<find_service generic="2.0"><name>{"a" * 256}</name></find_service>', 10020, "255"),
        ("publication", STATUS.format("status:lost"), 30100, "status:complete"),
        ("publication", RELATED.format("delete"), 30000, "not related"),
        ("publication", RELATED.format("add"), 10210, "no business"),
        ("inquiry", got("service", "nothing"), 10210, "no key"),
        ("inquiry", got("tModel", T1), 10210, T1),
        ("inquiry", '<find_business generic="2.0"><colour/></find_business>', 10500, "is not allowed in"),
        ("publication", saved("business", ENTITY.format(T1[5:])), 10210, "no key"),
        ("publication", saved("service", SERVICE), 10210, "no key"),
        ("publication", saved("business", '<businessEntity businessKey=""/>'), 10500, "needs a name"),
    ],
)
def test_what_is_wrong_is_a_disposition_report_and_changes_nothing(
    uddi: Background, part: str, body: str, errno: int, says: str
) -> None:
    number = httpx.get(f"{uddi.url}/registry").json()["number"]
    status, answer = call(uddi.url, body.replace(" generic", ' xmlns="urn:uddi-org:api_v2" generic', 1), part)
    assert status == 500
    report = answer.find(f".//detail/{U}dispositionReport")
    assert report.find(f"{U}result").get("errno") == str(errno)
    assert says in report.findtext(f"{U}result/{U}errInfo")
    assert httpx.get(f"{uddi.url}/registry").json()["number"] == number


def test_clients_that_say_things_in_other_ways(uddi: Background, publication: Any) -> None:
    for name in ("a", "b", "c"):
        business(publication, name)
    whole = '<find_business xmlns="urn:uddi-org:api_v2" generic="2.0" maxRows="{}"><tModelBag/></find_business>'
    for action in ({}, {"SOAPAction": ""}, {"SOAPAction": '"find_business"'}):
        status, answer = call(uddi.url, whole.format(-1), **action)
        assert (status, len(list(answer.iter(f"{U}businessInfo")))) == (200, 3)
    _, answer = call(uddi.url, whole.format(2))
    assert answer.find(f".//{U}businessList").get("truncated") == "true"
    assert len(list(answer.iter(f"{U}businessInfo"))) == 2


def test_businesses_are_related_when_both_owners_say_so(served: Background, known: Known) -> None:
    alice, bob = (client(served.url, "publication", known(each).headers["Authorization"]) for each in ("alice", "bob"))
    asking = client(served.url, "inquiry", known("bob").headers["Authorization"])
    mine, yours = business(alice, "Mine").businessKey, business(bob, "Yours").businessKey

    def assertion(value: str, start: str = mine, end: str = yours) -> dict[str, Any]:
        return {"fromKey": start, "toKey": end, "keyedReference": bag((T1, value))["keyedReference"][0]}

    def states(of: Any, **more: str) -> list[tuple[str, str, str | None, str | None]]:
        report = of.get_assertionStatusReport(generic="2.0", authInfo="", **more)
        return [
            (each.completionStatus, each.keyedReference.keyValue, each.keysOwned.fromKey, each.keysOwned.toKey)
            for each in report.assertionStatusItem
        ]

    def related(key: str = mine, **more: Any) -> list[tuple[str, str, list[str]]]:
        found = asking.find_relatedBusinesses(generic="2.0", businessKey=key, **more).relatedBusinessInfos
        return [
            (each.name[0]._value_1, one.direction, [ref.keyValue for ref in one.keyedReference])
            for each in (found.relatedBusinessInfo if found else [])
            for one in each.sharedRelationships
        ]

    said = {"generic": "2.0", "authInfo": ""}
    assert alice.add_publisherAssertions(**said, publisherAssertion=[assertion("parent")]).result[0].errno == "0"
    assert states(alice) == [("status:toKey_incomplete", "parent", mine, None)]
    assert states(bob) == [("status:toKey_incomplete", "parent", None, yours)]
    assert related() == []
    bob.add_publisherAssertions(**said, publisherAssertion=[assertion("parent"), assertion("peer")])
    assert states(bob, completionStatus="status:complete") == [("status:complete", "parent", None, yours)]
    assert states(bob, completionStatus="status:fromKey_incomplete")[0][1] == "peer"
    assert related() == [("Yours", "fromKey", ["parent"])]
    assert related(yours) == [("Mine", "toKey", ["parent"])]
    assert related(keyedReference=assertion("peer")["keyedReference"]) == []
    now = bob.set_publisherAssertions(**said, publisherAssertion=[assertion("peer")]).publisherAssertion
    assert [each.keyedReference.keyValue for each in now] == ["peer"]
    assert related() == []
    alice.add_publisherAssertions(**said, publisherAssertion=[assertion("peer")])
    assert related() == [("Yours", "fromKey", ["peer"])]
    alice.delete_publisherAssertions(**said, publisherAssertion=[assertion("peer")])
    assert related() == []
    (left,) = alice.get_publisherAssertions(**said).publisherAssertion
    assert left.keyedReference.keyValue == "parent"
    other = business(bob, "Third").businessKey
    bob.add_publisherAssertions(**said, publisherAssertion=[assertion("own", yours, other)])
    assert related(other) == [("Yours", "toKey", ["own"])], "who owns both says it once"
    with pytest.raises(Fault) as refused:
        alice.add_publisherAssertions(**said, publisherAssertion=[assertion("not mine", yours, other)])
    assert refused.value.detail.find(f".//{U}result").get("errno") == "10140"
    for of in (alice, bob):
        of.add_publisherAssertions(**said, publisherAssertion=[assertion("peer"), assertion("peer", end=other)])
    for qualifier, names in (("sortByNameAsc", ["Third", "Yours"]), ("sortByNameDesc", ["Yours", "Third"])):
        assert [each[0] for each in related(findQualifiers={"findQualifier": [qualifier]})] == names
    with pytest.raises(Fault) as refused:
        related(findQualifiers={"findQualifier": ["sortByColour"]})
    assert refused.value.detail.find(f".//{U}result").get("errno") == "10050"


def test_what_belongs_to_somebody_else_is_a_mismatch_of_users(served: Background, known: Known) -> None:
    alice, bob = (client(served.url, "publication", known(each).headers["Authorization"]) for each in ("alice", "bob"))
    saved = business(alice, "a")
    with pytest.raises(Fault) as refused:
        bob.delete_business(generic="2.0", authInfo="", businessKey=[saved.businessKey])
    assert refused.value.detail.find(f".//{U}result").get("errno") == "10140"
