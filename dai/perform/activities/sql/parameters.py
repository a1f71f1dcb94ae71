"""Parameters of statements in documents: values by position or by name, lists, and values that streams feed."""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dai.drivers import Driver
from dai.drivers.sql.parameters import Parameters, Placed, placed
from dai.errors import ParameterError
from dai.perform.activity import Context, Element, Input, attribute, child, input, text
from dai.streams.stream import Stream

Converted = Literal["string", "integer", "double", "decimal", "boolean", "date", "time", "timestamp", "binary", "null"]

MOST_DIGITS = 131_072, 16_383
"""Of a decimal, before and behind its point: what PostgreSQL takes, the most of all. An exponent of a few characters
would be written out as gigabytes."""


def _decimal(text: str) -> decimal.Decimal:
    value = decimal.Decimal(text)
    before, behind = MOST_DIGITS
    if value.is_finite() and not -behind <= value.adjusted() < before:
        raise ValueError("too many digits")
    return value


_CONVERSIONS: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "double": float,
    "decimal": _decimal,
    "boolean": lambda value: {"true": True, "1": True, "false": False, "0": False}[value],
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timestamp": datetime.datetime.fromisoformat,
    "binary": lambda value: base64.b64decode(value, validate=True),
    "null": lambda _: None,
}
_WRITTEN = {
    "boolean": "true",
    "decimal": "1.50",
    "date": "2024-01-31",
    "time": "12:30:00",
    "timestamp": "2024-01-31T12:30:00",
    "binary": "aGVsbG8= (base64)",
}


@dataclass(frozen=True, kw_only=True)
class SqlItem(Element):
    """A value of a list."""

    type: Converted | None = attribute(default=None)
    content: str = text(default="")


@dataclass(frozen=True, kw_only=True)
class SqlParameter(Element):
    """A value for the ``?`` at ``position`` (from 1), or for each ``:name``; a statement has one of the two. It is
    the element's text, converted to ``type``; or a list for ``IN :name``, of each ``item`` (``type="list"``); or it
    comes ``from`` an output, one tuple for each execution. Then ``column`` names the column of the tuple; by
    default the first parameter that reads this output takes the first column, the second the second, and so on.
    ``mode`` (default ``in``) is for procedures."""

    position: int | None = attribute(default=None)
    name: str | None = attribute(default=None)
    items: tuple[SqlItem, ...] = child("item", default=())
    source: Input[Stream] | None = input(default=None)
    column: str | None = attribute(default=None)
    type: Literal[Converted, "list"] | None = attribute(default=None)
    mode: Literal["in", "out", "inout"] = attribute(default="in")
    content: str = text(default="")
    value: Any = None

    @property
    def shown(self) -> str:
        return f":{self.name}" if self.name is not None else str(self.position)

    def constant(self) -> Any:
        """The value that stands in the document."""
        if self.type == "list":
            if self.content.strip():
                raise ParameterError(f"Parameter {self.shown} is a list: give its values as <item> elements.")
            return [_constant(each.content, each.type, self.shown) for each in self.items]
        if self.items:
            raise ParameterError(
                f"Parameter {self.shown} has <item> elements, but is not a list.", hint='Set type="list".'
            )
        return self.value if self.value is not None else _constant(self.content, self.type, self.shown)


def _constant(content: str, type: Converted | None, shown: str) -> Any:
    if type is None or type == "string":
        return content
    try:
        return _CONVERSIONS[type](content.strip())
    except (ValueError, KeyError, decimal.InvalidOperation, binascii.Error) as error:
        written = _WRITTEN.get(type)
        raise ParameterError(
            f"Parameter {shown} must be of the type {type}, not {content.strip()!r}.",
            hint=f"Write it like this: {written}." if written else None,
        ) from error


def typed(value: Any, shown: str) -> Any:
    """A value of JSON, where ``{"type": …, "value": …}`` is one of a type that JSON does not have; a list has several.
    ParameterError where the text is none of its type."""
    if isinstance(value, list):
        return [typed(each, shown) for each in value]
    return _constant(value["value"], value["type"], shown) if isinstance(value, Mapping) else value


