"""Perform documents: bytes in, a validated and frozen ``Perform`` out, or a DocumentError that says where.

Nothing has run when a document is refused. Validation has three parts: the XSD written from the installed
activities checks names, places and types; ``_build`` how often each child stands; ``perform_graph.link`` names, links,
cycles and raw end points. Both dialects have the same activities; they differ in
namespace and root. DTDs are refused before the document is parsed, so no entity is ever defined.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.parsers import expat

from lxml import etree

from dai.activity import ACTIVITIES, Activity, Element, FieldSpec, Input, Output, fields_of
from dai.errors import DocumentError, TooLargeError
from dai.loading import nearest
from dai.perform_graph import DIALECTS, GDS, WSI, Dialect, EndPoint, Group, Perform, SessionRequest, link
from dai.perform_schema import xsd

__all__ = [
    "DIALECTS",
    "GDS",
    "WSI",
    "Dialect",
    "DocumentLimits",
    "EndPoint",
    "Perform",
    "SessionRequest",
    "parse",
    "query",
    "xsd",
]


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """The largest document that is read: its bytes, the depth of its elements, the number of its activities, and how
    many of them may follow one another in a pipeline (each is a generator that pulls the one before)."""

    bytes: int = 4 << 20
    depth: int = 32
    activities: int = 500
    chain: int = 100


def parse(document: bytes, limits: DocumentLimits = DocumentLimits()) -> Perform:
    """Validates a perform document of either dialect.

    Raises DocumentError with line, element and expectation, TooLargeError beyond the limits.
    """
    if len(document) > limits.bytes:
        raise TooLargeError(f"The document has {len(document):,} bytes; {limits.bytes:,} are allowed.")
    _refuse_doctype(document)
    root = _parsed(document)
    _check_size(root, limits)
    dialect = _dialect_of(root)
    _validate(root, dialect)
    members: list[Activity | Group] = []
    documentation, session = None, None
    for node in root:
        local = etree.QName(node).localname
        if local == "documentation":
            documentation = (node.text or "").strip()
        elif local == "session":
            session = _session(node)
        else:
            members.append(_member(node))
    return link(dialect, Group("flow", tuple(members)), documentation, session, limits.chain)


def query(sql: str, parameters: Sequence[Any] = ()) -> Perform:
    """The document of one query, without XML: its end point is ``result``."""
    from dai.activities.relational import SqlParameter, SqlQueryStatement

    values = tuple(
        SqlParameter(position=i, value=value, type="null" if value is None else None)
        for i, value in enumerate(parameters, 1)
    )
    activity = SqlQueryStatement(
        expression=sql, parameters=values, result=Output("result", "webRowSetStream"), name="query", line=0
    )
    return Perform(GDS, (activity,), ((activity,),), (EndPoint("result", "query", True),), {"result": ()}, {"query": 0})


# --- Parsing --------------------------------------------------------------------------------------------------------


class _RootSeen(Exception):
    """Ends the look at the prolog."""


def _refuse_doctype(document: bytes) -> None:
    parser = expat.ParserCreate()

    def doctype(*_: object) -> None:
        raise _doctype(parser.CurrentLineNumber)

    def root(*_: object) -> None:
        raise _RootSeen

    parser.StartDoctypeDeclHandler = doctype
    parser.StartElementHandler = root
    try:
        parser.Parse(document, True)
    except _RootSeen:
        return
    except expat.ExpatError as error:
        raise DocumentError(
            f"Not well-formed XML: {expat.ErrorString(error.code)} at column {error.offset + 1}.", line=error.lineno
        ) from error
    except (ValueError, LookupError) as error:
        raise DocumentError("The XML declaration names an unknown encoding.", line=1, hint="Send UTF-8.") from error


def _parsed(document: bytes) -> etree._Element:
    parser = etree.XMLParser(
        resolve_entities=False, load_dtd=False, no_network=True, remove_comments=True, remove_pis=True, huge_tree=False
    )
    try:
        root = etree.fromstring(document, parser)
    except etree.XMLSyntaxError as error:
        raise DocumentError(f"Not well-formed XML: {error.msg}.", line=error.lineno) from error
    if root.getroottree().docinfo.internalDTD is not None:
        raise _doctype(1)
    return root


def _doctype(line: int) -> DocumentError:
    return DocumentError(
        "The document has a DTD; DTDs and entities are not accepted.",
        line=line,
        hint="Remove the <!DOCTYPE …> declaration and write the text in place of its entities.",
    )


def _check_size(root: etree._Element, limits: DocumentLimits) -> None:
    deepest, level = [root], 0
    while deepest:
        level += 1
        if level > limits.depth:
            raise TooLargeError(f"Elements are nested deeper than the {limits.depth} levels allowed.")
        deepest = [below for node in deepest for below in node]
    groups, count = [root], 0
    for group in groups:
        below = [node for node in group if _local(node) in ("sequence", "flow")]
        groups.extend(below)
        count += len(group) - len(below)
        if count > limits.activities:
            raise TooLargeError(f"The document holds more than the {limits.activities} activities allowed.")


def _dialect_of(root: etree._Element) -> Dialect:
    name = etree.QName(root)
    for dialect in DIALECTS:
        if (name.namespace, name.localname) == (dialect.namespace, dialect.request):
            return dialect
    wanted = " or ".join(f"{dialect.request} in {dialect.namespace}" for dialect in DIALECTS)
    raise DocumentError(
        f"The root element is {name.localname!r} in the namespace {name.namespace or '(none)'}.",
        line=_line(root),
        element=name.localname,
        expected=wanted,
        hint=f"A perform document starts with the element {wanted}.",
    )


def _line(node: etree._Element) -> int:
    return int(getattr(node, "sourceline", None) or 0)


_schemas: dict[Dialect, etree.XMLSchema] = {}
_validating = threading.Lock()


def _validate(root: etree._Element, dialect: Dialect) -> None:
    with _validating:  # an XMLSchema keeps the log of its last validation
        if dialect not in _schemas:
            _schemas[dialect] = etree.XMLSchema(etree.fromstring(xsd(dialect)))
        schema = _schemas[dialect]
        if schema.validate(root):
            return
        log: Any = schema.error_log
        first = log[0]
    raise _schema_error(first.message, first.line, dialect, _node_at(root, first))


def _node_at(root: etree._Element, entry: Any) -> etree._Element:
    """The element an entry of the log speaks of."""
    prefixes = {prefix: name for node in root.iter() for prefix, name in node.nsmap.items() if prefix is not None}
    try:
        found: Any = root.getroottree().xpath(entry.path, namespaces=prefixes) if entry.path else []
    except etree.XPathError:
        found = []
    nodes = [each for each in found if isinstance(each, etree._Element)]
    return nodes[0] if nodes else next((each for each in root.iter() if each.sourceline == entry.line), root)


def _schema_error(message: str, line: int, dialect: Dialect, node: etree._Element) -> DocumentError:
    """libxml2's sentence, without namespaces, taken apart into element and expectation."""
    text = message.replace(f"{{{dialect.namespace}}}", "").strip()
    element = text.split("'")[1] if text.startswith("Element '") else etree.QName(node).localname
    detail, _, expected = text.partition("Expected is ")
    expected = expected.strip(" .").removeprefix("one of").strip(" ()") or ""
    hint = None
    if "This element is not expected" in text:
        parent = node.getparent()
        among_activities = parent is None or _local(parent) in (dialect.request, "sequence", "flow")
        known = (
            [*ACTIVITIES, "sequence", "flow"] if among_activities else [each.strip() for each in expected.split(",")]
        )
        detail = f"The element {element!r} is not expected here."
        hint = nearest(element, [each for each in known if each]) if any(known) else None
        expected = "an activity" if among_activities else expected
    return DocumentError(detail.strip(), line=line, element=element, expected=expected or None, hint=hint)


