"""What fits a text, the best first, with the reasons.

A word that few entries have weighs more than one that many have (inverse document frequency), and a name more than a
description. What is found in a column counts for its table, and what metadata says for what it is about: people look
for what they can use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dai.security.identity import Caller
from dai.service.registry.entries import METADATA, Entry, texts, words
from dai.service.registry.mirror import Mirror

_WEIGHTS = {"name": 3.0, "category": 2.0, "description": 1.0}
_OTHERS = 1.5
"""Of properties and metadata."""
_FROM_BELOW = 0.7
MOST_REASONS = 5
MOST_SEEN = 5000
"""Entries that one word may bring in."""


@dataclass(frozen=True, slots=True)
class Hit:
    entry: Entry
    score: float
    reasons: Sequence[str]


@dataclass(slots=True)
class _Found:
    entry: Entry
    scores: dict[str, float] = field(default_factory=dict)
    """The best of each word."""
    reasons: dict[str, float] = field(default_factory=dict)


def find(mirror: Mirror, caller: Caller, text: str, kind: str | None = None, most: int = 20) -> list[Hit]:
    """The entries (of a kind) that have words of the text; those that have more of them come first."""
    sought = list(dict.fromkeys(words(text)))
    found: dict[str, _Found] = {}
    for word in sought:
        keys = mirror.having(("word", word))
        rare = math.log(1 + len(mirror.entries) / (1 + len(keys)))
        for entry in mirror.shown(sorted(keys)[:MOST_SEEN], caller):
            where, score, quoted = _best(entry, word)
            target, reason = _target(mirror, entry, where, quoted)
            weight = score * rare * (1.0 if target is entry else _FROM_BELOW)
            hit = found.setdefault(target.key, _Found(target))
            hit.scores[word] = max(weight, hit.scores.get(word, 0.0))
            hit.reasons[reason] = max(weight, hit.reasons.get(reason, 0.0))
    hits = [
        Hit(each.entry, sum(each.scores.values()) * len(each.scores), _ordered(each.reasons)[:MOST_REASONS])
        for each in found.values()
        if kind is None or each.entry.kind == kind
    ]
    return sorted(hits, key=lambda hit: (-hit.score, hit.entry.key))[:most]


def _best(entry: Entry, word: str) -> tuple[str, float, str]:
    """Where the word weighs most: the place, its weight and the text."""
    places = [
        (where, _WEIGHTS.get(where, _OTHERS) / math.sqrt(len(there)), text)
        for where, text in texts(entry)
        if word in (there := words(text))
    ]
    return max(places, key=lambda each: each[1])


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
