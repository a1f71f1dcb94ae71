"""Makes copies of tables at other services, and brings them up to date.

The rows go from service to service (deliverToGDT) into a new table. Then both tables are read and their checksums
compared; a copy that is not the same is dropped. Only what is the same gets its name, and only then the replica service
is told. Whatever fails before that leaves the replica service, and the copy that was there, as they were.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dai.client import Options, Service, activity, document, element, parted
from dai.client.credentials import is_below
from dai.client.http.transport import is_loopback
from dai.client.service import Resource
from dai.errors import ConflictError, DaiError, DataError, DeniedError, NotFoundError
from dai.formats.values.text import canonical, is_numeric_text, to_text
from dai.plugins import nearest
from dai.replicas.client import Attributes, Locations, ReplicaClient, TableTarget, columns_digest
from dai.replicas.keys import Keys, keyed

BLOCK_ROWS = 10_000
_LEAST = 1 << 20
"""Bytes that are hashed at once, about."""


@dataclass(frozen=True)
class Copied:
    """``renewed``: False where the copy was the same already. ``missing``: keys of the original that the copy could
    not be given, with the reason."""

    target: TableTarget
    rows: int
    checksum: str
    renewed: bool = True
    missing: tuple[str, ...] = ()


# --- the checksum ---


class Checksum:
    """The sum, modulo 2**64, of the hashes of rows: the same for equal rows in any order, whatever database they are
    from. A row is the texts of its values, each with its length, NULL apart; texts are those of WebRowSet, but for:
    booleans are 0 and 1, zeros behind the point of a decimal do not count, times have microseconds, numbers of 32 bits
    are those of 64, and -0.0 is 0.0."""

    def __init__(self) -> None:
        self.rows, self._sum = 0, 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        parts: list[Any] = []
        for column, described in zip(batch.columns, batch.schema, strict=True):
            text = _text(column, described)
            length = pc.binary_length(text.cast(pa.binary())).cast(pa.string())
            written = pc.binary_join_element_wise(length, text, ":")
            parts.append(pc.fill_null(written, "N"))
        rows = pc.binary_join_element_wise(*parts, ",") if len(parts) > 1 else parts[0]
        self.rows += batch.num_rows
        with np.errstate(over="ignore"):
            self._sum = int(np.add(np.uint64(self._sum), _hashes(rows).sum(dtype=np.uint64)))

    def __str__(self) -> str:
        return f"{self._sum:016x}"


def _text(array: pa.Array, described: pa.Field) -> pa.Array:
    array, types = canonical(array, described.name), pa.types
    if types.is_boolean(array.type):
        return array.cast(pa.int8()).cast(pa.string())
    if types.is_floating(array.type):
        return to_text(pc.add(array.cast(pa.float64()), 0.0), pa.field(described.name, pa.float64()))
    if types.is_timestamp(array.type):
        return array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()).cast(pa.string())
    if types.is_time(array.type):
        return array.cast(pa.time64("us")).cast(pa.int64()).cast(pa.string())
    text = to_text(array, described)
    if types.is_decimal(array.type) or is_numeric_text(described):
        text = pc.replace_substring_regex(text, r"^(-?\d+\.\d*?)0*$", r"\1")
        text = pc.utf8_rtrim(text, ".")
    return text


def _hashes(texts: pa.Array) -> np.ndarray:
    """Of texts that are not empty: the sum of byte times weight of its place, mixed (as ``filters`` hashes names)."""
    array = texts.cast(pa.large_binary())
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(array.buffers()[2], np.uint8)
    sums = np.empty(len(array), np.uint64)
    at = 0
    with np.errstate(over="ignore"):
        while at < len(array):
            end = max(at + 1, int(np.searchsorted(offsets, offsets[at] + _LEAST, "right")) - 1)
            begins = offsets[at:end] - offsets[at]
            places = np.arange(offsets[end] - offsets[at]) - np.repeat(begins, np.diff(offsets[at : end + 1]))
            weights = _mixed((places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)
            terms = (data[offsets[at] : offsets[end]].astype(np.uint64) + np.uint64(1)) * weights
            sums[at:end] = np.add.reduceat(terms, begins)
            at = end
        return _mixed(sums)


def _mixed(value: np.ndarray) -> np.ndarray:
    """splitmix64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = value ^ (value >> np.uint64(31))
    return mixed


# --- copies ---


