"""The service's end of the process that answers queries (``worker``)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dai.config import RegistryConfig
from dai.errors import DatabaseUnavailableError, LimitError, NotAcceptableError, ParameterError, TooLargeError
from dai.security.identity import Caller
from dai.service.registry.rdf.triples import oxigraph
from dai.service.registry.sparql.worker import END, MOST_QUERY
from dai.streams.program import ForkServer

SOLUTIONS = (
    "application/sparql-results+json",
    "application/sparql-results+xml",
    "text/csv",
    "text/tab-separated-values",
    "application/json",
)
TRIPLES = ("text/turtle", "application/n-triples", "application/rdf+xml", "application/ld+json")
AT_ONCE, OF_ONE = 4, 2
"""Queries that are answered at once, and of them those of one caller; others wait for their turn."""
GRACE_SECONDS = 60
"""Beyond the time of a query, in which the process begins to answer: it may have to read all entries."""


@dataclass(frozen=True, slots=True)
class Answer:
    media_type: str
    body: bytes


def check_length(query: str) -> None:
    if len(query) > MOST_QUERY:
        raise ParameterError(f"The query has {len(query):,} characters; {MOST_QUERY:,} are allowed.")


class Queries:
    """Thread-safe. The process starts with the first query, and again if it died."""

    def __init__(self, settings: RegistryConfig) -> None:
        self._settings = settings
        self._server = ForkServer("-m", "dai.service.registry.sparql.worker", first=f"{settings.store}\n".encode())
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="sparql")
        self._turns: dict[str, tuple[asyncio.Semaphore, int]] = {}
        """Of each caller who asks, with how many use it. For the event loop alone."""

    async def asked(self, query: str, caller: Caller, accept: Sequence[str]) -> Answer:
        """``answer`` in a thread, when it is the caller's turn."""
        turn, users = self._turns.get(caller.name) or (asyncio.Semaphore(OF_ONE), 0)
        self._turns[caller.name] = turn, users + 1
        try:
            async with turn:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, self.answer, query, caller, accept)
        finally:
            users = self._turns[caller.name][1]
            self._turns[caller.name] = turn, users - 1
            if users == 1:
                del self._turns[caller.name]

    def answer(self, query: str, caller: Caller, accept: Sequence[str]) -> Answer:
        """``accept``: media types, the best first. ParameterError for what is no query that reads, LimitError and
        TooLargeError beyond the limits, NotAcceptableError where none of the types is for its kind of answer."""
        check_length(query)
        settings = self._settings
        asked = {
            "query": query,
            "caller": caller.name,
            "administrator": caller.administrator,
            "groups": sorted(caller.groups),
            "accept": list(accept),
            "solutions": SOLUTIONS,
            "triples": TRIPLES,
            "seconds": settings.query_seconds,
            "bytes": settings.query_bytes,
            "memory": settings.query_memory,
        }
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                oxigraph()
                try:
                    self._server.hand_over(theirs.fileno())
                except OSError:
                    raise DatabaseUnavailableError("The process that answers queries does not start.") from None
            ours.settimeout(settings.query_seconds + GRACE_SECONDS)
            try:
                ours.sendall(json.dumps(asked).encode() + b"\n")
                data = _all(ours)
            except OSError as error:
                raise DatabaseUnavailableError(
                    "The process that answers queries has ended; send the query again."
                ) from error
        return self._read(data)

    def _read(self, data: bytes) -> Answer:
        head, line, body = data.partition(b"\n")
        said = json.loads(head) if line else {}
        if "large" in said:
            most = self._settings.query_bytes
            raise TooLargeError(f"The answer has more than {most:,} bytes.", hint="Add a LIMIT to the query.")
        if reason := said.get("refused"):
            raise ParameterError(f"This is not a SPARQL 1.1 query: {reason}")
        if about := said.get("unacceptable"):
            types = SOLUTIONS if about == "solutions" else TRIPLES
            raise NotAcceptableError(f"The answer comes as {about}.", hint=f"It can be {', '.join(types)}.")
        if reason := said.get("unavailable"):
            raise DatabaseUnavailableError(reason)
        if not body.endswith(END):
            settings = self._settings
            raise LimitError(
                f"The query took more than {settings.query_seconds} seconds or {settings.query_memory:,} bytes of"
                " memory.",
                hint="Ask for less, or in smaller parts.",
            )
        return Answer(said["type"], body.removesuffix(END))

    def close(self) -> None:
        self._server.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _all(source: socket.socket) -> bytes:
    parts = []
    while part := source.recv(1 << 18):
        parts.append(part)
    return b"".join(parts)
