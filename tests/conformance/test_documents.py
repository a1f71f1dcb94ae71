"""Whole documents, from files: ``good`` ones run on the demo data, ``bad`` and ``hostile`` ones are refused.

A file of ``good`` says in its last comment what stands in which result; one of ``bad`` what its refusal says. Hostile
documents that would be large files are written here.
"""

import re
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lxml import etree

from dai.drivers import Driver, driver_for
from dai.errors import DaiError, DocumentError, TooLargeError
from dai.perform.parser import GDS, DocumentLimits, parse
from dai.perform.pipeline import Running
from dai.perform.response import document
from examples.demo.load import load
from tests.documents import environment, results
from tests.test_response import SCHEMAS

DOCUMENTS = Path(__file__).parent / "documents"


def files(kind: str) -> list[pytest.ParameterSet]:
    actual = sorted((DOCUMENTS / kind).glob("*.xml"))
    assert actual
    return [pytest.param(path.read_bytes(), id=path.stem) for path in actual]


def notes(content: bytes, kind: str) -> dict[str, str]:
    """The lines ``name: value`` of the last comment."""
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    text = content.decode(encoding, "replace")
    if "ISO-8859-1" in text:
        text = content.decode("iso-8859-1")
    match = re.search(rf"<!-- {kind}\r?\n(.*?)-->", text, re.DOTALL)
    lines = match[1].splitlines() if match else []
    return dict(line.split(": ", 1) if ": " in line else (line.rstrip(":"), "") for line in lines)


