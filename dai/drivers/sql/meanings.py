"""The meanings of a database's columns: their comments, and units and quantities from the configuration and from
registries.

A result's column that is a column of a table, unchanged (``origins``), means the same: its field's metadata say so.
That is known before the query runs; neither batches nor rows are touched. What a table means is asked once, and again
in the background when that was a while ago.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import pyarrow as pa

from dai.drivers.sql.origins import Named, Words, selection
from dai.drivers.sql.syntax import Syntax
from dai.drivers.tables import Column, TableInfo
from dai.errors import DaiError
from dai.streams.meaning import NOTHING, Meaning

CURRENT_SECONDS = 60.0
AGAIN_SECONDS = 10.0
"""After a database that did not say it."""
PATIENCE = 2.0
"""Seconds that a query waits for the meanings of its tables."""
MOST_TABLES = 10_000
Meant = Callable[[pa.Schema], pa.Schema]
"""The schema of a result with the meanings of its columns."""


def meaning(column: Column) -> Meaning:
    return Meaning(unit=column.unit, ucd=column.ucd, quantity=column.quantity, description=column.comment or None)


def with_meanings(schema: pa.Schema, meanings: Iterable[Meaning | None]) -> pa.Schema:
    """The schema whose fields, in order, mean that."""
    fields = [
        field if each is None or each == NOTHING else field.with_metadata({**(field.metadata or {}), **each.metadata})
        for field, each in zip(schema, meanings, strict=True)
    ]
    return pa.schema(fields, schema.metadata)


class _Table(NamedTuple):
    schema: str | None
    name: str
    columns: Mapping[str, Meaning]


class Described(Protocol):
    """The part of a driver that is used here."""

    syntax: Syntax

    @property
    def comments(self) -> bool: ...

    def described(self, pattern: str = "%") -> tuple[TableInfo, ...]: ...


class Meanings:
    """Of one driver's database. Thread-safe. ``configured`` counts more than ``annotated``, and that more than the
    database's comments; both are by ``table.column`` or ``schema.table.column``."""

    def __init__(self, driver: Described) -> None:
        self._driver = driver
        self.configured: Mapping[str, Meaning] = {}
        self._annotated: Mapping[str, Meaning] = {}
        self._lock = threading.Lock()
        self._looking: dict[str, threading.Event] = {}
        self._known: dict[str, tuple[tuple[_Table, ...], float]] = {}
        """Tables by their names in lower case, and until when that counts as current."""

    @property
    def annotated(self) -> Mapping[str, Meaning]:
        return self._annotated

    @annotated.setter
    def annotated(self, said: Mapping[str, Meaning]) -> None:
        with self._lock:
            if said != self._annotated:
                self._annotated = said
                self._known.clear()

    def on(self, tables: tuple[TableInfo, ...]) -> tuple[TableInfo, ...]:
        """The tables with the meanings of their columns."""
        if not self.configured and not self._annotated:
            return tables
        return tuple(replace(each, columns=tuple(self._meanings(each))) for each in tables)

    def _meanings(self, table: TableInfo) -> Iterator[Column]:
        for column in table.columns:
            said = NOTHING
            for source in (self.configured, self._annotated):
                for name in (f"{table.schema}.{table.name}.{column.name}", f"{table.name}.{column.name}"):
                    said = said.or_else(source.get(name, NOTHING))
            said = said.or_else(meaning(column))
            comment = said.description
            yield replace(column, unit=said.unit, ucd=said.ucd, quantity=said.quantity, comment=comment)

    def of(self, sql: str, hidden: Collection[str] = ()) -> Meant | None:
        """The meanings of the columns of a query's result; None: nothing is known. ``hidden``: names of tables that
        the query does not see. Asks the database for tables that it was not asked for."""
        if not (self._driver.comments or self.configured or self._annotated):
            return None
        selected = selection(sql, self._driver.syntax)
        if selected is None:
            return None
        unseen = {each.casefold() for each in hidden}
        tables = [
            None if each is None or each.name[-1].casefold() in unseen else self._table(each)
            for each in selected.tables
        ]
        if not any(each is not None and any(map(NOTHING.__ne__, each.columns.values())) for each in tables):
            return None
        named = [*zip(selected.tables, tables, strict=True)]

        def meant(schema: pa.Schema) -> pa.Schema:
            meanings = _meanings_of(selected.items, named, schema.names)
            return schema if meanings is None else with_meanings(schema, meanings)

        return meant

    def _table(self, named: Named) -> _Table | None:
        """The only table of that name."""
        *qualifiers, name = named.name
        tables = [
            each
            for each in self._called(name)
            if not qualifiers or (each.schema or "main").casefold() == qualifiers[-1].casefold()
        ]
        exact = [each for each in tables if each.name == name]
        chosen = exact if len(exact) == 1 else tables
        return chosen[0] if len(chosen) == 1 else None

    def _called(self, name: str) -> tuple[_Table, ...]:
        """Waits for the database a short time only: the query itself has yet to run."""
        folded = name.casefold()
        known = self._known.get(folded)
        if known is None or known[1] <= time.monotonic():
            with self._lock:
                looked = self._looking.get(folded)
                if looked is None:
                    looked = self._looking[folded] = threading.Event()
                    threading.Thread(target=self._look, args=(name, looked), name="meanings", daemon=True).start()
            if known is None:
                looked.wait(PATIENCE)
                known = self._known.get(folded)
        return () if known is None else known[0]

    def _look(self, name: str, looked: threading.Event) -> None:
        folded, annotated, seconds = name.casefold(), self._annotated, CURRENT_SECONDS
        tables: list[_Table] = []
        try:
            for pattern in dict.fromkeys((name, folded)):
                tables += [
                    _Table(each.schema, each.name, {column.name: meaning(column) for column in each.columns})
                    for each in self._driver.described(pattern)
                    if each.name.casefold() == folded
                ]
                if tables:
                    break
        except DaiError:
            seconds = AGAIN_SECONDS
        finally:
            with self._lock:
                if annotated is self._annotated:
                    if len(self._known) >= MOST_TABLES:
                        self._known.clear()
                    self._known[folded] = tuple(tables), time.monotonic() + seconds
                del self._looking[folded]
            looked.set()


