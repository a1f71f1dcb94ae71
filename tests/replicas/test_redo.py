"""Large changes are durable when they are answered, though they are committed later; whoever reads sees them."""

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dai.replicas.catalog import operations, writer
from dai.replicas.catalog.catalog import Catalog
from dai.replicas.catalog.database import Connection
from dai.replicas.catalog.operations import Changes
from dai.replicas.codes import LOGICAL, Code

PAIRS = [(f"n{at:04d}", "t") for at in range(writer.LARGE)]
CRASHING = """
import os, sys
from dai.replicas.catalog import operations, writer
from dai.replicas.catalog.catalog import Catalog

writer.IDLE_SECONDS = 1000
catalog = Catalog(sys.argv[1])
names = [f"{sys.argv[2]}{at:04d}" for at in range(writer.LARGE)]
catalog.change(operations.create, [(each, "t") for each in names])
catalog.change(operations.delete, [(each, "t") for each in names[: writer.LARGE // 2]] * 2)
os._exit(9)
"""


def committed(file: Path) -> int:
    """As another process sees it."""
    with sqlite3.connect(file) as connection:
        ((count,),) = connection.execute("select count(*) from dai_mappings")
    connection.close()
    return int(count)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is committed because nothing comes."""
    monkeypatch.setattr(writer, "IDLE_SECONDS", 1000)


@pytest.mark.usefixtures("patient")
def test_readers_see_what_is_held(tmp_path: Path) -> None:
    file = tmp_path / "r.db"
    catalog = Catalog(f"sqlite:///{file}")
    try:
        assert not any(catalog.change(operations.create, PAIRS))
        assert committed(file) == 0
        assert not catalog.at_once
        assert catalog.partners(LOGICAL, PAIRS[-1][0]) == ["t"]
        assert catalog.at_once
        assert committed(file) == len(PAIRS)
        assert catalog.change(operations.create, PAIRS) == [Code.LFN_EXIST] * len(PAIRS)
        assert not any(catalog.change(operations.delete, PAIRS[1:]))
        # a small change is committed, and what was held with it
        assert catalog.change(operations.add, [(PAIRS[0][0], "other")]) == [Code.OK]
        assert committed(file) == 2
    finally:
        catalog.close()


@pytest.mark.usefixtures("patient")
def test_so_many_are_held_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "HELD", 2 * len(PAIRS))
    file = tmp_path / "r.db"
    catalog = Catalog(f"sqlite:///{file}")
    try:
        catalog.change(operations.create, PAIRS)
        catalog.change(operations.create, [(f"other {name}", target) for name, target in PAIRS])
        assert committed(file) == 2 * len(PAIRS)
    finally:
        catalog.close()


def test_after_a_crash_it_is_carried_out_again(tmp_path: Path) -> None:
    file = tmp_path / "r.db"
    for time, name in enumerate("ab"):
        ended = subprocess.run([sys.executable, "-c", CRASHING, f"sqlite:///{file}", name], check=False)
        assert ended.returncode == 9
        # the second has carried out what the first had left
        assert committed(file) == time * writer.LARGE // 2
    catalog = Catalog(f"sqlite:///{file}")
    try:
        there = [logical for page in catalog.pages(LOGICAL, "%") for logical, _ in page]
        assert there == [f"{name}{at:04d}" for name in "ab" for at in range(writer.LARGE // 2, writer.LARGE)]
    finally:
        catalog.close()


@pytest.mark.usefixtures("patient")
def test_a_change_that_fails_takes_nothing_that_was_held(tmp_path: Path) -> None:
    def failing(connection: Connection, items: Sequence[Any], changes: Changes) -> list[Code]:
        connection.run("delete from dai_mappings")
        raise ZeroDivisionError

    catalog = Catalog(f"sqlite:///{tmp_path / 'r.db'}")
    try:
        catalog.change(operations.create, PAIRS)
        with pytest.raises(ZeroDivisionError):
            catalog.change(failing, [None])
        assert catalog.counts()["mappings"] == len(PAIRS)
    finally:
        catalog.close()
