"""Rows of ten mixed columns as a pandas DataFrame: our client, ``pandas.read_sql`` through the SQLAlchemy dialect, and
``pandas.read_sql`` with psycopg on the database itself."""

from __future__ import annotations

from functools import partial

import pandas as pd
from sqlalchemy import create_engine, text

import dai
from dai.client import Resource
from perf.harness import Report, measured, median, ratio, shown
from perf.world import World

CLIENT, DIALECT, PSYCOPG = "query().to_pandas()", "pandas.read_sql, dai://", "pandas.read_sql, psycopg"


def run(world: World, rounds: int) -> Report:
    report = Report("frames", "Rows of 10 mixed columns as a pandas DataFrame")
    resource = dai.connect(world.resource("pg"))
    served = create_engine(world.resource("pg").replace("http", "dai", 1))
    direct = create_engine(world.postgres.url.replace("postgresql:", "postgresql+psycopg:", 1))
    for rows in sorted({100, 10_000, world.mixed_rows}):
        sql = f"select * from mixed limit {rows}"
        cases = {
            CLIENT: partial(resource_frame, resource, sql),
            DIALECT: partial(pd.read_sql, text(sql), served),
            PSYCOPG: partial(pd.read_sql, text(sql), direct),
        }
        for case in cases.values():
            assert len(case()) == rows
        seconds = measured(cases, rounds, warm=0)
        report.text(f"## {rows:,} rows\n\nMedians of {rounds} rounds; ratios are medians of the rounds' ratios.")
        report.table(
            ["case", "seconds", f"ratio to {CLIENT}"],
            [[case, shown(median(took)), f"{ratio(seconds, case, CLIENT):.2f}"] for case, took in seconds.items()],
        )
        report.goal(f"{rows:,} rows: {DIALECT} / {CLIENT}", ratio(seconds, DIALECT, CLIENT), 1.3)
    report.goal(f"{rows:,} rows: {DIALECT} / {PSYCOPG}", ratio(seconds, DIALECT, PSYCOPG), 1.3)
    report.goal(f"{rows:,} rows: {PSYCOPG} / {CLIENT}", ratio(seconds, PSYCOPG, CLIENT), 3, at_least=True)
    served.dispose()
    direct.dispose()
    return report


def resource_frame(resource: Resource, sql: str) -> pd.DataFrame:
    return resource.query(sql).to_pandas()
