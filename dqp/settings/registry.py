"""Registries that name sources and evaluators."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dai.config.identity import is_safe
from dai.errors import ConfigurationError
from dqp.settings.sections import LOOPBACK, Reader, check_services


@dataclass(frozen=True, kw_only=True)
class RegistrySettings:
    """The registry at ``url`` names sources, or evaluators: those that match ``find``, conditions or SPARQL; empty:
    all. ``publishers``: the owners whose entries are trusted; empty: entries without an owner, in a registry that
    does not identify its callers. ``allow``: the beginnings of the addresses that may be used. ``token``: the token
    for the registry; ``source_token``: that for the services that ``allow`` lists. ``ca`` replaces that of ``tls``."""

    url: str
    find: str = ""
    publishers: tuple[str, ...] = ()
    allow: tuple[str, ...] = LOOPBACK
    token: str | None = field(default=None, repr=False)
    source_token: str | None = field(default=None, repr=False)
    ca: Path | None = None


def registry(
    section: Any, where: str, reader: Reader, *, passes_callers_on: bool, evaluators_token: str | None = None
) -> RegistrySettings | None:
    """``evaluators_token``: the registry names evaluators, which know the federation by this token."""
    if section is None:
        return None
    if not isinstance(section, Mapping) or "url" not in section:
        raise ConfigurationError(f"[{where}] must be a section with url, the address of a registry.")
    if passes_callers_on:
        raise ConfigurationError(f'{where}: sources from a registry need callers = "own".')
    settings: RegistrySettings = reader.section(RegistrySettings, where, section)
    check_services(where, {"url": (settings.url,), "allow": settings.allow})
    publishers: tuple[object, ...] = settings.publishers
    if not all(isinstance(each, str) and each for each in publishers):
        raise ConfigurationError(f"{where}.publishers must be a list of names.")
    token, key = settings.source_token, f"{where}.source_token"
    if token is None and evaluators_token is not None:
        token, key = evaluators_token, f"{where.removesuffix('evaluators')}token"
    # at any port of this machine may be anybody, and whoever publishes says which port is asked
    if token is not None and settings.allow == LOOPBACK:
        raise ConfigurationError(
            f"{key} needs {where}.allow, which lists the addresses that it may be sent to.",
            hint='It looks like allow = ["https://data.example.org"].',
        )
    for address in settings.allow if token is not None else ():
        if not is_safe(address):
            raise ConfigurationError(f"{key} would travel to {address!r} without encryption.")
    return dataclasses.replace(
        settings,
        token=reader.secret(settings.token, f"{where}.token"),
        source_token=reader.secret(settings.source_token, f"{where}.source_token"),
    )
