"""Dates, times, timestamps, durations and intervals as ISO 8601 text and back, by kernels."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import DataError
from dai.formats.values import instants
from dai.formats.values.binary import validity

_DAY = 86_400
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_FOUR_DIGITS = (-719_528, 2_932_896)
"""The days 0000-01-01 and 9999-12-31 since 1970-01-01: years that four digits hold, and that Arrow's parser reads."""
_RARE_YEAR = r"^-|^\+|^\d{5}|^1677-"
"""Years outside 0000-9999, and the first one of nanoseconds."""
_INTERVAL = (
    r"^P(?:(?P<years>[+-]?\d+)Y)?(?:(?P<months>[+-]?\d+)M)?(?:(?P<weeks>[+-]?\d+)W)?(?:(?P<days>[+-]?\d+)D)?"
    r"(?:T(?:(?P<hours>[+-]?\d+)H)?(?:(?P<minutes>[+-]?\d+)M)?"
    r"(?:(?P<sign>[+-]?)(?P<seconds>\d+)(?:[.,](?P<fraction>\d{1,9}))?S)?)?$"
)
_DURATION = (
    r"^(?P<sign>[+-]?)(?P<hours>\d{1,10}):(?P<minutes>[0-5]\d):(?P<seconds>[0-5]\d)(?:\.(?P<fraction>\d{1,9}))?$"
)
_MONTH_DAY_NANO = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])


def to_text(array: pa.Array, precision: int | None) -> pa.StringArray:
    """The text of a canonical temporal column; ``precision`` is the declared number of digits below the second."""
    type_, types = array.type, pa.types
    if types.is_date32(type_):
        return _date_text(array)
    if types.is_timestamp(type_):
        return _timestamp_text(_shortened(array, precision))
    if types.is_time(type_):
        return _common_text(_shortened(array, precision))
    if types.is_duration(type_):
        return _duration_text(array, precision)
    return _interval_text(array)


