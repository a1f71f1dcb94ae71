"""Looks up views, the named queries over a federation, and writes the errors of wrong ones.

A word in a query may be the name of a view, or only of a column. So a wrong view is an error only of queries that read
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from textwrap import indent

from dai.errors import DaiError, StatementError, caret
from dqp.catalog.diagnosis import missing_table
from dqp.catalog.validator import Fault, Refused, Validator, path_of, words

Broken = Mapping[str, Fault | DaiError]
"""Views that the validator refuses, with the reason."""


class Views:
    """The views' queries by name; the case of letters does not count."""

    def __init__(self, views: Mapping[str, str]) -> None:
        self._views = views
        self._names = {name.casefold(): name for name in views}

    def __contains__(self, name: str) -> bool:
        return name.casefold() in self._names

    def words(self, names: frozenset[str]) -> frozenset[str]:
        """The (case-folded) names, with the words of the views that they may mean, and of the views that those read."""
        known: frozenset[str] = frozenset()
        while names := names - known:
            known |= names
            names = frozenset[str]().union(*(words(self._views[each]) for each in self.named(names)))
        return known

    def named(self, names: frozenset[str]) -> list[str]:
        """The views that the (case-folded) names may mean."""
        return [self._names[each] for each in names & self._names.keys()]

    def make(self, validator: Validator, names: frozenset[str]) -> Broken:
        """Creates the views of these names in a validator, each after the views that it reads."""
        left: Iterable[str] = self.named(names)
        while left:
            broken: dict[str, Fault | DaiError] = {}
            for name in left:
                try:
                    validator.view(name, self._views[name])
                except Refused as refused:
                    broken[name] = refused.fault
                except DaiError as error:
                    broken[name] = error
            if broken.keys() == set(left):
                return broken
            left = list(broken)
        return {}

    def error(self, sql: str, fault: Fault, broken: Broken, explained: Callable[[str, Fault], DaiError]) -> DaiError:
        """The error of a refused query. If the query reads a broken view: that view's fault, at the place where the
        query names it. ``explained`` makes the error of any other fault."""
        name = self._cause(sql, fault, broken)
        if name is None:
            return explained(sql, fault)
        error = self._error(name, broken, explained, ())
        if not isinstance(error, StatementError):
            return error
        return StatementError(error.detail, sql=sql, position=fault.position, hint=error.hint)

    def _error(
        self, name: str, broken: Broken, explained: Callable[[str, Fault], DaiError], above: tuple[str, ...]
    ) -> DaiError:
        """``above``: views that read this one."""
        if name in above:
            chain = " → ".join((*above[above.index(name) :], name))
            return StatementError(f"The view {name!r} reads itself: {chain}.")
        sql, fault = self._views[name], broken[name]
        if isinstance(fault, Fault):
            below = self._cause(sql, fault, broken)
            if below is not None:
                return self._error(below, broken, explained, (*above, name))
            fault = explained(sql, fault)
        if not isinstance(fault, StatementError):
            return fault
        place = "" if fault.position is None else "\n" + indent(caret(sql, fault.position), "  ")
        return StatementError(f"The view {name!r} is wrong: {fault.detail}{place}", hint=fault.hint)

    def _cause(self, sql: str, fault: Fault, broken: Broken) -> str | None:
        """The broken view because of which the SQL was refused."""
        written = missing_table(sql, fault)
        parts = () if written is None else path_of(written)
        name = self._names.get(parts[0].casefold()) if len(parts) == 1 else None
        return name if name in broken else None
