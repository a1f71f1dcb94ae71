"""Columns in Arrow. ``missing`` says where one is NULL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tests.laboratory.draws import Values

Tables: TypeAlias = Iterator[tuple[str, pa.Table]]


def integers(values: Values, missing: Values | None = None, kind: pa.DataType | None = None) -> pa.Array:
    kind = kind or pa.int32()
    return pa.array(np.asarray(values).astype(kind.to_pandas_dtype()), kind, mask=missing)


def longs(values: Values) -> pa.Array:
    return integers(values, kind=pa.int64())


def doubles(values: Values, digits: int, missing: Values | None = None) -> pa.Array:
    return pa.array(np.round(values.astype(float), digits), pa.float64(), mask=missing)


def decimals(unscaled: Values, precision: int, scale: int, missing: Values | None = None) -> pa.Array:
    wide = np.empty((len(unscaled), 2), np.int64)  # little-endian, 128 bits each
    wide[:, 0], wide[:, 1] = unscaled, unscaled >> 63
    present = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(pa.decimal128(precision, scale), len(wide), [present, pa.py_buffer(wide)])


def booleans(values: Values) -> pa.Array:
    return pa.array(values, pa.bool_())


def dates(days: Values, missing: Values | None = None) -> pa.Array:
    return pa.array(days.astype("datetime64[D]"), pa.date32(), mask=missing)


def times(seconds: Values) -> pa.Array:
    return pa.array((seconds * 1_000_000).astype("datetime64[us]"), pa.timestamp("us"))


def table(name: str, **columns: pa.Array) -> tuple[str, pa.Table]:
    return name, pa.table(columns)
