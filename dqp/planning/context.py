"""Defines ``Context``, the argument of every rule: the catalog, options, estimates and the types of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from sqlglot import exp

from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dqp.algebra.keys import KeyTable
from dqp.algebra.operators import Aggregate, Inline, Names, Nested, Operator, Project, Remote, Scan, SetOperation
from dqp.algebra.trees import identifiers, walk
from dqp.algebra.types import duckdb_type
from dqp.planning.costing.cost import Estimator

if TYPE_CHECKING:
    from dqp.catalog.catalog import Catalog


@dataclass(frozen=True)
class Options:
    """Options of planning. ``functions``: lower-case names of operation calls; rules never move or repeat these,
    because they are expensive and may give different results. ``pushdown``: what sources compute, as in
    ``FederationSettings``."""

    functions: frozenset[str] = frozenset()
    pushdown: str = "cost"


@dataclass(frozen=True)
class Context:
    """What rules know while they plan a query. ``remarks`` collects for EXPLAIN why a part was not pushed down;
    ``types`` are the DuckDB types of identifiers, as far as they are known without asking DuckDB; ``local`` are the
    aliases of tables that DuckDB itself reads. ``cancellation`` stops the planning; a plan in the cache has none."""

    catalog: Catalog | None
    estimator: Estimator
    names: Names
    options: Options = Options()
    remarks: list[str] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    dialects: Mapping[str, str] = field(default_factory=dict)
    cancellation: Cancellation | None = None
    decided: list[exp.Expression] = field(default_factory=list)
    """Comparisons of constants that were decided by the value of a parameter."""
    key_tables: list[KeyTable] = field(default_factory=list)
    """Those of one run of the query: equal statements have the same ones."""

    def anew(self, tree: Operator) -> Context:
        """For planning another tree of the same query."""
        estimator, names = self.estimator.again(), Names(identifiers(tree))
        return replace(self, estimator=estimator, names=names, types=dict(self.types), remarks=[], decided=[])

    def check(self) -> None:
        """Raises the reason if the query was cancelled."""
        if self.cancellation is not None:
            self.cancellation.check()

    def dialect(self, source: str) -> str:
        """The dialect of a source; ``duckdb`` without a catalog."""
        known = self.dialects.get(source)
        if known is not None:
            return known
        return "duckdb" if self.catalog is None else self.catalog.dialect(source)

    def takes_tables(self, source: str) -> bool:
        """Whether a statement for the source may have a key table."""
        if self.catalog is None or source not in self.catalog.sources:
            return False
        try:
            return self.catalog.sources[source].takes_tables()
        except DaiError:
            return False

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def learn(self, tree: Operator) -> None:
        """Adds the types of the tree's columns, with those of nested plans."""
        for each in tree.inputs:
            self.learn(each)
        for nested in tree.subqueries:
            self.learn(nested.plan)
        types = self.types
        if isinstance(tree, Scan):
            for identifier, name in tree.items:
                if identifier not in types:
                    types[identifier] = tree.table.column(name).type
        elif isinstance(tree, Inline):
            for identifier, name in tree.items:
                types.setdefault(identifier, duckdb_type(tree.data.schema.field(name).type))
        elif isinstance(tree, Remote):
            self.learn(tree.tree)
        elif isinstance(tree, Project | Aggregate):
            items = tree.items if isinstance(tree, Project) else tree.keys
            for identifier, expression in items:
                text = isinstance(expression, exp.Literal) and expression.is_string
                known = "VARCHAR" if text else self.type_of(expression)
                if known is not None:
                    types.setdefault(identifier, known)
        elif isinstance(tree, SetOperation):
            for identifier, left, right in zip(tree.names, tree.left.columns, tree.right.columns, strict=True):
                known = types.get(left)
                if known is not None and known == types.get(right):
                    types.setdefault(identifier, known)

    def type_of(self, expression: exp.Expression) -> str | None:
        """The DuckDB type of an expression that is a cast or a column of known type; None for others."""
        if isinstance(expression, exp.Column):
            return self.types.get(expression.name)
        if type(expression) is exp.Cast:
            return str(expression.to.sql(dialect="duckdb"))
        if isinstance(expression, exp.Paren):
            return self.type_of(expression.this)
        return None


def nested_plans(tree: Operator) -> list[Nested]:
    """The subqueries in the expressions of the tree's operators, without the subqueries inside these."""
    return [nested for node in walk(tree) for nested in node.subqueries]


_Rule = TypeVar("_Rule")


def rewrites_nested_plans(rule: _Rule) -> _Rule:
    """Declares a rule that rewrites the plans nested in expressions itself. Every other rule gets them rewritten."""
    rule.rewrites_nested_plans = True  # type: ignore[attr-defined]
    return rule
