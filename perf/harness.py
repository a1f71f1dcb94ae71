"""Rounds, medians, ratios, tables: what all benchmarks share."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

# Equal figures give equal files.
mpl.rcParams["svg.hashsalt"] = "dai"

RESULTS = Path(__file__).parent / "results"


def machine() -> str:
    """One line that names the machine: processor, cores, memory, system, Python."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def measured(cases: Mapping[str, Callable[[], Any]], rounds: int, warm: int = 1) -> dict[str, list[float]]:
    """Seconds of each case in each round. The cases take turns; ``warm`` rounds go first and are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(warm + rounds):
        for name, case in cases.items():
            gc.collect()
            began = time.perf_counter()
            case()
            took = time.perf_counter() - began
            if number >= warm:
                seconds[name].append(took)
    return seconds


def median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds)


def warm_runs(rounds: int) -> str:
    """What the times of a report are."""
    return "One warm run" if rounds == 1 else f"Medians of {rounds} warm runs"


def ratio(seconds: Mapping[str, Sequence[float]], case: str, peer: str) -> float:
    """The median of the ratios round by round: what drifts hits both sides of each."""
    return statistics.median(a / b for a, b in zip(seconds[case], seconds[peer], strict=True))


def shown(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def legend_below(axes: Any, title: str | None = None) -> None:
    """One legend for all panels, outside of them: that of ``axes``."""
    handles, labels = axes.get_legend_handles_labels()
    columns = min(len(labels), 4 if title is None else len(labels))
    axes.figure.legend(handles, labels, title=title, loc="outside lower center", ncols=columns)


@dataclass
class Report:
    """What a benchmark says: Markdown paragraphs and tables, figures by name, and goals met or missed."""

    name: str
    title: str
    parts: list[str] = field(default_factory=list)
    goals: list[tuple[str, float, float, bool]] = field(default_factory=list)

    def text(self, paragraph: str) -> None:
        self.parts.append(paragraph)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
        lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
        self.parts.append("\n".join(lines))

    def goal(self, what: str, measured: float, limit: float, *, at_least: bool = False) -> None:
        """A figure the project holds itself to: at most (or at least) ``limit``."""
        self.goals.append((what, measured, limit, measured >= limit if at_least else measured <= limit))

    def plot(
        self,
        name: str,
        draw: Callable[[Any], None],
        alt: str,
        panels: tuple[int, int] = (1, 1),
        height: float | None = None,
    ) -> None:
        """Saves what ``draw(axes)`` draws beside the table; ``axes`` is a list where ``panels`` (down, across) are
        several. ``height`` of all, in inches."""
        down, across = panels
        size = 8 if across == 1 else 4 * across, height or (5 if down == 1 else 3 * down)
        figure, axes = plt.subplots(down, across, figsize=size, layout="constrained")
        draw(axes if panels == (1, 1) else list(axes.flat))
        RESULTS.mkdir(exist_ok=True)
        figure.savefig(RESULTS / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)
        self.parts.append(f"![{alt}]({name}.svg)")

    def write(self) -> str:
        """Writes ``results/NAME.md``; returns its text."""
        goals = [
            f"| {what} | {value:.3g} | {limit:g} | {'met' if met else '**missed**'} |"
            for what, value, limit, met in self.goals
        ]
        if goals:
            goals = ["| goal | measured | limit | |\n| --- | --- | --- | --- |", *goals]
        body = "\n\n".join([f"# {self.title}", f"Machine: {machine()}.", *self.parts, "\n".join(goals)]).rstrip() + "\n"
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self.name}.md").write_text(body)
        return body
