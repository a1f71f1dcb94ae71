"""The rows of a WebRowSet: the text of each is one string of one array, put together by Arrow kernels.

The offsets of that array are the borders of the rows, so a block of any number of rows is a slice of its bytes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import EncodingError
from dai.formats.blocks import byte_view
from dai.formats.rows import concatenated
from dai.formats.webrowset.types import Column, column_text

OPEN, BETWEEN, CLOSE = (
    "<currentRow><columnValue>",
    "</columnValue><columnValue>",
    "</columnValue></currentRow>\n",
)
EMPTY_ROW = "<currentRow></currentRow>\n"
NULL = "<null/>"
REFERENCES = (("&", "&#38;"), ("<", "&#60;"), (">", "&#62;"), ("\r", "&#13;"))
"""Numeric, because readers limit the number of named entities; the ampersand first."""
FORBIDDEN = "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\ufffe\uffff]"
"""XML 1.0, section 2.2, production 2; surrogates are no UTF-8."""


def row_text(batch: pa.RecordBatch, row: int, columns: list[Column], substitute: bool) -> pa.StringArray:
    """One ``currentRow`` a row; ``row`` is the number of the first. Raises EncodingError for a forbidden character."""
    if not columns:
        return pa.repeat(EMPTY_ROW, batch.num_rows)
    parts: list[str | pa.StringArray] = []
    for field, array, column in zip(batch.schema, batch.columns, columns, strict=True):
        text = column_text(array, field, column)
        if _may_need_escape(array.type):
            text = escaped(text, column, row, substitute)
        parts += [BETWEEN, text]
    return concatenated([OPEN, *parts[1:], CLOSE], NULL)


def _may_need_escape(type_: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(type_) or types.is_run_end_encoded(type_) or hasattr(type_, "value_type"):
        return _may_need_escape(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return _may_need_escape(type_.storage_type)
    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def escaped(text: pa.StringArray, column: Column, row: int, substitute: bool) -> pa.StringArray:
    """As text of XML. EncodingError for a character that XML cannot carry, or U+FFFD in its place."""
    data = byte_view(text).tobytes()
    if not data.isascii():
        text = _valid_utf8(text, column, row, substitute)
        data = byte_view(text).tobytes()
    odd = np.count_nonzero(np.frombuffer(data, np.uint8) < 0x20)
    if (odd and odd != sum(data.count(code) for code in b"\t\n\r")) or b"\xef" in data:
        text = _without_forbidden(text, column, row, substitute)
        data = byte_view(text).tobytes()
    for character, reference in REFERENCES:
        if character.encode() in data:
            text = pc.replace_substring(text, character, reference)
    return text


def _valid_utf8(text: pa.StringArray, column: Column, row: int, substitute: bool) -> pa.StringArray:
    """Drivers pass on what a database without an encoding holds; lone surrogates are no UTF-8 either."""
    try:
        text.validate(full=True)
    except pa.ArrowInvalid as error:
        if substitute:
            raw = text.cast(pa.binary()).to_pylist()
            return pa.array([None if each is None else each.decode(errors="replace") for each in raw], pa.string())
        low, high = 0, len(text)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                pa.concat_arrays([text.slice(low, middle - low)]).validate(full=True)
                low = middle
            except pa.ArrowInvalid:
                high = middle
        raise EncodingError(
            f"Row {row + low}, column {column}: the text is not valid UTF-8.", column=column.name, row=row + low
        ) from error
    return text


def _without_forbidden(text: pa.StringArray, column: Column, row: int, substitute: bool) -> pa.StringArray:
    position = pc.index(pc.match_substring_regex(text, FORBIDDEN), True).as_py()
    if position < 0:
        return text
    if substitute:
        return pc.replace_substring_regex(text, FORBIDDEN, "\ufffd")
    value = text[position].as_py()
    code = next(ord(each) for each in value if each in "\ufffe\uffff" or (each < " " and each not in "\t\n\r"))
    raise EncodingError(
        f"Row {row + position}, column {column}: XML cannot carry the character U+{code:04X}.",
        column=column.name,
        row=row + position,
        hint='Remove it in the query, ask for Arrow or CSV, or have it replaced: invalidCharacters="replace" of '
        "sqlResultsToXML, ?invalidCharacters=replace of /query.",
    )
