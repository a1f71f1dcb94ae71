"""Operation calls: functions in SQL that call a service or Python (the operation calls of OGSA-DQP).

An operation is registered in the configuration, so nobody can name an address in a query::

    [federations.lab.functions.complexity]
    url = "http://127.0.0.1:9000/complexity"    # or python = "package.module:function"
    arguments = ["VARCHAR"]                  # DuckDB types
    returns = "DOUBLE"
    format = "json"                          # or "arrow"
    batch = 1                                # rows a call
    concurrent = 4                           # calls at once, in each evaluator
    seconds = 0.05                           # what a row costs, about: for the planner
    timeout = 30.0
    retries = 3

The service gets one POST a batch. JSON: ``{"arguments": [[a, b], …]}`` is answered by ``{"results": [r, …]}``, one a
row and in order; dates and decimals are texts. Arrow: an IPC stream with columns ``a0``, ``a1``, … is answered by one
with one column. A Python function gets one value an argument and gives one, or with ``batch`` above 1 a pyarrow array
an argument and gives an array.

A row with a NULL argument is not sent (its result is NULL), nor is a row whose arguments were in the same batch of
tuples before, unless ``deterministic = false``. A call that finds no service, or is answered by 429, 502, 503 or 504,
is repeated after a pause.
"""

from __future__ import annotations

import dataclasses
import io
import json
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dai import config
from dai.client.http.transport import Options, Transport
from dai.errors import ConfigurationError, DaiError, TruncatedError, UnreachableError
from dai.formats import format_named
from dai.plugins import nearest
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.types import PLAIN, arrow_type
from dqp.errors import OperationError
from dqp.execution.execution import Execution
from dqp.settings import FederationSettings

Results = Callable[[], pa.Array]
"""Waits for the results of calls that were begun."""
_NAMES = {exp.DataType.build(each, dialect="duckdb").this: each for each in PLAIN}
"""DuckDB's own names of types, by what the parser calls them."""
REPEATED = frozenset({429, 502, 503, 504})
_REFUSALS = frozenset(range(300, 1000))
"""Of which the function is told as the cause: the client's own errors name the address."""
LONGEST_PAUSE = 5.0
LARGEST_ANSWER = 256 << 20
MOST_CALLS = 1_000
"""At once of one operation: each has a thread."""
AHEAD = 4
"""Rows of a portion, as a multiple of those that an operation calls at the same time. The calls of the next portion
are begun before the results of the last are waited for: a slow call does not keep others from being made."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A registered function; see the module for what the fields mean. ``types`` and ``result`` are Arrow types."""

    name: str
    types: tuple[pa.DataType, ...]
    result: pa.DataType
    url: str | None = None
    python: str | None = None
    format: str = "json"
    batch: int = 1
    concurrent: int = 4
    seconds: float = 0.01
    timeout: float = 30.0
    retries: int = 3
    deterministic: bool = True

    def __post_init__(self) -> None:
        where = f"functions.{self.name}"
        if (self.url is None) == (self.python is None):
            raise ConfigurationError(f"{where}: give it either a url or a python function.")
        if self.url is not None and not config.is_web(self.url):
            raise ConfigurationError(f"{where}.url must begin with http:// or https://.")
        if self.python is not None and ":" not in self.python:
            raise ConfigurationError(f"{where}.python must be 'package.module:function', not {self.python!r}.")
        if self.format not in ("json", "arrow"):
            raise ConfigurationError(f"{where}.format must be 'json' or 'arrow', not {self.format!r}.")
        for key in ("batch", "concurrent"):
            if getattr(self, key) < 1:
                raise ConfigurationError(f"{where}.{key} must be at least 1.")
        if self.concurrent > MOST_CALLS:
            raise ConfigurationError(f"{where}.concurrent must be at most {MOST_CALLS}.")
        if not self.types:
            raise ConfigurationError(f"{where}.arguments: a function needs at least one argument.")


def operations_of(settings: FederationSettings) -> Mapping[str, Operation]:
    """The operations of a federation by their lower-case names. ConfigurationError names the key that is wrong."""
    return {name.lower(): _operation(name, declared) for name, declared in settings.functions.items()}


