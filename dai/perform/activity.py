"""Activities, each declared once, in one place.

A frozen dataclass is the declaration. Its fields describe the XML, its docstring is the documentation, ``example`` is
the test, ``run`` is the code; the XSD, the reference page and the conformance test come from these. For example::

    @dataclass(frozen=True, kw_only=True)
    class Head(Activity):
        \"\"\"The first tuples of a result.\"\"\"
        rows: int = attribute()
        source: Input[Stream] = input("input")
        result: Output[Stream] = output("output")

        def run(self, context: Context) -> Stream: ...

``Input`` and ``Output`` are ports: ``<input from="x"/>`` and ``<output name="x"/>`` link. The parameter of the
port's type says what flows (``Stream``: tuples, ``ByteStream``: bytes); a link between the two kinds encodes or
decodes WebRowSet.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from dai.config import Config
from dai.drivers import Driver, SessionKeeps
from dai.errors import ParameterError
from dai.plugins import Table
from dai.streams.cancellation import Cancellation
from dai.streams.mailbox import Mailbox
from dai.streams.stream import ByteStream, Stream

Kind = TypeVar("Kind", Stream, ByteStream)
Source = Stream | ByteStream

ACTIVITIES = Table(
    "activity",
    "dai.activities",
    {
        "sqlQueryStatement": "dai.perform.activities.sql.statements:SqlQueryStatement",
        "sqlUpdateStatement": "dai.perform.activities.sql.statements:SqlUpdateStatement",
        "sqlStoredProcedure": "dai.perform.activities.sql.statements:SqlStoredProcedure",
        "sqlResilient": "dai.perform.activities.control:SqlResilient",
        "sqlBag": "dai.perform.activities.sql.bag:SqlBag",
        "sqlResultsToXML": "dai.perform.activities.transform.encode:SqlResultsToXML",
        "sqlResultsToCSV": "dai.perform.activities.transform.encode:SqlResultsToCSV",
        "sqlResultsToArrow": "dai.perform.activities.transform.encode:SqlResultsToArrow",
        "sqlBulkLoadRowSet": "dai.perform.activities.sql.load:SqlBulkLoadRowSet",
        "relationalResourceManagement": "dai.perform.activities.sql.schema:RelationalResourceManagement",
        "extractDatabaseSchema": "dai.perform.activities.sql.schema:ExtractDatabaseSchema",
        "extractPhysicalSchema": "dai.perform.activities.sql.schema:ExtractPhysicalSchema",
        "blockAggregator": "dai.perform.activities.transform.transform:BlockAggregator",
        "stringTokenizer": "dai.perform.activities.transform.transform:StringTokenizer",
        "xslTransform": "dai.perform.activities.transform.transform:XslTransform",
        "gzipCompression": "dai.perform.activities.transform.compress:GzipCompression",
        "zstdCompression": "dai.perform.activities.transform.compress:ZstdCompression",
        "zipArchive": "dai.perform.activities.transform.compress:ZipArchive",
        "TupleProjection": "dai.perform.activities.tuples.tuples:TupleProjection",
        "TupleSelect": "dai.perform.activities.tuples.tuples:TupleSelect",
        "TupleArithmeticProjection": "dai.perform.activities.tuples.tuples:TupleArithmeticProjection",
        "TupleUnionAll": "dai.perform.activities.tuples.tuples:TupleUnionAll",
        "TupleMergeJoin": "dai.perform.activities.tuples.tuples:TupleMergeJoin",
        "TupleSplit": "dai.perform.activities.tuples.tuples:TupleSplit",
        "TupleSort": "dai.perform.activities.tuples.tuples:TupleSort",
        "TupleGroupBy": "dai.perform.activities.tuples.tuples:TupleGroupBy",
        "Head": "dai.perform.activities.tuples.tuples:Head",
        "Tee": "dai.perform.activities.tuples.tuples:Tee",
        "fileAccessActivity": "dai.perform.activities.files.files:FileAccessActivity",
        "fileWritingActivity": "dai.perform.activities.files.files:FileWritingActivity",
        "directoryAccess": "dai.perform.activities.files.files:DirectoryAccess",
        "fileManipulation": "dai.perform.activities.files.files:FileManipulation",
        "xmlCollectionManagement": "dai.perform.activities.xml.collections:XmlCollectionManagement",
        "xmlResourceManagement": "dai.perform.activities.xml.collections:XmlResourceManagement",
        "xPathStatement": "dai.perform.activities.xml.statements:XPathStatement",
        "xQueryStatement": "dai.perform.activities.xml.statements:XQueryStatement",
        "xUpdateStatement": "dai.perform.activities.xml.statements:XUpdateStatement",
        "deliverToFile": "dai.perform.activities.delivery.delivery:DeliverToFile",
        "deliverFromFile": "dai.perform.activities.delivery.delivery:DeliverFromFile",
        "deliverToResponse": "dai.perform.activities.delivery.delivery:DeliverToResponse",
        "deliverToURL": "dai.perform.activities.delivery.delivery:DeliverToURL",
        "deliverFromURL": "dai.perform.activities.delivery.delivery:DeliverFromURL",
        "deliverToGFTP": "dai.perform.activities.delivery.delivery:DeliverToGFTP",
        "deliverFromGFTP": "dai.perform.activities.delivery.delivery:DeliverFromGFTP",
        "deliverToSMTP": "dai.perform.activities.delivery.delivery:DeliverToSMTP",
        "deliverToGDT": "dai.perform.activities.delivery.transfer:DeliverToGDT",
        "deliverFromGDT": "dai.perform.activities.delivery.transfer:DeliverFromGDT",
        "deliverToResourceProperty": "dai.perform.activities.delivery.keep:DeliverToResourceProperty",
        "dataStore": "dai.perform.activities.delivery.keep:DataStore",
        "Echo": "dai.perform.activities.control:Echo",
        "Sleep": "dai.perform.activities.control:Sleep",
        "Counter": "dai.perform.activities.control:Counter",
        "outputStream": "dai.perform.activities.delivery.streams:OutputStream",
        "inputStream": "dai.perform.activities.delivery.streams:InputStream",
    },
)
"""Element name to class. ``sequence`` and ``flow`` are not in it: they hold activities and belong to the language
itself (``dai.perform.parser``)."""

ANY = "any"
"""The ``role`` of activities that every resource offers."""
FRAGMENT = "application/xml-fragment"
"""Media type of a byte stream that is XML to stand in the response as it is, such as ``<resultStream
updateCount="3"/>``. Its elements are closed even when it fails half-way (``enclosed``), and it looks at the
cancellation itself."""


@dataclass(frozen=True, slots=True)
class Input(Generic[Kind]):
    """Where data comes in: ``link`` is the name of the output it comes from."""

    link: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class Output(Generic[Kind]):
    """Where data goes out under the name ``link``; ``element`` is the element it was declared by."""

    link: str
    element: str = ""
    line: int = 0


class Sessions(SessionKeeps, Protocol):
    """An activity's view of the session that its request belongs to."""

    @property
    def id(self) -> str: ...

    def output(self, name: str) -> Mailbox:
        """The mailbox that a client or another service pulls from; created if it does not exist."""

    def input(self, name: str) -> Mailbox:
        """The mailbox that a client or another service pushes into; created if it does not exist."""