def from_text(strings: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """The inverse; ``strings`` may also have a space for the ``T`` and fewer digits. Raises
    ArrowInvalid or DataError."""
    types = pa.types
    if types.is_date(type_) or types.is_timestamp(type_):
        return _instants(strings, type_)
    if types.is_time(type_):
        day = strings.fill_null("00:00").cast(pa.string())
        if not pc.all(pc.match_substring_regex(day, r"^\d\d:\d\d"), min_count=0).as_py():
            raise DataError("not a time")
        moments = pc.binary_join_element_wise("1970-01-01T", strings, "").cast(pa.timestamp(type_.unit))
        return moments.cast(pa.int64()).cast(type_) if type_.bit_width == 64 else moments.cast(type_)
    if types.is_duration(type_):
        return _durations(strings, type_)
    return _intervals(strings)


def _shortened(array: pa.Array, precision: int | None) -> pa.Array:
    """The same values in the coarsest unit that writes the declared digits; as they are where one has more digits."""
    if precision is None or precision > 3:
        return array
    unit = "s" if precision == 0 else "ms"
    shorter = pa.timestamp(unit, array.type.tz) if pa.types.is_timestamp(array.type) else pa.time32(unit)
    try:
        return array.cast(shorter)
    except pa.ArrowInvalid:
        return array


def _outside(low: pa.Scalar, high: pa.Scalar, per_day: int) -> bool:
    least, most = low.as_py(), high.as_py()
    return least is not None and bool(least < _FOUR_DIGITS[0] * per_day or most >= (_FOUR_DIGITS[1] + 1) * per_day)


def _date_text(array: pa.Array) -> pa.StringArray:
    numbers = array.cast(pa.int32())
    limits = pc.min_max(numbers)
    if _outside(limits["min"], limits["max"], 1):
        return _long_years(array, numbers, 1)
    return _common_text(array)


def _timestamp_text(array: pa.Array) -> pa.StringArray:
    zone = array.type.tz
    numbers = array.cast(pa.int64())
    limits = pc.min_max(numbers)
    per_day = _PER_SECOND[array.type.unit] * _DAY
    plain = numbers.cast(pa.timestamp(array.type.unit))
    text = (
        _long_years(plain, numbers, per_day) if _outside(limits["min"], limits["max"], per_day) else _common_text(plain)
    )
    return text if zone is None else pc.binary_join_element_wise(text, "Z", "")


def _common_text(array: pa.Array) -> pa.StringArray:
    """Within the years of four digits."""
    if (text := instants.texts(array)) is not None:
        return text
    text = array.cast(pa.string())
    # Ten characters of date, a space that ISO 8601 wants to be a T.
    return pc.replace_substring(text, " ", "T") if pa.types.is_timestamp(array.type) else text


def _long_years(array: pa.Array, numbers: pa.Array, per_day: int) -> pa.StringArray:
    """The years before 0000 and after 9999, which Arrow does not write, by numpy; the others as always."""
    inside = pc.and_(
        pc.greater_equal(numbers, _FOUR_DIGITS[0] * per_day), pc.less(numbers, (_FOUR_DIGITS[1] + 1) * per_day)
    )
    text = (_timestamp_text if pa.types.is_timestamp(array.type) else _date_text)(pc.if_else(inside, array, None))
    unit = array.type.unit if pa.types.is_timestamp(array.type) else "D"
    rare = numbers.filter(pc.invert(inside)).cast(pa.int64()).to_numpy().view(f"M8[{unit}]")
    if np.isnat(rare).any():
        raise DataError(f"The smallest number of type {array.type} has no date.")
    written = pa.array(np.datetime_as_string(rare).astype(object), pa.string())
    for digits in (3, 2, 1):
        written = pc.replace_substring_regex(written, rf"^-(\d{{{digits}}})-", "-" + "0" * (4 - digits) + r"\1-")
    return pc.replace_with_mask(text, pc.invert(inside.fill_null(True)), written)


def _instants(strings: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Arrow parses years of four digits; what it fails on and looks like the edge of the type's range goes to numpy."""
    date = pa.types.is_date(type_)
    try:
        if not date or (pc.max(pc.binary_length(strings)).as_py() or 0) <= 10:
            return strings.cast(type_)
    except pa.ArrowInvalid:
        if not pc.any(pc.match_substring_regex(strings, _RARE_YEAR), min_count=0).as_py():
            raise
    rare = pc.match_substring_regex(strings, _RARE_YEAR).fill_null(False)
    clock = "" if date else r"[T ]\d\d:\d\d:\d\d(\.\d+)?" + ("" if type_.tz is None else "Z")
    texts = strings.filter(rare)
    if not pc.all(pc.match_substring_regex(texts, r"^[+-]?\d{4,7}-\d\d-\d\d" + clock + "$"), min_count=0).as_py():
        raise DataError("not a date")
    parts = pc.extract_regex(pc.ascii_ltrim(texts, "+"), r"^(?P<date>-?\d+-\d\d-\d\d)[T ]?(?P<clock>[0-9:.]*)")
    try:
        days = parts.field("date").to_numpy(zero_copy_only=False).astype("U").astype("M8[D]").view(np.int64)
    except ValueError as error:
        raise DataError("not a date") from error
    if date:
        numbers = pa.array(days).cast(pa.int32()).cast(type_)
    else:
        per_day = _PER_SECOND[type_.unit] * _DAY
        clock = from_text(parts.field("clock"), pa.time64(type_.unit)).cast(pa.int64())
        # From the end of the day backwards before 1970, so that no step leaves the range when the result does not.
        before = days < 0
        day = pc.multiply_checked(pa.array(days + before), per_day)
        numbers = pc.add_checked(day, pc.subtract(clock, pa.array(before * per_day))).cast(type_)
    return pc.replace_with_mask(pc.if_else(rare, None, strings).cast(type_), rare, numbers)


def _two(numbers: pa.Array) -> pa.StringArray:
    return pc.ascii_lpad(numbers.cast(pa.string()), 2, "0")


def _duration_text(array: pa.Array, precision: int | None) -> pa.StringArray:
    per_second = _PER_SECOND[array.type.unit]
    numbers = array.cast(pa.int64())
    if pc.any(pc.equal(numbers, np.iinfo(np.int64).min), min_count=0).as_py():
        raise DataError(f"The smallest number of type {array.type} has no positive counterpart.")
    size = pc.abs(numbers)
    hours = pc.divide(size, 3600 * per_second)
    rest = pc.subtract(size, pc.multiply(hours, 3600 * per_second))
    clock = _shortened(rest.cast(pa.time64(array.type.unit)), precision).cast(pa.string())
    sign = pc.if_else(pc.less(numbers, 0), "-", "")
    return pc.binary_join_element_wise(sign, _two(hours), pc.utf8_slice_codeunits(clock, 2), "")


def _durations(strings: pa.StringArray, type_: pa.DataType) -> pa.Array:
    parts = pc.extract_regex(strings, _DURATION)
    if parts.null_count > strings.null_count:
        raise DataError("not a duration")
    sign, hours, minutes, seconds, fraction = (pc.if_else(parts.is_valid(), parts.field(i), None) for i in range(5))
    whole = pc.add_checked(
        pc.multiply(hours.cast(pa.int64()), 3600),
        pc.add(pc.multiply(minutes.cast(pa.int64()), 60), seconds.cast(pa.int64())),
    )
    size = pc.add_checked(pc.multiply_checked(whole, _PER_SECOND[type_.unit]), _fraction(fraction, type_.unit))
    return pc.if_else(pc.equal(sign, "-"), pc.negate(size), size).cast(type_)


def _fraction(digits: pa.StringArray, unit: str) -> pa.Array:
    """``"5"`` is 500 in milliseconds; DataError for more digits than the unit has."""
    nanoseconds = pc.ascii_rpad(digits, 9, "0").cast(pa.int64())
    step = 1_000_000_000 // _PER_SECOND[unit]
    numbers = pc.divide(nanoseconds, step)
    if not pc.all(pc.equal(pc.multiply(numbers, step), nanoseconds), min_count=0).as_py():
        raise DataError(f"more digits than {unit} hold")
    return numbers


def _interval_text(array: pa.Array) -> pa.StringArray:
    raw = np.frombuffer(array.buffers()[1] or b"", _MONTH_DAY_NANO)[array.offset : array.offset + len(array)]
    months, days, nanoseconds = (pa.array(raw[name]) for name in _MONTH_DAY_NANO.names or ())
    years = pc.divide(months, 12)
    seconds = pc.divide(nanoseconds, 1_000_000_000)
    fraction = pc.subtract(nanoseconds, pc.multiply(seconds, 1_000_000_000))
    minutes, hours = pc.divide(seconds, 60), pc.divide(seconds, 3600)
    date = [
        _part(years, "Y"),
        _part(pc.subtract(months, pc.multiply(years, 12)), "M"),
        _part(days, "D"),
    ]
    clock = [
        _part(hours, "H"),
        _part(pc.subtract(minutes, pc.multiply(hours, 60)), "M"),
        _seconds(pc.subtract(seconds, pc.multiply(minutes, 60)), fraction),
    ]
    time = pc.binary_join_element_wise(*clock, "")
    time = pc.if_else(pc.equal(time, ""), "", pc.binary_join_element_wise("T", time, ""))
    text = pc.binary_join_element_wise("P", *date, time, "")
    text = pc.if_else(pc.equal(text, "P"), "PT0S", text)
    return pc.if_else(array.is_valid(), text, None)


def _part(numbers: pa.Array, letter: str) -> pa.StringArray:
    return pc.if_else(pc.equal(numbers, 0), "", pc.binary_join_element_wise(numbers.cast(pa.string()), letter, ""))


def _seconds(seconds: pa.Array, fraction: pa.Array) -> pa.StringArray:
    """Both have the same sign or are zero."""
    sign = pc.if_else(pc.or_(pc.less(seconds, 0), pc.less(fraction, 0)), "-", "")
    digits = pc.ascii_rtrim(pc.ascii_lpad(pc.abs(fraction).cast(pa.string()), 9, "0"), "0")
    point = pc.if_else(pc.equal(fraction, 0), "", pc.binary_join_element_wise(".", digits, ""))
    text = pc.binary_join_element_wise(sign, pc.abs(seconds).cast(pa.string()), point, "S", "")
    return pc.if_else(pc.and_(pc.equal(seconds, 0), pc.equal(fraction, 0)), "", text)


def _intervals(strings: pa.StringArray) -> pa.Array:
    parts = pc.extract_regex(strings, _INTERVAL)
    if parts.null_count > strings.null_count:
        raise DataError("not an ISO 8601 interval")
    if pc.any(pc.or_(pc.equal(strings, "P"), pc.ends_with(strings, "T")), min_count=0).as_py():
        raise DataError("an interval without a part")

    def number(name: str) -> pa.Array:
        text = pc.if_else(parts.is_valid(), pc.struct_field(parts, name), "0")
        return pc.if_else(pc.equal(text, ""), "0", pc.ascii_ltrim(text, "+")).cast(pa.int64())

    months = pc.add_checked(pc.multiply_checked(number("years"), 12), number("months")).cast(pa.int32())
    days = pc.add_checked(pc.multiply_checked(number("weeks"), 7), number("days")).cast(pa.int32())
    minutes = pc.add_checked(pc.multiply_checked(number("hours"), 60), number("minutes"))
    negative = pc.equal(pc.struct_field(parts, "sign"), "-").fill_null(False)
    fraction = _fraction(pc.if_else(parts.is_valid(), pc.struct_field(parts, "fraction"), "0"), "ns")
    seconds = number("seconds")
    seconds, fraction = (pc.if_else(negative, pc.negate(each), each) for each in (seconds, fraction))
    seconds = pc.add_checked(pc.multiply_checked(minutes, 60), seconds)
    # The smallest number of nanoseconds is reached from above only: its whole seconds alone still fit.
    nanoseconds = pc.add_checked(pc.multiply_checked(seconds, 1_000_000_000), fraction)
    raw = np.empty(len(strings), _MONTH_DAY_NANO)
    raw["months"], raw["days"], raw["nanoseconds"] = months, days, nanoseconds
    buffers = [validity(strings), pa.py_buffer(raw)]
    return pa.Array.from_buffers(pa.month_day_nano_interval(), len(strings), buffers, strings.null_count)
