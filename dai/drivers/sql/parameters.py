"""Parameters by name, and lists, written as the ``?`` that every driver binds.

``:name`` and ``$name`` stand for the value of that name, where values have names; else ``?`` stands for the next one. A
list stands behind IN, for its values: ``id IN :ids``, ``id IN (:ids)``, ``id IN ?``. Texts, quoted names and comments
stay as they are. Values are never pasted.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dai.drivers.sql.lexer import Bound, Token, check_count, edited, tokens
from dai.drivers.sql.suggestions import numbered_parameter, other_parameter
from dai.drivers.sql.syntax import Syntax
from dai.errors import LimitError, ParameterError, StatementError
from dai.plugins import nearest

Parameters = Sequence[Any] | Mapping[str, Any]
MOST_VALUES = 65_535
"""Most values of one statement: PostgreSQL's limit."""
_OPERAND_ENDS = frozenset({"word", "name", "string", "number"})
_GIVE_ONE = (
    'Give it one: query(…, {0}=…) in Python, -p {0}=… on the command line, <sqlParameter name="{0}"> in a document.'
)


def moment(value: datetime.datetime, at: int) -> str:
    """Parameter number ``at`` as ISO 8601 has it, in UTC where it has a zone."""
    try:
        return (value if value.tzinfo is None else value.astimezone(datetime.UTC)).replace(tzinfo=None).isoformat(" ")
    except OverflowError as error:
        raise ParameterError(f"Parameter {at}: {value} is outside the years 1 to 9999 in UTC.") from error


