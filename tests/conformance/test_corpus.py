"""Documents as users of the original wrote them, sent unchanged to a service over HTTP.

The last comment of each says what comes of it, a line for each: ``result NAME: pattern`` of the response, ``file NAME``
of the delivery directory, ``export NAME`` of the resource that is a directory, ``url PATH`` of a web server, ``property
NAME`` of the resource, ``stream NAME COUNT`` of a session, in COUNT blocks. ``resource``: where it is sent (default:
book). ``push NAME``: what the client pushes. ``refused``: what the refusal says; ``ends: error of NAME``: the activity
that fails; ``other NAME``: what came to an input stream of another service. ``{HTTP}`` stands for the address of the
web server, ``{SESSION}`` for a session that exists, ``{OTHER}`` for one of another service, which has an output stream.

A document with an activity that the service does not have is refused for that alone.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from lxml import etree

from dai.api.server.serve import background
from dai.drivers import driver_for
from dai.formats import format_named
from dai.perform.activity import ACTIVITIES
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from examples.demo.load import load
from tests.activities.test_conformance import PROCEDURE
from tests.activities.test_delivery import server
from tests.api.conftest import configured
from tests.collections import musicians
from tests.documents import query, results, table, to_csv, written
from tests.processes import until
from tests.test_response import SCHEMAS

__all__ = ["server"]
DOCUMENTS = sorted((Path(__file__).parent / "documents" / "corpus").glob("*.xml"))
CASES = [
    pytest.param(path, product, id=f"{path.stem}-{product}")
    for path in DOCUMENTS
    for product in ("sqlite", "postgres")
    if product == "sqlite" or "\nresource: " not in path.read_text()
]
"""Each document, with the databases that it may be sent to."""
TABLES = ["littleblackbook", "protein_goterm", "protein_interaction"]
STYLE = """<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform"><xsl:output method="html"/>
<xsl:template match="/"><ul><xsl:for-each select="//*[local-name()='currentRow']"><li><xsl:value-of select="*[2]"/></li>
</xsl:for-each></ul></xsl:template></xsl:stylesheet>"""
LOG = "09:00 start\n09:10 query\n09:20 query\n"
ROWS = b"".join(
    bytes(memoryview(block.data))
    for block in format_named("webrowset").encode(Stream.of(table(2).rename_columns(["n", "s"])))
)
ELLA = b"<entry><name>Ella</name><phone>1</phone></entry>"
PORRIDGE = (
    b'<recipe xmlns="http://example.org/recipes"><ingredient grams="50">oats</ingredient>'
    b'<ingredient grams="1">salt</ingredient></recipe>'
)


INTO = '<inputStream name="{}"><toLocal name="came"/></inputStream>' + to_csv("c", "came", "rows")
OUT = query("q", "select * from littleblackbook where id &lt; 3", "rows", "webRowSetStream") + (
    '<outputStream name="results"><fromLocal from="rows"/></outputStream>'
)
XML = {"Content-Type": "application/xml", "Accept": "application/xml"}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of another service."""
    directory = tmp_path_factory.mktemp("other")
    url = f"sqlite:///{directory / 'book.db'}"
    load(url, ["littleblackbook"], rows=10)
    with background(configured(directory, {"book": {"url": url}})) as running:
        yield running.url


@pytest.fixture
def service(
    product: str, request: pytest.FixtureRequest, tmp_path: Path, server: SimpleNamespace, other: str
) -> Iterator[SimpleNamespace]:
    """A service with a database, a directory and a store of XML documents, and what they hold."""
    url = request.getfixturevalue(f"{product}_url")
    load(url, TABLES, rows=100)
    if product == "postgres":
        driver = driver_for(url)
        driver.update(PROCEDURE, cancellation=Cancellation())
        driver.close()
    delivery, exports = tmp_path / "delivery", tmp_path / "exports"
    delivery.mkdir()
    (exports / "logs").mkdir(parents=True)
    for name in ("today", "changed", "longer"):
        (exports / f"logs/{name}.txt").write_text(LOG)
    (delivery / "people.xsl").write_text(STYLE)
    (delivery / "words.txt").write_text("one, two, three")
    server.files |= {"/in/list.txt": b"YAL001C\nYBL002W\nYCR003C\n", "/in/rows.xml": ROWS}
    collections = musicians(f"sqlite:///{tmp_path / 'notes.db'}")
    with collections.store.transaction(Cancellation(), write=True) as transaction:
        transaction.create_collection("musicians", "jazzsingers")
        transaction.create_collection("", "recipes")
        transaction.add(transaction.collection("musicians/jazzsingers"), [("ella", ELLA)])
        transaction.add(transaction.collection("recipes"), [("porridge", PORRIDGE)])
    collections.close()
    resources = {
        "book": {"url": url},
        "notes": {"collections": f"sqlite:///{tmp_path / 'notes.db'}"},
        "exports": {"directory": str(exports)},
    }
    allowed = {"directory": str(delivery), "urls": [f"{server.url}/in/", f"{other}/sessions/"], "private": True}
    with ExitStack() as stack:
        running = stack.enter_context(background(configured(tmp_path, resources, delivery=allowed)))
        client = stack.enter_context(httpx.Client(base_url=running.url, timeout=60))
        yield SimpleNamespace(client=client, other=other, server=server, delivery=delivery, exports=exports)


