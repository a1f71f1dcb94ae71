"""``dai serve``: what it serves, what it says at its start, and how it ends."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dai.__main__ import main
from dai.commands import OK, USAGE
from dai.commands.output import UsageError
from dai.commands.run import configuration, greeting
from dai.config import Config, IdentityConfig, PolicyConfig, ServiceConfig, parse
from dai.config.resources import ResourceConfig
from dai.config.service import TlsConfig
from dai.errors import ConfigurationError


def test_a_file_or_a_database_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"There is no dai\.toml here") as caught:
        configuration(None, None)
    assert "--config FILE" in (caught.value.hint or "")
    (tmp_path / "dai.toml").write_text('[resources.book]\nurl = "sqlite://"\n')
    (tmp_path / "other.toml").write_text('[resources.other]\nurl = "sqlite://"\n')
    assert list(configuration(None, None).resources) == ["book"]
    assert list(configuration(None, "other.toml").resources) == ["other"]
    assert list(configuration("other.toml", None).resources) == ["other"]
    assert configuration("sqlite:///x.db", None).resources["data"].url == f"sqlite:///{tmp_path}/x.db"
    with pytest.raises(UsageError, match="cannot be used"):
        configuration("sqlite:///x.db", "other.toml")
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("id\n1\n")
    for source in (["a.csv", "b.csv"], ["*.csv"], ["a.csv"], [str(tmp_path)]):
        assert (configuration(source, None).resources["data"].url or "").startswith("files:///?")
    with pytest.raises(ConfigurationError, match=r"there is no file 'c\.csv'"):
        configuration(["a.csv", "c.csv"], None)


def test_writing_is_granted_by_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    served: list[Config] = []
    monkeypatch.setattr("dai.api.server.start.serve", lambda config, announce: served.append(config) or OK)
    assert main(["serve", "sqlite:///x.db"]) == main(["serve", "--write", "sqlite:///x.db"]) == OK
    assert served[0].policy is None
    assert served[1].policy == PolicyConfig(write=("*", "anonymous"))
    (tmp_path / "dai.toml").write_text('[policy]\nread = ["alice"]\n')
    assert main(["serve", "--write"]) == USAGE
    assert "Say in [policy] who may write." in capsys.readouterr().err


BOOK = {"resources": {"book": {"url": "sqlite://"}}}
FILES = ResourceConfig(name="birds", url="files:///?birds=csv%3Abirds.csv")


@pytest.mark.parametrize(
    ("config", "host", "says", "not_said"),
    [
        (Config(), "127.0.0.1", ["serves nothing yet: add [resources.NAME]", "This machine only"], ["Try:"]),
        (
            parse(BOOK),
            "127.0.0.1",
            [
                "book  http://127.0.0.1:8080/resources/book",
                'dai query http://127.0.0.1:8080/book "select 1"',
                "/docs",
                "only read",
            ],
            ["nothing yet", "beyond this machine"],
        ),
        (parse({**BOOK, "policy": {"write": ["anonymous"]}}), "127.0.0.1", ["Try:"], ["only read"]),
        (parse({**BOOK, "policy": {"write": ["*", "alice"]}}), "127.0.0.1", ["only read"], []),
        (
            parse({**BOOK, "policy": {"write": ["alice"]}, "identity": {"methods": ["token"]}}),
            "127.0.0.1",
            ["Try:"],
            ["only read"],
        ),
        (Config(resources={"birds": FILES}), "127.0.0.1", ["Try:"], ["only read", "--write"]),
        (
            Config(service=ServiceConfig(host="0.0.0.0")),
            "0.0.0.0",
            ["at http://127.0.0.1:8080", "beyond this machine, without encryption of its own, and answers everybody."],
            ["This machine only", "0.0.0.0"],
        ),
        (
            Config(
                service=ServiceConfig(host="::", tls=TlsConfig(certificate=Path("a.pem"))),
                identity=IdentityConfig(methods=("token",)),
            ),
            "[::]",
            ["at http://[::1]:8080", "beyond this machine, with TLS, and answers known callers."],
            ["This machine only"],
        ),
        (
            Config(service=ServiceConfig(host="0.0.0.0"), identity=IdentityConfig(methods=("token",), anonymous=True)),
            "0.0.0.0",
            ["answers everybody."],
            ["known callers"],
        ),
    ],
    ids=[
        "nothing",
        "a resource",
        "a resource to write",
        "a resource to write for callers whom nobody identifies",
        "a resource to write for known callers",
        "files",
        "everybody",
        "known callers",
        "known callers and everybody else",
    ],
)
def test_it_says_what_it_serves_and_to_whom(config: Config, host: str, says: list[str], not_said: list[str]) -> None:
    said = greeting(config, f"http://{host}:8080")
    assert all(each in said for each in says), said
    assert not any(each in said for each in not_said), said


@pytest.fixture
def handlers() -> Iterator[None]:
    """Of the signal that ends a service; the command sets its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def serving(monkeypatch: pytest.MonkeyPatch, ends: Callable[[], None]) -> list[Config]:
    """A server that tells its address and ends at once; what it was to serve."""
    served: list[Config] = []

    def serve(config: Config, ready: Callable[[str], Any]) -> int:
        served.append(config)
        ready("http://127.0.0.1:7")
        ends()
        return 3

    monkeypatch.setattr("dai.api.server.start.serve", serve)
    return served


@pytest.mark.usefixtures("handlers")
def test_the_command_line_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = serving(monkeypatch, lambda: None)
    file = tmp_path / "dai.toml"
    file.write_text("[service]\nport = 8081\nworkers = 2\n")
    assert main(["serve", "--config", str(file), "--port", "0", "--host", "127.0.0.1"]) == 3
    assert (served[0].service.host, served[0].service.port, served[0].service.workers) == ("127.0.0.1", 0, 2)
    assert capsys.readouterr().out.startswith("Data service at http://127.0.0.1:7\n")


@pytest.mark.usefixtures("handlers")
def test_a_wanted_stop_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        main(["serve", "sqlite://"])
    assert ended.value.code == OK

    def interrupted() -> None:
        raise KeyboardInterrupt

    serving(monkeypatch, interrupted)
    assert main(["serve", "sqlite://"]) == OK
