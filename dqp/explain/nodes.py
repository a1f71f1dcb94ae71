"""The nodes of a plan as it is shown: one operator each, with its estimates and its measurements.

``plan`` makes them of an execution, ``profile`` of what DuckDB says of its own operators; ``text``, ``json`` and
``svg`` show them.
"""

from __future__ import annotations

from dataclasses import dataclass

WRONG = 10.0
"""An estimate of the rows that is wrong by this factor is pointed out."""


@dataclass(frozen=True)
class Figures:
    """Rows, bytes and seconds; None where nobody knows. ``seconds`` from the first request to the last row, for an
    operator of the engine its own work, where they are estimated those of the cost model; ``waiting``: of these, spent
    waiting for the source or the producer below; ``held``: spent waiting for whoever reads it; ``spooled``: bytes that
    had to be written to disk."""

    rows: float | None = None
    bytes: float | None = None
    seconds: float | None = None
    waiting: float | None = None
    spooled: float | None = None
    held: float | None = None


@dataclass(frozen=True)
class Node:
    """``where`` it runs; ``statements``: the SQL sent, one for each part of a scan that was read in parts."""

    title: str
    details: tuple[str, ...] = ()
    where: str | None = None
    estimated: Figures = Figures()
    actual: Figures | None = None
    statements: tuple[str, ...] = ()
    inputs: tuple[Node, ...] = ()


def wrong(node: Node) -> float | None:
    """How many times the estimated rows came, where that is ``WRONG`` times more or fewer; else None."""
    expected, actual = node.estimated.rows, None if node.actual is None else node.actual.rows
    if expected is None or actual is None:
        return None
    off = (actual + 1) / (expected + 1)
    return max(actual, 1.0) / max(expected, 1.0) if off >= WRONG or off <= 1 / WRONG else None
