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
    perform   perform documents: parser, activities, pipeline, response        client  the HTTP API from the other side
    drivers   databases                                                        formats  encodings
    streams   record batches, blocks, the queue, cancellation
    config  plugins  errors
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dai.client import Resource

__version__ = "0.1.0"


def connect(url: str, **options: Any) -> "Resource":
    """The data resource at ``http://host:port/resource``; see ``dai.client``."""
    from dai.client import connect as client_connect

    return client_connect(url, **options)
