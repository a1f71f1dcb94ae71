"""WS-Security on the SOAP faces of the registry: zeep signs (by xmlsec, with X.509), and what was changed, moved,
wrapped or sent again is refused and changes nothing."""

import datetime
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest
import xmlsec
import zeep
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from lxml import etree
from zeep.wsse.compose import Compose
from zeep.wsse.signature import BinarySignature, Signature
from zeep.wsse.utils import get_security_header

from dai.api.server.serve import Background, background
from tests.api.conftest import configured

pytestmark = pytest.mark.server
S = "{http://schemas.xmlsoap.org/soap/envelope/}"
_OASIS = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-"
WSSE, WSU, DS = f"{{{_OASIS}secext-1.0.xsd}}", f"{{{_OASIS}utility-1.0.xsd}}", "{http://www.w3.org/2000/09/xmldsig#}"
KEYS: dict[str, Any] = {
    "rsa": rsa.generate_private_key(65537, 2048),
    "p256": ec.generate_private_key(ec.SECP256R1()),
    "other": rsa.generate_private_key(65537, 2048),
}
RSA_SHA256 = xmlsec.Transform.RSA_SHA256
METHODS = {"rsa": RSA_SHA256, "p256": xmlsec.Transform.ECDSA_SHA256, "other": RSA_SHA256}
SAVE = (
    '<save_business xmlns="urn:uddi-org:api_v2" generic="2.0"><authInfo/>'
    '<businessEntity businessKey=""><name>{}</name></businessEntity></save_business>'
)


def certificate(key: Any) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "alice")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    return builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(1)).sign(key, SHA256())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at: Path = tmp_path_factory.mktemp("keys")
    for id, key in KEYS.items():
        (at / f"{id}.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        (at / f"{id}.crt").write_bytes(certificate(key).public_bytes(Encoding.PEM))
        (at / f"{id}.pem").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return at


@pytest.fixture(scope="module")
def secured(directory: Path) -> Iterator[Background]:
    keys = {id: {"name": "alice", "key": str(directory / f"{id}.pem")} for id in ("rsa", "p256")}
    identity = {"methods": ["ws-security"], "anonymous": True, "wrong_seconds": 0.0, "signatures": {"keys": keys}}
    registry = {"store": "sqlite:///registry.db", "policy": {"read": ["*", "anonymous"], "write": ["alice"]}}
    with background(configured(directory, {}, identity=identity, registry=registry)) as running:
        yield running


class Timed:
    """Puts a Timestamp into the header."""

    def __init__(self, seconds: float = 0.0, lasting: float = 30.0) -> None:
        self._seconds, self._lasting = seconds, lasting

    def apply(self, envelope: Any, headers: Any) -> Any:
        stamp = etree.SubElement(get_security_header(envelope), f"{WSU}Timestamp")
        now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self._seconds)
        for name, moment in (("Created", now), ("Expires", now + datetime.timedelta(seconds=self._lasting))):
            etree.SubElement(stamp, WSU + name).text = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return envelope, headers

    def verify(self, envelope: Any) -> Any:
        return envelope


class Signing:
    """One of zeep's signatures; answers are not signed."""

    def __init__(self, kind: Any, directory: Path, id: str = "rsa", digest: Any = None) -> None:
        self._signature = kind(
            str(directory / f"{id}.key"),
            str(directory / f"{id}.crt"),
            signature_method=METHODS[id],
            digest_method=digest or xmlsec.Transform.SHA256,
        )

    def apply(self, envelope: Any, headers: Any) -> Any:
        return self._signature.apply(envelope, headers)

    def verify(self, envelope: Any) -> Any:
        return envelope


@pytest.mark.parametrize(("kind", "id"), [(BinarySignature, "rsa"), (Signature, "rsa"), (BinarySignature, "p256")])
def test_zeep_signs(secured: Background, directory: Path, kind: Any, id: str) -> None:
    wsse = Compose([Timed(), Signing(kind, directory, id)])
    client = zeep.Client(f"{secured.url}/registry/uddi/publication", wsse=wsse).service
    saved = client.save_business(
        generic="2.0", authInfo="", businessEntity=[{"businessKey": "", "name": [{"_value_1": "Sky & sea"}]}]
    )
    assert saved.businessEntity[0].authorizedName == "alice"
    assert saved.businessEntity[0].name[0]._value_1 == "Sky & sea"
    unsigned = zeep.Client(f"{secured.url}/registry/uddi/publication").service
    with pytest.raises(zeep.exceptions.Fault) as refused:
        unsigned.save_business(generic="2.0", authInfo="", businessEntity=[{"businessKey": "", "name": []}])
    assert refused.value.detail.find(".//{urn:uddi-org:api_v2}result").get("errno") == "10120"


def signed(directory: Path, *, timed: Any = None, id: str = "rsa", digest: Any = None, name: str = "signed") -> Any:
    text = f'<s:Envelope xmlns:s="{S[1:-1]}"><s:Header/><s:Body>{SAVE.format(name)}</s:Body></s:Envelope>'
    envelope = etree.fromstring(text)
    for each in (timed or Timed(), Signing(BinarySignature, directory, id, digest)):
        each.apply(envelope, {})
    return envelope


def post(secured: Background, envelope: Any) -> httpx.Response:
    content = etree.tostring(envelope) if not isinstance(envelope, bytes) else envelope
    return httpx.post(
        f"{secured.url}/registry/uddi/publication", content=content, headers={"Content-Type": "text/xml"}, timeout=60
    )


