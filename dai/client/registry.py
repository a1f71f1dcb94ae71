"""Asks a registry, and publishes in one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from dai.client.http.transport import Options, Transport
from dai.errors import DataError
from dai.streams.cancellation import Cancellation


@dataclass(frozen=True)
class Found:
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

    def ask(self, method: str, path: str, body: Any = None, **asked: str) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", **({} if sent is None else {"Content-Type": "application/json"})}
        query = f"?{urlencode(asked)}" if asked else ""
        reply = self._transport.send(
            method, f"/registry{path}{query}", body=sent, headers=headers, cancellation=self._cancellation
        )
        with reply.body as answer:
            try:
                return json.loads(answer.read_all())
            except ValueError as error:
                raise DataError("The address answers, but not as a registry.") from error

    def find(self, text: str, kind: str | None = None, limit: int = 20) -> list[Found]:
        """The best first."""
        chosen = {} if kind is None else {"kind": kind}
        answer = self.ask("GET", "/find", text=text, limit=str(limit), **chosen)
        try:
            return [
                Found(each["key"], each["kind"], _name(each), each["score"], each["reasons"], each["owner"])
                for each in answer["found"]
            ]
        except (KeyError, TypeError) as error:
            raise DataError("The address answers, but not as a registry.") from error

    def publish(self, entries: Iterable[Mapping[str, Any]], *, whole: bool = False) -> None:
        """All of them, or none. ``whole``: what else stood below the first one goes, but for metadata."""
        self.ask("POST", "/entries", {"entries": [*entries], "whole": whole})

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
