"""The image cannot be built where the tests run: what can be known about it without an engine."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    text = "\n".join(line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#"))
    lines = text.replace("\\\n", " ").splitlines()
    return [(word.upper(), rest.strip()) for word, _, rest in (line.strip().partition(" ") for line in lines) if word]


@pytest.fixture(scope="module")
def final(instructions: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The instructions of the last stage."""
    last = max(i for i, (word, _) in enumerate(instructions) if word == "FROM")
    return instructions[last:]


def test_every_instruction_is_known(instructions: list[tuple[str, str]]) -> None:
    known = {"FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in instructions} <= known
    assert instructions[0][0] == "FROM"


def test_what_is_copied_exists_and_is_not_ignored(instructions: list[tuple[str, str]]) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sources = [
        source
        for word, rest in instructions
        if word == "COPY" and not rest.startswith("--from=")
        for source in shlex.split(rest)[:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source.split('/')[0]}" in ignored, source


def test_final_image_is_unprivileged_and_has_no_build_tools(final: list[tuple[str, str]]) -> None:
    assert ("USER", "dai") in final
    words = [word for word, _ in final]
    assert words.index("USER") < words.index("ENTRYPOINT")
    installed = " ".join(rest for word, rest in final if word == "RUN")
    assert not re.search(r"gcc|-dev|pkg-config|pip install", installed)


def test_entry_point_and_health_check(final: list[tuple[str, str]]) -> None:
    instructions = dict(final)
    (entry,) = json.loads(instructions["ENTRYPOINT"])
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert entry in scripts
    assert json.loads(instructions["CMD"])[0] == "serve"
    check = json.loads(instructions["HEALTHCHECK"].partition("CMD ")[2])
    assert check[:2] == ["python", "-c"]
    assert "/health/live" in check[2]
    compile(check[2], "HEALTHCHECK", "exec")
