"""A small interpreter of plans: every fragment instance runs on one DuckDB, an exchange is a table."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from dqp.algebra.operators import Inline, Operator, Receive, Remote
from dqp.planning.distribution.partition import Fragment, Plan
from dqp.planning.splitting import parts
from dqp.sql.render_duckdb import duckdb_sql

BUCKET = "bucket of the row"


def answer(plan: Plan, connection: duckdb.DuckDBPyConnection, evaluators: int) -> pa.Table:
    """The plan's rows. Sources are schemas of the database; remote trees are read there, parted ones in parts."""
    return _Run(plan, connection, evaluators).answer()


def rows_of(plan: Plan, connection: duckdb.DuckDBPyConnection, evaluators: int) -> Mapping[int, list[int]]:
    """How many rows each instance of each fragment gives."""
    run = _Run(plan, connection, evaluators)
    run.answer()
    return run.rows


class _Run:
    def __init__(self, plan: Plan, connection: duckdb.DuckDBPyConnection, evaluators: int) -> None:
        self.plan, self.connection, self.evaluators = plan, connection.cursor(), evaluators
        self.rows: dict[int, list[int]] = {}

    def answer(self) -> pa.Table:
        with self.connection:
            for fragment in self.plan.fragments[:-1]:
                self._produce(fragment)
            return self.connection.sql(self._sql(self.plan.root, 0)).to_arrow_table()

    def _produce(self, fragment: Fragment) -> None:
        assert fragment.output is not None
        consumer = self.plan.consumer(fragment)
        assert consumer is not None
        bucket = fragment.output.bucket(consumer.instances) or "NULL"
        counts = self.rows[fragment.id] = []
        for instance in range(fragment.instances):
            sql = self._sql(fragment, instance)
            name = _table(fragment.id, instance)
            made = f'SELECT *, {bucket} AS "{BUCKET}" FROM ({sql})'
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {made}")
            ((count,),) = self.connection.sql(f"SELECT count(*) FROM {name}").fetchall()
            counts.append(count)

    def _sql(self, fragment: Fragment, instance: int) -> str:
        parted = set(fragment.parted)

        def leaf(node: Operator) -> str:
            if isinstance(node, Inline):
                self.connection.register(f"inline {node.name}", node.data)
                return f'"inline {node.name}"'
            if isinstance(node, Remote):
                if node not in parted:
                    assert fragment.instances == 1, "each of several instances would read all of it"
                    return f"({duckdb_sql(node.tree)})"
                pieces = parts(node, fragment.instances)
                piece = pieces[instance] if instance < len(pieces) else pieces[0]
                return f"(SELECT * FROM ({duckdb_sql(piece.tree)}){'' if instance < len(pieces) else ' LIMIT 0'})"
            assert isinstance(node, Receive)
            producer = self.plan.fragments[node.fragment]
            assert producer.output is not None
            assert producer.output.kind != "gather" or fragment.instances == 1
            chosen = "" if producer.output.kind in ("gather", "broadcast") else f' WHERE "{BUCKET}" = {instance}'
            tables = (
                f'SELECT * EXCLUDE ("{BUCKET}") FROM {_table(producer.id, each)}{chosen}'
                for each in range(producer.instances)
            )
            return f"({' UNION ALL '.join(tables)})"

        return duckdb_sql(fragment.tree, leaf)


def _table(fragment: int, instance: int) -> str:
    return f"fragment_{fragment}_{instance}"
