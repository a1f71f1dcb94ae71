"""Concurrent users: what they get a second, and how long they wait, up to saturation and beyond.

One locust run for each number of users and block size, on this machine: the users share its cores with the service and
the database, so the figures are of the machine as a whole. Users do not pause between requests.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.harness import Report, legend_below
from perf.plots import COLOURS
from perf.world import World

USERS = (1, 2, 5, 10, 20, 50, 100, 200)
SECONDS = 8
WARM_SECONDS = 3
ROWS = 4_716
LOCUSTFILE = Path(__file__).with_name("locustfile.py")
# As in the locustfile, which is not imported: gevent would replace the standard library's calls in this process.
WHOLE, STREAM, REFUSED = "query", "stream", "refused"


@dataclass(frozen=True)
class Level:
    """What ``users`` users saw in one run; milliseconds, and answers that were whole a second."""

    users: int
    answers: int
    rate: float
    p50: float
    p95: float
    p99: float
    refused: int
    failed: int


def run(world: World, rounds: int) -> Report:
    report = Report("users", "Concurrent users")
    report.text(
        f"protein_interaction ({ROWS:,} rows) as WebRowSet from PostgreSQL, {SECONDS} s a level, no pauses. Refused "
        "are the answers 503 with Retry-After, which the users obey; failed is everything else that was not a whole "
        "answer. Percentiles are of whole results: one request, or, pulled, all requests of its session."
    )
    curves: dict[str, list[Level]] = {}
    for mode, size in [*(("whole", size) for size in world.blocksizes), ("pull", max(world.blocksizes))]:
        title = f"{'one request' if mode == 'whole' else 'pulled'}, blocks of {size:,}"
        level(world.service, 2, mode, size, WARM_SECONDS)
        levels = [level(world.service, users, mode, size) for users in USERS]
        curves[title] = levels
        report.text(f"## {title}")
        report.table(
            ["users", "answers", "answers/s", "rows/s", "p50 ms", "p95 ms", "p99 ms", "refused", "failed"],
            [
                [
                    *(each.users, each.answers, f"{each.rate:.1f}", f"{each.rate * ROWS:,.0f}"),
                    *(f"{each.p50:.0f}", f"{each.p95:.0f}", f"{each.p99:.0f}", each.refused, each.failed),
                ]
                for each in levels
            ],
        )
        report.goal(f"{title}: failures", sum(each.failed for each in levels), 0)
    report.plot("users", lambda panels: _draw(panels, curves), "throughput and latency against users", panels=(1, 2))
    return report


def level(service: str, users: int, mode: str, blocksize: int, seconds: int = SECONDS, sql: str | None = None) -> Level:
    """One locust run, in a process of its own (gevent replaces the standard library's blocking calls)."""
    with tempfile.TemporaryDirectory() as directory:
        times = Path(directory) / "times.json"
        command = [
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--host", service),
            *(
                "-u",
                str(users),
                "-r",
                str(users),
                "-t",
                f"{seconds}s",
                "--stop-timeout",
                "30",
                "--csv",
                str(Path(directory) / "level"),
            ),
            *("--resource", "pg", "--mode", mode, "--blocksize", str(blocksize), "--only-summary"),
            *("--times", str(times)),
            *("--exit-code-on-error", "0", "--loglevel", "WARNING", *(("--sql", sql) if sql is not None else ())),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"locust failed:\n{done.stderr[-2000:]}")
        stats = _rows(Path(directory) / "level_stats.csv")
        failures = _rows(Path(directory) / "level_failures.csv")
        waits = sorted(json.loads(times.read_text()))
    name = WHOLE if mode == "whole" else STREAM
    entry = next((row for row in stats if row["Name"] == name), None)
    refused = sum(int(row["Occurrences"]) for row in failures if row["Name"] == REFUSED)
    failed = sum(int(row["Occurrences"]) for row in failures) - refused
    if entry is None:
        never = float("nan")
        return Level(users, 0, 0.0, never, never, never, refused, failed)
    requests = int(entry["Request Count"])
    answers = requests - int(entry["Failure Count"])
    rate = float(entry["Requests/s"]) * answers / requests
    p50, p95, p99 = (waits[len(waits) * each // 100] if waits else float("nan") for each in (50, 95, 99))
    return Level(users, answers, rate, p50, p95, p99, refused, failed)


def _rows(path: Path) -> list[Mapping[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _draw(panels: list[Any], curves: dict[str, list[Level]]) -> None:
    rate, wait = panels
    for (title, levels), colour in zip(curves.items(), COLOURS, strict=False):
        users = [each.users for each in levels]
        rate.plot(users, [each.rate for each in levels], marker="o", color=colour, label=title)
        wait.plot(users, [each.p50 for each in levels], marker="o", color=colour)
        wait.plot(users, [each.p99 for each in levels], ":", color=colour)
    least = min(each.rate for levels in curves.values() for each in levels)
    failed = sum(each.failed for levels in curves.values() for each in levels)
    rate.set_title(f"At least {least:.0f} answers a second\nwith 1 to {USERS[-1]} users; more is better", loc="left")
    wait.set_title(f"The wait grows with the users, {failed} fail\n(p50 —, p99 ···); less is better", loc="left")
    for axes, what in ((rate, "whole answers a second"), (wait, "ms until the last byte")):
        axes.set(xscale="log", xlabel="users at once", ylabel=what)
        axes.set_xticks(USERS, [str(users) for users in USERS])
        axes.minorticks_off()
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    rate.set(ylim=(0, None))
    wait.set(yscale="log")
    wait.set_yticks([10, 100, 1000], ["10", "100", "1000"])
    legend_below(rate)
