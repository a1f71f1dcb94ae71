"""Says what a list of keys in a statement costs and how long it may be, by the type of the keys and the dialect."""

from __future__ import annotations

import math

from dqp.algebra.dialects import MOST_LISTED, properties
from dqp.algebra.keys import LARGE, MOST_KEYS

LARGEST_PART = 0.8
"""A filter pays only if it keeps at most this part of the probe's rows."""
NUMBER = 2e-6
"""Seconds for one key of a list, from here to the source's plan."""
BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}


def most_listed(type: str, dialect: str) -> float:
    """Most keys of the type in a list."""
    return properties(dialect).MOST_NUMBERS if type in BITS else MOST_LISTED


def key_seconds(keys: float, rows: float, type: str, dialect: str, tables: bool) -> float:
    """Seconds for so many keys in a statement that has ``rows`` rows without them, in the form that takes less;
    infinite for more than it may have. ``tables``: whether the source accepts query-scoped tables."""
    of = properties(dialect).COSTS
    seconds = NUMBER * keys if keys <= most_listed(type, dialect) else math.inf
    if tables and of.table_key is not None and keys <= MOST_KEYS:
        seconds = min(seconds, keys * of.table_key + rows * of.table_row * min(1.0, keys / LARGE))
    return seconds
