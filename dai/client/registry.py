"""Asks a registry, and publishes in one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from dai.client.http.transport import Options, Reply, Transport
from dai.errors import DataError
from dai.streams.cancellation import Cancellation

JSON, SPARQL, SOLUTIONS = "application/json", "application/sparql-query", "application/sparql-results+json"


@dataclass(frozen=True)
class Match:
    """What fits a text: an entry of the registry, how well (the higher the better), and why."""

    key: str
    kind: str
    name: str
    score: float
    reasons: Sequence[str]
    owner: str = ""


class RegistryClient:
    """Thread-safe. Each call raises UnreachableError or the error of the service, or the cause of ``cancellation``."""

    def __init__(self, url: str, options: Options | None = None, cancellation: Cancellation | None = None) -> None:
        self._transport, self._cancellation = Transport(url, options or Options()), cancellation

    def ask(self, method: str, path: str, body: Any = None, accept: str = JSON, **asked: str) -> Any:
        """``body``: members of JSON, or the text of a query."""
        sent = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
        headers = {"Accept": accept}
        if sent is not None:
            headers["Content-Type"] = SPARQL if isinstance(body, str) else JSON
        query = f"?{urlencode(asked)}" if asked else ""
        reply = self._transport.send(
            method, f"/registry{path}{query}", body=sent, headers=headers, cancellation=self._cancellation
        )
        with reply.body as answer:
            try:
                return json.loads(answer.read_small())
            except (ValueError, RecursionError) as error:
                raise DataError("The address answers, but it is not a registry.") from error

    def find(self, text: str | None = None, kind: str | None = None, limit: int = 20, **meanings: str) -> list[Match]:
        """The best first. ``meanings``: ``unit``, ``ucd``, ``quantity`` of a column."""
        chosen = {name: each for name, each in {"text": text, "kind": kind}.items() if each is not None}
        answer = self.ask("GET", "/find", limit=str(limit), **chosen, **meanings)
        try:
            return [
                Match(each["key"], each["kind"], _name(each), each["score"], each["reasons"], each["owner"])
                for each in answer["found"]
            ]
        except (KeyError, TypeError) as error:
            raise DataError("The address answers, but it is not a registry.") from error

    def publish(self, entries: Iterable[Mapping[str, Any]], *, whole: bool = False) -> None:
        """All of them, or none. ``whole``: what else stood below the first one goes, but for metadata."""
        self.ask("POST", "/entries", {"entries": [*entries], "whole": whole})

    def entry(self, key: str) -> Mapping[str, Any]:
        """NotFoundError where it is not there. ``time`` is that of the registry's clock."""
        return self._members(self.ask("GET", "/entry", key=key))

    def metadata(self, type: str) -> Iterator[Mapping[str, Any]]:
        """All of the type."""
        offset: int | None = 0
        while offset is not None:
            page = self._members(self.ask("GET", "/metadata", type=type, offset=str(offset)))
            yield from page["entries"]
            offset = page["next"]

    def changes(self, after: int) -> Reply:
        """The feed of changes behind a number, with renewals, as server-sent events. Close its body."""
        return self._transport.send(
            "GET",
            f"/registry/changes?after={after}&renewals=true",
            headers={"Accept": "text/event-stream"},
            cancellation=self._cancellation,
        )

    def sparql(self, query: str) -> list[Mapping[str, str]]:
        """The solutions of a query."""
        answer = self._members(self.ask("POST", "/sparql", query, SOLUTIONS))
        try:
            bindings = answer["results"]["bindings"]
            return [{name: str(value["value"]) for name, value in each.items()} for each in bindings]
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                "The registry answered, but not with a table of solutions.", hint="Send a SELECT query."
            ) from error

    @staticmethod
    def _members(answer: Any) -> Mapping[str, Any]:
        if not isinstance(answer, dict):
            raise DataError("The address answers, but it is not a registry.")
        return answer

    def renew(self, keys: Sequence[str], seconds: float) -> None:
        """NotFoundError where one of them is not there."""
        self.ask("POST", "/leases", {"keys": keys, "seconds": seconds})

    def deprecate(self, key: str) -> None:
        self.ask("POST", "/deprecated", {"key": key})

    def close(self) -> None:
        self._transport.close()


def _name(entry: Mapping[str, Any]) -> str:
    said = entry.get("name", "")
    return said if isinstance(said, str) else str(said[0]["text"])
