"""Many rows from PostgreSQL behind TLS, against those without: what reading by ADBC instead of the socket costs.

One server, one driver for each way, in this process: ``sslmode=disable`` is read from the socket, ``sslmode=require``
by ADBC, and ``read_sockets = false`` shows ADBC without encryption.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from dai.drivers import Driver, DriverOptions, driver_for
from dai.streams.cancellation import Cancellation
from examples.demo.load import load
from perf.harness import Report, measured, median, ratio, shown
from perf.world import SETTINGS, World
from tests.servers.certificates import self_signed, with_certificate
from tests.servers.postgresql import PostgresServer

GOAL = 1.5


def run(world: World, rounds: int) -> Report:
    most = 2 * world.mixed_rows
    report = Report("tls", f"PostgreSQL behind TLS: up to {most:,} rows of 10 mixed columns")
    with tempfile.TemporaryDirectory() as directory:
        certificate = self_signed(Path(directory), "own")
        settings = {**SETTINGS["postgresql"], "ssl": "on"}
        with with_certificate(PostgresServer(), certificate, settings, ("ssl_cert_file", "ssl_key_file")) as server:
            load(server.url, ["mixed"], most)
            drivers = {
                "without TLS, from the socket": driver_for(f"{server.url}?sslmode=disable"),
                "without TLS, by ADBC": driver_for(f"{server.url}?sslmode=disable", DriverOptions(read_sockets=False)),
                "TLS, by ADBC": driver_for(f"{server.url}?sslmode=require"),
            }
            for rows in (most // 10, most):
                _compare(report, drivers, rows, rounds)
            for driver in drivers.values():
                driver.close()
    return report


def _compare(report: Report, drivers: dict[str, Driver], rows: int, rounds: int) -> None:
    plain, *_, encrypted = drivers
    seconds = measured({name: partial(_read, driver, rows) for name, driver in drivers.items()}, rounds)
    report.text(f"## {rows:,} rows\n\nMedians of {rounds} rounds; ratios are medians of the rounds' ratios.")
    report.table(
        ["case", "seconds", "rows/s", f"ratio to {plain}"],
        [
            [case, shown(median(took)), f"{rows / median(took):,.0f}", f"{ratio(seconds, case, plain):.2f}"]
            for case, took in seconds.items()
        ],
    )
    report.goal(f"{rows:,} rows with TLS / without", ratio(seconds, encrypted, plain), GOAL)


def _read(driver: Driver, rows: int) -> None:
    with driver.query(f"select * from mixed limit {rows}", cancellation=Cancellation()) as stream:
        count = sum(batch.num_rows for batch in stream)
    if count != rows:
        raise AssertionError(f"{count} rows instead of {rows}")
