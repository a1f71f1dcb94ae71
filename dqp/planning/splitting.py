"""Splits a large remote scan into statements, each for a range of the first column of the table's primary key, or of
the rowid of SQLite.

The ranges cover all keys, also keys that the statistics do not know: the first range has no lower end, the last no
upper end. Each part runs in its own transaction, so a part may see a change that another part does not see.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sqlglot import exp

from dqp.algebra.chains import all_of, conjuncts
from dqp.algebra.constants import narrowed
from dqp.algebra.operators import OF_LEFT, Aggregate, Filter, Join, Operator, Project, Remote, Scan, column
from dqp.algebra.trees import walk, walk_deep

_WHOLE = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"})
_KEY = "key of the part"
SPLIT_ROWS = 500_000.0
"""Rows of a table from which its scan is read in parts."""
FEW, FEW_SCATTERED = 0.1, 0.25
"""The part of a table's rows up to which a database with workers of its own reads them faster in one statement. Each
part of a table that does not lie in the order of its key (``IN_ORDER``) looks at every row."""
PIECES = 4
"""Parts by rowid for each that is read at the same time."""
SCATTERED_PARTS = 3
"""Parts at the same time from which a table that does not lie in the order of its key is read in parts: with two,
looking at every row twice takes longer than the second connection saves."""
LARGER = 2
"""By rowid, parts pay from so many times the rows: SQLite reads a table faster than other databases."""
LOOKED_UP = 0.01
"""The most of a table's rows that are few where an index finds them."""
IN_ORDER = 0.9
"""Correlation of a key with the places of its rows, from which a range of it lies together."""
BESIDES = 0.3
"""Most rows of other tables that a part may read again, for each row of the split table."""


def scanned(remote: Remote) -> Scan | None:
    """The scan that can be split so that the parts' results together are the remote's result. None if there is none
    (below an aggregate whose groups have rows in several parts, a limit, a set operation), or if every part would read
    too much of other tables."""
    scan = _below(remote.tree)
    if scan is None or _range(scan) is None:
        return None
    return scan if _rows(remote.tree) - scan.table.rows <= BESIDES * scan.table.rows else None


def _rows(tree: Operator) -> float:
    """Rows of all tables that the tree reads, with those in nested plans."""
    return sum(node.table.rows for node in walk_deep(tree) if isinstance(node, Scan))