def _operation(name: str, declared: Mapping[str, Any]) -> Operation:
    where = f"functions.{name}"
    if not name.isidentifier():
        raise ConfigurationError(f"{where}: a function's name is made of letters, digits and '_'.")
    fields = [each.name for each in dataclasses.fields(Operation) if each.name not in ("name", "types", "result")]
    known = [*fields, "arguments", "returns"]
    for key in declared:
        if key not in known:
            raise ConfigurationError(f"{where} has no key {key!r}.", hint=nearest(key, known))
    arguments = declared.get("arguments", ())
    if not isinstance(arguments, list | tuple):
        raise ConfigurationError(f"{where}.arguments must be a list of types.", hint='["VARCHAR"]')
    types = tuple(_type(f"{where}.arguments", each) for each in arguments)
    if "returns" not in declared:
        raise ConfigurationError(f"{where} needs the type that it returns.", hint='returns = "DOUBLE"')
    if not _free(name, len(types)):
        raise ConfigurationError(f"{where}: SQL has a function or a word of this name.", hint="Give it another name.")
    plain = {key: value for key, value in declared.items() if key in fields}
    own = {"name": name.lower(), "types": types, "result": _type(f"{where}.returns", declared["returns"])}
    operation: Operation = config.section(Operation, where, plain, Path(), **own)
    return operation


def _free(name: str, arguments: int) -> bool:
    """Whether a call by that name means nothing else to the parser of queries."""
    try:
        query = sqlglot.parse_one(f"SELECT {name}({', '.join('1' * arguments)})", read="duckdb")
    except SqlglotError:
        return False
    return isinstance(query, exp.Select) and type(query.selects[0]) is exp.Anonymous


def _type(where: str, text: Any) -> pa.DataType:
    """Of a DuckDB type, by any of its names."""
    try:
        name = text.strip().upper()
        if name.endswith("[]"):
            return pa.list_(_type(where, name[:-2]))
        declared = exp.DataType.build(name, dialect="duckdb")
        return arrow_type(_NAMES.get(declared.this) or declared.sql("duckdb").replace(", ", ","))
    except (SqlglotError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"{where}: {text!r} is not a DuckDB type.", hint="For example VARCHAR, BIGINT, DOUBLE."
        ) from error


def calling(
    operation: Operation, below: Stream, kept: int, identifier: str, execution: Execution, key: Hashable
) -> Stream:
    """The first ``kept`` columns of ``below`` and, as ``identifier``, what the operation makes of the others. A failing
    call fails the execution's attempt. ``key``: of its measurement."""
    caller = Caller(operation, execution.cancellation)
    execution.at_end(caller.close)
    schema = pa.schema(list(below.schema)[:kept]).append(pa.field(identifier, operation.result))
    portions = below.rebatch(AHEAD * operation.batch * operation.concurrent)

    @contextmanager
    def failing() -> Iterator[None]:
        try:
            yield
        except DaiError as error:
            # Before the rows below are closed unread, which would be taken for the cause.
            execution.fail(error)
            raise

    def called() -> Iterator[pa.RecordBatch]:
        begun: list[tuple[pa.RecordBatch, Results]] = []
        for batch in portions:
            with failing():
                begun.append((batch, caller.begin(*batch.columns[kept:])))
            if len(begun) > 1:
                yield ended(*begun.pop(0))
        for batch, results in begun:
            yield ended(batch, results)

    def ended(batch: pa.RecordBatch, results: Results) -> pa.RecordBatch:
        with failing():
            return pa.RecordBatch.from_arrays([*batch.columns[:kept], results()], schema=schema)

    return execution.measure(key, operation.name).stream(Stream(schema, called(), portions.close))


