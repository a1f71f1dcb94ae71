"""Delivery between two running services: deliverToGDT, deliverFromGDT and transfers that a client only starts."""

import re
import socket
import sqlite3
import ssl
import threading
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from typing import Any, Self

import httpx
import pyarrow as pa
import pytest

import dai
from dai.api.server.serve import Background, background
from dai.formats import format_named
from dai.formats.frames import MEDIA_TYPE, pushed
from dai.perform.parser import parse
from tests.api.conftest import DOCUMENT, ENDLESS, FAILS_LATE, ROWS, XML, configured, statement
from tests.documents import results, to_csv
from tests.processes import ROOT, until
from tests.servers.certificates import self_signed

ALL = "select i, s from numbers order by i"
ARROW, WEBROWSET = "application/vnd.apache.arrow.stream", "application/vnd.webrowset+xml"
INTO = '<inputStream name="in"><toLocal name="came"/></inputStream>'
LOAD = (
    '<sqlBulkLoadRowSet name="load"><webRowSetStream from="came"/><loadIntoTable tableName="{}"/>'
    '<resultStream name="loaded"/></sqlBulkLoadRowSet>'
)
AGGREGATE = (
    '<blockAggregator name="a"><input from="rows"/><blocksize size="{}"/><output name="blocks"/></blockAggregator>'
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    """Service B, with empty tables."""
    directory = tmp_path_factory.mktemp("target")
    with closing(sqlite3.connect(directory / "store.db")) as store:
        for name in ("copy_block", "copy_full", "over_network", "late", "over_cuts", "never", "copy"):
            store.execute(f"create table {name} (i integer primary key, s text)")
        store.commit()
    with background(configured(directory, {"store": {"url": f"sqlite:///{directory / 'store.db'}"}})) as running:
        yield running


class Cutting:
    """A way to a service on which connections break: instead of every seventh piece of an answer."""

    def __init__(self, port: int) -> None:
        self._port, self._pieces = port, count(1)
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                for way in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._copy, args=way, daemon=True).start()

    def _copy(self, out: socket.socket, into: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := out.recv(1 << 20):
                if answers and next(self._pieces) % 7 == 0:
                    self.cuts += 1
                    break
                into.sendall(data)
        for each in (out, into):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def cutting(target: Background) -> Iterator[Cutting]:
    with Cutting(int(target.url.rpartition(":")[2])) as way:
        yield way


@pytest.fixture(scope="module")
def source(
    tmp_path_factory: pytest.TempPathFactory, book: str, target: Background, cutting: Cutting
) -> Iterator[Background]:
    """Service A, which may deliver to B."""
    urls = [f"{target.url}/sessions", f"http://127.0.0.1:{cutting.port}/sessions"]
    delivery = {"urls": urls, "private": True}
    config = configured(tmp_path_factory.mktemp("source"), {"book": {"url": book}}, delivery=delivery)
    with background(config) as running:
        yield running


@pytest.fixture
def a(source: Background) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=source.url, timeout=60) as client:
        yield client


@pytest.fixture
def b(target: Background) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=target.url, timeout=60) as client:
        yield client


def to_gdt(url: str, mode: str = "block", link: str = "rows") -> str:
    return (
        f'<deliverToGDT name="deliver"><fromLocal from="{link}"/>'
        f'<toGDT streamId="in" mode="{mode}">{url}</toGDT></deliverToGDT>'
    )


def session(client: httpx.Client) -> str:
    """The address of a new session."""
    return f"{client.base_url}".rstrip("/") + client.post("/sessions").headers["location"]


def deliver(client: httpx.Client, body: str) -> str:
    """Starts the document; the address of its job."""
    answer = client.post("/resources/book/perform", content=DOCUMENT.format(body), headers=XML)
    assert answer.status_code == 202, answer.text
    return answer.headers["location"]


def ended(client: httpx.Client, job: str) -> dict[str, Any]:
    while (described := client.get(f"{job}?wait=20").json())["phase"] not in ("COMPLETED", "ERROR", "ABORTED"):
        continue
    return described


def read(client: httpx.Client, url: str, body: str) -> httpx.Response:
    """Runs a document in the session at B."""
    path = f"/resources/store/perform?session={url.rpartition('/')[2]}"
    return client.post(path, content=DOCUMENT.format(body), headers=XML)


@pytest.mark.parametrize("mode", ["block", "full"])
def test_to_another_service_as_tuples(a, b, source, target, mode):
    """The reader takes tuples, so they come as Arrow."""
    url = session(b)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read, b, url, INTO + LOAD.format(f"copy_{mode}"))
        until(lambda: b.get(url).json()["streams"])
        assert b.get(url).json()["streams"][0]["forms"] == [ARROW, WEBROWSET]
        job = deliver(a, statement(ALL) + AGGREGATE.format(7000) + to_gdt(url, mode, "blocks"))
        assert f'updateCount="{ROWS}"' in reading.result().text
    assert ended(a, job)["phase"] == "COMPLETED"
    copied = dai.connect(f"{target.url}/resources/store").query(f"select * from copy_{mode} order by i").arrow()
    assert copied.equals(dai.connect(f"{source.url}/resources/book").query(ALL).arrow())