def parts(remote: Remote, number: int) -> tuple[Remote, ...]:
    """At most ``number`` remotes whose rows together are those of ``remote``; only ``remote`` if it cannot be split."""
    scan = scanned(remote)
    if scan is None or number < 2:
        return (remote,)
    key_range = _range(scan)
    assert key_range is not None
    key, low, high = _left(remote.tree, scan, *key_range)
    number = min(number, high - low + 1)
    if number < 2:
        return (remote,)
    bounds = sorted({low + (high - low + 1) * each // number for each in range(1, number)})
    ends: list[tuple[int | None, int | None]] = list(zip([None, *bounds], [*bounds, None], strict=True))
    return tuple(replace(remote, tree=_within(remote.tree, key, *each)) for each in ends)


def divided(remote: Remote, rows: float, number: int) -> tuple[Remote, ...]:
    """As ``parts``, if the scan has at least ``rows`` rows; else only ``remote``. By rowid there are more parts,
    because the rows that the filters keep may all stand in a few of them."""
    scan = scanned(remote)
    if scan is None or not large(scan, rows):
        return (remote,)
    if scan.table.rowid and number > 1 and not any(isinstance(each, Aggregate) for each in walk(remote.tree)):
        number = max(number, min(number * PIECES, int(scan.table.rows / rows)))
    return parts(remote, number)


def large(scan: Scan, rows: float) -> bool:
    """Whether the table has so many ``rows`` that reading it in parts pays."""
    return scan.table.rows >= rows * (LARGER if scan.table.rowid else 1)


def few(scan: Scan, number: int) -> float:
    """The most rows that are few of those that can be read by ``scan`` in so many parts at the same time."""
    ranged = scan.table.ranged
    if ranged is None or ranged.correlation is None or abs(ranged.correlation) >= IN_ORDER:
        return scan.table.rows * FEW
    return scan.table.rows * FEW_SCATTERED if number >= SCATTERED_PARTS else math.inf


def ungrouped(node: Operator) -> Operator:
    """What is below the aggregates of a tree that can be split."""
    below = node
    while (side := _side(node)) is not None:
        below = node.inputs[side] if isinstance(node, Aggregate) else below
        node = node.inputs[side]
    return below


def _below(node: Operator) -> Scan | None:
    if isinstance(node, Scan):
        return node
    side = _side(node)
    return None if side is None else _below(node.inputs[side])


def _side(node: Operator) -> int | None:
    """The input whose rows each give rows of the node independently; of two inputs the larger one."""
    if isinstance(node, Filter) or (isinstance(node, Aggregate) and (node.partial or _whole_groups(node))):
        return 0
    if isinstance(node, Project) and not any(each.find(exp.Window) for each in node.expressions):
        return 0
    if isinstance(node, Join) and node.kind in OF_LEFT - {"inner"}:
        return 0
    if isinstance(node, Join) and node.kind == "inner":
        scans = [_below(each) for each in node.inputs]
        rows = [-1.0 if each is None else each.table.rows for each in scans]
        return None if max(rows) < 0 else rows.index(max(rows))
    return None


def _whole_groups(node: Aggregate) -> bool:
    """Whether no group has rows in two parts, because the split key is one of the grouping keys."""
    scan = _below(node.input) if node.sets is None else None
    key_range = None if scan is None else _range(scan)
    if scan is None or key_range is None:
        return False
    keys = {identifier for identifier, name in scan.items if name == key_range[0]}
    return any(isinstance(each, exp.Column) and each.name in keys for _, each in node.keys)


def _range(scan: Scan) -> tuple[str, int, int] | None:
    """Name, lowest and highest value of the column whose ranges are parts, if that is a whole number; else None."""
    key = scan.table.ranged
    if (
        key is None
        or key.type not in _WHOLE
        or not isinstance(key.low, int)
        or not isinstance(key.high, int)
        or key.low >= key.high
    ):
        return None
    return key.name, key.low, key.high


def _left(tree: Operator, scan: Scan, key: str, low: int, high: int) -> tuple[str, int, int]:
    """The range that the filters above the scan leave."""
    identifiers = {identifier for identifier, name in scan.items if name == key}
    node = tree
    while node is not scan:
        if isinstance(node, Filter):
            for each in conjuncts(node.condition):
                if isinstance(each.this, exp.Column) and each.this.name in identifiers:
                    low, high = narrowed(low, high, each) or (low, high)
        side = _side(node)
        assert side is not None
        node = node.inputs[side]
    return key, low, high


def _within(tree: Operator, key: str, low: int | None, high: int | None) -> Operator:
    """The tree with a range of ``key`` as a filter on its scan, after the existing conditions. The database finds the
    range by its index."""
    before = tree.input if isinstance(tree, Filter) else tree
    if isinstance(before, Scan):
        return _ranged(before, tree.condition if isinstance(tree, Filter) else None, key, low, high)
    side = _side(tree)
    assert side is not None
    inputs = list(tree.inputs)
    inputs[side] = _within(inputs[side], key, low, high)
    return tree.with_inputs(*inputs)


def _ranged(
    scan: Scan, condition_above: exp.Expression | None, key: str, low: int | None, high: int | None
) -> Operator:
    identifier = next((each for each, name in scan.items if name == key), _KEY)
    read = scan if identifier != _KEY else replace(scan, items=(*scan.items, (_KEY, key)))
    ends: list[exp.Expression] = []
    if low is not None:
        ends.append(exp.GTE(this=column(identifier), expression=_number(low)))
    if high is not None:
        ends.append(exp.LT(this=column(identifier), expression=_number(high)))
    condition = ends[0] if len(ends) == 1 else exp.And(this=ends[0], expression=ends[1])
    if low is None and scan.table.column(key).nullable:
        # SQLite allows NULL in a primary key.
        condition = exp.Or(this=condition, expression=exp.Is(this=column(identifier), expression=exp.Null()))
    both = all_of([*conjuncts(condition_above), condition])
    assert both is not None
    filtered = Filter(read, both)
    return Project(filtered, tuple((each, column(each)) for each in scan.columns))


def _number(value: int) -> exp.Expression:
    literal: exp.Expression = exp.Literal.number(abs(value))
    return literal if value >= 0 else exp.Neg(this=literal)
