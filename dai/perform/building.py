"""The activities of a document, from elements whose names and types ``validation`` has checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from lxml import etree

from dai.errors import DocumentError
from dai.perform.activity import ACTIVITIES, Activity, Element, FieldSpec, Input, Markup, Output, fields_of
from dai.perform.graph import Group, SessionRequest
from dai.perform.validation import error_at, line_of, name_of


def session_of(node: etree._Element) -> SessionRequest:
    timeout = float(node.get("timeout", "nan"))
    if node.get("timeout") is not None and not 0 < timeout < math.inf:
        raise error_at(
            node,
            f"The session's timeout is {node.get('timeout')!r}.",
            "a positive number of seconds",
        )
    return SessionRequest(
        node.get("id"), None if math.isnan(timeout) else timeout, _converted(node.get("end", "false"), bool)
    )


def member_of(node: etree._Element) -> Activity | Group:
    local = name_of(node)
    if local == "sequence" or local == "flow":
        return Group(local, tuple(member_of(below) for below in node))  # type: ignore[arg-type]
    values = _build(node, ACTIVITIES[local])
    activity: Activity = ACTIVITIES[local](**values, name=node.get("name"), line=line_of(node))
    return activity


def _build(node: etree._Element, declared: type) -> dict[str, Any]:
    """The values of the declared fields, whose names and types are checked already."""
    values: dict[str, Any] = {}
    for spec in fields_of(declared):
        field_values = list(_values(node, spec))
        if spec.many:
            if spec.required and not field_values:
                raise _missing(node, spec)
            values[spec.field] = tuple(field_values)
        elif len(field_values) > 1:
            raise error_at(
                node,
                f"{name_of(node)} has {len(field_values)} of {_place_text(spec)}; one is allowed.",
                f"one {_place_text(spec)}",
            )
        elif field_values:
            values[spec.field] = field_values[0]
        elif spec.required:
            raise _missing(node, spec)
    return values


def _place_text(spec: FieldSpec) -> str:
    if spec.place.how == "attribute":
        return f"the attribute {spec.place.names[0]!r}"
    return " or ".join(f"<{name}>" for name in spec.place.names) or "text"


def _missing(node: etree._Element, spec: FieldSpec) -> DocumentError:
    suffix = {"input": ' from="…"', "output": ' name="…"'}.get(spec.place.how, "")
    expected = " or ".join(f"<{name}{suffix}>" for name in spec.place.names) if suffix else _place_text(spec)
    return error_at(node, f"{name_of(node)} lacks {expected}.", expected)


def _values(node: etree._Element, spec: FieldSpec) -> Iterator[Any]:
    how, names = spec.place.how, spec.place.names
    if how == "attribute":
        if (value := node.get(names[0])) is not None:
            yield _converted(value, spec.kind)
    elif how == "text" and spec.kind is Markup:
        yield _markup(node)
    elif how == "text":
        if node.text is not None and len(node) == 0:
            yield node.text
    elif how == "input" and not names:
        if (value := node.get("from")) is not None:
            yield Input(value, line_of(node))
    elif how == "output" and not names:
        if (value := node.get("name")) is not None:
            yield Output(value, name_of(node), line_of(node))
    else:
        for below in node:
            if name_of(below) not in names:
                continue
            if how == "input":
                yield Input(below.get("from", ""), line_of(below))
            elif how == "output":
                yield Output(below.get("name", ""), name_of(below), line_of(below))
            elif isinstance(spec.kind, type) and issubclass(spec.kind, Element):
                yield spec.kind(**_build(below, spec.kind))
            elif spec.kind is Markup:
                yield _markup(below)
            else:
                yield _converted((below.text or "").strip(), spec.kind)


def _markup(node: etree._Element) -> Markup:
    """The one element in ``node``, or its text."""
    if len(node) == 0:
        return Markup((node.text or "").strip())
    if len(node) > 1 or any((each or "").strip() for each in (node.text, node[0].tail)):
        raise error_at(
            node,
            f"{name_of(node)} holds more than one element.",
            "one element, or its text in a CDATA section",
        )
    namespace = etree.QName(node).namespace
    content = deepcopy(node[0])
    for each in content.iter():
        if etree.QName(each).namespace == namespace:
            each.tag = etree.QName(each).localname
    # values may have prefixes, too: XPath expressions, names of types
    text = etree.tostring(content, encoding="unicode")
    scope = {prefix: uri for prefix, uri in node[0].nsmap.items() if prefix is not None and f"{prefix}:" in text}
    etree.cleanup_namespaces(content, top_nsmap=scope, keep_ns_prefixes=list(scope))
    return Markup(etree.tostring(content, encoding="unicode", with_tail=False))


def _converted(value: str, kind: Any) -> Any:
    if kind is bool:
        return value.strip() in ("true", "1")
    return kind(value) if kind in (int, float) else value
