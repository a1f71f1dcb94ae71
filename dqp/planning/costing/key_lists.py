"""What a list of keys in a statement costs, and how long one may be, by the type of the keys and the dialect."""

from __future__ import annotations

from dqp.algebra.dialects import MOST_LISTED, properties

LARGEST_PART = 0.8
"""The part of the probe's rows that may be left where a filter is to pay."""
NUMBER = 2e-6
"""Seconds that a key of a list costs, from here to the source's plan."""
BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}


def most_listed(type: str, dialect: str) -> float:
    """Keys of the type that a list may have."""
    return properties(dialect).MOST_NUMBERS if type in BITS else MOST_LISTED
