"""Which statements every version of SQLite computes alike.

ADBC's SQLite, which reads large results, is another version than the driver's. Versions round, add floating numbers,
write them as text and read dates in different ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_ALIKE = frozenset("abs char coalesce count dense_rank ifnull iif max min nullif rank row_number typeof".split())
"""Functions that every version of SQLite computes alike, each time they are called."""
_NUMBERS = frozenset("abs coalesce ifnull iif max min nullif".split())
"""Those of them whose value is a floating number if an argument is."""
_OF_TEXTS = frozenset("glob instr length like lower ltrim replace rtrim substr substring trim unicode upper".split())
"""Functions that they compute alike unless an argument is a floating number, which these read as text."""
_UNLIKE = frozenset({"Concat", "VOpen"})
"""Of SQLite's machine: ``||``, which writes numbers as text; tables whose rows a function gives."""
_CALLS = ("Function", "PureFunc", "Agg")
"""What operations that call a function begin with."""
_WHOLE = ord("D")
"""A cast to whole numbers. Other casts write floating numbers as text, or read them from it."""


def computes_alike(program: Sequence[Sequence[Any]]) -> bool:
    """Whether every version of SQLite gives these rows, however often it computes a value. ``program``: what EXPLAIN
    says of the statement, its views and generated columns."""
    floating = _floating(program)
    for _, operation, _, second, _, called, *_ in program:
        if operation in _UNLIKE or (operation == "Cast" and second != _WHOLE):
            return False
        if operation.startswith(_CALLS):
            name, arguments = _called(second, called)
            if name not in _ALIKE and (name not in _OF_TEXTS or not floating.isdisjoint(arguments)):
                return False
    return True


def _called(first: int, called: Any) -> tuple[str, range]:
    """The name of a function, and the registers of its arguments; none where it takes any number of them."""
    name, _, number = str(called).partition("(")
    return name, range(first, first + int(number.rstrip(")")))


def _floating(program: Sequence[Sequence[Any]]) -> set[int]:
    """The registers that may have floating numbers: from columns that are declared so, from numbers in the statement
    and from arithmetic; and what is copied or computed from these, or read from rows that SQLite has made with them."""
    registers: set[int] = set()
    tables = {first for _, operation, first, *_ in program if operation == "OpenRead"}
    rows, known = False, -1
    while known < len(registers) + rows:  # what stands first may run last
        known = len(registers) + rows
        for _, operation, first, second, third, called, *_ in program:
            if operation == "RealAffinity":
                registers.add(first)
            elif operation == "AggValue" and first in registers:
                registers.add(third)
            elif operation == "Real":
                registers.add(second)
            elif operation in ("Add", "Subtract", "Multiply", "Divide"):
                registers.add(third)
            elif operation in ("Copy", "SCopy"):
                more = third if operation == "Copy" else 0
                registers |= {second + each for each in range(more + 1) if first + each in registers}
            elif operation == "MakeRecord":
                rows = rows or not registers.isdisjoint(range(first, first + second))
            elif operation == "Column" and rows and first not in tables:
                registers.add(third)
            elif operation.startswith(_CALLS):
                name, arguments = _called(second, called)
                if name in _NUMBERS and (not arguments or not registers.isdisjoint(arguments)):
                    registers.add(third)
    return registers