@dataclass(frozen=True)
class _Place:
    """A table at a service. ``columns``: names and Arrow types. ``described``: as its service does."""

    resource: Resource
    table: str
    columns: Sequence[tuple[str, str]] = field(default=())
    described: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, resource: Resource, table: str) -> _Place:
        """NotFoundError suggests the nearest name."""
        described = resource.schema(fresh=True)[table]
        columns = [(str(each["name"]), str(each["arrow"])) for each in described["columns"]]
        return cls(resource, table, columns, described)

    @property
    def dialect(self) -> str:
        return str(self.resource.properties.get("dialect"))

    def quoted(self, name: str) -> str:
        mark = "`" if self.dialect in ("mariadb", "mysql") else '"'
        return mark + name.replace(mark, mark * 2) + mark

    def __str__(self) -> str:
        """Its name in SQL."""
        return ".".join(map(self.quoted, self.table.split(".")))

    def select(self, names: Iterable[str]) -> str:
        return f"select {', '.join(map(self.quoted, names))} from {self}"

    def change(self, sql: str) -> None:
        count = element("resultStream", name="count")
        update = activity("sqlUpdateStatement", element("expression", sql), count, name="change")
        with self.resource.perform(document(update)) as response:
            response.check()

    def drop(self) -> None:
        self.change(f"drop table {self}")

    def rename(self, name: str) -> _Place:
        self.change(f"alter table {self} rename to {self.quoted(name)}")
        schema, dot, _ = self.table.rpartition(".")
        return _Place(self.resource, f"{schema}{dot}{name}", self.columns)

    def with_keys(self, keys: Keys) -> tuple[_Place, list[str]]:
        """The same table with those keys, and what it could not be given."""
        described = _Place.of(self.resource, self.table).described
        name, missing = keyed(self.table, described["columns"], keys, self.dialect, self.quoted, self.change)
        return _Place(self.resource, name, self.columns), missing

    def checksum(self, names: Sequence[str]) -> Checksum:
        """Of its rows now."""
        checksum = Checksum()
        with self.resource.query(self.select(names)) as result, result.stream() as stream:
            for batch in stream:
                checksum.add(batch)
        return checksum


