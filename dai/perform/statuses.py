"""The parts of a response document that say how things stand: its head, the results of activities, errors, the request.
And the documents that have nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from xml.sax.saxutils import escape, quoteattr

from dai.errors import DaiError
from dai.perform.graph import Dialect, EndPoint, Perform
from dai.perform.pipeline import Running
from dai.perform.pipeline.progress import COMPLETED, ERROR, PROCESSING, Report, overall

MEDIA_TYPE = "application/xml"
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""What XML 1.0 cannot carry, in text that UTF-8 can."""


def head(dialect: Dialect, session: str | None) -> bytes:
    joined = f"\n<session id={quoteattr(session)}/>" if session else ""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<{dialect.response} xmlns="{dialect.namespace}">{joined}\n'
    ).encode()


def ending(running: Running, request: str, missing: Iterable[EndPoint] = ()) -> bytes:
    """The end points that were not opened, the activities and the request. Where something failed, what has been
    committed beside it says so."""
    reports = running.progress.reports()
    status = {report.activity: report for report in reports}
    unopened = b"".join(_activity_result(status[end.activity], end.name) for end in missing)
    committed = running.committed if any(report.error is not None for report in reports) else []
    activities = b"".join(_activity_result(report, committed=report.activity in committed) for report in reports)
    return unopened + activities + _tail(running.perform.dialect, request, overall(running.perform, reports))


def _tail(dialect: Dialect, request: str, status: str) -> bytes:
    return f'<request id={quoteattr(request)} status="{status}"/>\n</{dialect.response}>\n'.encode()


def _activity_result(report: Report, name: str | None = None, committed: bool = False) -> bytes:
    error = error_of(report.error, report.activity) if report.error is not None else b""
    start = f'<result name={quoteattr(name or report.activity)} status="{report.status}"'.encode()
    start += b' committed="true"' if committed else b""
    return start + (b">" + error + b"</result>\n" if error else b"/>\n")


def error_of(error: DaiError, activity: str | None = None) -> bytes:
    said = {"activity": activity, "sqlstate": error.extra.get("sqlstate")}
    at = "".join(f" {name}={quoteattr(value)}" for name, value in said.items() if value)
    message = escape(FORBIDDEN.sub("?", str(error))).encode("utf-8", "replace")
    return f"<error id={quoteattr(error.code)}{at}>".encode() + message + b"</error>"


def processing(perform: Perform, session: str | None, request: str) -> bytes:
    """The answer to a document that goes on by itself as a job."""
    results = b"".join(_activity_result(Report(each.name, each.element)) for each in perform.activities)
    return head(perform.dialect, session) + results + _tail(perform.dialect, request, PROCESSING)


def failure(error: DaiError, dialect: Dialect, request: str) -> bytes:
    """The answer where nothing ran."""
    return head(dialect, None) + error_of(error, error.extra.get("activity")) + b"\n" + _tail(dialect, request, ERROR)


def partial(
    running: Running,
    counts: Mapping[str, bytes],
    output: str | None,
    error: DaiError,
    session: str | None,
    request: str,
) -> bytes:
    """The response where ``error`` struck before anything was delivered, of what was done until then. ``output``: the
    end point that alone was wanted; ``counts``: what the end points gave that are no results."""
    status = {report.activity: report for report in running.reports()}
    known = any(report.error is error for report in status.values())
    ends = []
    for end in running.perform.end_points:
        report = status[end.activity]
        if end.name == output and (not known or (report.status == COMPLETED and not counts.get(output))):
            report = replace(report, status=ERROR, error=error)
        if counts.get(end.name) and report.error is None:
            ends.append(f'<result name={quoteattr(end.name)} status="{report.status}">'.encode())
            ends.append(counts[end.name] + b"</result>\n")
        else:
            ends.append(_activity_result(report, end.name))
    return head(running.perform.dialect, session) + b"".join(ends) + ending(running, request)
