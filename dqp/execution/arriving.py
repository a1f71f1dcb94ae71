"""What other processes send to a fragment, as a stream that DuckDB reads when its turn comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

from dai.errors import DataError, InternalError
from dai.streams.stream import Stream
from dai.streams.waiting import Condition
from dqp.execution.buffer import Buffer
from dqp.execution.execution import Execution, Measure


class Arriving:
    """An input that threads of the execution fetch, into a bounded buffer: what cannot wait in memory is spooled while
    DuckDB does not read it yet. ``names``: of the columns, as they come unless given."""

    def __init__(
        self,
        fetches: Sequence[Callable[[Arriving], None]],
        names: Sequence[str] | None,
        execution: Execution,
        measure: Measure,
    ) -> None:
        self._names, self._cancellation, self._measure = names, execution.cancellation, measure
        capacity = execution.options.buffer_bytes
        self._buffer = Buffer(capacity, len(fetches), execution.directory, execution.cancellation, measure)
        execution.at_end(self._buffer.close)
        self._known = Condition()
        self._schema: pa.Schema | None = None
        for each in fetches:
            execution.start(partial(self._run, each), "dqp-arriving")

    def _run(self, fetch: Callable[[Arriving], None]) -> None:
        fetch(self)
        self._buffer.finish()

    def take(self, stream: Stream, touched: Callable[[], None] = lambda: None) -> None:
        """All rows of one producer; ``touched`` is called when the first have come."""
        given = stream.schema
        if self._names is not None:
            if len(given) != len(self._names):
                raise InternalError("A source gave another number of columns than its statement has.")
            given = pa.schema(list(zip(self._names, given.types, strict=True)))
        with self._known:
            if self._schema is None:
                self._schema = given
                self._known.notify_all()
            elif not self._schema.equals(given):
                raise DataError("Two parts of one input have columns of different types: has the table been changed?")
        for batch in stream:
            if batch.num_rows:
                self._buffer.put(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
                touched()

    def stream(self) -> Stream:
        """The rows as they arrive; waits until the first producer has begun."""
        with self._known, self._measure.waiting():
            self._known.wait_for(lambda: self._schema is not None, self._cancellation)
        return Stream(self._schema, iter(self._buffer))