def number(secured: Background) -> int:
    return int(httpx.get(f"{secured.url}/registry").json()["number"])


def test_a_message_counts_once(secured: Background, directory: Path) -> None:
    message = etree.tostring(signed(directory))
    before = number(secured)
    assert [post(secured, message).status_code for _ in range(3)] == [200, 401, 401]
    assert number(secured) == before + 1


def wrong_body(envelope: Any) -> Any:
    """Another body, as an attacker would like it."""
    body = etree.fromstring(f'<s:Body xmlns:s="{S[1:-1]}">{SAVE.format("forged")}</s:Body>')
    envelope.append(body)
    return body


def changed(envelope: Any) -> None:
    envelope.find(".//{*}name").text = "forged"


def wrapped(where: Callable[[Any], Any], **attributes: str) -> Callable[[Any], None]:
    """The signed body elsewhere, another in its place."""

    def wrap(envelope: Any) -> None:
        body = envelope.find(f"{S}Body")
        id = body.get(f"{WSU}Id")
        etree.SubElement(where(envelope), "wrapper").append(body)
        forged = wrong_body(envelope)
        for name, value in attributes.items():
            forged.set({"wsu": f"{WSU}Id"}.get(name, name), value or id)

    return wrap


def header(envelope: Any) -> Any:
    return envelope.find(f"{S}Header")


def security(envelope: Any) -> Any:
    return envelope.find(f".//{WSSE}Security")


def signature(envelope: Any) -> Any:
    return envelope.find(f".//{DS}Signature")


def second_body(envelope: Any) -> None:
    wrong_body(envelope)


def first_body(envelope: Any) -> None:
    envelope.insert(1, wrong_body(envelope))


def other_id(envelope: Any) -> None:
    """A forged body whose ID, of another name, is that of the signed one."""
    wrapped(header, ID="")(envelope)


def second_security(envelope: Any) -> None:
    header(envelope).append(deepcopy(security(envelope)))


def second_signature(envelope: Any) -> None:
    security(envelope).append(deepcopy(signature(envelope)))


def new_time(envelope: Any) -> None:
    envelope.find(f".//{WSU}Created").text = "2999-01-01T00:00:00Z"


def wrapped_time(envelope: Any) -> None:
    stamp = envelope.find(f".//{WSU}Timestamp")
    fresh = deepcopy(stamp)
    etree.SubElement(header(envelope), "wrapper").append(stamp)
    fresh.set(f"{WSU}Id", "fresh")
    security(envelope).append(fresh)


def without_body(envelope: Any) -> None:
    """Only the time stays signed."""
    id = envelope.find(f"{S}Body").get(f"{WSU}Id")
    for each in envelope.findall(f".//{DS}Reference"):
        if each.get("URI") == f"#{id}":
            each.getparent().remove(each)
    changed(envelope)


def whole(envelope: Any) -> None:
    for each in envelope.findall(f".//{DS}Reference")[:1]:
        each.set("URI", "")


def transformed(envelope: Any) -> None:
    transform = envelope.find(f".//{DS}Transform")
    transform.set("Algorithm", "http://www.w3.org/TR/1999/REC-xpath-19991116")


def in_the_body(envelope: Any) -> None:
    """The header of the signature within the body."""
    envelope.find(f"{S}Body").append(security(envelope))


def other_key(envelope: Any) -> None:
    token = envelope.find(f".//{WSSE}BinarySecurityToken")
    token.text = "AAAA"


def in_its_place(envelope: Any) -> None:
    envelope.find(f".//{WSSE}Security/{DS}Signature/{DS}SignatureValue").text = "AAAA"


@pytest.mark.parametrize(
    "attack",
    [
        changed, wrapped(header), wrapped(header, wsu=""), wrapped(header, wsu="x"), wrapped(security, wsu=""),
        wrapped(signature, wsu="x"), wrapped(lambda each: each, wsu="x"), other_id,
        second_body, first_body, second_security, second_signature, new_time, wrapped_time, without_body, whole,
        transformed, in_the_body, other_key, in_its_place,
    ],
)  # fmt: skip
def test_attacks_are_refused(secured: Background, directory: Path, attack: Callable[[Any], None]) -> None:
    envelope = signed(directory)
    attack(envelope)
    before = number(secured)
    answer = post(secured, envelope)
    assert answer.status_code == 401, answer.text
    assert answer.json()["type"] == "unauthenticated"
    assert number(secured) == before


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"timed": Timed(-3600)}, "expired"),
        ({"timed": Timed(-3600, 7200)}, "too old"),
        ({"timed": Timed(3600)}, "in the future"),
        ({"id": "other"}, "does not know the key"),
        ({"digest": xmlsec.Transform.SHA1}, "is not valid"),
    ],
)
def test_signatures_that_do_not_count(secured: Background, directory: Path, more: dict[str, Any], says: str) -> None:
    answer = post(secured, signed(directory, **more))
    assert answer.status_code == 401
    assert says in answer.text, answer.text


def test_a_message_without_a_time_is_refused(secured: Background, directory: Path) -> None:
    class Untimed(Timed):
        def apply(self, envelope: Any, headers: Any) -> Any:
            return envelope, headers

    answer = post(secured, signed(directory, timed=Untimed()))
    assert (answer.status_code, "no Timestamp" in answer.text) == (401, True)
