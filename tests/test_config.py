import dataclasses
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dai.config import Config, LimitsConfig, ResourceConfig, ServiceConfig, load, parse
from dai.errors import ConfigurationError


def config(document: dict[str, Any], base: Path | str = "/base", **environment: str) -> Config:
    return parse(document, base, environment)


def test_defaults_bind_to_loopback_only() -> None:
    configuration = config({})
    assert configuration.service.host == "127.0.0.1"
    assert configuration.service.loopback
    assert not config({"service": {"host": "0.0.0.0"}}).service.loopback


def test_a_file_with_everything(tmp_path: Path) -> None:
    (tmp_path / "dai.toml").write_text(
        """
        [service]
        port = 9000
        state = "sqlite:///state/jobs.db"
        results_directory = "kept"
        [limits]
        concurrent = 3
        seconds = 5
        [resources.book]
        url = "sqlite:///book.db"
        [resources.notes]
        collections = "xml-store"
        [resources.exports]
        directory = "exports"
        [federations.lab]
        evaluators = ["local"]
        [[federations.lab.sources]]
        alias = "go"
        resource = "goterms"
        """
    )
    configuration = load(tmp_path / "dai.toml", {})
    assert configuration.service.port == 9000
    assert configuration.service.state == f"sqlite:///{tmp_path}/state/jobs.db"
    assert configuration.service.results_directory == tmp_path / "kept"
    assert configuration.limits.concurrent == 3
    assert configuration.limits.seconds == 5.0
    assert configuration.resources["book"].url == f"sqlite:///{tmp_path}/book.db"
    assert [configuration.resources[name].kind for name in ("book", "notes", "exports")] == [
        "database",
        "collections",
        "directory",
    ]
    assert configuration.resources["notes"].collections == f"sqlite:///{tmp_path / 'xml-store'}"
    assert configuration.federations["lab"].content["sources"][0]["alias"] == "go"
    assert configuration.federations["lab"].base == tmp_path


@pytest.mark.parametrize("url", ["sqlite:////var/x.db", "sqlite://", "sqlite:///:memory:", "duckdb:////x.duckdb"])
def test_absolute_and_memory_databases_stay(url: str) -> None:
    assert config({"resources": {"a": {"url": url}}}).resources["a"].url == url


def test_the_environment_overrides() -> None:
    configuration = config(
        {"service": {"port": 1}, "resources": {"My-Book": {"url": "sqlite://"}}},
        DAI_SERVICE__PORT="81",
        DAI_LIMITS__SECONDS="2.5",
        DAI_RESOURCES__MY_BOOK__URL="sqlite:////other.db",
        DAI_RESOURCES__NEW__URL="sqlite:////new.db",
        DAI_CONFIG="no value of ours: one level",
        OTHER__THING="ignored",
    )
    assert configuration.service.port == 81
    assert configuration.limits.seconds == 2.5
    assert configuration.resources["My-Book"].url == "sqlite:////other.db"
    assert configuration.resources["new"].url == "sqlite:////new.db"


def test_secrets_by_reference_are_put_into_the_url_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss/word\n")
    for reference, key in product(("env:DB_PASSWORD", "file:password"), ("url", "collections")):
        resource = config(
            {"resources": {"a": {key: "postgresql://me@db.internal/x", "password": reference}}},
            tmp_path,
            DB_PASSWORD="p@ss/word",
        ).resources["a"]
        assert getattr(resource, key) == "postgresql://me:p%40ss%2Fword@db.internal/x"
        assert "word" not in repr(resource)
        assert "internal" not in repr(resource)


def test_a_whole_url_may_be_a_secret() -> None:
    configuration = config({"resources": {"a": {"url": "env:A_URL"}}}, A_URL="postgresql://u:p@h/d")
    assert configuration.resources["a"].url == "postgresql://u:p@h/d"


RESOURCE = {"resources": {"a": {"url": "sqlite://"}}}


def test_a_switch_is_set_by_file_and_environment() -> None:
    assert config(RESOURCE).resources["a"].read_sockets is True
    for value in (True, False):
        document = {"resources": {"a": {"url": "sqlite://", "read_sockets": value}}}
        assert config(document).resources["a"].read_sockets is value
        for text in (str(value), str(value).lower()):
            assert config(RESOURCE, DAI_RESOURCES__A__READ_SOCKETS=text).resources["a"].read_sockets is value


