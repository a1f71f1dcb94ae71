"""Perform documents: bytes in, a validated and frozen ``Perform`` out, or a DocumentError that says where.

Nothing has run when a document is refused. Validation has three parts: ``validation.validate`` checks names, places
and types by the declarations of the installed activities; ``building`` how often each child stands; ``graph.link``
names, links, cycles and raw end points. The dialects have the same activities; they differ in namespace and root, and
``preview.expanded`` gives what a document of the preview runs. DTDs are refused before the document is parsed, so no
entity is ever defined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from xml.parsers import expat

from lxml import etree

from dai.drivers.sql.parameters import Parameters
from dai.errors import DocumentError, TooLargeError
from dai.perform.activity import Activity, Output
from dai.perform.building import member_of, session_of
from dai.perform.graph import DIALECTS, GDS, PREVIEW, WSI, Dialect, EndPoint, Group, Perform, SessionRequest, link
from dai.perform.preview import expanded, without_resources
from dai.perform.validation import error_at, name_of, validate
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

_UTF_8 = re.compile(rb"""(?!\xfe\xff|\xff\xfe)(?!.{,40}encoding\s*=\s*["'](?!utf-8["']))""", re.IGNORECASE | re.DOTALL)
"""Begins what should be UTF-8: no mark of UTF-16, no declaration of another encoding."""


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
        session_node = [each for each in root if name_of(each) == "session"]
        root = expanded(root, limits.bytes)
        root[:0] = session_node
    else:
        validate(root, dialect)
    members: list[Activity | Group] = []
    documentation, session = None, None
    for node in root:
        local = name_of(node)
        if local == "documentation":
            documentation = (node.text or "").strip()
        elif local == "session":
            if session is not None:
                raise error_at(node, "The document names two sessions.", "one session")
            session = session_of(node)
        else:
            members.append(member_of(node))
    perform = link(dialect, Group("flow", tuple(members)), documentation, session, limits.chain)
    return replace(perform, resources=resources) if resources else perform


def query(
    sql: str,
    parameters: Parameters = (),
    tables: Mapping[str, Any] | None = None,
    *,
    limit: int | None = None,
    truncate: bool = False,
    numeric: str | None = None,
) -> Perform:
    """The document of one query, without XML: its end point is ``result``. ``parameters``: values of JSON, those of
    other types as ``{"type": …, "value": …}``. ``tables``: its query-scoped tables, by name.
    ``limit``: rows at most; with more it fails, unless they are to ``truncate``.
    ``numeric``: what decimal numbers are, as in ``formats.values.numbers``."""
    from dai.perform.activities.sql.parameters import SqlParameter, typed
    from dai.perform.activities.sql.statements import QueryTable, SqlQueryStatement

    places: Iterable[tuple[dict[str, Any], Any]]
    if isinstance(parameters, Mapping):
        places = (({"name": name}, typed(value, f":{name}")) for name, value in parameters.items())
    else:
        places = (({"position": place}, typed(value, str(place))) for place, value in enumerate(parameters, 1))
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
        numeric=numeric,
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
            raise TooLargeError(f"The document has more than the {limits.elements:,} elements allowed.", line=line)
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
            hint=_mistaken(document, error.lineno),
        ) from error
    except (ValueError, LookupError) as error:
        raise DocumentError(
            "The XML declaration names an unknown encoding.", line=1, expected="UTF-8", hint="Send UTF-8."
        ) from error


def _mistaken(document: bytes, line: int) -> str | None:
    """A hint where the bytes are not UTF-8 though they should be, or a sign of SQL seems to be taken for one of XML."""
    if _UTF_8.match(document):
        try:
            document.decode()
        except UnicodeDecodeError:
            return (
                "The document is not UTF-8. Save it as UTF-8, or name its encoding in its first line: "
                '<?xml version="1.0" encoding="ISO-8859-1"?>'
            )
    text = document.split(b"\n")[line - 1 : line]
    if text and re.search(rb"<[\s=>]|<\d|&(?![\w#]+;)", text[0]):
        return "Within a text write &lt; for < and &amp; for &."
    return None


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
            f"Not well-formed XML: {sentence}.",
            line=error.lineno,
            expected="well-formed XML",
            hint=_mistaken(document, error.lineno or 1),
        ) from error
    if root.getroottree().docinfo.internalDTD is not None:
        raise _doctype(1)
    return root


def _check_number(root: etree._Element, limits: DocumentLimits) -> None:
    groups, count = [root], 0
    for group in groups:
        below = [node for node in group if name_of(node) in ("sequence", "flow", "request")]
        groups.extend(below)
        count += len(group) - len(below)
        if count > limits.activities:
            raise TooLargeError(f"The document has more than the {limits.activities} activities allowed.")


def _dialect_of(root: etree._Element) -> Dialect:
    name = etree.QName(root)
    for dialect in DIALECTS:
        if (name.namespace, name.localname) == (dialect.namespace, dialect.request):
            return dialect
    wanted = " or ".join(f"{dialect.request} in {dialect.namespace}" for dialect in DIALECTS)
    raise error_at(
        root,
        f"The root element is {name.localname!r} in the namespace {name.namespace or '(none)'}.",
        wanted,
        hint=f'A perform document starts with <{DIALECTS[0].request} xmlns="{DIALECTS[0].namespace}">.',
    )
