"""Finds the entries that fit a text, the best first, with the reasons.

A word that few entries have weighs more than one that many have (inverse document frequency), and a name more than a
description. What is found in a column counts for its table, and what metadata says for what it is about: people look
for what they can use.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dai.security.identity import Caller
from dai.service.registry.entries import MEANING, METADATA, Entry, meaning_terms, texts, worded, words
from dai.service.registry.mirror import Mirror

_WEIGHTS = {"name": 3.0, "category": 2.0, "description": 1.0}
_OTHERS = 1.5
"""Of properties and metadata."""
_FROM_BELOW = 0.7
NO_MEANINGS: Mapping[str, str] = {}
MOST_REASONS = 5
MOST_SEEN = 5000
"""Entries that one word may bring in, and all words together twice as many: the rare ones first."""
MOST_SOUGHT = 32
"""Words of a text that are looked for."""


@dataclass(frozen=True, slots=True)
class Hit:
    entry: Entry
    score: float
    reasons: Sequence[str]


@dataclass(slots=True)
class _Found:
    entry: Entry
    scores: dict[tuple[str, str], float] = field(default_factory=dict)
    """The best of each term."""
    reasons: dict[str, float] = field(default_factory=dict)


def find(
    mirror: Mirror,
    caller: Caller,
    text: str = "",
    kind: str | None = None,
    most: int = 20,
    meanings: Mapping[str, str] = NO_MEANINGS,
) -> list[Hit]:
    """The entries (of a kind) that have words of the text; those that have more of them come first. ``meanings``: the
    ``unit``, ``ucd`` or ``quantity`` that they, or a column of theirs, must have."""
    sought = list(dict.fromkeys(("word", each) for each in words(text)))[:MOST_SOUGHT]
    wanted = [(word, value.lower() if word == "ucd" else value) for word, value in meanings.items()]
    by_key: dict[str, _Found] = {}
    left = 2 * MOST_SEEN
    having = {term: mirror.having(term) for term in (*wanted, *sought)}
    for term, keys in sorted(having.items(), key=lambda each: (each[0][0] == "word", len(each[1]))):
        rare = math.log(1 + len(mirror.entries) / (1 + len(keys)))
        chosen = heapq.nsmallest(min(MOST_SEEN, left) if term[0] == "word" else MOST_SEEN, keys)
        left -= len(chosen)
        for entry in mirror.shown(chosen, caller):
            where, score, quoted = _best(entry, term)
            target, reason = _target(mirror, entry, where, quoted)
            weight = score * rare * (1.0 if target is entry else _FROM_BELOW)
            hit = by_key.setdefault(target.key, _Found(target))
            hit.scores[term] = max(weight, hit.scores.get(term, 0.0))
            hit.reasons[reason] = max(weight, hit.reasons.get(reason, 0.0))
    hits = [
        Hit(each.entry, sum(each.scores.values()) * len(each.scores), _ordered(each.reasons)[:MOST_REASONS])
        for each in by_key.values()
        if (kind is None or each.entry.kind == kind) and each.scores.keys() >= set(wanted)
    ]
    return sorted(hits, key=lambda hit: (-hit.score, hit.entry.key))[:most]


def _best(entry: Entry, term: tuple[str, str]) -> tuple[str, float, str]:
    """Where the term weighs most: the place, its weight and the text."""
    kind, word = term
    places = [
        (where, _WEIGHTS.get(where, _OTHERS) / math.sqrt(len(there)), text)
        for where, text, there in (worded(entry) if kind == "word" else _meanings(entry, kind))
        if word in there
    ]
    return max(places, key=lambda each: each[1])


def _meanings(entry: Entry, kind: str) -> Iterator[tuple[str, str, list[str]]]:
    for where, text in texts(entry):
        if where.removeprefix(MEANING) == kind:
            yield where, text, list(meaning_terms(kind, text))


def _target(mirror: Mirror, entry: Entry, where: str, text: str) -> tuple[Entry, str]:
    """For what it counts, and why."""
    quoted = text if len(text) <= 120 else f"{text[:117]}…"
    parent = mirror.entries.get(entry.parent) if entry.parent is not None else None
    if entry.kind == METADATA and parent is not None:
        said = f"{where}: {quoted} ({entry.owner})" if entry.owner else f"{where}: {quoted}"
        above = mirror.entries.get(parent.parent) if parent.kind == "column" and parent.parent is not None else None
        return (parent, said) if above is None else (above, f"column {parent.name}, {said}")
    if entry.kind == "column" and parent is not None:
        reason = f"column {entry.name}" if where == "name" else f"column {entry.name}, {where}: {quoted}"
        return parent, reason
    return entry, f"{where}: {quoted}"


def _ordered(reasons: dict[str, float]) -> list[str]:
    return sorted(reasons, key=lambda each: (-reasons[each], each))
