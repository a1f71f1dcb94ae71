"""All entries in memory, with the terms by which they are found. One thread changes it at a time; readers hold its
lock."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

import sqlalchemy as sa

from dai.security.identity import Caller
from dai.security.policies import matches
from dai.service.registry.database import Database
from dai.service.registry.entries import Audience, Entry, terms

K = TypeVar("K", bound=Hashable)
_END = "\U0010ffff"


def sees(caller: Caller, audience: Audience) -> bool:
    """Whether the caller is among each of the readers, or whose entry it is."""
    return caller.administrator or all(caller.name == owner or matches(who, caller) for owner, who in audience)


class Mirror:
    """``number``: of the last change that is in it."""

    def __init__(self, entries: Iterable[Entry] = (), number: int = 0) -> None:
        self.number = number
        self.entries: dict[str, Entry] = {}
        self.owned: Counter[str] = Counter()
        self._below: dict[str, set[str]] = {}
        self._terms: dict[tuple[str, ...], set[str]] = {}
        self._names: dict[str, list[tuple[str, str]]] = {}
        """Names in lower case with their keys, in order, by kind."""
        self._leases: list[tuple[float, str]] = []
        for each in entries:
            self._add(each)

    def catch_up(self, database: Database, connection: sa.Connection | None = None) -> list[str] | None:
        """Takes over what others have written, and gives the keys of that; None: all may be another."""
        if database.last(connection) == self.number:
            return []
        changes = database.changes(self.number, connection=connection)
        if not changes:
            number = database.last(connection)
            self.__init__(database.entries(connection=connection), number)  # type: ignore[misc]
            return None
        keys = list(dict.fromkeys(each.key for each in changes))
        there = {each.key: each for each in database.entries(keys, connection)}
        for key in keys:
            if key in there:
                self.put(there[key])
            else:
                self.drop(key)
        self.number = changes[-1].number
        return keys

    def put(self, entry: Entry) -> None:
        before = self.entries.get(entry.key)
        if before is not None:
            self._remove(before)
        self._add(entry)

    def drop(self, key: str) -> None:
        if (before := self.entries.get(key)) is not None:
            self._remove(before)

    def _add(self, entry: Entry) -> None:
        self.entries[entry.key] = entry
        self.owned[entry.owner] += entry.weight
        if entry.parent is not None:
            self._below.setdefault(entry.parent, set()).add(entry.key)
        for each in set(terms(entry)):
            self._terms.setdefault(each, set()).add(entry.key)
        for name in {text.casefold() for text, _ in entry.names}:
            insort(self._names.setdefault(entry.kind, []), (name, entry.key))
        if entry.expires is not None:
            heapq.heappush(self._leases, (entry.expires, entry.key))
            if len(self._leases) > 2 * len(self.entries) + 1000:  # of leases that were renewed
                self._leases = [(each.expires, key) for key, each in self.entries.items() if each.expires is not None]
                heapq.heapify(self._leases)

    def _remove(self, entry: Entry) -> None:
        del self.entries[entry.key]
        self.owned[entry.owner] -= entry.weight
        if entry.parent is not None:
            _discard(self._below, entry.parent, entry.key)
        for each in set(terms(entry)):
            _discard(self._terms, each, entry.key)
        for name in {text.casefold() for text, _ in entry.names}:
            names = self._names[entry.kind]
            del names[bisect_left(names, (name, entry.key))]

    def below(self, key: str) -> list[Entry]:
        """Directly, by their keys."""
        return [self.entries[each] for each in sorted(self._below.get(key, ()))]

    def chain(self, entry: Entry) -> Iterator[Entry]:
        """The entry and what it stands below."""
        above: Entry | None = entry
        while above is not None:
            yield above
            above = self.entries.get(above.parent) if above.parent is not None else None

    def audience(self, entry: Entry) -> Audience:
        return frozenset((each.owner, each.readers) for each in self.chain(entry) if each.restricted)

    def current(self, entry: Entry) -> bool:
        """Whether neither it nor what it stands below is deprecated."""
        return not any(each.deprecated for each in self.chain(entry))

    def seen(self, key: str, caller: Caller) -> Entry | None:
        """The entry, deprecated or not, where the caller sees it."""
        entry = self.entries.get(key)
        return entry if entry is not None and sees(caller, self.audience(entry)) else None

    def shown(self, keys: Iterable[str], caller: Caller, *, deprecated: bool = False) -> list[Entry]:
        """Those of the entries that the caller sees and that hold, by their keys."""
        entries = (self.seen(each, caller) for each in sorted(keys))
        return [each for each in entries if each is not None and (deprecated or self.current(each))]

    def shown_below(self, entry: Entry, kind: str, caller: Caller) -> list[Entry]:
        """Those of the kind directly below the entry that the caller sees and that hold."""
        return self.shown((each.key for each in self.below(entry.key) if each.kind == kind), caller)

    def having(self, *wanted: tuple[str, ...]) -> set[str]:
        """The keys of what has all the terms (``entries.terms``)."""
        sets = sorted((self._terms.get(each, set()) for each in wanted), key=len)
        return set.intersection(*sets) if sets else set(self.entries)

    def named(self, kind: str, beginning: str) -> Iterator[str]:
        """Keys of the kind with a name that begins so, whatever the case of its letters."""
        names = self._names.get(kind, [])
        first = beginning.casefold()
        for at in range(bisect_left(names, (first, "")), bisect_left(names, (first + _END, ""))):
            yield names[at][1]

    def due(self, now: float) -> list[Entry]:
        """Those whose lease has ended by then."""
        ended = []
        while self._leases and self._leases[0][0] <= now:
            moment, key = heapq.heappop(self._leases)
            entry = self.entries.get(key)
            if entry is not None and entry.expires == moment:
                ended.append(entry)
        for each in ended:
            # until they are gone
            heapq.heappush(self._leases, (each.expires or now, each.key))
        return ended

    def next_end(self) -> float | None:
        while self._leases:
            moment, key = self._leases[0]
            entry = self.entries.get(key)
            if entry is not None and entry.expires == moment:
                return moment
            heapq.heappop(self._leases)
        return None


def _discard(sets: dict[K, set[str]], at: K, key: str) -> None:
    held = sets[at]
    held.discard(key)
    if not held:
        del sets[at]
