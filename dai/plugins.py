"""Plain tables from names to ``module:Class``, loaded when a name is first used, or to the object itself.

Packages outside this one join through entry points of the table's group.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from dai.errors import ConfigurationError, MissingDependencyError

MOST = 30
"""Names that a hint lists."""
LONGEST, COMPARED = 100, 1000
"""Characters of names that are compared, and how many names are: to compare two takes the product of their lengths."""


def close_to(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The one of ``known`` that is most like the name, if any is."""
    if len(name) > LONGEST:
        return None
    compared = itertools.islice((each for each in known if len(each) <= LONGEST), COMPARED)
    return next(iter(difflib.get_close_matches(name, list(compared), 1, cutoff)), None)


def close_name(name: str, known: list[str]) -> str | None:
    """As ``close_to``, whatever the case of the letters."""
    if (close := close_to(name, known)) is not None:
        return close
    folded = {each.casefold(): each for each in known}
    near = close_to(name.casefold(), folded)
    return folded[near] if near is not None else None


def nearest(name: str, known: list[str]) -> str:
    """A hint that names the nearest known name, whatever the case of its letters, or (the first MOST of) all when none
    is near."""
    if (close := close_name(name, known)) is not None:
        return f"Did you mean {close!r}?"
    listed = ", ".join(each[:LONGEST] for each in sorted(known)[:MOST])
    return f"Known: {listed}." if len(known) <= MOST else f"Known: {listed} and {len(known) - MOST} more."


def extra_hint(extra: str) -> str:
    """How to install an optional package: the project is not on a package index."""
    return f"In the folder of the project: pip install -e '.[{extra}]'"


class Table(Mapping[str, Any]):
    """Names to classes. The table's own come first. ``extras`` names the optional extra that a module's
    missing dependency belongs to."""

    def __init__(self, kind: str, group: str, entries: Mapping[str, Any], extras: dict[str, str] | None = None) -> None:
        self.kind, self.group = kind, group
        self._own, self._extras = entries, extras or {}
        self._loaded: dict[str, Any] = {}

    @cached_property
    def _entries(self) -> dict[str, Any]:
        outside = {point.name: point.value for point in entry_points(group=self.group)}
        return {**self._own, **{name: value for name, value in outside.items() if name not in self._own}}

    def __getitem__(self, name: str) -> Any:
        """The class of that name.

        Raises KeyError for an unknown name, MissingDependencyError where its module needs a package that is not there.
        """
        if name not in self._loaded:
            entry = self._entries[name]
            if not isinstance(entry, str):
                return entry
            module, _, attribute = entry.partition(":")
            try:
                self._loaded[name] = getattr(import_module(module), attribute)
            except ModuleNotFoundError as error:
                extra = self._extras.get(name)
                hint = extra_hint(extra) if extra else None
                raise MissingDependencyError(
                    f"The {self.kind} {name!r} needs the Python package {error.name!r}.", hint=hint
                ) from error
        return self._loaded[name]

    def named(self, name: str) -> Any:
        """Like ``[name]``; an unknown name is a ConfigurationError that suggests the nearest known one."""
        if name not in self._entries:
            raise ConfigurationError(f"There is no {self.kind} {name!r}.", hint=nearest(name, list(self._entries)))
        return self[name]

    def __contains__(self, name: object) -> bool:
        """Whether the name is known; loads nothing."""
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
