"""Deliveries whose connections break off again and again: they go on where they were, or fail; never is a byte lost, or
there twice, or of another file."""

import os
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from dai.config import AccountConfig, DeliveryConfig
from dai.drivers.memory import Memory, Script
from dai.errors import DaiError, TruncatedError
from dai.perform.delivery.objects import PART_BYTES
from tests.activities.test_delivery import ROWS_AS_CSV, done, from_url, to_url, work_of
from tests.documents import table
from tests.processes import until
from tests.servers import free_port
from tests.servers.delivery import PASSWORD, USER, Breaks, breaking, ftp_server, object_store, sftp_server

SIZE, AFTER = 12_000_000, 3_000_000
DATA = (b"%015d\n" * (SIZE // 16)) % tuple(range(SIZE // 16))
OTHER = DATA.replace(b"1", b"2")


@dataclass
class Place:
    """A directory of a server that breaks off, or a bucket; ``write`` and ``read`` go to it directly."""

    url: str
    delivery: DeliveryConfig
    write: Callable[[str, bytes], object]
    names: Callable[[], list[str]]
    read: Callable[[str], bytes]


def allowing(url: str, **account: Any) -> DeliveryConfig:
    known = AccountConfig(name="there", url=url, user=USER, password=PASSWORD, **account)
    return DeliveryConfig(urls=(url,), private=True, silence=20.0, accounts={"there": known})


def of_directory(root: Path, url: str, delivery: DeliveryConfig) -> Place:
    def write(name: str, data: bytes) -> None:
        (root / name).write_bytes(data)
        os.utime(root / name, (0, zlib.crc32(data)))  # another second for other data

    return Place(
        url,
        delivery,
        write,
        lambda: [path.name for path in root.iterdir()],
        lambda name: (root / name).read_bytes(),
    )


def http(stack: ExitStack, directory: Path, breaks: Breaks) -> Place:
    """Starlette's files, behind uvicorn."""
    app = Starlette(routes=[Mount("/in", StaticFiles(directory=directory))])
    server = uvicorn.Server(uvicorn.Config(app, port=free_port(), log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    stack.callback(thread.join, 60)
    stack.callback(setattr, server, "should_exit", True)
    until(lambda: server.started)
    url = f"http://127.0.0.1:{stack.enter_context(breaking(server.config.port, breaks))}/in/"
    return of_directory(directory, url, allowing(url))


def sftp(stack: ExitStack, directory: Path, breaks: Breaks) -> Place:
    server = stack.enter_context(sftp_server(directory))
    (server.root / "in").mkdir()
    port = stack.enter_context(breaking(server.port, breaks))
    server.known_hosts.write_text(server.known_hosts.read_text().replace(str(server.port), str(port)))
    url = f"sftp://127.0.0.1:{port}/in/"
    return of_directory(server.root / "in", url, replace(allowing(url), known_hosts=server.known_hosts))


def ftp(stack: ExitStack, directory: Path, breaks: Breaks) -> Place:
    (directory / "in").mkdir()
    url = f"ftp://127.0.0.1:{stack.enter_context(ftp_server(directory, breaks))}/in/"
    return of_directory(directory / "in", url, allowing(url))


def s3(stack: ExitStack, directory: Path, breaks: Breaks) -> Place:
    endpoint, client = stack.enter_context(object_store("results"))
    port = stack.enter_context(breaking(int(endpoint.rpartition(":")[2]), breaks))
    url = "s3://results/in/"
    return Place(
        url,
        allowing(url, endpoint=f"http://127.0.0.1:{port}"),
        lambda name, data: client.put_object(Bucket="results", Key=f"in/{name}", Body=data),
        lambda: [each["Key"] for each in client.list_objects_v2(Bucket="results").get("Contents", [])],
        lambda name: client.get_object(Bucket="results", Key=f"in/{name}")["Body"].read(),
    )


Way = Callable[[ExitStack, Path, Breaks], Place]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def named(parameter: object) -> str:
    return getattr(parameter, "__name__", str(parameter))


@pytest.mark.parametrize("way", [http, sftp, ftp, s3], ids=named)
def test_what_is_read_is_whole(way: Way, stack: ExitStack, tmp_path: Path) -> None:
    breaks = Breaks(AFTER)
    place = way(stack, tmp_path, breaks)
    place.write("large", DATA)
    assert done(from_url(place.url + "large"), place.delivery)[0] == DATA
    assert breaks.count >= SIZE // AFTER - 1


@pytest.mark.parametrize("other", [OTHER, OTHER + b"more", b"less"], ids=len)
@pytest.mark.parametrize("way", [http, sftp, ftp, s3], ids=named)
def test_another_file_meanwhile_is_not_read_on(way: Way, other: bytes, stack: ExitStack, tmp_path: Path) -> None:
    breaks = Breaks(AFTER)
    place = way(stack, tmp_path, breaks)
    place.write("large", DATA)
    breaks.meanwhile = lambda: place.write("large", other)
    with pytest.raises(TruncatedError, match="cannot go on"):
        done(from_url(place.url + "large"), place.delivery)
    assert breaks.count >= 1


@pytest.mark.parametrize("way", [http, sftp, ftp, s3], ids=named)
def test_a_server_that_breaks_off_at_once_is_given_up(way: Way, stack: ExitStack, tmp_path: Path) -> None:
    place = way(stack, tmp_path, Breaks(-1))
    place.write("large", DATA)
    with pytest.raises(DaiError):
        done(from_url(place.url + "large"), place.delivery)


@pytest.mark.parametrize("way", [sftp, s3], ids=named)
def test_what_is_written_is_whole(way: Way, stack: ExitStack, tmp_path: Path) -> None:
    """SFTP goes on at the same byte, a store takes the same part again."""
    rows, breaks = 1_000_000, Breaks(AFTER, 2)
    place = way(stack, tmp_path, breaks)
    with work_of(to_url(place.url + "new"), place.delivery, Memory({"q": Script(table(rows))})) as work:
        work.open().finish()
    written = place.read("new")
    assert len(written) > 2 * PART_BYTES
    assert written == b"id,name\r\n" + b"".join(b"%d,name %d\r\n" % (number, number) for number in range(rows))
    assert [name.rpartition("/")[2] for name in place.names() if "new" in name] == ["new"]
    assert breaks.count == breaks.most


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("way", [ftp], ids=named)
def test_what_cannot_go_on_leaves_no_half_of_it(way: Way, loses: bool, stack: ExitStack, tmp_path: Path) -> None:
    place = way(stack, tmp_path, Breaks(len(ROWS_AS_CSV) // 2, loses=loses))
    place.write("there", b"before")
    with pytest.raises(DaiError):
        done(to_url(place.url + "there"), place.delivery)
    assert (place.names(), place.read("there")) == (["there"], b"before")
