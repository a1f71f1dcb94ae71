"""Defines ``Binder``, the interface between the modules of the clauses: names, common table expressions, subqueries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp

from dqp.algebra.functions import is_volatile
from dqp.algebra.operators import Names
from dqp.binding.scope import Output, Scope
from dqp.catalog.catalog import Catalog

Shape = tuple[tuple[str, str], ...]
"""Names and types of the columns of a query."""


@dataclass(frozen=True)
class Cte:
    """A common table expression, and the ones that it may use. ``recursive``: it also reads itself."""

    node: exp.Expression
    ctes: Ctes = field(repr=False)
    recursive: bool = False

    def volatile(self) -> bool:
        return any(is_volatile(each) for each in self.node.walk())


Ctes = Mapping[str, Cte]


class Binder(ABC):
    """Binds one statement. The modules of the clauses call it for nested queries. ``names`` creates identifiers;
    ``lists`` are the long lists among the statement's parameters."""

    catalog: Catalog
    lists: Mapping[str, pa.Table]
    names: Names

    @abstractmethod
    def reads(self) -> None:
        """Counts a name in FROM. Raises LimitError beyond the limit, because queries that read others twice grow
        without bound."""

    @abstractmethod
    def moment(self, kind: str) -> exp.Expression:
        """The literal for a function such as ``now()``; ``kind`` is its DuckDB type."""

    @abstractmethod
    def query(self, node: exp.Expression, outer: Scope | None, ctes: Ctes) -> Output:
        """Binds a query expression; ``outer`` is the scope of the query around it. Raises Unmodelled for one that the
        operators do not cover and that cannot run alone."""

    @abstractmethod
    def view(self, name: str) -> Output | None:
        """Binds the catalog's view of that name; None if there is none."""
