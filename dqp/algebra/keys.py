"""Defines the conditions that compare columns with many keys, as one node for all keys.

One expression for each key would cost more to build, copy and write than the filtered rows. ``Keys`` are whole numbers
in the statement's text. ``Members`` are combinations of any values; they travel beside the statement as a query-scoped
table (docs/decisions/0015).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from dqp.algebra.chains import all_of, conjuncts
from dqp.algebra.operators import SELECTIVITY, Filter, Operator, column

MOST_KEYS = 500_000
"""Most combinations in a key table."""
MOST_BYTES = 8 << 20
"""Most bytes of a key table: half of a service's default limit."""
LARGE = 100_000
"""The number of keys from which a look-up is slowest; with fewer keys it is faster in proportion."""
MOST_LOOKED_UP = 1 / 16
"""The part of a table up to which rows are found faster by an index than by reading the table: an eighth with SQLite
and 430,000 rows of 34 columns in memory, a twentieth with 2.9 million, which two processes read."""
_REDUCES = "reduces"
"""In the metadata of a condition that other inputs' keys have added to a statement."""


@dataclass(frozen=True, eq=False)
class KeyTable:
    """Distinct combinations of keys without NULLs. Equal only to itself. ``name`` is unique in the query."""

    name: str
    data: pa.Table


class Keys(exp.Expression, exp.Predicate):
    """The condition that ``this`` is one of the numbers in ``text``, which are in order and separated by
    commas."""

    arg_types = {"this": True, "text": True}  # noqa: RUF012

    @property
    def text_of_numbers(self) -> str:
        text: str = self.args["text"]
        return text


class Members(exp.Expression, exp.Predicate):
    """The condition that ``expressions`` together are a row of ``table``."""

    arg_types = {"expressions": True, "table": True}  # noqa: RUF012

    @property
    def key_table(self) -> KeyTable:
        table: KeyTable = self.args["table"]
        return table


def number_of_keys(condition: exp.Expression) -> int:
    """How many values or combinations the condition looks for in a list or a table; 0 for other conditions."""
    if isinstance(condition, Members):
        return int(condition.key_table.data.num_rows)
    if isinstance(condition, Keys):
        return condition.text_of_numbers.count(",") + 1
    return len(condition.expressions) if isinstance(condition, exp.In) else 0


def in_list(name: str, keys: Iterable[exp.Expression], part: float | None) -> exp.In:
    """The condition that the column is one of the literals; ``part`` as in ``in_numbers``, None if unknown."""
    listed = exp.In(this=column(name), expressions=[*keys])
    if part is not None:
        listed.meta[SELECTIVITY] = part
    return listed


def in_numbers(name: str, numbers: Sequence[int], part: float) -> Keys:
    """The condition that the column is one of the numbers, which are in order. ``part``: the estimated part of the
    rows that it keeps."""
    keys = Keys(this=column(name), text=",".join(map(str, numbers)))
    keys.meta[SELECTIVITY] = part
    return keys


def in_table(names: Sequence[str], table: KeyTable, part: float) -> Members:
    """The condition that the columns are a row of ``table``, in its order; ``part`` as in ``in_numbers``."""
    membership = Members(expressions=[column(each) for each in names], table=table)
    membership.meta[SELECTIVITY] = part
    return membership


def reducing(condition: exp.Expression) -> exp.Expression:
    """The condition, marked as one that only leaves out rows that nothing needs."""
    condition.meta[_REDUCES] = True
    return condition


def reduces(condition: exp.Expression) -> bool:
    return bool(condition._meta) and _REDUCES in condition.meta


def without_members(node: Operator) -> Operator:
    """A filter by what else it asks: keys leave out rows that nothing needs."""
    if not isinstance(node, Filter) or node.condition.find(Members) is None:
        return node
    left = all_of(each for each in conjuncts(node.condition) if not isinstance(each, Members))
    return node.input if left is None else replace(node, condition=left)