def in_order(parameters: Sequence[SqlParameter]) -> list[SqlParameter]:
    """By position; positions must run from 1 without a gap."""
    if any(each.position is None for each in parameters):
        raise ParameterError(
            "Not all parameters have positions, or some have names.", hint="Give each parameter a position."
        )
    ordered = sorted(parameters, key=lambda each: each.position or 0)
    if [each.position for each in ordered] != list(range(1, len(ordered) + 1)):
        positions = ", ".join(str(each.position) for each in ordered)
        raise ParameterError(f"The positions of the parameters are {positions}; they must run from 1 without a gap.")
    return ordered


def arranged(parameters: Sequence[SqlParameter]) -> Sequence[SqlParameter]:
    """In order; as they stand where they have names, which all of them have then."""
    if not _have_names(parameters):
        return in_order(parameters)
    names = {each.name for each in parameters if each.position is None} - {None}
    if len(names) < len(parameters):
        raise ParameterError("Give all parameters different names and no positions, or give all parameters positions.")
    return parameters


def _have_names(parameters: Sequence[SqlParameter]) -> bool:
    return bool(parameters) and parameters[0].name is not None


def constants(arranged: Sequence[SqlParameter]) -> Parameters:
    """The values that stand in the document."""
    if _have_names(arranged):
        return {str(each.name): each.constant() for each in arranged}
    return [each.constant() for each in arranged]


def placed_rows(
    driver: Driver, sql: str, arranged: Sequence[SqlParameter], rows: Iterator[tuple[Any, ...]]
) -> tuple[Placed, Iterator[tuple[Any, ...]]]:
    """The statement for rows of values that streams feed, and these in the order of its markers."""
    if not _have_names(arranged):
        return Placed(sql, [None] * len(arranged), sql), rows
    statement = placed(sql, {str(each.name): place for place, each in enumerate(arranged)}, driver.syntax)
    return statement, (tuple(row[place] for place in statement.values) for row in rows)


def parameter_rows(parameters: Sequence[SqlParameter], context: Context) -> Iterator[tuple[Any, ...]] | None:
    """The rows of values that streams feed, or None where every parameter is a constant.

    Streams advance together; ParameterError where one ends before another.
    """
    if not any(each.source for each in parameters):
        return None
    columns: list[Iterator[Any] | None] = []
    fed: dict[str, int] = {}
    for each in parameters:
        if each.source is None:
            columns.append(None)
            continue
        place = fed[each.source.link] = fed.get(each.source.link, -1) + 1
        columns.append(_values(context.tuples(each.source), each, place))
    return _rows(parameters, columns)


def _values(stream: Stream, parameter: SqlParameter, place: int) -> Iterator[Any]:
    if parameter.column is not None:
        place = stream.schema.get_field_index(parameter.column)
    if not 0 <= place < len(stream.schema):
        wanted = repr(parameter.column) if parameter.column else "for it"
        names = ", ".join(stream.schema.names)
        raise ParameterError(f"Parameter {parameter.shown}: there is no column {wanted}; the columns are {names}.")
    with stream:
        for batch in stream:
            yield from batch.column(place).to_pylist()


def _rows(parameters: Sequence[SqlParameter], columns: list[Iterator[Any] | None]) -> Iterator[tuple[Any, ...]]:
    constants = [None if column else each.constant() for each, column in zip(parameters, columns, strict=True)]
    missing = object()
    while True:
        row = [next(column, missing) if column else constants[place] for place, column in enumerate(columns)]
        ended = [column is not None and value is missing for column, value in zip(columns, row, strict=True)]
        if not any(ended):
            yield tuple(row)
            continue
        if any(column is not None and not over for column, over in zip(columns, ended, strict=True)):
            short = next(each.shown for each, over in zip(parameters, ended, strict=True) if over)
            raise ParameterError(f"The values of parameter {short} ended before those of the others.")
        return
