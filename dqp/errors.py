"""The errors that distributed queries add to the tree of ``dai.errors``.

::

    DaiError
    ├─ EvaluatorLostError       evaluator-lost          503   an evaluator went away; its work may run elsewhere
    ├─ DeniedError
    │  └─ NoTokenError          denied                  403   no token of a source in exchange for the caller's
    ├─ ChangedError             changed                 409   columns have other types than when the query was planned
    │  └─ OutdatedError         changed                 409   a table has other statistics than when it was planned
    └─ OperationError           operation-failed        502   a function that calls a service or Python failed

``dai.errors.by_code`` finds them once this module is imported.
"""

from __future__ import annotations

from dai.errors import DaiError, DeniedError


class EvaluatorLostError(DaiError):
    """An evaluator died, stopped answering or shut down while its tuples were still wanted.

    What it had sent until then is incomplete. The work may start again as a new attempt, here or on another evaluator,
    as long as no row of it has been returned.
    """

    code, status, title = "evaluator-lost", 503, "An evaluator went away"


class NoTokenError(DeniedError):
    """The issuer does not exchange this caller's token for one for the source."""


class ChangedError(DaiError):
    """A source delivers other types than its tables had when the query was planned. As long as no row was returned, the
    query is planned again.

    ``extra["columns"]``: for each such column its schema, table and name, and the Arrow type that it has now.
    """

    code, status, title = "changed", 409, "A table was changed"


class OutdatedError(ChangedError):
    """A sample that arrived late contradicts the statistics with which the query was planned. No row was returned, so
    the query is planned again."""


class OperationError(DaiError):
    """An operation call failed for good: the query ends with the name of the function, and no answer."""

    code, status, title = "operation-failed", 502, "An operation call failed"
