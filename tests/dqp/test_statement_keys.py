"""Which statements of a plan count as one: those of which one is read for both."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sqlglot import exp

from dqp.algebra.keys import KeyTable, in_table
from dqp.algebra.operators import Aggregate, Distinct, Filter, Project, Remote, Scan, SetOperation, column
from dqp.planning.common_subtrees import alike
from dqp.planning.costing.elapsed import statement_keys
from tests.dqp.semijoins import table

READ = table("l", 2_000_000)


def _scan(number: int) -> Scan:
    return Scan(READ, ((f"k{number}", "k"), (f"v{number}", "v")))


def _keyed(number: int, *values: int) -> Remote:
    data = pa.table({"k1": pa.array(values, pa.int32())})
    members = in_table([f"k{number}"], KeyTable(f"dqp_keys_{number}", data), 0.1)
    return Remote("l", Filter(_scan(number), members))


def _distinct(number: int, *names: str) -> Remote:
    items = tuple((f"d{each}{number}", column(f"{each}{number}")) for each in names)
    return Remote("l", Distinct(Project(_scan(number), items)))


def _union(number: int, *names: str, others: str = "") -> Remote:
    """``others``: the columns of the right side, where they are not those of the left one."""
    left, right = (
        Project(_scan(at), tuple((f"p{each}{at}", column(f"{each}{at}")) for each in of))
        for at, of in ((number, names), (number + 10, others or names))
    )
    return Remote("l", SetOperation(left, right, "union", False, tuple(f"u{each}{number}" for each in names)))


def _sets(number: int, key: str) -> Remote:
    count = exp.Count(this=exp.Star(), big_int=True)
    groups = ((f"a{number}", column(f"k{number}")), (f"b{number}", column(f"v{number}")))
    return Remote("l", Aggregate(_scan(number), groups, ((f"c{number}", count),), ((f"{key}{number}",), ())))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_keyed(1, 1, 2, 3), _keyed(2, 7, 8, 9)),
        (_distinct(1, "k"), _distinct(2, "k", "v")),
        (_union(1, "k"), _union(2, "k", "v")),
        (_union(1, "k"), _union(2, "k", others="v")),
        (_sets(1, "a"), _sets(2, "b")),
    ],
    ids=["key tables", "distinct", "union", "union with another column", "grouping sets"],
)
def test_what_is_read_twice_counts_twice(one: Remote, other: Remote) -> None:
    assert not alike([one, other])
    counted = statement_keys([one, other], lambda _: "postgresql")
    assert counted[one] != counted[other]
