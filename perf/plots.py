"""How the figures are drawn: dots beside a mark, the best first, and a title that says what they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLOURS = ("#0b6fb8", "#d9730d", "#2a8a4a", "#8b4fb0", "#777777")
"""Told apart on paper and by those who see few colours; the first is ours."""
MANY = 40
"""With more rows than that only the outliers have names."""


def dots(
    axes: Any, rows: Mapping[str, Mapping[str, float]], *, title: str, label: str, mark: float = 1.0, log: bool = True
) -> None:
    """A line a row with a dot for each series; rows in the order of their largest value. ``mark``: what a value is
    compared with, such as 1 for a ratio."""
    ordered = sorted(rows.items(), key=lambda row: -max(row[1].values(), default=0.0))
    series = list(dict.fromkeys(name for _, values in ordered for name in values))
    for place, (_, values) in enumerate(ordered):
        axes.axhline(place, color="#e4e4e4", linewidth=0.8, zorder=0)
        for name, value in values.items():
            axes.plot([value], [place], "o", color=COLOURS[series.index(name) % len(COLOURS)], markersize=6)
    for number, name in enumerate(series):
        axes.plot([], [], "o", color=COLOURS[number % len(COLOURS)], label=name)
    axes.set_yticks(range(len(ordered)), [name for name, _ in ordered])
    axes.set_ylim(-0.6, len(ordered) - 0.4)
    _finish(axes.axvline, axes, title, mark)
    axes.set_xlabel(label)
    if log:
        decades(axes, "x")
    else:
        axes.set_xlim(0, None)
    if len(series) > 1:
        axes.figure.legend(loc="outside lower center", ncols=4, frameon=False)


def ranked(axes: Any, values: Mapping[str, float], *, title: str, label: str, named: Sequence[str] = ()) -> None:
    """A dot a value from the least to the largest, for more of them than can have a row; the largest of ``named`` have
    their names."""
    ordered = sorted(values.items(), key=lambda each: each[1])
    for place, (name, value) in enumerate(ordered):
        axes.plot([place], [value], "o", color=COLOURS[value > 1], markersize=4.5)
        if len(ordered) <= MANY:
            axes.annotate(name, (place, value), xytext=(-5, 0), textcoords="offset points", ha="right", fontsize=8)
    _finish(axes.axhline, axes, title, 1.0)
    axes.set_xticks([])
    axes.set_xlabel(f"{len(ordered)} queries, the best first")
    axes.set_ylabel(label)
    decades(axes, "y")
    if len(ordered) > MANY:
        points = [(place, *each) for place, each in enumerate(ordered) if each[0] in named]
        _column(axes, points[-MOST_NAMED:])


def _column(axes: Any, points: Sequence[tuple[int, str, float]]) -> None:
    """The names of points one above the other, right of all of them, each with a line to its own."""
    low, high = axes.get_ylim()
    line = (high / low) ** 0.035
    at = 0.0
    for place, name, value in points:
        at = max(value, at * line)
        axes.annotate(
            name,
            (place, value),
            xytext=(axes.get_xlim()[1] * 1.02, at),
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.6},
        )


def count(values: Mapping[str, float], below: float = 1.0) -> str:
    """``7 of 9``: how many are below."""
    return f"{sum(value < below for value in values.values())} of {len(values)}"


def blocks(axes: Any, title: str) -> None:
    """Finishes curves of seconds by rows a block."""
    axes.set(xscale="log", yscale="log", xlabel="rows a block", ylabel="seconds for the whole table: less is better")
    axes.set_title(title, fontsize=11, loc="left", wrap=True)
    decades(axes, "x")
    decades(axes, "y")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _finish(line: Any, axes: Any, title: str, mark: float) -> None:
    line(mark, color="#333333", linewidth=1.2, zorder=1)
    axes.set_title(title, fontsize=11, loc="left", wrap=True)
    axes.spines[["top", "right"]].set_visible(False)


def decades(axes: Any, which: str) -> None:
    """A logarithmic axis with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_formatter(NullFormatter())


MOST_NAMED = 12
"""Names that have room beside a plot."""
