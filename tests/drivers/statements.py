"""Running statements in tests of drivers."""

import pyarrow as pa

from dai.drivers import Driver
from dai.streams.cancellation import Cancellation


def table(driver: Driver, sql: str, *parameters: object, batch_rows: int | None = None) -> pa.Table:
    return driver.query(sql, parameters, cancellation=Cancellation(), batch_rows=batch_rows).table()


def update(driver: Driver, sql: str, *rows: tuple[object, ...]) -> int:
    return driver.update(sql, rows or None, cancellation=Cancellation())


def execute(driver: Driver, *statements: str) -> None:
    """In one transaction."""
    with driver.transaction(cancellation=Cancellation()) as session:
        for statement in statements:
            session.update(statement)
