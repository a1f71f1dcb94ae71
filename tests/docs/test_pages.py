"""The tutorials and the how-to pages work as they are written."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from tests.docs.pages import Reader, steps
from tests.processes import ROOT

pytestmark = pytest.mark.server
DOCS = ROOT / "docs"
PARTS = ("tutorials/*", "federations/tutorial", "how-to/*", "explanation/*")
PAGES = [page for part in PARTS for page in sorted(DOCS.glob(f"{part}.md")) if any(steps(page))]
NEEDS = {"r": "Rscript", "java": "javac"}
"""Of a page: the program without which it is not run."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_works(page: Path, tmp_path: Path) -> None:
    if (program := NEEDS.get(page.stem)) and shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    with contextlib.ExitStack() as stack:
        Reader(tmp_path, stack).follow(page)
