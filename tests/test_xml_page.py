"""docs/xml.md does what it says, step by step: its configuration, its command, each activity with its answer."""

import re
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise

import httpx
import pytest

from tests.documents import query, written
from tests.processes import ROOT, ServiceProcess

PAGE = (ROOT / "docs" / "xml.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
STEPS = [(kind, code, answer) for (kind, code), (after, answer) in pairwise(BLOCKS) if after == "text"]
XML = {"Content-Type": "application/xml"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    assert BLOCKS[0][0] == "toml"
    store = re.findall(r'^collections = "([^"]*)"', BLOCKS[0][1], re.MULTILINE)
    directory = tmp_path_factory.mktemp("xml")
    process = ServiceProcess(directory, {}, collections={"notes": store[0]}, workers=2).start()
    yield process
    process.stop()
    assert (directory / store[0]).exists()


def test_the_page_is_true(service: ServiceProcess) -> None:
    assert len(STEPS) == 6
    for kind, code, answer in STEPS:
        if "xQuery" in code and find_spec("saxonche") is None:
            continue
        if kind == "sh":
            command = code.replace("http://127.0.0.1:8080", service.url)
            ended = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=100)
            assert ended.stdout == answer, ended.stderr
            continue
        output = re.findall(r'Stream name="(\w+)"', code)[-1]
        url = f"{service.url}/resources/notes/perform?output={output}"
        reply = httpx.post(url, content=written(code), headers=XML, timeout=100)
        assert (reply.status_code, reply.text) == (200, answer), code


def test_the_resource_over_http(service: ServiceProcess) -> None:
    resource = httpx.get(f"{service.url}/resources/notes").json()
    assert (resource["kind"], resource["dialect"], resource["available"]) == ("collections", "xml", True)
    assert resource["product"].startswith("XML collections in SQLite 3")
    assert "xPathStatement" in resource["activities"]
    assert "sqlQueryStatement" not in resource["activities"]


def path(expression: str, collection: str = "") -> str:
    return (
        f'<xPathStatement name="q"><collection>{collection}</collection><expression>{expression}</expression>'
        '<resourceSetStream name="o"/></xPathStatement>'
    )


DTD = '<![CDATA[<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>]]>'
CREATE = f'<createResource name="a">{DTD}</createResource><outputStream name="o"/>'
UPDATE = '<expression>x</expression><resultStream name="o"/>'


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (query("q", "select 1", "o", "webRowSetStream"), 400, "not-a-query"),
        (path("/a["), 400, "bad-parameter"),
        (path("/", "x"), 404, "not-found"),
        (f'<xmlResourceManagement name="q">{CREATE}</xmlResourceManagement>', 400, "bad-data"),
        (f'<xUpdateStatement name="q">{UPDATE}</xUpdateStatement>', 400, "bad-parameter"),
    ],
)
def test_refusals_over_http(body: str, status: int, code: str, service: ServiceProcess) -> None:
    url = f"{service.url}/resources/notes/perform?output=o"
    reply = httpx.post(url, content=written(body), headers=XML, timeout=100)
    assert (reply.status_code, reply.json()["type"]) == (status, code)
