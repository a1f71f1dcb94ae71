"""SQLAlchemy's own tests of dialects, in a process of their own: their plugin of pytest changes what ours does."""

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.client.databases import served

SUITE = Path(__file__).parent / "sqlalchemy_suite"


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_suite(tmp_path: Path, request: pytest.FixtureRequest, database: str) -> None:
    if database == "postgresql":
        url = request.getfixturevalue("postgres_url")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create schema test_schema")
            connection.execute("create schema test_schema_2")
    else:
        url = f"sqlite:///{tmp_path}/suite.db"
        sqlite3.connect(tmp_path / "suite.db").close()
    with served(tmp_path, {database: url}) as running:
        address = f"{running.url.replace('http', 'dai')}/{database}"
        pytest_plugins = [*("-p", "tests.interop.sqlalchemy_suite.plugin"), *("-p", "no:xdist")]
        where = ["-c", SUITE / "setup.cfg", "--rootdir", SUITE, "--confcutdir", SUITE]
        finished = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-rs", "--tb=short"),
                *pytest_plugins,
                *where,
                *("--dburi", address, SUITE / "suite.py"),
                *os.environ.get("SUITE", "").split(),
            ],
            cwd=SUITE.parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        Path(f"/tmp/h8-{database}.log").write_text(finished.stdout + finished.stderr)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed is not None
