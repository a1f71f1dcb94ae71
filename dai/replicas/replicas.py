"""Catalog, index and updates of one server."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from dai.client.http.transport import Options, Transport
from dai.config import RegistryConfig, ReplicasConfig, is_web
from dai.errors import ConfigurationError, ConflictError, DaiError, DataError, LimitError, TooLargeError, TruncatedError
from dai.formats import format_named
from dai.replicas.catalog.catalog import Catalog
from dai.replicas.catalog.operations import Index
from dai.replicas.codes import Code, Refused
from dai.replicas.filters import Filter, arrow
from dai.replicas.index import ReplicaIndex, Update
from dai.replicas.members import Members
from dai.replicas.updates import Receiver, Updates

log = logging.getLogger("dai.replicas")

ARROW = "application/vnd.apache.arrow.stream"
FILTER = "application/octet-stream"
PORTION_NAMES = 50_000
MOST_NAMES = 20 * PORTION_NAMES
"""Of a portion that arrives."""
"""Names in one request to an index."""
CHANGEABLE: Mapping[str, tuple[str, Callable[[str], float]]] = {
    "update_buftime": ("change_seconds", float),
    "update_factor": ("changes", int),
    "rli_expire_int": ("update_seconds", float),
}
"""Settings that callers may change: the protocol's name, the key of the configuration, and how the value is read."""
MOST_SECONDS = 10_000_000
_PENDING_SECONDS = 120.0
_MOST_PENDING = 64


class Replicas:
    """``settings.catalog`` is set. ``directory``: where temporary files are."""

    def __init__(
        self, settings: ReplicasConfig, directory: Path | None = None, registry: RegistryConfig | None = None
    ) -> None:
        assert settings.catalog is not None
        self.settings = settings
        self._lock = threading.Lock()
        self._remote: dict[str, Remote] = {}
        self._pending: dict[str, tuple[Update, float]] = {}
        with ExitStack() as opened:
            self.catalog = Catalog(settings.catalog)
            opened.callback(self.catalog.close)
            self.index = ReplicaIndex(directory)
            opened.callback(self.index.close)
            members = None
            if settings.index_publishers and registry is not None:
                members = Members(registry, settings)
            self._updates = Updates(self.catalog, settings, settings.url or "local", self.receiver, members)
            opened.pop_all()

    def tells(self, url: str) -> bool:
        """Whether an index at the URL can be told: one by HTTP, or this server's own."""
        return url == self.settings.url or is_web(url)

    def receiver(self, url: str) -> Receiver:
        """How the index at the URL is told. ConfigurationError where it is none that can be: it was added when this
        server had another name."""
        if url == self.settings.url:
            return Local(self.index)
        if not is_web(url):
            raise ConfigurationError(
                f"The index {url!r} is neither at the address of a service nor this server's own, whose name is "
                f"{self.settings.url!r} (replicas.url).",
                hint=f"Remove it: dai replicas indexes --forget {url}",
            )
        with self._lock:
            if url not in self._remote:
                self._remote[url] = Remote(url, self.settings)
            return self._remote[url]

    def sent(self, url: str) -> tuple[float, float]:
        """The period of updates, and when the index was last sent one (0: never)."""
        return self.settings.update_seconds, self._updates.sent(url)

    def told_indexes(self) -> list[Index]:
        return self._updates.targets()

    def update_now(self) -> None:
        self._updates.now()

    def configuration(self) -> dict[str, str]:
        """The settings that callers may read."""
        settings = self.settings
        return {
            "lrc_server": "true",
            "rli_server": "true",
            "myurl": settings.url or "",
            "update_immediate": "true",
            "update_buftime": f"{settings.change_seconds:g}",
            "update_factor": f"{settings.changes}",
            "rli_expire_int": f"{settings.update_seconds:g}",
        }

    def configure(self, name: str, value: str) -> None:
        """Changes what ``configuration`` says until the server ends. Refused for what callers may not change."""
        if name not in self.configuration():
            raise Refused(Code.BADARG, name)
        if name not in CHANGEABLE:
            raise Refused(Code.UNSUPPORTED, f"{name} is set in the configuration of the server")
        key, read = CHANGEABLE[name]
        try:
            number: Any = read(value)
        except ValueError:
            raise Refused(Code.BADARG, f"{value[:40]!r} is no number") from None
        if not 0 < number < MOST_SECONDS:
            raise Refused(Code.BADARG, f"{value[:40]!r} is out of range")
        with self._lock:
            self.settings = dataclasses.replace(self.settings, **{key: number})
            self._updates.configure(self.settings)

    # An update that arrives in portions

    def receive(self, update: str, catalog: str, expected: int, names: Sequence[str], seconds: float | None) -> None:
        """A portion of all names of a catalog; ``update`` is a word that its sender made up for this time. With
        ``seconds`` it is the last, and the names hold for so long. ConflictError where the first portions are gone."""
        now = time.monotonic()
        with self._lock:
            for each, (pending, last) in list(self._pending.items()):
                if last < now - _PENDING_SECONDS:
                    pending.abandon()
                    del self._pending[each]
            if update not in self._pending:
                if len(self._pending) >= _MOST_PENDING:
                    raise LimitError(f"{_MOST_PENDING} updates of this index are already in progress.")
                self._pending[update] = self.index.update(catalog, expected), now
            pending, _ = self._pending[update]
            self._pending[update] = pending, now
            if pending.url != catalog:
                raise ConflictError("The update belongs to another catalog.")
        pending.add(names)
        if seconds is not None:
            pending.finish(seconds)
            with self._lock:
                self._pending.pop(update, None)
        self._relay(lambda parent: parent.portion(update, catalog, expected, names, seconds))

    def take_filter(self, catalog: str, names: Filter, seconds: float) -> None:
        """All names of a catalog, by a filter."""
        self.index.put_filter(catalog, names, seconds)
        self._relay(lambda parent: parent.filter(catalog, names, seconds))

    def take_changes(self, catalog: str, added: Sequence[str], removed: Sequence[str], seconds: float) -> bool:
        """What changed since; False where all names have to be sent."""
        taken = self.index.change(catalog, added, removed, seconds)
        if taken:
            self._relay(lambda parent: parent.changes(catalog, added, removed, seconds))
        return taken

    def withdraw(self, catalog: str) -> None:
        """The catalog is gone."""
        self.index.withdraw(catalog)
        self._relay(lambda parent: parent.withdraw(catalog))

    def _relay(self, tell: Callable[[Remote], object]) -> None:
        """Sends an update on to the indexes above. One that cannot be reached gets the next update."""
        for url in self.settings.parents:
            try:
                parent = self.receiver(url)
                if isinstance(parent, Remote):
                    tell(parent)
            except DaiError as error:
                log.warning("an index above was not told", extra={"index": url, "detail": error.detail})

    def reap(self) -> None:
        self.index.reap()

    def close(self) -> None:
        self._updates.close()
        for each in self._remote.values():
            each.close()
        self.catalog.close()
        self.index.close()


