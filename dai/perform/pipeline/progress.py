"""The status of the activities of a running document: what they have produced, whether they completed, or what stopped
them.

::

    UNSTARTED ──started──> PROCESSING ──all outputs ended──> COMPLETED
        │                      ├──failed, first in its pipeline──> ERROR
        └──────────────────────┴──a neighbour failed, cancelled──> TERMINATED

A pipeline is a connected part of the document (``Perform.component``) and has one cancellation: its first failure is
the cause, and fires it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from dai.drivers import Part, Parts
from dai.errors import ClosedError, DaiError
from dai.perform.activity import Activity
from dai.perform.graph import Perform
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block
from dai.streams.tracing import Span

UNSTARTED, PROCESSING, COMPLETED = "UNSTARTED", "PROCESSING", "COMPLETED"
TERMINATED, ERROR = "TERMINATED", "ERROR"
PROCESSING_WITH_ERROR, COMPLETED_WITH_ERROR = "PROCESSING_WITH_ERROR", "COMPLETED_WITH_ERROR"


@dataclass(frozen=True, slots=True)
class Report:
    """The status of one activity. ``rows``, ``blocks`` and ``bytes`` left it so far; ``seconds`` were spent waiting
    for it, its own inputs included. ``error`` is its own failure (ERROR), or what stopped it (TERMINATED): a
    ClosedError that says whether its producer or its consumer closed it, or the cause of the cancellation. ``parts``:
    of the query that it began last, where that is run in several places."""

    activity: str
    element: str
    status: str = UNSTARTED
    error: DaiError | None = None
    rows: int = 0
    blocks: int = 0
    bytes: int = 0
    seconds: float = 0.0
    parts: tuple[Part, ...] = ()


@dataclass(slots=True)
class Count:
    """Counts what has left one output; written by the thread that pulls it."""

    rows: int = 0
    blocks: int = 0
    bytes: int = 0
    seconds: float = 0.0
    ended: bool = False

    def add(self, item: pa.RecordBatch | Block) -> None:
        self.rows += item.num_rows if isinstance(item, pa.RecordBatch) else item.rows
        self.bytes += item.nbytes if isinstance(item, pa.RecordBatch) else len(item)
        self.blocks += 1


class _Stand:
    """How one activity stands."""

    __slots__ = ("activity", "cancellation", "error", "outputs", "parts", "seconds", "span", "status")

    def __init__(self, activity: Activity, cancellation: Cancellation) -> None:
        self.activity, self.cancellation = activity, cancellation
        self.span: Span | None = None
        self.status = UNSTARTED
        self.error: DaiError | None = None
        self.outputs = {port.link: Count() for port in activity.outputs}
        self.seconds = 0.0
        """Of an activity without outputs."""
        self.parts: Parts | None = None

    def close(self) -> None:
        """Its last status is known."""
        if self.span is not None:
            self.span.set({"dai.rows": sum(each.rows for each in self.outputs.values())})
            self.span.end(self.error)

    def report(self) -> Report:
        counts = self.outputs.values()
        return Report(
            self.activity.name,
            self.activity.element,
            self.status,
            self.error,
            sum(each.rows for each in counts),
            sum(each.blocks for each in counts),
            sum(each.bytes for each in counts),
            self.seconds + sum(each.seconds for each in counts),
        )


class Progress:
    """Of one running document; thread-safe. ``span``: that of the request, below which each activity of a document has
    one of its own."""

    def __init__(self, perform: Perform, span: Span | None = None) -> None:
        self.perform = perform
        self.cause: DaiError | None = None
        self._lock = threading.Lock()
        self._cancellations = {number: Cancellation(span) for number in set(perform.component.values())}
        self._stands = {
            each.name: _Stand(each, self._cancellations[perform.component[each.name]]) for each in perform.activities
        }
        self._culprits: dict[int, str] = {}

    def reports(self) -> tuple[Report, ...]:
        """In document order."""
        with self._lock:
            reports = [(each.report(), each.parts) for each in self._stands.values()]
        return tuple(replace(report, parts=parts()) if parts is not None else report for report, parts in reports)

    def rows_of(self, activities: Iterable[str]) -> int:
        """Rows that have left these so far."""
        return sum(count.rows for name in activities for count in self._stands[name].outputs.values())

    def cancellation_of(self, name: str) -> Cancellation:
        """That of the pipeline the activity belongs to, with the activity's own span once it has started."""
        return self._stands[name].cancellation

    def culprit(self, name: str) -> str:
        """The activity that failed first in the pipeline of ``name``; ``name`` itself where none has."""
        return self._culprits.get(self.perform.component[name], name)

    def started(self, name: str) -> None:
        stand = self._stands[name]
        stand.status = PROCESSING
        above, activity = stand.cancellation.span, stand.activity
        if above is not None and activity.line:  # it stands in a document
            span = above.child(activity.element, {"dai.activity": name})
            if span is not above:
                stand.span, stand.cancellation = span, stand.cancellation.under(span)

    def began(self, name: str, parts: Parts) -> None:
        """A query of the activity, which is run in several places."""
        self._stands[name].parts = parts

    def completed(self, name: str, seconds: float) -> None:
        """For an activity without outputs."""
        with self._lock:
            stand = self._stands[name]
            stand.status, stand.seconds = COMPLETED, seconds
        stand.close()

    def count(self, name: str, link: str) -> Count:
        """For what leaves the output ``link``."""
        return self._stands[name].outputs[link]

    def ended(self, name: str, link: str) -> None:
        """The output has ended; an activity is COMPLETED when all its outputs have."""
        with self._lock:
            stand = self._stands[name]
            stand.outputs[link].ended = True
            if stand.status == PROCESSING and all(each.ended for each in stand.outputs.values()):
                stand.status = COMPLETED
                stand.close()

    def failed(self, name: str, error: DaiError) -> None:
        """Records a failure of the activity and stops its pipeline. The first failure in a pipeline is its cause; what
        fails further on was closed by it. A ClosedError stops the pipeline without being an error of it."""
        component = self.perform.component[name]
        cancellation = self._cancellations[component]
        with self._lock:
            stand = self._stands[name]
            if component not in self._culprits and not cancellation.cancelled:
                self._culprits[component] = name
                stand.status, stand.error = TERMINATED if isinstance(error, ClosedError) else ERROR, error
                if stand.status == ERROR and stand.activity.line:  # it stands in a document
                    error.extra.setdefault("activity", name)
            elif stand.status in (UNSTARTED, PROCESSING):
                stand.error, stand.status = self._closed(stand), TERMINATED
            if self.cause is None:
                self.cause = cancellation.cause or error
        stand.close()
        cancellation.cancel(error)

    def stop(self, cause: DaiError | None) -> None:
        """Stops all pipelines."""
        for cancellation in self._cancellations.values():
            cancellation.cancel(cause)

    def settle(self) -> None:
        """Gives every activity its last status, after all have ended. An activity whose consumers stopped early has
        completed."""
        with self._lock:
            for name, stand in self._stands.items():
                if stand.status not in (UNSTARTED, PROCESSING):
                    continue
                if stand.status == PROCESSING and not self.cancellation_of(name).cancelled:
                    stand.status = COMPLETED
                else:
                    stand.error, stand.status = self._closed(stand), TERMINATED
                    self.cause = self.cause or stand.error
                stand.close()

    def _closed(self, stand: _Stand) -> DaiError:
        """What stopped an activity that is not itself the cause."""
        name = stand.activity.name
        component = self.perform.component[name]
        culprit = self._culprits.get(component)
        if culprit is None:
            return self._cancellations[component].cause or ClosedError("The request has ended.")
        if stand.status == UNSTARTED:
            return ClosedError(f"This activity was not started, because {culprit!r} failed.")
        neighbour, side = _towards(self.perform, culprit).get(name, (culprit, "neighbour in the sequence"))
        return ClosedError(f"Closed by its {side} {neighbour!r}, because {culprit!r} failed.")


