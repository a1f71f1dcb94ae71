"""The searches of the find operations: by names, bags and qualifiers (UDDI 2.04 API, appendix E)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from dai.plugins import nearest
from dai.security.identity import Caller
from dai.service.registry.entries import Entry, Reference
from dai.service.registry.mirror import Mirror
from dai.service.registry.uddi.faults import Refused
from dai.service.registry.uddi.structures import iri, references

QUALIFIERS = (
    "exactNameMatch",
    "caseSensitiveMatch",
    "sortByNameAsc",
    "sortByNameDesc",
    "sortByDateAsc",
    "sortByDateDesc",
    "orLikeKeys",
    "orAllKeys",
    "andAllKeys",
    "combineCategoryBags",
    "serviceSubset",
)
_AGAINST = (
    ("sortByNameAsc", "sortByNameDesc"),
    ("sortByDateAsc", "sortByDateDesc"),
    ("orAllKeys", "andAllKeys"),
    ("orLikeKeys", "andAllKeys"),
    ("orLikeKeys", "orAllKeys"),
    ("combineCategoryBags", "serviceSubset"),
)
"""Which exclude each other."""


MOST = 1000
"""Entries in one answer."""
MOST_NAMES, MOST_NAME, MOST_KEYS = 5, 255, 100
"""In one search; each key is compared with all of each entry."""


def most_of(asked: dict[str, Any]) -> int:
    """How many entries the answer may have. What is no number, or less than 1, is no limit."""
    rows = asked.get("maxRows", "")
    return min(int(rows), MOST) if rows.isdecimal() and len(rows) < 10 and int(rows) else MOST


class Search:
    """The search of a find operation. Refused for unknown qualifiers, or those that exclude each other."""

    def __init__(self, mirror: Mirror, caller: Caller, kind: str, asked: dict[str, Any]) -> None:
        self._mirror, self._caller, self._kind = mirror, caller, kind
        self.qualifiers = frozenset(asked.get("findQualifiers", {}).get("findQualifier", []))
        for each in self.qualifiers - set(QUALIFIERS):
            hint = nearest(each, list(QUALIFIERS))
            raise Refused("E_unsupported", f"There is no find qualifier {each[:100]!r}. {hint}")
        for pair in _AGAINST:
            if self.qualifiers >= set(pair):
                raise Refused("E_unsupported", f"The find qualifiers {pair[0]} and {pair[1]} exclude each other.")
        names = asked.get("name", [])
        self._names = [each["text"] for each in (names if isinstance(names, list) else [names]) if each.get("text")]
        if len(self._names) > MOST_NAMES:
            raise Refused("E_tooManyOptions", f"{len(self._names)} names are asked for; {MOST_NAMES} may be.")
        if any(len(each) > MOST_NAME for each in self._names):
            raise Refused("E_nameTooLong", f"A name that is asked for has more than {MOST_NAME} characters.")
        self._categories = references(asked.get("categoryBag", {}).get("keyedReference", []))
        self._identifiers = references(asked.get("identifierBag", {}).get("keyedReference", []))
        self._tmodels = [iri(each) for each in asked.get("tModelBag", {}).get("tModelKey", []) if each]
        if (keys := len(self._categories) + len(self._identifiers) + len(self._tmodels)) > MOST_KEYS:
            raise Refused("E_tooManyOptions", f"{keys:,} keys and references are asked for; {MOST_KEYS} may be.")
        self._urls = {each.get("text", "") for each in asked.get("discoveryURLs", {}).get("discoveryURL", [])}

    def matching(self, among: Iterable[str] | None = None) -> list[Entry]:
        """In the order that the qualifiers say. ``among``: keys of the entries that come into question."""
        keys = self._keys() if among is None else among
        fitting = [each for each in self._mirror.shown(set(keys), self._caller) if self._fits(each)]
        for_dates = 1 if "sortByDateAsc" in self.qualifiers else -1 if "sortByDateDesc" in self.qualifiers else 0
        if for_dates:
            fitting.sort(key=lambda each: for_dates * each.modified)
        by_name = {"sortByNameAsc", "sortByNameDesc"} & self.qualifiers
        if by_name or not for_dates:
            fitting.sort(key=lambda each: self._cased(each.name), reverse="sortByNameDesc" in self.qualifiers)
        return fitting

    def _keys(self) -> set[str]:
        """A few that all that fit are among."""
        beginnings = [each.partition("%")[0] for each in self._names]
        if self._names and all(beginnings):
            return {key for each in beginnings for key in self._mirror.named(self._kind, each)}
        return self._mirror.having(("kind", self._kind))

    def _fits(self, entry: Entry) -> bool:
        return (
            (not self._names or any(self._named(name) for name, _ in entry.names))
            and self._in_bag(self._categories, self._categorized(entry), every="orAllKeys" not in self.qualifiers)
            and self._in_bag(self._identifiers, entry.identifiers, every="andAllKeys" in self.qualifiers)
            and self._implemented(entry)
            and (not self._urls or bool(self._urls & set(_urls(entry))))
        )

    def _cased(self, name: str) -> str:
        return name if "caseSensitiveMatch" in self.qualifiers else name.casefold()

    @cached_property
    def _patterns(self) -> list[list[str]]:
        """The texts between %, of each name."""
        return [self._cased(each).split("%") for each in self._names]

    def _named(self, name: str) -> bool:
        exact = "exactNameMatch" in self.qualifiers
        return any(_like(self._cased(name), each, exact=exact) for each in self._patterns)

    def _categorized(self, entry: Entry) -> Sequence[Reference]:
        if entry.kind != "business" or not self.qualifiers & {"combineCategoryBags", "serviceSubset"}:
            return entry.categories
        services = [ref for each in self._mirror.shown_below(entry, "service", self._caller) for ref in each.categories]
        return services if "serviceSubset" in self.qualifiers else [*entry.categories, *services]

    def _in_bag(self, wanted: Sequence[Reference], there: Sequence[Reference], *, every: bool) -> bool:
        if not wanted:
            return True
        fits = [any(_same(each, other) for other in there) for each in wanted]
        if "orLikeKeys" in self.qualifiers:
            groups: dict[str, bool] = {}
            for each, fit in zip(wanted, fits, strict=True):
                groups[each.tmodel] = groups.get(each.tmodel, False) or fit
            return all(groups.values())
        return all(fits) if every else any(fits)

    def _implemented(self, entry: Entry) -> bool:
        """Whether it, or something below it, is a binding that implements the tModels."""
        if not self._tmodels:
            return True
        bindings = [entry]
        for kind in ("service", "binding"):
            bindings += [low for each in bindings for low in self._mirror.shown_below(each, kind, self._caller)]
        enough = any if "orAllKeys" in self.qualifiers else all
        return any(
            enough(wanted in each.implements for wanted in self._tmodels) for each in bindings if each.kind == "binding"
        )


def _like(name: str, parts: Sequence[str], *, exact: bool) -> bool:
    """Whether the name has the parts in that order, begins with the first one and, where it is ``exact``, ends with the
    last. In one pass: whoever names and whoever asks choose what is compared."""
    first, *others = parts
    if not others and exact:
        return name == first
    at = len(first)
    end = len(name) - (len(others[-1]) if exact else 0)
    if not name.startswith(first) or end < at:
        return False
    for each in others[:-1] if exact else others:
        place = name.find(each, at, end)
        if place < 0:
            return False
        at = place + len(each)
    return not exact or name.endswith(others[-1])


def _same(wanted: Reference, there: Reference) -> bool:
    """Names count only where no taxonomy says what the values mean."""
    if (wanted.tmodel, wanted.value) != (there.tmodel, there.value):
        return False
    return bool(wanted.tmodel) or wanted.name == there.name


def _urls(entry: Entry) -> Iterable[str]:
    for each in entry.details.get("discoveryURLs", {}).get("discoveryURL", []):
        yield each.get("text", "")
