"""Deliveries that fail at the beginning, half-way and at the end: the query behind them stops in its database, each
activity says which it was, and nothing is left that looks whole."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from dai.api.server.serve import background
from dai.config import AccountConfig, Config, DeliveryConfig, MailConfig
from dai.drivers import driver_for
from dai.perform.parser import parse
from dai.perform.pipeline import Environment, Running
from dai.perform.response import document
from dai.streams.cancellation import Cancellation
from tests.activities.test_delivery import Handler, Quiet, to_file, to_url
from tests.activities.test_mail import mail
from tests.api.conftest import configured
from tests.api.test_transfers import to_gdt
from tests.documents import Ends, query, statuses, to_csv, written
from tests.faults.databases import maria_database, postgres_database
from tests.processes import until
from tests.servers.delivery import (
    PASSWORD,
    USER,
    Breaks,
    Cut,
    ftp_server,
    mail_server,
    object_store,
    sftp_server,
)

FEW = "select 1 as n union all select 2"
AFTER = {"beginning": 0, "half-way": 3_000_000, "end": 1 << 40}

Case = tuple[str, DeliveryConfig, Callable[[], list[str]]]
"""The delivery, its configuration, and what it has left at its target."""


def account(url: str, **more: object) -> DeliveryConfig:
    known = AccountConfig(name="there", url=url, user=USER, password=PASSWORD, **more)  # type: ignore[arg-type]
    return DeliveryConfig(urls=(url,), private=True, silence=20.0, accounts={"there": known})


def http(stack: ExitStack, directory: Path, when: str) -> Case:
    server = stack.enter_context(Quiet(("127.0.0.1", 0), Handler))
    server.files = {}  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    stack.callback(thread.join, 60)
    stack.callback(server.shutdown)
    port = stack.enter_context(Cut(server.server_port, AFTER[when])).port
    url = f"http://127.0.0.1:{port}/in/"
    stored: dict[str, bytes] = server.files  # type: ignore[attr-defined]
    return to_url(url + "error"), DeliveryConfig(urls=(url,), private=True, silence=20.0), lambda: list(stored)


def smtp(stack: ExitStack, directory: Path, when: str) -> Case:
    server = stack.enter_context(mail_server())
    server.refuses = True
    port = stack.enter_context(Cut(server.port, AFTER[when])).port
    settings = MailConfig(
        host="127.0.0.1", port=port, tls="none", senders=("@example.org",), recipients=("@example.org",), bytes=1 << 40
    )
    config = DeliveryConfig(private=True, silence=20.0, mail=settings)
    return mail(), config, lambda: [each.decode() for each in server.messages]


def sftp(stack: ExitStack, directory: Path, when: str) -> Case:
    server = stack.enter_context(sftp_server(directory))
    (server.root / "in/taken/by").mkdir(parents=True)
    port = stack.enter_context(Cut(server.port, AFTER[when])).port
    server.known_hosts.write_text(server.known_hosts.read_text().replace(str(server.port), str(port)))
    url = f"sftp://127.0.0.1:{port}/in/"
    target = f'<toGFTP host="127.0.0.1" port="{port}" file="/in/taken"/>'
    body = f'<deliverToGFTP name="d"><fromLocal from="csv"/>{target}</deliverToGFTP>'
    return body, replace(account(url), known_hosts=server.known_hosts), lambda: whole(server.root)


def ftp(stack: ExitStack, directory: Path, when: str) -> Case:
    """Half-way it is the connection of the data that breaks off."""
    (directory / "in/taken/by").mkdir(parents=True)
    server = stack.enter_context(ftp_server(directory, Breaks(AFTER[when]) if when == "half-way" else None))
    port = server if when == "half-way" else stack.enter_context(Cut(server, AFTER[when])).port
    url = f"ftp://127.0.0.1:{port}/in/"
    return to_url(url + "taken"), account(url), lambda: whole(directory)


def s3(stack: ExitStack, directory: Path, when: str) -> Case:
    """In the end it turns out that there is no such bucket."""
    endpoint, client = stack.enter_context(object_store("failures"))
    after = {**AFTER, "half-way": 30_000_000}[when]  # the first parts have arrived
    port = stack.enter_context(Cut(int(endpoint.rpartition(":")[2]), after)).port
    url = "s3://failures/in/" if when != "end" else "s3://nothing/in/"
    return (
        to_url(url + "x"),
        account(url, endpoint=f"http://127.0.0.1:{port}"),
        lambda: [each["Key"] for each in client.list_objects_v2(Bucket="failures").get("Contents", [])],
    )


def whole(directory: Path) -> list[str]:
    """The files, without the parts that a lost connection left: their names say what they are."""
    return [each.name for each in directory.rglob("*") if each.is_file() and ".part-" not in each.name]


def file(stack: ExitStack, directory: Path, when: str) -> Case:
    name = {"beginning": "../x", "half-way": "nowhere/x", "end": "taken"}[when]
    (directory / "taken/by").mkdir(parents=True)
    return to_file(name), DeliveryConfig(directory=directory), lambda: whole(directory)


def file_url(stack: ExitStack, directory: Path, when: str) -> Case:
    name = {"beginning": "%2e%2e/x", "half-way": "nowhere/x", "end": "taken"}[when]
    (directory / "taken/by").mkdir(parents=True)
    return to_url(f"file:///{name}"), DeliveryConfig(directory=directory), lambda: whole(directory)


def gdt(stack: ExitStack, directory: Path, when: str) -> Case:
    """Nobody reads the stream: half-way its connection breaks off, in the end its session ends."""
    service = stack.enter_context(background(configured(directory, {"files": {"directory": str(directory)}})))
    client = stack.enter_context(httpx.Client(base_url=service.url, timeout=60))
    session = client.post("/sessions").headers["location"]
    port = stack.enter_context(Cut(int(service.url.rpartition(":")[2]), AFTER[when])).port
    if when == "end":

        def leave() -> None:
            until(lambda: client.get(session).json()["streams"])
            client.delete(session)

        thread = threading.Thread(target=leave)
        thread.start()
        stack.callback(thread.join, 60)
    url = f"http://127.0.0.1:{port}{session}"

    def ended() -> list[str]:
        there = client.get(session)
        return [each["name"] for each in there.json()["streams"] if each["ended"]] if when != "end" else []

    return to_gdt(url, "full", "csv").replace('"deliver"', '"d"'), DeliveryConfig(urls=(url,), private=True), ended


def data_store(stack: ExitStack, directory: Path, when: str) -> Case:
    """It keeps what its failing reader has not taken, and takes all of the query."""
    body, delivery, left = http(stack, directory, when)
    store = '<dataStore name="store"><input from="csv"/><itemCursor name="kept"/></dataStore>'
    return store + body.replace('"csv"', '"kept"'), delivery, left


def resource_property(stack: ExitStack, directory: Path, when: str) -> Case:
    target = '<resourceProperty name="latest"/>'
    body = f'<deliverToResourceProperty name="d"><input from="csv"/>{target}</deliverToResourceProperty>'
    return body, DeliveryConfig(), list


WAYS = (http, smtp, sftp, ftp, s3, gdt, file, file_url, data_store)
CASES = [
    *((way, when, "postgres") for way in WAYS for when in AFTER),
    (resource_property, "half-way", "postgres"),
    *((way, "half-way", "mariadb") for way in (*WAYS, resource_property)),
]
Way = Callable[[ExitStack, Path, str], Case]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(("way", "when", "kind"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_the_query_stops(
    way: Way,
    when: str,
    kind: str,
    stack: ExitStack,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    body, delivery, left = way(stack, tmp_path, when)
    driver = driver_for(request.getfixturevalue(f"{kind}_url"))
    stack.callback(driver.close)
    server = request.getfixturevalue(kind)
    database = postgres_database(server) if kind == "postgres" else maria_database(server)
    content = query("q", FEW if when == "end" else database.endless, "t") + to_csv("c", "t", "csv") + body
    environment = Environment(driver, Ends(), Cancellation(), config=Config(delivery=delivery))
    with Running(parse(written(content)), environment) as work:
        failed: list[float] = []

        def watch() -> None:
            until(lambda: work.cause)
            failed.append(time.monotonic())

        watcher = threading.Thread(target=watch)
        watcher.start()
        response = b"".join(document(work.open(), "s", "r"))
        watcher.join()
        until(lambda: database.at_work == 0)
        record_property("seconds until the query had stopped", time.monotonic() - failed[0])
    status = statuses(response)
    assert (status["d"], status["request"]) == ("ERROR", "ERROR"), response.decode()
    others = set(status) - {"d", "request"}
    assert when == "end" or {status[each] for each in others} == {"TERMINATED"}, response.decode()
    assert PASSWORD not in response.decode()
    assert left() == []
