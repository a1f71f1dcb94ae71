"""What keys in a statement cost, in a list or a table, and how many a list may have, by their type and the dialect."""

from __future__ import annotations

import math

from dqp.algebra.dialects import MOST_LISTED, properties
from dqp.algebra.keys import LARGE, MOST_KEYS, MOST_LOOKED_UP

LARGEST_PART = 0.8
"""A filter pays only if it keeps at most this part of the probe's rows."""
NUMBER = 2e-6
"""Seconds for one key of a list, from here to the source's plan."""
BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}


def most_listed(type: str, dialect: str) -> float:
    """Most keys of the type in a list."""
    return properties(dialect).MOST_NUMBERS if type in BITS else MOST_LISTED


def table_seconds(keys: float, rows: float, part: float, looked_up: bool, dialect: str) -> float:
    """Seconds for a query-scoped table of so many keys, in which rows are looked for and ``part`` of them found;
    infinite where the dialect has no such tables. ``looked_up``: an index may find these rows instead."""
    of, found = properties(dialect).COSTS, rows * part
    if of.table_key is None:
        return math.inf
    by_index = looked_up and part <= MOST_LOOKED_UP and properties(dialect).ANY_INDEX
    seconds = keys * of.table_key + (found if by_index else rows) * of.table_row * min(1.0, keys / LARGE)
    return seconds + found * of.table_found


def key_seconds(
    keys: float, rows: float, part: float, looked_up: bool, type: str, dialect: str, *, tables: bool
) -> float:
    """Seconds for so many keys of the type in a statement that has ``rows`` rows without them, in the form that takes
    less; infinite for more than it may have. ``tables``: whether the source accepts query-scoped tables; all else as in
    ``table_seconds``."""
    listed = NUMBER * keys if keys <= most_listed(type, dialect) else math.inf
    return min(listed, table_seconds(keys, rows, part, looked_up, dialect)) if tables and keys <= MOST_KEYS else listed
