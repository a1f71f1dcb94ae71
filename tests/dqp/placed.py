"""A federation over databases that hold the tables of a benchmark, beside one DuckDB that holds them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from tests.dqp.generated import differential
from tests.dqp.generated.differential import Connected, compared, order
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer
from tests.tpch import Placement, gather, qualified


@dataclass(frozen=True)
class Placed:
    placement: Placement
    federation: Connected
    whole: duckdb.DuckDBPyConnection

    def check(self, sql: str) -> int:
        """The federation's answer is that of the one database (AssertionError), which has so many rows."""
        right = self.whole.sql(sql).to_arrow_table()
        found = self.federation.answer(qualified(sql, self.placement))
        difference = compared(right, found, order(sql, right.schema.names))
        assert difference is None, f"{difference.kind}\n{difference.detail}"
        return right.num_rows


@contextmanager
def placed(
    database: str,
    placement: Placement,
    load: Callable[[Mapping[str, str]], None],
    content: Mapping[str, pa.Table],
    servers: tuple[PostgresServer, MariaServer],
    directory: Path,
) -> Iterator[Placed]:
    """``load`` fills databases of this name (alias to URL) with the same ``content``; until the block ends."""
    urls = differential.files(directory)
    with ExitStack() as stack:
        for alias, server in zip(("pg", "maria"), servers, strict=True):
            urls[alias] = server.create_database(database)
            stack.callback(server.drop_database, database)
        used = {alias: url for alias, url in urls.items() if alias in placement.values()}
        load(used)
        whole = stack.enter_context(duckdb.connect())
        gather(whole, content, placement)
        yield Placed(placement, stack.enter_context(Connected(used)), whole)
