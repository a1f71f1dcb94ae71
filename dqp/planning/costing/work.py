"""Estimates the seconds that operators take in a source or here.

A source's constants (``dqp.algebra.dialects.Costs``) say what its product is slow at: sorts and many groups beyond its
memory, joins for which it has no index, a subquery that it evaluates for each row. DuckDB's constants are those of this
side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import takewhile

from sqlglot import exp

from dqp.algebra.chains import conjuncts
from dqp.algebra.dialects import properties
from dqp.algebra.keys import MOST_LOOKED_UP, Keys, Members
from dqp.algebra.operators import (
    ASOF,
    SELECTIVITY,
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
)
from dqp.algebra.table import Table
from dqp.algebra.trees import free, walk
from dqp.planning.costing.cost import Estimator, costs
from dqp.planning.costing.estimates import Estimate
from dqp.planning.costing.selectivity import selectivity
from dqp.planning.splitting import IN_ORDER

GROUP_BYTES = 100.0
"""Of a group, beside its values."""
LOOK = 0.2
"""A comparison in FILTER beside an operation on numbers: it is short, and often the first one decides."""
NEIGHBOURS = 10.0
"""So many rows of a value may stand at one place of a table, as the lines of an order do."""
_OPERATIONS = (exp.Binary, exp.Func, exp.Case, exp.Cast)


class Work:
    """Seconds of operators where the constants of ``dialect`` hold."""

    def __init__(
        self,
        estimator: Estimator,
        dialect: str,
        kept: Mapping[Remote, float] | None = None,
        *,
        star: bool = False,
        reached: Set[str] | None = None,
    ) -> None:
        """``kept``: the part of the rows of statements that keys from elsewhere leave; ``star``: of a statement that
        ``is_star``; ``reached``: the columns that keys from elsewhere are of (None: of each table)."""
        self._of, self._dialect, self._price = estimator.of, dialect, costs(dialect)
        self._kept, self._any_index = kept or {}, properties(dialect).ANY_INDEX
        self._probe = (star and self._price.probe) or self._price.work
        self._reached = reached

    def tree(self, tree: Operator) -> float:
        """Seconds of all operators of the tree, and of the plans nested in them as often as they are evaluated."""
        return self._with_scans(tree)[0]

    def scans(self, tree: Operator) -> float:
        """Those of the tree's seconds that keys from elsewhere do not save, if no index finds the rows by them: reading
        tables, and what is made of tables alone that the keys are not of."""
        return self._with_scans(tree)[1]

    def _with_scans(self, tree: Operator) -> tuple[float, float]:
        inputs = [self._with_scans(each) for each in tree.inputs]
        if isinstance(tree, Join):
            seconds, scanned = self._joined(tree, *inputs)
        else:
            node = self.node(tree)
            seconds = sum(each for each, _ in inputs) + node
            scanned = sum(each for _, each in inputs) + (node if isinstance(tree, Scan) else 0.0)
        return seconds, seconds if self._untouched(tree) else scanned

    def _joined(self, node: Join, left: tuple[float, float], right: tuple[float, float]) -> tuple[float, float]:
        """Seconds of a join with its inputs, of which a table with an index is read only where the other has rows."""
        rows, pairs = self._rows(node) * self._price.work, node.equal_columns
        residual = len(pairs) < len(conjuncts(node.condition))
        ways = []
        if self._price.index and node.kind != "full":
            by = indexed(node.right, {other for _, other in pairs})
            if node.kind != "right" and by:
                expected, seconds = self._lookups(node, node.left, node.right, by, pairs)
                anyway = left[1] + seconds * (self._any_index and self._untouched(node.left))
                ways.append((left[0] + expected + rows, left[0] + seconds + rows, anyway))
            lookups = self._found(node.left, {one for one, _ in pairs}, self._rows(node))
            if lookups is not None and (node.kind in ("inner", "right") or (node.kind == "semi" and not residual)):
                by = indexed(node.left, {one for one, _ in pairs})
                turned = [(other, one) for one, other in pairs]
                expected, seconds = self._lookups(node, node.right, node.left, by, turned)
                others = right[0] + lookups + rows
                anyway = right[1] + seconds * (self._any_index and self._untouched(node.right))
                ways.append((others + expected, others + seconds, anyway))
        if not ways or not self._any_index:
            whole = left[0] + right[0] + self.node(node)
            ways.append((whole, whole, left[1] + right[1]))
        return min(ways)[1:]

    def _untouched(self, rows: Operator) -> bool:
        """Whether keys from elsewhere are known to be of no column of these tables, so that they save nothing here."""
        tables = (each for each in walk(rows) if isinstance(each, Scan))
        return self._reached is not None and all(self._reached.isdisjoint(each.columns) for each in tables)

    def _lookups(
        self, node: Join, rows: Operator, table: Operator, by: Set[str], pairs: Sequence[tuple[str, str]]
    ) -> tuple[float, float]:
        """Seconds that the database expects, and seconds, until an index on these columns of the table has found all
        partners of the rows, by pairs of equal columns. What else makes a row one is asked of each row that the index
        finds, which another index may be better for."""
        price, found = self._price, self._rows(rows)
        if price.near and any(_in_order(rows, one) and _in_order(table, other) for one, other in pairs):
            return found * price.near, found * price.near
        if by:
            while isinstance(table, Filter):
                table = table.input
            every = self._of(table)
            each = every.rows / every.distinct(by)
            if self._any_index or (price.seek and each > NEIGHBOURS and node.kind not in ("semi", "anti")):
                found *= max(1.0, each)
        return found * max(price.seek, price.index), found * price.index

    def _found(self, tree: Operator, names: Set[str], rows: float) -> float | None:
        """Seconds of the joins in the tree, for so many rows that an index finds by values of these columns; None where
        there is none. A database begins where it finds few rows, wherever that join stands."""
        if not isinstance(tree, Join):
            return 0.0 if indexed(tree, names) else None
        if tree.kind not in ("inner", "left") or not names <= frozenset(tree.left.columns):
            return None
        below = self._found(tree.left, names, rows)
        if below is None or not indexed(tree.right, {other for _, other in tree.equal_columns}):
            return None
        return below + rows * self._price.index

    def node(self, node: Operator) -> float:
        """Seconds of the node alone."""
        method: Callable[[Operator], float] | None = getattr(self, "_" + type(node).__name__.lower(), None)
        nested = sum(self._nested(node, each) for each in node.subqueries)
        return nested + (0.0 if method is None else method(node))

    def _rows(self, node: Operator) -> float:
        return self._of(node).rows * (self._kept.get(node, 1.0) if isinstance(node, Remote) else 1.0)

    def _scan(self, node: Scan) -> float:
        return self._rows(node) * self._price.scan

    def _filter(self, node: Filter) -> float:
        asked = self._rows(node.input) if isinstance(node.input, Scan) else 0.0
        return asked * self._price.filter * len(conjuncts(node.condition))

    def _join(self, node: Join) -> float:
        price, rows = self._price, self._rows(node)
        left, right = self._rows(node.left), self._rows(node.right)
        pairs = node.equal_columns
        residual = len(pairs) < len(conjuncts(node.condition))
        semi = node.kind in ("semi", "anti")
        if node.kind in ASOF:
            return (left + right) * price.sort + rows * price.work
        if not pairs:
            return left * right * price.pair + rows * price.work
        if not price.lookup:
            compared = self._candidates(node, pairs) if residual else 0.0
            return (left + right + rows + compared) * self._probe
        if semi and (residual or not price.compared):
            # Evaluated for each row: a scan to the first match, or to the end.
            first = 1.0 + self._candidates(node, pairs) / left if node.kind == "semi" else 1.0
            return left * right / first * price.pair
        if semi or not price.compared or not _stored(node.right):
            return (left + right) * price.lookup + rows * price.work
        return left * right * price.compared + rows * price.work

    def _candidates(self, node: Join, pairs: Sequence[tuple[str, str]]) -> float:
        """Combinations of rows that are equal in the pairs."""
        left, right = self._of(node.left), self._of(node.right)
        values = max(left.distinct(one for one, _ in pairs), right.distinct(other for _, other in pairs))
        return left.rows * right.rows / values

    def _aggregate(self, node: Aggregate) -> float:
        below, groups, price = self._of(node.input), self._of(node), self._price
        keys = {each.name for _, each in node.keys if isinstance(each, exp.Column)}
        row = price.work * len(node.sets or node.keys[:1])  # one group of all rows is not looked for
        if price.sorted and not (price.index and indexed(node.input, keys)):
            row = price.sorted * len(node.keys)
        row += sum(self._value(each, below) for each in node.expressions)
        return below.rows * row + self._grouping(node.input, keys, groups)

    def _distinct(self, node: Distinct) -> float:
        grouping = self._grouping(node.input, frozenset(node.columns), self._of(node))
        row = self._price.sorted * len(node.columns) or self._price.work
        return self._rows(node.input) * row + grouping

    def _value(self, expression: exp.Expression, below: Estimate) -> float:
        """Seconds of a key or an aggregate for a row below; what FILTER drops costs the look at it."""
        price = self._price
        if isinstance(expression, exp.Filter):
            condition = expression.expression.this
            part, _ = selectivity(conjuncts(condition), below)
            looks = sum(1 for _ in condition.find_all(exp.Predicate))
            return price.value * LOOK * looks + part * self._value(expression.this, below)
        case = expression.this
        if isinstance(expression, exp.AggFunc) and isinstance(case, exp.Case) and _or_null(case):
            looks = sum(1 for each in case.args["ifs"] for _ in each.this.find_all(exp.Predicate))
            values = sum(self._value(each.args["true"], below) for each in case.args["ifs"])
            return price.value * (looks + 1) + values
        operations = sum(1 for each in expression.find_all(*_OPERATIONS) if not isinstance(each, exp.Distinct))
        divisions = sum(1 for _ in expression.find_all(exp.Div)) if price.division else 0
        return (
            price.value * operations
            + price.division * divisions
            + price.distinct * sum(1 for _ in expression.find_all(exp.Distinct))
        )

    def _grouping(self, rows: Operator, keys: Set[str], groups: Estimate) -> float:
        """Seconds for the groups; few where the rows come in the order of an index of theirs."""
        price = self._price
        columns = indexed(rows, keys) if price.index else ()
        if columns and not any(_scattered(rows, each) for each in columns):
            return groups.rows * price.ordered
        spilled = groups.bytes + groups.rows * GROUP_BYTES > price.memory
        return groups.rows * price.group + self._rows(rows) * price.spill * spilled

    def _sort(self, node: Sort) -> float:
        return self._rows(node.input) * (self._price.sort if node.limit is None else self._price.work) * bool(node.keys)

    def _project(self, node: Project) -> float:
        windows = {
            tuple(map(repr, (*(each.args.get("partition_by") or ()), each.args.get("order"))))
            for expression in node.expressions
            for each in expression.find_all(exp.Window)
        }
        return self._rows(node.input) * self._price.sort * len(windows)

    def _setoperation(self, node: SetOperation) -> float:
        if node.kind == "union" and node.all:
            return 0.0
        return sum(map(self._rows, node.inputs)) * self._price.work

    def _nested(self, node: Operator, nested: Nested) -> float:
        once = self.tree(nested.plan)
        if not free(nested.plan) or self._dialect == "duckdb":
            return once
        inner = [each for each in walk(nested.plan) if isinstance(each, Scan)]
        conditions = [
            one for each in walk(nested.plan) if isinstance(each, Filter) for one in conjuncts(each.condition)
        ]
        names = {each.name for one in conditions if type(one) is exp.EQ for each in one.find_all(exp.Column)}
        looked_up = bool(inner) and all(indexed(each, names) for each in inner)
        rows = sum(map(self._rows, node.inputs))
        return rows * (self._price.index if looked_up else once)


def _or_null(case: exp.Case) -> bool:
    """Whether all rows without a branch of theirs are NULL, which no aggregate looks at."""
    return isinstance(case.args.get("default") or exp.Null(), exp.Null)


def _stored(tree: Operator) -> bool:
    """Whether the rows are a table's: a database makes an index for those that it computes itself."""
    while isinstance(tree, Filter | Project):
        tree = tree.input
    return isinstance(tree, Scan | Join)


