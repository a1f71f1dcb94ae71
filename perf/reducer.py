"""The least that the leaves of a plan could give: their rows after a full reducer, in one database with all the data.

The full reducer takes from every leaf the rows that have no partner in the leaves it is joined with by equality, again
and again until no leaf changes (Bernstein and Chiu 1981; Yannakakis 1981). What is left of a tree of joins without
cycles is what takes part in the result; with cycles it may be a little more. Columns that nothing above a leaf uses
do not count. It is the least for this plan: another one, which aggregates or joins elsewhere, may need less still, and
so may a filter that is no equality.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import duckdb
import pyarrow as pa
from sqlglot import exp

from dai.streams.cancellation import Cancellation
from dqp.algebra.chains import conjuncts
from dqp.algebra.operators import (
    Aggregate,
    Call,
    Distinct,
    Filter,
    Inline,
    Join,
    Nested,
    Operator,
    Project,
    Remote,
    Scan,
    Sort,
    column,
)
from dqp.algebra.table import Table
from dqp.algebra.trees import everywhere, remotes, rewritten, walk
from dqp.catalog.catalog import Catalog
from dqp.planning.context import Context
from dqp.planning.rules import applied
from dqp.planning.rules.columns import prune_columns
from dqp.sql import dialects
from dqp.sql.render_duckdb import duckdb_sql

GIVES_UP: Mapping[str, tuple[bool, bool]] = {
    "inner": (True, True),
    "semi": (True, True),
    "left": (False, True),
    "right": (True, False),
    "anti": (False, True),
    "full": (False, False),
}
"""Whether a join needs no row of its left and of its right side that has no partner."""


@dataclass(frozen=True)
class Size:
    """``bytes`` in Arrow."""

    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.rows + other.rows, self.bytes + other.bytes)


@dataclass(frozen=True)
class Edge:
    """Rows of ``probe`` without a partner in ``build`` are of no use. ``pairs``: (its column, the build's)."""

    probe: Remote
    build: Remote
    pairs: tuple[tuple[str, str], ...]


def edges(tree: Operator) -> tuple[Edge, ...]:
    """What the equalities of the tree's joins say of its leaves, those of the plans in its expressions included."""
    conditions: dict[tuple[Remote, Remote, int], list[tuple[str, str]]] = {}
    leaves = list(remotes(tree))
    for number, join in enumerate(_everywhere(tree)):
        if not isinstance(join, Join):
            continue
        for one, other in _equal(join):
            sides = ((join.left, one, join.right, other), (join.right, other, join.left, one))
            for gives_up, (side, name, against, key) in zip(GIVES_UP[join.kind], sides, strict=True):
                probe, build = _leaf(side, name, removing=True), _leaf(against, key)
                if not gives_up or probe is None or build is None or probe[0] == build[0]:
                    continue
                if leaves.count(probe[0]) == 1:  # what is read in two places is needed in both
                    conditions.setdefault((probe[0], build[0], number), []).append((probe[1], build[1]))
    return tuple(Edge(probe, build, tuple(pairs)) for (probe, build, _), pairs in conditions.items())


def _everywhere(tree: Operator) -> Iterator[Operator]:
    for node in walk(tree):
        yield node
        for expression in node.expressions:
            for nested in expression.find_all(Nested):
                yield from _everywhere(nested.plan)


def _equal(join: Join) -> Iterator[tuple[str, str]]:
    """The columns (left, right) that the condition says are equal."""
    for each in conjuncts(join.condition):
        if isinstance(each, exp.EQ) and isinstance(each.this, exp.Column) and isinstance(each.expression, exp.Column):
            names = each.this.name, each.expression.name
            for one, other in (names, names[::-1]):
                if one in join.left.columns and other in join.right.columns:
                    yield one, other


def _leaf(tree: Operator, name: str, *, removing: bool = False) -> tuple[Remote, str] | None:
    """The leaf that a column comes from and its name there. ``removing``: only where a row of the tree that is of no
    use means that the rows of the leaf with that value are of none."""
    if name not in tree.columns:
        return None
    if isinstance(tree, Remote):
        return tree, name
    if isinstance(tree, Join):
        # A row of the side that is filled with NULLs cannot be taken away: its partner would stay, without it.
        kept = {"left": (tree.left,), "right": (tree.right,), "full": ()}.get(tree.kind, tree.inputs)
        side = next(each for each in tree.inputs if name in each.columns)
        return None if removing and side not in kept else _leaf(side, name, removing=removing)
    if isinstance(tree, Project | Aggregate):
        if removing and any(each.find(exp.Window) for each in tree.expressions):
            return None
        if isinstance(tree, Aggregate) and tree.sets is not None:
            return None
        item = dict(tree.items if isinstance(tree, Project) else tree.keys).get(name)
        return _leaf(tree.input, item.name, removing=removing) if isinstance(item, exp.Column) else None
    if isinstance(tree, Filter | Distinct | Call | Sort):
        if removing and isinstance(tree, Sort) and (tree.limit is not None or tree.offset):
            return None
        return _leaf(tree.input, name, removing=removing)
    return None


def same(remote: Remote) -> tuple[str, str]:
    """Equal for leaves that differ in nothing but their identifiers: they are fetched once."""
    items = tuple((f"c{at}", column(each)) for at, each in enumerate(remote.columns))
    return remote.source, duckdb_sql(Project(remote.tree, items))


def used_columns(tree: Operator, context: Context) -> dict[Remote, tuple[str, ...]]:
    """The columns of each leaf that something above it uses; one, where only the rows count."""
    leaves = {each: f"leaf {number}" for number, each in enumerate(dict.fromkeys(remotes(tree)))}

    def opened(node: Operator) -> Operator:
        if not isinstance(node, Remote):
            return node
        return Inline(leaves[node], tuple((each, each) for each in node.columns), pa.table({}))

    pruned = applied(prune_columns, _over(tree, opened), context)
    inline_columns = {each.name: each.columns for each in _everywhere(pruned) if isinstance(each, Inline)}
    return {leaf: inline_columns.get(name, leaf.columns[:1]) for leaf, name in leaves.items()}


def _over(tree: Operator, change: Any) -> Operator:
    """The tree with every operator changed, those of the plans in its expressions too."""

    def inside(node: exp.Expression) -> exp.Expression:
        return Nested(**{**node.args, "plan": _over(node.plan, change)}) if isinstance(node, Nested) else node

    return rewritten(everywhere(tree, lambda each: each.transform(inside)), change)


class Whole:
    """One DuckDB that holds all the data: the tables of a federation, copied out of its sources."""

    def __init__(self) -> None:
        self._connection = duckdb.connect()
        self._arrived: dict[tuple[Table, str], Size] = {}

    def copy(self, catalog: Catalog, columns: Mapping[Table, Iterable[str]]) -> None:
        """The tables, as far as these columns go, with the types that the catalog gives them."""
        for table, names in columns.items():
            source = catalog.sources[table.source]
            scan = Scan(table, tuple((each, each) for each in sorted(names)))
            statement = dialects.statement(scan, source.dialect)
            with source.query(statement.sql, statement.parameters, cancellation=Cancellation()) as stream:
                arrived = stream.table().rename_columns(list(scan.columns))
            for name, values in zip(arrived.column_names, arrived.columns, strict=True):
                self._arrived[table, name] = Size(arrived.num_rows, values.nbytes)
            items = ", ".join(f'CAST("{each}" AS {type}) AS "{each}"' for each, type in statement.columns)
            self._connection.register("arrived", arrived)
            self._connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{table.source}"')
            self._connection.execute(f'CREATE TABLE "{table.source}"."{table.name}" AS SELECT {items} FROM arrived')
            self._connection.unregister("arrived")

    def scan(self, scan: Scan) -> Size:
        """What the scanned columns held as they arrived."""
        columns = [self._arrived[scan.table, name] for _, name in scan.items]
        return Size(columns[0].rows, sum(each.bytes for each in columns))

    def reduced(self, tree: Operator, context: Context) -> tuple[dict[tuple[str, str], Size], pa.Table]:
        """The sizes of the tree's leaves after the full reducer, by ``same``, of equal ones the largest; and what the
        tree gives over these leaves: the answer, if nothing was taken away that is needed. All leaves are remote."""
        tables = {each: f"leaf_{number}" for number, each in enumerate(dict.fromkeys(remotes(tree)))}
        rows = {leaf: self._made(name, f"SELECT * FROM ({duckdb_sql(leaf.tree)})") for leaf, name in tables.items()}
        changed = True
        actual = edges(tree)
        while changed:
            changed = False
            for edge in actual:
                on = " AND ".join(f'probe."{one}" = build."{other}"' for one, other in edge.pairs)
                probe, build = tables[edge.probe], tables[edge.build]
                left = self._made(probe, f"SELECT probe.* FROM {probe} AS probe SEMI JOIN {build} AS build ON {on}")
                changed = changed or left < rows[edge.probe]
                rows[edge.probe] = left
        sizes: dict[tuple[str, str], Size] = {}
        for leaf, names in used_columns(tree, context).items():
            size = self._size(tables[leaf], names)
            sizes[same(leaf)] = max(sizes.get(same(leaf), Size()), size, key=lambda each: each.bytes)
        answer = self._connection.sql(duckdb_sql(tree, lambda leaf: tables[cast(Remote, leaf)])).to_arrow_table()
        for name in tables.values():
            self._connection.execute(f"DROP TABLE {name}")
        return sizes, answer

    def _made(self, name: str, sql: str) -> int:
        """The table made anew; its rows."""
        self._connection.execute(f"CREATE OR REPLACE TABLE {name} AS {sql}")
        ((count,),) = self._connection.execute(f"SELECT count(*) FROM {name}").fetchall()
        return int(count)

    def _size(self, table: str, columns: Iterable[str]) -> Size:
        items = ", ".join(f'"{each}"' for each in columns)
        rows = self._connection.sql(f"SELECT {items} FROM {table}").to_arrow_table()
        # Drivers send no bitmap of NULLs where there is none.
        spare = sum(-(-len(each) // 8) for column in rows.columns for each in column.chunks if _needless(each))
        return Size(rows.num_rows, rows.nbytes - spare)

    def close(self) -> None:
        self._connection.close()


def _needless(array: pa.Array) -> bool:
    return bool(array.null_count == 0 and array.buffers()[0] is not None)
