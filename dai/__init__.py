"""dai: a data service. People and programs submit perform documents (XML workflows) over HTTP to data resources; the
activities run as one streaming pipeline; results leave as WebRowSet, CSV, Arrow, Parquet or JSON lines in blocks.

The execution model, once: tuples are Arrow record batches and nothing else (``stream``). A pipeline is a chain of
synchronous generators run in a worker thread; pulling is the back-pressure. A queue exists in one place
(``mailbox``). Every request has one ``cancellation`` and one ``ExitStack`` (``pipeline``); the first cause of a
failure wins.

Modules import downwards only::

    api        HTTP: one module a router; the only place that knows FastAPI
    jobs sessions resources results store
               what outlives a request: UWS jobs, named streams, drivers, files, the state database
    response pipeline        Perform -> running pipeline -> response document
    perform    bytes -> validated, frozen Perform; the XSD of the installed activities
    activities activity      what a document can do; each declared once
    mailbox drivers formats  the queue; databases; encodings
    stream     Stream, ByteStream, Block
    loading config errors cancellation

``client`` speaks the HTTP API from the other side; ``__main__`` holds the commands.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dai.client import Resource

__version__ = "0.1.0"


def connect(url: str, **options: Any) -> "Resource":
    """The data resource at ``http://host:port/resource``; see ``dai.client``."""
    from dai.client import connect as client_connect

    return client_connect(url, **options)
