"""What the columns of tables arrive as, compared with what was planned: a table may have been changed since.

Columns that a statement hands out are compared in every answer. Those that it only computes with are asked for beside
it, without rows, where nobody has done so for PROBED_SECONDS.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dai.streams.stream import TYPE_NAME
from dqp.algebra.types import TEXT, duckdb_type
from dqp.errors import ChangedError

PROBED_SECONDS = 1.0
_MOST_PROBES = 10_000
Origin = tuple[str | None, str, str]
"""Schema, table and column in the source."""


@dataclass(frozen=True)
class Promise:
    """``columns``: of a statement, identifier and DuckDB type; ``origins``: of those that are columns of tables;
    ``loose``: those whose type is that of their values: whole numbers alone, of others, come as such."""

    columns: tuple[tuple[str, str], ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)
    loose: tuple[str, ...] = ()

    def check(self, arrived: Sequence[pa.Field]) -> None:
        """Raises ChangedError, which names the columns that arrive in other types than planned."""
        if len(arrived) != len(self.columns):
            return  # whoever names them says so
        pairs = zip(self.columns, arrived, strict=True)
        wrong = [
            (self.origins[name], type, each)
            for (name, type), each in pairs
            if name in self.origins and not _fits(type, each, name in self.loose)
        ]
        if wrong:
            said = ", ".join(f"{name} was {type}, is {duckdb_type(each.type)}" for (_, _, name), type, each in wrong)
            raise ChangedError(
                f"Columns of {wrong[0][0][1]} have other types than when the query was planned: {said}.",
                hint="Ask again. If it stays so, the column has values of several types: cast it in the query.",
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
    """When the types of columns were last asked for. Thread-safe."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def is_due(self, columns: Hashable) -> bool:
        """Whether they are to be asked for now; nobody else is told so for PROBED_SECONDS."""
        now = time.monotonic()
        with self._lock:
            if now - self._asked.get(columns, -math.inf) < PROBED_SECONDS:
                return False
            if len(self._asked) >= _MOST_PROBES:
                self._asked.clear()
            self._asked[columns] = now
        return True
