"""Finds the copies of logical tables: a replica service says where they are, their resources say what they are.

What the service says is kept for a lifetime; the names of a query that are not known are asked for in one request, and
all that are known in one request when the lifetime ends. While the service is away, what it said last counts.

A copy is used if its entry has not ended, it is not too old, its address is allowed, its resource answers and its table
has the columns of the reference. The reference is the table with the schema of the logical name, else an original
before a copy, by name. Among those that are used the order is by expected seconds, in steps of a factor of two, then
originals before copies, younger copies first, then by name: whoever knows the same chooses the same.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from dai.client import Options
from dai.drivers.tables import TableInfo
from dai.errors import DaiError, DatabaseUnavailableError, NotFoundError, RequestError, UnreachableError
from dai.replicas.client import Attributes, Locations, ReplicaClient, TableTarget
from dai.replicas.following import IndexClient
from dqp.algebra import types
from dqp.algebra.table import Column, Replica, Table, named
from dqp.catalog.reflection import Reflection, unavailable
from dqp.catalog.sources.configured import Credentials, options_of, service_source
from dqp.catalog.sources.service import ALIVE_SECONDS, SMALL_AFTER
from dqp.catalog.sources.source import Source
from dqp.catalog.validator import Shape, texts
from dqp.settings import LOOPBACK, FederationSettings, ReplicaServiceSettings, SourceSettings, within

AGAIN_SECONDS, RETRY_SECONDS = 0.5, 30.0
"""Until a replica service that did not answer is asked again: the first pause, and the longest."""
MOST_NAMES = 1_000
"""Kept, those that were first asked for last."""
COST = 1.0
"""Seconds a million rows, of a copy of which nothing is known."""
ROWS = 1_000_000.0
LEAST_SECONDS = 0.001


@dataclass(frozen=True)
class Copy:
    """A copy that may be used: a table of the source ``alias``."""

    target: str
    alias: str
    table: str
    attributes: Attributes

    @property
    def copied(self) -> float | None:
        moment: float | None = self.attributes.get("copied")
        return moment


@dataclass(frozen=True)
class Choice:
    """The copies of one name: those that are used with their tables, the best one first; why others are not."""

    used: tuple[tuple[Copy, TableInfo], ...]
    others: tuple[tuple[str, str], ...]
    away: DaiError | None = None
    """Of the first copy that does not answer."""

    @property
    def plain(self) -> tuple[object, ...]:
        """What a plan depends on."""
        return tuple((each.alias, info) for each, info in self.used)


class Copies:
    """Thread-safe. ``source_at`` gives the source for the address of a resource; None where it may not be read.
    ``speed``: the measured seconds a million rows of a source."""

    def __init__(
        self,
        settings: ReplicaServiceSettings,
        client: ReplicaClient | IndexClient,
        reflection: Reflection,
        source_at: Callable[[str], Source | None],
        speed: Callable[[str], float | None],
    ) -> None:
        self.settings, self.alias = settings, settings.alias
        self._client, self._reflection, self._source_at, self._speed = client, reflection, source_at, speed
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._found: dict[str, Sequence[str]] = {}
        self._logical: dict[str, Attributes] = {}
        self._attributes: dict[str, Attributes] = {}
        self._told_by: dict[str, str] = {}
        self._faults: dict[str, Mapping[str, str]] = {}
        """Of an index: the catalog that told of a target; by name the catalogs that did not answer, and why."""
        self._asked = 0.0
        self._failed: tuple[DaiError, float, float] | None = None
        """The error of the last request, the time of the next, and the pause before it."""
        self._aside: dict[str, str] = {}
        self._references: dict[str, tuple[str, Shape]] = {}
        self._tables: dict[str, tuple[Table, Table]] = {}
        self._shapes: dict[tuple[str, str], tuple[TableInfo, Shape]] = {}
        self._chosen: dict[str, tuple[object, ...]] = {}
        self._version = 0

    # --- what the replica service says ---

    @property
    def version(self) -> int:
        """Changes when another copy is to be read, or there are others to go on with."""
        if not self._found:
            return self._version
        if time.monotonic() - self._asked > self.settings.lifetime:
            self._ask(renew=True)
            # a plan that is used again asks for nothing: a copy that joined is read beside it
            copies = [each for name in list(self._found) for each in self._candidates(name)[0]]
            self._reflection.reach({each.alias for each in copies}, wait=False)
        chosen = {name: self.choice(name).plain for name in list(self._found)}
        with self._lock:
            if chosen != self._chosen:
                self._chosen = chosen
                self._version += 1
            return self._version

    def mentioned(self, text: str) -> list[str]:
        """The logical names that the SQL may read: ``alias.name``, and ``alias.a.b``, which is the name ``a.b``."""
        names: list[str] = []
        parts: list[str] = []
        for kind, each in (*texts(text), ("", "")):
            inside = bool(parts) and parts[-1] != "."
            named = kind in ("word", "name")
            if (each == ".") if inside else named:
                parts.append(each)
                continue
            path = [part for part in parts if part != "."]
            if path and path[0].casefold() == self.alias.casefold():
                names += [".".join(path[1:end]) for end in range(2, min(len(path), 3) + 1)]
            parts = [each] if named else []
        return names

    def need(self, names: Sequence[str]) -> None:
        """Asks, in one request, for the names that are not known yet, and waits for the tables of their copies. A
        resource that has not the table, as far as is known, is asked once more: it may be new."""
        if any(each not in self._found for each in names):
            self._ask(names=names)
        copies = [each for name in names for each in self._candidates(name)[0]]
        self._reflection.reach({each.alias for each in copies})
        known = [(each, self._reflection.cached(each.alias)) for each in copies]
        if new := {each.alias for each, there in known if there is not None and there.table(each.table) is None}:
            self._reflection.look_now(new)

    def known(self) -> list[str]:
        """The names that have targets."""
        return [name for name, targets in self._found.items() if targets]

    def listed(self) -> list[str]:
        """Those that have tables, also such as were never asked for; what is known where nobody answers."""
        names = self.known()
        with suppress(DaiError):
            names = self._client.names(MOST_NAMES)
        self.need(names)
        return names

    def _ask(self, names: Sequence[str] = (), *, renew: bool = False) -> None:
        """Whoever comes while another asks waits for the same answer."""
        with self._asking:
            now = time.monotonic()
            due = renew and now - self._asked > self.settings.lifetime
            asked = self.known() if due else [each for each in names if each not in self._found]
            if not asked and due:
                self._keep((), Locations(), everything=True)
            if not asked or (self._failed is not None and now < self._failed[1]):
                return
            try:
                locations = self._client.find(asked)
            except DaiError as error:
                pause = AGAIN_SECONDS if self._failed is None else min(2 * self._failed[2], RETRY_SECONDS)
                self._failed = (error, time.monotonic() + pause, pause)
                return
            self._keep(asked, locations, everything=due)

    def _keep(self, asked: Sequence[str], locations: Locations, everything: bool) -> None:
        with self._lock:
            self._failed = None
            if everything or not self._found:
                self._asked = time.monotonic()
            if everything:
                self._aside.clear()
            kept = {} if everything else self._found
            names = {**kept, **{name: locations.targets.get(name, ()) for name in asked}}
            self._found = dict(list(names.items())[-MOST_NAMES:])
            self._logical = {**self._logical, **locations.logical}
            self._attributes = {**({} if everything else self._attributes), **locations.attributes}
            self._told_by = {**({} if everything else self._told_by), **locations.told_by}
            self._faults = {**({} if everything else self._faults), **locations.faults}
            self._references = {
                name: each for name, each in self._references.items() if each[0] in self._found.get(name, ())
            }

    # --- the choice ---

    def _candidates(self, name: str) -> tuple[list[Copy], list[tuple[str, str]]]:
        """The copies by what is said of them, the best one first; why others are not."""
        copies: list[Copy] = []
        others: list[tuple[str, str]] = []
        now = time.time()
        for target in self._found.get(name, ()):
            attributes, table = self._attributes.get(target, {}), _table_of(target)
            copied, expires = attributes.get("copied"), attributes.get("expires")
            source = None if table is None else self._source_at(table.address)
            if table is None:
                others.append((target, "it is not a table of a resource"))
            elif source is None:
                others.append((target, "the federation may not read at this address"))
            elif target in self._aside:
                others.append((target, self._aside[target]))
            elif expires is not None and expires < now:
                others.append((target, "its entry has ended"))
            elif copied is not None and copied + self.settings.max_age < now:
                others.append((target, f"it was copied more than {self.settings.max_age:,.0f} seconds ago"))
            else:
                copies.append(Copy(target, source.alias, table.table, attributes))
        wanted = self._logical.get(name, {}).get("schema")
        if any(each.attributes.get("schema") == wanted for each in copies):
            wrong = [each for each in copies if each.attributes.get("schema", wanted) != wanted]
            others += [(each.target, "it has another schema") for each in wrong]
            copies = [each for each in copies if each not in wrong]
        rows = max((float(each.attributes.get("rows", 0)) for each in copies), default=0.0) or ROWS
        return sorted(copies, key=lambda each: (self._step(each, rows), *_age(each), each.target)), others

    def _step(self, copy: Copy, rows: float) -> int:
        cost = self._speed(copy.alias)
        if cost is None:
            cost = float(copy.attributes.get("cost", COST))
        seconds = float(copy.attributes.get("distance", 0.0)) + cost * rows / 1_000_000
        return round(math.log2(max(seconds, LEAST_SECONDS)))

    def choice(self, name: str) -> Choice:
        """By what has been read of the copies so far, without asking anybody."""
        copies, others = self._candidates(name)
        answered: list[tuple[Copy, TableInfo]] = []
        silent: list[tuple[Copy, TableInfo]] = []
        away: DaiError | None = None
        for each in copies:
            reflected, failed = self._reflection.cached(each.alias), self._reflection.failed(each.alias)
            info = None if reflected is None else reflected.table(each.table)
            if reflected is None:
                away = away or failed
                others.append((each.target, _why(failed)))
            elif info is None:
                others.append((each.target, "its resource has no such table"))
            else:
                (answered if failed is None else silent).append((each, info))
        used = [*answered, *silent]
        reference = self._reference(name, used)
        for one in [each for each in used if self._shape(*each) != reference]:
            used.remove(one)
            others.append((one[0].target, "it has another schema"))
        return Choice(tuple(used), tuple(others), away)

    def _shape(self, copy: Copy, info: TableInfo) -> Shape:
        """``shape_of``, which every query asks for, as long as the table is as it was."""
        key = copy.alias, copy.table
        known = self._shapes.get(key)
        if known is None or known[0] is not info:
            known = self._shapes[key] = info, shape_of(info)
        return known[1]

    def _reference(self, name: str, copies: Sequence[tuple[Copy, TableInfo]]) -> Shape | None:
        """The columns that a copy of the name must have. They stay those of the same table as long as it is registered,
        though it may not answer."""
        known = self._references.get(name)
        shapes = {each.target: self._shape(each, info) for each, info in copies}
        if known is None or (known[0] in shapes and shapes[known[0]] != known[1]):
            first = min(copies, key=lambda each: (_age(each[0])[0], each[0].target), default=None)
            if first is None:
                return None
            known = self._references[name] = first[0].target, shapes[first[0].target]
        return known[1]

    def table(self, name: str, table_of: Callable[[str, TableInfo], Table]) -> Table:
        """The table of the best copy, with the others as its replicas. NotFoundError for a name that is not there,
        DatabaseUnavailableError where no copy can be read."""
        self.need([name])
        choice, shown = self.choice(name), f"{self.alias}.{name}"
        if not choice.used:
            self._raise(name, shown, choice)
        (best, info), *rest = choice.used
        base = table_of(best.alias, info)
        places: list[Replica] = [(each.alias, table.schema, table.name) for each, table in rest]
        replicas = (*places, *(each for each in base.replicas if each not in places))
        known = self._tables.get(name)
        if known is not None and known[0] is base and known[1].replicas == replicas:
            return known[1]
        table = replace(base, replicas=replicas, logical=name)
        self._tables[name] = (base, table)
        return table

    def _raise(self, name: str, shown: str, choice: Choice) -> None:
        if name not in self._found and self._failed is not None:
            raise unavailable(self.alias, self._failed[0]) from self._failed[0]
        if not self._found.get(name):
            silent = "".join(f" The catalog {url} gave no answer: {why}." for url, why in self._faulty(name))
            raise NotFoundError(
                f"There is no table {shown}.",
                hint=f"The replica service has no such name; its names are case-sensitive.{silent}",
            )
        if choice.away is not None and not choice.used:
            why = f"None of its {len(choice.others)} copies can be read: {_listed(choice.others)}."
            raise DatabaseUnavailableError(f"{shown} is not available. {why}", source=self.alias) from choice.away
        raise NotFoundError(f"There is no table {shown} that can be read: {_listed(choice.others)}.")

    def moved(self, table: Table, alias: str, schema: str | None, name: str) -> Table:
        """The table as it stands at one of its replicas, where its columns may have other collations."""
        reflected = self._reflection.cached(alias)
        info = None if reflected is None else reflected.table(name, schema)
        there = {} if info is None or table.logical is None else named(info.columns)

        def column(known: Column) -> Column:
            if (info := there.get(known.name)) is None:
                return known
            return replace(
                known, source_name=info.name, source_type=info.type, collation=info.collation, nullable=info.nullable
            )

        return replace(table, source=alias, schema=schema, name=name, columns=tuple(map(column, table.columns)))

    def set_aside(self, alias: str, why: str) -> bool:
        """A copy whose statement failed is not used until the replica service is asked again; whether there is another
        to use in its place."""
        done = False
        for name in self.known():
            used = self.choice(name).used
            mine = [each for each, _ in used if each.alias == alias]
            if mine and len(mine) < len(used):
                self._aside.update((each.target, why) for each in mine)
                done = True
        return done

    def remark(self, name: str) -> str:
        """Which copies of a name are read, in which order, and which are not."""
        choice = self.choice(name)
        used = [f"{self._with_teller(each.target)} ({each.alias})" for each, _ in choice.used]
        parts = [f"read at {used[0]}"] if used else []
        parts += [f"else at {each}" for each in used[1:]]
        parts += [f"not at {self._with_teller(target)}: {why}" for target, why in choice.others]
        parts += [f"the catalog {url} was not heard: {why}" for url, why in self._faulty(name)]
        return f"{self.alias}.{name}: {'; '.join(parts)}"

    def _with_teller(self, target: str) -> str:
        """With the catalog that told of it, where the service is an index."""
        return f"{target} told by {self._told_by[target]}" if target in self._told_by else target

    def _faulty(self, name: str) -> Sequence[tuple[str, str]]:
        return sorted(self._faults.get(name, {}).items())

    def problems(self) -> Mapping[str, str]:
        """By name, copies that are not used; and the service, if it does not answer."""
        problems = {}
        for name in self.known():
            if others := (*self.choice(name).others, *self._faulty(name)):
                problems[f"{self.alias}.{name}"] = "\n".join(f"{target}: {why}" for target, why in others)
        if self._failed is not None:
            problems[self.alias] = f"The replica service does not answer: {self._failed[0].title}."
        return problems

    def close(self) -> None:
        self._client.close()


class CopySources:
    """The sources of copies, by the addresses of their resources: those of the federation, and others, which it reads
    where ``services`` of the settings of its replica service allow it. ``add`` is given each new one."""

    def __init__(
        self,
        settings: FederationSettings,
        sources: Sequence[Source],
        credentials: Credentials,
        add: Callable[[Source], None],
    ) -> None:
        assert settings.replica_service is not None
        self._settings, self._service, self._credentials = settings, settings.replica_service, credentials
        self._known: dict[str, Source] = {each.address: each for each in sources if each.replica_of is None}
        replicas = {each.address: each.replica_of for each in sources if each.replica_of is not None}
        by_alias = {each.alias: each for each in settings.sources}
        self._replicas = {address: by_alias[str(alias)] for address, alias in replicas.items() if alias in by_alias}
        self._add, self._lock, self._count = add, threading.Lock(), 0

    def at(self, address: str) -> Source | None:
        """None where the federation may not read."""
        with self._lock:
            if address not in self._known:
                asked = self._replicas.get(address)
                if asked is None and any(within(address, each) for each in self._service.services):
                    # at any port of this machine may be anybody: the token is for those who are listed
                    token = self._service.token if self._service.services != LOOPBACK else None
                    asked = SourceSettings(alias=self._service.alias, token=token, ca=self._service.ca)
                if asked is None:
                    return None
                alias = f"{self._service.alias}@{self._count + 1}"
                try:
                    source = service_source(self._settings, asked, alias, address, self._credentials)
                except RequestError:  # as of a token that would travel in the clear
                    return None
                self._add(source)
                self._known[address], self._count = source, self._count + 1
            return self._known[address]


def client_of(settings: FederationSettings) -> ReplicaClient | IndexClient:
    """Of the replica service, which is followed as an index where the settings name catalogs."""
    service, options = settings.replica_service, replica_options(settings)
    assert service is not None
    index, catalogs = ReplicaClient(service.url, options), service.catalogs

    def client_at(url: str) -> ReplicaClient | None:
        # an index says what it likes: it cannot send the federation, and its token, to where nobody has allowed it
        if "?" in url or "#" in url or not any(within(url, each) for each in catalogs):
            return None
        try:
            return ReplicaClient(url, options)
        except RequestError:  # as of a token that would travel in the clear
            return None

    return IndexClient(index, client_at) if catalogs else index


def replica_options(settings: FederationSettings) -> Options:
    """Of calls to the replica service and to catalogs, for which a query waits."""
    service = settings.replica_service
    assert service is not None
    source = SourceSettings(alias=service.alias, token=service.token, ca=service.ca)
    return replace(options_of(settings.tls, source), connect=SMALL_AFTER, read=ALIVE_SECONDS, retries=0)


def _why(failed: DaiError | None) -> str:
    if failed is None:
        return "it has not answered yet"
    away = isinstance(failed, DatabaseUnavailableError | UnreachableError)
    return "it does not answer" if away else f"it refuses: {failed.title}"


_table_of = lru_cache(maxsize=10_000)(TableTarget.of)


def shape_of(info: TableInfo) -> Shape:
    return tuple((name, types.duckdb_type(each.arrow)) for name, each in named(info.columns).items())


def _age(copy: Copy) -> tuple[bool, float]:
    return copy.copied is not None, -(copy.copied or 0.0)


def _listed(others: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{number}: {why}" for number, (_, why) in enumerate(others, 1))
