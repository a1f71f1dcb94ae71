"""A process that changes the catalog is killed at twenty points: what it had acknowledged is there, and of what it was
doing all or nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
from dai.replicas.catalog.operations import Attribute, Value

catalog = Catalog(sys.argv[1])
catalog.change(operations.define, [Attribute("step", 0, "int")])
for step in range(100_000):
    name = f"n{step}"
    for operation, items in (
        ("create", [(name, "a")]),
        ("add", [(name, "b")]),
        ("create", [(f"{name}-{at}", "bulk") for at in range(500)]),
        ("put_values", [Value(f"{name}-{at}", 0, "step", "int", step) for at in range(499)]),
        ("rename_logical", [(name, f"r{step}")]),
        ("delete", [(f"{name}-{at}", "bulk") for at in range(0, 500, 2)]),
    ):
        print(json.dumps([operation, items]), flush=True)
        catalog.change(getattr(operations, operation), items)
        print("done", flush=True)
"""


State = tuple[set[tuple[str, str]], dict[str, int]]
"""Mappings, and the attribute of logical names."""


def applied(state: State, operation: str, items: list[list[Any]]) -> State:
    mapped, valued = state
    if operation == "put_values":
        return mapped, valued | {each[0]: each[4] for each in items}
    pairs = {(left, right) for left, right in items}
    if operation == "delete":
        left = mapped - pairs
        names = {logical for logical, _ in left}
        return left, {name: value for name, value in valued.items() if name in names}
    if operation == "rename_logical":
        renamed = dict(pairs)
        return {(renamed.get(logical, logical), target) for logical, target in mapped}, valued
    return mapped | pairs, valued


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
        state: State = (set(), {})
        begun: tuple[str, list[list[Any]]] | None = None
        for line in complete:
            if line == "done\n":
                assert begun is not None
                state, begun = applied(state, *begun), None
            else:
                operation, items = json.loads(line)
                begun = operation, items
        possible = [state] if begun is None else [state, applied(state, *begun)]
        catalog = Catalog(location)
        try:
            mapped = {pair for page in catalog.pages(LOGICAL, "%") for pair in page}
            values = catalog.search(LOGICAL, "step", "all", []) if complete else []
            there = mapped, {each.key: each.value for each in values}
        finally:
            catalog.close()
        assert there in possible, f"after {len(complete)} lines"
