"""The progress of a job for display: its first statement and the progress of its activities."""

from __future__ import annotations

import dataclasses
from typing import Any

from dai.errors import shortened
from dai.perform.parser import Perform
from dai.perform.pipeline.progress import Report

DETAIL = 500
"""Characters of a text about an activity: a job has hundreds of these, and a list hundreds of jobs."""
BEGINNING = 160
"""Characters of a job's first statement that are kept."""


def report_values(report: Report) -> dict[str, Any]:
    """The progress of one activity as values for JSON."""
    values = {each.name: getattr(report, each.name) for each in dataclasses.fields(report)}
    values["seconds"] = round(report.seconds, 6)
    problem = report.error.problem() if report.error is not None else None
    values["error"] = problem and {name: shortened(value, DETAIL) for name, value in problem.items()}
    values["parts"] = [dataclasses.asdict(each) for each in report.parts]
    return values


def beginning_of(perform: Perform) -> str:
    """Of the first statement on one line; without any, the activities."""
    texts = (getattr(each, "expression", None) for each in perform.activities)
    first = next((each for each in texts if isinstance(each, str)), None)
    text = " ".join((first or ", ".join(each.element for each in perform.activities)).split())
    return text if len(text) <= BEGINNING else text[: BEGINNING - 1] + "…"
