"""The dialect of the technology preview of 2003: named requests, run by ``execute`` with values for their parameters.

``expanded`` gives the document that runs: the activities of the executed requests, with the values in place. Values
become constants of ``sqlParameter``, which are bound, or texts of their own; they are never read as markup or as SQL.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

from lxml import etree

from dai.errors import TooLargeError
from dai.perform.validation import error_at, line_of, name_of
from dai.plugins import nearest

_OWN = frozenset({"documentation", "parameter", "dataResource"})
"""Elements of a request besides activities."""


def without_resources(root: etree._Element) -> dict[str, int]:
    """Takes ``dataResource`` out of the activities, where it may stand as in the request; every resource that is named,
    with the line."""
    named: dict[str, int] = {}
    for node in list(root.iter(f"{{{etree.QName(root).namespace}}}dataResource")):
        if len(node):
            raise error_at(node, "dataResource holds an element.", "the name of a resource")
        named.setdefault((node.text or "").strip(), line_of(node))
        parent = node.getparent()
        if parent is not None and name_of(parent) != "request" and parent is not root:
            _detach(node, parent)
    return named


def _detach(node: etree._Element, parent: etree._Element) -> None:
    """Removes the element, and leaves the text behind it."""
    before = node.getprevious()
    if before is None:
        parent.text = (parent.text or "") + (node.tail or "")
    else:
        before.tail = (before.tail or "") + (node.tail or "")
    node.tail = None
    parent.remove(node)


def expanded(root: etree._Element, most: int) -> etree._Element:
    """The activities of every executed request below a root of the same name; DocumentError with line and element,
    TooLargeError where values with more than ``most`` characters would stand in it. The names, places and types of the
    document are checked already."""
    requests = _named(_children(root, "request"), "requests")
    executions = list(_named(_children(root, "execute"), "executions").values())
    if not executions:
        raise error_at(
            next(iter(requests.values()), root),
            "The document has no execute, so nothing runs.",
            '<execute name="…" requestName="…"/>',
            f"Add it behind the request {next(iter(requests))!r}." if requests else None,
        )
    whole = etree.Element(root.tag)
    executed: set[str] = set()
    for execution in executions:
        name = execution.get("requestName", "")
        if name not in requests:
            hint = nearest(name, list(requests)) if requests else None
            raise error_at(execution, f"No request has the name {name!r}.", "the name of a request", hint)
        if name in executed:
            raise error_at(
                execution,
                f"The request {name!r} is executed twice.",
                "one execute for each request",
                "Send the document again with the other values.",
            )
        executed.add(name)
        request = requests[name]
        whole.extend(copy.deepcopy(_children(request, "documentation")))
        values = _values(request, execution)
        most -= sum(
            len(values.get(each.get("from", ""), "")) for each in request.iter(f"{{{etree.QName(request).namespace}}}*")
        )
        if most < 0:
            raise TooLargeError("The values of parameters make the document too large.", line=line_of(execution))
        whole.extend(_run(request, values))
    return whole


def _values(request: etree._Element, execution: etree._Element) -> dict[str, str]:
    """Of the parameters of the request, by name."""
    parameters = _named(_children(request, "parameter"), "parameters")
    chosen = _named(_children(execution, "withParameter"), "values for one parameter")
    for name, node in chosen.items():
        if name not in parameters:
            detail = f"The request {request.get('name')!r} has no parameter {name!r}."
            hint = nearest(name, list(parameters)) if parameters else None
            raise error_at(node, detail, "the name of a parameter", hint)
    values = {}
    for name, node in parameters.items():
        value = _value(chosen[name]) if name in chosen else _value(node)
        if value is None:
            raise error_at(
                execution,
                f"The parameter {name!r} of {request.get('name')!r} has no value and no default.",
                f'<withParameter name="{name}">…</withParameter>',
            )
        values[name] = value
    return values


def _value(node: etree._Element) -> str | None:
    """The attribute ``value``, the child ``value`` or the text: one of them."""
    below = _children(node, "value")
    written = [each for each in (node.get("value"), *(each.text or "" for each in below)) if each is not None]
    if (node.text or "").strip() and not below:
        written.append(node.text or "")
    if len(written) > 1:
        raise error_at(node, f"{node.get('name')!r} has {len(written)} values.", "one value")
    return written[0] if written else None


def _run(request: etree._Element, values: Mapping[str, str]) -> Iterator[etree._Element]:
    """The activities of the request, and what gives the values that are not bound."""
    namespace = etree.QName(request).namespace
    texts: set[str] = set()
    for node in request:
        if name_of(node) in _OWN:
            continue
        activity = copy.deepcopy(node)
        for place in activity.iter(f"{{{namespace}}}*"):
            name = place.get("from", "")
            if name not in values:
                continue
            if name_of(place) == "sqlParameter":
                del place.attrib["from"]
                place.text = values[name]
            else:
                texts.add(name)
        yield activity
    for name in sorted(texts):
        echo = etree.Element(f"{{{namespace}}}Echo", name=name)
        etree.SubElement(echo, f"{{{namespace}}}input").text = values[name]
        etree.SubElement(echo, f"{{{namespace}}}output", name=name)
        yield echo


def _children(node: etree._Element, name: str) -> list[etree._Element]:
    return [each for each in node if name_of(each) == name]


def _named(nodes: list[etree._Element], what: str) -> dict[str, etree._Element]:
    """By name; DocumentError where two have the same."""
    named: dict[str, etree._Element] = {}
    for node in nodes:
        name = node.get("name", "")
        if name in named:
            first = line_of(named[name])
            raise error_at(
                node, f"Two {what} have the name {name!r}; the first is at line {first}.", "a name of its own"
            )
        named[name] = node
    return named
