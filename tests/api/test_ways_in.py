"""What an attacker writes, over HTTP: each is refused with its status, and nothing changes."""

import base64
import gzip
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from xml.sax.saxutils import escape

import httpx
import pytest
import zstandard

from dai.api.server.serve import background
from dai.drivers import DriverOptions
from dai.drivers.collections.driver import Collections
from dai.perform.xml import process
from dai.streams.cancellation import Cancellation
from tests.activities.test_delivery import Handler, Quiet
from tests.activities.test_transform import ENDLESS, TEMPLATE, XSL
from tests.api.conftest import XML, configured
from tests.documents import written
from tests.processes import until

SECRET = "the secret"
BOMB = (
    '<!DOCTYPE a [<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{n} "&a{n - 1};&a{n - 1};">' for n in range(1, 40))
    + "]><a>&a39;</a>"
)
READS = '<!DOCTYPE a [<!ENTITY e SYSTEM "file://{secret}">]><a>&e;</a>'
MATCHES = "re:test('" + "x" * 60 + "z', '(x+x+)+y')"


class Place:
    """A service with files, XML documents and deliveries; a secret beside them, and a server that nobody may call."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.secret, self.inside = directory / "secret", directory / "inside"
        self.secret.write_text(f"<a>{SECRET}</a>")
        self.inside.mkdir()
        (self.inside / "link").symlink_to(self.secret)
        (self.inside / "out").symlink_to(directory)
        os.mkfifo(self.inside / "pipe")
        (self.inside / "text").write_text("x" * 60 + "z")
        (self.inside / "bomb.gz").write_bytes(gzip.compress(bytes(10 << 20)))
        (self.inside / "bomb.zst").write_bytes(zstandard.compress(bytes(10 << 20)))
        database = f"sqlite:///{directory / 'notes.db'}"
        self.notes = Collections.connect(database, DriverOptions(pool_size=2, pool_wait=10))
        stack.callback(self.notes.close)
        with self.notes.store.transaction(Cancellation(), write=True) as transaction:
            transaction.add(transaction.collection(""), [("note", b"<a>1</a>")])
        server = stack.enter_context(Quiet(("127.0.0.1", 0), Handler))
        server.files, server.asked = {"/in/file": b"data"}, []  # type: ignore[attr-defined]
        self.asked: list[str] = server.asked  # type: ignore[attr-defined]
        self.stored: dict[str, bytes] = server.files  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        stack.callback(thread.join, 60)
        stack.callback(server.shutdown)
        self.port = server.server_port
        urls = [f"http://{each}:{self.port}/in/" for each in ("127.0.0.1", *ELSEWHERE)]
        resources = {
            "files": {"directory": str(self.inside)},
            "notes": {"collections": database},
            "book": {"url": f"sqlite:///{directory / 'book.db'}"},
        }
        limits = {"unpacked_bytes": 100_000, "transform_bytes": 1 << 20, "transform_seconds": 1}

        def client(private: bool) -> httpx.Client:
            own = directory / str(private)
            own.mkdir()
            delivery = {"directory": str(self.inside), "urls": urls, "private": private}
            service = background(configured(own, resources, delivery=delivery, limits=limits))
            return stack.enter_context(httpx.Client(base_url=stack.enter_context(service).url, timeout=60))

        self.client, self.trusting = client(False), client(True)

    def perform(self, resource: str, body: str, client: httpx.Client | None = None) -> httpx.Response:
        return (client or self.client).post(f"/resources/{resource}/perform", content=written(body), headers=XML)

    def state(self) -> object:
        with self.notes.store.transaction(Cancellation()) as transaction:
            notes = [
                (each.name, each.content) for chunk in transaction.chunks(transaction.collection("")) for each in chunk
            ]
        files = {each.name: each.read_bytes() for each in self.inside.iterdir() if each.name not in ("pipe", "out")}
        return notes, files, self.secret.read_text(), dict(self.stored)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path_factory.mktemp("place"), stack)


def xslt(style: str, xml: str = "<a/>") -> str:
    return (
        f'<xslTransform name="x"><inputXSLT>{escape(style)}</inputXSLT><inputXML>{escape(xml)}</inputXML>'
        '<output name="e"/></xslTransform>'
    )


def note(operation: str) -> str:
    return f'<xmlResourceManagement name="x">{operation}<outputStream name="e"/></xmlResourceManagement>'


def store(content: str) -> str:
    return note(f'<createResource name="new">{escape(content)}</createResource>')


def find(language: str, expression: str) -> str:
    return (
        f'<{language}Statement name="x"><expression>{escape(expression)}</expression><resourceSetStream name="e"/>'
        f"</{language}Statement>"
    )


def change(select: str) -> str:
    return (
        '<xUpdateStatement name="x"><expression><xu:modifications version="1.0" '
        f'xmlns:xu="http://www.xmldb.org/xupdate"><xu:update select="/a">2</xu:update><xu:remove select="{select}"/>'
        '</xu:modifications></expression><resultStream name="e"/></xUpdateStatement>'
    )


def read(name: str, output: str = "e") -> str:
    return f'<fileAccessActivity name="r"><file>{name}</file><output name="{output}"/></fileAccessActivity>'


def write(name: str, what: str = '<replace text="written"/>') -> str:
    return f'<fileWritingActivity name="x"><file>{name}</file>{what}<output name="e"/></fileWritingActivity>'


def handle(operation: str) -> str:
    return f'<fileManipulation name="x">{operation}<output name="e"/></fileManipulation>'


def unpack(element: str, name: str) -> str:
    return read(name, "packed") + (
        f'<{element} name="x" mode="decompress"><input from="packed"/><compressedOutput name="e"/></{element}>'
    )


def fetch(url: str) -> str:
    return f'<deliverFromURL name="x"><fromURL>{url}</fromURL><toLocal name="e"/></deliverFromURL>'


def send(url: str) -> str:
    return (
        '<Echo name="x"><input>data</input><output name="data"/></Echo>'
        f'<deliverToURL name="d"><fromLocal from="data"/><toURL>{url}</toURL></deliverToURL>'
    )


def to_file(name: str) -> str:
    return (
        '<Echo name="x"><input>data</input><output name="data"/></Echo>'
        f'<deliverToFile name="d"><fromLocal from="data"/><toFile>{name}</toFile></deliverToFile>'
    )


ELSEWHERE = [
    "localhost", "localhost.", "127.1", "0x7f.1", "0177.0.0.1", "2130706433", "0x7f000001", "[::1]", "[::]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "0.0.0.0", "169.254.169.254", "[fe80::1]",
    "[fd00::1]", "10.0.0.1", "[2002:7f00:1::]",
]  # fmt: skip
WAYS = {
    "entity bomb in a document": ("notes", store(BOMB), 400, "bad-data"),
    "external entity in a document": ("notes", store(READS), 400, "bad-data"),
    "external DTD in a document": ("notes", store("<!DOCTYPE a SYSTEM '{secret}'><a/>"), 400, "bad-data"),
    "endless XPath": ("notes", find("xPath", MATCHES), 422, "limit-exceeded"),
    "endless XUpdate": ("notes", change(f"/a[{MATCHES}]"), 422, "limit-exceeded"),
    "XPath that reads": ("notes", find("xPath", "document('{secret}')"), 400, "bad-parameter"),
    "style sheet that reads": (
        "book", xslt(TEMPLATE.format("<xsl:copy-of select=\"document('{secret}')\"/>")), 400, "bad-data"
    ),
    "style sheet that imports": ("book", xslt(XSL.format('<xsl:import href="{secret}"/>')), 400, "bad-data"),
    "style sheet that calls": ("book", xslt(XSL.format('<xsl:include href="{server}file"/>')), 400, "bad-data"),
    "style sheet that writes": (
        "book", xslt(TEMPLATE.format('<exsl:document href="{inside}/new">x</exsl:document>')), 400, "bad-data"
    ),
    "style sheet with an entity": ("book", xslt(READS.replace("<a>&e;</a>", TEMPLATE.format("&e;"))), 400, "bad-data"),
    "style sheet over an entity": ("book", xslt(TEMPLATE.format("x"), READS), 400, "bad-data"),
    "style sheet over a bomb": ("book", xslt(TEMPLATE.format("x"), BOMB), 400, "bad-data"),
    "style sheet without end": ("book", xslt(ENDLESS.format("")), 422, "limit-exceeded"),
    "parent directory": ("files", read("../secret"), 403, "denied"),
    "absolute name": ("files", read("{secret}"), 403, "denied"),
    "symbolic link": ("files", read("link"), 403, "denied"),
    "link to a directory": ("files", read("out/secret"), 403, "denied"),
    "special file": ("files", read("pipe"), 403, "denied"),
    "writing elsewhere": ("files", write("../secret"), 403, "denied"),
    "writing through a link": ("files", write("link"), 403, "denied"),
    "copying out": ("files", handle('<copy from="text" to="out/new"/>'), 403, "denied"),
    "moving in": ("files", handle('<move from="out/secret" to="new"/>'), 403, "denied"),
    "deleting a link's target": ("files", handle("<delete>out/secret</delete>"), 403, "denied"),
    "delivery elsewhere": ("book", to_file("../secret"), 403, "denied"),
    "delivery through a link": ("book", to_file("link"), 403, "denied"),
    "delivery by a URL": ("book", send("file:///../secret"), 403, "denied"),
    "delivery from elsewhere": ("book", fetch("file:///out/secret"), 403, "denied"),
    "gzip bomb": ("files", unpack("gzipCompression", "bomb.gz"), 422, "limit-exceeded"),
    "zstd bomb": ("files", unpack("zstdCompression", "bomb.zst"), 422, "limit-exceeded"),
    "regular expression with a backreference": (
        "files", write("text", r'<locate><regexp>(x+x+)\1y</regexp></locate><replace text=""/>'), 400, "bad-parameter"
    ),
    "regular expression that is large": (
        "files",
        write("text", '<locate><regexp>((x{100}){100}){100}</regexp></locate><replace text=""/>'),
        400,
        "bad-parameter",
    ),
    **{f"private {each}": ("book", fetch(f"http://{each}:{{port}}/in/file"), 403, "denied") for each in ELSEWHERE},
    "private address to write": ("book", send("{server}new"), 403, "denied"),
    "other path": ("book", fetch("http://127.0.0.1:{port}/file"), 403, "denied"),
    "other scheme": ("book", fetch("gopher://127.0.0.1:{port}/in/file"), 403, "denied"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_refused_and_nothing_changes(way: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SECONDS", 0.5)
    resource, body, status, code = WAYS[way]
    here = {"secret": place.secret, "inside": place.inside, "port": place.port}
    here["server"] = f"http://127.0.0.1:{place.port}/in/"
    for name, value in here.items():
        body = body.replace("{" + name + "}", str(value))
    before = place.state()
    answer = place.perform(resource, body)
    if answer.status_code == 202:  # it has no end point, so it is a job
        job = answer.headers["location"]
        until(lambda: place.client.get(job).json()["phase"] == "ERROR")
        answer = place.client.get(job)
        problem = answer.json()["error"]
    else:
        problem = answer.json()
        assert answer.status_code == status
    assert (problem["status"], problem["type"]) == (status, code), answer.text
    assert SECRET not in answer.text
    assert place.state() == before
    assert place.asked == []


def test_who_writes_what_is_allowed_is_served(place: Place) -> None:
    """So that the others are refused for what they do."""
    calls = fetch(f"http://127.0.0.1:{place.port}/in/file")
    for resource, body, expected in (
        ("notes", find("xPath", "/a"), "<a>1</a>"),
        ("notes", change("/a[re:test(string(.), 'y')]"), "<modifications>1</modifications>"),
        ("notes", store("<a>2</a>"), 'createdResource name="new"'),
        ("book", xslt(TEMPLATE.format("<b/>")), "<b/>"),
        ("files", read("text"), "xxxz"),
        ("files", write("new"), 'updateCount="1"'),
        ("files", handle('<copy from="text" to="copy"/>'), 'updateCount="1"'),
        ("files", write("text", r"<locate><regexp>(x+x+)+y</regexp></locate><delete/>"), 'updateCount="0"'),
        ("book", fetch("file:///text"), base64.b64encode(b"x" * 60 + b"z").decode()),
        ("book", calls, "data"),
    ):
        answer = place.perform(resource, body, place.trusting)
        assert (answer.status_code, expected in answer.text) == (200, True), answer.text
    assert place.asked == ["/in/file"]
    for path in ("/in/redirect", "/file", "/inside", "/in/%2e%2e/file"):
        refused = place.perform("book", calls.replace("/in/file", path), place.trusting)
        assert (refused.status_code, refused.json()["type"]) == (403, "denied"), path
    assert place.asked == ["/in/file", "/in/redirect"]
    place.asked.clear()