def overall(perform: Perform, reports: tuple[Report, ...]) -> str:
    """The status of a request: COMPLETED_WITH_ERROR (PROCESSING_WITH_ERROR) where a pipeline failed while an
    independent one was completed (still runs)."""
    pipelines: dict[int, set[str]] = {}
    for report in reports:
        pipelines.setdefault(perform.component[report.activity], set()).add(report.status)
    words = {_of_pipeline(statuses) for statuses in pipelines.values()}
    if ERROR in words:
        if words & {PROCESSING, UNSTARTED}:
            return PROCESSING_WITH_ERROR
        return COMPLETED_WITH_ERROR if COMPLETED in words else ERROR
    if words == {UNSTARTED}:
        return UNSTARTED
    return next((word for word in (PROCESSING, UNSTARTED, TERMINATED) if word in words), COMPLETED)


def _of_pipeline(statuses: set[str]) -> str:
    if statuses == {UNSTARTED, COMPLETED}:
        return PROCESSING
    return next((word for word in (ERROR, TERMINATED, PROCESSING, UNSTARTED) if word in statuses), COMPLETED)


def _towards(perform: Perform, culprit: str) -> dict[str, tuple[str, str]]:
    """For every activity linked with ``culprit``: its neighbour on the way there, and which side that is."""
    links: dict[str, list[tuple[str, str]]] = {each.name: [] for each in perform.activities}
    for producer in perform.activities:
        for port in producer.outputs:
            for consumer in perform.consumers[port.link]:
                links[producer.name].append((consumer, "producer"))
                links[consumer].append((producer.name, "consumer"))
    towards: dict[str, tuple[str, str]] = {}
    reached = [culprit]
    for at in reached:
        for name, side in links[at]:
            if name not in towards and name != culprit:
                towards[name] = (at, side)
                reached.append(name)
    return towards
