"""Settings of a federation: both forms, and what is wrong said by name."""

import re
from pathlib import Path
from typing import Any

import pytest

from dai import config
from dai.errors import ConfigurationError
from dqp.settings import EvaluatorSettings, ReplicaServiceSettings, SourceSettings, TlsSettings, load, parse

TOML = """
[federations.lab]
evaluators = ["http://127.0.0.1:9001", "http://127.0.0.1:9002"]
memory_bytes = 2_000_000_000
lifetime = 60
[[federations.lab.sources]]
alias = "pg"
url = "http://127.0.0.1:8000/resources/pg"
replicas = ["http://127.0.0.1:8001/resources/pg"]
[[federations.lab.sources]]
alias = "go"
service = "http://127.0.0.1:8081/"
resource = "goterms"
[[federations.lab.sources]]
alias = "lite"
database = "sqlite:///x.sqlite"
[[federations.lab.sources]]
alias = "far"
database = "postgresql://me@host/db"
password = "env:PASSWORD"
[federations.lab.views]
busy = "select * from pg.orders"
[federations.lab.replicas]
"pg.orders" = ["go.orders"]
[federations.lab.functions.blast]
url = "http://127.0.0.1:9000/blast"
"""


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text(TOML)
    configuration = load(tmp_path / "federation.toml", {"PASSWORD": "se/cret"})
    assert configuration.name == "lab"
    assert configuration.evaluators == ("http://127.0.0.1:9001", "http://127.0.0.1:9002")
    assert (configuration.memory_bytes, configuration.lifetime) == (2_000_000_000, 60.0)
    assert configuration.sources == (
        SourceSettings(
            alias="pg",
            url="http://127.0.0.1:8000/resources/pg",
            replicas=("http://127.0.0.1:8001/resources/pg",),
        ),
        SourceSettings(alias="go", url="http://127.0.0.1:8081/resources/goterms"),
        SourceSettings(alias="lite", database=f"sqlite:///{tmp_path}/x.sqlite"),
        SourceSettings(alias="far", database="postgresql://me:se%2Fcret@host/db"),
    )
    assert configuration.views == {"busy": "select * from pg.orders"}
    assert configuration.replicas == {"pg.orders": ("go.orders",)}
    assert configuration.functions == {"blast": {"url": "http://127.0.0.1:9000/blast"}}
    assert configuration.base == tmp_path
    assert "cret" not in repr(configuration)


def test_a_mapping_and_its_short_form() -> None:
    long = load({"sources": [{"alias": "pg", "url": "http://h/pg"}, {"alias": "lite", "database": "sqlite://"}]})
    short = load({"sources": {"pg": "http://h/pg", "lite": {"database": "sqlite://"}}})
    assert long == short
    assert short.sources[1].database == "sqlite://"
    assert short.evaluators == ("local",)


def test_a_replica_service_and_replicas_of_tables() -> None:
    assert load({"replicas": "http://h"}).replica_service == ReplicaServiceSettings(url="http://h")
    written = {"url": "http://h", "token": "s3cret", "services": ["https://m"], "a.t": ["b.t"]}
    both = load({"sources": {"a": "sqlite://", "b": "sqlite://"}, "replicas": written})
    assert both.replica_service == ReplicaServiceSettings(url="http://h", token="s3cret", services=("https://m",))
    assert both.replicas == {"a.t": ("b.t",)}
    assert "s3cret" not in repr(both)


