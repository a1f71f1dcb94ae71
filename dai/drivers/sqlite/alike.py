"""Which statements every version of SQLite computes alike.

ADBC's SQLite, which reads large results, is another version than the driver's. Versions round, add floating numbers,
write them as text and read dates in different ways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_ALIKE = frozenset("abs char coalesce count dense_rank ifnull iif max min nullif rank row_number typeof".split())
"""Functions that every version of SQLite computes alike, each time they are called."""
_NUMBERS = frozenset("abs coalesce ifnull iif max min nullif".split())
"""Those of them whose value is a floating number if an argument is."""
_OF_TEXTS = frozenset("glob instr length like lower ltrim replace rtrim substr substring trim unicode upper".split())
"""Functions that they compute alike unless an argument is a floating number, which these read as text."""
_OF_DAYS = "[0-9][0-9][0-9][0-9]-"
"""What a pattern begins with that no floating number's text is like, whichever version writes it: in these, a minus
stands first or behind an e."""
_NO_DAYS = "+00 days"
"""A modifier that only dqp writes, to ask whether a text is a day: it compares what ``date`` gives with the text. So
nothing depends on how a version reads floating numbers."""
_REFUSING = ("{}", "The column ")
"""What the first argument of ``json_extract`` and ``printf`` begins with where dqp makes an error of a value; ``hex``
comes between them."""
_WRITES_SECOND = frozenset("Blob Int64 Integer Null Real Rowid SCopy SoftNull String String8 Variable".split())
"""Operations whose second number is the register that they write. Of others it is taken to be the third."""
_UNLIKE = frozenset({"Concat", "VOpen"})
"""Of SQLite's machine: ``||``, which writes numbers as text; tables whose rows a function gives."""
_CALLS = ("Function", "PureFunc", "Agg")
"""What operations that call a function begin with."""
_WHOLE = ord("D")
"""A cast to whole numbers. Other casts write floating numbers as text, or read them from it."""


Texts = Callable[[int], Sequence[bool]]
"""Which columns of the table with this root page hold no numbers, in the order in which they are stored; none where
nobody knows."""


def computes_alike(program: Sequence[Sequence[Any]], texts: Texts) -> bool:
    """Whether every version of SQLite gives these rows, however often it computes a value. ``program``: what EXPLAIN
    says of the statement, its views and generated columns."""
    of_texts: list[range] = []
    patterns = _constants(program, lambda text: text.startswith(_OF_DAYS))
    no_days = _constants(program, _NO_DAYS.__eq__)
    refusing = _constants(program, lambda text: text.startswith(_REFUSING))
    said = None
    for _, operation, _, second, third, called, *_ in program:
        before, said = said, None
        if operation in _UNLIKE or (operation == "Cast" and second != _WHOLE):
            return False
        if operation.startswith(_CALLS):
            name, arguments = _called(second, called)
            if (name == "glob" and arguments[0] in patterns) or (name == "date" and second + 1 in no_days):
                continue
            if (name in ("json_extract", "printf") and second in refusing) or (name == "hex" and second == before):
                said = third
                continue
            if name in _OF_TEXTS:
                of_texts.append(arguments)
            elif name not in _ALIKE:
                return False
    if not of_texts:
        return True
    floating = _floating(program, texts)
    return all(floating.isdisjoint(each) for each in of_texts)


def _constants(program: Sequence[Sequence[Any]], wanted: Callable[[str], bool]) -> set[int]:
    """The registers with such a text and nothing else."""
    constants, others = set(), set()
    for _, operation, _, second, third, text, *_ in program:
        if operation == "String8" and wanted(str(text)):
            constants.add(second)
        elif operation in _WRITES_SECOND:
            others.add(second)
        elif operation in ("Copy", "Move"):
            others.update(range(second, second + third + 1))
        elif operation != "Transaction":  # whose third number is that of the schema
            others.add(third)
    return constants - others


def _called(first: int, called: Any) -> tuple[str, range]:
    """The name of a function, and the registers of its arguments; none where it takes any number of them."""
    name, _, number = str(called).partition("(")
    return name, range(first, first + int(number.rstrip(")")))


def _floating(program: Sequence[Sequence[Any]], texts: Texts) -> set[int]:
    """The registers that may have floating numbers: from columns that may hold numbers, from numbers in the statement,
    parameters and arithmetic; and what is copied or computed from these, or read from rows that SQLite has made with
    them."""
    registers: set[int] = set()
    tables = {
        first: () if third else texts(second)  # third: the number of the schema
        for _, operation, first, second, third, *_ in program
        if operation == "OpenRead"
    }
    rows, known = False, -1
    while known < len(registers) + rows:  # what stands first may run last
        known = len(registers) + rows
        for _, operation, first, second, third, called, *_ in program:
            if operation == "AggValue" and first in registers:
                registers.add(third)
            elif operation in ("Real", "Variable"):
                registers.add(second)
            elif operation in ("Add", "Subtract", "Multiply", "Divide"):
                registers.add(third)
            elif operation in ("Copy", "SCopy"):
                more = third if operation == "Copy" else 0
                registers |= {second + each for each in range(more + 1) if first + each in registers}
            elif operation == "MakeRecord":
                rows = rows or not registers.isdisjoint(range(first, first + second))
            elif operation == "Column" and (first in tables or rows):
                known_texts = tables.get(first, ())
                if not (second < len(known_texts) and known_texts[second]):
                    registers.add(third)
            elif operation.startswith(_CALLS):
                name, arguments = _called(second, called)
                if name in _NUMBERS and (not arguments or not registers.isdisjoint(arguments)):
                    registers.add(third)
    return registers
