"""Tables, keys, plans and sources of tests of dynamic semi-joins."""

import re

import pyarrow as pa
from sqlglot import exp

from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import (
    ASOF,
    Join,
    Names,
    Operator,
    Remote,
    Scan,
    column,
)
from dqp.algebra.table import Column, Table
from dqp.catalog.catalog import Catalog
from dqp.execution.execution import Execution
from dqp.planning.context import Context
from dqp.planning.costing.cost import Estimator
from dqp.runtimes.local import Local
from tests.dqp.doubles import Answer, execution

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int64())])


def table(alias: str, rows: float, high: int = 1_000_000) -> Table:
    """Keys from 1 to ``high``, each as often as the other."""
    columns = (
        Column("k", "INTEGER", "int4", True, min(rows, high), 0.0, 1, high, 4.0),
        Column("v", "BIGINT", "int8", True, None, 0.0, None, None, 8.0),
    )
    return Table(alias, "t", columns, rows=rows, bytes=rows * 12)


def leaf(alias: str, rows: float, high: int = 1_000_000) -> Remote:
    return Remote(alias, Scan(table(alias, rows, high), ((f"{alias}_k", "k"), (f"{alias}_v", "v"))))


def keys(*given: int | None) -> Answer:
    data = pa.record_batch([pa.array(given, pa.int32()), pa.array([1] * len(given), pa.int64())], schema=SCHEMA)
    return lambda sql, cancellation: Stream.of(data)


def probing(sql: str, cancellation: Cancellation) -> Stream:
    """The rows that a probe's statement asks for."""
    low, high = re.search(r">= (-?\d+)", sql), re.search(r"<= (-?\d+)", sql)
    if low and high:
        actual = list(range(int(low[1]), int(high[1]) + 1))
    elif (listed := re.search(r"IN \(([^)]*)\)", sql)) or (listed := re.search(r"= ANY\('{([^}]*)}'::integer", sql)):
        actual = [int(each) for each in listed[1].split(",")]
    elif one := re.search(r'"k" = (\d+)', sql):
        actual = [int(one[1])]
    else:
        actual = [] if "LIMIT 0" in sql else list(range(1, 50))
    values = [each * 2 for each in actual]
    return Stream.of(pa.record_batch([pa.array(actual, pa.int32()), pa.array(values, pa.int64())], schema=SCHEMA))


def context(catalog: Catalog) -> Context:
    return Context(catalog, Estimator(), Names())


def joined(left: Operator, right: Operator, kind: str = "inner") -> Join:
    condition: exp.Expression = exp.EQ(this=column(left.columns[0]), expression=column(right.columns[0]))
    if kind in ASOF:
        near = exp.GTE(this=column(left.columns[1]), expression=column(right.columns[1]))
        condition = exp.And(this=condition, expression=near)
    return Join(left, right, kind, condition)  # type: ignore[arg-type]


def run(
    catalog: Catalog, tree: Operator, running: Execution | None = None, *, adapting: bool = True
) -> list[tuple[object, ...]]:
    local = Local(catalog)
    types = ["INTEGER", "BIGINT"] * (len(tree.columns) // 2)
    names = [f"n{at}" for at in range(len(types))]
    with running or execution() as running:
        table = local.run(tree, names, types, context(catalog) if adapting else None, running).table()
    local.close()
    return sorted(zip(*table.to_pydict().values(), strict=True), key=repr)
