"""Statements over the XML documents of a collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar, Literal

from dai.drivers.collections.store import Document, Transaction
from dai.errors import MissingDependencyError, ParameterError
from dai.perform.activities.xml.collections import MEDIA_TYPE, ROLE, bounded, store_of
from dai.perform.activity import Activity, Context, Element, Markup, Output, attribute, child, output, text
from dai.perform.xml.process import Process
from dai.plugins import extra_hint
from dai.streams.stream import Block, ByteStream


@dataclass(frozen=True, kw_only=True)
class Namespace(Element):
    """Its text is the namespace of ``prefix`` in the expression."""

    prefix: str = attribute()
    uri: str = text(default="")


def prefixes(namespaces: Sequence[Namespace]) -> dict[str, str]:
    for each in namespaces:
        if not each.prefix or not each.uri.strip():
            raise ParameterError("A namespace needs a prefix and, as its text, a name.")
    return {each.prefix: each.uri.strip() for each in namespaces}


def portions(transaction: Transaction, collection: int, resource: str | None) -> Iterable[list[Document]]:
    """One document, or all of the collection. NotFoundError where it is not there."""
    return transaction.chunks(collection) if resource is None else [[transaction.document(collection, resource)]]


def resource_set(
    context: Context, language: str, expression: str, namespaces: Sequence[Namespace], place: tuple[str, str | None]
) -> ByteStream:
    """The results of a query on a collection, or a resource of it: a block each."""
    collection, resource = place
    stack = context.closing(ExitStack())
    transaction = stack.enter_context(store_of(context).transaction(context.cancellation))
    documents = portions(transaction, transaction.collection(collection), resource)
    process = stack.enter_context(Process(language, expression, context.cancellation, prefixes(namespaces)))

    def blocks() -> Iterator[Block]:
        yield Block(b"<resourceSet>\n", 0)
        with stack:
            for answer in process.run(documents):
                yield Block(answer.data, 1)
        yield Block(b"</resourceSet>\n", 0)

    return ByteStream(MEDIA_TYPE, blocks())


@dataclass(frozen=True, kw_only=True)
class XPathStatement(Activity):
    """Runs an XPath query (1.0 with EXSLT) on one XML document, or on all documents of a collection.

    Without ``collection`` it is the root collection; without ``resourceId`` all documents directly in it are searched,
    in the order in which they were stored. Each node or value is a ``<resource>`` of the ``<resourceSet>``, and a
    block. A relative path begins at the root element.
    """

    example: ClassVar[str] = """
        <xPathStatement name="statement">
          <collection>musicians/folksingers</collection>
          <expression>/entry[@id &lt; 10]/phone</expression>
          <resourceSetStream name="phones"/>
        </xPathStatement>"""
    role: ClassVar[str | None] = ROLE
    tabular: ClassVar[Literal["no"]] = "no"

    collection: str = child(default="")
    resource: str | None = child("resourceId", default=None)
    namespaces: tuple[Namespace, ...] = child("namespace", default=())
    expression: str = child()
    result: Output[ByteStream] = output("resourceSetStream")

    def run(self, context: Context) -> ByteStream:
        place = (self.collection, self.resource)
        return resource_set(context, "xpath", self.expression, self.namespaces, place)


@dataclass(frozen=True, kw_only=True)
class XQueryStatement(Activity):
    """Runs an XQuery (3.1) on one XML document, or on each document of a collection.

    Like ``xPathStatement``, with the document as the context item: a query can read one document at a time, and
    nothing else (``doc()``, ``collection()`` and ``unparsed-text()`` are refused). Each item is a ``<resource>`` of
    the ``<resourceSet>``, and a block. It needs the extra ``xquery``.
    """

    example: ClassVar[str] = """
        <xQueryStatement name="statement">
          <collection>musicians/folksingers</collection>
          <expression>for $phone in /entry/phone order by $phone return concat("call ", $phone)</expression>
          <resourceSetStream name="calls"/>
        </xQueryStatement>"""
    role: ClassVar[str | None] = ROLE
    tabular: ClassVar[Literal["no"]] = "no"

    collection: str = child(default="")
    resource: str | None = child("resourceId", default=None)
    namespaces: tuple[Namespace, ...] = child("namespace", default=())
    expression: str = child()
    result: Output[ByteStream] = output("resourceSetStream")

    def run(self, context: Context) -> ByteStream:
        store_of(context)
        if find_spec("saxonche") is None:
            raise MissingDependencyError(
                "xQueryStatement needs the Python package 'saxonche'.", hint=extra_hint("xquery")
            )
        place = (self.collection, self.resource)
        return resource_set(context, "xquery", self.expression, self.namespaces, place)


@dataclass(frozen=True, kw_only=True)
class XUpdateStatement(Activity):
    """Changes one XML document, or all documents of a collection, by XUpdate.

    The expression is ``modifications`` with ``insert-before``, ``insert-after``, ``append``, ``update``, ``remove``,
    ``rename``, ``variable``, ``value-of`` and ``if``. All documents are changed, or none. The result is
    ``<modifications>`` with the number of nodes that were selected and changed. Elements to insert that are in the
    namespace of the perform document are inserted without a namespace.
    """

    example: ClassVar[str] = """
        <xUpdateStatement name="change">
          <collection>musicians/folksingers</collection>
          <resourceId>ally</resourceId>
          <expression>
            <xu:modifications version="1.0" xmlns:xu="http://www.xmldb.org/xupdate">
              <xu:update select="/entry/phone">01670061244</xu:update>
            </xu:modifications>
          </expression>
          <resultStream name="count"/>
        </xUpdateStatement>"""
    role: ClassVar[str | None] = ROLE
    tabular: ClassVar[Literal["no"]] = "no"
    changes: ClassVar[bool] = True

    collection: str = child(default="")
    resource: str | None = child("resourceId", default=None)
    namespaces: tuple[Namespace, ...] = child("namespace", default=())
    expression: Markup = child()
    result: Output[ByteStream] = output("resultStream", "outputStream")

    def run(self, context: Context) -> ByteStream:
        store = store_of(context)
        process = Process("xupdate", self.expression, context.cancellation, prefixes(self.namespaces))
        context.closing(process)

        def blocks() -> Iterator[Block]:
            count = 0
            with store.transaction(context.cancellation, write=True) as transaction:
                collection = transaction.collection(self.collection, lock=True)
                for answer in process.run(portions(transaction, collection, self.resource)):
                    if answer.is_result:
                        count += int(answer.data)
                    else:
                        transaction.replace(answer.document, bounded(answer.data, context))
            yield Block(f"<modifications>{count}</modifications>\n".encode(), 0)

        return ByteStream(MEDIA_TYPE, blocks())
