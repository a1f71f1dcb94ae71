"""Several processes as one service: what N workers answer a second, over what one does.

The services are asked in turns, by users without pauses, on this machine: locust and PostgreSQL share its cores with
the service. So the table also says how much processor time of the service an answer takes, which does not depend on
who else is at work: where it is the same with N workers, N cores of the service's own answer N times as much.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack

import psutil

from perf.harness import Report
from perf.users import Level, level
from perf.world import World, service

USERS = 20
WARM_SECONDS = 3
CASES = {
    "one request, 4,716 rows": ("whole", None),
    "pulled, 4,716 rows": ("pull", None),
    "a one-row query": ("whole", "select 1 as a"),
}
GOAL = 0.8
P50_GOAL = 1.05


def run(world: World, rounds: int) -> Report:
    report = Report("workers", f"{world.workers} workers as one service")
    resources = {"pg": world.postgres.url}
    with ExitStack() as stack:
        services = {workers: stack.enter_context(service(resources, workers=workers)) for workers in (1, world.workers)}
        rows = []
        for name, (mode, sql) in CASES.items():
            busy: dict[int, list[tuple[Level, float]]] = {workers: [] for workers in services}
            alone: dict[int, list[Level]] = {workers: [] for workers in services}
            for number in range(1 + rounds):
                for workers, (base, process) in services.items():
                    seconds = WARM_SECONDS if not number else 8
                    before = spent(process)
                    many = level(base, USERS, mode, 1000, seconds, sql)
                    each = (spent(process) - before) / max(many.answers, 1)
                    one = level(base, 1, mode, 1000, seconds, sql)
                    if number:
                        busy[workers].append((many, each))
                        alone[workers].append(one)
            rate = {workers: statistics.median(many.rate for many, _ in levels) for workers, levels in busy.items()}
            cost = {workers: statistics.median(each for _, each in levels) for workers, levels in busy.items()}
            p50 = {workers: statistics.median(each.p50 for each in levels) for workers, levels in alone.items()}
            rows += [
                [name, workers, f"{rate[workers]:.1f}", f"{cost[workers] * 1e3:.2f}", f"{p50[workers]:.2f}"]
                for workers in services
            ]
            most = world.workers
            report.goal(f"{name}: {most} workers over {most} x one", rate[most] / rate[1] / most, GOAL, at_least=True)
            report.goal(f"{name}: p50 of 1 user, {most} workers over one", p50[most] / p50[1], P50_GOAL)
            report.goal(f"{name}: failures", failures(busy), 0)
    report.text(f"{USERS} users (p50: 1 user), {rounds} rounds of 8 s each, in turns; medians.")
    report.table(["", "workers", "answers/s", "processor ms of the service an answer", "p50 ms"], rows)
    return report


def failures(levels: Mapping[int, list[tuple[Level, float]]]) -> int:
    return sum(each.failed for measured in levels.values() for each, _ in measured)


def spent(process: psutil.Process) -> float:
    """Processor seconds of a service so far."""
    times = [each.cpu_times() for each in (process, *process.children())]
    return float(sum(each.user + each.system for each in times))
