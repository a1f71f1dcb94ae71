"""Keeps the tables and statistics that sources report: reads them when they are first needed, all sources at the same
time, and refreshes them in the background.

No call waits for a source that has been read. When a caller asks for the version, a background thread compares each
source's fingerprint, at most every CHECK_SECONDS. Only after an idle time longer than the lifetime does the caller wait
for that, at most PATIENCE seconds. A source that does not answer is asked again after a pause as long as the failed
attempt took, at least AGAIN_SECONDS and at most RETRY_SECONDS, so a source that refuses at once is soon asked again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace

from dai.drivers.tables import Statistics, TableInfo
from dai.errors import DaiError, DatabaseUnavailableError, DataError, DeniedError, UnauthenticatedError
from dqp.algebra.operators import Scan
from dqp.algebra.table import DEFAULT_SCHEMAS, named, with_federation_types
from dqp.catalog.sources.source import Source, fingerprint_of
from dqp.catalog.statistics.kept import KeptStatistics
from dqp.catalog.threads import Threads

CHECK_SECONDS = 10.0
FRESH_SECONDS = 1.0
FRESH_TIMES = 5
AGAIN_SECONDS = 0.5
RETRY_SECONDS = 5.0
PATIENCE = 2.0
THREADS = 16


class Reflected:
    """The tables of one source at one time, by name. The case of letters does not count, except between tables whose
    names differ only in case."""

    def __init__(self, alias: str, tables: Sequence[TableInfo], fingerprint: str, dialect: str) -> None:
        self.alias, self.fingerprint, self.dialect = alias, fingerprint, dialect
        self.content = fingerprint_of(tables)
        self.hidden: list[tuple[TableInfo, str]] = []
        """Tables that no query can read, with the reason."""
        self._qualified: dict[tuple[str, str], _Called] = {}
        self._named: dict[str, _Called] = {}
        self._dotted: dict[str, _Called] = {}
        self._classic: dict[str, _Called] = {}
        shown = []
        for each in tables:
            info = with_federation_types(each, dialect)
            if not info.columns:
                self.hidden.append((info, " ".join(filter(None, ("It has no columns.", info.comment)))))
                continue
            shown.append(info)
            key = ((info.schema or "").casefold(), info.name.casefold())
            self._qualified.setdefault(key, {})[_dotted(info)] = info
            self._named.setdefault(key[1], {})[_dotted(info)] = info
            if info.schema:
                self._dotted.setdefault(_dotted(info).casefold(), {})[_dotted(info)] = info
        self.tables = tuple(shown)
        for info in self.tables:
            names = [info.name] if self.table(info.name) is info else []
            names += [f"{info.schema}_{info.name}"] if info.schema else []
            for name in names:
                called = self._classic.setdefault(f"{alias}_{name}".casefold(), {})
                if not called or name.casefold() in (each.casefold() for each in called):
                    called.setdefault(name, info)
        self._alone = self.table(alias)
        """The table with the name of the source, which needs no other."""

    def table(self, name: str, schema: str | None = None) -> TableInfo | None:
        """The table of that name. Without ``schema``: the one in a default schema, else the only one of that name, else
        ``name`` is ``schema.name``. None if there is none, or several."""
        called = self._called(name, schema)
        if schema is not None:
            return _chosen(called, f"{schema}.{name}")
        exact = {each: info for each, info in called.items() if info.name == name} or called
        if len(exact) == 1:
            return next(iter(exact.values()))
        return _chosen(self._dotted.get(name.casefold(), {}), name)

    def why_hidden(self, name: str, schema: str | None = None) -> str | None:
        """The reason, where no query can read the table of that name."""
        for info, why in self.hidden:
            if info.name.casefold() == name.casefold() and schema in (None, info.schema):
                return why
        return None

    def _called(self, name: str, schema: str | None) -> _Called:
        folded = name.casefold()
        if schema is not None:
            return self._qualified.get((schema.casefold(), folded), {})
        in_default_schemas = (self._qualified.get((each, folded)) for each in DEFAULT_SCHEMAS)
        return next(filter(None, in_default_schemas), None) or self._named.get(folded, {})

    def classic(self, name: str) -> TableInfo | None:
        """The table that ``alias_name`` or ``alias_schema_name`` names, or ``alias`` alone."""
        if name.casefold() == self.alias.casefold():
            return self._alone
        return _chosen(self._classic.get(name.casefold(), {}), name[len(self.alias) + 1 :])

    def similar(self, name: str, schema: str | None = None, *, classic: bool = False) -> list[str]:
        """Names of several tables that differ from each other, and perhaps from ``name``, only in the case of
        letters."""
        called = self._classic.get(name.casefold(), {}) if classic else self._called(name, schema)
        folded = {_dotted(each).casefold() for each in called.values()}
        return [f"{self.alias}.{_display(each)}" for each in called.values()] if len(called) > len(folded) == 1 else []

    def mentioned(self, names: frozenset[str]) -> Iterator[tuple[TableInfo, tuple[str, ...], bool]]:
        """Tables that have one of the (case-folded) names: each with a path that SQL may use, and whether the case of
        its letters counts, because another table's name differs only in case."""
        if self._alone is not None and self.alias.casefold() in names:
            yield self._alone, (self.alias,), False
        for name in names:
            for info in self._named.get(name, {}).values():
                if info.schema and info.schema.casefold() in names:
                    several = len(self._called(info.name, info.schema)) > 1
                    yield info, (self.alias, info.schema, info.name), several
                if self.table(info.name) is info:
                    yield info, (self.alias, "main", info.name), len(self._called(info.name, None)) > 1
            for dotted, info in self._dotted.get(name, {}).items():
                yield info, (self.alias, "main", dotted), len(self._dotted[name]) > 1
            for written, info in self._classic.get(name, {}).items():
                yield info, (f"{self.alias}_{written}",), len(self._classic[name]) > 1


