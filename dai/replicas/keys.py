"""Gives a copy of a table the keys of its original: NOT NULL, the primary key, unique keys, as far as its database can.

PostgreSQL and MariaDB are told each by itself; SQLite and DuckDB, which cannot add them all to a table that is there,
load the rows once more, into a table that has them. Foreign keys, other indexes, checks and defaults are not copied.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dai.errors import DaiError

REBUILT = ("sqlite", "duckdb")


@dataclass(frozen=True)
class Keys:
    """``required``: the columns that are never NULL."""

    required: tuple[str, ...] = ()
    primary: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Keys:
        """Of a table as a service describes it."""
        primary = tuple(described.get("primary_key") or ())
        indexes = [each for each in described.get("indexes") or () if each["unique"] and each["columns"]]
        unique = dict.fromkeys(tuple(each["columns"]) for each in indexes)
        required = [each["name"] for each in described["columns"] if not each.get("nullable", True)]
        names = {each["name"] for each in described["columns"]}
        return cls(
            tuple(dict.fromkeys((*required, *primary))),
            primary,
            tuple(each for each in unique if each != primary and names >= set(each)),
        )


def keyed(
    table: str,
    columns: Sequence[Mapping[str, Any]],
    keys: Keys,
    dialect: str,
    quoted: Callable[[str], str],
    change: Callable[[str], None],
) -> tuple[str, list[str]]:
    """The name of the table with its keys, in the place of ``table``, and what could not be copied, with the reason.
    ``columns`` as its service describes them; ``change`` runs a statement there."""
    if keys == Keys():
        return table, []
    whole = ".".join(map(quoted, table.split(".")))
    if dialect in REBUILT:
        return _rebuilt(table, whole, columns, keys, quoted, change)
    missing: list[str] = []
    for what, statement in _statements(whole, columns, keys, dialect, quoted):
        try:
            change(statement)
        except DaiError as error:
            missing.append(f"{what}: {error.detail or error.title}")
    return table, missing


def _statements(
    table: str, columns: Sequence[Mapping[str, Any]], keys: Keys, dialect: str, quoted: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    types = {str(each["name"]): str(each["type"]) for each in columns}
    for each in keys.required:
        action = f"alter column {quoted(each)} set not null"
        if dialect in ("mariadb", "mysql"):
            action = f"modify {quoted(each)} {types[each]} not null"
        yield f"NOT NULL of {each}", f"alter table {table} {action}"
    if keys.primary:
        yield _named("primary key", keys.primary), f"alter table {table} add primary key {_list(keys.primary, quoted)}"
    for key in keys.unique:
        yield _named("unique key", key), f"alter table {table} add unique {_list(key, quoted)}"


def _rebuilt(
    table: str,
    whole: str,
    columns: Sequence[Mapping[str, Any]],
    keys: Keys,
    quoted: Callable[[str], str],
    change: Callable[[str], None],
) -> tuple[str, list[str]]:
    schema, dot, _ = table.rpartition(".")
    name = f"{schema}{dot}keyed_{secrets.token_hex(6)}"
    new = ".".join(map(quoted, name.split(".")))
    parts = [
        f"{quoted(str(each['name']))} {each['type']}{' not null' if each['name'] in keys.required else ''}"
        for each in columns
    ]
    parts += [f"primary key {_list(keys.primary, quoted)}"] if keys.primary else []
    parts += [f"unique {_list(each, quoted)}" for each in keys.unique]
    created = False
    try:
        change(f"create table {new} ({', '.join(parts)})")
        created = True
        change(f"insert into {new} select {', '.join(quoted(str(each['name'])) for each in columns)} from {whole}")
    except DaiError as error:
        if created:
            change(f"drop table {new}")
        return table, [f"keys and NOT NULL: {error.detail or error.title}"]
    change(f"drop table {whole}")
    return name, []


def _list(columns: Iterable[str], quoted: Callable[[str], str]) -> str:
    return f"({', '.join(map(quoted, columns))})"


def _named(what: str, columns: Sequence[str]) -> str:
    return f"{what} ({', '.join(columns)})"
