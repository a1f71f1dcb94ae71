"""XML documents of a resource of collections: collections and documents created, removed, listed, read."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal
from xml.sax.saxutils import escape, quoteattr

from dai.drivers.collections.driver import Collections
from dai.drivers.collections.store import Store, Transaction
from dai.errors import LimitError, RequestError
from dai.perform.activity import (
    Activity,
    Context,
    Element,
    Input,
    Markup,
    Output,
    attribute,
    child,
    input,
    output,
    text,
    the_only,
)
from dai.perform.xml.process import Process
from dai.streams.stream import Block, ByteStream

ROLE = "collections"
MEDIA_TYPE = "application/xml"


def store_of(context: Context) -> Store:
    """RequestError where the resource has no collections."""
    driver = context.driver
    if not isinstance(driver, Collections):
        raise RequestError(
            "This resource has no XML collections.", hint="GET /resources tells the kind of each resource."
        )
    return driver.store


def bounded(document: bytes, context: Context) -> bytes:
    """LimitError for a document that is too large."""
    bounded_size(len(document), context)
    return document


def bounded_size(size: int, context: Context) -> None:
    most = context.config.limits.transform_bytes
    if size > most:
        raise LimitError(f"The XML has more than {most:,} bytes.", limit="limits.transform_bytes")


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A document that may be refused."""

    name: str
    content: bytes


@dataclass(frozen=True, kw_only=True)
class Named(Element):
    """``name``: one name, not a path."""

    name: str = attribute()


@dataclass(frozen=True, kw_only=True)
class Listing(Element):
    """All of them."""


def _commit(context: Context, change: Callable[[Transaction], object], answer: str) -> Iterator[Block]:
    """``answer``, the change being committed when it is pulled."""
    with store_of(context).transaction(context.cancellation, write=True) as transaction:
        change(transaction)
    yield Block(f"{answer}\n".encode(), 0)


def _names(element: str, count: int, names: Iterator[str]) -> Iterator[Block]:
    yield Block(f'<{element} count="{count}">\n'.encode(), 0)
    for name in names:
        yield Block(f"<name>{escape(name)}</name>\n".encode(), 1)
    yield Block(f"</{element}>\n".encode(), 0)


@dataclass(frozen=True, kw_only=True)
class XmlCollectionManagement(Activity):
    """Creates, removes or lists collections of XML documents in ``collection``; without it, in the root collection.

    ``collection`` is a path such as ``musicians/folksingers``. ``removeCollection`` also removes its contents. The
    result is ``<createdCollection name="…"/>``, ``<removedCollection name="…"/>`` or ``<collectionNames count="…">``
    with the ``<name>`` of each collection.
    """

    example: ClassVar[str] = """
        <xmlCollectionManagement name="create">
          <collection>musicians</collection>
          <createCollection name="jazzsingers"/>
          <outputStream name="created"/>
        </xmlCollectionManagement>"""
    role: ClassVar[str | None] = ROLE
    tabular: ClassVar[Literal["no"]] = "no"
    changes: ClassVar[bool] = True

    collection: str = child(default="")
    create: Named | None = child("createCollection", default=None)
    remove: Named | None = child("removeCollection", default=None)
    listing: Listing | None = child("listCollections", default=None)
    result: Output[ByteStream] = output("outputStream", "resultStream")

    def run(self, context: Context) -> ByteStream:
        operations = {"createCollection": self.create, "removeCollection": self.remove, "listCollections": self.listing}
        name, operation = the_only(operations, "xmlCollectionManagement")
        if name == "listCollections":
            with store_of(context).transaction(context.cancellation) as transaction:
                names = transaction.collections(transaction.collection(self.collection))
            return ByteStream(MEDIA_TYPE, _names("collectionNames", len(names), iter(names)))

        def change(transaction: Transaction) -> None:
            act = transaction.create_collection if name == "createCollection" else transaction.remove_collection
            act(self.collection, operation.name)

        done = "createdCollection" if name == "createCollection" else "removedCollection"
        return ByteStream(MEDIA_TYPE, _commit(context, change, f"<{done} name={quoteattr(operation.name)}/>"))