@pytest.fixture(params=["sqlite", "postgres"])
def demo(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A database of its own for each document, holding 100 entries of the little black book."""
    url = request.getfixturevalue(f"{request.param}_url")
    load(url, ["littleblackbook"], rows=100)
    driver = driver_for(url)
    yield driver
    driver.close()


@pytest.mark.parametrize("content", files("good"))
def test_good(content, demo):
    expected = notes(content, "expect")
    with Running(parse(content), environment(demo)) as work:
        response = b"".join(document(work.open(), "session", "request"))
        assert expected.keys() <= {end.name for end in work.perform.end_points}
    SCHEMAS[work.perform.dialect].assertValid(etree.fromstring(response))
    elements = results(response)
    assert elements["request"].get("status") == "COMPLETED", response.decode()
    for name, pattern in expected.items():
        text = (elements[name].text or "") if len(elements[name]) == 0 else ""
        assert re.search(pattern, text) or re.search(pattern, etree.tostring(elements[name]).decode()), elements[
            name
        ].text
    assert demo.pool_state()["open"] == demo.pool_state()["idle"]


@pytest.mark.parametrize("content", files("bad"))
def test_bad(content):
    expected = notes(content, "refused")
    with pytest.raises(DocumentError) as raised:
        parse(content)
    error = raised.value
    assert error.code == expected["code"]
    assert str(error.line) in expected["line"].split("|")
    assert (error.element or "") == expected["element"]
    assert expected["expected"] in (error.expected or "")
    assert re.search(expected["says"], str(error)), str(error)
    assert error.problem()["line"] == error.line
    check_message(error)


def check_message(error: DaiError) -> None:
    """Neither a path nor a stack nor a name of ours, and not the whole document back."""
    shown = str(error) + str(error.problem())
    for secret in ("Traceback", "site-packages", "/home", "/work", "/tmp", ".py", "lxml", "libxml", "expat"):
        assert secret not in shown
    assert len(shown) < 2000


class Listener:
    """Counts who connects."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.visits = 0
        self.thread = threading.Thread(target=self._accept)
        self.thread.start()

    def _accept(self) -> None:
        while True:
            connection, _ = self.socket.accept()
            told = connection.recv(4)
            connection.close()
            if told == b"stop":
                return
            self.visits += 1

    def stop(self) -> int:
        """How many came."""
        with socket.create_connection(self.socket.getsockname()) as connection:
            connection.sendall(b"stop")
        self.thread.join(30)
        self.socket.close()
        return self.visits


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    assert listener.stop() == 0


@pytest.mark.parametrize("content", files("hostile"))
def test_hostile(content, listener, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    content = content.replace(b"{HTTP}", listener.url.encode()).replace(b"{FILE}", secret.as_uri().encode())
    with pytest.raises((DocumentError, TooLargeError)) as raised:
        parse(content)
    assert "the secret" not in str(raised.value)
    assert str(secret) not in str(raised.value)
    check_message(raised.value)


def around(body: str, attributes: str = "") -> bytes:
    return f'<{GDS.request} xmlns="{GDS.namespace}" {attributes}>{body}</{GDS.request}>'.encode()


UPDATE = '<sqlUpdateStatement name="a"><expression>{}</expression>{}<resultStream name="b"/></sqlUpdateStatement>'

LARGE: dict[str, Callable[[], bytes]] = {
    "100,000 levels": lambda: b"<a>" * 100_000 + b"</a>" * 100_000,
    "100,000 levels that never end": lambda: b"<a>" * 100_000,
    "100,000 levels of flow": lambda: around("<flow>" * 100_000 + "</flow>" * 100_000),
    "100,000 levels in an activity": lambda: around(UPDATE.format("x", "<sqlParameter>" * 100_000)),
    "a million attributes": lambda: around("<session/>", " ".join(f'a{n}=""' for n in range(1_000_000))),
    "attributes that fit": lambda: around("<session/>", " ".join(f'a{n}=""' for n in range(200_000))),
    "namespaces": lambda: around("<session/>", " ".join(f'xmlns:a{n}="u"' for n in range(100_000))),
    "a million empty groups": lambda: around("<flow/>" * 500_000),
    "activities": lambda: around("".join(UPDATE.replace('"a"', f'"a{n}"') for n in range(501))),
    "activities in groups": lambda: around(f"<sequence>{UPDATE * 300}</sequence><flow>{UPDATE * 300}</flow>"),
    "a million parameters": lambda: around(UPDATE.format("x", '<sqlParameter position="1"/>' * 100_000)),
    "text": lambda: around(UPDATE.format("x" * 5_000_000, "")),
    "text where none may stand": lambda: around("x" * 4_000_000),
    "white space": lambda: around(" " * 5_000_000),
    "a name": lambda: around(f"<{'a' * 3_000_000}/>"),
    "an attribute": lambda: around(f'<session id="1" x="{"a" * 3_000_000}"/>'),
    "a comment": lambda: around(f"<!--{'-a' * 2_200_000}--><session/>"),
    "a chain": lambda: around(
        '<inputStream name="i"><toLocal name="o0"/></inputStream>'
        + "".join(
            f'<blockAggregator name="b{n}"><input from="o{n}"/><blocksize size="1"/><output name="o{n + 1}"/>'
            "</blockAggregator>"
            for n in range(400)
        )
    ),
}


@pytest.mark.parametrize("write", [pytest.param(write, id=name) for name, write in LARGE.items()])
def test_large(write):
    """Refused by the limits, in a memory that does not grow with what the document wants to be."""
    content = write()
    tracemalloc.start()
    try:
        with pytest.raises((DocumentError, TooLargeError)) as raised:
            parse(content)
        # names and values of one element become strings before it can be refused: some 50 bytes each
        assert tracemalloc.get_traced_memory()[1] < 24 * len(content) + (8 << 20)
    finally:
        tracemalloc.stop()
    check_message(raised.value)


@pytest.mark.parametrize("name", ["bytes", "depth", "elements", "attributes", "activities", "chain"])
def test_every_limit_can_be_set(name):
    content = around(
        '<inputStream name="i"><toLocal name="o"/></inputStream>'
        '<blockAggregator name="b"><input from="o"/><blocksize size="1"/><output name="p"/></blockAggregator>'
    )
    parse(content)
    least = {"bytes": len(content), "depth": 3, "elements": 7, "attributes": 1, "activities": 2, "chain": 2}
    parse(content, DocumentLimits(**{name: least[name]}))
    with pytest.raises(TooLargeError):
        parse(content, DocumentLimits(**{name: least[name] - 1}))
