"""A user's connection to a federation (a *lab*). A query runs when its result is read.

::

    lab = dqp.connect("federation.toml")            # runs here; a mapping of the same shape will do
    lab = dqp.connect("http://127.0.0.1:8080/lab")  # runs there
    lab.sql("select … from pg.a join maria.b on … where v > $least", least=3).to_pandas()
"""

from __future__ import annotations

import html
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Self

import pyarrow as pa

import dai
from dai.client.progress import Asked, Meter
from dai.client.results.choices import checked
from dai.client.results.numbers import converted
from dai.client.results.preview import SHOWN_ROWS, drawn
from dai.client.results.tabular import Tabular, checked_rows, first
from dai.client.tracing import current
from dai.config.database_files import address
from dai.errors import (
    ClosedError,
    ConfigurationError,
    DaiError,
    DatabaseUnavailableError,
    ParameterError,
    StatementError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import Remote
from dqp.binding.parameters import read
from dqp.coordinator import Begun, Coordinator
from dqp.execution.execution import Execution
from dqp.explain.explanation import Explanation
from dqp.explain.text import count as count_of
from dqp.interfaces.frames import table_of
from dqp.interfaces.uploads import RemoteUploads
from dqp.settings import FederationSettings, load

_WAIT = 0.1
"""Seconds between looks at whether somebody pressed Ctrl-C."""


class Lab:
    """A federation: ``federation`` is the path of a federation.toml, the same as a mapping, its settings, or the URL
    of a federation that a data service offers, which may ask for a ``token``; or one database, by its URL or its file
    (SQLite, DuckDB), whose tables are ``name.table`` by the name of the database. ``progress`` as in ``dai.connect``:
    a line where somebody watches. ``numeric``: what decimal numbers are in results, ``double``, ``decimal`` or
    ``text``; None: as docs/types.md says.

    ConfigurationError for what cannot be a federation. Close it, or use it as a context manager.
    """

    def __init__(
        self, federation: Any, *, progress: Asked = None, token: str | None = None, numeric: str | None = None
    ) -> None:
        self._progress = progress
        self._numeric = checked(numeric)
        self._running: set[Cancellation] = set()
        self._remote: Any = None
        self._uploads: Any = None
        self._coordinator: Coordinator | None = None
        self._closed = False
        if isinstance(federation, str) and federation.startswith(("http://", "https://")):
            self._remote = dai.connect(federation, token=token)
            if not hasattr(self._remote, "query"):
                raise ConfigurationError(
                    f"{federation} names no resource.", hint="It looks like http://host:port/lab; see dai resources."
                )
            self._uploads = RemoteUploads(self._remote)
        elif isinstance(federation, FederationSettings):
            self._coordinator = Coordinator(federation)
        elif isinstance(federation, str | os.PathLike):
            self._coordinator = Coordinator(load(os.fspath(federation)))
        elif isinstance(federation, Mapping):
            self._coordinator = Coordinator(load(federation))
        else:
            raise ConfigurationError(f"A federation is a path, a mapping or a URL, not {type(federation).__name__}.")

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of a federation that runs in this process."""
        if self._coordinator is None:
            raise ConfigurationError("This federation runs in a data service, not here.")
        return self._coordinator

    def sql(self, sql: str, /, *values: Any, **parameters: Any) -> Query:
        """A query, not run yet. ``$name`` in it stands for the parameter of that name, ``?`` for the next of
        ``values``; both are bound, never pasted. A list stands for several values: ``IN $names``."""
        if values and parameters:
            raise ParameterError("Give the parameters either by place or by name.")
        return Query(self, sql, values or parameters)

    def explain(self, sql: str, /, *values: Any, analyze: bool = False, **parameters: Any) -> Explanation:
        """How a query would run; with ``analyze`` it runs, and how it did."""
        return self.sql(sql, *values, **parameters).explain(analyze=analyze)

    def upload(self, name: str, data: Any) -> int:
        """Makes a table of one's own known as ``name``: an Arrow table, a pandas or polars data frame, a mapping of
        columns. One of the same name before is replaced. How many rows it has.

        It is this lab's own: a federation of a service keeps it in the memory of the service, in a session of this lab,
        until the lab is closed or has asked nothing for an hour; it is then sent again with the next query.

        ParameterError for what is no table and for a name that means something else, LimitError where the service keeps
        no more.
        """
        self._check_open()
        table = table_of(data)
        if self._coordinator is not None:
            self._coordinator.catalog.upload(name, table)
        else:
            self._uploads.upload(name, table)
        return int(table.num_rows)

    def tables(self) -> pa.Table:
        """What can be queried: source, table, estimated rows, columns. Views and uploads have no source."""
        self._check_open()
        if self._coordinator is None:
            listed = [
                (each["schema"], each["name"], each["rows"], each["columns"])
                for each in self._remote.schema(fresh=True)
            ]
            rows = [
                {"source": alias, "table": name, "rows": rows, "columns": [column["name"] for column in columns]}
                for alias, name, rows, columns in listed
            ]
        else:
            catalog = self._coordinator.catalog
            rows = [
                {
                    "source": each.source,
                    "table": each.name if each.schema is None else f"{each.schema}.{each.name}",
                    "rows": int(each.rows),
                    "columns": [c.name for c in each.columns],
                }
                for each in catalog.tables()
            ]
            rows += [
                {"source": None, "table": name, "rows": None, "columns": [each for each, _ in shape]}
                for name, shape in catalog.shapes_of_views().items()
            ]
        uploads = self._uploads.tables if self._coordinator is None else self._coordinator.catalog.uploads.tables
        rows += [
            {"source": None, "table": name, "rows": table.num_rows, "columns": table.column_names}
            for name, table in uploads.items()
        ]
        kinds = [
            ("source", pa.string()),
            ("table", pa.string()),
            ("rows", pa.int64()),
            ("columns", pa.list_(pa.string())),
        ]
        return pa.Table.from_pylist(rows, pa.schema(kinds))

    @property
    def problems(self) -> Mapping[str, str]:
        """Sources that are down, and what else of the configuration does not hold (replicas, views), by name; and
        why."""
        return {} if self._coordinator is None else self._coordinator.catalog.problems

    def close(self) -> None:
        """Stops the running queries, and their statements in the databases. Their readers get a ClosedError, and so
        does every later call."""
        self._closed = True
        for each in list(self._running):
            each.cancel(ClosedError("The lab was closed while the query ran."))
        if self._coordinator is not None:
            self._coordinator.close()
        if self._remote is not None:
            self._uploads.close()
            self._remote.close()

    @contextmanager
    def _locating(self) -> Iterator[None]:
        """Who runs a federation may know where a source is that is away."""
        try:
            yield
        except DatabaseUnavailableError as error:
            places = {each.alias: each.database or each.url for each in self.coordinator.settings.sources}
            if url := places.get(error.extra.get("source", "")):
                error.hint = f"Check the url of the source {error.extra['source']}: {address(url)}."
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("The lab is closed.", hint="dqp.connect(…) makes another one.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._coordinator is None:
            return f"<Lab at {self._remote.url}>"
        sources = ", ".join(self._coordinator.catalog.sources)
        return f"<Lab of {sources}>"

    def _repr_html_(self) -> str:
        """The tables, for notebooks."""
        try:
            table = self.tables()
        except DaiError as error:
            return f"<pre>{html.escape(str(error))}</pre>"
        problems = [f"{name}: {why}" for name, why in self.problems.items()]
        more = f"<pre>{html.escape(chr(10).join(problems))}</pre>" if problems else ""
        return _drawn(table.schema, table.to_batches(), f"{table.num_rows:,} tables") + more


class Query(Tabular):
    """One query, run each time its result is asked for, except that a table once read is kept.

    Reading raises what the sources raise, named by their aliases. Ctrl-C, leaving an iteration, or dropping a stream or
    reader stops the statements in all databases.
    """

    def __init__(self, lab: Lab, sql: str, parameters: Any) -> None:
        self._lab, self.text, self.parameters = lab, sql, parameters
        self._decimals = lab._numeric != "text"
        self._kept: pa.Table | None = None
        self._first: tuple[pa.Schema, list[pa.RecordBatch]] | None = None

    def stream(self, blocksize: int | None = None) -> Stream:
        """The tuples as they come; ``blocksize``: batches of exactly so many rows. Close it."""
        self._lab._check_open()
        return converted(self._stream(blocksize), self._lab._numeric)

    def _stream(self, blocksize: int | None) -> Stream:
        lab = self._lab
        if lab._coordinator is None:
            return self._asked("", blocksize, lab._progress)
        coordinator = lab._coordinator

        def start(cancellation: Cancellation, begun: Begun) -> Stream:
            with lab._locating():
                return coordinator.start(
                    self.text, self.parameters, cancellation=cancellation, batch_rows=blocksize, begun=begun
                )[0]

        return _interruptible(start, Meter(lab._progress), lab._running)

    def blocks(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Record batches of ``rows`` rows, the last one shorter, as they come."""
        if rows < 1:
            raise ParameterError(f"A block has at least one row, not {rows}.")
        with self.stream(rows) as stream:
            yield from stream

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with self.stream() as stream:
            yield from stream

    def reader(self) -> pa.RecordBatchReader:
        """For libraries that take an Arrow reader (DuckDB, polars, datasets …); reads as it is read."""
        return self.stream().reader()

    def arrow(self) -> pa.Table:
        """All of it as one table in memory; asked for again, the same table."""
        if self._kept is None:
            with self.stream() as stream:
                self._kept = stream.table()
        return self._kept

    def _length(self) -> int | None:
        return None if self._kept is None else self._kept.num_rows

    def head(self, rows: int = SHOWN_ROWS) -> pa.Table:
        if self._kept is not None:
            return self._kept.slice(0, checked_rows(rows))
        with self.stream() as stream:
            return first(stream, rows)

    def look(self) -> Query:
        """Reads the first rows, which a notebook then shows; where they are all, they are kept as by ``arrow``."""
        if self._kept is None and self._first is None:
            batches: list[pa.RecordBatch] = []
            count = 0
            with self.stream() as stream:
                for batch in stream:
                    batches.append(batch)
                    count += batch.num_rows
                    if count > SHOWN_ROWS:
                        rows = pa.Table.from_batches(batches).slice(0, SHOWN_ROWS)
                        self._first = stream.schema, rows.to_batches()
                        return self
            self._kept = pa.Table.from_batches(batches, stream.schema)
        return self

    def explain(self, *, analyze: bool = False) -> Explanation:
        """How it would run; with ``analyze`` it runs to its end, and how it did. Drawn in a notebook."""
        lab = self._lab
        lab._check_open()
        if lab._coordinator is None:
            word = "EXPLAIN ANALYZE" if analyze else "EXPLAIN"
            text = "\n".join(self._asked(f"{word} (FORMAT json) ", None, False).table().column(0).to_pylist())
            return replace(Explanation.of(text), sql=self.text)
        coordinator, explanations = lab._coordinator, []

        def start(cancellation: Cancellation, begun: Begun) -> Stream:
            explanations.append(
                coordinator.explain(self.text, self.parameters, analyze=analyze, cancellation=cancellation, begun=begun)
            )
            return Stream(pa.schema([]), [])

        _interruptible(start, Meter(lab._progress), lab._running).table()
        return explanations[0]

    def _asked(self, before: str, blocksize: int | None, progress: Asked) -> Stream:
        """The answer of the service; parameters go as the literals that stand for them."""
        statement = read(self.text, self.parameters, most=None)
        head = before or ("" if statement.kind == "query" else f"{statement.kind} (format {statement.form})")
        lab, cancellation = self._lab, Cancellation(current())
        lab._running.add(cancellation)

        def ask(session: str | None) -> Any:
            return lab._remote.query(
                head + statement.text,
                blocksize=blocksize,
                session=session,
                progress=progress,
                cancellation=cancellation,
            )

        try:
            answer: Stream = lab._uploads.asked(ask).stream()
        except StatementError as error:
            lab._running.discard(cancellation)
            if error.position is not None:
                error.position = max(1, error.position - len(head))
            raise statement.error(error) from error
        except BaseException:
            lab._running.discard(cancellation)
            raise
        stream = Stream(answer.schema, answer, lambda: lab._running.discard(cancellation))

        def stop() -> None:
            lab._running.discard(cancellation)
            cancellation.cancel()

        return _stopped_when_lost(stream, stop, lambda: cancellation not in lab._running)

    def __repr__(self) -> str:
        state = "not read yet" if self._kept is None else count_of(self._kept.num_rows)
        first = " ".join(self.text.split())
        return f"<Query: {first if len(first) <= 60 else first[:59] + '…'}: {state}>"

    def _repr_html_(self) -> str:
        """Names, types and the first rows: what a notebook shows."""
        try:
            self.look()
        except DaiError as error:
            return f"<pre>{html.escape(str(error))}</pre>"
        if self._kept is not None:
            return _drawn(self._kept.schema, self._kept.to_batches(), count_of(self._kept.num_rows))
        assert self._first is not None
        return _drawn(*self._first, "the first rows; .arrow() reads all")


def _interruptible(start: Callable[[Cancellation, Begun], Stream], meter: Meter, running: set[Cancellation]) -> Stream:
    """The stream that ``start`` gives, read by a thread, so that the caller's can be interrupted while it waits.
    ``running`` has its cancellation meanwhile."""
    cancellation = Cancellation(current())
    running.add(cancellation)
    opened: queue.Queue[Any] = queue.Queue(1)
    batches: queue.Queue[Any] = queue.Queue(2)
    stopped = threading.Event()
    begun: list[Execution] = []

    def put(what: Any) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                batches.put(what, timeout=_WAIT)
                return

    def reading() -> None:
        try:
            stream = start(cancellation, begun.append)
        except BaseException as error:  # noqa: BLE001
            running.discard(cancellation)
            opened.put(cancellation.cause or error)
            return
        opened.put(stream.schema)
        try:
            with stream:
                for batch in stream:
                    put(batch)
                    if stopped.is_set():
                        return
            put(None)
        except BaseException as error:  # noqa: BLE001
            put(cancellation.cause or error)
        finally:
            running.discard(cancellation)

    thread = threading.Thread(target=reading, name="dqp-query", daemon=True)
    thread.start()

    def stop() -> None:
        stopped.set()
        cancellation.cancel()
        thread.join()
        meter.update(0, 0, finished=True)

    def waited(where: queue.Queue[Any]) -> Any:
        try:
            while True:
                with suppress(queue.Empty):
                    item = where.get(timeout=_WAIT)
                    if isinstance(item, BaseException):
                        raise item
                    return item
                if begun:
                    meter.update(rows, _fetched(begun[0]), note=lambda: _going_on(begun[0]))
        except BaseException:
            stop()
            raise

    rows = 0
    schema = waited(opened)

    def batches_read() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        while (batch := waited(batches)) is not None:
            rows += batch.num_rows
            yield batch
        thread.join()
        meter.update(rows, _fetched(begun[0]) if begun else 0, finished=True)

    return _stopped_when_lost(Stream(schema, batches_read(), stop), stop, lambda: not thread.is_alive())


def _stopped_when_lost(stream: Stream, stop: Callable[[], None], over: Callable[[], bool]) -> Stream:
    """The stream; where nobody has it any more before its query is ``over`` (a reader that was only made), that is
    stopped. In a thread: whoever drops it last may be in the middle of anything."""

    def lost() -> None:
        if over():
            return
        threading.Thread(target=stop, name="dqp-stop", daemon=True).start()

    weakref.finalize(stream, lost).atexit = False
    return stream


def _fetched(execution: Execution) -> int:
    """Bytes that came from the sources so far."""
    return sum(each.bytes for each in execution.measurements() if isinstance(each.key, Remote))


def _going_on(execution: Execution) -> str:
    """What has not ended yet: ``pg 1,200,000 rows, maria 0 rows``."""
    parts = [each for each in execution.parts() if each.state in ("waiting", "running")]
    return ", ".join(f"{each.name} {each.rows:,} rows" for each in parts)


def _drawn(schema: pa.Schema, batches: list[pa.RecordBatch], note: str) -> str:
    columns = f"{len(schema)} column{'' if len(schema) == 1 else 's'}"
    return drawn(schema, batches, f"{note} × {columns}")