@pytest.mark.parametrize(
    ("document", "environment", "says"),
    [
        ({"servce": {}}, {}, r"no section \[servce\].*'service'"),
        ({"service": 3}, {}, "must be a section"),
        ({"service": {"prot": 1}}, {}, r"\[service\] has no key 'prot'.*'port'"),
        ({"limits": {"row": 1}}, {}, "no key 'row'.*'rows'"),
        ({}, {"DAI_SERVICE__PROT": "1"}, "'prot'.*DAI_SERVICE__PROT.*'port'"),
        ({}, {"DAI_SERVICE__PORT": "many"}, "service.port must be a whole number, not 'many'"),
        ({"service": {"port": "80"}}, {}, "service.port must be a whole number, not '80'"),
        ({"service": {"port": True}}, {}, "service.port must be a whole number"),
        ({"limits": {"concurrent": 0}}, {}, "limits.concurrent must be more than 0"),
        ({"limits": {"rows": -1}}, {}, "limits.rows must be 0 or more"),
        ({"resources": {"a": 1}}, {}, "must be a section"),
        ({"resources": {"a b": {"url": "sqlite://"}}}, {}, "a name consists of"),
        ({"resources": {"a": {}}}, {}, "needs one of url, files, collections and directory"),
        ({"resources": {"a": {"url": "sqlite://", "directory": "x"}}}, {}, "url and directory"),
        (
            {"resources": {"a": {"collections": "mariadb://h/d"}}},
            {},
            "must be a file, or a URL of SQLite or PostgreSQL",
        ),
        ({"resources": {"a": {"collections": "sqlite://"}}}, {}, "must be a file, or a URL of SQLite or PostgreSQL"),
        ({"resources": {"a": {"ulr": "sqlite://"}}}, {}, "no key 'ulr'.*'url'"),
        ({"resources": {"a": {"url": "nothing like it"}}}, {}, "resources.a.url is not a database URL"),
        (
            {"resources": {"a": {"url": "postgresql://a:pw@127.0.0.1:abc/x"}}},
            {},
            "resources.a.url is not a database URL: in postgresql://127.0.0.1:PORT the port is not a number",
        ),
        ({"service": {"state": "postgresql://h:abc/x"}}, {}, "service.state .* in postgresql://h:PORT the port"),
        ({"replicas": {"catalog": "postgresql://h:abc/x"}}, {}, "replicas.catalog .* in postgresql://h:PORT the port"),
        ({"resources": {"a": {"url": "sqlite://", "pool_size": 0}}}, {}, "pool_size must be more than 0"),
        (
            {"resources": {"a": {"url": "sqlite://", "read_sockets": 1}}},
            {},
            "read_sockets must be true or false, not 1",
        ),
        (RESOURCE, {"DAI_RESOURCES__A__READ_SOCKETS": "no"}, "read_sockets must be true or false, not 'no'"),
        ({"resources": {"a": {"url": "postgresql://h/d", "password": "env:NO"}}}, {}, "variable 'NO' is not set"),
        ({"resources": {"a": {"url": "postgresql://h/d", "password": "file:no"}}}, {}, "'no' cannot be read"),
        ({"resources": {"a": {"url": "sqlite://"}}, "federations": {"a": {}}}, {}, "already a resource of this name"),
        ({"federations": {"a": 1}}, {}, r"'a' must be a section \[federations.NAME\]"),
    ],
)
def test_what_is_wrong_is_said(document: dict[str, Any], environment: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config(document, **environment)
    assert re.search(says, str(caught.value), re.DOTALL), str(caught.value)


def test_a_bad_url_is_not_repeated_in_the_message() -> None:
    with pytest.raises(ConfigurationError) as caught:
        config({"resources": {"a": {"url": "secret-without-scheme"}}})
    assert "secret" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[service\n")
    with pytest.raises(ConfigurationError, match="is not TOML"):
        load(tmp_path / "bad.toml")


SECTIONS = {"service": ServiceConfig, "limits": LimitsConfig, "resources": ResourceConfig}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://a:gehe@im:1@h/x",
        "postgresql://a:gehe@im@h:x/x",
        "postgresql://a:gehe",
        "postgresql://a:gehe@im@127.0.0.1/x",
        "postgresql://a:gehe@i/m@127.0.0.1/x",
        "postgresql://a:gehe@i/m@127.0.0.1",
        "postgresql://a:gehe@i?m@127.0.0.1/x",
        "postgresql://a:ge/he@im@127.0.0.1/x",
        "postgresql://a:54/gehe@im@127.0.0.1",
    ],
)
def test_a_url_that_is_wrong_does_not_show_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not a database URL") as caught:
        config({"resources": {"a": {"url": url}}})
    assert "gehe" not in str(caught.value)
    assert "im" not in str(caught.value)
    assert "An @ in a password is written %40" in str(caught.value)
    for escaped in ("postgresql://a:gehe%40im@127.0.0.1/x?options=a@b&user=a@b", "postgresql://a@127.0.0.1/x@y"):
        assert config({"resources": {"a": {"url": escaped}}}).resources["a"].url == escaped


