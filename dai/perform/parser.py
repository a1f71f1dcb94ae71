"""Perform documents: bytes in, a validated and frozen ``Perform`` out, or a DocumentError that says where.

Nothing has run when a document is refused. Validation has three parts: the XSD written from the installed
activities checks names, places and types; ``_build`` how often each child stands; ``perform_graph.link`` names, links,
cycles and raw end points. Both dialects have the same activities; they differ in
namespace and root. DTDs are refused before the document is parsed, so no entity is ever defined.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.parsers import expat

from lxml import etree

from dai.errors import DocumentError, TooLargeError
from dai.perform.activity import ACTIVITIES, Activity, Element, FieldSpec, Input, Output, fields_of
from dai.perform.graph import DIALECTS, GDS, WSI, Dialect, EndPoint, Group, Perform, SessionRequest, link
from dai.perform.xsd import xsd
from dai.plugins import nearest

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
    _scan(document, limits)
    root = _parsed(document)
    _check_number(root, limits)
    dialect = _dialect_of(root)
    _validate(root, dialect)
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
    return link(dialect, Group("flow", tuple(members)), documentation, session, limits.chain)


def query(sql: str, parameters: Sequence[Any] = (), tables: Mapping[str, Any] | None = None) -> Perform:
    """The document of one query, without XML: its end point is ``result``. ``tables``: its query-scoped tables, by
    name."""
    from dai.perform.activities.relational import QueryTable, SqlParameter, SqlQueryStatement

    values = tuple(
        SqlParameter(position=i, value=value, type="null" if value is None else None)
        for i, value in enumerate(parameters, 1)
    )
    query_tables = tuple(QueryTable(name=name, value=table) for name, table in (tables or {}).items())
    activity = SqlQueryStatement(
        expression=sql,
        parameters=values,
        tables=query_tables,
        result=Output("result", "webRowSetStream"),
        name="query",
        line=0,
    )
    return Perform(GDS, (activity,), ((activity,),), (EndPoint("result", "query", True),), {"result": ()}, {"query": 0})


# --- Parsing --------------------------------------------------------------------------------------------------------


def _scan(document: bytes, limits: DocumentLimits) -> None:
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
    on_line = [each for each in root.iter() if each.sourceline == entry.line] or [root]
    prefixes = {prefix: name for node in (root, *on_line) for prefix, name in node.nsmap.items() if prefix is not None}
    try:
        found: Any = root.getroottree().xpath(entry.path, namespaces=prefixes) if entry.path else []
    except etree.XPathError:
        found = []
    return next((each for each in found if isinstance(each, etree._Element)), on_line[0])


_EXPECTED = (
    (re.compile(r"The attribute ('.*?') is required"), "the attribute {}"),
    (re.compile(r"not an element of the set \{(.*?)\}"), "one of {}"),
    (re.compile(r"not a valid value of the atomic type 'xs:(long|double|boolean)'"), "{}"),
    (re.compile(r"\[facet 'minLength'\]"), "a name"),
    (re.compile(r"Character content other than whitespace is not allowed"), "elements, no text"),
    (re.compile(r"Element content is not allowed"), "text, no elements"),
    (re.compile(r"attribute '.*?': The attribute .* is not allowed"), "{}"),
)
_WORDS = {"long": "a whole number", "double": "a number", "boolean": "true or false"}


def _schema_error(message: str, line: int, dialect: Dialect, node: etree._Element) -> DocumentError:
    """libxml2's sentence, without namespaces, taken apart into element and expectation."""
    detail = message.replace(f"{{{dialect.namespace}}}", "").strip()
    element = _local(node)
    parent = node.getparent()
    if "This element is not expected" in detail:
        known = _allowed(parent, dialect) if parent is not None else []
        among_activities = "sequence" in known
        return DocumentError(
            f"The element {element!r} is not expected here.",
            line=line,
            element=element,
            expected="an activity" if among_activities else ", ".join(known) or "no elements",
            hint=nearest(element, known) if known else None,
        )
    expected = None
    for pattern, words in _EXPECTED:
        if (found := pattern.search(detail)) is not None:
            expected = words.format(*(_WORDS.get(group, group) for group in found.groups()), "")
            break
    if "is not allowed." in detail and not expected:
        names = _attributes(node, dialect)
        expected = f"the attributes {', '.join(names)}" if names else "no attributes"
    shown = detail if len(detail) <= _SHOWN else f"{detail[:_SHOWN]}…"
    return DocumentError(shown, line=line, element=element, expected=expected)


_SHOWN = 300


def _declared_at(node: etree._Element, dialect: Dialect) -> tuple[FieldSpec, ...] | None:
    """What is declared for the activity or structure ``node``; None for the root, a group and what is unknown."""
    parent, local = node.getparent(), _local(node)
    if parent is None or local in ("sequence", "flow"):
        return None
    if _local(parent) in (dialect.request, "sequence", "flow"):
        return fields_of(ACTIVITIES[local]) if local in ACTIVITIES else None
    around = _declared_at(parent, dialect) or ()
    spec = next((each for each in around if local in each.place.names and each.place.how == "child"), None)
    structured = spec is not None and isinstance(spec.kind, type) and issubclass(spec.kind, Element)
    return fields_of(spec.kind) if spec is not None and structured else None


def _allowed(node: etree._Element, dialect: Dialect) -> list[str]:
    """The names of the elements that may stand in ``node``."""
    if node.getparent() is None or _local(node) in ("sequence", "flow"):
        return [*ACTIVITIES, "sequence", "flow"]
    specs = _declared_at(node, dialect) or ()
    return [name for spec in specs if spec.place.how in ("child", "input", "output") for name in spec.place.names]


def _attributes(node: etree._Element, dialect: Dialect) -> list[str]:
    """The names of the attributes that ``node`` may have."""
    specs = _declared_at(node, dialect)
    if specs is None:
        return ["name"] if _local(node) in ("sequence", "flow") else []
    own = ["name"] if _local(node) in ACTIVITIES else []
    for spec in specs:
        if spec.place.how == "attribute":
            own.append(spec.place.names[0])
        elif spec.place.how == "input" and not spec.place.names:
            own.append("from")
    return own


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
                expected=f"one {_shown(spec)}",
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
