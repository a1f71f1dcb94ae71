"""Lists as the array text of PostgreSQL (documentation, section 8.15.6) and back, without a loop over rows.

Writing joins the texts of the elements over the offsets of the lists. Reading looks at all characters of the column
at once: which are escaped, which stand in quotes, how deep the braces are. From that follow the separators of the
outermost level; what lies between them are the elements, in one string column, whatever their type.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import DataError
from dai.formats.values.binary import characters, spans, strings_of, validity

_NEEDS_QUOTES = r'^$|[{},"\\\s]|^(?i:null)$'
_QUOTE, _ESCAPE, _COMMA, _OPEN, _CLOSE = (ord(character) for character in '"\\,{}')


def as_list(array: pa.Array) -> pa.ListArray:
    """A large or fixed-size list array as a plain one."""
    if pa.types.is_list(array.type):
        return array
    return array.cast(pa.list_(array.type.value_type))


def with_values(lists: pa.ListArray, values: pa.Array) -> pa.ListArray:
    """The shape of ``lists`` over other ``values``, which correspond to ``lists.flatten()``."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return _lists(lengths, values, lists)


def _lists(lengths: npt.NDArray[np.int64], values: pa.Array, like: pa.Array) -> pa.ListArray:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [validity(like), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(values.type), len(lengths), buffers, like.null_count, children=[values])


def to_text(lists: pa.ListArray, element_text: Callable[[pa.Array], pa.StringArray], quoted: bool) -> pa.StringArray:
    """``{1,NULL,"a b"}``; ``quoted`` where the elements are text that may need quotes."""
    texts = element_text(lists.flatten())
    if quoted:
        needed = pc.match_substring_regex(texts, _NEEDS_QUOTES)
        if pc.any(needed).as_py():
            escaped = pc.replace_substring_regex(texts, r'(["\\])', r"\\\1")
            texts = pc.if_else(needed, pc.binary_join_element_wise('"', escaped, '"', ""), texts)
    joined = pc.binary_join(with_values(lists, texts.fill_null("NULL")), ",")
    return pc.binary_join_element_wise("{", joined, "}", "")


def from_text(
    strings: pa.StringArray, type_: pa.DataType, parse_elements: Callable[[pa.StringArray], pa.Array]
) -> pa.ListArray:
    """The inverse. Raises DataError where braces or quotes do not match or something stands outside the braces."""
    filled = strings.fill_null("{}") if strings.null_count else strings
    text = characters(filled)
    offsets = spans(filled).astype(np.int64)
    starts, ends = offsets[:-1] - offsets[:1], offsets[1:] - offsets[:1]
    if len(starts) == 0:
        return pa.array([], type_)
    if (ends - starts < 2).any() or (text[starts] != _OPEN).any() or (text[ends - 1] != _CLOSE).any():
        raise DataError("not a list in braces")
    escaped = _escaped(text)
    quotes = (text == _QUOTE) & ~escaped
    inside = (np.cumsum(quotes) & 1).astype(np.bool_)
    outside = ~inside & ~escaped
    opening, closing = (text == _OPEN) & outside, (text == _CLOSE) & outside
    depth = np.cumsum(opening.astype(np.int32) - closing)
    _check(text, starts, ends, depth, inside)

    outer = np.zeros(len(text), np.bool_)
    outer[starts] = outer[ends - 1] = True
    level = (depth == 1) & ~outer
    separators = (text == _COMMA) & outside & level
    # What remains of an element: not the quotes around it, not its backslashes, but all of a list within.
    dropped = outer | separators | (quotes & level) | ((text == _ESCAPE) & ~escaped & level)
    positions = np.concatenate(([0], np.cumsum(~dropped)))

    # An element begins after the opening brace or a comma, and ends before a comma or the closing brace.
    begins = np.flatnonzero(separators | (opening & outer)) + 1
    stops = np.flatnonzero(separators | (closing & outer))
    full = (ends - starts) > 2
    commas = np.concatenate(([0], np.cumsum(separators)))
    counts = np.where(full, commas[ends] - commas[starts] + 1, 0)
    nonempty = np.repeat(full, np.where(full, counts, 1))
    begins, stops = begins[nonempty], stops[nonempty]
    if (begins == stops).any():
        raise DataError("an empty element")
    if quotes.any():
        _check_quotes(text, quotes, begins, stops)
    lengths = positions[stops] - positions[begins]
    elements = strings_of(text[~dropped], lengths, pa.nulls(0))
    bare = pa.array(text[begins] != _QUOTE, pa.bool_())
    null = pc.and_(bare, pc.equal(pc.ascii_upper(elements), "NULL"))
    values = parse_elements(pc.if_else(null, None, elements))
    return _lists(counts, values, strings)


def _check(
    text: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    depth: npt.NDArray[np.int32],
    inside: npt.NDArray[np.bool_],
) -> None:
    """Every text closes exactly at its own end what it opened."""
    if inside[ends - 1].any() or (depth[ends - 1] != 0).any() or np.count_nonzero(depth == 0) != len(ends):
        raise DataError("braces or quotes do not match")


def _check_quotes(
    text: npt.NDArray[np.uint8],
    quotes: npt.NDArray[np.bool_],
    begins: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
) -> None:
    """An element is in quotes as a whole or not at all."""
    total = np.concatenate(([0], np.cumsum(quotes)))
    number = total[stops] - total[begins]
    whole = (text[begins] == _QUOTE) & quotes[stops - 1] & (number == 2)
    if ((number > 0) & ~whole & (text[begins] != _OPEN)).any():
        raise DataError("quotes in the middle of an element")


def _escaped(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which characters follow an odd run of backslashes, so that the last of them escapes them."""
    escapes = text == _ESCAPE
    if not escapes.any():
        return np.zeros(len(text), np.bool_)
    places = np.arange(len(text))
    # The last place before each character that holds no backslash; a run is what lies between.
    last = np.maximum.accumulate(np.where(escapes, -1, places))
    run = np.empty(len(text), np.int64)
    run[0] = 0
    run[1:] = places[:-1] - last[:-1]
    return (run & 1).astype(np.bool_)
