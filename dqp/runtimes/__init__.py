"""Where a plan runs: in this process, on evaluator services, on a Ray cluster.

A runtime is given an optimised tree, whose leaves are statements of sources and tuples at hand, and gives its rows. All
of them keep the same promises: nothing is handed out twice or cut short; a source that is lost before a row was handed
out is replaced where there is a replica; closing the stream, or cancelling, leaves nothing behind anywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dai.loading import Table

if TYPE_CHECKING:
    from dai.stream import Stream
    from dqp.execution import Execution
    from dqp.operators import Operator
    from dqp.rules import Context

RUNTIMES = Table("runtime", "dqp.runtimes", {"local": "dqp.runtimes.local:Local"})


class Runtime(ABC):
    """Thread-safe."""

    @abstractmethod
    def run(
        self,
        tree: Operator,
        names: Sequence[str],
        types: Sequence[str],
        execution: Execution,
        *,
        context: Context | None = None,
        batch_rows: int | None = None,
    ) -> Stream:
        """The rows of ``tree``: its columns are called ``names`` (which may repeat) and cast to the DuckDB ``types``.
        ``context``: of the planning, to plan again with what was learnt; None: the tree is run as it is.
        ``batch_rows``: batches of exactly so many rows, the last one shorter.

        Sources have accepted their statements when this returns. The execution is closed with the stream.
        Raises what the sources raise, named by their aliases, and what ``dqp.fragment.Engine.run`` raises.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends what runs and frees what the runtime holds."""
