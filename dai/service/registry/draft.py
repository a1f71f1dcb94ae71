"""The mirror as a transaction sees it: with its changes that are not written yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dai.service.registry.database import DELETED, Change, Row
from dai.service.registry.entries import Audience, Entry
from dai.service.registry.mirror import Mirror


class Draft:
    """``now``: when its changes happen."""

    def __init__(self, mirror: Mirror, now: float) -> None:
        self.now = now
        self._mirror = mirror
        self.staged: dict[str, Entry | None] = {}
        """Entries by their keys; None: not there any more."""
        self._added: dict[str, set[str]] = {}
        self._owned: Counter[str] = Counter()
        self.changes: list[Change] = []
        self._undo: list[tuple[str, bool, Entry | None, Counter[str]]] = []

    def get(self, key: str) -> Entry | None:
        return self.staged[key] if key in self.staged else self._mirror.entries.get(key)

    def below(self, key: str) -> list[Entry]:
        """Directly."""
        keys = {each.key for each in self._mirror.below(key)} | self._added.get(key, set())
        children = (self.get(each) for each in sorted(keys))
        return [each for each in children if each is not None and each.parent == key]

    def all_below(self, key: str) -> Iterator[Entry]:
        """What is lower comes first."""
        descendants, waiting = [], [key]
        while waiting:
            below = self.below(waiting.pop())
            descendants += below
            waiting += [each.key for each in below]
        return reversed(descendants)

    def chain(self, entry: Entry) -> Iterator[Entry]:
        """The entry and what it stands below."""
        above: Entry | None = entry
        while above is not None:
            yield above
            above = self.get(above.parent) if above.parent is not None else None

    def audience(self, entry: Entry) -> Audience:
        return frozenset((each.owner, each.readers) for each in self.chain(entry) if each.restricted)

    def owned(self, owner: str) -> int:
        return self._mirror.owned[owner] + self._owned[owner]

    def total(self) -> int:
        return self._mirror.owned.total() + self._owned.total()

    def due(self) -> list[Entry]:
        """Whose lease has ended."""
        due = (self.get(each.key) for each in self._mirror.due(self.now))
        return [each for each in due if each is not None and each.expires is not None and each.expires <= self.now]

    def put(self, entry: Entry, action: str) -> None:
        self._stage(entry.key, entry)
        if entry.parent is not None:
            self._added.setdefault(entry.parent, set()).add(entry.key)
        self._say(entry, action)

    def drop(self, entry: Entry) -> None:
        """With what stands below it."""
        for each in (*self.all_below(entry.key), entry):
            self._say(each, DELETED)
            self._stage(each.key, None)

    def _stage(self, key: str, entry: Entry | None) -> None:
        before = self.get(key)
        self._undo.append((key, key in self.staged, self.staged.get(key), Counter(self._owned)))
        if before is not None:
            self._owned[before.owner] -= before.weight
        if entry is not None:
            self._owned[entry.owner] += entry.weight
        self.staged[key] = entry

    def _say(self, entry: Entry, action: str) -> None:
        number = self._mirror.number + len(self.changes) + 1
        audience = self.audience(entry)
        self.changes.append(Change(number, self.now, action, entry.key, entry.kind, entry.parent, audience))

    def mark(self) -> tuple[int, int]:
        return len(self._undo), len(self.changes)

    def back(self, mark: tuple[int, int]) -> None:
        """To what it was at the mark."""
        steps, changes = mark
        while len(self._undo) > steps:
            key, staged, before, self._owned = self._undo.pop()
            if staged:
                self.staged[key] = before
            else:
                del self.staged[key]
        del self.changes[changes:]

    def rows(self) -> tuple[list[Row], list[str]]:
        """To be written, and the keys of what is gone or in whose place that comes."""
        rows = [(key, each.expires, each.to_bytes().decode()) for key, each in self.staged.items() if each is not None]
        return rows, [key for key in self.staged if key in self._mirror.entries]
