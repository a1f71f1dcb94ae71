"""The limits of documents and results, from the configuration."""

from __future__ import annotations

from dai.config import LimitsConfig
from dai.errors import LimitError
from dai.perform.parser import DocumentLimits


def document_limits(limits: LimitsConfig) -> DocumentLimits:
    """The limits of a perform document, from the configuration."""
    return DocumentLimits(bytes=limits.document_bytes, depth=limits.document_depth, activities=limits.activities)


def exceeded(limits: LimitsConfig, rows: int, size: int) -> LimitError | None:
    """The error for a result of so many rows and bytes; None if it is within the limits."""
    for most, actual, what in ((limits.rows, rows, "rows"), (limits.bytes, size, "bytes")):
        if most and actual > most:
            return LimitError(
                f"The result has more than the {most:,} {what} allowed (limits.{what} of this service).",
                hint="Request less (LIMIT, fewer columns) or in parts; or pull it through an outputStream, which has "
                f"no such limit; or ask the operator of the service for a higher limits.{what}.",
                limit=f"limits.{what}",
            )
    return None
