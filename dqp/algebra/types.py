"""Translates the types of columns between Arrow (as sources deliver), DuckDB (as SQL means) and Python (statistics).

DuckDB's type for a column is the one that DuckDB gives to Arrow data of that type. DuckDB has none for two Arrow types:
``readable`` turns decimals of more than 38 digits into text (as a ``numeric`` without precision already is,
ARCHITECTURE.md) and half floats into FLOAT.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dai.streams.stream import Stream

TEXT = "VARCHAR"
_PLAIN = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "halffloat": "FLOAT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": TEXT,
    "large_string": TEXT,
    "string_view": TEXT,
    "null": TEXT,  # a column that never held a value
    "binary": "BLOB",
    "large_binary": "BLOB",
    "binary_view": "BLOB",
    "date32[day]": "DATE",
    "date64[ms]": "DATE",
    "month_day_nano_interval": "INTERVAL",
}
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"decimal(?:32|64|128)\((\d+), ?(\d+)\)"), r"DECIMAL(\1,\2)"),
    (re.compile(r"decimal256\(.*\)"), TEXT),
    (re.compile(r"time(?:32|64)\[\w+\]"), "TIME"),
    (re.compile(r"duration\[\w+\]"), "INTERVAL"),
    (re.compile(r"fixed_size_binary\[\d+\]"), "BLOB"),
    (re.compile(r"timestamp\[\w+, tz=.*\]"), "TIMESTAMP WITH TIME ZONE"),
    (re.compile(r"timestamp\[us\]"), "TIMESTAMP"),
    (re.compile(r"timestamp\[s\]"), "TIMESTAMP_S"),
    (re.compile(r"timestamp\[ms\]"), "TIMESTAMP_MS"),
    (re.compile(r"timestamp\[ns\]"), "TIMESTAMP_NS"),
)
_ARROW = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "HUGEINT": pa.decimal128(38, 0),
    "UHUGEINT": pa.decimal128(38, 0),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP_S": pa.timestamp("us"),
    "TIMESTAMP_MS": pa.timestamp("us"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
    "INTERVAL": pa.month_day_nano_interval(),
}
PLAIN = tuple(_ARROW)
"""DuckDB's names of the types that have an Arrow type of their own, without those of decimals, lists and texts."""
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_LIST = re.compile(r"(?:large_)?list<\w+: (.*?)(?: not null)?>")
_WIDTHS = {
    **dict.fromkeys(("BOOLEAN", "TINYINT", "UTINYINT"), 1.0),
    **dict.fromkeys(("SMALLINT", "USMALLINT"), 2.0),
    **dict.fromkeys(("INTEGER", "UINTEGER", "FLOAT", "DATE"), 4.0),
    **dict.fromkeys(("HUGEINT", "UHUGEINT", "INTERVAL", "DECIMAL"), 16.0),
    TEXT: 24.0,
    "BLOB": 64.0,
}
_WHOLE = frozenset("TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT HUGEINT UHUGEINT".split())


def duckdb_type(arrow: str | pa.DataType) -> str:
    """DuckDB's name for an Arrow type, or for the type's text (``decimal128(12, 2)``); VARCHAR if DuckDB has no such
    type."""
    if isinstance(arrow, pa.DataType) and (pa.types.is_nested(arrow) or pa.types.is_dictionary(arrow)):
        return _nested(arrow)
    text = str(arrow)
    if text in _PLAIN:
        return _PLAIN[text]
    if match := _LIST.fullmatch(text):
        return f"{duckdb_type(match.group(1))}[]"
    for pattern, name in _PATTERNS:
        if match := pattern.fullmatch(text):
            return match.expand(name)
    return TEXT


