"""The tasks of an evaluator and their encoding: JSON, without any tree of operators.

A ``Task`` is one instance of a fragment: SQL for DuckDB, the inputs that it reads as tables, and where its rows go. The
evaluator needs neither a catalog nor a plan; the only statements that it sends to sources are those it is given.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from dai.errors import DataError
from dqp.algebra.arrival import Promise
from dqp.execution.fragment import Body, Called, Columns, Tuples
from dqp.execution.service_calls import Operation
from dqp.runtimes.flight.server import Ticket


@dataclass(frozen=True)
class RemoteInput:
    """The rows of one statement: at the first of ``places`` that answers, each (alias, address of the resource, SQL).
    ``columns``: what they are called and cast to; ``tables``: what the first ``bringing`` of the
    statements have as query-scoped tables, by name; ``promise``: what may arrive."""

    places: tuple[tuple[str, str, str], ...]
    columns: Columns
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    bringing: int = 0
    promise: Promise = field(default_factory=Promise)


@dataclass(frozen=True)
class Received:
    """What other processes send: at each address of a Flight port the rows behind a ticket. ``columns``: what they
    are cast to; None, the types that their producers say. ``whole``: read to its end before the fragment begins, since
    the fragment may read it several times."""

    tickets: tuple[tuple[str, Ticket], ...]
    columns: Columns | None = None
    whole: bool = False


Input = RemoteInput | Received | Tuples | Called


@dataclass(frozen=True, kw_only=True)
class Task:
    """``name`` of the fragment's instance, unique in the attempt. Its rows go to ``partitions`` readers, each of which
    presents a ticket with the token: to the one that ``bucket`` (SQL) says, or all to each (``broadcast``); and so
    ``copies`` times, see ``Outbox``. ``types``: what the columns are cast to, where it is the answer; ``names``: what
    they are called there. ``profiled``: what each operator did is measured. ``coordinator``: the address of its Flight
    port, which is asked whether it lives."""

    query: str
    attempt: int
    name: str
    token: str = field(repr=False)
    coordinator: str
    body: Body
    partitions: int = 1
    copies: int = 1
    broadcast: bool = False
    bucket: str | None = None
    types: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    profiled: bool = False

    def ticket(self, partition: int) -> Ticket:
        return Ticket(self.query, self.attempt, self.name, partition, self.token)


MOST_TASKS, MOST_READERS, MOST_FETCHES = 1_000, 20_000, 5_000
"""Of one request: each task has a thread, each reader of their rows a place in an outbox, whether it comes or not, and
each statement, ticket and call at once of their inputs a thread."""
MOST_TEXT = 2_000
"""Characters of a name or an address: an evaluator remembers them for a while when the query has ended."""


def encoded(tasks: Sequence[Task]) -> str:
    """ASCII without control characters: it may stand in XML."""
    return json.dumps([_task(each) for each in tasks], separators=(",", ":"))


def decoded(text: str) -> tuple[Task, ...]:
    """Raises DataError for what ``encoded`` has not written, or for more than an evaluator takes at once."""
    try:
        tasks = tuple(_task_of(each) for each in json.loads(text))
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        ArithmeticError,
        RecursionError,
        OSError,  # of Arrow, for damaged schemas
        pa.ArrowException,
    ) as error:
        raise DataError(f"The fragments cannot be read: {type(error).__name__}.") from error
    if len(tasks) > MOST_TASKS or sum(each.partitions * each.copies for each in tasks) > MOST_READERS:
        raise DataError(
            f"An evaluator takes at most {MOST_TASKS:,} fragments with {MOST_READERS:,} readers at once.",
            hint="Use more evaluators, or fewer parallel parts in each.",
        )
    if sum(_fetches(each.body) for each in tasks) > MOST_FETCHES:
        raise DataError(
            f"The fragments read more than {MOST_FETCHES:,} inputs at once.",
            hint="Use fewer evaluators, or fewer calls at once (concurrent) of the query's functions.",
        )
    return tasks


def _fetches(body: Body) -> int:
    """Threads that the inputs of a fragment may have."""
    count = 0
    for each in body.inputs.values():
        if isinstance(each, Called):
            count += each.operation.concurrent + _fetches(each.below)
        elif not isinstance(each, Tuples):
            count += len(each.tickets) if isinstance(each, Received) else 1
    return count


def _task(task: Task) -> dict[str, Any]:
    plain = {name: getattr(task, name) for name in _PLAIN}
    return {**plain, "types": task.types, "names": task.names, "body": _body(task.body)}


_PLAIN: Mapping[str, Any] = {
    "query": str,
    "attempt": int,
    "name": str,
    "token": str,
    "coordinator": str,
    "partitions": int,
    "copies": int,
    "broadcast": bool,
    "bucket": str | None,
    "profiled": bool,
}


def _task_of(values: Mapping[str, Any]) -> Task:
    plain = {name: values[name] for name in _PLAIN}
    for name, value in plain.items():
        if not isinstance(value, _PLAIN[name]):
            raise TypeError(name)
    if plain["partitions"] < 1 or plain["copies"] < 1:
        raise ValueError("nobody would read it")
    _check_lengths(*(plain[each] for each in ("query", "name", "token", "coordinator")))
    types, names = (None if values[each] is None else tuple(map(str, values[each])) for each in ("types", "names"))
    return Task(**plain, types=types, names=names, body=_body_of(values["body"]))


def _check_lengths(*texts: str) -> None:
    if any(len(each) > MOST_TEXT for each in texts):
        raise ValueError("a name or an address is too long")


def _body(body: Body) -> dict[str, Any]:
    inputs = {name: _input(each) for name, each in body.inputs.items()}
    return {"sql": body.sql, "inputs": inputs, "repeated": sorted(body.repeated), "choosing": body.choosing}


def _body_of(values: Mapping[str, Any]) -> Body:
    inputs = {str(name): _input_of(each) for name, each in values["inputs"].items()}
    return Body(str(values["sql"]), inputs, frozenset(map(str, values["repeated"])), values["choosing"] is True)


def _input(input: Input) -> dict[str, Any]:
    if isinstance(input, RemoteInput):
        tables = {name: base64.b64encode(_ipc(each)).decode() for name, each in input.tables.items()}
        return {
            "kind": "remote",
            "places": input.places,
            "columns": input.columns,
            "tables": tables,
            "bringing": input.bringing,
            "promise": asdict(input.promise),
        }
    if isinstance(input, Received):
        tickets = [[address, asdict(ticket)] for address, ticket in input.tickets]
        return {"kind": "received", "tickets": tickets, "columns": input.columns, "whole": input.whole}
    if isinstance(input, Tuples):
        return {"kind": "tuples", "data": base64.b64encode(_ipc(input.data)).decode(), "columns": input.columns}
    operation = {**asdict(input.operation), "types": _types(input.operation.types)}
    operation["result"] = _types((input.operation.result,))
    return {
        "kind": "called",
        "operation": operation,
        "below": _body(input.below),
        "kept": input.kept,
        "identifier": input.identifier,
    }


def _input_of(values: Mapping[str, Any]) -> Input:
    kind = values["kind"]
    if kind == "remote":
        places = tuple((str(alias), str(address), str(sql)) for alias, address, sql in values["places"])
        _check_lengths(*(text for alias, address, _ in places for text in (alias, address)))
        tables = {str(name): _table_of(each) for name, each in values["tables"].items()}
        promise = _promise_of(values["promise"])
        return RemoteInput(places, _columns_of(values["columns"]) or (), tables, int(values["bringing"]), promise)
    if kind == "received":
        tickets = tuple((str(address), Ticket(**ticket)) for address, ticket in values["tickets"])
        return Received(tickets, _columns_of(values["columns"]), bool(values["whole"]))
    if kind == "tuples":
        return Tuples(_table_of(values["data"]), _columns_of(values["columns"]))
    if kind != "called":
        raise ValueError(kind)
    declared = values["operation"]
    types = _types_of(declared["types"])
    (result,) = _types_of(declared["result"])
    operation = Operation(**{**declared, "types": types, "result": result})
    return Called(operation, _body_of(values["below"]), int(values["kept"]), str(values["identifier"]))


def _promise_of(values: Mapping[str, Any]) -> Promise:
    origins = {
        str(name): (None if schema is None else str(schema), str(table), str(column))
        for name, (schema, table, column) in values["origins"].items()
    }
    return Promise(_columns_of(values["columns"]) or (), origins, tuple(map(str, values["loose"])))


def _columns_of(values: Any) -> Columns | None:
    return None if values is None else tuple((str(name), str(type)) for name, type in values)


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _table_of(text: str) -> pa.Table:
    data = pa.ipc.open_stream(base64.b64decode(text, validate=True)).read_all()
    data.validate(full=True)
    return data


def _types(types: Sequence[pa.DataType]) -> str:
    schema = pa.schema([(f"a{at}", each) for at, each in enumerate(types)])
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _types_of(text: str) -> tuple[pa.DataType, ...]:
    return tuple(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True))).types)
