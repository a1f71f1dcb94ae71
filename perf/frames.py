"""Rows of ten mixed columns as a pandas DataFrame: our client, ``pandas.read_sql`` through a connection of ADBC and
through the SQLAlchemy dialect, and with psycopg on the database itself. The floor is what pandas takes for
rows that are there already, tuples of Python or SQLAlchemy's rows: no driver that gives rows can do better. The last
case is our share: the same rows from the dialect, without pandas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
from pandas.io.sql import _wrap_result
from sqlalchemy import Engine, create_engine, text

import dai
from dai.client import Resource, dbapi
from perf.harness import Report, measured, median, ratio, shown
from perf.world import World

CLIENT, ADBC = "query().to_pandas()", "pandas.read_sql, connection.adbc()"
DIALECT, PSYCOPG = "pandas.read_sql, dai://", "pandas.read_sql, psycopg"
FLOOR, ROWS = "DataFrame.from_records of tuples at hand", "pandas alone, of SQLAlchemy's rows at hand"
FETCHED = "connection.execute(…).fetchall(), dai://"


def run(world: World, rounds: int) -> Report:
    report = Report("frames", "Rows of 10 mixed columns as a pandas DataFrame")
    resource = dai.connect(world.resource("pg"))
    connection = dbapi.connect(world.resource("pg"))
    served = create_engine(world.resource("pg").replace("http", "dai", 1))
    direct = create_engine(world.postgres.url.replace("postgresql:", "postgresql+psycopg:", 1))
    for rows in sorted({100, 10_000, world.mixed_rows}):
        sql = f"select * from mixed limit {rows}"
        cases = {
            CLIENT: partial(resource_frame, resource, sql),
            ADBC: partial(pd.read_sql, sql, connection.adbc()),
            DIALECT: partial(pd.read_sql, text(sql), served),
            PSYCOPG: partial(pd.read_sql, text(sql), direct),
        }
        for case in cases.values():
            assert len(case()) == rows
        cases[FETCHED] = partial(fetched, served, sql)
        seconds = measured(cases, rounds, warm=0) | measured(floors(direct, sql), rounds, warm=0)
        report.text(f"## {rows:,} rows\n\nMedians of {rounds} rounds; ratios are medians of the rounds' ratios.")
        report.table(
            ["case", "seconds", f"ratio to {CLIENT}"],
            [[case, shown(median(took)), f"{ratio(seconds, case, CLIENT):.2f}"] for case, took in seconds.items()],
        )
        report.goal(f"{rows:,} rows: {ADBC} / {CLIENT}", ratio(seconds, ADBC, CLIENT), 1.3)
        report.goal(f"{rows:,} rows: {DIALECT} / {CLIENT}", ratio(seconds, DIALECT, CLIENT), 1.3)
    report.goal(f"{rows:,} rows: {DIALECT} / {PSYCOPG}", ratio(seconds, DIALECT, PSYCOPG), 1.3)
    report.goal(f"{rows:,} rows: {PSYCOPG} / {CLIENT}", ratio(seconds, PSYCOPG, CLIENT), 3, at_least=True)
    connection.close()
    served.dispose()
    direct.dispose()
    return report


def resource_frame(resource: Resource, sql: str) -> pd.DataFrame:
    return resource.query(sql).to_pandas()


def fetched(engine: Engine, sql: str) -> tuple[list[str], Sequence[Any]]:
    with engine.connect() as connection:
        result = connection.execute(text(sql))
        return list(result.keys()), result.fetchall()


def floors(engine: Engine, sql: str) -> dict[str, Callable[[], pd.DataFrame]]:
    names, rows = fetched(engine, sql)
    tuples = [tuple(row) for row in rows]
    return {
        FLOOR: partial(pd.DataFrame.from_records, tuples, columns=names, coerce_float=True),
        ROWS: partial(_wrap_result, rows, names),  # what read_sql does once it has them
    }
