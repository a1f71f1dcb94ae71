"""The process that answers queries: ``python -m dai.service.registry.sparql.worker``, started by ``process.Queries``.

It has one thread, so that it may fork. A query comes with a socket of its own, to which the fork writes the answer: a
line of JSON (a refusal, or how the answer begins), the answer, and END, without which it was cut short.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import socket
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dai.errors import DaiError, TooLargeError
from dai.security.identity import Caller
from dai.service.registry.database import Database
from dai.service.registry.entries import Audience, Entry
from dai.service.registry.mirror import Mirror, sees
from dai.service.registry.rdf.triples import graph_of, oxigraph, quads, statement

MOST_QUERY = 100_000
"""Characters."""
END = b"\0end"
Said = tuple[Entry, Audience]


class Triples:
    """The triples of a mirror's entries whose leases hold."""

    def __init__(self, mirror: Mirror) -> None:
        self.store = oxigraph().Store()
        self.audiences: Counter[Audience] = Counter()
        self._mirror = mirror
        self._said: dict[str, Said] = {}
        self._stated: Counter[str] = Counter()
        """How many say the same of another entry."""

    def follow(self, keys: Iterable[str] | None) -> None:
        """The entries of these keys may be others now; None: all."""
        if keys is None:
            self.__init__(self._mirror)  # type: ignore[misc]
            keys = list(self._mirror.entries)
        added: list[Any] = []
        waiting = list(keys)
        while waiting:
            key = waiting.pop()
            entry = self._mirror.entries.get(key)
            new = None
            if entry is not None and self._mirror.current(entry):
                new = entry, self._mirror.audience(entry)
            before = self._said.get(key)
            if new == before:
                continue
            if before is not None:
                if added:
                    self.store.extend(added)
                    added = []
                self._remove(key, before)
            if new is not None:
                added += self._added(key, new)
            if (before is None) != (new is None) or (before and new and before[1] != new[1]):
                # what stands below it is seen by others now
                waiting += [each.key for each in self._mirror.below(key)]
        self.store.bulk_extend(added)

    def _added(self, key: str, new: Said) -> list[Any]:
        try:
            statements, stated = list(quads(*new)), statement(*new)
        except (
            ValueError
        ):  # RDF cannot express a value that an earlier release accepted; other entries must not suffer from it
            return []
        self._said[key] = new
        self.audiences[new[1]] += 1
        if stated is not None:
            self._stated[str(stated)] += 1
            statements.append(stated)
        return statements

    def _remove(self, key: str, before: Said) -> None:
        del self._said[key]
        self.audiences[before[1]] -= 1
        for each in quads(*before):
            self.store.remove(each)
        if (stated := statement(*before)) is not None:
            self._stated[str(stated)] -= 1
            if not self._stated[str(stated)]:
                del self._stated[str(stated)]
                self.store.remove(stated)

    def graphs(self, caller: Caller) -> list[Any]:
        """Those that the caller sees."""
        return [graph_of(each) for each, count in self.audiences.items() if count and sees(caller, each)]


class _Bounded(io.BytesIO):
    """Takes so many bytes. An answer leaves when all of it is there: what fails half-way is refused as a whole."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._most:
            raise TooLargeError
        return super().write(data)


def answer(triples: Triples, asked: dict[str, Any], to: socket.socket) -> None:
    ox = oxigraph()
    caller = Caller(asked["caller"], administrator=asked["administrator"], groups=frozenset(asked["groups"]))
    graphs = triples.graphs(caller) or [ox.DefaultGraph()]
    try:
        answered = triples.store.query(asked["query"], default_graph=graphs, named_graphs=[])
        about = "triples" if isinstance(answered, ox.QueryTriples) else "solutions"
        media_type = next((each for each in asked["accept"] if each in asked[about]), None)
        if media_type is None:
            _say(to, "unacceptable", about)
            return
        formats = ox.RdfFormat if about == "triples" else ox.QueryResultsFormat
        whole = _Bounded(asked["bytes"])
        answered.serialize(whole, format=formats.from_media_type(media_type))
        to.sendall(json.dumps({"type": media_type}).encode() + b"\n" + whole.getvalue() + END)
    except TooLargeError:
        _say(to, "large", "yes")
    except (SyntaxError, ValueError) as error:
        _say(to, "refused", str(error))
    except OSError:
        _say(to, "refused", "it asks another service (SERVICE).")


def _say(to: socket.socket, what: str, text: str) -> None:
    to.sendall(json.dumps({what: text}).encode() + b"\n" + END)


def fork(triples: Triples, data: bytes, to: socket.socket) -> None:
    if os.fork():
        return
    status = 1
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        asked = json.loads(data)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(asked["seconds"])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # nothing more can be opened: no file, and no connection to another service
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        most = used + asked["memory"]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        answer(triples, asked, to)
        status = 0
    finally:
        os._exit(status)


def _line(control: socket.socket) -> str:
    """One byte after the other, because what follows has descriptors."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := control.recv(1)):
        line += byte
    return line.decode().strip()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=0)
    database = Database(_line(control))
    number = database.last()
    mirror = Mirror(database.entries(), number)
    triples = Triples(mirror)
    triples.follow(None)
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        with socket.socket(fileno=descriptors[0]) as to:
            try:
                data = bytearray()
                while not data.endswith(b"\n") and (portion := to.recv(1 << 16)):
                    data += portion
                triples.follow(mirror.catch_up(database))
                fork(triples, bytes(data), to)
            except DaiError as error:
                _say(to, "unavailable", str(error))
            except OSError:
                pass


if __name__ == "__main__":
    main()
