"""The compliance tests of PEP 249 that its community keeps (dbapi-compliance), on every database behind a service."""

import dbapi20
import pytest

from dai import dbapi
from dai.api.server.serve import Background
from tests.servers.mariadb import MySQLServer


class Compliance:
    driver = dbapi
    resource: str

    @pytest.fixture(autouse=True)
    def _address(self, databases: Background) -> None:
        if self.resource == "mysql" and not MySQLServer.found():
            pytest.skip("there is no MySQL here")
        self.connect_args = (f"{databases.url}/{self.resource}",)

    def test_non_idempotent_close(self) -> None:
        """PEP 249 says nothing of a second close; with sqlite3 and psycopg it does nothing, either."""
        connection = self._connect()
        connection.close()
        connection.close()

    def test_nextset(self) -> None:
        """Optional: a statement has one result."""
        assert not hasattr(self._connect().cursor(), "nextset")

    def test_setoutputsize(self) -> None:
        """Values arrive whole, whatever was said."""
        cursor = self._connect().cursor()
        cursor.setoutputsize(1)
        assert cursor.execute("select 'several'").fetchall() == [("several",)]


class TestPostgreSQL(Compliance, dbapi20.DatabaseAPI20Test):
    resource = "postgresql"


class TestMariaDB(Compliance, dbapi20.DatabaseAPI20Test):
    resource = "mariadb"


class TestMySQL(Compliance, dbapi20.DatabaseAPI20Test):
    resource = "mysql"


class TestSQLite(Compliance, dbapi20.DatabaseAPI20Test):
    resource = "sqlite"


class TestDuckDB(Compliance, dbapi20.DatabaseAPI20Test):
    resource = "duckdb"
