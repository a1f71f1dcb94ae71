"""The shape of a tree as a text: equal for trees that compute the same, whatever their identifiers are."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from sqlglot import exp

from dqp.algebra.chains import conjuncts
from dqp.algebra.constants import listed
from dqp.algebra.keys import Keys, Members, reduces
from dqp.algebra.operators import (
    Aggregate,
    Distinct,
    Filter,
    Join,
    Nested,
    Operator,
    Project,
    Remote,
    Scan,
    SetOperation,
    Sort,
    Verbatim,
)

LONG = 200
"""Letters of a column's name."""


def shape_of_rows(tree: Operator) -> str:
    """Equal for trees with the same rows, whatever their columns are."""
    return _Shape(of_rows=True).text(tree)


def shape_of_work(tree: Operator) -> str:
    """Equal for trees that do the same work, but for the constants in their expressions, and for what keys of others
    leave out while the query runs: no plan has that yet."""
    return _Shape(of_rows=False).text(tree)


def shape_of_columns(tree: Operator) -> tuple[str, frozenset[str]]:
    """``shape_of_rows``, and the shapes of the columns: of trees with the same rows, one that has the shapes of another
    one's columns has these columns."""
    if "shape" not in tree.kept:
        shape = _Shape(of_rows=True, by_name=True)
        rows = shape.text(tree)
        tree.kept["shape"] = rows, frozenset(map(shape.name, tree.columns))
    known: tuple[str, frozenset[str]] = tree.kept["shape"]
    return known


class _Shape:
    def __init__(self, *, of_rows: bool, by_name: bool = False) -> None:
        """``by_name``: whether key tables of the same size are different."""
        self._of_rows, self._by_name = of_rows, by_name
        self._names: dict[str, str] = {}
        """What an identifier is: a column of the tree's n-th table, or an expression."""
        self._scans = 0

    def text(self, tree: Operator) -> str:
        if isinstance(tree, Remote):
            return self.text(tree.tree)
        inputs = [self.text(each) for each in tree.inputs]
        words: list[str] = []
        if isinstance(tree, Scan):
            self._scans += 1
            self._names |= {identifier: f"{self._scans}.{name}" for identifier, name in tree.items}
            words = [repr(tree.table.identity)]
        elif isinstance(tree, Project):
            self._named(tree.items)
            words = [] if self._of_rows else self._words(each for each in tree.expressions if not _column(each))
        elif isinstance(tree, Aggregate):
            items = {name: self._word(each) for name, each in tree.keys}
            keys = sorted(items.values())
            sets = tree.sets and sorted(sorted(items[each] for each in one) for one in tree.sets)
            words = [*keys, repr(sets)]
            words += [] if self._of_rows else self._words(each for _, each in tree.aggregates)
            self._named((*tree.keys, *tree.aggregates))
        elif isinstance(tree, Filter | Join):
            conditions = [each for each in conjuncts(tree.condition) if self._of_rows or not reduces(each)]
            if isinstance(tree, Filter) and not conditions:
                return inputs[0]
            words = self._words(conditions)
            words += [tree.kind] if isinstance(tree, Join) else []
        elif isinstance(tree, SetOperation):
            sides = zip(tree.names, tree.left.columns, tree.right.columns, strict=True)
            self._names |= {name: _short(f"{self.name(one)} or {self.name(other)}") for name, one, other in sides}
            words = [tree.kind, str(tree.all)]
            if not (tree.all and tree.kind == "union"):  # which rows are equal
                words += sorted(map(self.name, tree.names))
        elif isinstance(tree, Distinct):
            words = sorted(map(self.name, tree.columns))
        elif isinstance(tree, Sort):
            words = [*self._words(tree.keys), repr((tree.limit, tree.offset))]
        elif isinstance(tree, Verbatim):
            words = [tree.query.sql(dialect="duckdb")]
        if not words and isinstance(tree, Project):
            return inputs[0]
        return f"{type(tree).__name__}({'; '.join((*words, *inputs))})"

    def name(self, identifier: str) -> str:
        """What the identifier is."""
        return self._names.get(identifier, identifier)

    def _named(self, items: Iterable[tuple[str, exp.Expression]]) -> None:
        self._names |= {name: self._word(each) for name, each in items}

    def _words(self, expressions: Iterable[exp.Expression]) -> list[str]:
        return sorted(map(self._word, expressions))

    def _word(self, expression: exp.Expression) -> str:
        return expression.transform(self._change).sql(dialect="duckdb")

    def _change(self, node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column):
            return exp.Var(this=self.name(node.name))
        if isinstance(node, Nested):
            return exp.Var(this=f"{node.kind} {self._word(node.this) if node.this else ''} {self.text(node.plan)}")
        if isinstance(node, Keys | Members):
            return exp.Var(this=f"{type(node).__name__} {self._keyed(node)}")
        if self._of_rows:
            literals = listed(node) if isinstance(node, exp.In) else None
            return node if literals is None else exp.Var(this=f"{self._word(node.this)} in {hash(literals)}")
        if isinstance(node, exp.In) and all(isinstance(each, exp.Literal) for each in node.expressions):
            return exp.EQ(this=node.this.transform(self._change), expression=exp.Var(this="?"))
        return exp.Var(this="?") if isinstance(node, exp.Literal) else node

    def _keyed(self, node: Keys | Members) -> str:
        """What is compared, with which keys: their text, or the size of their table."""
        compared = self._words([node.this] if isinstance(node, Keys) else node.expressions)
        if not self._of_rows:
            return f"{compared}"
        if isinstance(node, Keys):
            return f"{compared} {hash(node.text_of_numbers)}"
        if self._by_name:
            return f"{compared} {node.key_table.name}"
        data = node.key_table.data
        return f"{compared} {data.num_rows} {data.nbytes}"


def _short(text: str) -> str:
    """The text, or a digest of a long one, as unions of hundreds would make."""
    return text if len(text) <= LONG else blake2b(text.encode(), digest_size=8).hexdigest()


def _column(expression: exp.Expression) -> bool:
    return isinstance(expression, exp.Column)
