"""What sources say of themselves, kept: read at first need, all at once, and looked after in the background.

Nothing here waits for a source that is known already. At most every CHECK_SECONDS, when somebody asks for the version,
each loaded source's fingerprint is compared in the background; only after an idle time longer than the lifetime is that
waited for, PATIENCE seconds at most. A source that does not answer is asked again after as long as it took to find that
out, AGAIN_SECONDS at least and RETRY_SECONDS at most: one that refuses at once is back as soon as it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from dai.drivers import Statistics, TableInfo
from dai.errors import DaiError, DatabaseUnavailableError, DataError
from dqp.algebra.table import DEFAULT_SCHEMAS, meant, named
from dqp.catalog.sources import Source, fingerprint_of

CHECK_SECONDS = 10.0
FRESH_SECONDS = 1.0
AGAIN_SECONDS = 0.5
RETRY_SECONDS = 5.0
PATIENCE = 2.0
THREADS = 16
Key = tuple[str, str | None, str]
"""Alias, schema, name of a table."""


class Reflected:
    """The tables of one source at one time, by their names: of those that differ in the case of letters alone the one
    that is written so, whatever the case of the letters otherwise."""

    def __init__(self, alias: str, tables: Sequence[TableInfo], fingerprint: str, dialect: str) -> None:
        self.alias, self.fingerprint, self.dialect = alias, fingerprint, dialect
        self.content = fingerprint_of(tables)
        self.hidden: list[tuple[TableInfo, str]] = []
        """Tables that no query can read, and why."""
        self._qualified: dict[tuple[str, str], _Called] = {}
        self._named: dict[str, _Called] = {}
        self._dotted: dict[str, _Called] = {}
        self._classic: dict[str, _Called] = {}
        shown = []
        for each in tables:
            info = meant(each, dialect)
            if not info.columns:
                self.hidden.append((info, "It has no columns."))
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

    def table(self, name: str, schema: str | None = None) -> TableInfo | None:
        """Without schema: that of a default schema, else the only one of that name, else ``name`` is
        ``schema.name``. None where there is none, or nothing says which of several."""
        called = self._called(name, schema)
        if schema is not None:
            return _chosen(called, f"{schema}.{name}")
        exact = {each: info for each, info in called.items() if info.name == name} or called
        if len(exact) == 1:
            return next(iter(exact.values()))
        return _chosen(self._dotted.get(name.casefold(), {}), name)

    def _called(self, name: str, schema: str | None) -> _Called:
        folded = name.casefold()
        if schema is not None:
            return self._qualified.get((schema.casefold(), folded), {})
        found = (self._qualified.get((each, folded)) for each in DEFAULT_SCHEMAS)
        return next(filter(None, found), None) or self._named.get(folded, {})

    def classic(self, name: str) -> TableInfo | None:
        """``alias_name`` or ``alias_schema_name``."""
        return _chosen(self._classic.get(name.casefold(), {}), name[len(self.alias) + 1 :])

    def similar(self, name: str, schema: str | None = None, *, classic: bool = False) -> list[str]:
        """Names of tables that differ from each other, and perhaps from this one, in the case of letters alone."""
        called = self._classic.get(name.casefold(), {}) if classic else self._called(name, schema)
        folded = {_dotted(each).casefold() for each in called.values()}
        return [f"{self.alias}.{_shown(each)}" for each in called.values()] if len(called) > len(folded) == 1 else []

    def mentioned(self, names: frozenset[str]) -> Iterator[tuple[TableInfo, tuple[str, ...], bool]]:
        """Tables that have one of the (case-folded) names, each with a path that SQL may use, and whether it is to be
        written there letter by letter: another one's differs in the case of letters alone."""
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
"""Tables by names that are the same but for the case of their letters."""


def _chosen(called: _Called, name: str) -> TableInfo | None:
    return called.get(name) or (next(iter(called.values())) if len(called) == 1 else None)


def _dotted(info: TableInfo) -> str:
    return f"{info.schema or ''}.{info.name}"


def _shown(info: TableInfo) -> str:
    return info.name if (info.schema or "") in DEFAULT_SCHEMAS else _dotted(info)


