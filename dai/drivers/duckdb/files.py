"""CSV, JSON, Parquet and Arrow files as a read-only database: DuckDB in memory, with a view for each table.

DuckDB may open the files of these tables and no other: ``allowed_paths`` names each, external access is off. Views list
their files; when files come, go or change, the next statement gets a new DuckDB. Arrow files are copied once into
Parquet, and what has an address is fetched once, into a directory of the driver.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
import time
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import duckdb
import pyarrow as pa
import pyarrow.fs as filesystems
import pyarrow.parquet as parquet
from duckdb import DuckDBPyConnection
from sqlalchemy.engine import make_url

from dai.drivers import DriverOptions, Session
from dai.drivers.connections.pooled import Release
from dai.drivers.duckdb.driver import DuckDB
from dai.drivers.duckdb.headers import check_headers
from dai.drivers.duckdb.syntax import SYNTAX
from dai.drivers.sql.ddl import quoted
from dai.drivers.sql.lexer import tokens
from dai.drivers.tables import Statistics, TableInfo
from dai.errors import DaiError, DatabaseUnavailableError, DataError, NotAQueryError, NotFoundError, StatementError
from dai.plugins import nearest
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

LOOK_SECONDS = 1.0
"""How old the list of the files may be."""
FETCH_SECONDS = 60.0
"""Without a byte from an address."""
_SAMPLE = 1 << 16
_LINKS = "Symbolic links that lead out of the folder are not followed; name such a file by its own path."
_READERS = {
    "csv": "read_csv({}, union_by_name = true)",
    "json": "read_json({}, union_by_name = true)",
    "parquet": "read_parquet({}, union_by_name = true, hive_partitioning = {hive})",
    "arrow": "read_parquet({}, union_by_name = true)",
}
_FAILING = "SELECT {} FROM (SELECT error('{}') AS unreadable) WHERE unreadable IS NULL"
"""Whoever reads it, and be it no column, has the error."""
_File = tuple[str, str, str, int, int]
_State = tuple[_File, ...]
"""Table, form, path, time of change and size (-1: it is gone) of every file."""


class Files(DuckDB):
    """``tables``: the paths, patterns and addresses of each, as ``csv:/data/people.csv``."""

    fixed = True
    telling = DuckDB.telling | {"duckdb_views", "pg_views", "pg_get_viewdef", "sqlite_master", "sqlite_schema", "views"}

    def __init__(self, tables: Mapping[str, Sequence[str]], options: DriverOptions) -> None:
        super().__init__(":memory:", options)
        self._tables = tables
        self._own = tempfile.TemporaryDirectory(prefix="dai-files-")
        self._fetched: dict[str, list[str]] = {}
        self._parquet: dict[tuple[str, int, int], str] = {}
        self._state: _State = ()
        self._gone: dict[str, DatabaseUnavailableError] = {}
        """By what the views say that fail because their files are gone."""
        self._unreadable: Mapping[str, str] = {}
        self._without_columns: Set[str] = frozenset()
        """Of the unreadable tables those whose columns were never known."""
        self._looked = float("-inf")

    @classmethod
    def connect(cls, url: str, options: DriverOptions) -> Files:
        query = make_url(url).query
        return cls({name: (each,) if isinstance(each, str) else each for name, each in query.items()}, options)

    def product(self) -> str:
        return f"{len(self._tables)} table{'' if len(self._tables) == 1 else 's'} of files, {super().product()}"

    def tables(self, pattern: str = "%") -> tuple[TableInfo, ...]:
        found = [replace(each, kind="table", rows=self._figures(each.name)[0]) for each in super().tables(pattern)]
        why = self._unreadable
        return tuple(
            replace(each, columns=() if each.name in self._without_columns else each.columns, comment=why[each.name])
            if each.name in why
            else each
            for each in found
        )

    def unreadable(self) -> Mapping[str, str]:
        with self._pool.connection(Cancellation()):
            return self._unreadable

    def statistics(self, table: str) -> Statistics:
        name = table.removeprefix("main.")
        if name not in self._tables:
            raise NotFoundError(f"There is no table {table}.", hint=nearest(name, list(self._tables)))
        with self._pool.connection(Cancellation()):
            rows, size = self._figures(name)
        return Statistics(rows=rows, size_bytes=size)

    def load(self, table: str, stream: Stream, **options: Any) -> int:
        stream.close()
        _refuse()

    @contextmanager
    def transaction(self, *, cancellation: Cancellation, read_only: bool = False) -> Iterator[Session]:
        if not read_only:
            _refuse()
        with super().transaction(cancellation=cancellation, read_only=True) as session:
            yield session

    def close(self) -> None:
        super().close()
        self._own.cleanup()

    def stream(
        self,
        connection: DuckDBPyConnection,
        sql: str,
        parameters: Sequence[Any],
        cancellation: Cancellation,
        batch_rows: int | None,
        release: Release[DuckDBPyConnection],
    ) -> Stream:
        try:
            return super().stream(connection, sql, parameters, cancellation, batch_rows, release)
        except (StatementError, DatabaseUnavailableError) as error:
            if (failure := self._gone.get(error.detail)) is not None:
                raise DatabaseUnavailableError(failure.detail, hint=failure.hint) from None
            names = {text.strip('"').casefold() for text in (sql[start:end] for _, start, end in tokens(sql, SYNTAX))}
            for table, _, path, _, _ in self._state:  # the list of the files may be older than that
                if table.casefold() in names and not os.path.exists(path):
                    raise _is_gone(table, path) from error
            raise

    def _check(self, query: str) -> None:
        super()._check(query)
        words = [query[start:end].casefold() for kind, start, end in tokens(query, self.syntax) if kind != "comment"]
        if words[:1] == ["explain"]:
            options = takewhile(")".__ne__, words[1:]) if words[1:2] == ["("] else words[1:2]
            if {"analyze", "analyse"} & {each.strip('"') for each in options}:
                raise StatementError("EXPLAIN ANALYZE is not allowed: it shows the paths of files.", sql=query)

    # --- the views ---

    def _opened(self, root: DuckDBPyConnection | None) -> DuckDBPyConnection:
        if root is not None and time.monotonic() - self._looked < LOOK_SECONDS:
            return root
        state = self._looked_at()
        self._looked = time.monotonic()
        if root is not None and state == self._state:
            return root
        new = duckdb.connect()
        files, refused = self._views(new, state)
        before = _columns(root) if refused and root is not None else {}
        without = {name for name in refused if name not in before or name in self._without_columns}
        for name, failure in refused.items():
            if len(self._tables) == 1:
                raise failure
            said = _message(failure).replace("'", "''")  # an error of the queries that read it, and of no others
            known = {} if name in without else before[name]
            columns = [f"CAST(NULL AS {type}) AS {quoted(each, SYNTAX)}" for each, type in known.items()]
            failing = _FAILING.format(", ".join(columns) or "unreadable", said)
            new.execute(f"CREATE OR REPLACE VIEW {quoted(name, SYNTAX)} AS {failing}")
        paths = [each for name, listed in files.items() if name not in refused for each in listed]
        for setting in (
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            f"temp_directory = '{self._own.name}/spilled'",
            f"allowed_paths = {_listed([*paths, *map(glob.escape, paths)])}",
            "enable_external_access = false",
        ):
            new.execute(f"SET GLOBAL {setting}")
        self._locked(new)
        if root is not None:
            root.close()  # cursors that are at work keep their database
        self._state = state
        self._unreadable = {name: _message(failure) for name, failure in refused.items()}
        self._without_columns = without
        self._gone = {_message(each): each for each in refused.values() if isinstance(each, DatabaseUnavailableError)}
        return new

    def _looked_at(self) -> _State:
        files = []
        for name, patterns in self._tables.items():
            for each in patterns:
                form, _, place = each.partition(":")
                for file in self._local(name, place) if "://" in place else _matches(place):
                    try:
                        stat = Path(file).stat()
                        files.append((name, form, file, stat.st_mtime_ns, stat.st_size))
                    except OSError:
                        files.append((name, form, file, 0, -1))
        return tuple(files)

    def _views(
        self, new: DuckDBPyConnection, state: _State
    ) -> tuple[Mapping[str, Sequence[str]], Mapping[str, DaiError]]:
        """Makes the views of the tables that can be read: the files of each, and why others cannot be read."""
        files: dict[str, list[str]] = {}
        refused: dict[str, DaiError] = {}
        for name in self._tables:
            try:
                files[name], reader = self._reader(name, [each for each in state if each[0] == name])
                new.execute(f"CREATE VIEW {quoted(name, SYNTAX)} AS FROM {reader}")
            except DaiError as failure:
                refused[name] = failure
            except duckdb.Error as error:
                refused[name] = _unreadable(name, files[name], error)
        columns = _columns(new)
        for name in dict.fromkeys(name for name, form, *_ in state if name in files and form == "csv"):
            try:
                check_headers(new, files[name], columns.get(name, {}))
            except DataError as failure:
                refused[name] = failure
        return files, refused

    def _reader(self, table: str, own: Sequence[_File]) -> tuple[list[str], str]:
        """The files that DuckDB is to read, and what reads them."""
        for _, _, path, _, size in own or [each for each in self._state if each[0] == table]:
            if size < 0 or not (own or os.path.lexists(path)):
                raise _is_gone(table, path)
        if not own:
            raise DatabaseUnavailableError(f"There are no files for the table {table!r}.", hint=_LINKS)
        forms = {each[1] for each in own}
        if len(forms) > 1:
            raise DataError(f"The files of the table {table!r} are of several formats: {', '.join(sorted(forms))}.")
        files = [self._readable(form, path, changed, size) for _, form, path, changed, size in own]
        hive = str(any("=" in Path(each).parent.name for each in files)).lower()
        return files, _READERS[min(forms)].format(_listed(map(glob.escape, files)), hive=hive)

    def _local(self, table: str, place: str) -> list[str]:
        """The paths of what has an address."""
        if place not in self._fetched:
            folder = Path(self._own.name, f"address-{len(self._fetched)}")
            folder.mkdir(exist_ok=True)
            try:
                self._fetched[place] = _fetch(place, folder)
            except (OSError, URLError, pa.ArrowException) as error:
                why = f": {error.code} {error.reason}" if isinstance(error, HTTPError) else ""
                if isinstance(error, FileNotFoundError):
                    why = ": there is none"
                detail = f"A file of the table {table!r} cannot be fetched from its address{why}."
                raise DatabaseUnavailableError(detail) from error
        return self._fetched[place]

    def _readable(self, form: str, path: str, changed: int, size: int) -> str:
        """A file that DuckDB reads."""
        if form != "arrow":
            return path
        key = path, changed, size
        if key not in self._parquet:
            copy = str(Path(self._own.name, f"{len(self._parquet)}.parquet"))
            try:
                with pa.OSFile(path) as file:
                    schema, batches = _arrow(file)
                    with parquet.ParquetWriter(copy, schema) as writer:
                        for batch in batches:
                            writer.write_batch(batch)
            except (OSError, pa.ArrowException) as error:
                raise DataError(f"{Path(path).name} is not an Arrow file, or it is damaged.") from error
            self._parquet[key] = copy
        return self._parquet[key]

    def _figures(self, table: str) -> tuple[int | None, int]:
        """Rows, where the files say or show them, and bytes."""
        rows: int | None = 0
        total = 0
        for name, form, path, changed, size in self._state:
            if name == table and size >= 0:
                total += size
                known = None
                with suppress(DataError):  # who reads the table is told
                    known = _rows(form, self._readable(form, path, changed, size), size)
                rows = None if rows is None or known is None else rows + known
        return rows, total


def _matches(path: str) -> list[str]:
    """The files that a path or a pattern means. Files that a pattern reaches by a symbolic link out of the folder
    where it begins are left out: who may write in the folder could have any file served. A path without a pattern may
    lead anywhere.
    """
    if not glob.has_magic(path):
        return [path]
    parts = ((part, re.sub(r"\[([*?[])\]", r"\1", part)) for part in Path(path).parts[:-1])
    folder = Path(*(name for _, name in takewhile(lambda each: each[0] == glob.escape(each[1]), parts))).resolve()
    return [each for each in sorted(glob.glob(path, recursive=True)) if Path(each).resolve().is_relative_to(folder)]


def _arrow(file: pa.NativeFile) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Of an Arrow file, or of a stream in a file."""
    try:
        reader = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        stream = pa.ipc.open_stream(file)
        return stream.schema, stream
    return reader.schema, map(reader.get_batch, range(reader.num_record_batches))


