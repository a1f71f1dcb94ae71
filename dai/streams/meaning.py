"""The meaning of a column, in the metadata of its field."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Meaning:
    """The meaning of a column's values: their ``unit``, what they measure as a UCD (Unified Content Descriptor of the
    IVOA) and as a ``quantity`` kind (QUDT), and a ``description`` for people."""

    unit: str | None = None
    ucd: str | None = None
    quantity: str | None = None
    description: str | None = None

    @property
    def said(self) -> Mapping[str, str]:
        """The known members, by name."""
        return {name: value for name in MEANINGS if (value := getattr(self, name))}

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """The metadata for the field of an Arrow schema."""
        return {name.encode(): value.encode() for name, value in self.said.items()}

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> Meaning:
        """The meaning in the metadata of a field."""
        if not metadata:
            return NOTHING
        values = {name: metadata.get(name.encode(), b"").decode(errors="replace") for name in MEANINGS}
        return cls(**{name: value or None for name, value in values.items()})

    def or_else(self, other: Meaning) -> Meaning:
        """This meaning, completed with members that only the other one has."""
        return Meaning(**{**other.said, **self.said})


MEANINGS = tuple(each.name for each in dataclasses.fields(Meaning))
NOTHING = Meaning()
