"""How long the tests search: as each commit needs it or, with ``THOROUGH=1`` in the environment, four times as long.

Only what is found by searching is less for a commit: generated examples, queries and requests, random operations. Every
case that somebody wrote is in every run. Where the generated cases are always the same, each commit has a part of
them, and another commit another part, so that all of them are asked again and again. So it is with cases that are
combined: the queries of a benchmark with placements of its tables, lists of values and changes of tables with
databases, requests with callers; and with the tests of dialects that SQLAlchemy brings.
"""

import os
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

THOROUGH = os.environ.get("THOROUGH", "0") not in ("", "0")
PARTS = 4
"""A commit has one of so many."""
Case = TypeVar("Case")
Other = TypeVar("Other")


def examples(number: int) -> int:
    """How many examples a run has, of the ``number`` of a thorough one."""
    return number if THOROUGH else -(-number // PARTS)


def part(cases: Sequence[Case]) -> Sequence[Case]:
    """The cases that a run has: all in a thorough one, otherwise those of this commit, which follow each other."""
    assert len(cases) >= PARTS
    if THOROUGH:
        return cases
    turn = commit() % PARTS
    return cases[len(cases) * turn // PARTS : len(cases) * (turn + 1) // PARTS]


def combined(cases: Iterable[Case], others: Sequence[Other]) -> Sequence[tuple[Case, Other]]:
    """Each case with each of the others, or with a quarter of them, with which it is in another quarter of the commits:
    every case and each of the others is in every run."""
    assert len(others) >= PARTS
    pairs = ((at + other, (case, others[other])) for at, case in enumerate(cases) for other in range(len(others)))
    return [each for number, each in pairs if THOROUGH or number % PARTS == commit() % PARTS]


@cache
def commit() -> int:
    """A number of the commit, 0 where there is none."""
    said = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return int(said.stdout.strip()[:12] or "0", 16)