def _session(node: etree._Element) -> SessionRequest:
    timeout = float(node.get("timeout", "nan"))
    if node.get("timeout") is not None and not 0 < timeout < math.inf:
        raise DocumentError(
            f"The session's timeout is {node.get('timeout')!r}.",
            line=_line(node),
            element="session",
            expected="a positive number of seconds",
        )
    return SessionRequest(
        node.get("id"), None if math.isnan(timeout) else timeout, _converted(node.get("end", "false"), bool)
    )


def _member(node: etree._Element) -> Activity | Group:
    local = etree.QName(node).localname
    if local == "sequence" or local == "flow":
        return Group(local, tuple(_member(below) for below in node))  # type: ignore[arg-type]
    values = _build(node, ACTIVITIES[local])
    activity: Activity = ACTIVITIES[local](**values, name=node.get("name"), line=_line(node))
    return activity


def _build(node: etree._Element, declared: type) -> dict[str, Any]:
    """The values of the declared fields; the XSD has checked names and types already."""
    values: dict[str, Any] = {}
    for spec in fields_of(declared):
        found = list(_values(node, spec))
        if spec.many:
            if spec.required and not found:
                raise _missing(node, spec)
            values[spec.field] = tuple(found)
        elif len(found) > 1:
            raise DocumentError(
                f"{_local(node)} has {len(found)} of {_shown(spec)}; one is allowed.",
                line=_line(node),
                element=_local(node),
            )
        elif found:
            values[spec.field] = found[0]
        elif spec.required:
            raise _missing(node, spec)
    return values


def _local(node: etree._Element) -> str:
    return etree.QName(node).localname


def _shown(spec: FieldSpec) -> str:
    if spec.place.how == "attribute":
        return f"the attribute {spec.place.names[0]!r}"
    return " or ".join(f"<{name}>" for name in spec.place.names) or "text"


def _missing(node: etree._Element, spec: FieldSpec) -> DocumentError:
    suffix = {"input": ' from="…"', "output": ' name="…"'}.get(spec.place.how, "")
    expected = " or ".join(f"<{name}{suffix}>" for name in spec.place.names) if suffix else _shown(spec)
    return DocumentError(f"{_local(node)} lacks {expected}.", line=_line(node), element=_local(node), expected=expected)


def _values(node: etree._Element, spec: FieldSpec) -> Iterator[Any]:
    how, names = spec.place.how, spec.place.names
    if how == "attribute":
        if (value := node.get(names[0])) is not None:
            yield _converted(value, spec.kind)
    elif how == "text":
        if node.text is not None and len(node) == 0:
            yield node.text
    elif how == "input" and not names:
        if (value := node.get("from")) is not None:
            yield Input(value, _line(node))
    else:
        for below in node:
            if _local(below) not in names:
                continue
            if how == "input":
                yield Input(below.get("from", ""), _line(below))
            elif how == "output":
                yield Output(below.get("name", ""), _local(below), _line(below))
            elif isinstance(spec.kind, type) and issubclass(spec.kind, Element):
                yield spec.kind(**_build(below, spec.kind))
            else:
                yield _converted((below.text or "").strip(), spec.kind)


def _converted(value: str, kind: Any) -> Any:
    if kind is bool:
        return value.strip() in ("true", "1")
    return kind(value) if kind in (int, float) else value
