"""Checks the options for the values of a result."""

from __future__ import annotations

from dai.errors import ParameterError

NUMERIC = ("double", "decimal", "text")


def checked(numeric: str | None) -> str | None:
    """The value. ParameterError if it is not one of the choices."""
    if numeric is not None and numeric not in NUMERIC:
        raise ParameterError(
            f"numeric={numeric!r} is not possible.", hint=f"Give one of {', '.join(map(repr, NUMERIC))}."
        )
    return numeric
