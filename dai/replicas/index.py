"""The replica location index: which catalogs have a logical name.

It is soft state: catalogs tell it their names again and again, and what they do not repeat in time expires. A catalog
sends all its names or a filter of them (``filters``), and changes in between. Nothing of it lasts: after a restart the
index knows what it is told from then on.

All catalogs have a filter here, so that a look-up asks all of them at once; the names of those that sent names are
also in tables of a temporary SQLite file, which say whether the filter was right.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dai.errors import LimitError
from dai.replicas.catalog.database import Connection
from dai.replicas.catalog.operations import Pair
from dai.replicas.codes import Code, Refused
from dai.replicas.filters import SEED, Filter, Slices, arrow, hashed, hashes
from dai.replicas.names import ESCAPE, beginning, complete

_FAST = (
    "pragma locking_mode=exclusive",
    "pragma journal_mode=off",
    "pragma synchronous=off",
    "pragma case_sensitive_like=on",
    "pragma cache_size=-65536",
)
_PORTION = 2000
"""Names that are written while look-ups wait."""
_FULL = 2
"""A filter with so many times the names it was made for is made anew."""
MOST_CATALOGS = 10_000


@dataclass
class Known:
    """A catalog that the index knows. ``table``: the number of its names' table; None where it sent a filter."""

    url: str
    expires: float
    slices: Slices
    number: int
    expected: int
    table: int | None = None
    names: int = 0
    updated: float = field(default_factory=time.time)


class Update:
    """All names of a catalog, on their way in: ``add`` portions, then ``finish``; ``abandon`` undoes it."""

    def __init__(self, index: ReplicaIndex, url: str, expected: int) -> None:
        self._index, self.url, self.expected = index, url, max(expected, 1)
        self.filter = Filter.empty(self.expected)
        self.table = index._new_table()

    def add(self, names: Sequence[str]) -> None:
        self.filter.add(arrow(names))
        self._index._insert(self.table, names)

    def finish(self, seconds: float) -> None:
        """The names are those of the catalog from now on, for so many seconds."""
        self._index._take(self.url, self.filter, seconds, self.table)

    def abandon(self) -> None:
        self._index._drop(self.table)


