"""Many whole numbers that a column is compared with, as one node: an expression a number would take longer to build,
to copy and to write than the rows take that it keeps away."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dqp.operators import column
from dqp.selectivity import SELECTIVITY


class Keys(exp.Expression, exp.Predicate):
    """``this`` is one of the numbers in ``text``, which are separated by commas."""

    arg_types = {"this": True, "text": True}  # noqa: RUF012

    @property
    def text_of_numbers(self) -> str:
        text: str = self.args["text"]
        return text


def among(name: str, numbers: Sequence[int], part: float) -> Keys:
    """``part``: of the rows for which it holds, by estimate."""
    made = Keys(this=column(name), text=",".join(map(str, numbers)))
    made.meta[SELECTIVITY] = part
    return made
