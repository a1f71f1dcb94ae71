"""TPC-H where one source has all tables: one statement there, with DuckDB's answer; what is left to DuckDB, and why."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass

import duckdb
import pytest

from dai.streams.cancellation import Cancellation
from dqp.algebra.operators import Remote
from dqp.algebra.trees import remotes
from dqp.coordinator import Coordinator
from tests.dqp import plans
from tests.dqp.generated import differential
from tests.dqp.generated.differential import Connected, compared, order
from tests.dqp.test_plan_properties import ALIASES, ALONE, alone, planned, refusal, tpch
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer
from tests.thoroughness import part
from tests.tpch import QUERIES, gather, load, qualified, smallest

_DECIMALS = "is numeric, which does not behave as DuckDB's DECIMAL(15,2)"
_ZERO = "MariaDB: / by what may be zero, which is neither an infinity nor NaN there"


@dataclass(frozen=True)
class Apart:
    """What is left to DuckDB: at ``most`` so many statements are sent (how many is a matter of cost), and ``reason`` is
    in the remarks."""

    most: int
    reason: str


APART: Mapping[str, Mapping[str, Apart]] = {
    "pg": {},
    # The last division, of the rows of the answer.
    "maria": {"q08": Apart(1, _ZERO), "q14": Apart(1, _ZERO)},
    # SQLite computes decimals in floating point.
    "lite": {
        **{name: Apart(1, _DECIMALS) for name in "q01 q03 q05 q06 q07 q08 q09 q10 q14".split()},
        **{name: Apart(2, _DECIMALS) for name in "q11 q19".split()},
        **{name: Apart(3, _DECIMALS) for name in "q15 q17 q22".split()},
        "q02": Apart(6, _DECIMALS),
        **{name: Apart(4, _DECIMALS) for name in "q18 q20".split()},
    },
    "duck": {},
}
"""The queries that are not one statement alone."""


@pytest.mark.parametrize("alias", ALIASES)
def test_at_scale_one(alias: str) -> None:
    """With the statistics of scale 1: what a source takes is one statement, whatever it costs elsewhere."""
    dialect = plans.DIALECTS[alias]
    apart = {}
    for name, sql in QUERIES.items():
        tree, before, context = planned(qualified(sql, ALONE[alias]), tpch(alias))
        if not alone(tree):
            assert all(refusal(each, dialect) is not None for each in before), (name, context.remarks)
            apart[name] = len(list(remotes(tree))), context.remarks
    assert apart.keys() == APART[alias].keys()
    for name, (count, remarks) in apart.items():
        assert count <= APART[alias][name].most, name
        assert any(APART[alias][name].reason in each for each in remarks), (name, remarks)


@dataclass(frozen=True)
class There:
    """A source with all tables, and one DuckDB with the same."""

    alias: str
    coordinator: Coordinator
    federation: Connected
    whole: duckdb.DuckDBPyConnection


@pytest.fixture(scope="module", params=part(ALIASES))
def there(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    mariadb: MariaServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[There]:
    alias = request.param
    content = smallest()
    with ExitStack() as stack:
        urls = differential.files(tmp_path_factory.mktemp("alone"))
        server = {"pg": postgres, "maria": mariadb}.get(alias)
        if server is not None:
            urls[alias] = server.create_database("alone")
            stack.callback(server.drop_database, "alone")
        load(ALONE[alias], {alias: urls[alias]}, content)
        if alias == "lite":  # without the index and statistics of it, q08 takes 20 s
            with closing(sqlite3.connect(urls[alias].removeprefix("sqlite:///"))) as connection:
                connection.execute("create index l_part on lineitem (l_partkey)")
                connection.execute("analyze")
        whole = stack.enter_context(duckdb.connect())
        gather(whole, content, ALONE[alias])
        federation = stack.enter_context(Connected({alias: urls[alias]}, pushdown="all"))
        yield There(alias, federation.lab.coordinator, federation, whole)


@pytest.mark.parametrize("name", QUERIES)
def test_the_statements_that_are_sent(name: str, there: There) -> None:
    sql = qualified(QUERIES[name], ALONE[there.alias])
    running = there.coordinator.runner.run(there.coordinator.plan(sql), cancellation=Cancellation())
    with running.stream as stream:
        table = stream.table()
    right = there.whole.sql(QUERIES[name]).to_arrow_table()
    assert right.num_rows
    difference = compared(right, table, order(QUERIES[name], right.schema.names))
    assert difference is None, f"{difference.kind}\n{difference.detail}"
    measured = [each for each in running.execution.measurements() if isinstance(each.key, Remote)]
    sent = [sql for each in measured for sql in each.statements]
    known = APART[there.alias].get(name)
    assert 1 <= len(sent) <= (1 if known is None else known.most)
    if known is None:
        assert alone(there.coordinator.plan(sql).tree)
