"""A one-row query beside thirty clients who ask for more: how long it waits, and what the others get."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from perf.harness import Report
from perf.mix import CLIENTS
from perf.world import World

SECONDS = 10.0


def run(world: World, rounds: int) -> Report:
    report = Report("fairness", "A one-row query beside thirty clients")
    asked = [_apart(world.service, SECONDS) for _ in range(max(1, rounds))]
    report.text(
        f"{CLIENTS} clients ask without pauses for 100 to 16,803 rows as WebRowSet, CSV, JSON and Arrow, one more for "
        f"one row by its key, another each time; {SECONDS:g} s a round. The clients share the machine with the "
        "service and the database."
    )
    report.table(
        ["round", "one row p50 ms", "p99 ms", "answers", "others' answers/s", "others' MB/s", "failed"],
        [
            [number, *(f"{each[key]:.1f}" for key in ("p50", "p99", "answers", "others", "megabytes", "failed"))]
            for number, each in enumerate(asked, 1)
        ],
    )
    report.goal("one row beside 30 clients, p50, ms", statistics.median(each["p50"] for each in asked), 50)
    report.goal("failed", sum(each["failed"] for each in asked), 0)
    return report


def _apart(service: str, seconds: float) -> dict[str, float]:
    """The clients in a process of their own, so that they and the report do not wait for each other."""
    command = [sys.executable, "-m", "perf.mix", service, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))
