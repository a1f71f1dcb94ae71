"""Says what a list of keys in a statement costs and how long it may be, by the type of the keys and the dialect."""

from __future__ import annotations

from dqp.algebra.dialects import MOST_LISTED, properties

LARGEST_PART = 0.8
"""A filter pays only if it keeps at most this part of the probe's rows."""
NUMBER = 2e-6
"""Seconds for one key of a list, from here to the source's plan."""
BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}


def most_listed(type: str, dialect: str) -> float:
    """Most keys of the type in a list."""
    return properties(dialect).MOST_NUMBERS if type in BITS else MOST_LISTED
