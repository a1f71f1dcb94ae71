"""Secrets: planted wherever a configuration takes one, looked for in everything that leaves the service."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy.engine import URL, make_url

import dqp  # noqa: F401 - federations
from dai.__main__ import main
from dai.api.server.serve import background
from dai.config import parse
from dai.security.identity.tokens import new
from tests.api.conftest import DOCUMENT, XML, statement
from tests.processes import until

PLACES = (
    "resources.lab.password",
    "resources.away.url",
    "resources.replicated.replicas",
    "resources.replicated.url",
    "delivery.accounts.web.password",
    "delivery.accounts.web.token",
    "delivery.accounts.store.password",
    "delivery.mail.password",
    "federations.all.sources[1].token",
    "federations.all.replicas.token",
    "federations.apart.token",
    "identity.certificate.secret",
    "replicas.token",
    "resources.mapped.roles",
    "resources.notes.collections",
    "telemetry.headers.authorization",
)
SECRETS = {place: f"planted-{number}-Zx9-of-the-tests" for number, place in enumerate(PLACES)}
ENVIRONMENT = {f"SECRET_{number}": secret for number, secret in enumerate(SECRETS.values())}


def reference(place: str) -> str:
    return f"env:SECRET_{PLACES.index(place)}"


def document(directory: Path, url: str) -> dict[str, Any]:
    """``url``: of a PostgreSQL, without a password, for a user whose password is that of ``resources.lab``. Nothing
    listens on port 9."""

    def with_password(of: str, place: str) -> str:
        return of.replace("@", f":{SECRETS[place]}@", 1)

    return {
        "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": str(directory / "results")},
        "audit": {"file": "audit.jsonl", "opentelemetry": True},
        "telemetry": {
            "endpoint": "http://127.0.0.1:9",
            "headers": {"authorization": reference("telemetry.headers.authorization")},
        },
        "identity": {
            "methods": ["token", "certificate"],
            "certificate": {"proxies": ["192.0.2.1"], "secret": reference("identity.certificate.secret")},
        },
        "replicas": {
            "catalog": "sqlite:///replicas.db", "url": "https://c", "indexes": ["http://127.0.0.1:9"],
            "token": reference("replicas.token"), "change_seconds": 0.05,
        },
        "resources": {
            "lab": {"url": url, "password": reference("resources.lab.password")},
            "away": {
                "url": with_password("postgresql://u@127.0.0.1:9/x", "resources.away.url"),
                "connect_wait": 0.1, "pool_wait": 0.1,
            },
            "replicated": {
                "url": with_password(url, "resources.replicated.url"),
                "replicas": [with_password("postgresql://u@127.0.0.1:9/x", "resources.replicated.replicas")],
            },
            "mapped": {"url": url, "roles": "roles.toml"},
            "notes": {
                "collections": with_password("postgresql://u@127.0.0.1:9/x", "resources.notes.collections"),
                "connect_wait": 0.1, "pool_wait": 0.1,
            },
        },
        "delivery": {
            "urls": ["http://127.0.0.1:9/", "s3://bucket/"],
            "private": True,
            "accounts": {
                "web": {
                    "url": "http://127.0.0.1:9/x", "user": "u", "password": reference("delivery.accounts.web.password"),
                },
                "service": {"url": "http://127.0.0.1:9/y", "token": reference("delivery.accounts.web.token")},
                "store": {
                    "url": "s3://bucket/", "user": "key", "password": reference("delivery.accounts.store.password"),
                    "endpoint": "http://127.0.0.1:9",
                },
            },
            "mail": {
                "host": "127.0.0.1", "port": 9, "user": "u", "password": reference("delivery.mail.password"),
                "senders": ["a@example.org"], "recipients": ["@example.org"],
            },
        },
        "federations": {
            "all": {
                "replicas": {"url": "http://127.0.0.1:9", "token": reference("federations.all.replicas.token")},
                "sources": [
                    {"alias": "lab", "resource": "lab"},
                    {
                        "alias": "far", "url": "http://127.0.0.1:9/resources/x",
                        "token": reference("federations.all.sources[1].token"),
                    },
                ]
            },
            "apart": {
                "sources": [{"alias": "lab", "resource": "lab"}],
                "evaluators": ["http://127.0.0.1:9/resources/evaluator"],
                "token": reference("federations.apart.token"),
            },
        },
    }  # fmt: skip


def delivered(to: str) -> str:
    return DOCUMENT.format(
        statement("select 1 as a")
        + '<sqlResultsToXML name="c"><resultSet from="rows"/><webRowSet name="xml"/></sqlResultsToXML>'
        + f'<deliverToURL name="d"><fromLocal from="xml"/><toURL>{to}</toURL></deliverToURL>'
    )


def requests(client: httpx.Client) -> Iterator[httpx.Response]:
    """Whatever says much, and whatever fails."""
    for name in ("lab", "away", "replicated", "all", "apart", "mapped", "notes"):
        yield client.get(f"/resources/{name}")
        yield client.get(f"/resources/{name}/schema")
        yield client.get(f"/resources/{name}/alive")
        for sql in (
            "select 1 as a",
            "select nothing",
            "explain select 1",
            "explain (format json) select * from lab.pg_catalog.pg_roles",
            "select * from far.t",
            "select * from replicas.people",
            "select current_user",
        ):
            yield client.post(f"/resources/{name}/query", json={"sql": sql})
        yield client.post(f"/resources/{name}/perform", content=DOCUMENT.format(statement("select 1/0")), headers=XML)
    for address in (
        "http://127.0.0.1:9/x",
        "http://127.0.0.1:9/y",
        "http://127.0.0.1:9/z",
        "s3://bucket/a",
        "s3://no/a",
    ):
        yield client.post("/resources/lab/perform", content=delivered(address), headers=XML)
    yield client.post("/replicas/mappings", json={"mappings": [{"logical": "a", "target": "b"}]})
    yield client.post("/replicas/indexes", json={"url": "http://127.0.0.1:9/x"})
    for path in (
        "/jobs",
        "/replicas",
        "/replicas/indexes",
        "/metrics",
        "/openapi.json",
        "/resources",
        "/health/ready",
        "/schemas",
    ):
        yield client.get(path)
    job = client.post("/resources/lab/query", json={"sql": "select nothing"}, headers={"Prefer": "respond-async"})
    until(lambda: client.get(job.headers["location"]).json()["phase"] == "ERROR")
    yield client.get(job.headers["location"])


def test_no_secret_leaves_the_service(
    tmp_path: Path, postgres_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create role planted login password '{SECRETS['resources.lab.password']}'")
    try:
        look_everywhere(tmp_path, postgres_url, caplog, monkeypatch)
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("drop role planted")


def broken(*_: object) -> None:
    raise RuntimeError("a mistake of ours")


def look_everywhere(
    directory: Path, postgres_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "roles.toml").write_text(
        f'[[mapped]]\ncaller = "alice"\nuser = "planted"\npassword = "{reference("resources.mapped.roles")}"\n'
    )
    caplog.set_level(logging.DEBUG)
    for library in ("httpx", "httpcore"):  # the test's own client
        caplog.set_level(logging.WARNING, library)
    url = make_url(postgres_url)
    url = URL.create("postgresql", "planted", host=url.host, port=url.port, database=url.database)
    config = parse(document(directory, url.render_as_string()), directory, ENVIRONMENT)
    token, stored = new("alice", 3600, administrator=True)
    told: list[str] = [repr(config), str(config)]
    with background(config) as running:
        running.service.store.add_token(stored)
        with httpx.Client(base_url=running.url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
            answers = list(requests(client))
            monkeypatch.setattr(type(running.service.resources["lab"].driver), "statistics", broken)
            answers.append(client.get("/resources/lab/statistics?table=t"))
            replicas = running.service.replicas
            assert replicas is not None
            until(lambda: "an index was not told" in caplog.text)
            told.append(repr(vars(replicas)))
        told += [text for each in answers for text in (each.text, repr(each.headers))]
        told += [repr(vars(each)) for each in running.service.resources.values()]
    assert any("database-unavailable" in each for each in told)
    assert "a mistake of ours" in caplog.text
    assert "a mistake of ours" not in "".join(each.text for each in answers)
    assert any(each.is_success and "/lab/query" in str(each.url) and "planted" in each.text for each in answers)
    told += [caplog.text, *(repr(vars(record)) for record in caplog.records)]
    files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert {"state.db", "audit.jsonl"} <= {path.name for path in files}
    for place, secret in {**SECRETS, "the token": token}.items():
        assert not [text for text in told if secret in text], place
        assert not [path.name for path, content in files.items() if secret.encode() in content], place


def test_check_config_says_where_secrets_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("planted-file\n")
    (tmp_path / "key").chmod(0o640)
    (tmp_path / "open").write_text("planted-file\n")
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "dai.toml").write_text(
        '[resources.a]\nurl = "sqlite:///a.db"\npassword = "env:SECRET_A"\n'
        '[resources.b]\nurl = "sqlite:///b.db"\npassword = "file:key"\n'
        '[resources.c]\nurl = "sqlite:///c.db"\npassword = "planted-here"\n'
        '[resources.d]\nurl = "sqlite:///d.db"\n'
        '[resources.f]\nurl = "sqlite:///d.db"\npassword = "file:open"\n'
        '[resources.e]\nurl = "postgresql://u:planted-in-url@127.0.0.1:9/x"\nconnect_wait = 0.1\npool_wait = 0.1\n'
    )
    for name in "abcd":
        (tmp_path / f"{name}.db").touch()
    monkeypatch.setenv("SECRET_A", "planted-env")
    monkeypatch.setenv("DAI_RESOURCES__D__PASSWORD", "planted-over")
    main(["check-config", str(tmp_path / "dai.toml")])
    output = capsys.readouterr()
    said = [line.strip() for line in output.out.splitlines() if "secret" in line]
    assert said == [
        "secret resources.a.password: from the environment variable SECRET_A",
        "secret resources.b.password: from the file key",
        "secret resources.c.password: from the configuration itself",
        "secret resources.d.password: from the environment variable DAI_RESOURCES__D__PASSWORD",
        "secret resources.f.password: from the file open, which everybody on this machine may read",
        "secret resources.e.url: from the configuration itself",
    ]
    assert "planted" not in output.out + output.err
