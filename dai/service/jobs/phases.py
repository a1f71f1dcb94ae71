"""The phases of a job, and which may follow which."""

from __future__ import annotations

PENDING, QUEUED, EXECUTING = "PENDING", "QUEUED", "EXECUTING"
COMPLETED, ERROR, ABORTED = "COMPLETED", "ERROR", "ABORTED"
MOVES = {
    PENDING: {QUEUED, EXECUTING, ABORTED},
    QUEUED: {EXECUTING, ABORTED, ERROR},
    EXECUTING: {COMPLETED, ABORTED, ERROR},
}
"""For each phase the phases that may follow. A phase without an entry is final."""
ACTIVE = frozenset({QUEUED, EXECUTING})
