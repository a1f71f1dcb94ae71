"""What a misspelt name probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from dai.plugins import nearest


def meant(name: str, known: Mapping[str, str]) -> str | None:
    """A hint with the nearest of ``known`` (names, and how each is written), whatever the case of its letters, or with
    all of them where none is near. None where nothing is known, or the name is: then its spelling is not the fault."""
    if not known or known.get(name) == name:
        return None
    written = {each.casefold(): text for each, text in known.items()}
    close = difflib.get_close_matches(name.casefold(), written, 1)
    return f"Did you mean {written[close[0]]!r}?" if close else nearest(name, list(known.values()))
