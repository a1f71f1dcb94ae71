"""Finds the replicas of a table: those in ``[replicas]`` of the configuration, and the replicas of its whole source.

Names are read as SQL reads them. The table of a configured name is known once its source has been read; until then the
name counts as it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dai.drivers.tables import TableInfo
from dai.plugins import nearest
from dqp.algebra.table import DEFAULT_SCHEMAS, Replica
from dqp.catalog.reflection import Reflected, Reflection
from dqp.catalog.sources.source import Source


class Replicas:
    def __init__(
        self, configured: Mapping[str, Sequence[str]], sources: Sequence[Source], reflection: Reflection
    ) -> None:
        self._configured, self._reflection = configured, reflection
        self._whole: dict[str, list[str]] = {}
        for each in sources:
            if each.replica_of is not None:
                self._whole.setdefault(each.replica_of, []).append(each.alias)

    def of(self, alias: str, info: TableInfo) -> tuple[Replica, ...]:
        """The replicas of a table whose source has been read, the configured ones first. Ignores configured names of
        tables that do not exist."""
        replicas: list[Replica] = []
        for name, places in self._configured.items():
            source, _, original = self._read(name)
            if source == alias and original is not None and _same(original, info):
                for place in places:
                    source, reflected, copied = self._read(place)
                    if copied is not None:
                        replicas.append((source, copied.schema, copied.name))
                    elif reflected is None:
                        schema, _, bare = place.partition(".")[2].rpartition(".")
                        replicas.append((source, schema or None, bare))
        named = None if (info.schema or "") in DEFAULT_SCHEMAS else info.schema
        return (*replicas, *((each, named, info.name) for each in self._whole.get(alias, ())))

    def problems(self, aliases: frozenset[str] | None = None) -> dict[str, str]:
        """Configured names that fit no table, with the reason, as far as their sources have been read. ``aliases``:
        only replicas of tables of these sources."""
        problems = {}
        for name, places in self._configured.items():
            source, _, original = self._read(name)
            if aliases is None or source in aliases:
                faults = [*self._missing(name), *(each for place in places for each in self._faults(place, original))]
                if faults:
                    problems[f'replicas."{name}"'] = "\n".join(faults)
        return problems

    def _read(self, name: str) -> tuple[str, Reflected | None, TableInfo | None]:
        """For a configured name: its alias, the tables of that source if they have been read, and the named table."""
        alias, _, table = name.partition(".")
        alias = self._reflection.alias(alias) or alias
        reflected = self._reflection.cached(alias)
        return alias, reflected, None if reflected is None else reflected.table(table)

    def _missing(self, name: str) -> Iterator[str]:
        alias, reflected, info = self._read(name)
        if reflected is not None and info is None:
            known = [f"{alias}.{each.name}" for each in reflected.tables if reflected.table(each.name) is each]
            known += [f"{alias}.{each.schema}.{each.name}" for each in reflected.tables if each.schema]
            hint = nearest(name, known) if known else f"The source {alias!r} has no table."
            yield f"There is no table {name}. {hint}"

    def _faults(self, place: str, original: TableInfo | None) -> Iterator[str]:
        yield from self._missing(place)
        _, _, copied = self._read(place)
        if original is not None and copied is not None:
            there = {each.name.casefold() for each in copied.columns}
            missing = [each.name for each in original.columns if each.name.casefold() not in there]
            if missing:
                yield f"The table {place} has no column {', '.join(missing)}."


def _same(one: TableInfo, other: TableInfo) -> bool:
    return (one.schema, one.name) == (other.schema, other.name)