def indexed(tree: Operator, names: Set[str]) -> frozenset[str]:
    """Those of these columns by whose values an index finds rows of one table; none if there is no such index."""
    above = {each: each for each in names}
    while isinstance(tree, Filter | Project):
        if isinstance(tree, Project):
            above = {
                each.name: above[name] for name, each in tree.items if name in above and isinstance(each, exp.Column)
            }
        tree = tree.input
    if not isinstance(tree, Scan):
        return frozenset()
    columns = {name: above[identifier] for identifier, name in tree.items if identifier in above}
    beginnings = [[*takewhile(columns.__contains__, key)] for key in (*tree.table.keys, *tree.table.indexes)]
    return frozenset(columns[each] for each in max(beginnings, key=len, default=()))


def looked_up(tree: Operator, scan: Scan) -> float | None:
    """The part of the scanned table's rows that an index finds by conditions of the tree that compare by equality with
    values that few rows have: 0, where the conditions do not say. None, if there is no such index."""
    compared = [
        (frozenset(operand.name for operand in each.find_all(exp.Column)), part)
        for node in walk(tree)
        if isinstance(node, Filter | Join)
        for each in conjuncts(node.condition)
        if isinstance(each, exp.EQ | exp.In | Keys | Members)
        and (part := each.meta.get(SELECTIVITY, 0.0)) <= MOST_LOOKED_UP
    ]
    by = indexed(scan, frozenset().union(*(names for names, _ in compared)))
    return math.prod(part for names, part in compared if names & by) if by else None


def _read_as(tree: Operator, name: str) -> tuple[Table, str] | None:
    """The table that is read first, and its column of this name here; None if something computes it."""
    while not isinstance(tree, Scan):
        if isinstance(tree, Project):
            item = dict(tree.items).get(name)
            if not isinstance(item, exp.Column):
                return None
            name = item.name
        elif not isinstance(tree, Filter | Join):
            return None
        tree = tree.inputs[0]
    stored = dict(tree.items).get(name)
    return None if stored is None else (tree.table, stored)


def _in_order(tree: Operator, name: str) -> bool:
    """Whether the rows come in the order of this column: that of the primary key of the table that is read first."""
    read = _read_as(tree, name)
    return read is not None and bool(read[0].keys) and read[1] == read[0].keys[0][0]


def _scattered(tree: Operator, name: str) -> bool:
    """Whether the rows of one value of this column are known to lie apart in the table that is read first."""
    read = _read_as(tree, name)
    correlation = None if read is None else read[0].column(read[1]).correlation
    return correlation is not None and abs(correlation) < IN_ORDER
