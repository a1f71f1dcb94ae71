"""What a list of keys in a statement costs, and how long one may be, by the type of the keys and the dialect."""

from __future__ import annotations

LARGEST_PART = 0.8
"""The part of the probe's rows that may be left where a filter is to pay."""
NUMBER = 2e-6
"""Seconds that a key of a list costs, from here to the source's plan."""
MOST_LISTED = 1_000
"""Keys that are written as a list: what every source compares a row with fast."""
MOST_NUMBERS = {"postgresql": 50_000, "mariadb": 20_000, "duckdb": 20_000, "sqlite": 20_000}
"""Whole numbers that are, where the dialect's database looks them up in a table of hashes, a sorted list or a tree."""
BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}


def most_listed(type: str, dialect: str) -> float:
    """Keys of the type that a list may have."""
    return MOST_NUMBERS.get(dialect, MOST_LISTED) if type in BITS else MOST_LISTED
