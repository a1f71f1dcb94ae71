"""One million rows of ten mixed columns, against the bare drivers: the service should nearly disappear.

The peers run in this process over TCP, as the service does: ADBC into a table, psycopg ``fetchall``, mysqlclient's
default ``fetchall``; psql, which throws away what a binary COPY gives, in one of its own. The service's Arrow is read
into a table by our client; its WebRowSet to the last byte.
"""

from __future__ import annotations

import subprocess
from typing import Any

import adbc_driver_postgresql.dbapi as adbc  # type: ignore[import-untyped]
import MySQLdb
import psycopg
from sqlalchemy import make_url

import dai
from perf.harness import Report, measured, median, ratio, shown
from perf.world import World

SQL = "select * from mixed"
COPY = "psql, COPY (FORMAT binary) to /dev/null"


def run(world: World, rounds: int) -> Report:
    rows = world.mixed_rows
    report = Report("bulk", f"{rows:,} rows of 10 mixed columns")
    url = make_url(world.mariadb.url)
    pg, maria = dai.connect(world.resource("pg")), dai.connect(world.resource("maria"))
    with (
        adbc.connect(world.postgres.url) as direct,
        psycopg.connect(world.postgres.url) as plain,
        MySQLdb.connect(
            host="127.0.0.1", port=url.port, user=url.username, password=str(url.password), database=url.database
        ) as mysql,
    ):
        cases = {
            "ADBC into a table": lambda: _adbc(direct),
            "psycopg fetchall": lambda: _fetchall(plain),
            COPY: lambda: _copied(world.postgres.url),
            "service, Arrow into a table": lambda: _expect(pg.query(SQL).arrow().num_rows, rows),
            "service, WebRowSet to the last byte": lambda: _drained(pg.query(SQL, format="webrowset")),
            "service, CSV to the last byte": lambda: _drained(pg.query(SQL, format="csv")),
        }
        on_postgres = measured(cases, rounds)
        on_mariadb = measured(
            {
                "mysqlclient fetchall": lambda: _fetchall(mysql),
                "service, Arrow into a table": lambda: _expect(maria.query(SQL).arrow().num_rows, rows),
                "service, WebRowSet to the last byte": lambda: _drained(maria.query(SQL, format="webrowset")),
            },
            rounds,
        )
    for product, seconds, peer in (
        ("PostgreSQL", on_postgres, "psycopg fetchall"),
        ("MariaDB", on_mariadb, "mysqlclient fetchall"),
    ):
        report.text(f"## {product}\n\nMedians of {rounds} rounds; ratios are medians of the rounds' ratios.")
        report.table(
            ["case", "seconds", "rows/s", f"ratio to {peer}"],
            [
                [case, shown(median(took)), f"{rows / median(took):,.0f}", f"{ratio(seconds, case, peer):.2f}"]
                for case, took in seconds.items()
            ],
        )
    arrow, document = "service, Arrow into a table", "service, WebRowSet to the last byte"
    report.goal("Arrow through the service / ADBC direct", ratio(on_postgres, arrow, "ADBC into a table"), 1.15)
    report.goal("Arrow through the service / psycopg fetchall", ratio(on_postgres, arrow, "psycopg fetchall"), 1.0)
    report.goal("Arrow through the service / psql, binary COPY", ratio(on_postgres, arrow, COPY), 0.65)
    report.goal("WebRowSet / psycopg fetchall", ratio(on_postgres, document, "psycopg fetchall"), 0.5)
    report.goal("MariaDB: WebRowSet / mysqlclient fetchall", ratio(on_mariadb, document, "mysqlclient fetchall"), 1.0)
    return report


def _adbc(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(SQL)
        cursor.fetch_arrow_table()


def _fetchall(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(SQL)
        cursor.fetchall()


def _copied(url: str) -> None:
    command = ["psql", "-q", "-d", url, "-c", f"COPY ({SQL}) TO STDOUT (FORMAT binary)"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def _drained(result: Any) -> None:
    for _ in result.chunks():
        continue


def _expect(count: int, rows: int) -> None:
    if count != rows:
        raise AssertionError(f"{count} rows instead of {rows}")