def expectations(text: str) -> dict[str, str]:
    match = re.search(r"<!-- expect\n(.*)\n-->", text, re.DOTALL)
    assert match is not None
    return dict(line.split(": ", 1) for line in match[1].splitlines())


def unknown(text: str) -> list[str]:
    """The activities of the document that the service does not have."""
    root = etree.fromstring(text.encode())
    members = [root]
    for group in members:
        members.extend(each for each in group if etree.QName(each).localname in ("request", "sequence", "flow"))
    names = [etree.QName(each).localname for group in members for each in group]
    own = {"documentation", "session", "parameter", "dataResource", "execute", "request", "sequence", "flow"}
    return [name for name in names if name not in own and name not in ACTIVITIES]


def ended(answer: httpx.Response, client: httpx.Client) -> dict[str, Any]:
    """The job of a document that goes on by itself, once it has ended."""
    while True:
        job = client.get(f"{answer.headers['Location']}?wait=30", headers={"Accept": "application/json"}).json()
        if job["phase"] not in ("PENDING", "QUEUED", "EXECUTING"):
            return dict(job)


def text_of(node: etree._Element) -> str:
    inside = b"".join(etree.tostring(each) for each in node).decode()
    return inside + (node.text or "")


@pytest.mark.parametrize(("path", "product"), CASES)
def test_document(path: Path, product: str, service: SimpleNamespace) -> None:
    text = path.read_text()
    expected = expectations(text)
    if expected.pop("only", "") == "postgresql" and product != "postgres":
        expected = {"refused": "procedure"}
    needs = expected.pop("needs", None)
    if needs and find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    client, resource = service.client, expected.pop("resource", "book")
    session = client.post("/sessions").json()["id"] if "{SESSION}" in text else ""
    text = text.replace("{HTTP}", service.server.url).replace("{SESSION}", session)
    there = ""
    if "{OTHER}" in text:
        there = httpx.post(f"{service.other}/sessions").json()["id"]
        text = text.replace("{OTHER}", f"{service.other}/sessions/{there}")
        if "fromGDT" in text:
            content = written(f'<session id="{there}"/>{OUT}')
            httpx.post(f"{service.other}/resources/book/perform", content=content, headers=XML).raise_for_status()
    if stream := expected.pop("push", None):
        client.put(f"/sessions/{session}/streams/{stream}/blocks/0?last=true", content=ROWS).raise_for_status()
    answer = client.post(f"/resources/{resource}/perform", content=text.encode(), headers=XML)
    root = etree.fromstring(answer.content)
    if missing := unknown(text):
        expected = {"refused": f"The element '{missing[0]}' is not expected here"}
    if (refusal := expected.pop("refused", None)) is not None:
        assert answer.is_client_error, answer.text
        assert re.search(refusal, answer.text), answer.text
        return
    dialect = next(each for each in SCHEMAS if each.namespace == etree.QName(root).namespace)
    SCHEMAS[dialect].assertValid(root)
    if failing := expected.pop("ends", None):
        errors = [each.get("activity") for each in root.iter("{*}error")]
        if answer.status_code == 202:
            job = ended(answer, client)
            assert job["phase"] == "ERROR", job
            errors = [each["activity"] for each in job["activities"] if each.get("error")]
        assert failing.removeprefix("error of ") in errors, answer.text
        return
    assert answer.is_success, answer.text
    for what, pattern in expected.items():
        if what.startswith("stream "):
            _, name, count = what.split()
            session = session or root.find("{*}session").get("id")
            blocks = [
                client.get(f"/sessions/{session}/streams/{name}/blocks/{place}?wait=30").raise_for_status()
                for place in range(int(count))
            ]
            assert client.get(f"/sessions/{session}/streams/{name}/blocks/{count}?wait=30").status_code == 204
            expected[what] = ""
            assert re.search(pattern, "".join(each.text for each in blocks))
    for what in [each for each in expected if each.startswith("other ")]:
        name = what.split()[1]
        until(lambda name=name: name in httpx.get(f"{service.other}/sessions/{there}").text)
        content = written(f'<session id="{there}"/>{INTO.format(name)}')
        response = httpx.post(f"{service.other}/resources/book/perform", content=content, headers=XML, timeout=60)
        assert re.search(expected.pop(what), text_of(results(response.content)["rows"])), response.text
    if answer.status_code == 202:
        job = ended(answer, client)
        assert job["phase"] == "COMPLETED", job
    else:
        assert results(answer.content)["request"].get("status") == "COMPLETED", answer.text
    for what, pattern in expected.items():
        kind, name = what.split()[:2]
        actual = _actual(kind, name, answer, service, resource)
        assert re.search(pattern, actual), (what, actual)


def _actual(kind: str, name: str, answer: httpx.Response, service: SimpleNamespace, resource: str) -> str:
    if kind == "result":
        root = etree.fromstring(answer.content)
        return text_of(next(each for each in root.iterfind("{*}result") if each.get("name") == name))
    if kind == "file":
        return (service.delivery / name).read_bytes().decode("latin-1")
    if kind == "export":
        return str((service.exports / name).read_text())
    if kind == "url":
        return str(service.server.files[name].decode())
    if kind == "property":
        return str(service.client.get(f"/resources/{resource}").json()["published"])
    assert kind == "stream"
    return ""
