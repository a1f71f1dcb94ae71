"""An input of a fragment that threads fetch, as a stream that DuckDB reads when it needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

from dai.errors import InternalError
from dai.streams.stream import Stream
from dai.streams.waiting import Condition
from dqp.errors import ChangedError
from dqp.execution.buffer import Buffer
from dqp.execution.execution import Execution, Measure

OTHER_TYPES = "Two parts of one input have columns of different types."
OTHER_COLUMNS = "A source returned a different number of columns than its statement selects."


class Arriving:
    """An input that threads of the execution fetch, a thread for each of ``fetches``, into a bounded buffer, which
    spills to disk while DuckDB does not read it yet. ``names``: names of the columns; None leaves them as they arrive.
    ``thread``: name of the threads."""

    def __init__(
        self,
        fetches: Sequence[Callable[[Arriving], None]],
        names: Sequence[str] | None,
        execution: Execution,
        measure: Measure,
        thread: str = "dqp-arriving",
    ) -> None:
        self._names, self._cancellation, self._measure = names, execution.cancellation, measure
        capacity = execution.options.buffer_bytes
        self._buffer = Buffer(capacity, len(fetches), execution.directory, execution.cancellation, measure)
        execution.at_end(self._buffer.close)
        self._known = Condition()
        self._schema: pa.Schema | None = None
        self._streamed = False
        for number, each in enumerate(fetches):
            execution.start(partial(each, self), f"{thread}-{number}", measure)

    def take(self, stream: Stream, touched: Callable[[], None] = lambda: None) -> None:
        """All rows of one producer, which has ended then; ``touched`` is called when the first have come."""
        schema = self._schema_of(stream.schema)
        for batch in stream:
            if batch.num_rows:
                self._buffer.put(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
                touched()
        self._buffer.finish()

    def _schema_of(self, schema: pa.Schema) -> pa.Schema:
        """The schema of all producers: that of the one that answered first."""
        if self._names is not None:
            if len(schema) != len(self._names):
                raise InternalError(OTHER_COLUMNS)
            schema = pa.schema(list(zip(self._names, schema.types, strict=True)))
        with self._known:
            if self._schema is None:
                self._schema = schema
                self._known.notify_all()
            elif not self._schema.equals(schema):
                raise ChangedError(OTHER_TYPES, hint="Run the query again.")
            return self._schema

    @property
    def schema(self) -> pa.Schema:
        """Waits until a producer has begun: a source has accepted the statement."""
        with self._known, self._measure.waiting():
            self._known.wait_for(lambda: self._schema is not None, self._cancellation)
            return self._schema

    @property
    def arrived(self) -> bool:
        """Whether all rows are here."""
        return self._buffer.complete

    def whole(self, limit: int) -> pa.Table | None:
        """All rows where they take at most ``limit`` bytes: waits for them. None where they take more; then they are
        still there to be streamed."""
        batches = self._buffer.whole(limit)
        return None if batches is None else pa.Table.from_batches(batches, self.schema)

    def stream(self) -> Stream:
        """The rows as they arrive, once: raises InternalError the second time, when rows would be missing."""
        with self._known:
            if self._streamed:
                raise InternalError("An input was to be read a second time.")
            self._streamed = True
        return Stream(self.schema, iter(self._buffer))