@pytest.mark.parametrize("mode", ["block", "full"])
def test_to_another_service_as_bytes(a, b, mode):
    """The reader takes bytes, so they come as they are, and the stream may be there before who reads it."""
    url = session(b)
    job = deliver(a, statement(ALL) + AGGREGATE.format(7000) + to_gdt(url, mode, "blocks"))
    document = results(read(b, url, INTO).content)["came"]
    assert ended(a, job)["phase"] == "COMPLETED"
    text = b64decode(document.text).decode()
    assert text == a.post("/resources/book/query?format=webrowset", json={"sql": ALL}).text


def test_tuples_that_came_before_their_reader(a, b, source, target):
    """Nobody had said yet that Arrow is welcome."""
    url = session(b)
    job = deliver(a, statement(ALL) + to_gdt(url, "full"))
    until(lambda: b.get(url).json()["streams"])
    assert f'updateCount="{ROWS}"' in read(b, url, INTO + LOAD.format("late")).text
    assert ended(a, job)["phase"] == "COMPLETED"


def from_gdt(url: str, blocks: int = 1) -> str:
    return (
        f'<deliverFromGDT name="fetch"><fromGDT streamId="out" numberOfBlocks="{blocks}">{url}</fromGDT>'
        '<toLocal name="came"/></deliverFromGDT>'
    )


OUT = '<outputStream name="out"><fromLocal from="{}"/></outputStream>'
TO_ARROW = '<sqlResultsToArrow name="e"><resultSet from="rows"/><arrow name="encoded"/></sqlResultsToArrow>'


def offered(client: httpx.Client, body: str) -> tuple[str, str]:
    """The addresses of a session whose stream ``out`` the document fills, and of its job."""
    url = session(client)
    answer = client.post(
        f"/resources/store/perform?session={url.rpartition('/')[2]}", content=DOCUMENT.format(body), headers=XML
    )
    assert answer.status_code == 202, answer.text
    return url, answer.headers["location"]


@pytest.mark.parametrize(("encode", "link"), [("", "rows"), (TO_ARROW, "encoded")])
@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("representation", ["document", "payload"])
def test_from_another_service(a, b, encode, link, blocks, representation):
    """Documents, also from a stream that gives others frames."""
    numbers = f"with recursive c(i) as (select 1 union all select i + 1 from c limit {ROWS}) select i from c"
    body = statement(numbers) + encode
    body += AGGREGATE.format(4000).replace('"rows"', f'"{link}"') + OUT.format("blocks")
    body = body.replace('name="out"', f'name="out" representation="{representation}"')
    url, job = offered(b, body)
    content = DOCUMENT.format(from_gdt(url, blocks) + to_csv("c", "came", "csv"))
    answer = a.post("/resources/book/perform?output=csv", content=content, headers=XML)
    assert answer.text.split() == ["i", *map(str, range(1, ROWS + 1))]
    assert ended(b, job)["phase"] == "COMPLETED"


SERVICES = [
    "http://127.0.0.1:1/sessions/x",
    "{}/resources/store",
    "{}/sessions/x/../../resources",
    "ftp://b/sessions/x",
]


@pytest.mark.parametrize("url", SERVICES)
@pytest.mark.parametrize("body", [lambda url: statement(ALL) + to_gdt(url), lambda url: from_gdt(url) + INTO_FILE])
def test_only_sessions_that_the_operator_allows(a, target, url, body):
    (activity,) = [
        each for each in ended(a, deliver(a, body(url.format(target.url))))["activities"] if each["status"] == "ERROR"
    ]
    assert activity["error"]["type"] in ("denied", "bad-parameter")


INTO_FILE = '<deliverToFile name="f"><fromLocal from="came"/><toFile>x</toFile></deliverToFile>'


def errors(job: dict[str, Any]) -> dict[str, str]:
    """The code of its error by activity."""
    return {each["activity"]: each["error"]["type"] for each in job["activities"] if each.get("error")}


def test_nothing_is_lost_or_comes_twice_where_replies_are_lost(a, b, source, target, cutting):
    url = session(b)
    broken = url.replace(target.url, f"http://127.0.0.1:{cutting.port}")
    cuts = cutting.cuts
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read, b, url, INTO + LOAD.format("over_cuts"))
        until(lambda: b.get(url).json()["streams"])
        job = deliver(a, statement(ALL) + AGGREGATE.format(300) + to_gdt(broken, link="blocks"))
        assert f'updateCount="{ROWS}"' in reading.result().text
    assert ended(a, job)["phase"] == "COMPLETED"
    assert cutting.cuts - cuts > ROWS // 300 // 7
    copied = dai.connect(f"{target.url}/resources/store").query("select * from over_cuts order by i").arrow()
    assert copied.equals(dai.connect(f"{source.url}/resources/book").query(ALL).arrow())


