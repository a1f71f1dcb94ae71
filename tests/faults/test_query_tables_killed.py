"""A client is killed while the query-scoped tables of its query are in use: nothing of it is left in the database."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.conftest import Database, Start
from tests.processes import ROOT, until
from tests.servers.postgresql import PostgresServer

SERVICE = """
import dai
opened = dai.connect(target).query(sql, tables={"given": given})
"""
DRIVER = """
from dai.streams.cancellation import Cancellation
from dai.drivers import driver_for
opened = driver_for(target).query(sql, cancellation=Cancellation(), tables={"given": given})
"""
CLIENT = """
import sys, time
import pyarrow as pa
target, sql = sys.argv[1:]
given = pa.table({{"id": range(1000), "name": ["a text"] * 1000}})
{opened}
rows = iter(opened)  # the statement ends with the iterator
assert next(rows).num_rows
print("it has rows", flush=True)
time.sleep(600)
"""


@contextmanager
def client(database: Database, opened: str, target: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has some rows of a query without end, which uses its query-scoped table."""
    sql = f"select e.i, e.s, (select count(*) from given) as n from ({database.endless}) as e"
    command = [sys.executable, "-c", CLIENT.format(opened=opened), target, sql]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "it has rows\n"
            until(lambda: database.at_work == 1)
            yield process
        finally:
            process.kill()


def temporary_tables(database: Database) -> list[str]:
    """In the catalog, or as files."""
    patterns = (
        ("data/base/*/t[0-9]*_*", "data/base/pgsql_tmp/*") if database.server.scheme == "postgresql" else ("#sql*",)
    )
    actual = [each.name for pattern in patterns for each in database.server.directory.rglob(pattern)]
    if isinstance(database.server, PostgresServer):
        actual += ["in the catalog"] * database.ask("select count(*) from pg_class where relpersistence = 't'")
    return actual


def test_of_a_driver(database: Database) -> None:
    with client(database, DRIVER, database.server.url) as process:
        process.kill()
        until(lambda: database.connections == 0)
    assert not temporary_tables(database)


def test_of_a_service(start: Start, database: Database) -> None:
    service = start(resources={"lab": database.server.url})
    with client(database, SERVICE, f"{service.url}/lab") as process:
        process.kill()
        until(lambda: database.at_work == 0)
    until(service.at_rest)
    assert not temporary_tables(database)
    with service.client() as again:
        answer = again.post("/resources/lab/query?format=csv", json={"sql": "select count(*) from given"})
        assert answer.status_code == 400, answer.text