class Context(Protocol):
    """The interface that ``run`` may use. Everything it opens is closed by the pipeline when the request ends, however
    it ends."""

    @property
    def driver(self) -> Driver:
        """The database of the resource; RequestError where the resource is not a database."""

    @property
    def cancellation(self) -> Cancellation: ...

    @property
    def session(self) -> Sessions: ...

    @property
    def blocksize(self) -> int | None:
        """Rows a block that the caller asked for, where the document does not say."""

    @property
    def config(self) -> Config:
        """The configuration: what the operator of the service allows and limits."""

    @property
    def spent(self) -> defaultdict[str, float]:
        """The amounts of shared limits that the activities of this document have used, by the limit's name."""

    @property
    def scratch(self) -> Path | None:
        """The directory for what does not fit the memory; None: the system's."""

    def tuples(self, source: Input[Any]) -> Stream:
        """The tuples that arrive at an input; bytes are decoded as WebRowSet."""

    def bytes(self, source: Input[Any]) -> ByteStream:
        """The bytes that arrive at an input; tuples are encoded as WebRowSet."""

    def closing(self, thing: Any) -> Any:
        """Closes ``thing`` when the request ends; returns it. A context manager is entered instead."""


class Markup(str):
    """XML that stands in the document as elements, or as text that is XML. What is in the namespace of the perform
    document is in none here."""


class Element:
    """Base of what stands inside an activity: ``<sqlParameter position="1" from="x">…</sqlParameter>``."""


