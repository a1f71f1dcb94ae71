"""Deliveries by FTP and to object stores, to real servers: there and back, what is refused, what is left behind."""

import inspect
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moto.s3.models import S3Backend

from dai.config import AccountConfig, DeliveryConfig
from dai.drivers.memory import Memory, Script
from dai.errors import (
    CancelledError,
    DataError,
    DeniedError,
    LimitError,
    NotFoundError,
    TruncatedError,
    UnreachableError,
)
from dai.perform.delivery import objects
from dai.perform.delivery.loops import Loop
from dai.streams.cancellation import Cancellation
from tests.activities.test_delivery import ROWS_AS_CSV, done, from_url, to_url, work_of
from tests.documents import table
from tests.pipelines import begun
from tests.processes import until
from tests.servers.delivery import PASSWORD, USER, ftp_server, object_store


@dataclass
class Remote:
    """A place to deliver to: its URL, the policy that allows it, and what lies there."""

    url: str
    config: DeliveryConfig
    root: Path | None = None
    client: Any = None

    def put(self, name: str, data: bytes) -> None:
        if self.root is not None:
            (self.root / name).write_bytes(data)
        else:
            self.client.put_object(Bucket="results", Key=f"in/{name}", Body=data)

    def files(self) -> dict[str, bytes]:
        if self.root is not None:
            return {path.name: path.read_bytes() for path in self.root.iterdir()}
        listed = self.client.list_objects_v2(Bucket="results").get("Contents", [])
        read = {
            each["Key"]: self.client.get_object(Bucket="results", Key=each["Key"])["Body"].read() for each in listed
        }
        return {key.removeprefix("in/"): data for key, data in read.items()}


def allowing(url: str, **more: Any) -> DeliveryConfig:
    account = AccountConfig(name="there", url=url, user=USER, password=PASSWORD, **more)
    return DeliveryConfig(urls=(url,), private=True, silence=20.0, accounts={"there": account})


@pytest.fixture(scope="module")
def ftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    root = tmp_path_factory.mktemp("ftp")
    (root / "in").mkdir()
    with ftp_server(root) as port:
        url = f"ftp://127.0.0.1:{port}/in/"
        yield Remote(url, allowing(url), root=root / "in")


@pytest.fixture(scope="module")
def s3() -> Iterator[Remote]:
    with object_store("results") as (endpoint, client):
        yield Remote("s3://results/in/", allowing("s3://results/in/", endpoint=endpoint), client=client)


@pytest.fixture(params=["ftp", "s3"])
def remote(request: pytest.FixtureRequest) -> Remote:
    remote: Remote = request.getfixturevalue(request.param)
    for name in remote.files():
        if remote.root is not None:
            (remote.root / name).unlink()
        else:
            remote.client.delete_object(Bucket="results", Key=f"in/{name}")
    return remote


def test_there_and_back(remote):
    assert done(to_url(remote.url + "new.csv"), remote.config) == []
    assert remote.files() == {"new.csv": ROWS_AS_CSV.encode()}
    assert done(from_url(remote.url + "new.csv"), remote.config)[0].decode() == ROWS_AS_CSV
    assert done(to_url(remote.url + "new.csv"), remote.config) == []  # it replaces what is there


def test_large_ones(remote):
    data = bytes(range(251)) * 80_000
    remote.put("large", data)
    assert done(from_url(remote.url + "large"), remote.config)[0] == data
    with pytest.raises(LimitError, match="more than 1,000,000 bytes"):
        done(from_url(remote.url + "large"), replace(remote.config, bytes=1_000_000))


def test_what_is_not_there(remote):
    with pytest.raises(NotFoundError):
        done(from_url(remote.url + "nothing"), remote.config)


def test_refused(remote):
    remote.put("there", b"before")
    for config in (replace(remote.config, private=False), replace(remote.config, urls=())):
        for body in (to_url(remote.url + "there"), from_url(remote.url + "there")):
            with pytest.raises(DeniedError):
                done(body, config)
    assert remote.files() == {"there": b"before"}


def test_a_wrong_password(ftp):
    account = replace(ftp.config.accounts["there"], password="a wrong one")
    with pytest.raises(DeniedError, match="refuses the credentials") as raised:
        done(from_url(ftp.url + "x"), replace(ftp.config, accounts={"there": account}))
    assert "wrong" not in str(raised.value)


def test_no_account_for_a_bucket(s3):
    with pytest.raises(DeniedError, match="no account"):
        done(from_url(s3.url + "x"), replace(s3.config, accounts={}))


def test_a_query_that_fails_leaves_what_was_there(remote):
    remote.put("there", b"before")
    driver = Memory({"q": Script(table(10), batch_rows=1, fails=DataError("half-way"))})
    with work_of(to_url(remote.url + "there"), remote.config, driver) as work, pytest.raises(DataError):
        work.open().finish()
    assert remote.files() == {"there": b"before"}


