"""Who asks: arguments, the environment, profiles, the keyring; and where a token is never sent or shown."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import keyring
import keyring.backend
import keyring.backends.fail
import pytest

import dai
import dqp
from dai import dbapi
from dai.__main__ import main
from dai.api.server.serve import background
from dai.client.credentials import Personal, options_for
from dai.client.testing import Scripted, ScriptedServer
from dai.commands import OK
from dai.config import parse
from dai.errors import ConfigurationError, DatabaseUnavailableError, ParameterError, RequestError, UnauthenticatedError
from dai.security.identity.tokens import new
from dqp import dbapi as dqp_dbapi
from dqp.catalog.sources.configured import Credentials, service_source
from dqp.settings import FederationSettings, SourceSettings
from tests.client.replies import problem, said

RESOURCE = said({"name": "book", "product": "SQLite 3", "dialect": "sqlite"})
URL = "https://data.example.org/lab"


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TOKEN", "CA", "CERTIFICATE", "KEY", "SIGNING_KEY", "KEY_ID", "PROFILE", "SERVER"):
        monkeypatch.delenv(f"DAI_{name}", raising=False)
    path = tmp_path / "profiles.toml"
    monkeypatch.setenv("DAI_PROFILES", str(path))
    return path


def written(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


@pytest.fixture
def lab(profiles: Path) -> Path:
    written(profiles, f'[lab]\nurl = "{URL}"\ntoken = "of-the-file"\nca = "lab.pem"\nretries = 1\n')
    return profiles


@pytest.mark.parametrize(
    ("given", "environment", "profile", "token"),
    [
        ({}, {}, None, "of-the-file"),
        ({}, {"DAI_TOKEN": "of-the-environment"}, None, "of-the-environment"),
        ({}, {"DAI_TOKEN": "of-the-environment"}, "lab", "of-the-file"),
        ({"token": "of-the-call"}, {"DAI_TOKEN": "of-the-environment"}, "lab", "of-the-call"),
        ({"signing_key": "key.pem"}, {"DAI_TOKEN": "of-the-environment"}, None, None),
    ],
)
def test_what_counts_more(
    lab: Path, monkeypatch: pytest.MonkeyPatch, given: Any, environment: Any, profile: str | None, token: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = options_for(f"{URL}/resources/book", given, profile)
    assert options.get("token") == token
    assert options["ca"] == str(lab.parent / "lab.pem")
    assert options["retries"] == 1


@pytest.mark.parametrize(
    "address",
    [
        "https://data.example.org/laboratory",
        "https://data.example.org",
        "https://data.example.org.evil.example/lab",
        "https://other@data.example.org/lab",
        "http://data.example.org/lab",
        "https://data.example.org:444/lab",
        "https://data.example.org/lab/../other",
        "https://data.example.org/lab/%2e%2E/other",
        "https://data.example.org/lab/..%2fother",
        "https://data.example.org/lab/..\\other",
        "https://data.example.org/lab/..;x/other",
    ],
)
def test_a_profile_is_for_its_addresses_alone(lab: Path, address: str) -> None:
    assert options_for(address, {}) == {}
    with pytest.raises(ConfigurationError, match=r"is for https://data\.example\.org/lab, not for") as caught:
        options_for(address, {}, "lab")
    assert "other@" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[lab\n", "is not TOML"),
        ("[lab]\n", "must be a section with a url"),
        ('[lab]\nurl = "ftp://a"\n', "not the address of a service"),
        ('[lab]\nurl = "http://[a]"\n', "the url of lab: .* is not an address"),
        (f'[lab]\nurl = "{URL}"\nretries = "3"\n', "The profile lab: retries cannot be '3'"),
        (f'[lab]\nurl = "{URL}"\nca = 3\n', "The profile lab: ca cannot be 3"),
        (f'[lab]\nurl = "{URL}"\ntokne = "x"\n', "Did you mean 'token'"),
        (f'[lab]\nurl = "{URL}"\ntoken = "env:NOWHERE"\n', "'NOWHERE' is not set"),
        (f'[lab]\nurl = "{URL}"\ntoken = "file:nowhere"\n', "'nowhere' cannot be read"),
        (f'[lab]\nurl = "{URL}"\ntoken = "keyring:nobody"\n', "keyring set dai nobody"),
    ],
)
def test_mistakes_in_the_file(profiles: Path, text: str, says: str, in_memory: None) -> None:
    written(profiles, text)
    with pytest.raises(ConfigurationError, match=says):
        options_for(f"{URL}/x", {})


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ('ca = "nowhere.pem"', "No such file"),
        ('compression = "lzma"', "Known: zstd"),
        ('signing_key = "k.pem"', "both signing_key and key_id"),
        ('token = "a\\nb"', "characters that a token cannot have"),
    ],
)
def test_what_a_profile_sets_wrongly(profiles: Path, key: str, says: str) -> None:
    written(profiles, f'[lab]\nurl = "{URL}"\n{key}\n')
    with pytest.raises(RequestError, match=rf"(?s){says}.*\nThe profile lab sets {key.partition(' ')[0]}\.$"):
        dai.connect(f"{URL}/book", profile="lab")


def test_credentials_that_a_service_does_not_know(lab: Path) -> None:
    refused = problem(401, type="unauthenticated", detail="The token is unknown.")
    with ScriptedServer(refused) as server:
        written(lab, f'[lab]\nurl = "{server.url}"\ntoken = "env:HOME"\nretries = 0\n')
        with pytest.raises(UnauthenticatedError, match=r"unknown\.\nThe profile lab sets token, retries\.$"):
            dai.connect("book", profile="lab")
        with pytest.raises(UnauthenticatedError, match=r"unknown\.\nThe profile lab sets retries\.$"):
            dai.connect(f"{server.url}/book", token="t")


def test_a_token_that_others_can_read(lab: Path) -> None:
    lab.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others can read"):
        options_for(URL, {})
    lab.write_text(f'[lab]\nurl = "{URL}"\ntoken = "env:HOME"\n')
    assert options_for(URL, {})["token"]


def test_a_file_that_everybody_can_change(lab: Path) -> None:
    """Whoever does could have a token of the keyring sent to an address of their own."""
    written(lab, f'[lab]\nurl = "{URL}"\ntoken = "env:HOME"\n')
    lab.chmod(0o646)
    with pytest.raises(ConfigurationError, match="Everybody can change"):
        options_for(URL, {})


def test_a_keyring_that_cannot_be_read(lab: Path, in_memory: None) -> None:
    written(lab, f'[lab]\nurl = "{URL}"\ntoken = "keyring:lab"\n')
    keyring.set_keyring(keyring.backends.fail.Keyring())
    with pytest.raises(ConfigurationError, match="the keyring cannot be read"):
        options_for(URL, {})


def test_an_unknown_profile(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'lab'"):
        options_for(URL, {}, "lba")


@pytest.fixture
def in_memory() -> Any:
    class InMemory(keyring.backend.KeyringBackend):
        priority = 1  # type: ignore[assignment]

        def get_password(self, service: str, username: str) -> str | None:
            return {("dai", "lab"): "of-the-keyring"}.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            raise NotImplementedError

    before = keyring.get_keyring()
    keyring.set_keyring(InMemory())
    yield
    keyring.set_keyring(before)


def test_every_way_in_has_the_profile(
    profiles: Path, in_memory: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replies = [RESOURCE] * 5 + [said({"resources": []})]
    with ScriptedServer(*replies) as server:
        written(profiles, f'[lab]\nurl = "{server.url}"\ntoken = "keyring:lab"\n')
        resource = dai.connect(f"{server.url}/book")
        dai.connect("book", profile="lab")
        monkeypatch.setenv("DAI_PROFILE", "lab")
        dai.connect("book")
        dbapi.connect(f"{server.url}/book").close()
        lab = dqp.connect(f"{server.url}/book")
        monkeypatch.setenv("DAI_PROFILE", "lab")
        assert main(["resources"]) == OK
        assert [each.headers.get("authorization") for each in server.requests] == ["Bearer of-the-keyring"] * 6
        shown = [resource, resource.service, resource.service.transport.options, lab, capsys.readouterr()]
        assert not [each for each in shown if "of-the-keyring" in f"{each!r}"]


def test_sources_of_a_lab_in_this_process_are_asked_as_by_connect(
    profiles: Path, in_memory: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        with sqlite3.connect(tmp_path / f"{name}.db") as connection:
            connection.execute("create table t (n integer)")
            connection.execute("insert into t values (1)")
        connection.close()
    config = {
        "service": {"port": 0, "state": "sqlite:///state.db", "grace": 0.2},
        "identity": {"methods": ["token"]},
        "resources": {name: {"url": f"sqlite:///{name}.db"} for name in ("one", "two")},
    }
    with background(parse(config, tmp_path, {})) as service:
        token, stored = new("ada", seconds=3600.0)
        service.service.store.add_token(stored)
        sources = {"sources": {name: f"{service.url}/{name}" for name in ("one", "two")}}
        sql = "select one.t.n from one.t join two.t using (n)"

        def asked(**options: Any) -> list[Any]:
            with dqp.connect(sources, **options) as lab:
                return lab.sql(sql).rows()

        with pytest.raises(DatabaseUnavailableError, match="identifies its callers"):
            asked()
        monkeypatch.setenv("DAI_TOKEN", token)
        assert asked() == [(1,)]
        with dqp_dbapi.connect(sources) as connection:
            assert connection.execute(sql).fetchall() == [(1,)]
        monkeypatch.delenv("DAI_TOKEN")
        (tmp_path / "token").write_text(token)
        written(profiles, f'[lab]\nurl = "{service.url}"\ntoken = "file:{tmp_path}/token"\n')
        assert asked() == [(1,)]
        written(profiles, f'[lab]\nurl = "{service.url}/one"\ntoken = "file:{tmp_path}/token"\n')
        with pytest.raises(DatabaseUnavailableError, match="'two' is not available"):
            asked(profile="lab")
        with pytest.raises(ParameterError, match="DAI_TOKEN and profiles apply to all sources"):
            asked(token=token)


def test_the_token_of_the_environment_is_for_sources_that_are_listed(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAI_TOKEN", "of-the-environment")
    listed = SourceSettings(alias="a", url="https://h/a")
    own = SourceSettings(alias="b", url="https://h/b", token="of-the-source")
    settings = FederationSettings(sources=(listed, own))
    credentials = Credentials(settings, person=Personal())
    assert credentials.options(listed, "https://h/a").token == "of-the-environment"
    assert credentials.options(listed, "http://h/a").token is None, "it would travel in the clear"
    assert credentials.options(own, "https://h/b").token == "of-the-source"
    private = service_source(settings, listed, "a", "https://h/a", credentials)
    assert private.private, "evaluators are not sent to it"
    assert not service_source(settings, listed, "a", "http://h/a", credentials).private
    named_by_others = SourceSettings(alias="a", url="https://evil/a")
    assert credentials.options(named_by_others, "https://evil/a").token is None
    assert Credentials(settings).options(listed, "https://h/a").token is None, "the federation of a service"


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(RequestError, match="has a user or a password") as caught:
        dai.connect("http://ada:hidden@127.0.0.1:1/book")
    assert "hidden" not in str(caught.value)


def test_an_empty_environment_has_nobody(profiles: Path) -> None:
    with ScriptedServer(RESOURCE, Scripted()) as server:
        dai.connect(f"{server.url}/book")
        assert "authorization" not in server.requests[0].headers
