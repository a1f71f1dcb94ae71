"""Two databases with a data service each, a federation over both, and points of its queries at which to break them."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dai.drivers import NO_TABLES
from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.catalog.sources.local import DescribedSource
from dqp.catalog.sources.source import Source
from dqp.coordinator import Coordinator
from dqp.settings import load
from tests.faults.databases import Database, maria_database, postgres_database
from tests.processes import ServiceProcess, until
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer

ROWS = 40_000
"""Of ``big``: more bytes than the sockets between a database and us hold."""
WIDTH = 1_000
KEYS = 1_000
TIMES = 8
"""As many rows as ``big`` has the view ``wide``."""
ON_THE_WAY = 32 << 20
"""Bytes of a query on their way through HTTP, DuckDB's pipelines and to who asked, and of what allocators keep."""
SOON = 120.0
"""Seconds after which an answer does not come any more."""
T = TypeVar("T")

_NUMBERS = " union all ".join(f"select {each} as n" for each in range(TIMES))
_WIDE = f"create view wide as select id * {TIMES} + n as id, n, k, s from big, ({_NUMBERS}) as numbers"
POSTGRES_CONTENT = (
    f"create table big as select i as id, i % {KEYS} as k, repeat('x', {WIDTH}) as s from generate_series(1, {ROWS}) i",
    "alter table big add primary key (id)",
    f"create table small as select i as id, 'name ' || i as name from generate_series(1, {KEYS}) i",
    "alter table small add primary key (id)",
    _WIDE,
    # Behind the others: where the scan of a table begins is PostgreSQL's choice (synchronize_seqscans).
    "create view big_unending as select id, k, s from big union all select 0, 1, 'x' where pg_sleep(600) is not null",
    "analyze",
)
MARIA_CONTENT = (
    "create table big (id int primary key, k int, s varchar(1000) character set ascii)",
    f"insert into big select seq, seq % {KEYS}, repeat('x', {WIDTH}) from seq_1_to_{ROWS}",
    "create table small (id int primary key, name varchar(20))",
    f"insert into small select seq, concat('name ', seq) from seq_1_to_{KEYS}",
    _WIDE,
    f"create view big_unending as select id, k, s from big where id <> {ROWS - 1} or sleep(600) = 2",
    "analyze table big, small persistent for all",
)


@dataclass(frozen=True)
class Side:
    """A database behind a data service."""

    alias: str
    database: Database
    service: ServiceProcess

    @property
    def url(self) -> str:
        return f"{self.service.url}/resources/{self.alias}"

    def begin(self) -> None:
        """Starts what does not run."""
        if self.database.server.process is None:
            self.database.server.start()
        if self.service.process is None:
            self.service.start()

    @property
    def idle(self) -> bool:
        """Nothing runs for us, where it lives."""
        alive = self.database.server.process is not None
        return not (alive and self.database.at_work) and (self.service.process is None or self.service.at_rest())


@contextmanager
def two_sides(directory: Path) -> Iterator[Mapping[str, Side]]:
    """By alias, both databases with their tables, and a service in front of each that does not run yet."""
    with PostgresServer() as postgres, MariaServer() as mariadb, ExitStack() as stack:
        by_name = {}
        for alias, database, content in (
            ("pg", postgres_database(postgres), POSTGRES_CONTENT),
            ("maria", maria_database(mariadb), MARIA_CONTENT),
        ):
            database.run(*content)
            place = directory / alias
            place.mkdir()
            service = ServiceProcess(place, {alias: database.server.url})
            stack.callback(service.stop)
            by_name[alias] = Side(alias, database, service)
        yield by_name


def resting(sides: Mapping[str, Side]) -> bool:
    return all(each.idle for each in sides.values())


@dataclass(frozen=True)
class Query:
    """``right`` says whether a table is the whole answer."""

    sql: str
    right: Callable[[pa.Table], bool]


def _rows(count: int, total: int) -> Callable[[pa.Table], bool]:
    return lambda table: table.num_rows == count and pc.sum(table["id"]).as_py() == total


_JOINED = [each for each in range(1, ROWS + 1) if each % KEYS]


def streamed(probe: str, build: str) -> Query:
    """Gives its rows while the probe side's large table is read."""
    sql = f"select b.id, b.s, s.name from {probe}.big b join {build}.small s on b.k = s.id"
    return Query(sql, _rows(len(_JOINED), sum(_JOINED)))


def reduced(probe: str, build: str) -> Query:
    """The probe side's statement has a filter of the keys that the build side has."""
    sql = f"select b.id, s.name from {probe}.big b join {build}.small s on b.k = s.id where s.name like 'name 1%0'"
    keys = tuple(each for each in range(1, KEYS) if str(each)[0] == "1" and str(each)[-1] == "0")
    actual = [each for each in _JOINED if each % KEYS in keys]
    return Query(sql, _rows(len(actual), sum(actual)))


