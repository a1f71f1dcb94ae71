"""Perform documents: bytes in, a validated and frozen ``Perform`` out, or a DocumentError that says where.

Nothing has run when a document is refused. Validation has three parts: ``validation.validate`` checks names, places
and types by the declarations of the installed activities; ``_build`` how often each child stands; ``graph.link`` names,
links, cycles and raw end points. The dialects have the same activities; they differ in namespace and root, and
``preview.expanded`` gives what a document of the preview runs. DTDs are refused before the document is parsed, so no
entity is ever defined.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any
from xml.parsers import expat

from lxml import etree

from dai.drivers.sql.parameters import Parameters
from dai.errors import DocumentError, TooLargeError
from dai.perform.activity import ACTIVITIES, Activity, Element, FieldSpec, Input, Markup, Output, fields_of
from dai.perform.graph import DIALECTS, GDS, PREVIEW, WSI, Dialect, EndPoint, Group, Perform, SessionRequest, link
from dai.perform.preview import expanded, without_resources
from dai.perform.validation import validate
from dai.perform.xsd import xsd

__all__ = [
    "DIALECTS",
    "GDS",
    "PREVIEW",
    "WSI",
    "Dialect",
    "DocumentLimits",
    "EndPoint",
    "Perform",
    "SessionRequest",
    "parse",
    "query",
    "scan",
    "xsd",
]


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """The largest document that is read: its bytes, the depth of its elements, the number of its activities, of its
    elements and of the attributes of one of them, and how many activities may follow one another in a pipeline (each is
    a generator that pulls the one before)."""

    bytes: int = 4 << 20
    depth: int = 32
    activities: int = 500
    elements: int = 20_000
    attributes: int = 100
    chain: int = 64


def parse(document: bytes, limits: DocumentLimits = DocumentLimits()) -> Perform:
    """Validates a perform document of either dialect.

    Raises DocumentError with line, element and expectation, TooLargeError beyond the limits.
    """
    if len(document) > limits.bytes:
        raise TooLargeError(f"The document has {len(document):,} bytes; {limits.bytes:,} are allowed.")
    scan(document, limits)
    root = _parsed(document)
    _check_number(root, limits)
    dialect = _dialect_of(root)
    resources: Mapping[str, int] = {}
    if dialect is PREVIEW:
        resources = without_resources(root)
        validate(root, dialect)
        session_node = [each for each in root if _local(each) == "session"]
        root = expanded(root, limits.bytes)
        root[:0] = session_node
    else:
        validate(root, dialect)
    members: list[Activity | Group] = []
    documentation, session = None, None
    for node in root:
        local = etree.QName(node).localname
        if local == "documentation":
            documentation = (node.text or "").strip()
        elif local == "session":
            if session is not None:
                raise DocumentError(
                    "The document names two sessions.", line=_line(node), element="session", expected="one session"
                )
            session = _session(node)
        else:
            members.append(_member(node))
    perform = link(dialect, Group("flow", tuple(members)), documentation, session, limits.chain)
    return replace(perform, resources=resources) if resources else perform


def query(
    sql: str,
    parameters: Parameters = (),
    tables: Mapping[str, Any] | None = None,
    *,
    limit: int | None = None,
    truncate: bool = False,
) -> Perform:
    """The document of one query, without XML: its end point is ``result``. ``tables``: its query-scoped tables, by
    name. ``limit``: rows at most; with more it fails, unless they are to ``truncate``."""
    from dai.perform.activities.sql.parameters import SqlParameter
    from dai.perform.activities.sql.statements import QueryTable, SqlQueryStatement

    places: Iterable[tuple[dict[str, Any], Any]]
    if isinstance(parameters, Mapping):
        places = (({"name": name}, value) for name, value in parameters.items())
    else:
        places = (({"position": place}, value) for place, value in enumerate(parameters, 1))
    values = tuple(
        SqlParameter(**place, value=value, type="null" if value is None else None) for place, value in places
    )
    query_tables = tuple(QueryTable(name=name, value=table) for name, table in (tables or {}).items())
    activity = SqlQueryStatement(
        expression=sql,
        parameters=values,
        tables=query_tables,
        result=Output("result", "webRowSetStream"),
        limit=limit,
        truncate=truncate,
        name="query",
        line=0,
    )
    return Perform(GDS, (activity,), ((activity,),), (EndPoint("result", "query", True),), {"result": ()}, {"query": 0})


# --- Parsing --------------------------------------------------------------------------------------------------------


def scan(document: bytes, limits: DocumentLimits) -> None:
    """Refuses DTDs, what is not well-formed, and what is too deep or has too many elements, before a tree is built."""
    parser = expat.ParserCreate()
    depth = elements = 0

    def doctype(*_: object) -> None:
        raise _doctype(parser.CurrentLineNumber)

    def start(name: str, attributes: list[str]) -> None:
        nonlocal depth, elements
        depth, elements = depth + 1, elements + 1
        line = parser.CurrentLineNumber
        if depth > limits.depth:
            raise TooLargeError(f"Elements are nested deeper than the {limits.depth} levels allowed.", line=line)
        if elements > limits.elements:
            raise TooLargeError(f"The document holds more than the {limits.elements:,} elements allowed.", line=line)
        if len(attributes) > 2 * limits.attributes:
            raise TooLargeError(f"An element has more than the {limits.attributes} attributes allowed.", line=line)

    def end(_: str) -> None:
        nonlocal depth
        depth -= 1

    parser.ordered_attributes = True  # names and values in one list
    parser.StartDoctypeDeclHandler = doctype
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    try:
        parser.Parse(document, True)
    except expat.ExpatError as error:
        raise DocumentError(
            f"Not well-formed XML: {expat.ErrorString(error.code)} at column {error.offset + 1}.",
            line=error.lineno,
            expected="well-formed XML",
        ) from error
    except (ValueError, LookupError) as error:
        raise DocumentError(
            "The XML declaration names an unknown encoding.", line=1, expected="UTF-8", hint="Send UTF-8."
        ) from error


def _doctype(line: int) -> DocumentError:
    return DocumentError(
        "The document has a DTD; DTDs and entities are not accepted.",
        line=line,
        element="!DOCTYPE",
        expected="no DTD",
        hint="Remove the <!DOCTYPE …> declaration and write the text in place of its entities.",
    )


def _parsed(document: bytes) -> etree._Element:
    parser = etree.XMLParser(
        resolve_entities=False, load_dtd=False, no_network=True, remove_comments=True, remove_pis=True, huge_tree=False
    )
    try:
        root = etree.fromstring(document, parser)
    except etree.XMLSyntaxError as error:
        sentence = str(error.msg).split(", line ")[0].strip()
        raise DocumentError(
            f"Not well-formed XML: {sentence}.", line=error.lineno, expected="well-formed XML"
        ) from error
    if root.getroottree().docinfo.internalDTD is not None:
        raise _doctype(1)
    return root


def _check_number(root: etree._Element, limits: DocumentLimits) -> None:
    groups, count = [root], 0
    for group in groups:
        below = [node for node in group if _local(node) in ("sequence", "flow", "request")]
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
    """The values of the declared fields, whose names and types are checked already."""
    values: dict[str, Any] = {}
    for spec in fields_of(declared):
        field_values = list(_values(node, spec))
        if spec.many:
            if spec.required and not field_values:
                raise _missing(node, spec)
            values[spec.field] = tuple(field_values)
        elif len(field_values) > 1:
            raise DocumentError(
                f"{_local(node)} has {len(field_values)} of {_shown(spec)}; one is allowed.",
                line=_line(node),
                element=_local(node),
                expected=f"one {_shown(spec)}",
            )
        elif field_values:
            values[spec.field] = field_values[0]
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
    elif how == "text" and spec.kind is Markup:
        yield _markup(node)
    elif how == "text":
        if node.text is not None and len(node) == 0:
            yield node.text
    elif how == "input" and not names:
        if (value := node.get("from")) is not None:
            yield Input(value, _line(node))
    elif how == "output" and not names:
        if (value := node.get("name")) is not None:
            yield Output(value, _local(node), _line(node))
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
            elif spec.kind is Markup:
                yield _markup(below)
            else:
                yield _converted((below.text or "").strip(), spec.kind)


def _markup(node: etree._Element) -> Markup:
    """The one element in ``node``, or its text."""
    if len(node) == 0:
        return Markup((node.text or "").strip())
    if len(node) > 1 or any((each or "").strip() for each in (node.text, node[0].tail)):
        raise DocumentError(
            f"{_local(node)} holds more than one element.",
            line=_line(node),
            element=_local(node),
            expected="one element, or its text in a CDATA section",
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
