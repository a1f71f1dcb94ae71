"""Running statements in tests of the PostgreSQL driver."""

import datetime as dt
from collections.abc import Callable

import pyarrow as pa

from dai.cancellation import Cancellation
from dai.drivers.postgresql import PostgreSQL
from dai.stream import Stream

Path = Callable[..., Stream]
UTC = dt.UTC


def table(driver: PostgreSQL, sql: str, *parameters: object, batch_rows: int | None = None) -> pa.Table:
    return driver.query(sql, parameters, cancellation=Cancellation(), batch_rows=batch_rows).table()


def execute(driver: PostgreSQL, *statements: str) -> None:
    with driver.transaction(cancellation=Cancellation()) as session:
        for statement in statements:
            session.update(statement)
