"""TPC-H: its data at any scale, its 22 queries, and placements that spread its tables over several databases.

The queries are those of the specification (TPC Benchmark H, revision 3) with its validation parameters, in DuckDB's
dialect; ``qualified`` puts the alias of a placement before each table name. The data come from ``tpchgen-cli``.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import sqlglot
from sqlalchemy import BigInteger, Column, Date, Integer, MetaData, Numeric, String, Table
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement
from sqlalchemy.types import TypeEngine
from sqlglot import exp

from dai.drivers import Driver, driver_for
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

Placement = Mapping[str, str]
"""Table to the alias of the database that holds it."""

QUERIES: Mapping[str, str] = {
    path.stem: path.read_text() for path in sorted((Path(__file__).parent / "queries").iterdir())
}
"""``q01`` … ``q22``; table names without prefix."""
REUSED = ("q02", "q03", "q07", "q12", "q16", "q18", "q21")
"""Queries whose constants behind comparisons may all be parameters of a plan that is used again."""
_CONSTANT = re.compile(r"(?<=[=<>] )(?:date '([^']*)'|'([^']*)'|(\d+\.\d+)|(\d+))(?! *[-+] interval)", re.I)

TABLES = ("region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem")


def _placement(**tables: str) -> Placement:
    """Alias to the names of its tables, turned round."""
    placed = {table: alias for alias, names in tables.items() for table in names.split()}
    assert sorted(placed) == sorted(TABLES)
    return placed


def spread(tables: Iterable[str], seed: str) -> Placement:
    """Each table in a random database, the same for the same seed: at least three in each, or a quarter of all if that
    is fewer."""
    names, chance = sorted(tables), random.Random(seed)
    aliases = ("pg", "maria", "lite", "duck")
    while True:
        placement = {name: chance.choice(aliases) for name in names}
        if min(Counter(placement.values())[alias] for alias in aliases) >= min(3, len(names) // 4):
            return placement


PLACEMENTS: Mapping[str, Placement] = {
    # The two largest tables together, everything that describes them elsewhere.
    "facts_in_postgres": _placement(pg="orders lineitem", maria="region nation supplier customer part partsupp"),
    "facts_in_maria": _placement(maria="lineitem orders partsupp", pg="region nation supplier customer part"),
    # The largest join is between databases.
    "facts_apart": _placement(pg="lineitem customer nation region", maria="orders part partsupp supplier"),
    "four_databases": _placement(
        pg="lineitem supplier", maria="orders part", lite="customer nation", duck="partsupp region"
    ),
    "files_and_server": _placement(lite="orders nation region part", duck="lineitem partsupp", pg="customer supplier"),
    # No server at all.
    "files": _placement(lite="orders nation region part", duck="lineitem partsupp customer supplier"),
    # One source holds everything but the smallest tables.
    "nearly_all_in_maria": _placement(
        maria="lineitem orders customer supplier part partsupp", duck="nation", lite="region"
    ),
}
"""Aliases: ``pg`` PostgreSQL, ``maria`` MariaDB, ``lite`` SQLite, ``duck`` DuckDB."""

METADATA = MetaData()


def _table(name: str, key: str, **columns: TypeEngine[Any]) -> Table:
    return Table(
        name,
        METADATA,
        *(
            Column(column, kind, primary_key=column in key.split(), nullable=False, autoincrement=False)
            for column, kind in columns.items()
        ),
    )


_NUMBER = BigInteger()
_MONEY = Numeric(15, 2)

_table("region", "r_regionkey", r_regionkey=_NUMBER, r_name=String(25), r_comment=String(152))
_table("nation", "n_nationkey", n_nationkey=_NUMBER, n_name=String(25), n_regionkey=_NUMBER, n_comment=String(152))
_table(
    "supplier",
    "s_suppkey",
    s_suppkey=_NUMBER,
    s_name=String(25),
    s_address=String(40),
    s_nationkey=_NUMBER,
    s_phone=String(15),
    s_acctbal=_MONEY,
    s_comment=String(101),
)
_table(
    "customer",
    "c_custkey",
    c_custkey=_NUMBER,
    c_name=String(25),
    c_address=String(40),
    c_nationkey=_NUMBER,
    c_phone=String(15),
    c_acctbal=_MONEY,
    c_mktsegment=String(10),
    c_comment=String(117),
)
_table(
    "part",
    "p_partkey",
    p_partkey=_NUMBER,
    p_name=String(55),
    p_mfgr=String(25),
    p_brand=String(10),
    p_type=String(25),
    p_size=Integer(),
    p_container=String(10),
    p_retailprice=_MONEY,
    p_comment=String(23),
)
_table(
    "partsupp",
    "ps_partkey ps_suppkey",
    ps_partkey=_NUMBER,
    ps_suppkey=_NUMBER,
    ps_availqty=Integer(),
    ps_supplycost=_MONEY,
    ps_comment=String(199),
)
_table(
    "orders",
    "o_orderkey",
    o_orderkey=_NUMBER,
    o_custkey=_NUMBER,
    o_orderstatus=String(1),
    o_totalprice=_MONEY,
    o_orderdate=Date(),
    o_orderpriority=String(15),
    o_clerk=String(15),
    o_shippriority=Integer(),
    o_comment=String(79),
)
_table(
    "lineitem",
    "l_orderkey l_linenumber",
    l_orderkey=_NUMBER,
    l_partkey=_NUMBER,
    l_suppkey=_NUMBER,
    l_linenumber=Integer(),
    l_quantity=_MONEY,
    l_extendedprice=_MONEY,
    l_discount=_MONEY,
    l_tax=_MONEY,
    l_returnflag=String(1),
    l_linestatus=String(1),
    l_shipdate=Date(),
    l_commitdate=Date(),
    l_receiptdate=Date(),
    l_shipinstruct=String(25),
    l_shipmode=String(10),
    l_comment=String(44),
)


def qualified(sql: str, placement: Placement) -> str:
    """The query with each table of the placement as ``alias.table``, otherwise to the letter."""
    names = [
        table.this
        for table in sqlglot.parse_one(sql, dialect="duckdb").find_all(exp.Table)
        if table.name in placement and not table.db
    ]
    for name in sorted(names, key=lambda each: int(each.meta["start"]), reverse=True):
        start = name.meta["start"]
        sql = f"{sql[:start]}{placement[name.name]}.{sql[start:]}"
    return sql


def parametrised(sql: str) -> tuple[str, list[Any], list[Any]]:
    """The query with ``?`` for the constants behind comparisons, their values, and other ones."""
    values: list[Any] = []
    others: list[Any] = []

    def change(match: re.Match[str]) -> str:
        if match[1] is not None:
            values.append(date.fromisoformat(match[1]))
            others.append(values[-1] + timedelta(days=40))
        elif match[2] is not None:
            values.append(match[2])
            others.append(match[2][::-1])
        else:
            values.append(Decimal(match[3]) if match[3] is not None else int(match[4]))
            others.append(values[-1] + 1)
        return "?"

    return _CONSTANT.sub(change, re.sub("--[^\n]*", "", sql)), values, others


def tables(scale: float, names: Iterable[str] = TABLES) -> dict[str, pa.Table]:
    """The content of the tables at this scale (1: 6 M rows of lineitem, 1.5 GB in memory altogether).

    ValueError below 0.01, where suppliers are so few that the specification's formula repeats keys of partsupp.
    """
    if scale < 0.01:
        raise ValueError("the smallest scale with keys is 0.01")
    program = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
    if not program.exists():
        program = Path(shutil.which("tpchgen-cli") or program)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            [program, "parquet", "--quiet", "-s", str(scale), "-T", ",".join(names), "-o", directory], check=True
        )
        return {name: _plain(pq.read_table(Path(directory) / f"{name}.parquet")) for name in names}


@cache
def smallest() -> Mapping[str, pa.Table]:
    """``tables(0.01)``, made once a process."""
    return tables(0.01)


def _plain(table: pa.Table) -> pa.Table:
    """With ``string`` where the generator writes ``string_view``, and without the marks of Parquet."""
    fields = [
        pa.field(each.name, pa.string() if pa.types.is_string_view(each.type) else each.type, each.nullable)
        for each in table.schema
    ]
    return table.cast(pa.schema(fields))


def load(placement: Placement, urls: Mapping[str, str], content: Mapping[str, pa.Table]) -> None:
    """Makes the tables with their primary keys in the databases at ``urls`` (alias to SQLAlchemy URL), fills them and
    has their statistics taken. Aliases without a URL are left out."""
    for alias, url in urls.items():
        driver = driver_for(url)
        try:
            for name, placed in placement.items():
                if placed == alias:
                    fill(driver, METADATA.tables[name], content[name])
        finally:
            driver.close()


def gather(connection: duckdb.DuckDBPyConnection, content: Mapping[str, pa.Table], placement: Placement) -> None:
    """The same tables in the one database that knows the right answers, with the types that they have in their
    databases: SQLite has one kind of integers."""
    for name, table in content.items():
        if placement[name] == "lite":
            fields = [(each.name, pa.int64() if pa.types.is_integer(each.type) else each.type) for each in table.schema]
            table = table.cast(pa.schema(fields))
        connection.register("made", table)
        connection.execute(f"CREATE TABLE {name} AS FROM made")
        connection.unregister("made")


def fill(driver: Driver, table: Table, content: pa.Table) -> None:
    """Makes one table, fills it and makes its indexes; its statistics are taken. Not in one transaction: for a database
    of one's own."""
    create(driver, table)
    driver.load(table.name, Stream.of(content), cancellation=Cancellation(), transactional=False)
    for index in table.indexes:
        _define(driver, CreateIndex(index))
    take_statistics(driver, table)


def create(driver: Driver, table: Table) -> None:
    _define(driver, CreateTable(table))


def _define(driver: Driver, statement: ExecutableDDLElement) -> None:
    driver.update(str(statement.compile(dialect=_DIALECTS[driver.dialect])), cancellation=Cancellation())


def take_statistics(driver: Driver, table: Table) -> None:
    driver.update(_ANALYSE[driver.dialect].format(table.name), cancellation=Cancellation())


_DIALECTS: Mapping[str, Dialect] = {
    "postgres": postgresql.dialect(),  # type: ignore[no-untyped-call]
    "duckdb": postgresql.dialect(),  # type: ignore[no-untyped-call]
    "mysql": mysql.dialect(),
    "sqlite": sqlite.dialect(),
}
_ANALYSE: Mapping[str, str] = {
    "postgres": "ANALYZE {}",
    "duckdb": "ANALYZE {}",
    "mysql": "ANALYZE TABLE {} PERSISTENT FOR ALL",
    "sqlite": "ANALYZE {}",
}
