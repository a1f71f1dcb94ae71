"""Loads what a service in front of any database loads, and starts nothing: see tests.forks."""

from importlib import import_module

import pyarrow as pa

for name in (
    "dai.__main__",
    "tests.forked_workers",
    *(f"dai.drivers.{each}.driver" for each in ("duckdb", "mariadb", "postgresql", "sqlite")),
    *(f"dqp.interfaces.{each}" for each in ("activity", "driver")),
):
    import_module(name)
pa.array([0])  # looks for pandas, and loads it where it is
