"""The status of a job in few bytes, for slow links: its changing parts, as CBOR (RFC 8949).

An item is an array: phase, start and end (milliseconds since 1970, or null), and for each activity, in the order of the
document, an array of status, rows, blocks, bytes and milliseconds. Phases and statuses are numbers, their places in
``PHASES`` and ``STATUSES``; what is 0 at the end of an array is left out. Names, and what does not change, are those of
the status in JSON, which a reader asks for once.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dai.errors import DataError

MEDIA_TYPE = "application/vnd.dai.status+cbor"
SEQUENCE = "application/vnd.dai.status+cbor-seq"
"""Items one after the other (RFC 8742)."""
PHASES = ("PENDING", "QUEUED", "EXECUTING", "COMPLETED", "ERROR", "ABORTED")
STATUSES = (
    *("UNSTARTED", "PROCESSING", "COMPLETED", "TERMINATED", "ERROR"),
    *("PROCESSING_WITH_ERROR", "COMPLETED_WITH_ERROR"),
)
_COUNTS = ("rows", "blocks", "bytes")


def packed(
    phase: str,
    started: float | None,
    ended: float | None,
    activities: Sequence[Mapping[str, Any]],
    progress: float | None = None,
) -> bytes:
    """An item. Times are seconds since 1970."""
    import cbor2

    standing = []
    for each in activities:
        values = [STATUSES.index(each["status"]), *(each.get(name) or 0 for name in _COUNTS)]
        values.append(round((each.get("seconds") or 0) * 1000))
        while len(values) > 1 and not values[-1]:
            values.pop()
        standing.append(values)
    done = None if progress is None else round(progress * 1000)
    return cbor2.dumps([PHASES.index(phase), _milliseconds(started), _milliseconds(ended), done, standing])


def merged(properties: Mapping[str, Any], item: Any) -> Mapping[str, Any]:
    """The status in JSON, as it is by a later item. DataError for what is none."""
    try:
        phase, started, ended, done, standing = item
        activities = []
        for before, values in zip(properties["activities"], standing, strict=True):
            status, rows, blocks, size, took = [*values, 0, 0, 0, 0][:5]
            counts = {"rows": rows, "blocks": blocks, "bytes": size, "seconds": took / 1000}
            activities.append({**before, "status": STATUSES[status], **counts})
        changed = {"phase": PHASES[phase], "started": _moment(started), "ended": _moment(ended)}
        return {**properties, **changed, "progress": None if done is None else done / 1000, "activities": activities}
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise DataError("This is not a status of this job.") from error


def items(pieces: Iterable[bytes]) -> Iterator[Any]:
    """Of a body that comes in pieces, each as soon as it is whole. DataError for what is none."""
    import io

    import cbor2

    left = b""
    for piece in pieces:
        file = io.BytesIO(left + piece)
        begin, size = 0, len(left) + len(piece)
        while begin < size:
            try:
                item = cbor2.load(file)
            except cbor2.CBORDecodeEOF:
                break
            except (cbor2.CBORDecodeError, ValueError) as error:
                raise _unreadable() from error
            begin = file.tell()
            yield item
        left = file.getvalue()[begin:]
    if left:
        raise _unreadable()


def _unreadable() -> DataError:
    return DataError("The service sent a status that cannot be read.")


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6) // 1000


def _moment(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
