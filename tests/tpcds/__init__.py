"""TPC-DS: its data at any scale, its 99 queries, and placements that spread its tables over several databases.

Both come from DuckDB's own extension, which is in the peers' environment only (``perf/peers/install``), so that a
program there writes them (``generate``). Keys are those of the specification; texts are as long as they need to be.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
)
from sqlalchemy.types import TypeEngine

from dai.drivers import driver_for
from tests.tpch import Placement, fill

PYTHON = Path(__file__).parents[2] / "perf" / "peers" / ".venv" / "bin" / "python"
GENERATOR = Path(__file__).parent / "generate.py"

SALES = "store_sales catalog_sales web_sales"
RETURNS = "store_returns catalog_returns web_returns"
CUSTOMERS = "customer customer_address customer_demographics household_demographics income_band"
GOODS = "item promotion warehouse reason ship_mode"
SHOPS = "store call_center catalog_page web_page web_site"
TIME = "date_dim time_dim"

_KEYS = {
    "store_sales": "ss_item_sk ss_ticket_number",
    "store_returns": "sr_item_sk sr_ticket_number",
    "catalog_sales": "cs_item_sk cs_order_number",
    "catalog_returns": "cr_item_sk cr_order_number",
    "web_sales": "ws_item_sk ws_order_number",
    "web_returns": "wr_item_sk wr_order_number",
    "inventory": "inv_date_sk inv_item_sk inv_warehouse_sk",
}
"""Of the tables whose key is not their first column."""
_KINDS: Mapping[pa.DataType, TypeEngine[Any]] = {
    pa.bool_(): Boolean(),
    pa.date32(): Date(),
    pa.float64(): Double(),
    pa.timestamp("us"): DateTime(),
}
LONGEST = 250
"""Letters of a column that is not ``text``."""


def _placement(**tables: str) -> Placement:
    """Alias to the names of its tables, turned round."""
    placement = {table: alias for alias, names in tables.items() for table in names.split()}
    assert len(placement) == 24
    return placement


PLACEMENTS: Mapping[str, Placement] = {
    # Everything that happens in one database, everything that describes it in the other.
    "sales_in_postgres": _placement(pg=f"{SALES} {RETURNS} inventory", maria=f"{CUSTOMERS} {GOODS} {SHOPS} {TIME}"),
    # Each way of selling has its own database, and each database some of what all need.
    "channels_apart": _placement(
        pg=f"store_sales store_returns {CUSTOMERS} {TIME} store",
        maria=f"catalog_sales catalog_returns web_sales web_returns inventory {GOODS} "
        "call_center catalog_page web_page web_site",
    ),
    "four_databases": _placement(
        pg=f"{SALES} date_dim", maria=f"{RETURNS} {CUSTOMERS}", duck=f"inventory {GOODS}", lite=f"{SHOPS} time_dim"
    ),
}
"""Aliases: ``pg`` PostgreSQL, ``maria`` MariaDB, ``lite`` SQLite, ``duck`` DuckDB."""


class NotInstalledError(Exception):
    """The peers' environment, which has the generator, is not there."""


@dataclass(frozen=True)
class Generated:
    """Files of one scale; ``queries`` by name (``q01`` … ``q99``), table names without prefix; ``keys`` of the tables
    whose key is not their first column; ``indexes``: a column of a table."""

    directory: Path
    queries: Mapping[str, str]
    keys: Mapping[str, str]
    indexes: Mapping[str, str] = field(default_factory=dict)

    def file(self, name: str) -> Path:
        return self.directory / f"{name}.parquet"

    def table(self, name: str) -> pa.Table:
        return pq.read_table(self.file(name))

    def tables(self) -> Mapping[str, pa.Table]:
        return {each.stem: self.table(each.stem) for each in sorted(self.directory.glob("*.parquet"))}

    def gather(self, file: Path, names: list[str]) -> None:
        """Makes a DuckDB file with these tables, of the version in the peers' environment."""
        _run("gather", file, *map(self.file, names))


@contextmanager
def generated(scale: float) -> Iterator[Generated]:
    """TPC-DS at this scale (1: 2.9 M rows of store_sales, 0.4 GB of files) until the block ends."""
    if not PYTHON.exists():
        raise NotInstalledError("the generator of TPC-DS is not installed: run perf/peers/install")
    with TemporaryDirectory(prefix="tpcds") as directory:
        _run(scale, directory)
        yield Generated(Path(directory), json.loads((Path(directory) / "queries.json").read_text()), _KEYS)


def _run(*arguments: Any) -> None:
    subprocess.run([PYTHON, GENERATOR, *map(str, arguments)], check=True)


def load(placement: Placement, urls: Mapping[str, str], content: Generated) -> None:
    """Makes the tables with their keys in the databases at ``urls`` (alias to SQLAlchemy URL), fills them and has their
    statistics taken. No indexes in DuckDB: the file that the peers read has none."""
    for alias, url in urls.items():
        driver = driver_for(url)
        try:
            for name, placed in placement.items():
                if placed == alias:
                    rows = content.table(name)
                    key = content.keys.get(name, rows.column_names[0])
                    indexed = None if alias == "duck" else content.indexes.get(name)
                    fill(driver, _declared(name, rows, key, indexed), rows)
        finally:
            driver.close()


def _declared(name: str, rows: pa.Table, key: str, indexed: str | None) -> Table:
    columns = (
        Column(
            each,
            _kind(rows[each]),
            primary_key=each in key.split(),
            nullable=each not in key.split(),
            autoincrement=False,
            index=each == indexed,
        )
        for each in rows.column_names
    )
    return Table(name, MetaData(), *columns)


def _kind(column: pa.ChunkedArray) -> TypeEngine[Any]:
    if pa.types.is_decimal(column.type):
        return Numeric(column.type.precision, column.type.scale)
    if pa.types.is_integer(column.type):
        return Integer() if column.type.bit_width <= 32 else BigInteger()
    if not pa.types.is_string(column.type):
        return _KINDS[column.type]
    longest = pc.max(pc.utf8_length(column)).as_py() or 1
    return String(-(-longest // 10) * 10) if longest <= LONGEST else Text()