@pytest.mark.parametrize("takes", ["bytes", "tuples"])
def test_over_a_network_blocks_travel_compressed_with_their_context(a, b, target, cutting, monkeypatch, takes):
    """The addresses of this test are no network: it says that they are one."""
    sizes = []

    def noted(block, number, static):
        frame = pushed(block, number, static)
        sizes.append((len(block), None if frame is None else len(frame)))
        return frame

    monkeypatch.setattr("dai.perform.delivery.streams.is_loopback", lambda host: False)
    monkeypatch.setattr("dai.perform.delivery.streams.pushed", noted)
    url = session(b)
    broken = url.replace(target.url, f"http://127.0.0.1:{cutting.port}")
    sql = "select i, s from numbers where i < 6000 order by i"
    if takes == "bytes":
        job = deliver(a, statement(sql) + AGGREGATE.format(300) + to_gdt(broken, link="blocks"))
        text = b64decode(results(read(b, url, INTO).content)["came"].text).decode()
        assert text == a.post("/resources/book/query?format=webrowset", json={"sql": sql}).text
    else:
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(read, b, url, INTO + LOAD.format("over_network"))
            until(lambda: b.get(url).json()["streams"])
            job = deliver(a, statement(sql) + AGGREGATE.format(300) + to_gdt(broken, link="blocks"))
            assert 'updateCount="6000"' in reading.result().text
        copied = dai.connect(f"{target.url}/store").query("select sum(i) as s, count(s) as n from over_network")
        assert copied.arrow().to_pylist() == [{"s": 5999 * 3000, "n": 6000}]
    assert ended(a, job)["phase"] == "COMPLETED"
    framed = [(size, sent) for size, sent in sizes if sent is not None]
    assert len(framed) >= len(sizes) - 1, "but for the end of the document"
    assert sum(sent for _, sent in framed[1:]) < 0.4 * sum(size for size, _ in framed[1:])


def test_the_client_pushes_in_frames_over_a_network(b, target):
    table = pa.table({"i": range(2500), "s": [f"number {i}" for i in range(2500)]})
    store = dai.connect(f"{target.url}/store", compression="zstd")
    with store.session() as opened, ThreadPoolExecutor() as pool:
        reading = pool.submit(read, b, opened.url, INTO)
        until(lambda: b.get(f"/sessions/{opened.id}").json()["streams"])
        assert opened.push("in", table, blocksize=300) == 9
        came = b64decode(results(reading.result().content)["came"].text)
    assert format_named("webrowset").decode([came]).table().to_pydict() == table.to_pydict()


@pytest.mark.parametrize("number", [0, 1])
def test_frames_that_are_none_are_refused(b, number):
    path = session(b) + f"/streams/in/blocks/{number}"
    for body in (b"DAIB" + bytes(64), b"x" * 100):
        answer = b.put(path, content=body, headers={"Content-Type": MEDIA_TYPE})
        assert answer.status_code in (400, 409, 502)


def test_nothing_is_pulled_twice_where_replies_are_lost(a, b, target, cutting):
    numbers = f"with recursive c(i) as (select 1 union all select i + 1 from c limit {ROWS}) select i from c"
    url, job = offered(b, statement(numbers) + AGGREGATE.format(300) + OUT.format("blocks"))
    broken, cuts = url.replace(target.url, f"http://127.0.0.1:{cutting.port}"), cutting.cuts
    content = DOCUMENT.format(from_gdt(broken) + to_csv("c", "came", "csv"))
    answer = a.post("/resources/book/perform?output=csv", content=content, headers=XML)
    assert answer.text.split() == ["i", *map(str, range(1, ROWS + 1))]
    assert ended(b, job)["phase"] == "COMPLETED"
    assert cutting.cuts - cuts > ROWS // 300 // 7


def test_a_query_that_fails_half_way_is_an_error_at_both_ends(a, b, target):
    url = session(b)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read, b, url, INTO + LOAD.format("never"))
        until(lambda: b.get(url).json()["streams"])
        job = ended(a, deliver(a, statement(FAILS_LATE) + to_gdt(url)))
        assert reading.result().json()["type"] == "truncated"
    assert errors(job) == {"q": "sql-error", "deliver": "stream-closed"}
    store = dai.connect(f"{target.url}/resources/store")
    assert store.query("select count(*) as n from never").arrow().to_pylist() == [{"n": 0}]


