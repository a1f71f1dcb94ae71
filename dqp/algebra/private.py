"""Removes the secret digits of uploaded tables from texts: people see ``mine`` for ``mine_`` and 32 digits.

Whoever knows a lab's digits can read all its tables. So no answer of the service shows the digits, not even to the lab
itself, because people copy plans and errors to others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from dai.errors import DaiError, StatementError, caret

PRIVATE = re.compile(r"([^\W\d]\w{0,127})_([0-9a-f]{32})")
"""The name of an uploaded table that only its owner knows."""
_DEFINITION = r'"\w+" AS \(FROM "(?:\w+)_[0-9a-f]{32}"\)'
_DEFINITIONS = rf"{_DEFINITION}(?:, {_DEFINITION})*"
_AROUND_VALUES = re.compile(rf"WITH {_DEFINITIONS} FROM \((?=\s*VALUES\b)(?P<values>.*)\)", re.I | re.S)
_BEFORE = re.compile(rf"WITH {_DEFINITIONS} | {_DEFINITIONS},", re.I)


def definitions(names: Mapping[str, str]) -> str:
    """Definitions for WITH that let a query read private tables by their plain names."""
    return ", ".join(f'"{name}" AS (FROM "{private}")' for name, private in names.items())


def shown(name: str) -> str:
    """A table's name without secret digits."""
    return re.sub(r"_[0-9a-f]{32}\Z", "", name)


class Plain:
    """Removes digits from texts about one query: those in the definitions of its SQL, and those of ``names``."""

    def __init__(self, sql: str, names: Iterable[str]) -> None:
        self._sql = sql
        private = [*names, *re.findall(r'"(\w+)"', " ".join(re.findall(_DEFINITION, sql)))]
        digits = sorted({match[2] for each in private if (match := PRIVATE.fullmatch(each))})
        self._digits = re.compile(f"_(?:{'|'.join(digits)})", re.I) if digits else None

    @property
    def secret(self) -> bool:
        """Whether there is anything to hide."""
        return self._digits is not None

    def __call__(self, text: str) -> str:
        return text if self._digits is None else self._digits.sub("", text)

    @property
    def sql(self) -> str:
        """The query without the definitions that the lab added."""
        if self._digits is None:
            return self._sql
        text, around = _AROUND_VALUES.subn(lambda match: match["values"], self._sql, count=1)
        return self(text if around else _BEFORE.sub("", text, count=1))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """A context that removes digits from the query's errors and keeps their positions."""
        try:
            yield
        except DaiError as error:
            if not self._tell(error):
                raise
            self._word(error)
            raise error from None

    def _tell(self, error: BaseException | None) -> bool:
        """Whether the error or its cause has digits, which a log would show."""
        if self._digits is None or error is None:
            return False
        texts = (str(error), *map(str, error.args))
        return any(map(self._digits.search, texts)) or self._excerpt(error) or self._tell(error.__cause__)

    def _excerpt(self, error: BaseException) -> bool:
        """Whether the error quotes the query. A quoted line may start or end within digits."""
        quoted = isinstance(error, StatementError) and error.position is not None
        return quoted and error.extra.get("excerpt") == caret(self._sql, error.position)  # type: ignore[attr-defined]

    def _word(self, error: DaiError) -> None:
        if self._excerpt(error):
            place = len(self(self._sql[: error.position - 1])) + 1  # type: ignore[attr-defined]
            error.extra["excerpt"] = caret(self(self._sql), place)
        error.detail, error.args = self(error.detail), tuple(self(str(each)) for each in error.args)
        error.hint = None if error.hint is None else self(error.hint)
        error.extra = {key: self(each) if isinstance(each, str) else each for key, each in error.extra.items()}
