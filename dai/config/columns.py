"""What columns mean: ``[resources.NAME.columns."table.column"]``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dai.config.values import section
from dai.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What the values of a column are: their ``unit``, what they measure as a UCD (Unified Content Descriptor of the
    IVOA) and as a ``quantity`` kind (QUDT), and a ``description`` for people."""

    unit: str | None = None
    ucd: str | None = None
    quantity: str | None = None
    description: str | None = None

    @property
    def said(self) -> Mapping[str, str]:
        """What is known, by name."""
        values = ((each.name, getattr(self, each.name)) for each in dataclasses.fields(self))
        return {name: value for name, value in values if value}

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """Of the field of an Arrow schema."""
        return {name.encode(): value.encode() for name, value in self.said.items()}

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> Meaning:
        """What such metadata say."""
        names = (each.name for each in dataclasses.fields(cls))
        told = {name: (metadata or {}).get(name.encode(), b"").decode(errors="replace") for name in names}
        return cls(**{name: value or None for name, value in told.items()})

    def or_else(self, other: Meaning) -> Meaning:
        """With what only the other one says."""
        return Meaning(**{**other.said, **self.said})


MEANINGS = tuple(each.name for each in dataclasses.fields(Meaning))


def columns(document: Any, where: str, base: Path, least: int = 1) -> dict[str, Meaning]:
    """By the names of columns, ``table.column`` or ``schema.table.column``: with ``least`` dots in them."""
    if not isinstance(document, dict):
        raise ConfigurationError(f"[{where}] must be a section.")
    read = {}
    for name, value in document.items():
        place = f'{where}."{name}"'
        if not isinstance(value, dict) or name.count(".") < least or not all(name.split(".")):
            what = "alias.table.column" if least > 1 else "table.column"
            raise ConfigurationError(
                f"[{place}] must be a section, called as a column is.",
                hint=f'It looks like [{where}."{what}"], in quotation marks.',
            )
        read[name] = section(Meaning, place, value, base)
    return read