def stop_the_session(b: httpx.Client, url: str, a: httpx.Client, job: str) -> None:
    assert b.delete(url).status_code == 204


def stop_the_job(b: httpx.Client, url: str, a: httpx.Client, job: str) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert a.post(f"{job}/phase", content="PHASE=ABORT", headers=form).status_code == 200


@pytest.mark.parametrize(
    ("stop", "phase", "here", "there"),
    [(stop_the_session, "ERROR", "gone", "gone"), (stop_the_job, "ABORTED", "cancelled", "truncated")],
)
def test_either_side_ends_an_endless_delivery(a, b, stop, phase, here, there):
    url = session(b)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read, b, url, INTO + to_csv("c", "came", "csv"))
        until(lambda: b.get(url).json()["streams"])
        job = deliver(a, statement(ENDLESS) + to_gdt(url))
        until(lambda: b.get(url).json()["streams"][0]["next"] > 2)
        stop(b, url, a, job)
        done = ended(a, job)
        assert f'error id="{there}"' in reading.result().text
    assert done["phase"] == phase
    assert errors(done)["deliver"] == here


def test_a_reader_that_fails_stops_the_query(a, b):
    """A load of the same key twice."""
    url = session(b)
    endless = "with recursive c(i) as (select 1 union all select i + 1 from c) select 1 as i, 'x' as s from c"
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read, b, url, INTO + LOAD.format("never"))
        until(lambda: b.get(url).json()["streams"])
        job = ended(a, deliver(a, statement(endless) + to_gdt(url)))
        assert reading.result().status_code >= 400
    assert job["phase"] == "ERROR"
    assert errors(job) == {"q": "stream-closed", "deliver": "gone"}


def test_a_consumer_that_wants_no_more_stops_the_query(a, b):
    url, job = offered(b, statement(ENDLESS) + OUT.format("rows"))
    head = '<Head name="h" rows="5"><data from="came"/><result name="some"/></Head>'
    content = DOCUMENT.format(from_gdt(url) + head + to_csv("c", "some", "csv"))
    answer = a.post("/resources/book/perform?output=csv", content=content, headers=XML)
    assert answer.text.split() == ["i", "1", "2", "3", "4", "5"]
    assert ended(b, job)["phase"] == "ERROR"


def test_two_deliveries_do_not_mix(a, b):
    url = session(b)
    first = deliver(a, statement(ALL) + to_gdt(url))
    until(lambda: b.get(url).json()["streams"])
    assert errors(ended(a, deliver(a, statement(ALL) + to_gdt(url))))["deliver"] == "conflict"
    assert read(b, url, INTO).status_code == 200
    assert ended(a, first)["phase"] == "COMPLETED"


def test_the_page_is_true(source, target, capsys):
    """docs/transfers.md: its example runs, and prints what the page says."""
    page = (ROOT / "docs/transfers.md").read_text()
    code, output, document = (
        re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("python", "output", "xml")
    )
    code = code.replace("http://a.example.org:8080", source.url).replace("http://b.example.org:8080", target.url)
    exec(compile(code, "transfers.md", "exec"), {})
    assert capsys.readouterr().out == output
    assert document == (ROOT / "examples/deliver-to-service.xml").read_text()
    parse(document.encode())


@pytest.mark.parametrize("shown", [True, False])
def test_to_a_service_that_asks_for_a_certificate(tmp_path, book, shown):
    """B answers only with TLS and to a certificate of its authority; A shows that of the account."""
    server, client = self_signed(tmp_path, "server"), self_signed(tmp_path, "client")
    tls = {"certificate": str(server), "key": str(server.with_suffix(".key")), "client_ca": str(client)}
    resources = {"store": {"url": f"sqlite:///{tmp_path / 'store.db'}"}}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with background(configured(tmp_path / "b", resources, service={"tls": tls})) as target:
        url = f"{target.url}/sessions"
        account = {"url": url, "certificate": str(client), "key": str(client.with_suffix(".key"))}
        delivery = {"urls": [url], "private": True, "authorities": str(server), "accounts": {"b": account}}
        if not shown:
            del delivery["accounts"]
        context = ssl.create_default_context(cafile=server)
        context.load_cert_chain(client, client.with_suffix(".key"))
        source = configured(tmp_path / "a", {"book": {"url": book}}, delivery=delivery)
        with (
            background(source) as near,
            httpx.Client(base_url=near.url, timeout=60) as a,
            httpx.Client(base_url=target.url, timeout=60, verify=context) as b,
        ):
            address = session(b)
            job = deliver(a, statement(ALL) + AGGREGATE.format(7000) + to_gdt(address, "block", "blocks"))
            if shown:
                assert len(results(read(b, address, INTO).content)["came"].text) > ROWS
            assert ended(a, job)["phase"] == ("COMPLETED" if shown else "ERROR")
