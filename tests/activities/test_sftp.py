"""Deliveries by SFTP to a real server, by URL and by the names of GridFTP: who is trusted, what is left behind."""

from collections.abc import Iterator
from dataclasses import replace

import asyncssh
import pytest

from dai.config import AccountConfig, DeliveryConfig
from dai.drivers.memory import Memory, Script
from dai.errors import DataError, DeniedError, NotFoundError, ParameterError
from tests.activities.test_delivery import ROWS_AS_CSV, done, from_url, to_url, work_of
from tests.documents import table
from tests.servers.delivery import PASSWORD, USER, FileServer, sftp_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    directory = tmp_path_factory.mktemp("sftp")
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(directory / "key"))
    key.write_public_key(str(directory / "key.pub"))
    with sftp_server(directory, directory / "key.pub") as server:
        (server.root / "in").mkdir()
        yield server


@pytest.fixture(autouse=True)
def empty(server: FileServer) -> None:
    for path in (server.root / "in").iterdir():
        path.unlink()


def allowing(server: FileServer, **account: object) -> DeliveryConfig:
    url = f"sftp://127.0.0.1:{server.port}/in/"
    known = AccountConfig(name="files", url=url, user=USER, password=PASSWORD)
    return DeliveryConfig(
        urls=(url,),
        private=True,
        silence=30.0,
        known_hosts=server.known_hosts,
        accounts={"files": replace(known, **account)},  # type: ignore[arg-type]
    )


def by_url(server: FileServer, name: str) -> tuple[str, str]:
    url = f"sftp://127.0.0.1:{server.port}/in/{name}"
    return to_url(url), from_url(url)


def by_gftp(server: FileServer, name: str) -> tuple[str, str]:
    at = f'host="127.0.0.1" port="{server.port}" file="/in/{name}"'
    return (
        f'<deliverToGFTP name="d"><fromLocal from="csv"/><toGFTP {at}/></deliverToGFTP>',
        f'<deliverFromGFTP name="d"><fromGFTP {at}/><toLocal name="e"/></deliverFromGFTP>',
    )


@pytest.mark.parametrize("forms", [by_url, by_gftp])
def test_there_and_back(server, forms):
    to, back = forms(server, "new.csv")
    assert done(to, allowing(server)) == []
    assert [path.name for path in (server.root / "in").iterdir()] == ["new.csv"]
    assert (server.root / "in/new.csv").read_bytes().decode() == ROWS_AS_CSV
    assert done(back, allowing(server))[0].decode() == ROWS_AS_CSV
    assert done(to, allowing(server)) == []  # it replaces what is there


def test_large_files_in_pieces(server):
    data = bytes(range(251)) * 20_000
    (server.root / "in/large").write_bytes(data)
    assert done(by_url(server, "large")[1], allowing(server))[0] == data


def test_with_a_key(server):
    key = server.known_hosts.parent / "key"
    done(by_url(server, "new")[0], allowing(server, password=None, key=key))
    assert (server.root / "in/new").exists()


def test_a_file_that_is_not_there(server):
    with pytest.raises(NotFoundError):
        done(by_url(server, "nothing")[1], allowing(server))


@pytest.mark.parametrize("forms", [by_url, by_gftp])
@pytest.mark.parametrize("which", ["no account", "password", "no host key", "other host key", "private", "urls"])
def test_refused(server, forms, which, tmp_path):
    (server.root / "in/there").write_text("before")
    other = tmp_path / "known_hosts"
    public = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    other.write_text(f"[127.0.0.1]:{server.port} {public}")
    config = allowing(server)
    config = {
        "no account": replace(config, accounts={}),
        "password": allowing(server, password="a wrong one"),
        "no host key": replace(config, known_hosts=None),
        "other host key": replace(config, known_hosts=other),
        "private": replace(config, private=False),
        "urls": replace(config, urls=("sftp://127.0.0.1/in/",)),
    }[which]
    for body in forms(server, "there"):
        with pytest.raises(DeniedError) as raised:
            done(body, config)
        assert not any(each in str(raised.value) for each in ("a wrong one", PASSWORD, str(tmp_path)))
    assert (server.root / "in/there").read_text() == "before"
    assert [path.name for path in (server.root / "in").iterdir()] == ["there"]


@pytest.mark.parametrize("name", ["../x", "%2e%2e/x", "a%0ab", "a?b", "", "a%2fb"])
def test_names_refused(server, name):
    for body in by_url(server, name):
        with pytest.raises((DeniedError, ParameterError)):
            done(body, allowing(server))
    assert list((server.root / "in").iterdir()) == []


def test_a_query_that_fails_leaves_nothing(server):
    (server.root / "in/there").write_text("before")
    driver = Memory({"q": Script(table(10), batch_rows=1, fails=DataError("half-way"))})
    with work_of(by_url(server, "there")[0], allowing(server), driver) as work, pytest.raises(DataError):
        work.open().finish()
    assert (server.root / "in/there").read_text() == "before"
    assert [path.name for path in (server.root / "in").iterdir()] == ["there"]