class Caller:
    """Calls one operation for one query, several batches at once. Close it; cancelling ends the calls' pauses and
    waits, and drops the connections of calls under way."""

    def __init__(self, operation: Operation, cancellation: Cancellation) -> None:
        self.operation, self._cancellation = operation, cancellation
        self.calls = 0
        self._once = _python(operation) if operation.python else self._post
        if operation.url is not None:
            address = urlsplit(operation.url)
            self._path = (address.path or "/") + (f"?{address.query}" if address.query else "")
            # This class tries again, with the number and the pauses that the operation says.
            options = Options(connect=operation.timeout, read=operation.timeout, retries=0, compression="identity")
            self._transport = Transport(f"{address.scheme}://{address.netloc}", options)
        self._pool = ThreadPoolExecutor(operation.concurrent, thread_name_prefix=f"call-{operation.name}")
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._unregister = cancellation.on_cancel(self._stopped.set)
        self._unregister.__enter__()

    def begin(self, *arguments: pa.Array) -> Results:
        """Begins the calls for the rows of ``arguments`` (one array an argument, of one length). What it returns waits
        for their results, in the order of the rows; both raise OperationError naming the function, for arguments of
        other types too, or the cancellation's cause."""
        operation = self.operation
        rows = len(arguments[0])
        try:
            columns = [_cast(each, kind) for each, kind in zip(arguments, operation.types, strict=True)]
        except pa.ArrowInvalid as error:
            types = ", ".join(map(str, operation.types))
            raise OperationError(
                f"An argument of the function {operation.name} is not a value of its type: {operation.name}({types}).",
                hint="Cast the arguments.",
            ) from error
        table = pa.table(columns, _names(arguments))
        valid = _all(*(pc.is_valid(each) for each in table.columns))
        numbers = pc.indices_nonzero(valid)
        wanted = table.take(numbers) if len(numbers) < rows else table
        places = None
        if operation.deterministic and wanted.num_rows > 1:
            wanted, places = _different(wanted)
        pieces = [wanted.slice(first, operation.batch) for first in range(0, wanted.num_rows, operation.batch)]
        futures: list[Future[pa.Array]] = [self._pool.submit(self._one, each) for each in pieces]

        def results() -> pa.Array:
            results = pa.chunked_array(self._all(futures), operation.result)
            if places is not None:
                results = results.take(places)
            if len(numbers) == rows:
                return results.combine_chunks() if results.num_chunks != 1 else results.chunk(0)
            spread = pc.replace_with_mask(
                pa.nulls(rows, operation.result), valid.combine_chunks(), results.combine_chunks()
            )
            return spread.combine_chunks() if isinstance(spread, pa.ChunkedArray) else spread

        return results

    def _all(self, futures: Sequence[Future[pa.Array]]) -> list[pa.Array]:
        """What all calls give; at the first failure those not begun are not begun."""
        try:
            return [each.result() for each in futures]
        except BaseException:
            self._stopped.set()
            for each in futures:
                each.cancel()
            wait(futures)
            raise

    def _one(self, piece: pa.Table) -> pa.Array:
        operation = self.operation
        for attempt in range(operation.retries + 1):
            self._cancellation.check()
            if self._stopped.is_set():
                raise OperationError(f"The function {operation.name} was stopped by the failure of another call.")
            try:
                with self._lock:
                    self.calls += 1
                result = self._once(piece)
                break
            except _Again as again:
                self._cancellation.check()
                if attempt == operation.retries:
                    raise OperationError(
                        f"The function {operation.name} failed {attempt + 1} times: {again.reason}.",
                        hint="Ask who runs its service, or raise the function's retries.",
                    ) from again
                pause = min(again.after or 0.1 * 2**attempt, LONGEST_PAUSE)
                self._stopped.wait(pause * random.uniform(0.8, 1.2))
        if len(result) != piece.num_rows:
            raise OperationError(
                f"The function {operation.name} returned {len(result)} results for {piece.num_rows} rows.",
                hint="It must return one result for each row, in order.",
            )
        return result

    def _post(self, piece: pa.Table) -> pa.Array:
        operation = self.operation
        body, kind = _arrow_body(piece) if operation.format == "arrow" else _json_body(piece)
        headers = {"Content-Type": kind, "Accept": kind}
        content, deadline = bytearray(), time.monotonic() + operation.timeout
        try:
            reply = self._transport.send("POST", self._path, body, headers, _REFUSALS, self._cancellation)
            with reply.body:
                while len(content) <= LARGEST_ANSWER and (part := reply.body.read1()):
                    content += part
                    if time.monotonic() > deadline:
                        raise _Again(f"its service takes longer than {operation.timeout:g} s")
        except (UnreachableError, TruncatedError) as error:
            reason = type(error.__cause__ or error).__name__
            raise _Again(f"its service does not answer ({reason})") from error
        if reply.status in REPEATED:
            raise _Again(f"its service says {reply.status}", reply.retry_after)
        if reply.status != 200:
            raise OperationError(f"The service of the function {operation.name} answered with status {reply.status}.")
        if len(content) > LARGEST_ANSWER:
            raise OperationError(
                f"The service of the function {operation.name} answered more than {LARGEST_ANSWER:,} bytes."
            )
        try:
            if operation.format == "arrow":
                return _arrow_answer(content, operation.result, piece.num_rows)
            return _json_answer(content, operation.result)
        except (
            ValueError,
            TypeError,
            LookupError,
            ArithmeticError,
            RecursionError,
            pa.ArrowException,
            DaiError,
        ) as error:
            raise OperationError(
                f"The answer of the function {operation.name} is not {operation.format} of type {operation.result}.",
                hint='JSON: {"results": […]}; Arrow: an IPC stream of one column.',
            ) from error

    def close(self) -> None:
        """Waits for calls under way (they end at their timeout at the latest, at once when cancelled)."""
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)
        self._unregister.__exit__(None, None, None)
        if self.operation.url is not None:
            self._transport.close()


