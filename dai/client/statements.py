"""Statements with parameters: as JSON where that has their types, else as perform documents; and what changes data."""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID
from xml.etree import ElementTree

from dai.client.documents import activity, document, element
from dai.errors import DaiError, DataError, ParameterError
from dai.streams.cancellation import Cancellation

if TYPE_CHECKING:
    import pyarrow as pa

Parameters = Sequence[Any] | Mapping[str, Any]

OUTPUT = "output"
_ROWS = "rows"
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_HEAD = re.compile(r"(?>\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/|\()*+(?P<word>\w+)", re.S)
_CHANGES = frozenset(
    """
    insert update delete merge replace upsert create drop alter truncate rename comment grant revoke call do lock set
    reset analyze vacuum optimize reindex cluster refresh copy load attach detach install begin start commit rollback
    savepoint release
    """.split()
)
_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "double"),
    (Decimal, "decimal"),
    (datetime.datetime, "timestamp"),
    (datetime.date, "date"),
    (datetime.time, "time"),
    (str, "string"),
    (UUID, "string"),
    (bytes, "binary"),
)
JSON_TYPES = (bool, int, float, str, type(None))


class Changing(Protocol):
    """A resource, as changes need it."""

    @property
    def perform(self) -> Callable[..., Any]: ...

    @property
    def session(self) -> Callable[..., Any]: ...


def may_change(sql: str) -> bool:
    """Whether the first word is that of a statement that changes something. Others may do so, too (``with … insert``):
    the service refuses them as queries before they run."""
    head = _HEAD.match(sql)
    return head is not None and head["word"].lower() in _CHANGES


def is_plain_query(sql: str) -> bool:
    """Whether the first word is SELECT. What it calls may change something all the same."""
    head = _HEAD.match(sql)
    return head is not None and head["word"].lower() == "select"


def arguments(values: Sequence[Any], named: Mapping[str, Any]) -> Parameters:
    """The parameters of a call: values in order, by name, or one mapping of them."""
    if values and named:
        raise ParameterError("Give all parameters by position, or all by name.")
    if len(values) == 1 and isinstance(values[0], Mapping):
        return values[0]
    return named or values


def rows_of(values: Sequence[Any]) -> Sequence[Any]:
    """The rows of a call that gave several, as one list of mappings or of lists of values; none of any other."""
    rows = values[0] if len(values) == 1 and isinstance(values[0], list) else ()
    return rows if all(isinstance(each, Mapping | tuple | list) for each in rows) else ()


def is_json(parameters: Parameters) -> bool:
    """Whether JSON has the types of all values."""
    values = parameters.values() if isinstance(parameters, Mapping) else parameters
    return all(isinstance(one, JSON_TYPES) for value in values for one in (value if type(value) is list else (value,)))


def query(sql: str, parameters: Parameters) -> bytes:
    """One query, whose end point is OUTPUT."""
    rows = element("webRowSetStream", name=OUTPUT)
    return document(activity("sqlQueryStatement", *_values(parameters), _text("expression", sql), rows, name="query"))


def _change(sql: str, parameters: Parameters) -> bytes:
    """One statement that changes something; OUTPUT is the number of rows."""
    count = element("resultStream", name=OUTPUT)
    return document(
        activity("sqlUpdateStatement", *_values(parameters), _text("expression", sql), count, name="change")
    )


def insert(sql: str, parameters: Parameters, identity: str) -> bytes:
    """A statement that inserts a row, and a query for the key that it got, in one transaction."""
    return document(
        activity(
            "sqlBag",
            element("statement", *_values(parameters), _text("expression", sql)),
            element("statement", _text("expression", identity), returns="rows"),
            element("resultStream", name=OUTPUT),
            name="insert",
        )
    )