@dataclass(frozen=True, kw_only=True)
class NewDocument(Element):
    """A document to store: its child element, its text as XML, or the document ``from`` an output. Without ``name``
    the service chooses one."""

    name: str = attribute(default="")
    source: Input[ByteStream] | None = input(default=None)
    content: Markup = text(default=Markup())

    def read(self, context: Context) -> bytes:
        if self.source is None:
            return self.content.encode()
        content = bytearray()
        with context.bytes(self.source) as source:
            for block in source:
                content += memoryview(block.data)
                bounded_size(len(content), context)
        return bytes(content)


@dataclass(frozen=True, kw_only=True)
class XmlResourceManagement(Activity):
    """Stores, removes, lists or reads XML documents of one collection; one of these.

    ``createResource`` replaces a document of that name; several are all stored, or none. A document has no DTD and no
    entities, and is stored in UTF-8. Elements in the namespace of the perform document are stored without a namespace.
    The result is ``<createdResource name="…"/>``, ``<removedResource name="…"/>``, ``<resourceNames count="…">`` with
    the ``<name>`` of each document, in the order in which they were stored, or the document (``getResource``).
    """

    example: ClassVar[str] = """
        <xmlResourceManagement name="create">
          <collection>musicians/folksingers</collection>
          <createResource name="ally">
            <entry><name>Ally Antonioletti</name><phone>01670061244</phone></entry>
          </createResource>
          <outputStream name="created"/>
        </xmlResourceManagement>"""
    role: ClassVar[str | None] = ROLE
    tabular: ClassVar[Literal["no"]] = "no"
    changes: ClassVar[bool] = True

    collection: str = child(default="")
    create: tuple[NewDocument, ...] = child("createResource", default=())
    remove: Named | None = child("removeResource", default=None)
    listing: Listing | None = child("listResources", default=None)
    get: Named | None = child("getResource", default=None)
    result: Output[ByteStream] = output("outputStream", "resultStream")

    def run(self, context: Context) -> ByteStream:
        operations = {
            "createResource": self.create or None,
            "removeResource": self.remove,
            "listResources": self.listing,
            "getResource": self.get,
        }
        name, operation = the_only(operations, "xmlResourceManagement")
        if name == "listResources":
            transaction = context.closing(store_of(context).transaction(context.cancellation))
            collection = transaction.collection(self.collection)
            count = transaction.count(collection)
            return ByteStream(MEDIA_TYPE, _names("resourceNames", count, transaction.names(collection)))
        if name == "getResource":
            with store_of(context).transaction(context.cancellation) as transaction:
                document = transaction.document(transaction.collection(self.collection), operation.name)
            return ByteStream(MEDIA_TYPE, [Block(document.content, 1)])
        if name == "removeResource":

            def change(transaction: Transaction) -> None:
                transaction.remove(transaction.collection(self.collection, lock=True), operation.name)

            answer = f"<removedResource name={quoteattr(operation.name)}/>"
            return ByteStream(MEDIA_TYPE, _commit(context, change, answer))
        return ByteStream(MEDIA_TYPE, self._stored(context, store_of(context)))

    def _stored(self, context: Context, store: Store) -> Iterator[Block]:
        """All of the new documents, or none. They are read before anybody else has to wait."""
        new: list[Unchecked] = []
        for each in self.create:
            new.append(Unchecked(each.name or secrets.token_hex(16), each.read(context)))
            bounded_size(sum(len(each.content) for each in new), context)
        with Process("checking", "", context.cancellation, what="The document") as process:
            checked = [(answer.document.name, answer.data) for answer in process.run([each] for each in new)]
        with store.transaction(context.cancellation, write=True) as transaction:
            collection = transaction.collection(self.collection, lock=True)
            for name, content in checked:
                transaction.put(collection, name, content)
        names = "".join(f"<createdResource name={quoteattr(each.name)}/>\n" for each in new)
        yield Block(names.encode(), len(new))
