"""The statements that one attempt of a query sends to sources: each once, however often it occurs in the plan."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dai.streams.stream import Stream
from dqp.algebra.operators import Remote
from dqp.catalog.catalog import Catalog
from dqp.execution.execution import Execution
from dqp.execution.fetch import Lost, Reading
from dqp.execution.fragment import Begun
from dqp.execution.leaves import statement_key


class Readings:
    """The remote subtrees of one attempt, each fetched once; those with equal statements together."""

    def __init__(self, catalog: Catalog, execution: Execution, lost: Lost) -> None:
        self._catalog, self._execution, self.lost = catalog, execution, lost
        self._taken: set[Remote] = set()
        self.begun: dict[Remote, Reading | Renamed] = {}

    def read(self, remote: Remote) -> Reading | Renamed:
        """Begins to fetch where that has not begun."""
        if remote not in self.begun:
            same = self._same(remote)
            self.begun[remote] = self._begin(remote) if same is None else Renamed(same, remote.columns)
        return self.begun[remote]

    def take(self, remote: Remote) -> Reading | Renamed:
        """As ``read``, for streaming: if another reader has taken the rows, they are fetched again."""
        reading = self.read(remote)
        if reading.remote in self._taken:
            return self._begin(remote)
        self._taken.add(reading.remote)
        return reading

    def begin(self, _: str, remote: Remote) -> Begun:
        """As an input of a fragment."""
        reading = self.take(remote)
        return Begun(reading, reading.columns)

    def _begin(self, remote: Remote) -> Reading:
        return Reading(remote, self._catalog, self._execution, self.lost)

    def _same(self, remote: Remote) -> Reading | None:
        """The reading with an equal statement, if there is one."""
        same_source = (each for each in self.begun.values() if each.remote.source == remote.source)
        for each in same_source:
            if isinstance(each, Reading) and statement_key(each.remote, self._catalog) == statement_key(
                remote, self._catalog
            ):
                return each
        return None


class Renamed:
    """The rows of a reading, their columns called as those of an equal statement."""

    def __init__(self, reading: Reading, names: Sequence[str]) -> None:
        self._reading, self._names = reading, list(names)
        self.remote = reading.remote
        self.columns = tuple((name, type) for name, (_, type) in zip(names, reading.columns, strict=True))

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(zip(self._names, self._reading.schema.types, strict=True)))

    @property
    def arrived(self) -> bool:
        return self._reading.arrived

    def whole(self, limit: int) -> pa.Table | None:
        table = self._reading.whole(limit)
        return None if table is None else table.rename_columns(self._names)

    def stream(self) -> Stream:
        stream, schema = self._reading.stream(), self.schema
        return stream.map(lambda batch: pa.RecordBatch.from_arrays(batch.columns, schema=schema), schema)