_Called = dict[str, TableInfo]
"""Tables by name, for names that differ only in case."""


def _chosen(called: _Called, name: str) -> TableInfo | None:
    return called.get(name) or (next(iter(called.values())) if len(called) == 1 else None)


def _dotted(info: TableInfo) -> str:
    return f"{info.schema or ''}.{info.name}"


def _display(info: TableInfo) -> str:
    return info.name if (info.schema or "") in DEFAULT_SCHEMAS else _dotted(info)


class Reflection:
    """Thread-safe."""

    def __init__(self, sources: Sequence[Source], *, lifetime: float) -> None:
        self.aliases = tuple(each.alias for each in sources if each.replica_of is None)
        self._changes = 0
        self._chains = {
            alias: tuple(each for each in sources if alias in (each.alias, each.replica_of)) for alias in self.aliases
        }
        self._folded = {alias.casefold(): alias for alias in self.aliases}
        self._followed: frozenset[str] = frozenset()
        """Aliases of sources that come and go."""
        self._lifetime = lifetime
        self._lock = threading.Lock()
        self._pool = Threads(THREADS, "dqp-catalog")
        self._kept = KeptStatistics(lambda alias: self._chains.get(alias, ()), self.known, lifetime)
        self._reflected: dict[str, Reflected] = {}
        self._loading: dict[str, Future[None]] = {}
        self._failed: dict[str, tuple[DaiError, float]] = {}
        """By alias: the error, and the time of the next attempt."""
        self._fresh: dict[str, deque[float]] = {}
        """By alias: when it was last compared because of a wrong query."""
        self._looked = time.monotonic()

    @property
    def version(self) -> int:
        """Changes when plans may change."""
        return self._changes + self._kept.version

    # --- tables ---

    def alias(self, name: str) -> str | None:
        """The alias with that name in any case, None if there is none."""
        return self._folded.get(name.casefold())

    def mentioned(self, names: Iterable[str]) -> list[str]:
        """Aliases that are one of the (case-folded) names, or begin one in the classic form."""
        names = tuple(names)
        return [
            alias
            for folded, alias in self._folded.items()
            if folded in names or any(name.startswith(folded + "_") for name in names)
        ]

    def loaded(self) -> list[Reflected]:
        return [self._reflected[alias] for alias in self.aliases if alias in self._reflected]

    def cached(self, alias: str) -> Reflected | None:
        """The tables of the source if they have been read, without asking it."""
        return self._reflected.get(alias)

    def known(self, alias: str) -> tuple[TableInfo, ...]:
        reflected = self._reflected.get(alias)
        return () if reflected is None else reflected.tables

    def need(self, aliases: Iterable[str]) -> None:
        """Waits until each has been read or has failed; all at once."""
        waiting = []
        with self._lock:
            for alias in aliases:
                failed = self._failed.get(alias)
                if alias in self._reflected or (failed and time.monotonic() < failed[1]):
                    continue
                if alias not in self._loading:
                    self._loading[alias] = self._pool.submit(self._load, alias)
                waiting.append(self._loading[alias])
        for each in waiting:
            each.result()

    def add(self, source: Source) -> None:
        """One more source, which no name in SQL means."""
        with self._lock:
            self._chains.setdefault(source.alias, (source,))

    def follow(self, sources: Sequence[Source]) -> None:
        """These are the sources besides the configured ones from now on."""
        with self._lock:
            before = {alias: self._chains[alias] for alias in self._followed}
            now = {each.alias: (each,) for each in sources}
            if before == now:
                return
            for alias in [alias for alias, chain in before.items() if now.get(alias) != chain]:
                self._reflected.pop(alias, None)
                self._failed.pop(alias, None)
                self._kept.forget(alias)
                del self._chains[alias]
            self._chains.update(now)
            configured = [each for each in self.aliases if each not in self._followed]
            self._followed = frozenset(now)
            self.aliases = (*configured, *now)
            self._folded = {alias.casefold(): alias for alias in self.aliases}
            self._changes += 1

    def reach(self, aliases: Iterable[str], *, wait: bool = True) -> None:
        """Waits, unless told not to, until each has been read or has failed, once. Those that failed are asked again in
        the background."""
        new = []
        for alias in aliases:
            if alias in self._reflected:
                continue
            failed = self._failed.get(alias)
            if failed is None and wait:
                new.append(alias)
            elif failed is None or time.monotonic() >= failed[1]:
                with self._lock:
                    if alias not in self._loading:
                        self._loading[alias] = self._pool.submit(self._load, alias)
        self.need(new)

    def reflected(self, alias: str) -> Reflected:
        """The tables of the source, read now if need be. Raises DatabaseUnavailableError for a source that is down."""
        while True:
            self.need((alias,))
            with self._lock:
                reflected, failed = self._reflected.get(alias), self._failed.get(alias)
                present = alias in self._chains
            if reflected is not None:
                return reflected
            if failed is not None:
                raise unavailable(alias, failed[0]) from failed[0]
            if not present:
                raise DatabaseUnavailableError(
                    f"The source {alias!r} is gone: its registry no longer lists it.", source=alias
                )

    def failed(self, alias: str) -> DaiError | None:
        """Why the source did not answer the last question; None if it did."""
        failed = self._failed.get(alias)
        return None if failed is None else failed[0]

    def _load(self, alias: str) -> None:
        begin = time.monotonic()
        try:
            last: DaiError | None = None
            for source in self._chains.get(alias, ()):
                try:
                    fingerprint = source.fingerprint()
                    reflected = Reflected(alias, source.tables(), fingerprint, source.dialect)
                except DaiError as error:
                    last = last or error
                    continue
                with self._lock:
                    if source in self._chains.get(alias, ()):
                        self._store(alias, reflected)
                return
            if last is not None:
                self._fail(alias, last, begin)
        finally:
            with self._lock:
                self._loading.pop(alias, None)

    def _fail(self, alias: str, error: DaiError, begin: float) -> None:
        now = time.monotonic()
        with self._lock:
            if alias in self._chains:
                self._failed[alias] = (error, now + min(max(now - begin, AGAIN_SECONDS), RETRY_SECONDS))

    def _store(self, alias: str, reflected: Reflected) -> None:
        self._failed.pop(alias, None)
        before = self._reflected.get(alias)
        self._reflected[alias] = reflected
        if before is not None and (before.content, before.dialect) != (reflected.content, reflected.dialect):
            self._kept.forget(alias)
            self._changes += 1

    # --- statistics ---

    def prefetch(self, alias: str, info: TableInfo) -> None:
        """Asks for a table's statistics, without waiting."""
        self._kept.asked((alias, info.schema, info.name))

    def statistics(self, alias: str, info: TableInfo, *, wait: bool = True) -> Statistics | None:
        """Statistics of a table; None if the source has none, or (without ``wait``) has not sent them yet."""
        return self._kept.of((alias, info.schema, info.name), wait=wait)

    def late(self, scans: Iterable[Scan], since: float) -> Sequence[Future[bool]]:
        """As ``KeptStatistics.late``, of the tables that are scanned."""
        return self._kept.late(((each.table.source, each.table.schema, each.table.name) for each in scans), since)

    # --- changes ---

    def look_after(self) -> None:
        """Starts a comparison with the loaded sources if the last one was a while ago."""
        now = time.monotonic()
        if now - self._looked < CHECK_SECONDS:
            return
        with self._lock:
            idle = now - self._looked
            if idle < CHECK_SECONDS:
                return
            self._looked = now
        long = idle > self._lifetime
        looking = [self._pool.submit(self._compare, alias, long) for alias in list(self._reflected)]
        if long:
            wait(looking, PATIENCE)

    def look_now(self, aliases: Iterable[str]) -> None:
        """Compares the sources with their cached tables and waits for that, at most PATIENCE seconds. Compares each
        FRESH_TIMES in FRESH_SECONDS at most, so that wrong queries keep no source busy."""
        now = time.monotonic()
        chosen = []
        with self._lock:
            for alias in aliases:
                last = self._fresh.setdefault(alias, deque(maxlen=FRESH_TIMES))
                if alias in self._reflected and (len(last) < FRESH_TIMES or now - last[0] >= FRESH_SECONDS):
                    last.append(now)
                    chosen.append(alias)
        wait([self._pool.submit(self._compare, alias, True) for alias in chosen], PATIENCE)

    def renew(self, alias: str) -> None:
        """Compares the source with its cached tables and waits for that."""
        if alias in self._reflected:
            self._compare(alias, True)

    def learn(self, alias: str, columns: Iterable[tuple[str | None, str, str, str]]) -> None:
        """Sets the types of columns (schema, table, name) to what their source delivers, an Arrow type, until its
        tables change, because the source reports other types. Raises DataError for a column of dates or times, which
        keeps its type whatever values it has, so that no answer depends on earlier queries."""
        types = {(schema, table, name): arrow for schema, table, name, arrow in columns}
        with self._lock:
            if (reflected := self._reflected.get(alias)) is None:
                return
            tables = [*reflected.tables, *(info for info, _ in reflected.hidden)]
            for at, info in enumerate(tables):
                delivered = {each: types.get((info.schema, info.name, each.name), each.arrow) for each in info.columns}
                for column, arrow in delivered.items():
                    if arrow != column.arrow and column.arrow.startswith(("date", "time")):
                        raise DataError(
                            f"{alias}: the column {column.name} of {info.name}, declared {column.type}, holds values "
                            "that are not of this type.",
                            hint=f"Read it as text (CAST({column.name} AS VARCHAR)), or exclude these rows.",
                        )
                changed = tuple(replace(column, arrow=arrow) for column, arrow in delivered.items())
                tables[at] = replace(info, columns=changed)
            self._reflected[alias] = Reflected(alias, tables, reflected.fingerprint, reflected.dialect)
            self._changes += 1

    def _compare(self, alias: str, fresh: bool = False) -> None:
        known, begin = self._reflected.get(alias), time.monotonic()
        for source in self._chains.get(alias, ()) if known is not None else ():
            try:
                current = source.fingerprint(fresh=fresh), source.dialect
            except DaiError as error:
                self._fail(alias, error, begin)
                continue
            assert known is not None
            if current != (known.fingerprint, known.dialect):
                self._load(alias)
            else:
                with self._lock:
                    self._failed.pop(alias, None)
            self._kept.refresh(alias)
            return

    def away(self) -> dict[str, str]:
        """The sources that did not answer the last question, with the reason."""
        with self._lock:
            return {alias: str(error) for alias, (error, _) in self._failed.items()}

    def problems(self) -> Mapping[str, str]:
        """Sources that are down and tables that need attention, by name, with the reason."""
        problems = self.away()
        with self._lock:
            for reflected in self._reflected.values():
                for info in reflected.tables:
                    columns = named(info.columns).items()
                    renamed = [f"{each.name} ({name})" for name, each in columns if name != each.name]
                    if renamed:
                        problems[f"{reflected.alias}.{info.name}"] = (
                            "Names of columns differ only in the case of letters; the federation numbers them: "
                            f"{', '.join(renamed)}."
                        )
                for info, why in reflected.hidden:
                    name = ".".join(part for part in (reflected.alias, info.schema, info.name) if part)
                    problems[name] = why
        return problems

    def close(self) -> None:
        self._kept.close()
        self._pool.close()


WHEN_BACK = "Queries over other sources still run. Try again when it is back."


def unavailable(alias: str, error: DaiError) -> DaiError:
    """The error of a query that needs a source that is down, or refuses its caller. Raise it from ``error``."""
    if isinstance(error, DeniedError) and error.extra.get("source") == alias:
        return DeniedError(error.detail, hint=error.hint, source=alias)
    # The message must not tell the address of a service.
    is_public = isinstance(error, DatabaseUnavailableError | DataError) and error.detail and "://" not in error.detail
    why = error.detail if is_public else f"{error.title}."
    hint = (isinstance(error, DataError) and error.hint) or WHEN_BACK
    if isinstance(error, UnauthenticatedError):
        own = f'sources = {{ {alias} = {{ url = "…", token = "env:NAME" }} }}'
        hint = f"Its service identifies its callers: set DAI_TOKEN, or {own}."
    return DatabaseUnavailableError(
        f"The source {alias!r} is not available: {why[0].lower()}{why[1:]}",
        hint=hint,
        source=alias,
    )
