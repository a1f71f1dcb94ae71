"""SQLAlchemy's own tests of dialects, in a process of their own: their plugin of pytest changes what ours does.

A commit has a part of them, a thorough run has all.
"""

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.client.databases import served
from tests.thoroughness import PARTS, THOROUGH

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]
SUITE = Path(__file__).parent / "sqlalchemy_suite"


@pytest.mark.parametrize(("database", "least"), [("postgresql", 920), ("sqlite", 830)])
def test_suite(tmp_path: Path, request: pytest.FixtureRequest, database: str, least: int) -> None:
    """What is skipped, and why: sqlalchemy_suite/requirements.py. ``least``: tests that pass, of all; the parts have
    more and fewer."""
    if database == "postgresql":
        url = request.getfixturevalue("postgres_url")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create schema test_schema")
            connection.execute("create schema test_schema_2")
    else:
        url = f"sqlite:///{tmp_path}/suite.db"
        sqlite3.connect(tmp_path / "suite.db").close()
    with served(tmp_path, {database: url}) as running:
        finished = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short"),
                *("-p", "tests.interop.sqlalchemy_suite.plugin", "-p", "no:xdist"),
                *("-c", SUITE / "setup.cfg", "--rootdir", SUITE, "--confcutdir", SUITE),
                *("--dburi", f"{running.url.replace('http', 'dai')}/{database}", SUITE / "suite.py"),
            ],
            cwd=SUITE.parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
    assert finished.returncode == 0, finished.stdout[-10_000:] + finished.stderr
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed is not None
    assert int(passed[1]) >= (least if THOROUGH else least // (2 * PARTS)), finished.stdout[-1000:]
