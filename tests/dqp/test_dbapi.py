"""PEP 249 over a federation in this process. The rest of the DB-API is tested in tests/client."""

import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from dqp import dbapi


@pytest.fixture
def federation(tmp_path: Path) -> dict[str, Any]:
    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        connection.execute("create table t as select range::integer as id, 1.50::decimal(4,2) as price from range(5)")
    return {"sources": {"duck": f"duckdb:///{tmp_path}/x.duckdb"}}


def test_rows_and_tables(federation: dict[str, Any]) -> None:
    with dbapi.connect(federation) as connection, connection.cursor() as cursor:
        cursor.execute("select id, price from duck.t where id >= ?::integer order by id", (3,))
        assert cursor.fetchone() == (3, Decimal("1.50"))
        assert cursor.fetchall() == [(4, Decimal("1.50"))]
        assert cursor.execute("select id from duck.t").fetch_arrow_table().schema == pa.schema([("id", pa.int32())])
        assert [each["name"] for each in connection.source.schema("t")] == ["t"]
    with dbapi.connect(federation, numeric="double") as connection:
        assert connection.execute("select price from duck.t where id = 0").fetchall() == [(1.5,)]


def test_it_only_reads(federation: dict[str, Any]) -> None:
    with dbapi.connect(federation) as connection:
        for statement in ("insert into duck.t values (9, 1)", "create table x (n integer)"):
            with pytest.raises(dbapi.NotSupportedError, match="read-only"):
                connection.execute(statement)
        with pytest.raises(dbapi.ProgrammingError, match="Did you mean"):
            connection.execute("select idd from duck.t")


def test_what_cannot_be_connected(federation: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(dbapi.ProgrammingError, match="numeric='float' is not possible"):
        dbapi.connect(federation, numeric="float")
    with pytest.raises(dbapi.Error, match=r"none.toml cannot be read"):
        dbapi.connect(str(tmp_path / "none.toml"))


def test_cancelling_from_another_thread(federation: dict[str, Any]) -> None:
    with dbapi.connect(federation) as connection, connection.cursor() as cursor:
        timer = threading.Timer(0.2, cursor.cancel)
        timer.start()
        long = "select count(*) from duck.t a, range(20000) b, range(2000000) c where b.range < c.range"
        with pytest.raises(dbapi.OperationalError, match="cancelled"):
            cursor.execute(long).fetchall()
        timer.join()