def _change_many(sql: str, names: Sequence[str]) -> bytes:
    """One statement for each of the tuples that are pushed into the stream ``rows``; without ``names`` of parameters
    their columns are these, in order."""
    places = [
        element("sqlParameter", from_="values", **({"name": name, "column": name} if name else {"position": place}))
        for place, name in enumerate(names, 1)
    ]
    stream = activity("inputStream", element("toLocal", name="values"), name=_ROWS)
    count = element("resultStream", name=OUTPUT)
    update = activity("sqlUpdateStatement", *places, _text("expression", sql), count, name="change")
    return document(stream, update)


def _is_written(parameters: Parameters) -> bool:
    """Whether a document can have the values; XML has not every character."""
    values = parameters.values() if isinstance(parameters, Mapping) else parameters
    return not any(isinstance(each, str) and _NOT_XML.search(each) for each in values)


def update_count(result: bytes) -> int:
    """Of a ``<resultStream updateCount="N"/>``."""
    return int(ElementTree.fromstring(result).get("updateCount", -1))  # noqa: S314 - it comes from our service


def inserted(result: bytes) -> tuple[int, Any]:
    """Count and key, from the result of ``insert``."""
    root = ElementTree.fromstring(result)  # noqa: S314
    count = int(root[0].get("updateCount", -1))
    values = [each.text for each in root.iter() if each.tag.rpartition("}")[2] == "columnValue"]
    key = values[0] if values else None
    return count, int(key) if key is not None and key.lstrip("-").isdigit() else key


def _text(tag: str, text: str) -> ElementTree.Element:
    if character := _NOT_XML.search(text):
        raise DataError(
            f"The statement has the character U+{ord(character.group()):04X}, which cannot be sent.",
            hint="Give the text as a parameter.",
        )
    return element(tag, text)


def _values(parameters: Parameters) -> list[ElementTree.Element]:
    if isinstance(parameters, Mapping):
        return [_parameter({"name": name}, f":{name}", value) for name, value in parameters.items()]
    return [_parameter({"position": place}, str(place), value) for place, value in enumerate(parameters, 1)]


def _parameter(where: dict[str, Any], shown: str, value: Any) -> ElementTree.Element:
    if not isinstance(value, list):
        return _value("sqlParameter", where, shown, value)
    return element("sqlParameter", *(_value("item", {}, shown, each) for each in value), type="list", **where)


def _value(tag: str, where: dict[str, Any], shown: str, value: Any) -> ElementTree.Element:
    if value is None:
        return element(tag, type="null", **where)
    if (typed := written(value)) is None:
        raise ParameterError(
            f"Parameter {shown} is of the type {type(value).__name__}, which cannot be sent.",
            hint="Give a text, bytes, a number, a date, True, False, None or a list of these.",
        )
    kind, text = typed
    parameter = _text(tag, text)
    parameter.attrib.update({**{name: str(each) for name, each in where.items()}, "type": kind})
    return parameter


def written(value: Any) -> tuple[str, str] | None:
    """The type of a value in documents and requests, and how it is written there; None where there is none."""
    kind = next((kind for known, kind in _TYPES if isinstance(value, known)), None)
    if kind is None:
        return None
    if kind == "boolean":
        return kind, "true" if value else "false"
    if kind == "binary":
        return kind, base64.b64encode(value).decode()
    return kind, value.isoformat() if kind in ("date", "time", "timestamp") else str(value)