def _fetch(address: str, folder: Path) -> list[str]:
    """The paths in ``folder`` of what an address, or a pattern of an object store, means."""
    parts = urlsplit(address)
    if parts.scheme in ("http", "https"):
        file = folder / parts.path.rpartition("/")[2]
        with urlopen(address, timeout=FETCH_SECONDS) as source, file.open("wb") as target:
            shutil.copyfileobj(source, target)
        return [str(file)]
    system, path = filesystems.FileSystem.from_uri(address)
    files = []
    for number, each in enumerate(_objects(system, path)):
        place = Path(each)
        file = folder.joinpath(*(part for part in place.parent.parts if "=" in part), f"{number}-{place.name}")
        file.parent.mkdir(parents=True, exist_ok=True)
        with system.open_input_stream(each) as source, file.open("wb") as target:
            shutil.copyfileobj(source, target)
        files.append(str(file))
    return files


def _objects(system: filesystems.FileSystem, path: str) -> list[str]:
    """The path, or what a pattern fits: ``*`` within a part, ``**`` for any parts. FileNotFoundError where nothing."""
    if not glob.has_magic(path):
        return [path]
    wanted = path.split("/")
    above = "/".join(takewhile(lambda part: not glob.has_magic(part), wanted))
    found = system.get_file_info(filesystems.FileSelector(above, recursive=True))
    objects = [each.path for each in found if each.type == filesystems.FileType.File]
    if not (fitting := sorted(each for each in objects if _fits(each.split("/"), wanted))):
        raise FileNotFoundError(path)
    return fitting


