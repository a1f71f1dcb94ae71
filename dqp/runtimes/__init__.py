"""Where a plan runs: in this process, on evaluator services, on a Ray cluster.

A runtime is given an optimised tree, whose leaves are statements of sources and tuples at hand, and gives its rows. All
of them keep the same promises: no row is returned twice and no answer is cut short; a source that is lost before a row
was returned is replaced if there is a replica; closing the stream, or cancelling, leaves nothing behind anywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dai.errors import ConfigurationError
from dai.plugins import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from dai.streams.stream import Stream
    from dqp.algebra.operators import Operator, Remote
    from dqp.catalog.catalog import Catalog
    from dqp.execution.execution import Execution
    from dqp.execution.service_calls import Operation
    from dqp.planning.context import Context
    from dqp.planning.distribution.placement import Placement
    from dqp.settings import FederationSettings

RUNTIMES = Table(
    "runtime",
    "dqp.runtimes",
    {
        "local": "dqp.runtimes.local:Local",
        "http": "dqp.runtimes.service:Service",
        "https": "dqp.runtimes.service:Service",
        "ray": "dqp.runtimes.ray:Ray",
        "registry": "dqp.runtimes.discovered:DiscoveredEvaluators",
    },
    extras={"ray": "ray"},
)
"""By the scheme of the addresses in a federation's ``evaluators``; ``local`` is all of its address, and ``registry``
stands for addresses that a registry names."""


class Runtime(ABC):
    """Thread-safe."""

    @abstractmethod
    def run(
        self,
        tree: Operator,
        names: Sequence[str],
        types: Sequence[str],
        context: Context | None,
        execution: Execution,
    ) -> Stream:
        """The rows of ``tree``: its columns are called ``names`` (which may repeat) and cast to the DuckDB ``types``.
        ``context``: of the planning, to plan again with what was learnt; None: the tree is run as it is.

        Sources have accepted their statements when this returns. Closing the stream stops the execution's attempt.
        Raises what the sources raise, named by their aliases, and what ``dqp.execution.engine.Engine.run`` raises.
        """

    @abstractmethod
    def fetch(self, remote: Remote, execution: Execution) -> pa.Table:
        """The rows of a small remote subtree that is read before the query begins."""

    @abstractmethod
    def placed(self, tree: Operator, context: Context) -> Placement:
        """Where ``run`` would run the tree, by what is known now; sends no statement. What is learnt while a query runs
        may change the places; then its remarks say so."""

    @abstractmethod
    def close(self) -> None:
        """Ends what runs and frees what the runtime holds."""


def runtime_of(
    settings: FederationSettings, catalog: Catalog, operations: Mapping[str, Operation] | None = None
) -> Runtime:
    """The runtime that a federation's ``evaluators`` name."""
    kinds = {RUNTIMES.named(each.partition(":")[0]) for each in settings.evaluators}
    if len(kinds) > 1:
        raise ConfigurationError(
            f"evaluators: all of a federation must be of one kind, not {', '.join(settings.evaluators)}."
        )
    runtime: Runtime = kinds.pop()(catalog, settings, operations=operations)
    return runtime