_Tables = Sequence[tuple[Named | None, _Table | None]]


def _meanings_of(items: Sequence[Words], tables: _Tables, names: Sequence[str]) -> list[Meaning | None] | None:
    """The meaning of each column; None if it is not known which is which."""
    meanings: list[Meaning | None] = []
    for item in items:
        if not item:
            meanings.append(None)
        elif item[-1] != "*":
            meanings.append(_column(item, tables))
        else:
            for table in _of(item[:-1], tables):
                if table is None:
                    return None
                for column, said in table.columns.items():
                    if len(meanings) >= len(names) or names[len(meanings)] != column:
                        return None
                    meanings.append(said)
    return meanings if len(meanings) == len(names) else None


def _of(qualifiers: Words, tables: _Tables) -> list[_Table | None]:
    """Those that the qualifiers name; without any all."""
    if not qualifiers:
        return [table for _, table in tables]
    return [
        table
        for named, table in tables
        if named is not None
        and (_same(named.alias, qualifiers[0]) if len(qualifiers) == 1 else _ends(named.name, qualifiers))
    ]


def _same(one: str, other: str) -> bool:
    return one.casefold() == other.casefold()


def _ends(name: Words, qualifiers: Words) -> bool:
    ends = name[-len(qualifiers) :]
    return len(ends) == len(qualifiers) and all(map(_same, ends, qualifiers))


def _column(item: Words, tables: _Tables) -> Meaning | None:
    *qualifiers, name = item
    meanings: list[Meaning] = []
    for table in _of(tuple(qualifiers), tables):
        if table is None:
            return None
        if name in table.columns:
            meanings.append(table.columns[name])
        else:
            meanings += [each for key, each in table.columns.items() if _same(key, name)]
    return meanings[0] if len(meanings) == 1 else None