def test_a_service_reads_resources() -> None:
    made = parse(
        {"sources": [{"alias": "go", "resource": "goterms"}]}, name="lab", where="federations.lab", served=TlsSettings()
    )
    assert made.sources == (SourceSettings(alias="go", resource="goterms"),)
    with pytest.raises(ConfigurationError, match="reads resources, not databases"):
        parse({"sources": {"a": "sqlite://"}}, where="federations.lab", served=TlsSettings())


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"surces": []}, "The top level has no key 'surces'.*'sources'"),
        ({"evaluators": "local"}, "evaluators must be a list"),
        ({"evaluators": []}, "evaluators must be a list of texts, at least one"),
        ({"evaluators": [1]}, "evaluators must be a list of texts"),
        ({"memory_bytes": -1}, "memory_bytes must be 0 or more, not -1"),
        ({"memory_bytes": 64_000_000}, "memory_bytes must be at least 100_000_000"),
        ({"memory_bytes": "much"}, "memory_bytes must be a whole number, not 'much'"),
        ({"lifetime": 0}, "lifetime must be more than 0"),
        ({"liveness_timeout": 0}, "liveness_timeout must be more than 0"),
        ({"sources": 3}, "sources must be a list of sections"),
        ({"sources": [{"url": "http://h/x"}]}, r"sources\[1\] has no alias"),
        ({"sources": [{"alias": "a", "uri": "http://h/x"}]}, r"\[sources\[1\]\] has no key 'uri'.*'url'"),
        ({"sources": [{"alias": "a"}]}, "needs one of url, resource and database, but has none"),
        ({"sources": [{"alias": "a", "url": "http://h/x", "database": "sqlite://"}]}, "but has url and database"),
        ({"sources": [{"alias": "a", "service": "http://h"}]}, "service needs resource"),
        ({"sources": [{"alias": "a", "url": "http://h/x", "password": "p"}]}, "a password goes with a database"),
        ({"sources": [{"alias": "a", "database": "postgresql://h/d", "password": "env:NO"}]}, "'NO' is not set"),
        ({"sources": {"a": "nothing"}}, "a: there is no file 'nothing'"),
        ({"sources": {"a": 1}}, "sources.a must be an address or a section"),
        ({"sources": [{"alias": "a", "url": "ftp://h/x"}]}, "is not the address of a resource"),
        ({"sources": {"a": "http://h"}}, "names no resource"),
        ({"sources": {"a": {"url": "http://h/x", "replicas": ["http://h"]}}}, "replicas names no resource"),
        ({"sources": [{"alias": "a", "database": "sqlite://"}] * 2}, "there is already a source 'a'"),
        ({"sources": {"a": "sqlite://", "A": "sqlite://"}}, "there is already a source 'A'"),
        *(
            ({"sources": {alias: "sqlite://"}}, "cannot be an alias")
            for alias in ("main", "a.b", "1a", "a b", "", "a@1")
        ),
        ({"views": {"v": 1}}, "views.v must be a query as text"),
        ({"views": {"a.b": "select 1"}}, "cannot be the name of a view"),
        ({"views": []}, r"\[views\] must be a section"),
        ({"sources": {"a": {"url": "http://u:hush@h/x"}}}, r"^sources\.a\.url has a user or a password"),
        ({"sources": {"a": {"url": "postgresql://u:hush@h/x"}}}, r"^sources\.a\.url has a user or a password"),
        (
            {"sources": {"a": {"url": "postgresql://h/x?password=hush"}}},
            r"^sources\.a\.url is not the address of a resource: 'postgresql://h/x'\.\n.*is its key database\.$",
        ),
        ({"sources": [{"alias": "a", "resource": "r", "password": "hush"}]}, r"^sources\[1\]: a password goes with"),
        ({"sources": {"a": {"urll": "x"}}}, r"^\[sources\.a\] has no key 'urll'"),
        ({"sources": {"a": {"url": "http://h:x/resources/y"}}}, r"^sources\.a\.url is not an address"),
        ({"views": {"Busy": "select 1", "busy": "select 2"}}, "'Busy' and 'busy' are the same name"),
        ({"evaluators": "local"}, "^evaluators must be a list"),
        ({"lifetime": "long"}, "^lifetime must be a number"),
        ({"pushdown": "som"}, "^pushdown must be one of cost, all, none, not 'som'"),
        ({"pushdown": 1}, "^pushdown must be"),
        ({"replicas": {"a": ["b.c"]}}, "'a' is not a table alias.table"),
        ({"sources": {"pg": "sqlite://"}, "replicas": {"pg.t": ["gp.t"]}}, "no source 'gp'.*pg"),
        ({"replicas": 3}, "must be a section, or the address of a replica service, not 3"),
        ({"replicas": "here"}, "replicas.url: 'here' is not the address of a service"),
        ({"replicas": {"alias": "sky"}}, "replicas.url is missing"),
        ({"replicas": {"url": "http://h", "alais": "sky"}}, "no key 'alais'.*'alias'"),
        ({"replicas": {"url": "http://h", "alias": "a b"}}, "replicas.alias: 'a b' cannot be an alias"),
        ({"replicas": {"url": "http://h", "services": ["h"]}}, "replicas.services: 'h' is not the address"),
        ({"replicas": {"url": "http://h", "max_age": 0}}, "replicas.max_age must be more than 0"),
        ({"replicas": {"url": "http://h", "token": "env:NO"}}, "'NO' is not set"),
        ({"sources": {"Replicas": "sqlite://"}, "replicas": "http://h"}, "there is already a source 'replicas'"),
        ({"replica_service": 1}, "Set url in .replicas."),
        ({"functions": {"f": 1}}, "functions.f must be a section"),
        ({"federations": {"a": {}, "b": {}}}, "exactly one .federations.NAME."),
    ],
)
def test_what_is_wrong_is_said(document: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(document, {})
    assert re.search(says, str(caught.value), re.DOTALL), str(caught.value)


def test_a_database_by_its_url_with_a_wrong_port() -> None:
    with pytest.raises(ConfigurationError, match=r"not a database URL: in postgresql://127.0.0.1:PORT the port is not"):
        load("postgresql://a:pw@127.0.0.1:abc/x", {})


def test_errors_name_the_section() -> None:
    with pytest.raises(ConfigurationError, match=r"\[federations.lab\] has no key 'x'"):
        parse({"x": 1}, where="federations.lab")
    with pytest.raises(ConfigurationError, match=r"federations.lab.sources\[2\] has no alias"):
        parse({"sources": [{"alias": "a", "resource": "b"}, {}]}, where="federations.lab")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("= 1")
    with pytest.raises(ConfigurationError, match="is not TOML"):
        load(tmp_path / "bad.toml")


def test_the_liveness_timeout_keeps_its_former_key() -> None:
    assert parse({"sources": {}, "silence": 3}).liveness_timeout == 3.0
    with pytest.raises(ConfigurationError, match="liveness_timeout is already set"):
        parse({"sources": {}, "silence": 3, "liveness_timeout": 4})


@pytest.mark.parametrize("value", [True, False])
def test_an_evaluator_keeps_freed_memory_or_does_not(value: bool) -> None:
    content = {"keep_freed_memory": value}
    assert config.section(EvaluatorSettings, "roles.evaluator", content, Path()).keep_freed_memory is value
