"""Where a name is looked up: the relations of a FROM clause, what USING merges, and the queries around it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from string import ascii_lowercase, ascii_uppercase

from sqlglot import exp

from dqp.algebra.operators import Operator, column

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


def folded(name: str) -> str:
    """A name as DuckDB compares it: letters of ASCII have no case, all others have."""
    return name.lower() if name.isascii() else name.translate(_LOWER)


class Unmodelled(Exception):
    """The operators do not cover this; the smallest query expression around it that stands alone becomes a Verbatim."""


@dataclass(frozen=True, slots=True)
class Output:
    """A bound query: its tree and (name, identifier) of its columns; None is a name that DuckDB makes up."""

    tree: Operator
    columns: tuple[tuple[str | None, str], ...]


class Relation:
    """A member of FROM. ``alias`` is what its columns are qualified by, ``path`` the full name of a table without an
    alias of its own; both in lower case. ``fields``: whether its columns may have some."""

    __slots__ = ("alias", "columns", "fields", "index", "path")

    def __init__(
        self,
        alias: str | None,
        columns: Iterable[tuple[str | None, str]],
        path: tuple[str, ...] = (),
        fields: bool = True,
    ) -> None:
        self.alias = folded(alias) if alias else None
        self.path, self.fields = path, fields
        self.columns = unrepeated(columns)
        self.index = {folded(name): identifier for name, identifier in self.columns if name is not None}

    def goes_by(self, parts: tuple[str, ...]) -> bool:
        """Whether ``parts`` names it: its alias, or the end of its full name."""
        if len(parts) == 1:
            return self.alias == parts[0]
        return bool(self.path) and (
            self.path[-len(parts) :] == parts or (len(parts) == 2 and (self.path[0], self.path[-1]) == parts)
        )


def unrepeated(columns: Iterable[tuple[str | None, str]]) -> list[tuple[str | None, str]]:
    """A repeated name gets a number, as DuckDB does it (``a``, ``a_1``)."""
    given: list[tuple[str | None, str]] = []
    seen: dict[str, int] = {}
    for name, identifier in columns:
        unique = name
        if name is not None:
            while unique is not None and folded(unique) in seen:
                unique = f"{name}_{seen[folded(name)]}"
                seen[folded(name)] += 1
            if unique is not None:
                seen[folded(unique)] = 1
        given.append((unique, identifier))
    return given


@dataclass
class Merged:
    """A column of USING: what the name alone stands for, and the identifiers of both sides that it hides."""

    name: str
    value: exp.Expression
    identifiers: frozenset[str]


@dataclass
class Scope:
    """``sibling``: the members of FROM to the left of a derived table, which only LATERAL may use. ``aliases``: the
    select list's, by name in lower case, None where a name is given twice."""

    relations: list[Relation] = field(default_factory=list)
    merged: dict[str, Merged] = field(default_factory=dict)
    parent: Scope | None = None
    sibling: bool = False
    aliases: dict[str, int | None] = field(default_factory=dict)

    def find(self, parts: tuple[str, ...]) -> tuple[exp.Expression, tuple[str, ...]] | None:
        """The column that ``parts`` (in lower case) begins with, and the fields that remain; None if there is none
        here. Raises Unmodelled for one that is ambiguous."""
        qualified = self.qualified(parts)
        if qualified is not None:
            return qualified
        name = parts[0]
        merged = self.merged.get(name)
        if merged is not None:
            if any(name in each.index and each.index[name] not in merged.identifiers for each in self.relations):
                raise Unmodelled("ambiguous column")
            return merged.value.copy(), parts[1:]
        of = [each for each in self.relations if each.fields or len(parts) == 1]
        found = [each.index[name] for each in of if name in each.index]
        if len(found) > 1:
            raise Unmodelled("ambiguous column")
        return (column(found[0]), parts[1:]) if found else None

    def qualified(self, parts: tuple[str, ...]) -> tuple[exp.Expression, tuple[str, ...]] | None:
        """As ``find``, where the name of a relation stands before the column's."""
        for size in range(min(len(parts) - 1, 3), 0, -1):
            qualifier, name = parts[:size], parts[size]
            found = [each.index[name] for each in self.relations if each.goes_by(qualifier) and name in each.index]
            if len(found) > 1:
                raise Unmodelled("ambiguous qualifier")
            if found:
                return column(found[0]), parts[size + 1 :]
        return None

    def names_relation(self, name: str) -> bool:
        return any(each.alias == name for each in self.relations)

    def made_up(self) -> bool:
        """Whether it has a column whose name only DuckDB knows."""
        return any(name is None for each in self.relations for name, _ in each.columns)

    def visible(self, qualifier: tuple[str, ...] = ()) -> list[tuple[str | None, exp.Expression]]:
        """What ``*`` gives, or ``qualifier.*``."""
        given: list[tuple[str | None, exp.Expression]] = []
        if qualifier:
            matching = [each for each in self.relations if each.goes_by(qualifier)]
            if len(matching) != 1:
                raise Unmodelled("star of something else than one relation")
            return [(name, column(identifier)) for name, identifier in matching[0].columns]
        shown: set[str] = set()
        for relation in self.relations:
            for name, identifier in relation.columns:
                merged = self.merged.get(folded(name)) if name is not None else None
                if merged is None or identifier not in merged.identifiers:
                    given.append((name, column(identifier)))
                elif merged.name not in shown:
                    shown.add(merged.name)
                    given.append((name, merged.value.copy()))
        return given

    def identifiers(self) -> frozenset[str]:
        return frozenset(identifier for each in self.relations for _, identifier in each.columns)
