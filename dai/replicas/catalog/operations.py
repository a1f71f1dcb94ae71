"""What changes a local replica catalog: functions that run within a transaction. Each takes a list of items and says
of each, in their order, with which code it ended; an item that is refused changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from dai.replicas.catalog.database import Connection, present
from dai.replicas.codes import LOGICAL, MISSING, PRESENT, TARGET, Code
from dai.replicas.names import TYPES

COLUMNS = ("logical", "target")
Pair = tuple[str, str]


@dataclass
class Changes:
    """Which logical names a transaction brought, and which it took away."""

    added: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    all: bool = False

    def appear(self, name: str) -> None:
        self.removed.discard(name)
        self.added.add(name)

    def disappear(self, name: str) -> None:
        self.added.discard(name)
        self.removed.add(name)

    def then(self, later: Changes) -> None:
        """What came after it, too."""
        self.added -= later.removed
        self.added |= later.added
        self.removed -= later.added
        self.removed |= later.removed


Operation = Callable[[Connection, Sequence[Any], Changes], list[Code]]


class Attribute(NamedTuple):
    name: str
    kind: int
    type: str = ""


class Value(NamedTuple):
    """Of the attribute ``name`` of the name ``key``."""

    key: str
    kind: int
    name: str
    type: str = ""
    value: str | int | float = ""


class Index(NamedTuple):
    """A replica location index that is sent updates: names that fit ``pattern`` (empty: all)."""

    url: str
    flags: int = 0
    pattern: str = ""


def known(db: Connection, kind: int, names: set[str]) -> set[str]:
    """Those of the names that the catalog has."""
    rows = db.all(present(COLUMNS[kind], db.sqlite), db.listed(names))
    return {name for (name,) in rows}


def _mapped(db: Connection, pairs: Sequence[Pair]) -> set[Pair]:
    """Those of the pairs that the catalog has. Each is looked up by both names: a name may have many partners."""
    if db.sqlite:
        asked = "select json_extract(value, '$[0]') as l, json_extract(value, '$[1]') as t from json_each(?)"
        values: tuple[Any, ...] = (orjson.dumps(pairs).decode(),)
    else:
        asked = "select * from unnest(?::text[], ?::text[]) as pairs (l, t)"
        values = tuple(map(list, zip(*pairs, strict=True))) or ([], [])
    statement = f"select logical, target from ({asked}) asked cross join dai_mappings where logical = l and target = t"
    return {(left, right) for left, right in db.all(statement, *values)}


def _insert(db: Connection, pairs: list[Pair]) -> None:
    # in order: neighbours are on the same pages
    db.many("insert into dai_mappings (logical, target) values (?, ?)", sorted(pairs))


def create(db: Connection, items: Sequence[Pair], changes: Changes) -> list[Code]:
    """Mappings of logical names that are new."""
    there, codes, rows = known(db, LOGICAL, {each for each, _ in items}), [], []
    for pair in items:
        if pair[0] in there:
            codes.append(Code.LFN_EXIST)
            continue
        there.add(pair[0])
        changes.appear(pair[0])
        rows.append(pair)
        codes.append(Code.OK)
    _insert(db, rows)
    return codes


def add(db: Connection, items: Sequence[Pair], changes: Changes) -> list[Code]:
    """More targets of logical names that are there."""
    there, mapped = known(db, LOGICAL, {each for each, _ in items}), _mapped(db, items)
    codes, rows = [], []
    for pair in items:
        if pair[0] not in there:
            codes.append(Code.LFN_NEXIST)
        elif pair in mapped:
            codes.append(Code.MAPPING_EXIST)
        else:
            mapped.add(pair)
            rows.append(pair)
            codes.append(Code.OK)
    _insert(db, rows)
    return codes


def put(db: Connection, items: Sequence[Pair], changes: Changes) -> list[Code]:
    """Mappings, whether their logical names are new or not; one that is there stays."""
    there, mapped = known(db, LOGICAL, {each for each, _ in items}), _mapped(db, items)
    rows = [pair for pair in dict.fromkeys(items) if pair not in mapped]
    for logical in {each for each, _ in rows} - there:
        changes.appear(logical)
    _insert(db, rows)
    return [Code.OK] * len(items)


def delete(db: Connection, items: Sequence[Pair], changes: Changes) -> list[Code]:
    """Mappings; a name that no mapping has any more is gone, with its attributes."""
    mapped, codes, rows = _mapped(db, items), [], []
    for pair in items:
        if pair in mapped:
            mapped.remove(pair)
            rows.append(pair)
            codes.append(Code.OK)
        else:
            codes.append(Code.MAPPING_NEXIST)
    db.many("delete from dai_mappings where logical = ? and target = ?", rows)
    for kind in (LOGICAL, TARGET):
        names = {pair[kind] for pair in rows}
        gone = names - known(db, kind, names)
        db.many("delete from dai_attribute_values where kind = ? and key = ?", [(kind, each) for each in gone])
        if kind == LOGICAL:
            for each in gone:
                changes.disappear(each)
    return codes


def rename(kind: int) -> Operation:
    column = COLUMNS[kind]

    def renamed(db: Connection, items: Sequence[Pair], changes: Changes) -> list[Code]:
        """From one name to another that is new; its mappings and attributes go with it."""
        codes = []
        for old, new in items:
            there = known(db, kind, {old, new})
            if old not in there:
                codes.append(MISSING[kind])
            elif new in there:
                codes.append(PRESENT[kind])
            else:
                db.run(f"update dai_mappings set {column} = ? where {column} = ?", new, old)
                db.run("update dai_attribute_values set key = ? where kind = ? and key = ?", new, kind, old)
                if kind == LOGICAL:
                    changes.disappear(old)
                    changes.appear(new)
                codes.append(Code.OK)
        return codes

    return renamed


rename_logical, rename_target = rename(LOGICAL), rename(TARGET)


def clear(db: Connection, items: Sequence[Any], changes: Changes) -> list[Code]:
    """Every mapping and every value; the attributes stay defined."""
    db.run("delete from dai_mappings")
    db.run("delete from dai_attribute_values")
    changes.added.clear()
    changes.all = True
    return [Code.OK] * len(items)


def type_of(db: Connection, name: str, kind: int) -> str | None:
    """The type of an attribute; None for one that is not defined."""
    rows = db.all("select type from dai_attributes where name = ? and kind = ?", name, kind)
    return rows[0][0] if rows else None


def define(db: Connection, items: Sequence[Attribute], changes: Changes) -> list[Code]:
    codes = []
    for each in items:
        if type_of(db, each.name, each.kind) is not None:
            codes.append(Code.ATTR_EXIST)
        else:
            db.run("insert into dai_attributes (name, kind, type) values (?, ?, ?)", *each)
            codes.append(Code.OK)
    return codes


def undefine(clearing: bool) -> Operation:
    def undefined(db: Connection, items: Sequence[Attribute], changes: Changes) -> list[Code]:
        """Attributes; with ``clearing`` also those that names have."""
        codes = []
        for name, kind, _ in items:
            where = (kind, name)
            if type_of(db, name, kind) is None:
                codes.append(Code.ATTR_NEXIST)
            elif not clearing and db.all(
                "select 1 from dai_attribute_values where kind = ? and name = ? limit 1", *where
            ):
                codes.append(Code.ATTR_INUSE)
            else:
                db.run("delete from dai_attribute_values where kind = ? and name = ?", *where)
                db.run("delete from dai_attributes where name = ? and kind = ?", name, kind)
                codes.append(Code.OK)
        return codes

    return undefined


def _has(db: Connection, each: Value) -> bool:
    statement = "select 1 from dai_attribute_values where kind = ? and key = ? and name = ?"
    return bool(db.all(statement, each.kind, each.key, each.name))


def valued(new: bool | None) -> Operation:
    def written(db: Connection, items: Sequence[Value], changes: Changes) -> list[Code]:
        """Values of attributes: ``new`` ones, or others in their place; None: either."""
        codes = []
        for each in items:
            type = type_of(db, each.name, each.kind)
            if not known(db, each.kind, {each.key}):
                codes.append(MISSING[each.kind])
            elif type is None:
                codes.append(Code.ATTR_NEXIST)
            elif type != each.type:
                codes.append(Code.INV_ATTR_TYPE)
            elif _has(db, each) is new:
                codes.append(Code.ATTR_EXIST if new else Code.ATTR_VALUE_NEXIST)
            else:
                db.run(
                    "delete from dai_attribute_values where kind = ? and key = ? and name = ?",
                    each.kind, each.key, each.name,
                )  # fmt: skip
                column = TYPES[type].column
                db.run(
                    f"insert into dai_attribute_values (kind, key, name, {column}) values (?, ?, ?, ?)",
                    each.kind, each.key, each.name, each.value,
                )  # fmt: skip
                codes.append(Code.OK)
        return codes

    return written


add_values, modify_values, put_values = valued(True), valued(False), valued(None)


def remove_values(db: Connection, items: Sequence[Value], changes: Changes) -> list[Code]:
    codes = []
    for each in items:
        if not known(db, each.kind, {each.key}):
            codes.append(MISSING[each.kind])
        elif type_of(db, each.name, each.kind) is None:
            codes.append(Code.ATTR_NEXIST)
        elif not _has(db, each):
            codes.append(Code.ATTR_VALUE_NEXIST)
        else:
            db.run(
                "delete from dai_attribute_values where kind = ? and key = ? and name = ?",
                each.kind, each.key, each.name,
            )  # fmt: skip
            codes.append(Code.OK)
    return codes


def add_index(db: Connection, items: Sequence[Index], changes: Changes) -> list[Code]:
    codes = []
    for each in items:
        if db.all("select 1 from dai_indexes where url = ? and pattern = ?", each.url, each.pattern):
            codes.append(Code.RLI_EXIST)
        else:
            db.run("insert into dai_indexes (url, flags, pattern) values (?, ?, ?)", *each)
            codes.append(Code.OK)
    return codes


def delete_index(db: Connection, items: Sequence[Index], changes: Changes) -> list[Code]:
    """With a pattern that one alone; without, all of the index."""
    codes = []
    for each in items:
        one, which = (" and pattern = ?", (each.pattern,)) if each.pattern else ("", ())
        gone = db.run(f"delete from dai_indexes where url = ?{one}", each.url, *which)
        codes.append(Code.OK if gone else Code.RLI_NEXIST)
    return codes
