"""Compares the types of arriving columns with the planned ones, because a table may have changed since planning.

The output columns of a statement are compared in every answer. For columns that a statement only computes with, another
statement without rows asks, at most every PROBED_SECONDS.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from dai.streams.stream import TYPE_NAME, Stream
from dqp.algebra.types import TEXT, duckdb_type
from dqp.errors import ChangedError

PROBED_SECONDS = 1.0
_MOST_PROBES = 10_000
Origin = tuple[str | None, str, str]
"""Schema, table and column in the source."""


@dataclass(frozen=True)
class Promise:
    """The planned types of a statement's output. ``columns``: identifier and DuckDB type; ``origins``: the table column
    of each identifier that is one; ``loose``: identifiers of columns whose type depends on their values, so that whole
    numbers may arrive where others were planned."""

    columns: tuple[tuple[str, str], ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)
    loose: tuple[str, ...] = ()

    def checked(self, stream: Stream) -> Stream:
        """The stream. ChangedError, which names the columns that arrive in other types than planned; it is closed
        then."""
        try:
            self._check(stream.schema)
        except BaseException:
            stream.close()
            raise
        return stream

    def _check(self, arrived: pa.Schema) -> None:
        if len(arrived) != len(self.columns):
            return  # the caller reports it when it names the columns
        pairs = zip(self.columns, arrived, strict=True)
        wrong = [
            (self.origins[name], type, each)
            for (name, type), each in pairs
            if name in self.origins and not _fits(type, each, name in self.loose)
        ]
        if wrong:
            changes = ", ".join(f"{name} was {type}, is {duckdb_type(each.type)}" for (_, _, name), type, each in wrong)
            raise ChangedError(
                f"Columns of {wrong[0][0][1]} have changed their types since the query was planned: {changes}.",
                hint="Run the query again. If the error comes back, the column has values of several types: cast it.",
                columns=[[*origin, str(each.type)] for origin, _, each in wrong],
            )


def _fits(wanted: str, arrived: pa.Field, is_loose: bool) -> bool:
    have = duckdb_type(arrived.type)
    if pa.types.is_null(arrived.type) or wanted.replace(" ", "").upper() == have.replace(" ", "").upper():
        return True
    if wanted.startswith("DOUBLE") and have.startswith(TEXT):  # a number that no DECIMAL holds
        source_type: bytes = (arrived.metadata or {}).get(TYPE_NAME, b"")
        return source_type.startswith((b"decimal", b"numeric"))
    return is_loose and (wanted, have) == ("DOUBLE", "BIGINT")


class Probes:
    """Remembers when the types of columns were last asked for. Thread-safe."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def is_due(self, columns: Hashable) -> bool:
        """Whether the caller must ask for them now. Then the answer is False for PROBED_SECONDS."""
        now = time.monotonic()
        with self._lock:
            if now - self._asked.get(columns, -math.inf) < PROBED_SECONDS:
                return False
            if len(self._asked) >= _MOST_PROBES:
                self._asked.clear()
            self._asked[columns] = now
        return True
