"""A user's connection to a federation (a *lab*). A query runs when its result is read.

::

    lab = dqp.connect("federation.toml")            # runs here; a mapping of the same shape will do
    lab = dqp.connect("http://127.0.0.1:8080/lab")  # runs there
    lab.sql("select … from pg.a join maria.b on … where v > $least", least=3).to_pandas()
"""

from __future__ import annotations

import atexit
import html
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Self
from weakref import WeakSet

import pyarrow as pa

import dai
from dai.client.credentials import Personal
from dai.client.progress import Asked, Meter
from dai.client.results.choices import checked
from dai.client.results.elsewhere import UnknownName
from dai.client.results.interrupted import shortly_told
from dai.client.results.preview import SHOWN_ROWS, drawn
from dai.client.results.tabular import Tabular, checked_rows, first
from dai.client.statements import arguments
from dai.client.tracing import current
from dai.config.data_files import is_files
from dai.config.database_files import address
from dai.errors import (
    ClosedError,
    ConfigurationError,
    DaiError,
    DatabaseUnavailableError,
    NotAQueryError,
    ParameterError,
    RequestError,
    StatementError,
)
from dai.formats.values.numbers import converted
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.binding.parameters import read
from dqp.catalog.reflection import WHEN_BACK
from dqp.catalog.uploads import Uploads
from dqp.coordinator import Coordinator
from dqp.coordinator.running import Begun
from dqp.explain.explanation import Explanation
from dqp.explain.text import count as count_of
from dqp.interfaces.frames import NOTHING, other_variables, table_of, tables_named, variables_of
from dqp.interfaces.listing import Listing, Names, Place
from dqp.interfaces.uploads import RemoteUploads
from dqp.interfaces.waiting import interruptible, stopped_when_lost
from dqp.settings.loading import settings_of

NAMES_SECONDS = 5.0
_NO_TABLE = re.compile(r"no such table|no table|(?:table|relation|schema) .*does(?: not|n't) exist", re.I)
"""What databases say of ``source.table``."""
ELSEWHERE = {
    **dict.fromkeys(("query", "execute", "read_sql", "select"), "sql(…)"),
    **dict.fromkeys(("sources", "schema", "list_tables", "show_tables", "catalog"), "tables()"),
    **{each: f'sql("{each.upper()} source.table")' for each in ("describe", "summarize")},
    **dict.fromkeys(("register", "from_df", "create_table"), "upload(name, table)"),
}
"""Methods of other libraries, and what to call here instead."""


_open: WeakSet[Lab] = WeakSet()