class Reflection:
    """Thread-safe."""

    def __init__(self, sources: Sequence[Source], *, lifetime: float) -> None:
        self.aliases = tuple(each.alias for each in sources if each.replica_of is None)
        self.version = 0
        self._chains = {
            alias: tuple(each for each in sources if alias in (each.alias, each.replica_of)) for alias in self.aliases
        }
        self._folded = {alias.casefold(): alias for alias in self.aliases}
        self._lifetime = lifetime
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="dqp-catalog")
        self._reflected: dict[str, Reflected] = {}
        self._loading: dict[str, Future[None]] = {}
        self._failed: dict[str, tuple[DaiError, float]] = {}
        """By alias, why, and when it may be asked again."""
        self._statistics: dict[Key, Future[Statistics | None]] = {}
        self._read: dict[Key, float] = {}
        self._used: set[Key] = set()
        self._fresh: dict[str, float] = {}
        self._looked = time.monotonic()

    # --- tables ---

    def alias(self, name: str) -> str | None:
        """The alias, whatever the case of the name's letters."""
        return self._folded.get(name.casefold())

    def mentioned(self, names: Iterable[str]) -> list[str]:
        """Aliases that one of the (case-folded) names is, or begins with in the classic form."""
        names = tuple(names)
        return [
            alias
            for folded, alias in self._folded.items()
            if folded in names or any(name.startswith(folded + "_") for name in names)
        ]

    def loaded(self) -> list[Reflected]:
        return [self._reflected[alias] for alias in self.aliases if alias in self._reflected]

    def found(self, alias: str) -> Reflected | None:
        """What is known of the source, without asking it."""
        return self._reflected.get(alias)

    def known(self, alias: str) -> tuple[TableInfo, ...]:
        found = self._reflected.get(alias)
        return () if found is None else found.tables

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

    def reflected(self, alias: str) -> Reflected:
        """DatabaseUnavailableError names a source that is down."""
        while True:
            self.need((alias,))
            with self._lock:
                found, failed = self._reflected.get(alias), self._failed.get(alias)
            if found is not None:
                return found
            if failed is not None:
                raise unavailable(alias, failed[0]) from failed[0]

    def failed(self, alias: str) -> bool:
        """Whether the source did not answer when it was last asked."""
        return alias in self._failed

    def _load(self, alias: str) -> None:
        begin = time.monotonic()
        try:
            last: DaiError | None = None
            for source in self._chains[alias]:
                try:
                    fingerprint = source.fingerprint()
                    found = Reflected(alias, source.tables(), fingerprint, source.dialect)
                except DaiError as error:
                    last = last or error
                    continue
                with self._lock:
                    self._take(alias, found)
                return
            assert last is not None
            self._fail(alias, last, begin)
        finally:
            with self._lock:
                self._loading.pop(alias, None)

    def _fail(self, alias: str, error: DaiError, begin: float) -> None:
        now = time.monotonic()
        with self._lock:
            self._failed[alias] = (error, now + min(max(now - begin, AGAIN_SECONDS), RETRY_SECONDS))

    def _take(self, alias: str, found: Reflected) -> None:
        self._failed.pop(alias, None)
        before = self._reflected.get(alias)
        self._reflected[alias] = found
        if before is not None and (before.content, before.dialect) != (found.content, found.dialect):
            for key in [key for key in self._statistics if key[0] == alias]:
                self._forget(key)
            self.version += 1

    # --- statistics ---

    def prefetch(self, alias: str, info: TableInfo) -> None:
        """Asks for a table's statistics, without waiting."""
        self._asked((alias, info.schema, info.name))

    def statistics(self, alias: str, info: TableInfo, *, wait: bool = True) -> Statistics | None:
        """None where the source does not say, or (without ``wait``) has not said yet."""
        key = (alias, info.schema, info.name)
        self._used.add(key)
        if wait:
            return self._asked(key).result()
        future = self._statistics.get(key)
        return future.result() if future is not None and future.done() else None

    def _asked(self, key: Key) -> Future[Statistics | None]:
        with self._lock:
            future = self._statistics.get(key)
            if future is None:
                future = self._statistics[key] = self._pool.submit(self._fetched, key)
                self._read[key] = time.monotonic()
            return future

    def _fetched(self, key: Key) -> Statistics | None:
        alias, schema, name = key
        for source in self._chains[alias]:
            try:
                return source.statistics(f"{schema}.{name}" if schema else name)
            except DaiError:
                continue
        return None

    def _forget(self, key: Key) -> None:
        self._statistics.pop(key, None)
        self._read.pop(key, None)
        self._used.discard(key)

    # --- keeping up ---

    def look_after(self) -> None:
        """Starts a look at the loaded sources when the last one is a while ago."""
        now = time.monotonic()
        if now - self._looked < CHECK_SECONDS:
            return
        with self._lock:
            idle = now - self._looked
            if idle < CHECK_SECONDS:
                return
            self._looked = now
        long = idle > self._lifetime
        looking = [self._pool.submit(self._look, alias, long) for alias in list(self._reflected)]
        if long:
            wait(looking, PATIENCE)

    def look_now(self, aliases: Iterable[str]) -> None:
        """Compares the sources with what is known of them, and waits for it PATIENCE seconds at most; again only after
        FRESH_SECONDS, so that wrong queries keep no source busy."""
        now = time.monotonic()
        with self._lock:
            chosen = [
                alias
                for alias in aliases
                if alias in self._reflected and now - self._fresh.get(alias, -FRESH_SECONDS) >= FRESH_SECONDS
            ]
            self._fresh.update(dict.fromkeys(chosen, now))
        wait([self._pool.submit(self._look, alias, True) for alias in chosen], PATIENCE)

    def renew(self, alias: str) -> None:
        """Compares the source with what is known of it, and waits for that."""
        if alias in self._reflected:
            self._look(alias, True)

    def learn(self, alias: str, columns: Iterable[tuple[str | None, str, str, str]]) -> None:
        """Takes columns (schema, table, name) for what their source delivers, an Arrow type, until its tables change:
        what it says of them differs from it. Raises DataError for a column of dates or times, which stays one whatever
        values are in it: so no answer depends on what was asked before."""
        types = {(schema, table, name): arrow for schema, table, name, arrow in columns}
        with self._lock:
            reflected = self._reflected[alias]
            tables = [*reflected.tables, *(info for info, _ in reflected.hidden)]
            for at, info in enumerate(tables):
                delivered = {each: types.get((info.schema, info.name, each.name), each.arrow) for each in info.columns}
                for column, arrow in delivered.items():
                    if arrow != column.arrow and column.arrow.startswith(("date", "time")):
                        raise DataError(
                            f"{alias}: the column {column.name} of {info.name}, declared {column.type}, holds values "
                            "that are none.",
                            hint=f"Ask {alias} alone for them, and correct them there; or leave their rows out.",
                        )
                changed = tuple(replace(column, arrow=arrow) for column, arrow in delivered.items())
                tables[at] = replace(info, columns=changed)
            self._reflected[alias] = Reflected(alias, tables, reflected.fingerprint, reflected.dialect)
            self.version += 1

    def _look(self, alias: str, fresh: bool = False) -> None:
        known, begin = self._reflected[alias], time.monotonic()
        for source in self._chains[alias]:
            try:
                found = source.fingerprint(fresh=fresh), source.dialect
            except DaiError as error:
                self._fail(alias, error, begin)
                continue
            if found != (known.fingerprint, known.dialect):
                self._load(alias)
            else:
                with self._lock:
                    self._failed.pop(alias, None)
            self._refresh(alias)
            return

    def _refresh(self, alias: str) -> None:
        """Reads anew what statistics have passed their lifetime and were used in it, and forgets the others."""
        now = time.monotonic()
        with self._lock:
            old = [key for key, read in self._read.items() if key[0] == alias and now - read > self._lifetime]
            for key in old:
                if key not in self._used:
                    self._forget(key)
        for key in old:
            before = self._statistics.get(key)
            if before is None or not before.done():
                continue
            fresh = self._fetched(key)
            with self._lock:
                if self._statistics.get(key) is not before:  # the table has changed meanwhile
                    continue
                self._used.discard(key)
                self._read[key] = now
                if fresh is not None and fresh != before.result():
                    done: Future[Statistics | None] = Future()
                    done.set_result(fresh)
                    self._statistics[key] = done
                    self.version += 1

    def away(self) -> dict[str, str]:
        """The sources that did not answer when they were last asked, and why."""
        with self._lock:
            return {alias: str(error) for alias, (error, _) in self._failed.items()}

    def problems(self) -> Mapping[str, str]:
        """By alias, or by the name of a table."""
        found = self.away()
        with self._lock:
            for reflected in self._reflected.values():
                for info in reflected.tables:
                    columns = named(info.columns).items()
                    renamed = [f"{each.name} ({name})" for name, each in columns if name != each.name]
                    if renamed:
                        found[f"{reflected.alias}.{info.name}"] = (
                            "Names of columns differ in the case of letters alone; here they have numbers: "
                            f"{', '.join(renamed)}."
                        )
                for info, why in reflected.hidden:
                    name = ".".join(part for part in (reflected.alias, info.schema, info.name) if part)
                    found[name] = why
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def unavailable(alias: str, error: DaiError) -> DatabaseUnavailableError:
    """For a query that needs a source that is away; its ``__cause__`` is to be ``error``."""
    # Where a service is, stays here.
    told = isinstance(error, DatabaseUnavailableError) and error.detail and "://" not in error.detail
    why = error.detail if told else f"{error.title}."
    return DatabaseUnavailableError(
        f"The source {alias!r} is not available: {why[0].lower()}{why[1:]}",
        hint="Queries of other sources go on. Try again when it is back.",
        source=alias,
    )
