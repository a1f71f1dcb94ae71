"""Fixtures of the tests of activities."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dai.drivers.directory.driver import Directory
from tests.activities.directories import SECRET


@pytest.fixture
def place(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A directory that is a resource, beside one that is not."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for each in (outside, inside, inside / "sub"):
        each.mkdir()
    (outside / "secret").write_text(SECRET)
    before = sorted((path, path.read_bytes()) for path in outside.iterdir())
    yield SimpleNamespace(inside=inside, outside=outside, driver=Directory(inside))
    assert sorted((path, path.read_bytes()) for path in outside.iterdir()) == before
    assert not list(inside.glob("**/.*.part"))
