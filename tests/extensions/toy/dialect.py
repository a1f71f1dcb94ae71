"""What the toy database may be left to do."""

from typing import ClassVar

from dqp.algebra.dialects import Costs
from dqp.sql.dialects.dialect import Dialect
from dqp.sql.dialects.expressions import expanded


class ToySQL(Dialect):
    """Equality, groups and sums; a row of it is so dear that sums are made there."""

    product = "Toy"
    COSTS = Costs(row=1e-3, byte=1e-6, scan=1e-9, work=1e-9)
    MOST_NUMBERS = 3
    MERGED_TYPES = ("VARCHAR",)
    COLUMNS: ClassVar = {
        "integer": frozenset({"integer"}),
        "bigint": frozenset({"bigint"}),
        "varchar": frozenset({"varchar"}),
    }
    OPERATIONS = expanded(
        {
            "=": {"integer bigint varchar": "{0} = {1}"},
            "group": {"integer bigint varchar": "{a}"},
            "sum": {"integer bigint": "SUM({a})"},
        }
    )