@dataclass(frozen=True, slots=True)
class Placed:
    """A statement whose parameters are ``?`` alone, with their ``values`` in order; a driver that takes names and lists
    by itself gets both as they are."""

    sql: str
    values: Any
    written: str
    bound: Bound | None = None

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Errors get their place in the statement as it was ``written``."""
        try:
            yield
        except StatementError as error:
            if self.bound is None or error.position is None:
                raise
            position = self.bound.original(error.position)
            raise type(error)(
                error.detail, sql=self.written, position=position, sqlstate=error.sqlstate, hint=error.hint
            ) from error


def placed(sql: str, parameters: Parameters, syntax: Syntax) -> Placed:
    """ParameterError for a name without a value, a value without its name in the statement, and a list that does not
    stand behind IN; LimitError for more values than a statement may have."""
    if not isinstance(parameters, Mapping) and not any(isinstance(each, list) for each in parameters):
        if parameters and "?" not in sql and (names := names_in(sql, syntax)):
            raise ParameterError(
                f"The statement has the parameter {names[0]}, but the values have no names.",
                hint=_GIVE_ONE.format(names[0][1:]),
            )
        return Placed(sql, parameters, sql)
    code = [each for each in tokens(sql, syntax) if each.kind != "comment"]
    places = list(
        _named(sql, code, parameters, syntax) if isinstance(parameters, Mapping) else _in_order(code, parameters)
    )
    edits: list[tuple[int, int, str]] = []
    values: list[Any] = []
    for first, last, shown, value in places:
        if isinstance(value, list):
            edits.append(_listed(sql, code, first, last, shown, value, syntax))
            values += value
        else:
            edits.append((code[first].start, code[last].end, "?"))
            values.append(value)
    if len(values) > MOST_VALUES:
        raise LimitError(
            f"The statement has {len(values):,} values; at most {MOST_VALUES:,} are allowed.",
            hint="Send a long list as a table of the query: query('… where id in (select id from wanted)', "
            "tables={'wanted': {'id': […]}}).",
        )
    if not values:  # then no driver looks for ??
        edits += [(start, end, "?") for kind, start, end in code if kind == "escaped"]
    bound = edited(sql, sorted(edits))
    return Placed(bound.sql, values, sql, bound)


def names_in(sql: str, syntax: Syntax) -> list[str]:
    """Names that look like parameters."""
    code = [each for each in tokens(sql, syntax) if each.kind != "comment"]
    return [sql[code[place].start : code[place + 1].end] for place in _names(sql, code)]


def _names(sql: str, code: Sequence[Token]) -> Iterator[int]:
    """The places of ``:`` and ``$`` that a name follows at once, and that no operand or colon precedes at once: those
    belong to a cast, a slice or a structure."""
    for place, (kind, start, end) in enumerate(code[:-1]):
        following = code[place + 1]
        if kind != "symbol" or sql[start] not in ":$" or following.kind != "word" or following.start != end:
            continue
        before = code[place - 1] if place else None
        adjacent = before is not None and before.end == start
        if adjacent and before is not None and (before.kind in _OPERAND_ENDS or sql[before.start] in ":$)]}"):
            continue
        yield place


def _named(
    sql: str, code: Sequence[Token], parameters: Mapping[str, Any], syntax: Syntax
) -> Iterator[tuple[int, int, str, Any]]:
    """(first and last token, how it is written, value) of each parameter."""
    used: set[str] = set()
    for token in code:
        if token.kind == "marker":
            raise ParameterError(
                f"The parameters have names, and the statement has a ? (at character {token.start + 1:,}).",
                hint="Write :name for it; for the operator ?, write ??.",
            )
    for place in _names(sql, code):
        shown = sql[code[place].start : code[place + 1].end]
        name = shown[1:]
        if name not in parameters:
            suggestion = nearest(name, list(parameters))
            named = ", ".join(parameters) or "none"
            raise ParameterError(
                f"Parameter {shown} has no value; given: {named}.",
                hint=suggestion if suggestion.startswith("Did") else _GIVE_ONE.format(name),
            )
        used.add(name)
        yield place, place + 1, shown, parameters[name]
    if surplus := [name for name in parameters if name not in used]:
        raise ParameterError(
            f"The statement does not use parameter {', '.join(f':{name}' for name in surplus)}.",
            hint=_unused(sql, surplus[0], syntax),
        )


def _unused(sql: str, name: str, syntax: Syntax) -> str:
    """How a value gets its place in the statement."""
    if (other := other_parameter(sql, syntax) or numbered_parameter(sql, syntax)) is not None:
        return other
    if f":{name}" in sql:
        return f"In brackets, and right after a word, :{name} is not a parameter. Use a list with IN: … IN :{name}."
    return f"Leave the value out, or use :{name} in the statement."


def _in_order(code: Sequence[Token], parameters: Sequence[Any]) -> Iterator[tuple[int, int, str, Any]]:
    markers = [place for place, token in enumerate(code) if token.kind == "marker"]
    if len(parameters) == 1 and isinstance(parameters[0], list) and len(markers) == len(parameters[0]) != 1:
        raise ParameterError(
            f"The statement has {len(markers)} parameters (?), but a single value was given, a list.",
            hint="Give the values one after the other: query(…, 1, 2), not query(…, [1, 2]).",
        )
    check_count(len(markers), len(parameters))
    for number, (place, value) in enumerate(zip(markers, parameters, strict=True), 1):
        yield place, place, f"? (number {number})", value


def _listed(
    sql: str, code: Sequence[Token], first: int, last: int, shown: str, values: list[Any], syntax: Syntax
) -> tuple[int, int, str]:
    """The edit that writes a list, from IN or NOT on where it is empty."""

    def text(place: int) -> str:
        return sql[code[place].start : code[place].end].upper() if 0 <= place < len(code) else ""

    enclosed = text(first - 1) == "(" and text(last + 1) == ")"
    before = first - 2 if enclosed else first - 1
    if text(before) != "IN":
        raise ParameterError(
            f"Parameter {shown} is a list; a list can only be used with IN.",
            hint=f"Write … IN {shown.split()[0]}, or give one value, without brackets around it.",
        )
    if misfit := next((each for each in values if isinstance(each, list | Mapping)), None):
        raise ParameterError(
            f"Parameter {shown} is a list with a {type(misfit).__name__} in it; a list can only have single values."
        )
    if values:
        markers = ", ".join("?" * len(values))
        return code[first].start, code[last].end, markers if enclosed else f"({markers})"
    negated = text(before - 1) == "NOT"
    start = code[before - 1 if negated else before].start
    return start, code[last + 1 if enclosed else last].end, syntax.not_in_nothing if negated else syntax.in_nothing
