"""What keys in a statement cost, in a list or a table, and how many a list may have, by their type and the dialect."""

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


def table_seconds(keys: float, rows: float, dialect: str) -> float:
    """Seconds for a query-scoped table of so many keys, in which so many rows are looked for; infinite where the
    dialect has no such tables."""
    of = properties(dialect).COSTS
    return math.inf if of.table_key is None else keys * of.table_key + rows * of.table_row * min(1.0, keys / LARGE)


def key_seconds(keys: float, rows: float, type: str, dialect: str, tables: bool) -> float:
    """Seconds for so many keys in a statement that has ``rows`` rows without them, in the form that takes less;
    infinite for more than it may have. ``tables``: whether the source accepts query-scoped tables."""
    listed = NUMBER * keys if keys <= most_listed(type, dialect) else math.inf
    return min(listed, table_seconds(keys, rows, dialect)) if tables and keys <= MOST_KEYS else listed
