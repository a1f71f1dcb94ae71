"""The pages of docs name every key with its default, every call and option, and no other; their links are true."""

from __future__ import annotations

import argparse
import dataclasses
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dai.__main__
import dqp.__main__
from dai.api.app import create_app
from dai.config import (
    AuditConfig,
    IdentityConfig,
    LimitsConfig,
    PolicyConfig,
    QuotaConfig,
    RegistryConfig,
    ResourceConfig,
    ServiceConfig,
    TelemetryConfig,
    TlsConfig,
    parse,
)
from dai.config.identity import CertificateConfig, JwtConfig, KeyConfig, SignaturesConfig, SubjectConfig
from dqp.execution.service_calls import Operation
from dqp.settings import EvaluatorSettings, FederationSettings, RegistrySettings, ReplicaServiceSettings, SourceSettings

ROOT = Path(__file__).parents[1]
SERVICE = (ROOT / "docs" / "service.md").read_text()
REPLICAS = (ROOT / "docs" / "replicas.md").read_text()
REGISTRY = (ROOT / "docs" / "registry.md").read_text()
IDENTITY = (ROOT / "docs" / "identity.md").read_text()
FEDERATIONS = (ROOT / "docs" / "federations" / "reference.md").read_text()


def _rows(text: str, heading: str) -> dict[str, str]:
    """Of the table behind ``heading``: key to what is written as its default."""
    _, actual, after = text.partition(f"{heading}\n")
    assert actual, heading
    table = re.split(r"\n\n(?!\|)", after.partition("\n#")[0].lstrip("\n"), maxsplit=1)[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (?:`(.*?)` )?", table, re.MULTILINE)
    return {key: default for keys, default in rows for key in re.findall(r"`(\w+)`", keys)}


def _fields(kind: Any, *without: str) -> dict[str, Any]:
    return {each.name: each.default for each in dataclasses.fields(kind) if each.name not in without}


@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        pytest.param(_rows(SERVICE, "### `[service]`"), _fields(ServiceConfig), id="service"),
        pytest.param(_rows(SERVICE, "### `[limits]`"), _fields(LimitsConfig), id="limits"),
        pytest.param(
            _rows(SERVICE, "### `[resources.NAME]`"),
            _fields(ResourceConfig, "name", "environment") | {"files": None},
            id="resources",
        ),
        pytest.param(
            _rows(SERVICE, "### `[resources.NAME.policy]`"),
            _fields(PolicyConfig) | dict.fromkeys(("rows", "bytes", "seconds", "urls", "directory")),
            id="policy",
        ),
        pytest.param(
            _rows(SERVICE, "### `[identity]`"),
            _fields(IdentityConfig, "jwt", "signatures", "certificate"),
            id="identity",
        ),
        pytest.param(_rows(IDENTITY, "### Keys of `[identity.jwt]`"), _fields(JwtConfig), id="jwt"),
        pytest.param(
            _rows(IDENTITY, "### Keys of `[identity.signatures]`"),
            _fields(SignaturesConfig, "keys"),
            id="signatures",
        ),
        pytest.param(
            _rows(IDENTITY, "### Keys of `[identity.signatures.keys.ID]`"),
            _fields(KeyConfig, "id"),
            id="keys",
        ),
        pytest.param(
            _rows(IDENTITY, "### Keys of `[identity.certificate]`"),
            _fields(CertificateConfig, "subjects"),
            id="certificate",
        ),
        pytest.param(
            _rows(IDENTITY, '### Keys of `[identity.certificate.subjects."CN=alice,O=Lab"]`'),
            _fields(SubjectConfig, "subject"),
            id="subjects",
        ),
        pytest.param(_rows(SERVICE, "### `[service.tls]`"), _fields(TlsConfig), id="tls"),
        pytest.param(_rows(SERVICE, "### `[quotas]`"), _fields(QuotaConfig), id="quotas"),
        pytest.param(_rows(REGISTRY, "## Keys of `[registry]`"), _fields(RegistryConfig, "policy"), id="registry"),
        pytest.param(_rows(SERVICE, "### `[audit]`"), _fields(AuditConfig), id="audit"),
        pytest.param(_rows(SERVICE, "### `[telemetry]`"), _fields(TelemetryConfig), id="telemetry"),
        pytest.param(
            _rows(FEDERATIONS, "### Keys of a federation"),
            _fields(FederationSettings, "name", "base", "tls", "replica_service", "evaluator_registry") | {"tls": None},
            id="federations",
        ),
        pytest.param(
            _rows(FEDERATIONS, "### Keys of a replica service"),
            _fields(ReplicaServiceSettings) | {"url": None, "services": None},
            id="replica service",
        ),
        pytest.param(
            _rows(FEDERATIONS, "#### Keys of `registry`"),
            _fields(RegistrySettings) | {"url": None, "allow": None},
            id="replica service",
        ),
        pytest.param(
            _rows(FEDERATIONS, "### Keys of a function"),
            {**_fields(Operation, "name", "types", "result"), "arguments": None, "returns": None},
            id="functions",
        ),
        pytest.param(
            _rows(FEDERATIONS, "### Keys of an evaluator"),
            _fields(EvaluatorSettings, "tls") | {"sources": None},
            id="evaluators",
        ),
    ],
)
def test_keys_and_their_defaults(rows: dict[str, str], fields: dict[str, Any]) -> None:
    assert rows.keys() == fields.keys()
    for key, written in rows.items():
        default = fields[key]
        if not written:
            assert default in (None, ()) or default is dataclasses.MISSING, key
            continue
        expected = str(default) if isinstance(default, Path) else default
        value = tomllib.loads(f"value = {written}")["value"]
        assert (tuple(value) if isinstance(value, list) else value) == expected, key


