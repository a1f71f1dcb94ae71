"""Keys that columns are compared with, as one node however many there are: an expression a key would take longer to
build, to copy and to write than the rows take that it keeps away.

``Keys`` are whole numbers, written into the statement. ``Members`` are combinations of any values, which travel beside
it as a table that it alone sees (docs/decisions/0015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from dqp.algebra.operators import SELECTIVITY, column

MOST_KEYS = 500_000
"""Combinations that travel as a table."""
MOST_BYTES = 8 << 20
"""What such a table has at most: half of what a service takes unless it is told otherwise."""
LARGE = 100_000
"""Keys beyond which a look is as slow as it gets; fewer are found faster, in proportion."""


@dataclass(frozen=True, eq=False)
class KeyTable:
    """Combinations of keys, each once and none with a NULL; equal to nothing but itself. ``name`` is unique in the
    query."""

    name: str
    data: pa.Table


class Keys(exp.Expression, exp.Predicate):
    """``this`` is one of the numbers in ``text``, which are separated by commas."""

    arg_types = {"this": True, "text": True}  # noqa: RUF012

    @property
    def text_of_numbers(self) -> str:
        text: str = self.args["text"]
        return text


class Members(exp.Expression, exp.Predicate):
    """``expressions`` together are a row of ``table``."""

    arg_types = {"expressions": True, "table": True}  # noqa: RUF012

    @property
    def key_table(self) -> KeyTable:
        table: KeyTable = self.args["table"]
        return table


def among(name: str, numbers: Sequence[int], part: float) -> Keys:
    """``part``: of the rows for which it holds, by estimate."""
    made = Keys(this=column(name), text=",".join(map(str, numbers)))
    made.meta[SELECTIVITY] = part
    return made


def members(names: Sequence[str], table: KeyTable, part: float) -> Members:
    """``names`` of columns, in the order of the table's; ``part`` as of ``among``."""
    made = Members(expressions=[column(each) for each in names], table=table)
    made.meta[SELECTIVITY] = part
    return made
