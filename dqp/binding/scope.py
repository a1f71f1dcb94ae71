"""Resolves names: in the relations of a FROM clause, the columns that USING merges, and the queries around."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from string import ascii_lowercase, ascii_uppercase

from sqlglot import exp

from dqp.algebra.operators import Operator, column

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


def folded(name: str) -> str:
    """A name as DuckDB compares it: the case of ASCII letters does not count, that of others does."""
    return name.lower() if name.isascii() else name.translate(_LOWER)


class Unmodelled(Exception):
    """The operators do not cover this. The smallest query expression around it that can run alone becomes a
    Verbatim."""


def only(node: exp.Expression, known: frozenset[str]) -> None:
    """Raises Unmodelled if the node has a part that is not ``known``."""
    for name, value in node.args.items():
        if value and name not in known:
            raise Unmodelled(name)


@dataclass(frozen=True, slots=True)
class Output:
    """A bound query: its tree and (name, identifier) of its columns. The name is None where DuckDB invents it."""

    tree: Operator
    columns: tuple[tuple[str | None, str], ...]


class Relation:
    """A member of FROM. ``alias`` qualifies its columns; ``path`` is the full name of a table that has no alias of its
    own; both in lower case. ``fields``: whether its columns may have fields."""

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

    def has_name(self, parts: tuple[str, ...]) -> bool:
        """Whether ``parts`` is its alias, or the end of its full name."""
        if len(parts) == 1:
            return self.alias == parts[0]
        return bool(self.path) and (
            self.path[-len(parts) :] == parts or (len(parts) == 2 and (self.path[0], self.path[-1]) == parts)
        )


def unrepeated(columns: Iterable[tuple[str | None, str]]) -> list[tuple[str | None, str]]:
    """The columns with a number behind each repeated name, as in DuckDB (``a``, ``a_1``)."""
    unique_columns: list[tuple[str | None, str]] = []
    seen: dict[str, int] = {}
    for name, identifier in columns:
        unique = name
        if name is not None:
            while unique is not None and folded(unique) in seen:
                unique = f"{name}_{seen[folded(name)]}"
                seen[folded(name)] += 1
            if unique is not None:
                seen[folded(unique)] = 1
        unique_columns.append((unique, identifier))
    return unique_columns


@dataclass
class Merged:
    """A column of USING: the value of the unqualified name, and the identifiers of both sides that it hides."""

    name: str
    value: exp.Expression
    identifiers: frozenset[str]


@dataclass
class Scope:
    """The names that an expression may use. ``sibling``: these are the members of FROM to the left of a derived table,
    which only LATERAL may use. ``aliases``: select items by alias in lower case, None for an alias that is repeated."""

    relations: list[Relation] = field(default_factory=list)
    merged: dict[str, Merged] = field(default_factory=dict)
    parent: Scope | None = None
    sibling: bool = False
    aliases: dict[str, int | None] = field(default_factory=dict)

    def find(self, parts: tuple[str, ...]) -> tuple[exp.Expression, tuple[str, ...]] | None:
        """The column that the first of ``parts`` (in lower case) name, and the remaining parts, which are fields; None
        if no relation here has it. Raises Unmodelled for an ambiguous name."""
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
        matches = [each.index[name] for each in of if name in each.index]
        if len(matches) > 1:
            raise Unmodelled("ambiguous column")
        return (column(matches[0]), parts[1:]) if matches else None

    def qualified(self, parts: tuple[str, ...]) -> tuple[exp.Expression, tuple[str, ...]] | None:
        """As ``find``, for a column whose name is qualified by its relation."""
        for size in range(min(len(parts) - 1, 3), 0, -1):
            qualifier, name = parts[:size], parts[size]
            matches = [each.index[name] for each in self.relations if each.has_name(qualifier) and name in each.index]
            if len(matches) > 1:
                raise Unmodelled("ambiguous qualifier")
            if matches:
                return column(matches[0]), parts[size + 1 :]
        return None

    def names_relation(self, name: str) -> bool:
        return any(each.alias == name for each in self.relations)

    def has_unknown_names(self) -> bool:
        """Whether it has a column whose name only DuckDB knows."""
        return any(name is None for each in self.relations for name, _ in each.columns)

    def visible(self, qualifier: tuple[str, ...] = ()) -> list[tuple[str | None, exp.Expression]]:
        """The columns that ``*`` stands for, or ``qualifier.*``."""
        columns: list[tuple[str | None, exp.Expression]] = []
        if qualifier:
            matching = [each for each in self.relations if each.has_name(qualifier)]
            if len(matching) != 1:
                raise Unmodelled("star of something else than one relation")
            return [(name, column(identifier)) for name, identifier in matching[0].columns]
        shown: set[str] = set()
        for relation in self.relations:
            for name, identifier in relation.columns:
                merged = self.merged.get(folded(name)) if name is not None else None
                if merged is None or identifier not in merged.identifiers:
                    columns.append((name, column(identifier)))
                elif merged.name not in shown:
                    shown.add(merged.name)
                    columns.append((name, merged.value.copy()))
        return columns

    def identifiers(self) -> frozenset[str]:
        return frozenset(identifier for each in self.relations for _, identifier in each.columns)
