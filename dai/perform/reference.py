"""The reference page of the activities, written from their declarations."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from dai.perform.activity import ACTIVITIES, Element, FieldSpec, Markup, documentation, fields_of
from dai.streams.stream import Stream

_HEAD = """# Activities

`dai schemas --write` writes this page from the declarations in `dai/perform/activities/`; do not edit it.

Each activity of a perform document has a `name`. An `input from="x"` reads the `output name="x"` of another activity.
*Tuples* are rows with typed columns; *bytes* are a document. If one is linked to the other, the rows travel as
WebRowSet. An output that no activity reads is an end point: it goes into the response. A `sequence` runs the activities
in it one after the other, a `flow` at the same time.
"""


def activities_page() -> str:
    """Markdown: every installed activity with its documentation, its XML, its ports and an example."""
    index = "\n".join(f"- [`{name}`](#{name.lower()}): {_first_sentence(ACTIVITIES[name])}" for name in ACTIVITIES)
    parts = [_HEAD, index + "\n", *(_section(name, ACTIVITIES[name]) for name in ACTIVITIES)]
    return "\n".join(parts)


def _first_sentence(declared: type) -> str:
    text = " ".join(documentation(declared)[0].split())
    return text.partition(". ")[0].rstrip(".") + "."


def _section(name: str, declared: Any) -> str:
    lines = [f"## {name}", "", *_about(declared), *_table(declared)]
    for element, nested in nested_elements(declared):
        lines += [f"### `{element}` in {name}", "", *_about(nested), *_table(nested)]
    example = textwrap.dedent(declared.example).strip()
    lines += ["```xml", example, "```", ""]
    return "\n".join(lines)


def _about(declared: type) -> Iterator[str]:
    for paragraph in documentation(declared):
        yield paragraph
        yield ""


def _table(declared: type) -> list[str]:
    specs = fields_of(declared)
    if not specs:
        return []
    rows = [f"| {place_of(spec)} | {kind_of(spec)} | {how_often(spec)} |" for spec in specs]
    return ["| in the document | is | how often |", "| --- | --- | --- |", *rows, ""]


def place_of(spec: FieldSpec) -> str:
    names = spec.place.names
    forms = {
        "attribute": [f'{name}="…"' for name in names],
        "text": ["text of the element"],
        "child": [f"<{name}>" for name in names],
        "input": [f'<{name} from="…"/>' for name in names] or ['from="…"'],
        "output": [f'<{name} name="…"/>' for name in names] or ['name="…"'],
    }[spec.place.how]
    return " or ".join(f"`{form}`" if spec.place.how != "text" else form for form in forms)


def kind_of(spec: FieldSpec) -> str:
    if spec.place.how in ("input", "output"):
        return f"{spec.place.how}: {'tuples' if spec.kind is Stream else 'bytes'}"
    if isinstance(spec.kind, tuple):
        return ", ".join(f"`{word}`" for word in spec.kind)
    if isinstance(spec.kind, type) and issubclass(spec.kind, Element):
        return "see below"
    return {str: "text", int: "whole number", float: "number", Markup: "XML", bool: "`true` or `false`"}.get(
        spec.kind, "text"
    )


def how_often(spec: FieldSpec) -> str:
    if spec.many:
        return "once or more" if spec.required else "any number"
    return "once" if spec.required else "optional"


def nested_elements(declared: type) -> Iterator[tuple[str, type]]:
    for spec in fields_of(declared):
        if isinstance(spec.kind, type) and issubclass(spec.kind, Element):
            yield spec.place.names[0], spec.kind
            yield from nested_elements(spec.kind)
