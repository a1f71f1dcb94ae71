"""What keys cost in SQLite decides whether a statement has them, and in which form."""

from dataclasses import replace

import pyarrow as pa
import pytest

from dqp.algebra.operators import Remote, Scan
from dqp.algebra.table import Column, Table
from dqp.planning.context import Context
from dqp.planning.semijoins.program import Reduction
from dqp.planning.semijoins.reduction import reduced
from tests.dqp.doubles import Double, catalog_of
from tests.dqp.semijoins import context, joined, keys, leaf


@pytest.mark.parametrize("indexed", [False, True])
def test_with_an_index_of_sqlite_few_rows_are_looked_for_among_the_keys(
    indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one all rows of the table are, which takes longer than reading it."""
    monkeypatch.setattr(Context, "takes_tables", lambda *_: True)
    small, names = leaf("s", 60_000), (("l_k", "k"), ("l_v", "v"))
    columns = (
        Column("k", "BIGINT", "integer", False, 2e6, 0.0, 1, 2_000_000, 8.0),
        Column("v", "VARCHAR", "text", True, None, 0.0, None, None, 10.0),
    )
    scanned = Table("l", "t", columns, keys=(("k",),) if indexed else (), rows=2e6, bytes=4e7)
    large = Remote("l", Scan(scanned, names))
    given = replace(context(catalog_of(Double("s", keys()), Double("l", keys()))), dialects={"l": "sqlite"})
    tree = joined(large, small)
    given.learn(tree)
    data = pa.table({"s_k": pa.array(range(1, 2_000_000, 33), pa.int32())})
    smaller = reduced(Reduction(small, large, (("s_k", "l_k"),)), data, given)
    assert (smaller is not large) == indexed
    assert any("60,607 keys of l_k as a temporary table" in each for each in given.remarks) == indexed


@pytest.mark.parametrize(("width", "listed"), [(8.0, False), (80.0, True)])
def test_sqlite_looks_for_each_row_in_a_list_of_many_keys(width: float, listed: bool) -> None:
    """That takes longer than to send all rows where these are narrow."""
    small = leaf("s", 19_000)
    columns = (
        Column("k", "BIGINT", "integer", False, 100_000.0, 0.0, 1, 2_000_000, 4.0),
        Column("v", "VARCHAR", "text", True, None, 0.0, None, None, width),
    )
    large = Remote("l", Scan(Table("l", "t", columns, rows=2e6, bytes=1e8), (("l_k", "k"), ("l_v", "v"))))
    given = replace(context(catalog_of(Double("s", keys()), Double("l", keys()))), dialects={"l": "sqlite"})
    tree = joined(large, small)
    given.learn(tree)
    data = pa.table({"s_k": pa.array(range(1, 1_900_000, 100), pa.int32())})
    reduced(Reduction(small, large, (("s_k", "l_k"),)), data, given)
    assert any("19,000 keys of l_k as a list" in each for each in given.remarks) == listed
