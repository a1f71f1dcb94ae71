"""Federations of DuckDB files, and one DuckDB with the same tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

import dqp
from dai.drivers import driver_for
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.interfaces.lab import Lab

Both = tuple[Lab, duckdb.DuckDBPyConnection]


@contextmanager
def federated(directory: Path, tables: Mapping[tuple[str, str], pa.Table]) -> Iterator[Both]:
    """A federation with each table, by (alias, name), in a file of its own, and a DuckDB with all of them."""
    sources = {}
    with duckdb.connect() as whole:
        for (alias, name), rows in tables.items():
            url = sources[alias] = f"duckdb:///{directory}/{alias}.duckdb"
            with closing(driver_for(url)) as driver:
                driver.load(name, Stream.of(rows), cancellation=Cancellation(), create=True)
            whole.register("made", rows)
            whole.execute(f"CREATE SCHEMA {alias}; CREATE TABLE {alias}.{name} AS FROM made")
        with dqp.connect({"sources": sources}) as lab:
            yield lab, whole
