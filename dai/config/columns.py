"""The meanings of columns: ``[resources.NAME.columns."table.column"]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dai.config.values import section
from dai.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class ColumnConfig:
    """The meaning of a column: its ``unit``, what it measures as a ``ucd`` (Unified Content Descriptor) and as a
    ``quantity`` (a kind of quantity), and a ``description``."""

    unit: str | None = None
    ucd: str | None = None
    quantity: str | None = None
    description: str | None = None


def columns(document: Any, where: str, base: Path, least: int = 1) -> Mapping[str, ColumnConfig]:
    """By the names of columns, ``table.column`` or ``schema.table.column``: with ``least`` dots in them."""
    if not isinstance(document, dict):
        raise ConfigurationError(f"[{where}] must be a section.")
    read = {}
    for name, value in document.items():
        place = f'{where}."{name}"'
        if not isinstance(value, dict) or name.count(".") < least or not all(name.split(".")):
            what = "alias.table.column" if least > 1 else "table.column"
            raise ConfigurationError(
                f"[{place}] must be a section with the name of a column.",
                hint=f'It looks like [{where}."{what}"], in quotation marks.',
            )
        read[name] = section(ColumnConfig, place, value, base)
    return read
