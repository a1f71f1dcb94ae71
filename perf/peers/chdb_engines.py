"""chDB, whose PostgreSQL and MySQL engines are the table functions postgresql() and mysql() for a whole database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import chdb
import pyarrow as pa
from chdb.session import Session

from perf.peers.serving import Opened, serve

ENGINES = {"postgresql": "PostgreSQL", "mariadb": "MySQL"}


def open_(urls: Mapping[str, str], settings: Mapping[str, Any]) -> Opened:
    session = Session()
    for name, value in settings.items():
        session.query(f"SET {name} = {value}")
    for alias, url in urls.items():
        parts = urlsplit(url)
        if parts.scheme not in ENGINES:
            raise ValueError(f"no engine for a whole database of {parts.scheme}")
        where = f"'{parts.hostname}:{parts.port}', '{parts.path.removeprefix('/')}'"
        session.query(
            f"CREATE DATABASE {alias} ENGINE = {ENGINES[parts.scheme]}({where}, '{parts.username}', '{parts.password}')"
        )

    def run(sql: str) -> pa.Table:
        return pa.ipc.open_file(pa.py_buffer(session.query(sql, "Arrow").bytes())).read_all()

    return Opened(
        f"chDB {chdb.__version__}", run, lambda sql: str(session.query(f"EXPLAIN actions = 1 {sql}", "TSVRaw"))
    )


if __name__ == "__main__":
    serve(open_)
