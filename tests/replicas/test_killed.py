"""A process that changes the catalog is killed at twenty points: what it had acknowledged is there, and of what it was
doing all or nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dai.replicas.catalog.catalog import Catalog
from dai.replicas.codes import LOGICAL

pytestmark = pytest.mark.server
POINTS = 20
AT_ONCE = 5
CHANGING = """
import json, sys
from dai.replicas.catalog import operations
from dai.replicas.catalog.catalog import Catalog

catalog = Catalog(sys.argv[1])
for step in range(100_000):
    name = f"n{step}"
    for operation, items in (
        ("create", [(name, "a")]),
        ("add", [(name, "b")]),
        ("create", [(f"{name}-{at}", "bulk") for at in range(500)]),
        ("rename_logical", [(name, f"r{step}")]),
        ("delete", [(f"{name}-{at}", "bulk") for at in range(0, 500, 2)]),
    ):
        print(json.dumps([operation, items]), flush=True)
        catalog.change(getattr(operations, operation), items)
        print("done", flush=True)
"""


def applied(mapped: set[tuple[str, str]], operation: str, items: list[list[str]]) -> set[tuple[str, str]]:
    pairs = {(left, right) for left, right in items}
    if operation == "delete":
        return mapped - pairs
    if operation == "rename_logical":
        names = dict(pairs)
        return {(names.get(logical, logical), target) for logical, target in mapped}
    return mapped | pairs


def killed(location: str, after: int) -> list[str]:
    """What a process said that was killed once it had said so many lines, and what came until then."""
    process = subprocess.Popen([sys.executable, "-c", CHANGING, location], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(after)]
    process.kill()
    said += process.stdout.readlines()
    process.wait()
    return said


@pytest.mark.parametrize("batch", range(POINTS // AT_ONCE))
def test_what_was_acknowledged_is_there(tmp_path: Path, batch: int) -> None:
    for at in range(AT_ONCE):
        location = f"sqlite:///{tmp_path / f'{at}.db'}"
        # within each operation, and right after it
        said = killed(location, 1 + batch * AT_ONCE + at)
        complete = [line for line in said if line.endswith("\n")]
        mapped: set[tuple[str, str]] = set()
        begun: tuple[str, list[list[str]]] | None = None
        for line in complete:
            if line == "done\n":
                assert begun is not None
                mapped, begun = applied(mapped, *begun), None
            else:
                operation, items = json.loads(line)
                begun = operation, items
        possible = [mapped] if begun is None else [mapped, applied(mapped, *begun)]
        catalog = Catalog(location)
        try:
            there = {pair for page in catalog.pages(LOGICAL, "%") for pair in page}
        finally:
            catalog.close()
        assert there in possible, f"after {len(complete)} lines"
