"""Constants of expressions as Python values, and what is computed of them while a statement is written."""

from __future__ import annotations

import calendar
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlglot import exp

from dqp.sql.dialects.typing import (
    BOOLEAN,
    DATE,
    DOUBLE,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    WHOLE,
    NotPushed,
    Type,
    fits,
    of_integer,
)

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?")
_OFFSET = re.compile(r"[+-]\d{2}(?::\d{2})?")
_UNITS = {"DAY": "days", "WEEK": "weeks", "HOUR": "hours", "MINUTE": "minutes", "SECOND": "seconds"}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_SHORT = 38


def number(text: str) -> tuple[Any, Type]:
    """A numeric literal: its value and the type that DuckDB gives it, which depends on the digits written."""
    if re.fullmatch(r"\d+", text):
        value = int(text)
        return (value, of_integer(value)) if value < 1 << 127 else (float(text), DOUBLE)
    if re.fullmatch(r"\d*\.\d*", text):
        whole, _, fraction = text.partition(".")
        if len(whole) + len(fraction) <= _SHORT:
            return Decimal(text if whole or fraction else "0"), Type("DECIMAL", len(whole + fraction), len(fraction))
    return float(text), DOUBLE


def day(text: str) -> date:
    """NotPushed for every form but the plain one."""
    if _DATE.fullmatch(text):
        try:
            return date.fromisoformat(text)
        except ValueError as error:
            raise NotPushed(f"{text!r} is not a date") from error
    raise NotPushed(f"{text!r} is not a date of the form YYYY-MM-DD")


def moment(text: str) -> datetime:
    """NotPushed for any other form than YYYY-MM-DD HH:MM:SS, where databases read differently."""
    if _DATE.fullmatch(text):
        return datetime.combine(day(text), datetime.min.time())
    if _MOMENT.fullmatch(text):
        try:
            return datetime.fromisoformat(text)
        except ValueError as error:
            raise NotPushed(f"{text!r} is not a time") from error
    raise NotPushed(f"{text!r} is not a time of the form YYYY-MM-DD HH:MM:SS")


def instant(text: str) -> datetime:
    """A moment in UTC, which is the federation's time zone where the text has no offset. NotPushed as ``moment``."""
    offset = _OFFSET.search(text, 11)
    if offset is None or offset.end() != len(text):
        return moment(text).replace(tzinfo=UTC)
    local = moment(text[: offset.start()])
    try:
        return datetime.fromisoformat(f"{local.isoformat()}{offset[0]}").astimezone(UTC)
    except (OverflowError, ValueError) as error:
        raise NotPushed(f"{text!r} is not a time") from error


def cast(value: Any, own: Type, to: Type) -> Any:
    """A constant as a value of another type, where that is without loss and beyond doubt."""
    if value is None or own == to:
        return value
    if own == VARCHAR and to == DATE:
        return day(value)
    if own == VARCHAR and to == TIMESTAMP:
        return moment(value)
    if to == TIMESTAMPTZ and own == VARCHAR:
        return instant(value)
    if to == TIMESTAMPTZ and own in (DATE, TIMESTAMP):
        return cast(value, own, TIMESTAMP).replace(tzinfo=UTC)
    if own == DATE and to == TIMESTAMP:
        return datetime.combine(value, datetime.min.time())
    if own in WHOLE and (to == DOUBLE or to in WHOLE):
        return _whole(value, to)
    if to.name == "DECIMAL" and isinstance(value, int | Decimal) and own != BOOLEAN:
        exact = Decimal(value)
        _, digits, exponent = exact.as_tuple()
        assert isinstance(exponent, int)
        if -exponent <= to.scale and len(digits) + exponent <= to.width - to.scale:
            return exact
    if to == DOUBLE and isinstance(value, Decimal) and len(value.as_tuple().digits) <= 15:
        return float(value)
    raise NotPushed(f"the constant {value!r} as {to} needs a conversion that is DuckDB's own")


def _whole(value: int, to: Type) -> Any:
    if to == DOUBLE and abs(value) <= 1 << 53:
        return float(value)
    if fits(value, to):
        return value
    raise NotPushed(f"the constant {value} does not fit {to}")


def span(node: exp.Interval) -> tuple[int, timedelta]:
    """Months and the rest of a constant interval."""
    unit = str(node.args["unit"].name).upper().rstrip("S") if node.args.get("unit") else ""
    amount = node.this
    sign = 1
    if isinstance(amount, exp.Neg):
        amount, sign = amount.this, -1
    text = amount.name if isinstance(amount, exp.Literal) else ""
    if not re.fullmatch(r"-?\d{1,9}", text):
        raise NotPushed("an interval that is not a constant number of one unit")
    count = sign * int(text)
    if unit in _MONTHS:
        return count * _MONTHS[unit], timedelta()
    if unit in _UNITS:
        try:
            return 0, timedelta(**{_UNITS[unit]: count})
        except OverflowError as error:
            raise NotPushed(f"an interval of {count} {unit.lower()}s") from error
    raise NotPushed(f"an interval of {unit.lower() or 'several units'}")


def moved(start: date, months: int, rest: timedelta) -> datetime:
    """A date or time plus an interval, as DuckDB adds them: months first, the day cut to the month's end."""
    whole = start if isinstance(start, datetime) else datetime.combine(start, datetime.min.time())
    month = whole.year * 12 + whole.month - 1 + months
    year, month = divmod(month, 12)
    if not 1 <= year <= 9998:
        raise NotPushed("a date beyond the years 1 to 9998")
    last = calendar.monthrange(year, month + 1)[1]
    try:
        return whole.replace(year=year, month=month + 1, day=min(whole.day, last)) + rest
    except OverflowError as error:
        raise NotPushed("a date beyond the years 1 to 9999") from error
