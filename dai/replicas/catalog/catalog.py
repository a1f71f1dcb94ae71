"""The local replica catalog: reads of committed state. What it is asked to change goes to its ``writer``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from dai.errors import DatabaseUnavailableError
from dai.replicas.catalog.database import Connection, Database, among, listed, present
from dai.replicas.catalog.operations import COLUMNS, Attribute, Index, Operation, Pair, Value
from dai.replicas.catalog.writer import Answered, Loop, Writer
from dai.replicas.codes import MISSING, Code, Refused
from dai.replicas.names import COMPARISONS, ESCAPE, TYPES, beginning, complete

PORTION = 10_000
_END = "\U0010ffff"


class Catalog:
    """Thread-safe. Raises Refused, and DatabaseUnavailableError where the database cannot be reached or written."""

    def __init__(self, location: str) -> None:
        self._database = Database(location)
        self._local = self._database.sqlite
        self._readers = threading.local()
        self._lock = threading.Lock()
        self._opened: list[Connection] = []
        self._writer = Writer(self._database)
        self.listeners = self._writer.listeners

    @property
    def at_once(self) -> bool:
        """Whether a look-up waits neither for the network nor for changes."""
        return self._local and not self._writer.held

    # Changes

    def submit(self, operation: Operation, items: Sequence[Any]) -> Future[list[Code]]:
        """The code of each item, once they are on the disk."""
        return self._writer.submit(operation, items)

    def tell(self, operation: Operation, items: Sequence[Any], loop: Loop, answered: Answered) -> None:
        """As ``submit``; ``answered`` is called in the event loop, which takes less than a Future."""
        self._writer.tell(operation, items, loop, answered)

    def change(self, operation: Operation, items: Sequence[Any]) -> list[Code]:
        return self.submit(operation, items).result()

    # Reads

    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        if self._writer.held:
            self._writer.settle()
        for attempt in (0, 1):
            fresh = (reader := getattr(self._readers, "connection", None)) is None
            try:
                if reader is None:
                    reader = self._reader()
                return reader.all(statement, *values)
            except DatabaseUnavailableError:
                self._forget()
                if fresh or attempt:
                    raise
        raise AssertionError

    def _reader(self) -> Connection:
        reader = self._database.connect()
        self._readers.connection = reader
        with self._lock:
            self._opened.append(reader)
        return reader

    def _forget(self) -> None:
        if (reader := getattr(self._readers, "connection", None)) is not None:
            del self._readers.connection
            with self._lock, suppress(ValueError):
                self._opened.remove(reader)
            reader.close()

    def partners(self, kind: int, name: str, offset: int = 0, limit: int = 0) -> list[str]:
        """The targets of a logical name, or the logical names of a target, in order. Refused for a name that is not
        there. ``limit`` 0: all."""
        own, other = COLUMNS[kind], COLUMNS[1 - kind]
        bounds = "" if not (offset or limit) else f" limit {limit or (1 << 62)} offset {offset}"
        rows = self._read(f"select {other} from dai_mappings where {own} = ? order by {other}{bounds}", name)
        if not rows and not offset:
            raise Refused(MISSING[kind], name)
        return [each for (each,) in rows]

    def partners_of(self, kind: int, names: Sequence[str]) -> dict[str, list[str]]:
        """Of each of the names, those that are there."""
        own, other = COLUMNS[kind], COLUMNS[1 - kind]
        partners: dict[str, list[str]] = {}
        for at in range(0, len(names), PORTION):
            statement = f"select {own}, {other} from dai_mappings where {among(own, self._local)} order by 1, 2"
            for name, partner in self._read(statement, listed(names[at : at + PORTION], self._local)):
                partners.setdefault(name, []).append(partner)
        return partners

    def matching(self, kind: int, pattern: str, offset: int = 0, limit: int = 0) -> list[Pair]:
        """The mappings (logical, target) whose name fits an SQL pattern, by that name."""
        own, other = COLUMNS[kind], COLUMNS[1 - kind]
        begun = beginning(pattern)
        between = f"{own} >= ? and {own} < ? and " if begun else ""
        rows = self._read(
            f"select logical, target from dai_mappings where {between}{own} like ? escape '{ESCAPE}'"
            f" order by {own}, {other} limit {limit or (1 << 62)} offset {offset}",
            *((begun, begun + _END) if begun else ()), complete(pattern),
        )  # fmt: skip
        if not rows and not offset:
            raise Refused(MISSING[kind], pattern)
        return [(logical, target) for logical, target in rows]

    def pages(self, kind: int, pattern: str) -> Iterator[list[Pair]]:
        """All mappings whose name fits an SQL pattern, by that name, in portions."""
        own, other = COLUMNS[kind], COLUMNS[1 - kind]
        after = ("", "")
        while rows := self._read(
            f"select logical, target from dai_mappings where ({own}, {other}) > (?, ?) and {own} like ? escape"
            f" '{ESCAPE}' order by {own}, {other} limit {PORTION}",
            *after, complete(pattern),
        ):  # fmt: skip
            yield [(logical, target) for logical, target in rows]
            after = (rows[-1][kind], rows[-1][1 - kind])

    def existing(self, kind: int, names: Sequence[str]) -> set[str]:
        return {name for (name,) in self._read(present(COLUMNS[kind], self._local), listed(names, self._local))}

    def has(self, logical: str, target: str) -> bool:
        return bool(self._read("select 1 from dai_mappings where logical = ? and target = ?", logical, target))

    def logical_names(self, pattern: str = "") -> Iterator[list[str]]:
        """All logical names in order, or those that fit an SQL pattern, in portions; whoever changes the catalog
        meanwhile is not kept from it."""
        after, fits = "", f" and logical like ? escape '{ESCAPE}'" if pattern else ""
        while rows := self._read(
            f"select distinct logical from dai_mappings where logical > ?{fits} order by logical limit {PORTION}",
            after, *((complete(pattern),) if pattern else ()),
        ):  # fmt: skip
            yield [name for (name,) in rows]
            after = rows[-1][0]

    def attributes(self, kind: int, name: str = "") -> list[Attribute]:
        """Those that are defined for names of the kind; with ``name`` that one. Refused where there is none."""
        one, which = (" and name = ?", (name,)) if name else ("", ())
        rows = self._read(
            f"select name, kind, type from dai_attributes where kind = ?{one} order by name", kind, *which
        )
        if name and not rows:
            raise Refused(Code.ATTR_NEXIST, name)
        return [Attribute(*each) for each in rows]

    def values(self, kind: int, key: str, name: str = "") -> list[Value]:
        """The attributes of a name; with ``name`` that one. Refused where the name or the value is not there."""
        one, which = (" and v.name = ?", (name,)) if name else ("", ())
        rows = self._read(
            "select v.key, v.kind, v.name, a.type, v.text, v.whole, v.real from dai_attribute_values v join"
            f" dai_attributes a on a.name = v.name and a.kind = v.kind where v.kind = ? and v.key = ?{one} order by 3",
            kind, key, *which,
        )  # fmt: skip
        if not rows:
            if not self.existing(kind, [key]):
                raise Refused(MISSING[kind], key)
            raise Refused(Code.ATTR_NEXIST, name or key)
        return [_value(each) for each in rows]

    def values_of(self, kind: int, keys: Sequence[str]) -> list[Value]:
        """All attributes of the names, as far as these have some."""
        values: list[Value] = []
        for at in range(0, len(keys), PORTION):
            rows = self._read(
                "select v.key, v.kind, v.name, a.type, v.text, v.whole, v.real from dai_attribute_values v join"
                f" dai_attributes a on a.name = v.name and a.kind = v.kind where v.kind = ? and"
                f" {among('v.key', self._local)} order by 1, 3",
                kind, listed(keys[at : at + PORTION], self._local),
            )  # fmt: skip
            values += map(_value, rows)
        return values

    def search(
        self, kind: int, name: str, operator: str, values: Sequence[str | int | float], offset: int = 0, limit: int = 0
    ) -> list[Value]:
        """The names whose attribute ``name`` compares so with the values: one, two with ``between``, none with
        ``all``; ``like`` takes an SQL pattern. By name."""
        (attribute,) = self.attributes(kind, name)
        column = f"v.{TYPES[attribute.type].column}"
        condition = ""
        if operator in COMPARISONS:
            condition = f" and {column} {COMPARISONS[operator]} ?"
        elif operator == "between":
            condition = f" and {column} between ? and ?"
        elif operator == "like":
            if attribute.type != "string":
                raise Refused(Code.INV_ATTR_TYPE, f"{name} is {attribute.type}; patterns are for texts")
            condition = f" and {column} like ? escape '{ESCAPE}'"
            values = [complete(str(each)) for each in values]
        elif operator != "all":
            raise Refused(Code.BADARG, f"operator {operator}")
        if condition.count("?") != len(values):
            raise Refused(Code.BADARG, f"{operator} takes {condition.count('?')} values")
        rows = self._read(
            f"select v.key, v.kind, v.name, '{attribute.type}', v.text, v.whole, v.real from dai_attribute_values v"
            f" where v.kind = ? and v.name = ?{condition} order by v.key limit {limit or (1 << 62)} offset {offset}",
            kind, name, *values,
        )  # fmt: skip
        return [_value(each) for each in rows]

    def indexes(self, url: str = "") -> list[Index]:
        one, which = (" where url = ?", (url,)) if url else ("", ())
        rows = self._read(f"select url, flags, pattern from dai_indexes{one} order by 1, 3", *which)
        if url and not rows:
            raise Refused(Code.RLI_NEXIST, url)
        return [Index(*each) for each in rows]

    def counts(self) -> dict[str, int]:
        """``logical`` and ``target`` names, ``mappings``."""
        statement = "select count(*), count(distinct logical), count(distinct target) from dai_mappings"
        ((mappings, logical, target),) = self._read(statement)
        return {"logical": logical, "target": target, "mappings": mappings}

    def close(self) -> None:
        """What was submitted before is written."""
        self._writer.close()
        for each in self._opened:
            each.close()
        self._database.close()


def _value(row: tuple[Any, ...]) -> Value:
    key, kind, name, type, *columns = row
    return Value(key, kind, name, type, next(each for each in columns if each is not None))