def plain(value: Any) -> Any:
    """NumPy's scalars and pandas' moments as Python's values, buffers as bytes; a column, an array or a set as a list,
    in which what pandas calls missing is None."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    if hasattr(value, "to_pydatetime") and not hasattr(value, "__len__"):
        return value.to_pydatetime()
    if isinstance(value, list | tuple | set | frozenset | range):
        return [plain(each) for each in value]
    convert = next((name for name in ("as_py", "to_pylist", "to_list", "tolist") if hasattr(value, name)), None)
    if convert is None:
        return value
    converted = getattr(value, convert)()
    if not isinstance(converted, list):
        return converted
    missing = type(value).__module__.startswith("pandas")
    return [None if missing and isinstance(each, float) and each != each else plain(each) for each in converted]


def parameters_of(parameters: Any) -> Parameters:
    """A row of values, in order or by name. ParameterError for what is none."""
    if isinstance(parameters, Mapping):
        return {str(name): plain(value) for name, value in parameters.items()}
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence):
        raise ParameterError(
            f"Parameters are a sequence of values or a mapping of names to values, not {type(parameters).__name__}.",
            hint="Each ? in the statement stands for the next of them: execute('… where id = ?', (7,)).",
        )
    return [plain(each) for each in parameters]


# --- Changes --------------------------------------------------------------------------------------------------------


def change(resource: Changing, sql: str, rows: Sequence[Parameters], cancellation: Cancellation | None) -> int:
    """Runs a statement that changes something once for each row of parameters, all in one transaction; once where there
    are none. How many rows of the database changed."""
    if len(rows) > 1 or not all(map(_is_written, rows)):
        return _changed_many(resource, sql, rows, cancellation)
    return update_count(performed(resource, _change(sql, rows[0] if rows else ()), cancellation))


def performed(resource: Changing, document: bytes, cancellation: Cancellation | None) -> bytes:
    """The answer of the end point OUTPUT."""
    with resource.perform(document, OUTPUT, progress=False, cancellation=cancellation) as result:
        return bytes(result.bytes())


def _changed_many(resource: Changing, sql: str, rows: Sequence[Parameters], cancellation: Cancellation | None) -> int:
    """The values travel as Arrow through a stream of a session."""
    table = _table(rows)
    names = table.column_names if isinstance(rows[0], Mapping) else [""] * table.num_columns
    with resource.perform(_change_many(sql, names), progress=False, cancellation=cancellation) as response:
        if response.session is None:
            response.check()
        with resource.session(id=response.session) as session:
            try:
                session.push("rows", table, format="arrow")
            except DaiError:
                response.check()  # the error says why the values are not read
                raise
        response.check()
        count: int = response.results[OUTPUT].update_count
        return count


def _table(rows: Sequence[Parameters]) -> pa.Table:
    import pyarrow as pa

    first = rows[0]
    if len(first) == 0:
        raise DataError("The rows have no parameters.", hint="Execute the statement once for each.")
    names = list(first) if isinstance(first, Mapping) else None
    for number, row in enumerate(rows, 1):
        if isinstance(row, Mapping) != (names is not None):
            raise DataError(f"Rows 1 and {number} differ: one has its parameters by name, the other in order.")
        if isinstance(row, Mapping) and row.keys() != set(names or ()):
            raise DataError(f"Row {number} has the parameters {', '.join(row)}; row 1 has {', '.join(names or ())}.")
        if len(row) != len(first):
            raise DataError(f"Row {number} has {len(row)} parameters, row 1 has {len(first)}.")
    columns = []
    columns_of_values = zip(*(_in_order(row, names) for row in rows), strict=True)
    for place, values in enumerate(columns_of_values):
        shown = f":{names[place]}" if names else str(place + 1)
        if any(isinstance(each, list) for each in values):
            raise DataError(
                f"Parameter {shown} is a list, which a statement for many rows cannot have.",
                hint="Execute the statement once for each row.",
            )
        try:
            columns.append(pa.array(_alike(list(values))))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"The values of parameter {shown} have no type in common: {error}.",
                hint="Give values of one type, or execute the statement for each row.",
            ) from error
    return pa.table(columns, names=names or [f"p{place}" for place in range(1, len(first) + 1)])


def _in_order(row: Parameters, names: Sequence[str] | None) -> Sequence[Any]:
    return [row[name] for name in names or ()] if isinstance(row, Mapping) else row


def _alike(values: list[Any]) -> list[Any]:
    """Numbers of several types as ``Decimal`` where one of them is."""
    if not any(isinstance(each, Decimal) for each in values):
        return values
    return [Decimal(str(each)) if type(each) in (int, float) else each for each in values]
