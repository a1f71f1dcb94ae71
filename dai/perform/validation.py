"""Checks the names, places and types of a perform document by the declarations of the activities.

The XML schema (``dai.perform.xsd``) is written from the same declarations, for editors and other programs; what it
refuses is refused here. How often a child stands is checked when an activity is built, links by ``graph.link``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from lxml import etree

from dai.errors import DocumentError
from dai.perform.activity import ACTIVITIES, Element, FieldSpec, Markup, fields_of
from dai.perform.graph import PREVIEW, Dialect
from dai.plugins import nearest

_SHOWN = 100
"""Characters of a value that a message repeats."""
MOST_NAME = 200
"""Characters of a name: it stands in what is kept of a job, several times."""
_SPACE = " \t\r\n"
_GROUPS = ("sequence", "flow")
_INSTANCE = "{http://www.w3.org/2001/XMLSchema-instance}"
_HINTS = frozenset({f"{_INSTANCE}schemaLocation", f"{_INSTANCE}noNamespaceSchemaLocation"})
"""Attributes that may stand anywhere (XML Schema 1.0 part 1, 2.6); they are not followed."""
_LONG = re.compile(r"[+-]?0*\d{1,19}", re.ASCII)
_DOUBLE = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|-?INF|NaN", re.ASCII)


def _is_long(value: str) -> bool:
    return _LONG.fullmatch(value) is not None and -(2**63) <= int(value) < 2**63


_TYPES: Mapping[type, tuple[Callable[[str], Any], str]] = {
    int: (_is_long, "a whole number"),
    float: (_DOUBLE.fullmatch, "a number"),
    bool: (frozenset({"true", "false", "1", "0"}).__contains__, "true or false"),
}


@dataclass(frozen=True, slots=True)
class _Name:
    """The kind of an attribute that names or links: text, not empty and not long."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What an element may hold: ``attributes`` by name, their kind and whether they are required; ``children`` by name,
    a shape or the kind of their text; ``text`` where text may stand among them, ``markup`` where any elements may.
    ``is_group``: activities stand in it besides."""

    attributes: Mapping[str, tuple[Any, bool]] = field(default_factory=dict)
    children: Mapping[str, Any] = field(default_factory=dict)
    text: bool = False
    markup: bool = False
    is_group: bool = False

    def child(self, name: str) -> Any:
        """The shape or the kind of a child; None where it may not stand here."""
        if self.is_group and name in _GROUPS:
            return _GROUP
        if self.is_group and name in ACTIVITIES:
            return _shape(ACTIVITIES[name], True)
        return self.children.get(name)

    @property
    def names(self) -> list[str]:
        """Of the children."""
        return [*self.children, *((*ACTIVITIES, *_GROUPS) if self.is_group else ())]


_PORTS = {port: _Shape({port: (_Name(), True)}) for port in ("from", "name")}
_GROUP = _Shape({"name": (str, False)}, is_group=True)
_SESSION = _Shape({"id": (str, False), "timeout": (float, False), "end": (bool, False)})
_ROOT = _Shape({}, {"documentation": str, "session": _SESSION}, is_group=True)
_VALUE = _Shape({"name": (_Name(), True), "value": (str, False)}, {"value": str}, text=True)
_REQUEST = _Shape(
    {"name": (_Name(), True)}, {"documentation": str, "parameter": _VALUE, "dataResource": str}, is_group=True
)
_EXECUTE = _Shape({"name": (_Name(), True), "requestName": (_Name(), True)}, {"withParameter": _VALUE})
_PREVIEW = _Shape({}, {"documentation": str, "session": _SESSION, "request": _REQUEST, "execute": _EXECUTE})


@cache
def _shape(declared: type, is_activity: bool) -> _Shape:
    specs = fields_of(declared)
    attributes: dict[str, tuple[Any, bool]] = {"name": (_Name(), True)} if is_activity else {}
    children: dict[str, Any] = {}
    for spec in specs:
        if spec.place.how == "attribute":
            attributes[spec.place.names[0]] = (spec.kind, spec.required)
        elif spec.place.how == "input" and not spec.place.names:
            attributes["from"] = (str, spec.required)
        elif spec.place.how == "output" and not spec.place.names:
            attributes["name"] = (_Name(), spec.required)
        else:
            children.update(dict.fromkeys(spec.place.names, _kind(spec)))
    texts = [spec.kind for spec in specs if spec.place.how == "text"]
    return _Shape(attributes, children, bool(texts), Markup in texts)


def _kind(spec: FieldSpec) -> Any:
    if spec.place.how in ("input", "output"):
        return _PORTS["from" if spec.place.how == "input" else "name"]
    structured = isinstance(spec.kind, type) and issubclass(spec.kind, Element)
    return _shape(spec.kind, False) if structured else spec.kind


def validate(root: etree._Element, dialect: Dialect) -> None:
    """Raises DocumentError for the first element, attribute, text or value that is not declared; the name of the root
    is known already."""
    _check(root, _PREVIEW if dialect is PREVIEW else _ROOT, f"{{{dialect.namespace}}}")


def _check(node: etree._Element, shape: Any, namespace: str) -> None:
    is_simple = not isinstance(shape, _Shape)
    _check_attributes(node, {} if is_simple else shape.attributes)
    if is_simple:
        if len(node) and shape is not Markup:
            raise error_at(node, f"{name_of(node)} holds an element: {name_of(node[0])}.", "text, no elements")
        _check_value(node, None, node.text or "", shape)
        return
    if not shape.text and any((each or "").strip(_SPACE) for each in (node.text, *(below.tail for below in node))):
        raise error_at(node, f"{name_of(node)} holds text of its own.", "elements, no text")
    for below in () if shape.markup else node:
        name = name_of(below)
        inside = shape.child(name) if below.tag == f"{namespace}{name}" else None
        if inside is None:
            known = shape.names
            among = "an activity" if shape.is_group else ", ".join(known) or "no elements"
            raise error_at(below, f"The element {name!r} is not expected here.", among, nearest(name, known))
        _check(below, inside, namespace)


def _check_attributes(node: etree._Element, declared: Mapping[str, tuple[Any, bool]]) -> None:
    for name, value in node.attrib.items():
        if name in declared:
            _check_value(node, str(name), str(value), declared[str(name)][0])
        elif name not in _HINTS:
            known = list(declared)
            expected = f"the attributes {', '.join(known)}" if known else "no attributes"
            hint = nearest(str(name), known) if known else None
            raise error_at(node, f"{name_of(node)} has no attribute {name!r}.", expected, hint)
    for name, (_, is_required) in declared.items():
        if is_required and name not in node.attrib:
            raise error_at(node, f"{name_of(node)} lacks the attribute {name!r}.", f"the attribute {name!r}")


def _check_value(node: etree._Element, attribute: str | None, value: str, kind: Any) -> None:
    """The value of the attribute, or of the element itself."""
    if isinstance(kind, _Name):
        if not value:
            raise error_at(node, f"{_subject(node, attribute)} is empty.", "a name")
        if len(value) > MOST_NAME:
            raise error_at(
                node,
                f"{_subject(node, attribute)} has {len(value):,} characters.",
                f"{MOST_NAME} characters at most",
            )
    elif isinstance(kind, tuple):
        if value not in kind:
            words = ", ".join(map(repr, kind))
            raise error_at(
                node, f"{_subject(node, attribute)} is {_cut(value)}.", f"one of {words}", nearest(value, list(kind))
            )
    elif kind in _TYPES:
        fits, expected = _TYPES[kind]
        if not fits(value.strip(_SPACE)):
            raise error_at(node, f"{_subject(node, attribute)} is {_cut(value)}.", expected)


def _subject(node: etree._Element, attribute: str | None) -> str:
    name = name_of(node)
    return f"The value of {name}" if attribute is None else f"The attribute {attribute!r} of {name}"


def _cut(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…")


def error_at(node: etree._Element, detail: str, expected: str, hint: str | None = None) -> DocumentError:
    return DocumentError(detail, line=line_of(node), element=name_of(node), expected=expected, hint=hint)


def line_of(node: etree._Element) -> int:
    return int(getattr(node, "sourceline", None) or 0)


def name_of(node: etree._Element) -> str:
    return str(node.tag).rpartition("}")[2]
