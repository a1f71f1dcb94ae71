#!/usr/bin/env python3
"""Writes the pages of docs/reference that come from the code: commands from their parsers, keys of the configuration
from its classes, calls from schemas/openapi.json. Usage: scripts/reference.py [--check]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dai.__main__
import dqp.__main__
from dai.config import MOST, Config
from dqp.settings import FederationSettings

ROOT = Path(__file__).parents[1]
PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}
NOT_WRITTEN = {"name", "content", "base", "environment", "host", "identifies"}
"""Fields of named sections that are no keys."""
WRITTEN = {"replica_service": "replicas", "evaluator_registry": "evaluators", "sources.NAME": "[sources]"}
"""Sections of a federation as a file has them."""
FIRST = "`scripts/reference.py` writes this page from the code."


# --- commands ---


def commands() -> str:
    lines = ["# Commands", "", f"{FIRST} [service.md](../service.md#commands) has examples and exit codes.", ""]
    for root in (dai.__main__.parser(), dqp.__main__.parser()):
        for parser in _leaves(root):
            lines += [f"## {parser.prog}", "", *_command(parser)]
    return "\n".join(lines)


def _leaves(parser: argparse.ArgumentParser, said: str = "") -> Iterator[argparse.ArgumentParser]:
    below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not below:
        parser.description = parser.description or said
        yield parser
    for action in below:
        helps = {each.dest: each.help or "" for each in action._choices_actions}
        for name, each in action.choices.items():
            yield from _leaves(each, helps.get(name, ""))


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    if parser.description:
        yield from (_sentence(parser.description), "")
    actions = [each for each in parser._actions if not isinstance(each, argparse._HelpAction)]
    words = [_word(each) for each in actions if not each.option_strings]
    options = ["[options]"] if len(words) < len(actions) else []
    yield from ("```text", " ".join([parser.prog, *options, *words]), "```", "")
    if actions:
        yield from ("| | |", "| --- | --- |")
        for each in actions:
            value = "" if each.nargs == 0 or each.choices else f" {each.metavar or each.dest.upper()}"
            name = ", ".join(each.option_strings) + value if each.option_strings else str(each.metavar or each.dest)
            said = [each.help % {**vars(each), "prog": parser.prog}] if each.help else []
            said += [f"one of {', '.join(map(str, each.choices))}"] if each.choices else []
            if not said:
                raise SystemExit(f"{parser.prog} {name} has no help.")
            yield f"| `{name}` | {_cell('; '.join(said))} |"
        yield ""
    if parser.epilog:
        yield from (" ".join(parser.epilog.split()), "")


def _word(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ..."}.get(str(action.nargs), name)


# --- configuration ---


def configuration() -> str:
    lines = [
        "# Configuration",
        "",
        f"{FIRST} It lists every key with its type and default;",
        "[service.md](../service.md) and [federations](../federations/reference.md) explain the keys.",
        "Numbers are at least 0. Unless a table says otherwise, whole ones are at most 2⁵³,",
        f"others {MOST[float]:,.0f}.",
        "",
    ]
    for name, kind in typing.get_type_hints(Config).items():
        lines += _section(name, kind)
    lines += ["## federation.toml, or [federations.NAME]", "", *_keys(FederationSettings, "", {"name", "base"})]
    return "\n".join(lines)


def _section(path: str, kind: Any) -> Iterator[str]:
    """A section with those within it."""
    inner, named = _class_of(kind)
    if inner is None:
        return
    path += ".NAME" if named else ""
    path = WRITTEN.get(path, path)
    yield from (f"## [{path}]", "")
    yield from _keys(inner, path, NOT_WRITTEN if named else set())


def _keys(kind: Any, path: str, hidden: set[str]) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", (kind.__doc__ or "").strip()):
        yield from (re.sub(r"``(.+?)``", r"`\1`", " ".join(paragraph.split())), "")
    hints, rows, below = typing.get_type_hints(kind), [], []
    for each in dataclasses.fields(kind):
        if each.name in hidden:
            continue
        if _class_of(hints[each.name])[0] is not None:
            below.append((f"{path}.{each.name}".lstrip("."), hints[each.name]))
            continue
        bounds = [f"at most {each.metadata['most']:,}"] if "most" in each.metadata else []
        bounds += ["not 0"] if each.metadata.get("positive") else []
        rows.append(f"| `{each.name}` | {', '.join([_type(hints[each.name]), *bounds])} | {_default(each)} |")
    if rows:
        yield from ("| key | type | default |", "| --- | --- | --- |", *rows, "")
    for place, inner in below:
        yield from _section(place, inner)


def _class_of(kind: Any) -> tuple[Any, bool]:
    """The class of a section, and whether there may be several with names."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    for each in options:
        arguments = typing.get_args(each)
        if dataclasses.is_dataclass(each):
            return each, False
        if arguments and dataclasses.is_dataclass(arguments[-1] if arguments[-1] is not ... else arguments[0]):
            return (arguments[-1] if arguments[-1] is not ... else arguments[0]), True
    return None, False


