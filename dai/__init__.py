"""dai: a data service. People and programs send perform documents (XML workflows) over HTTP to data resources; the
activities run as one streaming pipeline; results leave as WebRowSet, CSV, Arrow, Parquet or JSON lines in blocks.

The execution model: tuples are Arrow record batches and nothing else (``streams.stream``). A pipeline is a chain of
synchronous generators that run in a worker thread; readers pull, which is the back-pressure. There is one kind of queue
(``streams.mailbox``). Every request has one ``Cancellation`` and one ``ExitStack`` (``perform.pipeline``); its first
failure is the one that it reports.

A package imports only those below it::

    commands  what `dai ...` does
    api       HTTP; only this package knows FastAPI
    service   what outlives a request: jobs, sessions, resources, results, the state database
              replicas  where copies of data are
    security  who asks, and what they may do
    perform   perform documents: parser, activities, pipeline, response        client  the HTTP API from the other side
    drivers   databases                                                        formats  encodings
    streams   record batches, blocks, the queue, cancellation
    config  plugins  errors  version

Beside them, ``schemas`` has the XML schemas, and ``dbapi`` is ``client.dbapi`` by the name that programs import.
"""

from typing import TYPE_CHECKING, Any

from dai.errors import DaiError as DaiError
from dai.version import __version__ as __version__

if TYPE_CHECKING:
    from dai.client import Resource
    from dai.client.registry import Match


def connect(url: str | None = None, **options: Any) -> "Resource":
    """The data resource at ``http://host:port/name``, or the only one of the service at ``http://host:port``. The
    environment variable DAI_SERVER may name the service: then ``url`` is the resource's name alone, or left out.

    ::

        book = dai.connect("http://127.0.0.1:8080/book")
        book.query("select * from littleblackbook where id in :ids", ids=[1, 2]).df()

    Options (``dai.client.Options``):

    token           a bearer token, sent over https or on loopback alone
    ca              a file of authorities (PEM) that are trusted besides those of the system
    certificate     a file (PEM) that shows the service who calls …
    key             … and that of its private key
    signing_key     a file with a private key (PEM) that requests are signed with …
    key_id          … which the service knows by this name
    signs           what is signed: "requests" or "documents"
    connect         seconds until a service that does not answer counts as gone (10)
    read            seconds to wait for bytes (600)
    retries         further attempts (3) …
    backoff         … after so many seconds (0.1), each time twice as many …
    patience        … or what the service says, up to so many seconds (30)
    busy_only       try again only where the service was too busy
    compression     "zstd", "gzip" or "identity"; by default "identity" on loopback, else "zstd"
    headers         further headers of every request
    tls             an ssl.SSLContext in place of ca, certificate and key
    origin          what errors about these options say of where they come from, such as a profile
    """
    from dai.client import connect as client_connect

    return client_connect(url, **options)


def find(
    text: str | None = None,
    url: str | None = None,
    *,
    kind: str | None = None,
    limit: int = 20,
    unit: str | None = None,
    ucd: str | None = None,
    quantity: str | None = None,
    **options: Any,
) -> "list[Match]":
    """Finds the entries that fit the text best in the registry at ``http://host:port`` (or DAI_SERVER), with the
    reasons: services, resources, tables …, or those of a ``kind``; with columns of that ``unit``, ``ucd`` or
    ``quantity``. Options are those of ``connect``.

    ::

        for each in dai.find("galaxies with redshift", "http://127.0.0.1:8080"):
            print(each.name, each.key, each.reasons)
    """
    from dai.client import find as client_find

    meanings = {"unit": unit, "ucd": ucd, "quantity": quantity}
    chosen = {name: each for name, each in meanings.items() if each is not None}
    return client_find(text, url, kind=kind, limit=limit, meanings=chosen, **options)
