"""Which generated queries a run of the tests asks: others for each commit, the same again for the same commit.

The first seed follows from the commit, or is what the environment's ``SEED`` says.
"""

import os
import subprocess
from functools import cache
from pathlib import Path

APART = 1_000
"""Seeds between the first ones of two commits: more than any test asks of a kind."""
COMMITS = 10_000
"""First seeds that there are."""


@cache
def first() -> int:
    if "SEED" in os.environ:
        return int(os.environ["SEED"])
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()
    return int(commit[:12] or "0", 16) % COMMITS * APART
