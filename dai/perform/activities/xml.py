"""Statements over the XML documents of a collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Literal

from dai.drivers.collections.store import Document, Transaction
from dai.errors import ParameterError
from dai.perform.activities.collections import MEDIA_TYPE, ROLE, store_of
from dai.perform.activity import Activity, Context, Element, Output, attribute, child, output, text
from dai.perform.xml.process import Process
from dai.streams.stream import Block, ByteStream


@dataclass(frozen=True, kw_only=True)
class Namespace(Element):
    """The namespace (its text) that ``prefix`` stands for in the expression."""

    prefix: str = attribute()
    uri: str = text(default="")


def prefixes(namespaces: Sequence[Namespace]) -> dict[str, str]:
    for each in namespaces:
        if not each.prefix or not each.uri.strip():
            raise ParameterError("A namespace has a prefix and, as its text, a name.")
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

    Without ``collection`` that is the topmost one; without ``resourceId`` all documents directly in it are searched,
    one after another, in the order in which they were stored. Each node or value is a ``<resource>`` of the
    ``<resourceSet>``, and a block. A relative path begins at the root element.
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