class ReplicaIndex:
    """Thread-safe. ``directory``: where the temporary file is."""

    def __init__(self, directory: Path | None = None) -> None:
        self._holder = tempfile.TemporaryDirectory(prefix="dai-index-", dir=directory)
        self._engine = sa.create_engine(
            f"sqlite:///{self._holder.name}/names.db",
            poolclass=sa.pool.NullPool,
            connect_args={"isolation_level": None, "check_same_thread": False},
        )
        raw = self._engine.raw_connection()
        raw.detach()
        self._db = Connection(raw, sqlite=True)
        for each in _FAST:
            self._db.all(each)
        self._lock = threading.RLock()
        self._known: dict[str, Known] = {}
        self._slices: dict[tuple[int, int], Slices] = {}
        self._tables = 0

    # What catalogs send

    def update(self, url: str, expected: int) -> Update:
        """All names of the catalog at the URL are coming; about so many."""
        self._room(url)
        return Update(self, url, expected)

    def put_filter(self, url: str, names: Filter, seconds: float) -> None:
        """The catalog's names by a filter, in the place of what was known of it."""
        self._room(url)
        self._take(url, names, seconds, None)

    def change(self, url: str, added: Sequence[str], removed: Iterable[str], seconds: float) -> bool:
        """What changed since the catalog's last update, which lasts so many seconds more; False where the index knows
        nothing of the catalog, which has to send everything."""
        values = hashes(arrow(added), SEED) if added else ()
        with self._lock:
            known = self._alive(url)
            if known is None or known.slices.seed != SEED:
                return False
            for value in values:
                known.slices.add(known.number, int(value))
            if known.table is not None:
                table = f"names_{known.table}"
                with self._db.transaction():
                    self._db.many(f"insert or ignore into {table} values (?)", [(each,) for each in added])
                    self._db.many(f"delete from {table} where logical = ?", [(each,) for each in removed])
            known.names += len(added)
            known.expires, known.updated = time.monotonic() + seconds, time.time()
            return known.names <= _FULL * known.expected

    def withdraw(self, url: str) -> None:
        """The catalog is gone."""
        with self._lock:
            self._forget(url)

    # Look-ups

    def catalogs(self, name: str) -> list[str]:
        """The URLs of the catalogs that have the name, in order; those that sent a filter may be there in error.
        Refused where there is none."""
        urls: list[str] = []
        with self._lock:
            now = time.monotonic()
            for slices in self._slices.values():
                if not slices.members:
                    continue
                for url in slices.having(hashed(name, slices.seed)):
                    known = self._known[url]
                    if known.expires > now and (known.table is None or self._has(known.table, name)):
                        urls.append(url)
        if not urls:
            raise Refused(Code.LFN_NEXIST, name)
        return sorted(urls)

    def catalogs_of(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Of each of the names, those that are there."""
        by_name = {}
        for name in names:
            try:
                by_name[name] = self.catalogs(name)
            except Refused:
                continue
        return by_name

    def matching(self, pattern: str, offset: int = 0, limit: int = 0) -> tuple[list[Pair], bool]:
        """Names that fit an SQL pattern with their catalogs, in order, and whether catalogs that sent filters, which
        know no patterns, are left out. Refused where there is none."""
        begun, pattern = beginning(pattern), complete(pattern)
        condition, values = f"logical like ? escape '{ESCAPE}'", [pattern]
        if begun:
            condition, values = f"logical >= ? and logical < ? and {condition}", [begun, begun + "\U0010ffff", pattern]
        with self._lock:
            alive = [each for url in list(self._known) if (each := self._alive(url)) is not None]
            tables = [each for each in alive if each.table is not None]
            partial = len(tables) < len(alive)
            rows: list[Any] = []
            if tables:
                union = " union all ".join(
                    f"select logical, ? from names_{each.table} where {condition}" for each in tables
                )
                rows = self._db.all(
                    f"{union} order by 1, 2 limit {limit or (1 << 62)} offset {offset}",
                    *(value for each in tables for value in (each.url, *values)),
                )
        if not rows and not offset:
            if partial and not tables:
                raise Refused(Code.UNSUPPORTED, "the catalogs of this index send filters, which know no patterns")
            raise Refused(Code.LFN_NEXIST, pattern)
        return [(name, url) for name, url in rows], partial

    def senders(self) -> list[Known]:
        with self._lock:
            return [each for url in sorted(self._known) if (each := self._alive(url)) is not None]

    def counts(self) -> dict[str, int]:
        """``catalogs``, and ``names`` of all of them, as often as a catalog has them."""
        alive = self.senders()
        return {"catalogs": len(alive), "names": sum(each.names for each in alive)}

    def reap(self) -> None:
        """Forgets what has expired, so that it takes no room."""
        with self._lock:
            for url in [url for url, each in self._known.items() if each.expires <= time.monotonic()]:
                self._forget(url)

    def close(self) -> None:
        with self._lock:
            self._known.clear()
            self._slices.clear()
            self._db.close()
            self._engine.dispose()
        self._holder.cleanup()

    # Inside

    def _room(self, url: str) -> None:
        with self._lock:
            if url not in self._known and len(self._known) >= MOST_CATALOGS:
                raise LimitError(f"The index already knows {MOST_CATALOGS:,} catalogs, the most that it can have.")

    def _alive(self, url: str) -> Known | None:
        known = self._known.get(url)
        return known if known is not None and known.expires > time.monotonic() else None

    def _has(self, table: int, name: str) -> bool:
        return bool(self._db.all(f"select 1 from names_{table} where logical = ?", name))

    def _new_table(self) -> int:
        with self._lock:
            self._tables += 1
            self._db.run(f"create table names_{self._tables} (logical text primary key) without rowid")
            return self._tables

    def _insert(self, table: int, names: Sequence[str]) -> None:
        for at in range(0, len(names), _PORTION):
            rows = [(each,) for each in names[at : at + _PORTION]]
            with self._lock, self._db.transaction():
                self._db.many(f"insert or ignore into names_{table} values (?)", rows)

    def _drop(self, table: int) -> None:
        with self._lock:
            self._db.run(f"drop table if exists names_{table}")

    def _take(self, url: str, names: Filter, seconds: float, table: int | None) -> None:
        with self._lock:
            self._forget(url)
            place = (names.size, names.seed)
            slices = self._slices.setdefault(place, Slices(*place))
            number = slices.put(url, names.bits)
            self._known[url] = Known(
                url, time.monotonic() + seconds, slices, number, max(names.names, 1), table, names.names
            )

    def _forget(self, url: str) -> None:
        known = self._known.pop(url, None)
        if known is None:
            return
        known.slices.remove(known.number)
        if not known.slices.members:
            del self._slices[known.slices.size, known.slices.seed]
        if known.table is not None:
            self._drop(known.table)
