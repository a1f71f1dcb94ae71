"""What the resources of ``dqp`` refuse alike: they have no database behind them that could be changed or called."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from dai.drivers import CallResult, Driver, Session
from dai.errors import NotAQueryError, ParameterError
from dai.streams.cancellation import Cancellation


class Virtual(Driver):
    """``called``: what it is, with its article, as refusals begin; ``instead``: what to do, their hint."""

    called: ClassVar[str]
    instead: ClassVar[str]

    def transaction(self, *, cancellation: Cancellation, read_only: bool = False) -> AbstractContextManager[Session]:
        raise NotAQueryError(
            f"{self.called} is read-only: it has no transactions and changes nothing.", hint=self.instead
        )

    def call(
        self, procedure: str, parameters: Sequence[tuple[str, Any]], *, cancellation: Cancellation
    ) -> AbstractContextManager[CallResult]:
        raise ParameterError(f"{self.called} has no stored procedures.", hint=self.instead)

    def pool_state(self) -> dict[str, int]:
        """It has no connections to a database of its own."""
        return {"open": 0, "idle": 0, "limit": 0}
