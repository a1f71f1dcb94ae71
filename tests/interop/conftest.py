"""One service, as a process, in front of both databases, for clients that nobody here wrote."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPResponse
from typing import Any

import MySQLdb
import psycopg
import pytest

from examples.demo.load import load
from tests.drivers.conformance_cases import every_type
from tests.processes import ServiceProcess
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer

GOTERM = "select ORF, GOTermIdentifier from protein_goterm order by ORF, GOTermIdentifier"
GOTERMS = 16_803
EVERY_TYPE = "select * from every_type order by id"
AMPERSANDS = 50_000
"""Rows of two references each: more than the 64,000 entities that a parser of Java expands in a document."""


@pytest.fixture(scope="package")
def service(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, mariadb: MariaServer
) -> Iterator[ServiceProcess]:
    """Resources ``postgresql`` and ``mariadb``: demo data, and a table with a column of every type."""
    urls = {"postgresql": postgres.create_database("interop"), "mariadb": mariadb.create_database("interop")}
    for url in urls.values():
        load(url, ["protein_goterm"])
    with psycopg.connect(urls["postgresql"], autocommit=True) as connection:
        for statement in every_type("postgresql"):
            connection.execute(statement.encode())
    dsn: dict[str, Any] = {**mariadb.dsn, "database": "interop", "charset": "utf8mb4"}
    with closing(MySQLdb.connect(**dsn, autocommit=True)) as connection:
        for statement in every_type("mariadb"):
            connection.cursor().execute(statement)
    running = ServiceProcess(tmp_path_factory.mktemp("interop"), urls).start()
    yield running
    assert running.stop() == 0
    postgres.drop_database("interop")
    mariadb.drop_database("interop")


def asked(service: ServiceProcess, sql: str, accept: str, resource: str = "postgresql") -> HTTPResponse:
    """The answer to a query, by the standard library; to be closed."""
    request = urllib.request.Request(
        f"{service.url}/resources/{resource}/query",
        json.dumps({"sql": sql}).encode(),
        {"Content-Type": "application/json", "Accept": accept},
    )
    actual: HTTPResponse = urllib.request.urlopen(request, timeout=60)
    return actual
