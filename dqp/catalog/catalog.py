"""Defines ``Catalog``: the tables of a federation with columns, keys and statistics; its views and uploaded tables.

Names are looked up as in DuckDB, whatever the case of their letters. Only where names of tables differ in case alone,
case counts. A table is ``alias.table``, in the classic form ``alias_table``. A table in another schema than the
source's default is ``alias.schema.table``, and also ``alias.table`` if no other table has that name.

The catalog asks a source for its tables when a query first names the source, and for a table's statistics when they
are first needed. ``reflection`` keeps both and refreshes them in the background. A source that is down is listed in
``problems``; only queries that need it fail.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pyarrow as pa

from dai.client.credentials import Personal
from dai.drivers import Driver
from dai.drivers.tables import Column as ColumnInfo
from dai.drivers.tables import Statistics, TableInfo
from dai.errors import DaiError, NotFoundError, ParameterError
from dai.plugins import nearest
from dai.streams.meaning import Meaning
from dqp.algebra import types
from dqp.algebra.arrival import Probes
from dqp.algebra.operators import quoted
from dqp.algebra.table import NONE, Table, list_type, named, table_of
from dqp.catalog.diagnosis import ambiguous, either, explained, nearest_table
from dqp.catalog.discovery.sources import DiscoveredSources
from dqp.catalog.reflection import Reflected, Reflection
from dqp.catalog.replicas.copies import Copies, Copy, CopySources, client_of, shape_of
from dqp.catalog.replicas.tables import Replicas
from dqp.catalog.sources.configured import Credentials, sources_of
from dqp.catalog.sources.local import DescribedSource
from dqp.catalog.sources.source import Source
from dqp.catalog.statistics.learned import Learned
from dqp.catalog.statistics.sampling import Sampled
from dqp.catalog.uploads import Uploads
from dqp.catalog.validator import (
    SHOWN,
    Fault,
    Refused,
    Shape,
    Signature,
    Validator,
    describes,
    dollars,
    names_in,
    path_of,
    words,
)
from dqp.catalog.views import Broken, Views
from dqp.settings import FederationSettings

_Seen = Mapping[str, Reflected | None]
"""The reflected tables of sources by alias; None for a source that has not answered."""


class Catalog:
    """Thread-safe. ``resolve`` gives the driver of a resource of this service, ``bearer`` is the token of the caller
    whom the federation passes on, ``person`` the user who runs this program."""

    def __init__(
        self,
        settings: FederationSettings,
        *,
        resolve: Callable[[str], Driver] | None = None,
        bearer: str | None = None,
        person: Personal | None = None,
        sources: Sequence[Source] | None = None,
    ) -> None:
        credentials = Credentials(settings, bearer, person)
        all_sources = sources_of(settings, credentials, resolve) if sources is None else sources
        self.settings = settings
        self.sources: dict[str, Source] = {each.alias: each for each in all_sources}
        self.views: Mapping[str, str] = dict(settings.views)
        self._views = Views(self.views)
        self._reflection = Reflection(all_sources, lifetime=settings.lifetime)
        self.late = self._reflection.late
        self.uploads = Uploads()
        self._lock = threading.Lock()
        self.probes = Probes()
        self.learned = Learned(settings.lifetime)
        self._validator: tuple[int, Validator] | None = None
        self._functions = {
            name: Signature(tuple(each.get("arguments", ())), each.get("returns", types.TEXT))
            for name, each in settings.functions.items()
        }
        self._broken: dict[str, str] = {}
        self._meanings = {name: Meaning(**asdict(each)) for name, each in settings.columns.items()}
        self._known: dict[tuple[str, str | None, str], tuple[TableInfo, Statistics, Table]] = {}
        self._described_tables: dict[tuple[str, str | None, str], Table] = {}
        self._replicas = Replicas(settings.replicas, all_sources, self._reflection)
        self._found: DiscoveredSources | None = None
        if settings.registry is not None:
            self._found = DiscoveredSources(settings, self.sources, credentials, self._reflection)
        self._copies: Copies | None = None
        if settings.replica_service is not None:
            at = CopySources(settings, all_sources, credentials, self._add).at
            self._copies = Copies(
                settings.replica_service, client_of(settings), self._reflection, at, self.learned.speed
            )

    @classmethod
    def of(
        cls,
        tables: Iterable[Table],
        *,
        views: Mapping[str, str] | None = None,
        dialects: Mapping[str, str] | None = None,
    ) -> Catalog:
        """A catalog of described tables, without any database: queries can be planned but not run. ``dialects``: by
        alias; the default is ``postgresql``."""
        by_alias: dict[str, list[Table]] = {}
        for each in tables:
            by_alias.setdefault(each.source, []).append(each)
        sources = [
            DescribedSource(alias, (dialects or {}).get(alias, "postgresql"), tuple(map(_info, described)))
            for alias, described in by_alias.items()
        ]
        catalog = cls(FederationSettings(views=dict(views or {})), sources=sources)
        catalog._described_tables = {each.identity: each for described in by_alias.values() for each in described}
        return catalog

    def over(self, uploads: Uploads) -> Catalog:
        """The same catalog with these uploads in place of its own."""
        catalog = copy(self)
        catalog.uploads, catalog._validator, catalog._lock = uploads, None, threading.Lock()
        return catalog

    def _add(self, source: Source) -> None:
        self._reflection.add(source)
        self.sources[source.alias] = source

    # --- sources and their state ---

    @property
    def version(self) -> int:
        """Changes when anything changes that plans depend on. Starts a check for changes in the background."""
        self._check_found()
        self._reflection.look_after()
        copies = 0 if self._copies is None else self._copies.version
        return self._reflection.version + self.uploads.version + copies

    def _check_found(self) -> None:
        """Removes sources whose leases have ended; called before names of sources are resolved."""
        if self._found is not None:
            self._found.check()

    def origin(self, alias: str) -> str | None:
        """The origin of a source that a registry names; None for those of the configuration."""
        return None if self._found is None else self._found.origin(alias)

    def owner(self, alias: Any) -> str | None:
        """The source of that alias, or the source whose replica it is; None if there is none."""
        source = self.sources.get(str(alias))
        return None if source is None else source.replica_of or source.alias

    def renewed(self, alias: str, since: int, columns: Iterable[Sequence[Any]] = ()) -> bool:
        """Asks the source for its tables again, unless the version is later than ``since`` already. Returns whether
        anything has changed. ``columns``: schema, table, name and Arrow type of columns as the source delivers them;
        these types count more than those that it reports."""
        if self.version == since:
            self._reflection.renew(alias)
        if self.version == since and (delivered := [(a, b, c, d) for a, b, c, d in columns]):
            self._reflection.learn(alias, delivered)
        return self.version != since

    def set_aside(self, error: DaiError) -> bool:
        """Whether the source that the error names is that of a copy, which is not read from now on, and there is
        another copy to read."""
        alias = error.extra.get("source")
        return self._copies is not None and alias is not None and self._copies.set_aside(str(alias), f"{error.title}")

    def moved(self, table: Table, alias: str, schema: str | None, name: str) -> Table:
        """The table as it stands at one of its replicas."""
        if self._copies is not None:
            return self._copies.moved(table, alias, schema, name)
        return replace(table, source=alias, schema=schema, name=name)

    @property
    def functions(self) -> frozenset[str]:
        """Lower-case names of the operation calls."""
        return frozenset(each.lower() for each in self._functions)

    @property
    def problems(self) -> Mapping[str, str]:
        """By name, with the reason: sources that are down, tables that no name reaches, replicas that do not fit (of
        the sources that were asked), and views that are wrong."""
        copies = {} if self._copies is None else self._copies.problems()
        known = {name: why for name, why in self._reflection.problems().items() if "@" not in name}
        refused = {} if self._found is None else self._found.problems
        return {**known, **refused, **self._replicas.problems(), **copies, **self._broken}

    @property
    def away(self) -> Mapping[str, str]:
        """The sources that did not answer the last question, by alias, with the reason."""
        return self._reflection.away()

    def remarks(self, tables: Iterable[Table]) -> Sequence[str]:
        """The faults of the configured replicas of tables of these sources, and which statistics are from samples."""
        tables = list(tables)
        by_identity = {each.identity: each for each in tables}
        problems = self._replicas.problems(frozenset(each.source for each in by_identity.values()))
        samples = []
        for identity, table in by_identity.items():
            statistics = self._known[identity][1] if identity in self._known else None
            if isinstance(statistics, Sampled):
                samples += statistics.remarks(table)
        origins = {each.source: self.origin(each.source) for each in tables}
        named = [f"{alias} is {origin}" for alias, origin in origins.items() if origin is not None]
        logical = dict.fromkeys(each.logical for each in tables if each.logical is not None)
        copies = [] if self._copies is None else [self._copies.remark(each) for each in logical]
        return [*named, *copies, *(f"{name}: {why}".replace("\n", " ") for name, why in problems.items()), *samples]

    def tables(self) -> Sequence[Table]:
        """Every table of every source that answers, without waiting for statistics."""
        self._check_found()
        self._reflection.need(self._reflection.aliases)
        return [
            self._table(alias, info, wait=False)
            for alias in self._reflection.aliases
            for info in self._reflection.known(alias)
        ]

    def logical_tables(self) -> Iterator[tuple[str, str, Table, str]]:
        """Those of the replica service that can be read: its alias, the name, the table of the best copy, and which
        copies there are."""
        copies = self._copies
        for name in () if copies is None else copies.listed():
            with suppress(DaiError):
                assert copies is not None
                table = copies.table(name, partial(self._table, wait=False))
                yield copies.alias, name, table, copies.remark(name).partition(": ")[2]

    def table(self, alias: str | None, name: str, schema: str | None = None) -> Table:
        """``alias.name``, ``alias.schema.name``, or without alias the classic ``alias_name``; with its statistics.

        NotFoundError suggests the nearest name; DatabaseUnavailableError names a source that is down.
        """
        if alias is not None and self._copies is not None and alias.casefold() == self._copies.alias.casefold():
            return self._copies.table(f"{schema}.{name}" if schema else name, self._table)
        if alias is None:
            aliases = self._reflection.mentioned([name.casefold()])
            self._reflection.need(aliases)
            for reflected in self._reflection.loaded():
                if info := reflected.classic(name):
                    return self._table(reflected.alias, info)
            for each in aliases:
                if similar := self._reflection.reflected(each).similar(name, classic=True):
                    raise ambiguous(name, similar)
            hint = SHOWN if describes(name) else self._nearest(name)
            raise NotFoundError(f"There is no table {name!r}.", hint=hint)
        source = self._reflection.alias(alias)
        if source is None:
            hint = nearest(alias, list(self._reflection.aliases)) if self._reflection.aliases else None
            raise NotFoundError(f"There is no source {alias!r}.", hint=SHOWN if describes(alias) else hint)
        reflected = self._reflection.reflected(source)
        info = reflected.table(name, schema)
        if info is None:
            what = ".".join(part for part in (source, schema, name) if part)
            if similar := reflected.similar(name, schema):
                raise ambiguous(what, similar)
            if (why := reflected.why_hidden(name, schema)) is not None:
                raise NotFoundError(f"The table {what} cannot be read. {why}")
            raise NotFoundError(
                f"There is no table {what}.", hint=nearest_table(name, reflected, self._reflection.loaded())
            )
        return self._table(source, info)

    def _table(self, alias: str, info: TableInfo, *, wait: bool = True) -> Table:
        key = (alias, info.schema, info.name)
        if key in self._described_tables:
            return self._described_tables[key]
        statistics = self._reflection.statistics(alias, info, wait=wait)
        replicas = self._replicas.of(alias, info)
        known = self._known.get(key)
        same = known is not None and known[0] is info and (known[1] is statistics or statistics is None)
        if known is not None and same and known[2].replicas == replicas:
            return known[2]
        common = statistics.common if isinstance(statistics, Sampled) else NONE
        stored = statistics or Statistics(rows=info.rows)
        table = table_of(alias, info, stored, replicas, common, self._meanings)
        if statistics is not None:
            self._known[key] = (info, statistics, table)
        return table

    def dialect(self, alias: str) -> str:
        """Dialect of the source, or of the replica that answered in its place. Raises DatabaseUnavailableError if none
        answers."""
        return self._reflection.reflected(alias).dialect

    def answering(self) -> list[str]:
        """Aliases of the sources that answered the last question. Asks the sources that were never asked."""
        self._check_found()
        self._reflection.need(self._reflection.aliases)
        self._reflection.look_after()
        return [each.alias for each in self._reflection.loaded() if not self._reflection.failed(each.alias)]

    # --- uploaded tables ---

    def upload(self, name: str, table: pa.Table) -> None:
        """Adds a table as ``name``, in place of an earlier upload of that name. Raises ParameterError for columns whose
        names SQL cannot write or tell apart, and for a name that is taken: by a view, a source, or ``alias_table``."""
        self.check_name(name)
        if not table.column_names or not all(each and "\0" not in each for each in table.column_names):
            raise ParameterError(f"The table {name!r} has no columns, or one without a name.", hint="Name its columns.")
        folded = Counter(each.casefold() for each in table.column_names)
        if twice := [each for each, count in folded.items() if count > 1]:
            raise ParameterError(f"Columns of the table {name!r} have the same name: {', '.join(twice)}.")
        self.uploads.add(name, table)

    def check_name(self, name: str) -> None:
        """Raises ParameterError if an uploaded table cannot have the name."""
        folded, hint = name.casefold(), "Give the table another name."
        if not folded.strip():
            raise ParameterError("A table needs a name.")
        if name in self._views:
            raise ParameterError(f"There is already a view {name!r}.", hint=hint)
        own = self._copies is not None and folded == self._copies.alias.casefold()
        if own or self._reflection.alias(name) is not None:
            raise ParameterError(f"There is already a source {name!r}.", hint=hint)
        mentioned = self._reflection.mentioned([folded])
        if mentioned:
            self._reflection.need(mentioned)
            if any(reflected.classic(name) for reflected in self._reflection.loaded()):
                raise ParameterError(f"There is already a table {name!r} in a source.", hint=hint)

    # --- the meaning of SQL ---

    def shapes_of_views(self) -> Mapping[str, Shape]:
        """Columns of every valid view; ``problems`` has the faults of the others."""
        shapes = {}
        for name in self.views:
            try:
                shapes[name] = self.describe(f"FROM {quoted(name)}")
                self._broken.pop(name, None)
            except DaiError as error:
                self._broken[name] = "\n".join(filter(None, (error.detail or error.title, error.hint)))
        return shapes

    def describe(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Shape:
        """Names and DuckDB types of the columns of one query. ``parameters`` as the binder takes them.

        Raises StatementError with a position and the nearest names, NotAQueryError, ParameterError,
        DatabaseUnavailableError for a source that the query needs.
        """
        text = dollars(sql, parameters) if isinstance(parameters, Mapping) else sql
        while True:
            if self._copies is not None:
                views = (self.views[each] for each in self._views.named(self._views.words(words(text))))
                self._copies.need([name for each in (text, *views) for name in self._copies.mentioned(each)])
            validator, broken, sources = self._filled(words(text))
            try:
                return validator.describe(text, parameters)
            except Refused as refused:
                if refused.fault.kind in ("MISSING_ENTRY", "COLUMN_NOT_FOUND", "Catalog", "Binder"):
                    self._reflection.look_now(sources)
                if not self._unchanged(sources):
                    continue
                error = self._views.error(sql, refused.fault, broken, partial(self._error, validator=validator))
                if self._unchanged(sources):  # the diagnosis may have reached a source that was down
                    raise error from error.__cause__  # it says itself what DuckDB refused

    def _unchanged(self, sources: _Seen) -> bool:
        return all(self._reflection.cached(alias) is seen for alias, seen in sources.items())

    def _filled(self, named: frozenset[str]) -> tuple[Validator, Broken, _Seen]:
        """The validator with every table and view that has one of the names, the views that it refuses, and the sources
        that the names may mean."""
        names = self._views.words(named)
        aliases = self._reflection.mentioned(names)
        self._reflection.need(aliases)
        sources = {alias: self._reflection.cached(alias) for alias in aliases}
        version = self.version  # read after the sources: a validator older than they are would refuse new tables
        own = () if self._copies is None else (self._copies.alias,)
        with self._lock:
            if self._validator is None or self._validator[0] != version:
                self._validator = (version, Validator((*self._reflection.aliases, *own), self._functions))
            validator = self._validator[1]
        for name in names:
            if (type := list_type(name)) is not None:
                validator.table((name,), (("value", type),))
        for name, table in self._named_uploads(names):
            validator.table((name,), tuple((each.name, types.duckdb_type(each.type)) for each in table.schema))
        for reflected in self._reflection.loaded():
            for info, path, exact in reflected.mentioned(names):
                validator.table(path, self._shape(reflected.alias, info), exact=exact)
                self._reflection.prefetch(reflected.alias, info)
        copied = list(self._copied(names))
        spelled = Counter(name.casefold() for name, _, _ in copied)
        for name, best, info in copied:
            schema, _, bare = name.rpartition(".")
            for path in {(schema or "main", bare), ("main", name)}:
                validator.table((*own, *path), shape_of(info), exact=spelled[name.casefold()] > 1)
            self._reflection.prefetch(best.alias, info)
            sources[best.alias] = self._reflection.cached(best.alias)
        return validator, self._views.make(validator, names), sources

    def _copied(self, names: frozenset[str]) -> Iterator[tuple[str, Copy, TableInfo]]:
        """The logical tables that have one of the names, each with its best copy."""
        if self._copies is None:
            return
        for name in self._copies.known():
            if {name.casefold(), name.rpartition(".")[2].casefold()} & names:
                for best, info in self._copies.choice(name).used[:1]:
                    yield name, best, info

    def _error(self, sql: str, fault: Fault, validator: Validator) -> DaiError:
        names, own = names_in(sql), self._copies.alias if self._copies is not None else None

        def columns() -> dict[str, dict[str, str]]:
            infos = {
                (reflected.alias, info.schema, info.name): info
                for reflected in self._reflection.loaded()
                for info, _, _ in reflected.mentioned(names)
            }
            known = {
                str(self._table(alias, info, wait=False)): {
                    name: each.name for name, each in named(info.columns).items()
                }
                for (alias, _, _), info in infos.items()
            }
            for name, _, info in self._copied(names):
                known[f"{own}.{name}"] = {each: each for each, _ in shape_of(info)}
            for name, table in self._named_uploads(names):
                known[name.casefold()] = {each: each for each in table.column_names}
            for name in self._views.named(names):
                with suppress(Refused):
                    known[name] = {each: each for each, _ in validator.describe(f"FROM {quoted(name)}")}
            return known

        return explained(sql, fault, self._missing, columns)

    def _named_uploads(self, names: frozenset[str]) -> list[tuple[str, pa.Table]]:
        return [(name, table) for name, table in self.uploads.tables.items() if name.casefold() in names]

    def _missing(self, written: str) -> DaiError | None:
        """The error for a table's name, as the SQL writes it."""
        parts = path_of(written)
        try:
            if len(parts) == 1:
                self.table(None, parts[0])
            elif len(parts) == 2:
                self.table(parts[0], parts[1])
            elif len(parts) == 3:
                self.table(parts[0], parts[2], parts[1])
        except DaiError as error:
            return error
        return None

    def _shape(self, alias: str, info: TableInfo) -> Shape:
        described = self._described_tables.get((alias, info.schema, info.name))
        if described is not None:
            return tuple((each.name, each.type) for each in described.columns)
        return tuple((name, types.duckdb_type(each.arrow)) for name, each in named(info.columns).items())

    def _nearest(self, name: str) -> str | None:
        self._reflection.need(self._reflection.aliases)
        known = [*self.views, *self.uploads.tables]
        known += [f"{each.alias}.{info.name}" for each in self._reflection.loaded() for info in each.tables]
        called = [each for each in known if each.rpartition(".")[2].casefold() == name.casefold()]
        if called:
            return either(called)
        return nearest(name, known) if known else "The federation has no tables."

    def close(self) -> None:
        if self._found is not None:
            self._found.close()
        self._reflection.close()
        with self._lock:
            if self._validator is not None:
                self._validator[1].close()
                self._validator = None
        for source in list(self.sources.values()):
            source.close()
        if self._copies is not None:
            self._copies.close()


def _info(table: Table) -> TableInfo:
    return TableInfo(
        name=table.name,
        schema=table.schema,
        kind=table.kind,
        columns=tuple(ColumnInfo(each.name, each.source_type, "", each.nullable) for each in table.columns),
        rows=int(table.rows),
    )