def _type(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        return " or ".join(_type(each) for each in typing.get_args(kind) if each is not type(None))
    if typing.get_origin(kind) is tuple:
        return f"list: {_type(typing.get_args(kind)[0])}"
    if isinstance(typing.get_origin(kind), type) and issubclass(typing.get_origin(kind), Mapping):
        return "section"
    return PLAIN.get(kind, "any")


def _default(field: Any) -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default if field.default is not dataclasses.MISSING else field.default_factory()
    if value is None or value in ({}, (), ""):
        return ""
    shown = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
    return f"`{json.dumps(shown)}`"


# --- HTTP ---


def http() -> str:
    described = json.loads((ROOT / "schemas" / "openapi.json").read_text())
    lines = [
        "# HTTP",
        "",
        f"{FIRST} A running service shows the same, with forms, at `/docs`. [curl](../how-to/curl.md) has examples,",
        "and [errors](errors.md) lists the problem documents. Every call may answer 400, 401, 403, 431, 500 and 503.",
        "",
    ]
    always = {"400", "401", "403", "431", "500", "503"}
    by_tag: dict[str, list[tuple[str, str, Any]]] = {}
    for path, calls in described["paths"].items():
        for method, call in calls.items():
            if isinstance(call, dict) and "responses" in call:
                by_tag.setdefault((call.get("tags") or ["service"])[0], []).append((path, method, call))
    for tag, calls in sorted(by_tag.items()):
        lines += [f"## {tag}", ""]
        for path, method, call in calls:
            lines += [f"### {method.upper()} {path}", "", _sentence(call.get("summary", "")), ""]
            if call.get("description"):
                lines += [" ".join(call["description"].split()), ""]
            if parameters := call.get("parameters"):
                lines += ["| parameter | in | |", "| --- | --- | --- |"]
                lines += [_parameter(_resolved(each, described)) for each in parameters]
                lines.append("")
            answers = [each for each in call["responses"] if each not in always]
            lines += [f"Answers: {', '.join(answers)}.", ""]
    return "\n".join(lines)


def _resolved(parameter: Any, described: Any) -> Any:
    for step in parameter.get("$ref", "").removeprefix("#/").split("/"):
        described = described[step] if step else described
    return described if "$ref" in parameter else parameter


def _parameter(parameter: Any) -> str:
    must = "; must be said" if parameter.get("required") and parameter["in"] != "path" else ""
    said = parameter.get("description") or parameter.get("schema", {}).get("description") or ""
    return f"| `{parameter['name']}` | {parameter['in']}{must} | {_cell(said)} |"


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":")) or not text else ".")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES = {"commands": commands, "configuration": configuration, "http": http}


def main(check: bool) -> int:
    stale = 0
    for name, page in PAGES.items():
        path, text = ROOT / "docs" / "reference" / f"{name}.md", page().rstrip() + "\n"
        if path.exists() and path.read_text() == text:
            continue
        if check:
            stale = 1
            print(f"{path.relative_to(ROOT)} is stale; write it with: scripts/reference.py", file=sys.stderr)
        else:
            path.write_text(text)
    return stale


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
