"""Why answers broke off: their status line had left, so the problem is kept, to be asked for afterwards."""

from __future__ import annotations

from collections import OrderedDict

import orjson

from dai.errors import DETAIL, DaiError, InternalError

KEPT = 1000
"""Problems at most; the oldest goes first."""


class Problems:
    """Problems by correlation id and owner, because callers may choose the id; used on the event loop alone."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def keep(self, id: str, error: BaseException, rows: int, owner: str = "") -> None:
        """``rows`` came before it; ``owner``: who asked."""
        if not isinstance(error, DaiError):
            error = InternalError("The service failed; its log has the cause under this id.")
        problem = {"detail": error.title, "rows": rows, **error.problem(id)}
        if "rows" not in error.extra:  # a response document has said it
            problem["detail"] = f"{problem['detail'][:DETAIL]} {rows:,} rows came before."
        self._kept.pop((id, owner), None)
        self._kept[id, owner] = orjson.dumps(problem, default=str)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def of(self, id: str) -> list[tuple[bytes, str]]:
        """The problem documents of that id, each with its owner."""
        return [(problem, owner) for (known, owner), problem in self._kept.items() if known == id]
