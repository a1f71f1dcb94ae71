"""The JSON text of Arrow columns, by kernels: what ``dai.formats.json`` puts behind the keys."""

from __future__ import annotations

import secrets

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from dai.formats.blocks import byte_view
from dai.formats.values import lists as values_list
from dai.formats.values import text as values

_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
"""RFC 8259, section 6."""
_JSON_TYPES = frozenset({"json", "jsonb", "struct", "map", "union", "variant"})
"""Of the sources: text that is JSON; nested values of DuckDB travel so."""
_MARK = secrets.token_hex(16)
_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}


def json_text(array: pa.Array, field: pa.Field) -> pa.Array:
    """The JSON text of every value; NULL stays NULL."""
    type_, types = array.type, pa.types
    if types.is_null(type_):
        return array.cast(pa.string())
    if types.is_list(type_):
        elements = json_text(array.flatten(), field.with_type(type_.value_type))
        lists = values_list.with_values(array, pc.fill_null(elements, "null"))
        return pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")
    text = values.to_text(array, field)
    if types.is_string(type_) and values.is_numeric_text(field):
        return _bare(text, pc.match_substring_regex(text, _NUMBER))
    if is_json_text(field.with_type(type_)):
        return _bare(text, _are_json(text))
    if types.is_floating(type_):
        finite = pc.is_finite(array)
        if pc.all(finite, min_count=0).as_py():
            return text
        return pc.if_else(finite, text, pc.binary_join_element_wise('"', text, '"', ""))
    if types.is_boolean(type_) or types.is_integer(type_) or types.is_decimal(type_):
        return text
    if types.is_string(type_):
        text = _escaped(text)
    return pc.binary_join_element_wise('"', text, '"', "")


def _bare(text: pa.Array, bare: pa.BooleanArray) -> pa.Array:
    """As it is where ``bare`` says so, but on one line; as a JSON string elsewhere."""
    line = text
    for line_break in ("\n", "\r"):
        if (byte_view(line) == ord(line_break)).any():  # in JSON it stands between values only
            line = pc.replace_substring(line, line_break, " ")
    if pc.all(bare, min_count=0).as_py():
        return line
    return pc.if_else(bare, line, pc.binary_join_element_wise('"', _escaped(text), '"', ""))


def _are_json(text: pa.Array) -> pa.BooleanArray:
    """Which texts are JSON, each by itself: all are parsed at once, with a mark between them that no text can know."""
    texts = text.drop_null()
    one = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    whole = pc.binary_join_element_wise("[", pc.binary_join(one, f',"{_MARK}",'), "]", "")[0].as_buffer()
    try:
        values = orjson.loads(memoryview(whole))
        if len(values) == max(0, 2 * len(texts) - 1) and all(each == _MARK for each in values[1::2]):
            return text.is_valid()
    except ValueError:
        pass
    return pa.array([each is not None and _is_json(each) for each in text.to_pylist()])


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def _escaped(text: pa.Array) -> pa.Array:
    here = byte_view(text)
    if (here == ord("\\")).any():
        text = pc.replace_substring(text, "\\", "\\\\")
    if (here == ord('"')).any():
        text = pc.replace_substring(text, '"', '\\"')
    if (here < 32).any():
        for code in sorted(set(here[here < 32].tolist())):
            text = pc.replace_substring(text, chr(code), _ESCAPES[code])
    return text


def is_json_text(field: pa.Field) -> bool:
    """Whether the texts of a column, or in its lists, are JSON values."""
    return values.source_type(field) in _JSON_TYPES and bool(pa.types.is_string(values.innermost(field.type)))