class _Again(Exception):
    """A call that may be repeated, ``after`` seconds where the service said so."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.after = reason, after


def _python(operation: Operation) -> Callable[[pa.Table], pa.Array]:
    assert operation.python is not None
    module, _, name = operation.python.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"functions.{operation.name}.python: {operation.python!r} was not found.",
            hint="It looks like 'package.module:function'.",
        ) from error

    def call(piece: pa.Table) -> pa.Array:
        arrays = [each.combine_chunks() for each in piece.columns]
        try:
            if operation.batch > 1:
                return _cast(function(*arrays), operation.result)
            return pa.array(
                [function(*row) for row in zip(*(each.to_pylist() for each in arrays), strict=True)], operation.result
            )
        except DaiError:
            raise
        except Exception as error:
            raise OperationError(f"The function {operation.name} failed: {type(error).__name__}.") from error

    return call


def _names(arguments: Sequence[Any]) -> list[str]:
    return [f"a{number}" for number in range(len(arguments))]


def _all(first: pa.ChunkedArray, *others: pa.ChunkedArray) -> pa.ChunkedArray:
    for each in others:
        first = pc.and_(first, each)
    return first


def _cast(values: Any, kind: pa.DataType) -> Any:
    values = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    return values if values.type == kind else values.cast(kind)


def _different(table: pa.Table) -> tuple[pa.Table, pa.Array]:
    """Each different row once, and for each row of ``table`` its place among them."""
    codes: pa.Array | None = None
    for each in table.columns:
        code = each.combine_chunks().dictionary_encode().indices.cast(pa.int64())
        if codes is not None:
            code = pc.add(pc.multiply(codes, pc.add(pc.max(code), 1)), code)
            code = code.dictionary_encode().indices.cast(pa.int64())
        codes = code
    assert codes is not None
    first = (
        pa.table({"code": codes, "row": pa.array(np.arange(len(codes)))})
        .group_by("code", use_threads=False)
        .aggregate([("row", "min")])
    )
    first = first.sort_by("code")
    return table.take(first.column("row_min")), codes


def _plain(value: Any) -> Any:
    if isinstance(value, date | datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _json_body(piece: pa.Table) -> tuple[bytes, str]:
    rows = zip(*(each.to_pylist() for each in piece.columns), strict=True)
    return json.dumps({"arguments": [list(map(_plain, row)) for row in rows]}).encode(), "application/json"


def _json_answer(content: bytearray, kind: pa.DataType) -> pa.Array:
    results = json.loads(content)["results"]
    if pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        return pa.array([None if each is None else str(each) for each in results], pa.string()).cast(kind)
    return pa.array(results, kind)


def _arrow_body(piece: pa.Table) -> tuple[bytes, str]:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, piece.schema) as writer:
        writer.write_table(piece)
    return sink.getvalue(), "application/vnd.apache.arrow.stream"


def _arrow_answer(content: bytearray, kind: pa.DataType, rows: int) -> Any:
    """A column of another length, which is refused, is not cast: a few bytes may be a billion rows of nothing."""
    column = format_named("arrow").decode([bytes(content)]).table().column(0)
    return _cast(column.combine_chunks(), kind) if len(column) == rows else column