class Lab:
    """A federation: ``federation`` is the path of a federation.toml, the same as a mapping, its settings, or the URL
    of a federation that a data service offers, which may ask for a ``token`` or a ``profile``; or one database, by its
    URL or its file (SQLite, DuckDB), whose tables are ``name.table`` by the name of the database; or files of tables.
    Services that are sources here are shown what the environment or a profile says (``dai.client.credentials``).
    ``progress`` as in ``dai.connect``: a line where somebody watches. ``numeric``: what decimal numbers are in
    results, ``double``, ``decimal`` or ``text``; None: as docs/types.md says.

    ConfigurationError for what cannot be a federation. Close it, or use it as a context manager; what is open when the
    program ends is closed then.
    """

    def __init__(
        self,
        federation: Any,
        *,
        progress: Asked = None,
        token: str | None = None,
        numeric: str | None = None,
        profile: str | None = None,
    ) -> None:
        self._progress = progress
        self._numeric = checked(numeric)
        self._running: set[Cancellation] = set()
        self._remote: Any = None
        self._uploads: Any = None
        self._coordinator: Coordinator | None = None
        self._closed = False
        self._listed: tuple[float, Names] | None = None
        at_service = isinstance(federation, str) and federation.startswith(("http://", "https://"))
        if at_service and not is_files(federation):
            self._remote = dai.connect(federation, token=token, profile=profile)
            if not hasattr(self._remote, "query"):
                raise ConfigurationError(
                    f"{federation} names no resource.", hint="It looks like http://host:port/lab; see dai resources."
                )
            self._uploads = RemoteUploads(self._remote)
        else:
            settings = settings_of(federation, token)
            self._coordinator = Coordinator(settings, person=Personal(profile))
        self._process = os.getpid()
        _open.add(self)

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of a federation that runs in this process."""
        if self._coordinator is None:
            raise ConfigurationError("This federation runs in a data service, not here.")
        return self._coordinator

    def sql(self, sql: str, /, *values: Any, numeric: str | None = None, **parameters: Any) -> Query:
        """A query, not run yet. ``$name`` in it stands for the parameter of that name, ``?`` for the next of
        ``values``; both are bound, never pasted. A list stands for several values: ``IN $names``. A name that no
        table has may be a variable of the caller that is a table (``select * from df``): of a data frame, an Arrow
        table, another query. ``numeric``: what decimal numbers are in this result, in the place of what the lab says. A
        parameter of that name is given in a mapping, which is then the only one of ``values``."""
        return self._query(sql, values, parameters, variables_of(sys._getframe(1)), numeric)

    def _query(
        self, sql: str, values: Any, parameters: Any, variables: Mapping[str, Any], numeric: str | None = None
    ) -> Query:
        if not isinstance(sql, str):
            raise ParameterError(f"SQL must be text, not {type(sql).__name__}.")
        others = other_variables(sql, variables)
        own = tables_named(sql, variables)
        return Query(self, sql, arguments(values, parameters), own, others, checked(numeric) or self._numeric)

    def explain(self, sql: str, /, *values: Any, analyze: bool = False, **parameters: Any) -> Explanation:
        """How a query would run; with ``analyze`` it runs, and how it did."""
        return self._query(sql, values, parameters, variables_of(sys._getframe(1))).explain(analyze=analyze)

    def upload(self, name: str, data: Any) -> int:
        """Makes a table of one's own known as ``name``: an Arrow table, a pandas or polars data frame, a mapping of
        columns. One of the same name before is replaced. How many rows it has.

        It is this lab's own: a federation of a service keeps it in the memory of the service, in a session of this lab,
        until the lab is closed or has asked nothing for an hour; it is then sent again with the next query.

        ParameterError for what is no table and for a name that means something else, LimitError where the service keeps
        no more.
        """
        self._check_open()
        if not isinstance(name, str):
            raise ParameterError(
                f"The name of a table must be text, not {type(name).__name__}.",
                hint="Give the name first: lab.upload('mine', frame).",
            )
        table = table_of(data)
        if self._coordinator is not None:
            self._coordinator.catalog.upload(name, table)
        else:
            self._uploads.upload(name, table)
        return int(table.num_rows)

    def tables(self) -> Listing:
        """What can be queried: source, table, estimated rows, columns with their types and comments. Views and uploads
        have no source; ``problems`` stand below. Drawn in a notebook."""
        self._check_open()
        try:
            return Listing(Query(self, "SHOW TABLES", ()).arrow(), self.problems)
        except NotAQueryError as error:
            raise self._no_federation() from error

    def _no_federation(self) -> RequestError:
        return RequestError(
            f"{self._remote.url} is a resource, not a federation.",
            hint=f'Make it a source of one: dqp.connect({{"sources": {{"data": "{self._remote.url}"}}}}).',
        )

    @property
    def problems(self) -> Mapping[str, str]:
        """Sources that are down, and what else of the configuration does not hold (replicas, views), by name; and
        why."""
        return {} if self._coordinator is None else self._coordinator.catalog.problems

    def close(self) -> None:
        """Stops the running queries, and their statements in the databases. Their readers get a ClosedError, and so
        does every later call."""
        self._closed = True
        _open.discard(self)
        for each in list(self._running):
            each.cancel(ClosedError("The lab was closed while the query ran."))
        if self._coordinator is not None:
            self._coordinator.close()
        if self._remote is not None:
            self._uploads.close()
            self._remote.close()

    @contextmanager
    def _locating(self) -> Iterator[None]:
        """Adds to the error of a source that does not answer where the source is: the user who runs the federation may
        know."""
        try:
            yield
        except DatabaseUnavailableError as error:
            places = {each.alias: each.database or each.url for each in self.coordinator.settings.sources}
            if (url := places.get(error.extra.get("source", ""))) and error.hint == WHEN_BACK:
                error.hint = f"Check the url of the source {error.extra['source']}: {address(url)}."
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("The lab is closed.", hint="dqp.connect(…) opens another one.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Place:
        """``lab.source``, ``lab.source.table`` and ``lab.source.table.column`` are queries, too."""
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return Place(self, self.names(), ()).at(name)
        except DaiError as error:
            raise UnknownName(f"A lab has no {name!r}. {error}") from error
        except AttributeError:
            if name in ELSEWHERE:
                raise UnknownName(f"A lab has no {name!r}. Write {ELSEWHERE[name]}.") from None
            if name in self.problems:
                raise UnknownName(f"The source {name!r} is not available: {self.problems[name]}") from None
            raise

    def __dir__(self) -> Iterable[str]:
        """With the sources, views and uploads, for <Tab>."""
        with suppress(DaiError):
            return [*super().__dir__(), *Place(self, self.names(), ()).names()]
        return super().__dir__()

    def names(self) -> Names:
        """The names of sources, tables and columns, some seconds old at most: what <Tab> completes."""
        if self._listed is None or time.monotonic() - self._listed[0] > NAMES_SECONDS:
            self._listed = time.monotonic(), self.tables().names()
        return self._listed[1]

    def __repr__(self) -> str:
        if self._coordinator is None:
            return f"<Lab at {self._remote.url}>"
        sources = ", ".join(self._coordinator.catalog.sources)
        return f"<Lab of {sources}>"

    def _repr_html_(self) -> str:
        """The tables, for notebooks."""
        try:
            return self.tables()._repr_html_()
        except DaiError as error:
            return f"<pre>{html.escape(str(error))}</pre>"


class Query(Tabular):
    """One query, run each time its result is asked for, except that a table once read is kept.

    Reading raises what the sources raise, named by their aliases. Ctrl-C, leaving an iteration, or dropping a stream or
    reader stops the statements in all databases.
    """

    def __init__(
        self,
        lab: Lab,
        sql: str,
        parameters: Any,
        own: Mapping[str, Any] = NOTHING,
        others: Mapping[str, str] = NOTHING,
        numeric: str | None = None,
    ) -> None:
        """``own``: tables of the caller by the names that the SQL may mean; ``others``: what else the caller calls so,
        and how it becomes a table. ``numeric`` as in ``Lab``."""
        self._lab, self.text, self.parameters, self._own, self._others = lab, sql, parameters, own, others
        self._numeric, self._decimals = numeric, numeric != "text"
        self._not_tables: dict[str, str] = {}
        self._kept: pa.Table | None = None
        self._first: tuple[pa.Schema, list[pa.RecordBatch]] | None = None

    def stream(self, blocksize: int | None = None) -> Stream:
        """The tuples as they come; ``blocksize``: batches of exactly so many rows. Close it."""
        self._lab._check_open()
        return converted(self._stream(blocksize), self._numeric)

    def _stream(self, blocksize: int | None) -> Stream:
        lab = self._lab
        if lab._coordinator is None:
            return self._ask("", blocksize, lab._progress)
        coordinator = self._over_own(lab._coordinator)

        def start(cancellation: Cancellation, begun: Begun) -> Stream:
            with lab._locating(), self._hinting():
                return coordinator.start(
                    self.text, self.parameters, cancellation=cancellation, batch_rows=blocksize, begun=begun
                )[0]

        return interruptible(start, Meter(lab._progress), lab._running)

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
            text = "\n".join(self._ask(f"{word} (FORMAT json) ", None, False).table().column(0).to_pylist())
            return replace(Explanation.of(text), sql=self.text)
        coordinator, explanations = self._over_own(lab._coordinator), list[Explanation]()

        def start(cancellation: Cancellation, begun: Begun) -> Stream:
            explanations.append(
                coordinator.explain(self.text, self.parameters, analyze=analyze, cancellation=cancellation, begun=begun)
            )
            return Stream(pa.schema([]), [])

        interruptible(start, Meter(lab._progress), lab._running).table()
        return explanations[0]

    @contextmanager
    def _hinting(self) -> Iterator[None]:
        try:
            yield
        except StatementError as error:
            others = {**self._others, **self._not_tables}
            ways = (way for name, way in others.items() if f"no table {name!r}" in error.detail)
            error.hint = next(ways, error.hint)
            raise

    def _over_own(self, coordinator: Coordinator) -> Coordinator:
        """With the caller's tables among the uploads, as they are now, where nothing else has their names."""
        own = {name: each for name, each in self._own.items() if coordinator.catalog.uploads.get(name) is None}
        if not own:
            return coordinator
        uploads, self._not_tables = Uploads(), {}
        for name, each in coordinator.catalog.uploads.tables.items():
            uploads.add(name, each)
        over = coordinator.over(uploads)
        for name, each in own.items():
            with suppress(ParameterError):  # the name is that of a source, a view, a table
                over.catalog.check_name(name)
                try:
                    table = table_of(each)
                except ParameterError as error:
                    self._not_tables[name] = f"{name} is a {type(each).__name__} here, but cannot be a table: {error}"
                    continue
                over.catalog.upload(name, table)
        return over

    def _ask(self, before: str, blocksize: int | None, progress: Asked) -> Stream:
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
            with shortly_told():
                answer: Stream = lab._uploads.with_session(ask).stream()
        except StatementError as error:
            lab._running.discard(cancellation)
            named = isinstance(error, NotAQueryError) or _NO_TABLE.search(error.detail)
            if named and lab._remote.properties.get("kind") != "federation":
                raise lab._no_federation() from None
            if error.position is not None:
                error.position = max(1, error.position - len(head))
            mended = statement.error(error)
            if (name := next((each for each in self._own if f"no table {each!r}" in error.detail), None)) is not None:
                mended.hint = f"{name} is a table here, not in the service: lab.upload({name!r}, {name}) sends it."
            raise mended from None
        except BaseException:
            lab._running.discard(cancellation)
            raise

        def batches() -> Iterator[pa.RecordBatch]:
            with shortly_told(), answer:
                yield from answer

        def ended() -> None:
            lab._running.discard(cancellation)
            answer.close()

        stream = Stream(answer.schema, batches(), ended)

        def stop() -> None:
            lab._running.discard(cancellation)
            cancellation.cancel()

        return stopped_when_lost(stream, stop, lambda: cancellation not in lab._running)

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


@atexit.register
def _close_all() -> None:
    """Closes what is open, but nothing of a process that this one was forked from. DuckDB would complain of connections
    that other threads hold."""
    for each in list(_open):
        if each._process == os.getpid():
            with suppress(Exception):
                each.close()


def _drawn(schema: pa.Schema, batches: list[pa.RecordBatch], note: str) -> str:
    columns = f"{len(schema)} column{'' if len(schema) == 1 else 's'}"
    return drawn(schema, batches, f"{note} × {columns}")