@pytest.mark.parametrize(("section", "key"), [("replicas", "catalog"), ("registry", "store")])
@pytest.mark.parametrize(("url", "why"), [("sqlite://", "would be lost"), ("mysql://h/x", "not of mysql")])
def test_a_store_is_a_database_that_keeps_it(section: str, key: str, url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{section}.{key} must be a .*{why}"):
        config({section: {key: url}})


NUMBERS = [
    (section, each.name)
    for section, kind in SECTIONS.items()
    for each in dataclasses.fields(kind)
    if each.type in ("int", "float")
]


@pytest.mark.parametrize(
    "value", [-1, 10**30, 10**400, float("inf"), float("nan"), -1.5], ids=lambda value: f"{value!r:.6}"
)
@pytest.mark.parametrize(("section", "key"), NUMBERS)
def test_every_number_has_bounds(section: str, key: str, value: float) -> None:
    values = {key: value}
    document = {section: {"a": {"url": "sqlite://", **values}} if section == "resources" else values}
    with pytest.raises(ConfigurationError, match=rf"{key} must be (0 or more|at most [0-9_]+|a whole number), not "):
        config(document)


@pytest.mark.parametrize(("section", "key"), NUMBERS)
def test_numbers_that_may_be_0_are_those_that_say_so(section: str, key: str) -> None:
    """Fields without ``POSITIVE``: 0 is no limit, nobody waits, any free port, or as many as cores."""
    document = {section: {"a": {"url": "sqlite://", key: 0}} if section == "resources" else {key: 0}}
    may_be_zero = {
        "port",
        "workers",
        "memory_bytes",
        "stuck_seconds",
        "grace",
        "pool_wait",
        "connect_wait",
        "queue",
        "job_queue",
        "sessions",
        "rows",
        "bytes",
    }
    if key in may_be_zero | {"seconds", "execution_seconds", "result_bytes", "resource_jobs", "contexts_memory"}:
        config(document)
        return
    with pytest.raises(ConfigurationError, match=rf"\.{key} must be more than 0"):
        config(document)


def test_a_port_is_one_of_tcp(tmp_path: Path) -> None:
    assert config({"service": {"port": 65_535}}).service.port == 65_535
    with pytest.raises(ConfigurationError, match=r"service\.port must be at most 65_535, not 65536"):
        config({"service": {"port": 65_536}})
    with pytest.raises(ConfigurationError, match=r"service\.port must be at most 65_535"):
        config({}, DAI_SERVICE__PORT="99999")
    with pytest.raises(ConfigurationError, match=r"service\.grace must be at most"):
        config({}, DAI_SERVICE__GRACE="inf")
    (tmp_path / "dai.toml").write_text(f"[service]\nport = {'9' * 5000}\n")
    with pytest.raises(ConfigurationError):
        load(tmp_path / "dai.toml", {})


@pytest.mark.parametrize("origins", [["portal.example.org"], ["https://portal.example.org/"], [""], [3]])
def test_an_origin_has_a_scheme_and_a_host(origins: list[object]) -> None:
    with pytest.raises(ConfigurationError, match="origin"):
        config({"service": {"origins": origins}})