def _nested(type: pa.DataType) -> str:
    """DuckDB's name for a nested type. Only uploads have these; of nested types, sources deliver only lists."""
    if pa.types.is_dictionary(type):
        return duckdb_type(type.value_type)
    if pa.types.is_struct(type):
        fields = (f'"{each.name.replace(chr(34), 2 * chr(34))}" {duckdb_type(each.type)}' for each in type)
        return f"STRUCT({', '.join(fields)})"
    if pa.types.is_map(type):
        return f"MAP({duckdb_type(type.key_type)}, {duckdb_type(type.item_type)})"
    if pa.types.is_fixed_size_list(type):
        return f"{duckdb_type(type.value_type)}[{type.list_size}]"
    return f"{duckdb_type(type.value_type)}[]"


def arrow_type(type: str) -> pa.DataType:
    """The Arrow type in a result for a DuckDB type (see ARCHITECTURE.md); text if there is no other."""
    if type in _ARROW:
        return _ARROW[type]
    if type.endswith("[]"):
        return pa.list_(arrow_type(type[:-2]))
    if match := _DECIMAL.fullmatch(type):
        return pa.decimal128(int(match[1]), int(match[2]))
    return pa.string()


def readable(stream: Stream) -> Stream:
    """The stream in types that DuckDB reads; the same stream if it has only such types."""
    return _in_types(stream, [_readable(each.type) for each in stream.schema])


def planned(stream: Stream, types: Sequence[str]) -> Stream:
    """The stream in the Arrow types of these DuckDB types: a source that chooses a column's type by its values chooses
    others for other rows, and none where there are none. Reading it raises pyarrow.ArrowInvalid where that loses
    something."""
    return _in_types(stream, [arrow_type(each) for each in types])


def _in_types(stream: Stream, wanted: Sequence[pa.DataType]) -> Stream:
    if all(type == each.type for type, each in zip(wanted, stream.schema, strict=True)):
        return stream
    schema = pa.schema([each.with_type(type) for type, each in zip(wanted, stream.schema, strict=True)])

    def converted(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            column if column.type == type else _cast(column, type)
            for column, type in zip(batch.columns, wanted, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return stream.map(converted, schema)


def _cast(column: pa.Array, type: pa.DataType) -> pa.Array:
    if pa.types.is_integer(column.type) and pa.types.is_decimal(type):  # Arrow looks at the types only, not the values
        column = pc.cast(column, pa.decimal128(38, type.scale))
    return pc.cast(column, type, safe=not pa.types.is_floating(type))


def _readable(type: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal256(type):
        return pa.string()
    if pa.types.is_float16(type):
        return pa.float32()
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_readable(type.value_type)))
    return type


def width(type: str) -> float:
    """Estimated bytes of a value by its type alone."""
    return _WIDTHS.get(type.partition("(")[0], 40.0 if type.endswith("]") else 8.0)


def value(text: str | None, type: str) -> Any:
    """The Python value of a text in a database's statistics; None if it is not a text of that type."""
    if text is None:
        return None
    try:
        return _value(text, type.partition("(")[0])
    except (ValueError, InvalidOperation):
        return None


def _value(text: str, family: str) -> Any:
    if family in _WHOLE:
        return int(text)
    if family == "FLOAT":  # a query says 0.1, not 0.10000000149011612
        text = pa.scalar(float(text), pa.float32()).cast(pa.string()).as_py()
    if family in ("FLOAT", "DOUBLE", "DECIMAL"):
        number = Decimal(text) if family == "DECIMAL" else float(text)
        return number if math.isfinite(number) else None
    if family == "BOOLEAN":
        return {"t": True, "true": True, "1": True, "f": False, "false": False, "0": False}.get(text.lower())
    if family == "DATE":
        return date.fromisoformat(text)
    if family == "TIME":
        return time.fromisoformat(text)
    if family.startswith("TIMESTAMP"):
        return datetime.fromisoformat(text)
    return text if family == TEXT else None


EXACT = frozenset("TINYINT SMALLINT INTEGER BIGINT HUGEINT UTINYINT USMALLINT UINTEGER UBIGINT".split())


def same_values(one: str | None, other: str | None) -> bool:
    """Whether equal values of the two types compare alike with every number; for the same type, with every literal."""
    if one is None or other is None:
        return False
    if one == other:
        return True
    return all(each in EXACT or each.startswith("DECIMAL") for each in (one, other))
