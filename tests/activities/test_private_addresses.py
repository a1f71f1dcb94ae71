"""Private addresses, however they are written, in each way out of the service: refused before anything is called."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dai.config import AccountConfig, DeliveryConfig, MailConfig
from dai.errors import DeniedError, ParameterError, UnreachableError
from tests.activities.test_delivery import done, from_url
from tests.activities.test_mail import mail
from tests.api.test_transfers import from_gdt

SPELLINGS = [
    "127.0.0.1", "127.0.0.1.", "127.1", "0x7f.1", "0x7f000001", "2130706433", "017700000001", "0", "localhost",
    "LOCALHOST.", "[::1]", "[0:0:0:0:0:0:0:1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "[64:ff9b::127.0.0.1]", "[fe80::1%lo]",
]  # fmt: skip
Way = tuple[str, DeliveryConfig]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def by_url(scheme: str, host: str, port: int) -> Way:
    url = f"{scheme}://{host}:{port}/in/"
    account = AccountConfig(name="there", url=url, user="u", password="p")
    config = DeliveryConfig(urls=(url,), accounts={"there": account}, known_hosts=Path("/dev/null"))
    return from_url(url + "x"), config


def by_bucket(_: str, host: str, port: int) -> Way:
    url = "s3://results/in/"
    account = AccountConfig(name="there", url=url, user="u", password="p", endpoint=f"http://{host}:{port}")
    return from_url(url + "x"), DeliveryConfig(urls=(url,), accounts={"there": account})


def by_mail(_: str, host: str, port: int) -> Way:
    everyone = ("@example.org",)
    settings = MailConfig(host=host.strip("[]"), port=port, tls="none", senders=everyone, recipients=everyone)
    return mail(), DeliveryConfig(mail=settings)


def by_transfer(_: str, host: str, port: int) -> Way:
    url = f"http://{host}:{port}/sessions/x"
    return from_gdt(url).replace("came", "e"), DeliveryConfig(urls=(url,))


WAYS = [(by_url, each) for each in ("http", "https", "ftp", "sftp")]
WAYS += [(by_bucket, "s3"), (by_mail, "smtp"), (by_transfer, "gdt")]


DOTLESS = ("s3", "smtp")
"""The operator alone writes their hosts; the resolver knows none with a full stop at its end, which URLs lose."""
CASES = [(*way, host) for way in WAYS for host in SPELLINGS if way[1] not in DOTLESS or not host.endswith(".")]


@pytest.mark.parametrize(("way", "name", "host"), CASES, ids=[f"{name} {host}" for _, name, host in CASES])
def test_the_operator_must_say_that_private_addresses_are_meant(way, name, host, listener):
    body, config = way(name, host, listener.getsockname()[1])
    with pytest.raises(DeniedError, match="private address"):
        done(body, replace(config, silence=20.0))
    with pytest.raises(BlockingIOError):  # nobody called
        listener.accept()


@pytest.mark.parametrize("host", ["①②⑦.⓪.⓪.①", "127。0。0。1", "127.0.0.%31", "[fe80::1%25lo]", "[v1.x]"])
@pytest.mark.parametrize("name", ["http", "ftp", "sftp"])
def test_what_only_looks_like_an_address_is_none(name, host, listener):
    body, config = by_url(name, host, listener.getsockname()[1])
    with pytest.raises((ParameterError, UnreachableError)):
        done(body, replace(config, silence=20.0))
    with pytest.raises(BlockingIOError):
        listener.accept()
