"""The part of DuckDB's profile of a fragment that an evaluator sends to the coordinator."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

SHOWN = {
    "Aggregates": "",
    "Conditions": "",
    "Expression": "",
    "Filters": "",
    "Groups": "by ",
    "Join Type": "",
    "Order By": "by ",
    "Projections": "",
    "Top": "first ",
}
"""Figures of DuckDB's operators that users understand, with the word that is shown before each."""
OPERATORS, TEXTS, TEXT, PROFILE_BYTES = 300, 64, 200, 256 << 10
"""Limits of a profile that is sent: operators, texts of one operator, characters of a text, bytes in all."""


def bounded(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The profile within the limits, for sending. A node takes the place of operators beyond the first ``OPERATORS``;
    texts beyond the limits are dropped."""
    for said in (SHOWN, {}):
        left = iter(range(OPERATORS))
        kept = {"operator": [_bounded(each, left, said) for each in profile.get("operator", ())]}
        if len(json.dumps(kept)) <= PROFILE_BYTES:
            break
    return kept


def _bounded(engine: Mapping[str, Any], left: Iterator[int], said: Collection[str]) -> dict[str, Any]:
    if next(left, None) is None:
        return {"type": "MORE_OPERATORS"}
    info = engine.get("extra_info") or {}
    below = []
    for each in engine.get("children", ()):
        below.append(_bounded(each, left, said))
        if below[-1]["type"] == "MORE_OPERATORS":
            break
    return {
        **{
            name: engine[name]
            for name in ("type", "timing", "intermediate_rows", "intermediate_size_bytes")
            if name in engine
        },
        "extra_info": {name: _shortened(value) for name, value in info.items() if name in said},
        "children": below,
    }


def _shortened(value: Any) -> Any:
    if isinstance(value, list):
        return [str(each)[:TEXT] for each in value[:TEXTS]]
    return str(value)[:TEXT]
