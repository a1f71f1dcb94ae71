"""What the clauses of a statement share while it is bound: its names, its common table expressions, the way to
subqueries."""

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
    """A common table expression and those it sees."""

    node: exp.Expression
    ctes: Ctes = field(repr=False)

    def volatile(self) -> bool:
        return any(is_volatile(each) for each in self.node.walk())


Ctes = Mapping[str, Cte]


class Binder(ABC):
    """One statement: its clauses are bound by modules of their own, which come back here for what is nested in them.
    ``names`` gives identifiers; ``lists`` are the tables of parameters that came with the statement."""

    catalog: Catalog
    lists: Mapping[str, pa.Table]
    names: Names

    @abstractmethod
    def reads(self) -> None:
        """Counts a name in FROM. LimitError for one too many: queries that read others twice grow without an end."""

    @abstractmethod
    def moment(self, kind: str) -> exp.Expression:
        """The literal of a function of the moment."""

    @abstractmethod
    def query(self, node: exp.Expression, outer: Scope | None, ctes: Ctes) -> Output:
        """A query expression; ``outer`` is the scope of the query around it. Raises Unmodelled for one that the
        operators do not cover and that does not stand alone."""

    @abstractmethod
    def view(self, name: str) -> Output | None:
        """A view of the catalog by its name."""