def _fits(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted or not parts:
        return not parts and all(each == "**" for each in wanted)
    if wanted[0] == "**":
        return _fits(parts, wanted[1:]) or _fits(parts[1:], wanted)
    return fnmatchcase(parts[0], wanted[0]) and _fits(parts[1:], wanted[1:])


def _rows(form: str, path: str, size: int) -> int | None:
    """Of a Parquet file exactly; of text about, by its first lines."""
    if path.endswith((".gz", ".zst")):
        return None
    try:
        if form in ("parquet", "arrow"):
            return int(parquet.read_metadata(path).num_rows)
        with open(path, "rb") as file:
            sample = file.read(_SAMPLE)
    except (OSError, pa.ArrowException):
        return None
    lines = sample.count(b"\n") + (len(sample) == size and not sample.endswith((b"\n", b"\r")) and size > 0)
    header = form == "csv"
    return max(round(size * lines / len(sample)) - header, 0) if lines else 0


def _listed(paths: Iterable[str]) -> str:
    return "[" + ", ".join("'" + each.replace("'", "''") + "'" for each in paths) + "]"


def _columns(root: DuckDBPyConnection) -> Mapping[str, Mapping[str, str]]:
    """The types of columns by table and name."""
    columns: dict[str, dict[str, str]] = {}
    query = "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal ORDER BY column_index"
    for table, name, type in root.execute(query).fetchall():
        columns.setdefault(table, {})[name] = type
    return columns


def _is_gone(table: str, path: str) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(f"The file {Path(path).name} of the table {table!r} is gone.")


def _unreadable(table: str, files: Sequence[str], error: duckdb.Error) -> DataError:
    """Names files as people do, not by their paths."""
    text = str(error)
    message = text.partition("\n")[0].partition(": ")[2]
    if "unicode" in text.lower() and message.startswith("CSV Error"):
        message = f"it is not UTF-8 ({message.removeprefix('CSV Error on ').lower()})"
    for each in files:
        for path in (each, glob.escape(each)):
            message = message.replace(path, Path(each).name)
    hint = f"Convert it to UTF-8: iconv -f {_encoding(files, text)} -t utf8." if "unicode" in text.lower() else None
    return DataError(f"The files of the table {table!r} cannot be read: {message}", hint=hint)


def _encoding(files: Sequence[str], text: str) -> str:
    """What the file that the error names is probably written in; Excel's "Unicode text" is UTF-16."""
    with suppress(OSError), open(next((each for each in files if each in text), files[0]), "rb") as file:
        if file.read(2) in (BOM_UTF16_LE, BOM_UTF16_BE):
            return "utf16"
    return "latin1"


def _message(failure: DaiError) -> str:
    return " ".join(filter(None, (failure.detail, failure.hint)))


def _refuse() -> NoReturn:
    raise NotAQueryError(
        "Tables that are files are read-only: the service changes no files.",
        hint="Change the files themselves; the service sees the change after a second.",
    )