class Copying:
    """With the services of sources and copies, whom ``options`` say who asks. Whoever may write into the catalog
    chooses their addresses, so credentials go only to this machine, to what a call names, and below ``services``."""

    def __init__(self, catalog: ReplicaClient, options: Options, services: Sequence[str] = ()) -> None:
        self._catalog, self._options, self._services = catalog, options, services

    def copy(self, logical: str, to: str, *, source: str | None = None, name: str | None = None) -> Copied:
        """A copy of the logical table in the resource at the URL, under the name of the original unless given.

        NotFoundError where there is no original, ConflictError where the resource has a table of that name, DataError
        where the copy is not the same as the original."""
        original = self._original(logical, self._catalog.find([logical]), source)
        name = name or original.table.rpartition(".")[2]
        own = [to, *filter(None, [source])]
        with closing(self._resource(original.address, own)) as there, closing(self._resource(to, own)) as here:
            if any(each["name"] == name for each in here.schema(fresh=True)):
                raise ConflictError(f"There is already a table {name!r} in {to}.", hint="Give the copy another name.")
            since, from_ = time.time(), _Place.of(there, original.table)
            loaded, checksum, missing = self._loaded(from_, here)
            copied = self._named(loaded, name)
            return replace(self._registered(logical, copied, checksum, since), missing=missing)

    def refresh(self, logical: str, target: str, *, source: str | None = None) -> Copied:
        """The copy at the target as the original is now. A copy that is the same already is only said to be so.

        NotFoundError where the target is no copy of the logical table; otherwise as ``copy``."""
        locations = self._catalog.find([logical])
        table = TableTarget.of(target)
        if table is None or target not in locations.targets.get(logical, ()):
            raise NotFoundError(
                f"{logical!r} has no copy {target!r}.", hint=_table_hint(locations.targets.get(logical, ()))
            )
        if "copied" not in locations.attributes.get(target, {}):
            raise ConflictError(f"{target!r} is an original, not a copy: it cannot be refreshed.")
        original, own = self._original(logical, locations, source, but=target), [*filter(None, [source])]
        with (
            closing(self._resource(original.address, own)) as there,
            closing(self._resource(table.address, own)) as here,
        ):
            since, from_ = time.time(), _Place.of(there, original.table)
            names = [each for each, _ in from_.columns]
            old: _Place | None = None
            with suppress(NotFoundError):
                old = _Place.of(here, table.table)
            if old is not None and [each for each, _ in old.columns] == names:
                now = from_.checksum(names)
                if _same(now, old.checksum(names)):
                    return self._registered(logical, old, now, since, renewed=False)
            loaded, checksum, missing = self._loaded(from_, here)
            replaced = None if old is None else old.rename(f"replaced_{secrets.token_hex(6)}")
            try:
                copied = self._named(loaded, table.table)
            except BaseException:
                if replaced is not None:
                    replaced.rename(table.table.rpartition(".")[2])
                raise
            if replaced is not None:
                replaced.drop()
            return replace(self._registered(logical, copied, checksum, since), missing=missing)

    def _original(self, logical: str, locations: Locations, source: str | None, but: str = "") -> TableTarget:
        """The table to copy: ``source``, or the first original whose entry has not ended."""
        targets = [each for each in locations.targets.get(logical, ()) if each != but]
        if not targets:
            raise NotFoundError(f"The replica service has no table with the name {logical!r} to copy.")
        if source is not None:
            if source not in targets or TableTarget.of(source) is None:
                raise NotFoundError(f"{logical!r} has no table {source!r}.", hint=_table_hint(targets))
            targets = [source]

        def is_original(attributes: Attributes) -> bool:
            return "copied" not in attributes and attributes.get("expires", math.inf) >= time.time()

        for each in targets:
            table = TableTarget.of(each)
            if table is not None and (source is not None or is_original(locations.attributes.get(each, {}))):
                return table
        raise NotFoundError(
            f"{logical!r} has no original, only copies.", hint=f"Name one to copy. {_table_hint(targets)}"
        )

    def _resource(self, url: str, own: Sequence[str]) -> Resource:
        """``own``: addresses that the caller has named."""
        base, name = parted(url)
        if name is None:
            raise NotFoundError(f"{url!r} names no resource.", hint=f"It looks like {base}/resources/NAME.")
        options, host = self._options, urlsplit(base).hostname or ""
        trusted = is_loopback(host) or any(is_below(base, parted(each)[0]) for each in (*own, *self._services))
        if (options.token or options.certificate or options.signing_key) and not trusted:
            raise DeniedError(
                f"The replica service names {base}, which does not get your credentials.",
                hint=f"If you trust that service: --service {base}",
            )
        return Service(base, self._options).resource(name)

    def _loaded(self, original: _Place, here: Resource) -> tuple[_Place, Checksum, tuple[str, ...]]:
        """A new table in the resource, which has the same rows as the original and its keys, but for those that are
        said; DataError where it has other rows."""
        names = [each for each, _ in original.columns]
        loaded, rows = _delivered(original, names, here)
        try:
            loaded, missing = loaded.with_keys(Keys.of(original.described))
            now, there = loaded.checksum(names), original.checksum(names)
            if rows != now.rows or not _same(now, there):
                raise DataError(
                    f"The copy has {now.rows:,} rows (checksum {now}), the original {there.rows:,} (checksum {there}).",
                    hint="The original was changed meanwhile, or the database of the copy has other types. The "
                    "copy was dropped; try again.",
                )
        except BaseException:
            with suppress(DaiError):
                loaded.drop()
            raise
        return loaded, now, tuple(missing)

    def _named(self, loaded: _Place, name: str) -> _Place:
        try:
            return _Place.of(loaded.rename(name.rpartition(".")[2]).resource, name)
        except BaseException:
            with suppress(DaiError):
                loaded.drop()
            raise

    def _registered(self, logical: str, copy: _Place, checksum: Checksum, since: float, renewed: bool = True) -> Copied:
        target = TableTarget.of(f"{copy.resource.url}#{copy.table}")
        assert target is not None
        attributes: Mapping[str, Any] = {
            "schema": columns_digest(copy.columns),
            "rows": checksum.rows,
            "copied": since,
            "checksum": str(checksum),
        }
        if refused := self._catalog.register({(logical, target): attributes}):
            raise ConflictError(f"The replica service refused the entry: {refused[0]}.")
        return Copied(target, checksum.rows, str(checksum), renewed)


def _delivered(original: _Place, names: Sequence[str], here: Resource) -> tuple[_Place, int]:
    """A new table with the rows that the service of the original delivers, and how many those are."""
    load = document(
        activity("inputStream", element("toLocal", name="rows"), name="incoming"),
        activity(
            "sqlBulkLoadRowSet",
            element("webRowSetStream", from_="rows"),
            element("resultStream", name="loaded"),
            name="load",
        ),
    )
    stream = "incoming"
    with here.session() as session:
        loading = here.submit(load, session=session.id)
        try:
            delivery = session.transfer(stream, original.resource, original.select(names), blocksize=BLOCK_ROWS)
            if (error := delivery.wait().error) is not None:
                raise error
            with loading.result("loaded") as result:
                written = ElementTree.fromstring(result.bytes())  # noqa: S314 - it comes from our service
        except BaseException:
            with suppress(DaiError):
                loading.abort()
            raise
    return _Place(here, written.attrib["tableName"]), int(written.attrib["updateCount"])


def _same(one: Checksum, other: Checksum) -> bool:
    return (one.rows, str(one)) == (other.rows, str(other))


def _table_hint(targets: Sequence[str]) -> str:
    return nearest("", list(targets)) if targets else "It has no table."
