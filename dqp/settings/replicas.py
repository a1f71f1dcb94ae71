"""Tables with the same rows as others, and the service that names such copies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dai import config
from dai.errors import ConfigurationError
from dai.plugins import nearest
from dqp.settings.sections import LOOPBACK, Reader, check_alias, check_services, mapping


@dataclass(frozen=True, kw_only=True)
class ReplicaServiceSettings:
    """The replica service at ``url`` says where copies of logical tables are; in SQL these are ``alias.NAME``. It,
    and the ``services`` that are listed, know this federation by ``token``; ``ca`` replaces that of the
    federation's ``tls``. Its answers count as current for ``lifetime`` seconds. Copies older than ``max_age``
    seconds are not read. ``services``: beginnings of the addresses at which copies are read, besides those of the
    sources. ``catalogs``: if set, the service at ``url`` is an index, which says which catalogs have a name; those
    at addresses that begin so are asked, with ``token``."""

    url: str
    alias: str = "replicas"
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None
    lifetime: float = field(default=30.0, metadata=config.POSITIVE)
    max_age: float = field(default=3600.0, metadata=config.POSITIVE)
    services: tuple[str, ...] = LOOPBACK
    catalogs: tuple[str, ...] = ()


def parted(document: Any, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The section of a replica service, and the tables that have replicas: their names have a dot."""
    if isinstance(document, str):
        return {"url": document}, {}
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"[{where}] must be a section, or the address of a replica service, not {document!r}.")
    keys = [name for name in document if "." not in name]
    return {name: document[name] for name in keys}, {name: document[name] for name in document if name not in keys}


def replica_service(
    section: Mapping[str, Any], where: str, aliases: set[str], reader: Reader
) -> ReplicaServiceSettings | None:
    if not section:
        return None
    if "url" not in section:
        keys = [each.name for each in dataclasses.fields(ReplicaServiceSettings)]
        if any(name in keys for name in section):
            raise ConfigurationError(f"{where}.url is missing: the address of the replica service.")
        raise ConfigurationError(
            f"{where}: {next(iter(section))!r} is not a table alias.table.", hint=nearest(next(iter(section)), keys)
        )
    settings: ReplicaServiceSettings = reader.section(ReplicaServiceSettings, where, section)
    check_services(where, {"url": (settings.url,), "services": settings.services, "catalogs": settings.catalogs})
    alias = settings.alias
    check_alias(alias, f"{where}.alias")
    if alias.casefold() in aliases:
        raise ConfigurationError(
            f"{where}: there is already a source {alias!r}.", hint="Give the replica service another alias."
        )
    return dataclasses.replace(settings, token=reader.secret(settings.token, f"{where}.token"))


def replicas(document: Any, where: str, aliases: set[str]) -> dict[str, tuple[str, ...]]:
    tables = mapping(document, where, list | tuple, 'a list of tables ["alias.table"]')
    for name, places in tables.items():
        for each in (name, *places):
            alias, dot, table = each.partition(".") if isinstance(each, str) else ("", "", "")
            if not dot or not table:
                raise ConfigurationError(f"{where}: {each!r} is not a table alias.table.")
            if alias.casefold() not in aliases:
                raise ConfigurationError(f"{where}: there is no source {alias!r}.", hint=nearest(alias, list(aliases)))
    return {name: tuple(places) for name, places in tables.items()}