@pytest.mark.parametrize("ends", ["the query fails", "cancelled"])
def test_no_part_of_an_upload_stays_in_the_bucket(s3, monkeypatch, ends):
    monkeypatch.setattr(objects, "PART_BYTES", 1000)
    failure = {"fails": DataError("half-way")} if ends == "the query fails" else {"blocks": True}
    driver = Memory({"q": Script(table(5000), batch_rows=100, **failure)})
    stop = Cancellation()

    def uploads() -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = s3.client.list_multipart_uploads(Bucket="results").get("Uploads", [])
        return listed

    thread, raised = begun(work_of(to_url(s3.url + "parts"), s3.config, driver, stop))
    if ends == "cancelled":
        until(uploads)
        stop.cancel(CancelledError("Enough."))
    thread.join(60)
    assert [type(each) for each in raised] == [CancelledError if ends == "cancelled" else DataError]
    assert (uploads(), "parts" in s3.files()) == ([], False)


def test_an_upload_is_removed_whose_name_is_still_on_its_way(s3, monkeypatch):
    monkeypatch.setattr(objects, "PART_BYTES", 1000)
    there, answers = threading.Event(), threading.Event()
    create = S3Backend.create_multipart_upload

    def slowly(*arguments: Any, **more: Any) -> Any:
        name = create(*arguments, **more)
        there.set()
        answers.wait(60)
        return name

    monkeypatch.setattr(S3Backend, "create_multipart_upload", slowly)
    stop = Cancellation()
    driver = Memory({"q": Script(table(5000), batch_rows=100, blocks=True)})
    thread, raised = begun(work_of(to_url(s3.url + "parts"), s3.config, driver, stop))
    assert there.wait(60)
    stop.cancel(CancelledError("Enough."))
    answers.set()
    thread.join(60)
    assert [type(each) for each in raised] == [CancelledError]
    assert "Uploads" not in s3.client.list_multipart_uploads(Bucket="results")


class Leading(BaseHTTPRequestHandler):
    """Leads each request to another server, which counts them."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_response(307)
        self.send_header("Location", self.server.location)  # type: ignore[attr-defined]
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("body", [to_url, from_url])
def test_redirects_of_a_store_lead_nowhere_else(s3, body):
    with ExitStack() as stack:
        servers = [stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Leading)) for _ in range(2)]
        first, second = (f"http://127.0.0.1:{each.server_port}" for each in servers)
        for each in servers:
            each.asked, each.location = [], f"{second}/latest/meta-data"  # type: ignore[attr-defined]
            thread = threading.Thread(target=each.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join, 60)
            stack.callback(each.shutdown)
        with pytest.raises(UnreachableError):
            done(body("s3://results/in/x"), allowing("s3://results/in/", endpoint=first))
        assert servers[0].asked  # type: ignore[attr-defined]
        assert servers[1].asked == []  # type: ignore[attr-defined]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are asked for; this process alone knows an address of ``localhost.test``."""
    names: list[str] = []
    original = socket.getaddrinfo

    def resolved(host: str, *rest: Any, **options: Any) -> Any:
        names.append(host)
        return original("127.0.0.1" if host == "localhost.test" else host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    return names


def test_the_name_of_a_store_is_resolved_once(s3, asked):
    endpoint = s3.config.accounts["there"].endpoint.replace("127.0.0.1", "localhost.test")
    s3.put("pinned", b"data")
    assert done(from_url(s3.url + "pinned"), allowing(s3.url, endpoint=endpoint)) == [b"data"]
    assert asked.count("localhost.test") == 1


def test_tls_goes_to_the_address_that_was_checked(asked):
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:

        def first_byte() -> bytes:
            with listener.accept()[0] as connection:
                return connection.recv(1)

        greeting = pool.submit(first_byte)
        endpoint = f"https://localhost.test:{listener.getsockname()[1]}"
        with pytest.raises((LimitError, UnreachableError)):
            done(from_url("s3://results/in/x"), replace(allowing("s3://results/in/", endpoint=endpoint), silence=2.0))
        assert greeting.result(60) == b"\x16"  # a handshake of TLS
    assert asked.count("localhost.test") == 1


def test_a_call_that_has_ended_begins_nothing_and_leaves_nothing() -> None:
    async def work() -> None:
        raise AssertionError

    waiting = work()
    ended: Any = SimpleNamespace(ended=True, host="store", config=DeliveryConfig(), check=lambda: None)
    with Loop(ended) as loop, pytest.raises(TruncatedError, match="store"):
        loop.wait(waiting)
    assert inspect.getcoroutinestate(waiting) == inspect.CORO_CLOSED