class Local:
    """The index of this server."""

    def __init__(self, index: ReplicaIndex) -> None:
        self._index = index

    def names(self, url: str, expected: int, portions: Iterable[Sequence[str]], seconds: float) -> None:
        update = self._index.update(url, expected)
        try:
            for each in portions:
                update.add(each)
        except BaseException:
            update.abandon()
            raise
        update.finish(seconds)

    def filter(self, url: str, names: Filter, seconds: float) -> None:
        self._index.put_filter(url, names, seconds)

    def changes(self, url: str, added: Sequence[str], removed: Sequence[str], seconds: float) -> bool:
        return self._index.change(url, added, removed, seconds)

    def withdraw(self, url: str) -> None:
        self._index.withdraw(url)


class Remote:
    """The index of another server, over HTTP. The token is for those of the configuration: a caller may have named the
    others."""

    def __init__(self, url: str, settings: ReplicasConfig) -> None:
        listed = {urlsplit(each)[:2] for each in settings.index_addresses}
        known = url in (*settings.indexes, *settings.parents) or urlsplit(url)[:2] in listed
        token = settings.token if known else None
        self._transport = Transport(url, Options(token=token, ca=settings.ca, read=120.0))
        self._path = "/replicas/index"

    def names(self, url: str, expected: int, portions: Iterable[Sequence[str]], seconds: float) -> None:
        update = secrets.token_hex(16)
        for names, last in _with_last(_joined(portions)):
            self.portion(update, url, expected, names, seconds if last else None)

    def portion(self, update: str, url: str, expected: int, names: Sequence[str], seconds: float | None) -> None:
        asked = {"catalog": url, "expected": str(expected), "update": update}
        if seconds is not None:
            asked["seconds"] = f"{seconds:g}"
        self._send("POST", f"/names?{urlencode(asked)}", _stream(names), ARROW)

    def filter(self, url: str, names: Filter, seconds: float) -> None:
        asked = urlencode({"catalog": url, "seconds": f"{seconds:g}"})
        self._send("POST", f"/filter?{asked}", names.to_bytes(), FILTER)

    def changes(self, url: str, added: Sequence[str], removed: Sequence[str], seconds: float) -> bool:
        import orjson

        body = orjson.dumps({"catalog": url, "seconds": seconds, "added": added, "removed": removed})
        answer = self._send("POST", "/changes", body, "application/json")
        try:
            return bool(orjson.loads(answer)["taken"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError("The address answers, but it is not a replica index.") from error

    def withdraw(self, url: str) -> None:
        self._send("DELETE", f"/catalogs?catalog={quote(url, safe='')}", None, None)

    def _send(self, method: str, path: str, body: bytes | None, media_type: str | None) -> bytes:
        headers = {} if media_type is None else {"Content-Type": media_type}
        with self._transport.send(method, self._path + path, body=body, headers=headers).body as answer:
            data: bytes = answer.read_all()
            return data

    def close(self) -> None:
        self._transport.close()


def _joined(portions: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    """In larger portions."""
    joined: list[str] = []
    for each in portions:
        joined += each
        if len(joined) >= PORTION_NAMES:
            yield joined
            joined = []
    yield joined


def _with_last(portions: Iterator[list[str]]) -> Iterator[tuple[list[str], bool]]:
    before = next(portions)
    for each in portions:
        yield before, False
        before = each
    yield before, True


def _stream(names: Sequence[str]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"logical": arrow(names)})
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def names_of(data: bytes) -> list[str]:
    """Of an Arrow stream with a column ``logical``. DataError for what is none, TooLargeError for too many."""
    names: list[str] = []
    try:
        with format_named("arrow").decode([data]) as stream:
            for batch in stream:
                if len(names) + batch.num_rows > MOST_NAMES:
                    raise TooLargeError(f"A portion can have at most {MOST_NAMES:,} names.")
                names += batch.column("logical").to_pylist()
    except TruncatedError as error:
        raise DataError(error.detail) from error
    return names