def test_keys_of_a_source() -> None:
    written = _fields(SourceSettings).keys() | {"service", "password"}
    assert _rows(FEDERATIONS, "### Keys of a source").keys() == written


def test_every_call() -> None:
    calls = r"^\| `((?:GET|POST|PUT|PATCH|DELETE) [^`]*)` \|"
    described = re.findall(calls, SERVICE + REPLICAS + REGISTRY, re.MULTILINE)
    paths = create_app().openapi()["paths"]
    assert sorted(described) == sorted(
        f"{method.upper()} {path}" for path, methods in paths.items() for method in methods
    )


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, set[str]]]:
    """Each command with its options."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                given = (option for each in command._actions for option in each.option_strings)
                yield f"{parser.prog} {name}", set(given) - {"-h", "--help"}


@pytest.mark.parametrize(
    ("text", "parser"),
    [
        pytest.param(SERVICE, dai.__main__.parser(), id="dai"),
        pytest.param(FEDERATIONS, dqp.__main__.parser(), id="dqp"),
    ],
)
def test_every_command_and_option(text: str, parser: argparse.ArgumentParser) -> None:
    commands = dict(_options(parser))
    described = {name: row for row, name in re.findall(r"^(\| `(d\w\w [\w-]+).*)$", text, re.MULTILINE)}
    assert described.keys() == commands.keys()
    shared = {"--server", "--format", "--output", "--blocksize"}
    paragraphs = " ".join(line for line in text.splitlines() if not line.startswith("|"))
    for name, options in commands.items():
        for option in options:
            assert option in described[name] or (option in shared and f"`{option}" in paragraphs), f"{name} {option}"
    known = set().union(*commands.values(), {"--version", "--help", "--explain", "--analyze"})
    assert {each for row in described.values() for each in re.findall(r"--[a-z-]+", row)} <= known


@pytest.mark.parametrize(
    "page",
    sorted(ROOT.glob("docs/**/*.md")) + [ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CHANGELOG")],
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_safe_service_is_one(tmp_path: Path) -> None:
    """Its configuration is read, asks who calls, and lets nobody write."""
    text = (ROOT / "docs" / "security.md").read_text()
    document = tomllib.loads(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])
    config = parse(document, base=tmp_path, environment={"BOOK_PASSWORD": "x"})
    policy = config.resources["book"].policy
    assert (config.identity.methods, config.identity.anonymous) == (("token",), False)
    assert policy is not None
    assert (policy.read, policy.write) == (("group:staff",), ())


def test_the_site_is_built(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every page is in it, and every Python name of the reference is there. Its own theme takes five seconds of a
    processor more: it is used where all tests run."""
    theme = ["-D", "html_theme=basic"] if request.config.getoption("markexpr") == "not server" else []
    ended = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", *theme, "docs", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    reference = (tmp_path / "reference" / "python.html").read_text()
    for name in ("dai.connect", "dai.client.service.Resource.query", "dqp.interfaces.lab.Lab.sql"):
        assert f'id="{name}"' in reference
