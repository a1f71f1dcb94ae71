"""Which generated queries a run of the tests asks: others for each commit, the same again for the same commit.

The first seed follows from the commit, or is what the environment's ``SEED`` says.
"""

import os
from functools import cache

from tests.thoroughness import commit

APART = 1_000
"""Seeds between the first ones of two commits: more than any test asks of a kind."""
COMMITS = 10_000
"""First seeds that there are."""


@cache
def first() -> int:
    if "SEED" in os.environ:
        return int(os.environ["SEED"])
    return commit() % COMMITS * APART