def large(probe: str, build: str) -> Query:
    """Both sides are large: DuckDB joins them before there is a row."""
    sql = f"select count(*) as n, sum(length(a.s || b.s)) as s from {probe}.big a join {build}.big b on a.id = b.id"
    return Query(sql, lambda table: table.to_pydict() == {"n": [ROWS], "s": [2 * ROWS * WIDTH]})


def wide(probe: str, build: str) -> Query:
    """As ``large``, over more rows than fit into little memory."""
    sql = f"select count(*) as n, sum(length(a.s || b.s)) as s from {probe}.wide a join {build}.wide b on a.id = b.id"
    return Query(sql, lambda table: table.to_pydict() == {"n": [TIMES * ROWS], "s": [2 * TIMES * ROWS * WIDTH]})


def unending(probe: str, build: str) -> Query:
    """As ``streamed``, of what does not come to its end for ten minutes, however fast the machine and large its
    buffers: no answer is right."""
    sql = f"select b.id, b.s, s.name from {probe}.big_unending b join {build}.small s on b.k = s.id"
    return Query(sql, lambda _: False)


class Watched(DescribedSource):
    """A source whose statements are seen before they are sent, and whose rows are counted as they arrive."""

    def __init__(
        self,
        inner: Source,
        asked: Callable[[str], None] | None = None,
        passed: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(inner.alias, inner.dialect, ())
        self._inner, self._asked, self._passed = inner, asked, passed

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        if self._asked is not None:
            self._asked(sql)
        stream = self._inner.query(sql, parameters, cancellation=cancellation, tables=tables)
        return Stream(stream.schema, self._counted(stream), stream.close)

    def _counted(self, stream: Stream) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in stream:
            rows += batch.num_rows
            if self._passed is not None:
                self._passed(rows)
            yield batch


class Once:
    """Does its work the first time that its condition holds."""

    def __init__(self, work: Callable[[], object], condition: Callable[[Any], bool] = lambda _: True) -> None:
        self._work, self._condition = work, condition
        self.done = False

    def __call__(self, value: Any = None) -> None:
        if not self.done and self._condition(value):
            self.done = True
            self._work()


@contextmanager
def federation(urls: Mapping[str, Any], **settings: Any) -> Iterator[Coordinator]:
    """A coordinator in this process; when it ends nothing of its queries may be left here."""
    sources = {alias: {"url": url} if isinstance(url, str) else url for alias, url in urls.items()}
    coordinator = Coordinator(load({"sources": sources, **settings}))
    try:
        yield coordinator
        until(lambda: not threads(), SOON)
        assert not leftovers(), leftovers()
    finally:
        coordinator.close()


def watch(coordinator: Coordinator, alias: str, **hooks: Any) -> None:
    sources: dict[str, Source] = coordinator.catalog.sources  # type: ignore[assignment]
    sources[alias] = Watched(sources[alias], **hooks)


def threads() -> list[str]:
    names = [each.name for each in threading.enumerate()]
    return [each for each in names if each.startswith("dqp-") and not each.startswith("dqp-catalog")]


def leftovers() -> list[Path]:
    """Temporary files of queries, and directories but for the one of DuckDB's."""
    top = Path(tempfile.gettempdir())
    # the tests' own server of forks keeps its socket in pymp-…
    actual = (each for each in top.rglob("*") if not each.relative_to(top).parts[0].startswith("pymp-"))
    return [
        each for each in actual if not each.name.startswith(("dqp-spill", "duckdb_temp")) or each.name.endswith(".tmp")
    ]


def soon(work: Callable[[], T]) -> T:
    """What ``work`` gives or raises, within seconds; else the test fails."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(work).result(SOON)
    finally:
        pool.shutdown(wait=False)


def ask(coordinator: Coordinator, sql: str, cancellation: Cancellation | None = None) -> pa.Table:
    return coordinator.query(sql, cancellation=cancellation or Cancellation()).table()


def rest(first: pa.RecordBatch, stream: Stream) -> pa.Table:
    """The whole answer, of which a batch has been read."""
    with stream:
        return pa.Table.from_batches([first, *stream])


def right_or_clear(work: Callable[[], pa.Table], query: Query, named: str) -> DaiError | None:
    """Runs it: the whole answer, or an error that names the source and says what to do. Which error; None: answered."""
    failure = None
    try:
        table = soon(work)
    except DaiError as error:
        failure = error
    if failure is None:
        assert query.right(table), f"a wrong or short answer: {table.num_rows} rows"
        return None
    assert named in failure.detail or failure.extra.get("source") == named, failure
    assert failure.status in (502, 503, 504), repr(failure)
    assert failure.hint, repr(failure)
    return failure
