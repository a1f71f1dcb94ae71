"""Random codes. ``draw_of`` gives each table random numbers of its own, so that it does not depend on the others."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Draw: TypeAlias = np.random.Generator
Values: TypeAlias = NDArray[Any]


def draw_of(table: str) -> Draw:
    return np.random.default_rng([17, *table.encode()])


def size(rows: int, scale: float) -> int:
    return max(40, int(rows * scale))


def skewed(draw: Draw, options: int, rows: int, power: float) -> Values:
    """Codes below ``options``, of which the first are the most frequent, the more so the higher ``power`` (1: even)."""
    return np.minimum((draw.random(rows) ** power * options).astype(np.int64), options - 1)


def shuffled(draw: Draw, options: int, codes: Values) -> Values:
    """The same codes with other meanings: the most frequent are no longer the first."""
    return draw.permutation(options)[codes]


def weighted(draw: Draw, weights: ArrayLike, rows: int) -> Values:
    shares = np.asarray(weights, float)
    return draw.choice(len(shares), rows, p=shares / shares.sum())


def numbered(owners: Values) -> Values:
    """1, 2, … within each run of equal owners."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    return np.arange(len(owners)) - np.repeat(starts, np.diff(starts, append=len(owners))) + 1


def day(text: str) -> int:
    """Days since 1970."""
    return int(np.datetime64(text, "D").astype(np.int64))
