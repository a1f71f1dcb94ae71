"""Days and times that no Arrow type holds: an error that names the column, and what helps is done by the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import MySQLdb
import psycopg
import pytest
from sqlalchemy import make_url

import dqp
from dai.errors import DaiError
from dqp.interfaces.lab import Lab

POSTGRES = """
CREATE TABLE odd (id int PRIMARY KEY, d date, moment timestamp, t time);
INSERT INTO odd VALUES (1, 'infinity', '-infinity', '24:00'), (2, '2024-02-29', '2024-02-29 12:30:00.5', '12:30');
"""
MARIADB = (
    "CREATE TABLE odd (id int PRIMARY KEY, d date, moment datetime(3))",
    "INSERT INTO odd VALUES (2, '2024-02-29', '2024-02-29 12:30:00.5')",
    "SET sql_mode = 'ALLOW_INVALID_DATES'",
    "INSERT INTO odd VALUES (1, '0000-00-00', '0000-00-00'), (3, '2024-02-31', '2024-00-00 12:00:00')",
)


@pytest.fixture(scope="module")
def lab(postgres_module_url: str, mariadb_module_url: str) -> Iterator[Lab]:
    with psycopg.connect(postgres_module_url, autocommit=True) as connection:
        connection.execute(POSTGRES)
    url = make_url(mariadb_module_url)
    server = {"host": url.host, "port": url.port, "user": url.username, "passwd": url.password, "db": url.database}
    with closing(MySQLdb.connect(**server, autocommit=True)) as connection:
        for sql in MARIADB:
            connection.cursor().execute(sql)
    with dqp.connect({"sources": {"pg": postgres_module_url, "maria": mariadb_module_url}}) as lab:
        yield lab


COLUMNS = {
    "pg.d": ("infinity", "2024-02-29"),
    "pg.moment": ("-infinity", "2024-02-29 12:30:00.5"),
    "pg.t": ("24:00:00", "12:30:00"),
    "maria.d": ("0000-00-00", "2024-02-29", "2024-02-31"),
    "maria.moment": ("0000-00-00 00:00:00", "2024-02-29 12:30:00.5", "2024-00-00 12:00:00"),
}
"""Column to the texts of its values: the second is an ordinary one."""


@pytest.mark.parametrize("column", COLUMNS)
def test_a_cast_helps(lab: Lab, column: str) -> None:
    alias, name = column.split(".")
    with pytest.raises(DaiError, match=rf"\b{name}\b"):
        lab.sql(f"SELECT {name} FROM {alias}.odd").arrow()
    for cast in (f"{name}::varchar", f"CAST({name} AS char)"):
        table = lab.sql(f"SELECT id, {cast} AS text FROM {alias}.odd ORDER BY id").arrow()
        assert tuple(table.column("text").to_pylist()) == COLUMNS[column]


@pytest.mark.parametrize("column", [each for each in COLUMNS if each != "pg.t"])
def test_a_filter_leaves_them_there(lab: Lab, column: str) -> None:
    alias, name = column.split(".")
    condition = f"{name} BETWEEN TIMESTAMP '2024-02-01 00:00:00' AND TIMESTAMP '2024-02-29 23:00:00'"
    table = lab.sql(f"SELECT {name}::varchar AS text, {name} FROM {alias}.odd WHERE {condition}").arrow()
    assert table.column("text").to_pylist() == [COLUMNS[column][1]]
