"""A program that ends without closing its labs."""

import sqlite3
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import atexit, os, sys

atexit.register(lambda: print(closed()))  # before dqp's, so that it is called after that

import dqp

lab = dqp.connect(sys.argv[1])
rows = iter(lab.sql("select i from numbers.t"))
print(len(next(rows)))
if (child := os.fork()) == 0:
    closed = lambda: ("child", lab._closed)
    sys.exit()
os.waitpid(child, 0)
closed = lambda: ("parent", lab._closed)
"""


def test_open_labs_are_closed_by_the_process_that_made_them(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "numbers.db") as database:
        database.execute("CREATE TABLE t AS SELECT 7 AS i")
    database.close()
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, tmp_path / "numbers.db"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout.splitlines() == ["1", "('child', False)", "('parent', True)"]