@dataclass(frozen=True, kw_only=True)
class Activity:
    """Base of all activities. ``name`` is the activity's own name in the document, ``line`` where it stands.

    ``raw`` names output elements that may not be end points; ``tabular`` says whether an output of bytes is an encoded
    result (None: as its port says). ``role``: the role of the resources that offer it (None: databases, ANY: all).
    ``changes``: it may change the database, for good once it is COMPLETED. ``example``: takes its input from ``tuples``
    or ``document``, for which the conformance test has producers.

    An activity without outputs is a sink: the pipeline runs it in a thread of its own and ``run`` returns when its work
    is done; any other ``run`` returns, at once, a source for each output, in order of declaration (one output: the
    source itself); all further work is done while it is pulled. What ``run`` raises in the first step refuses the
    request, unless it is a sink; any other error is the status ERROR of the activity in the response.
    """

    example: ClassVar[str]
    raw: ClassVar[frozenset[str]] = frozenset()
    tabular: ClassVar[Literal["yes", "no", "like its input"] | None] = None
    role: ClassVar[str | None] = None
    changes: ClassVar[bool] = False
    name: str = ""
    line: int = 0

    def run(self, context: Context) -> Source | tuple[Source, ...] | None:
        raise TypeError(f"{type(self).__name__} does not say what it does")

    @property
    def element(self) -> str:
        """Its element name: the class name, with a small first letter unless it stands in ACTIVITIES with a capital."""
        kind = type(self).__name__
        return kind if kind in ACTIVITIES else kind[0].lower() + kind[1:]

    @cached_property
    def inputs(self) -> tuple[Input[Any], ...]:
        """Every input, those of nested elements included, in order of declaration."""
        return tuple(_ports(self, Input))

    @cached_property
    def outputs(self) -> tuple[Output[Any], ...]:
        return tuple(_ports(self, Output))


PortKind = TypeVar("PortKind")


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _ports(thing: Any, kind: type[PortKind]) -> Iterator[PortKind]:
    for name in _field_names(thing.__class__):
        value = getattr(thing, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, kind):
                yield each
            elif isinstance(each, Element):
                yield from _ports(each, kind)


# --- Declaring fields -----------------------------------------------------------------------------------------------

REQUIRED = dataclasses.MISSING


@dataclass(frozen=True, slots=True)
class Place:
    """Where a field's value stands: ``how`` is attribute, text, child, input or output; ``names`` its XML names."""

    how: Literal["attribute", "text", "child", "input", "output"]
    names: tuple[str, ...]


def _declared(how: Any, names: tuple[str, ...], default: Any) -> Any:
    metadata = {"place": Place(how, names)}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata, kw_only=True)
    return dataclasses.field(default=default, metadata=metadata, kw_only=True)


def attribute(*names: str, default: Any = REQUIRED) -> Any:
    """An attribute of the element; its name is the field's, if there is no other."""
    return _declared("attribute", names, default)


def text(default: Any = REQUIRED) -> Any:
    """The text of the element itself."""
    return _declared("text", (), default)


def child(*names: str, default: Any = REQUIRED) -> Any:
    """A child element, under any of ``names``: text (``str``), a structure (an ``Element``), or a tuple of those."""
    return _declared("child", names, default)


def input(*names: str, default: Any = REQUIRED) -> Any:
    """An input: a child ``<names from="…"/>``; without names, the attribute ``from`` of the element itself."""
    return _declared("input", names, default)


def output(*names: str, default: Any = REQUIRED) -> Any:
    """An output: a child ``<names name="…"/>``; without names, the attribute ``name`` of the element itself."""
    return _declared("output", names, default)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One declared field: what perform parses and the XSD and the reference page say.

    ``kind`` is ``str``, ``Markup``, ``int``, ``float``, ``bool``, a tuple of allowed words, an ``Element`` class, or
    for ports ``Stream`` or ``ByteStream``.
    """

    field: str
    place: Place
    kind: Any
    many: bool
    required: bool


def fields_of(declared: type[Any]) -> tuple[FieldSpec, ...]:
    """The declared fields of an activity or element class, in order."""
    if declared not in _fields:
        hints = typing.get_type_hints(declared)
        fields = dataclasses.fields(declared)
        _fields[declared] = tuple(_spec(field, hints[field.name]) for field in fields if "place" in field.metadata)
    return _fields[declared]


_fields: dict[type[Any], tuple[FieldSpec, ...]] = {}


def _spec(field: dataclasses.Field[Any], hint: Any) -> FieldSpec:
    place: Place = field.metadata["place"]
    many = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = [each for each in typing.get_args(hint) if each is not type(None)]
    if typing.get_origin(hint) is tuple:
        many, hint = True, typing.get_args(hint)[0]
    if typing.get_origin(hint) in (Input, Output):
        (hint,) = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        hint = typing.get_args(hint)
    if not place.names and place.how in ("attribute", "child"):
        place = dataclasses.replace(place, names=(field.name,))
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    return FieldSpec(field.name, place, hint, many, required)


def the_only(operations: dict[str, Any], activity: str) -> tuple[str, Any]:
    """The one operation that a document names, of those that the activity has."""
    named = [(name, each) for name, each in operations.items() if each is not None]
    if len(named) != 1:
        names = ", ".join(operations)
        raise ParameterError(f"{activity} has {len(named)} operations; it needs one of {names}.")
    return named[0]


def documentation(declared: type) -> Sequence[str]:
    """The docstring as paragraphs."""
    import inspect

    return (inspect.getdoc(declared) or "").split("\n\n")
