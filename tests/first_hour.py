"""What somebody has in their first hour: a directory with two databases and a configuration."""

import sqlite3
from pathlib import Path

import duckdb
import pytest


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with a database of SQLite, one of DuckDB, and a configuration."""
    monkeypatch.chdir(tmp_path)
    connection = sqlite3.connect("field.db")
    connection.execute("create table samples (a integer, i integer)")
    connection.execute("insert into samples values (1, 1), (2, 'odd')")
    connection.commit()
    connection.close()
    duckdb.connect("lake.duckdb").execute("create table samples (a int)").close()
    Path("dai.toml").write_text('[resources.a]\nurl = "sqlite:///field.db"\n')
