"""The sources of a federation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dai import config
from dai.client import parted
from dai.config.data_files import is_files
from dai.config.database_files import url_of
from dai.errors import ConfigurationError, RequestError
from dqp.settings.exchange import ExchangeSettings, exchange_for
from dqp.settings.sections import Reader, check_alias


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """A source; its tables are ``alias.table``. It has one of ``url`` (a resource of a data service), ``resource``
    (of this service) and ``database`` (an SQLAlchemy URL, read in this process; it may have a password and is never
    printed). ``replicas``: URLs of resources with the same tables. The services at ``url`` and ``replicas`` know
    this federation by ``token``. ``ca``, ``certificate`` and ``key`` replace those of the federation's ``tls``.
    ``forward``: the services get the caller's token instead of ``token``; ``exchange``: one in exchange for it."""

    alias: str
    url: str | None = None
    resource: str | None = None
    database: str | None = field(default=None, repr=False)
    replicas: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    forward: bool = False
    exchange: ExchangeSettings | None = None

    @property
    def for_callers(self) -> bool:
        """Whether its services are asked with a token of the caller, or one that is exchanged for it."""
        return self.forward or self.exchange is not None

    @property
    def private(self) -> bool:
        """Whether only the process of the federation can ask it."""
        return self.token is not None or self.certificate is not None or self.for_callers


@dataclass(frozen=True, kw_only=True)
class _Source:
    """The keys of a source, as they are written."""

    alias: str
    url: str | None = None
    service: str | None = None
    resource: str | None = None
    database: str | None = None
    password: str | None = None
    token: str | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    forward: bool = False
    replicas: tuple[str, ...] = ()


def sources(
    document: Any, where: str, reader: Reader, served: bool, exchange: ExchangeSettings | None
) -> tuple[SourceSettings, ...]:
    """From a list of sections; or, short, from alias to address or section."""
    if isinstance(document, Mapping):
        entries = {}
        for alias, value in document.items():
            if isinstance(value, str):
                is_service = value.startswith(("http://", "https://")) and not is_files(value)
                value = {"url" if is_service else "database": value}
            if not isinstance(value, Mapping):
                raise ConfigurationError(f"{where}.{alias} must be an address or a section, not {value!r}.")
            entries[f"{where}.{alias}"] = {"alias": alias, **value}
    elif isinstance(document, list | tuple) and all(isinstance(each, Mapping) for each in document):
        entries = {f"{where}[{number}]": dict(each) for number, each in enumerate(document, 1)}
    else:
        raise ConfigurationError(f"{where} must be a list of sections [[{where}]].")
    by_alias: dict[str, SourceSettings] = {}
    for place, entry in entries.items():
        if "alias" not in entry:
            raise ConfigurationError(
                f"{place} has no alias.", hint='Set alias = "NAME"; its tables are then NAME.table.'
            )
        keys = {key: value for key, value in entry.items() if key != "exchange"}
        source = _source(reader.section(_Source, place, keys), place, reader, served)
        if "exchange" in entry:
            section = f"{where.rpartition('sources')[0]}exchange"
            own = exchange_for(entry["exchange"], f"{place}.exchange", exchange, section)
            source = dataclasses.replace(source, exchange=own)
        if source.alias.casefold() in by_alias:
            raise ConfigurationError(f"{place}: there is already a source {source.alias!r}.")
        by_alias[source.alias.casefold()] = source
    return tuple(by_alias.values())


def _source(section: _Source, place: str, reader: Reader, served: bool) -> SourceSettings:
    check_alias(section.alias, place)
    url, resource = section.url, section.resource
    if section.service is not None:
        if resource is None or url is not None:
            raise ConfigurationError(f"{place}: service needs resource, the name of one of its resources.")
        url, resource = f"{section.service.rstrip('/')}/resources/{resource}", None
    addresses = [key for key, value in (("url", url), ("resource", resource), ("database", section.database)) if value]
    if len(addresses) != 1:
        what = " and ".join(addresses) or "none of them"
        raise ConfigurationError(f"{place} needs one of url, resource and database, but has {what}.")
    if served and section.database is not None:
        raise ConfigurationError(
            f"{place}: a service's federation reads resources, not databases.",
            hint="Make it a [resources.NAME] of the service, and name that as resource here.",
        )
    if section.password is not None and section.database is None:
        raise ConfigurationError(f"{place}: a password goes with a database only.")
    for key in ("token", "ca", "certificate", "key"):
        if getattr(section, key) is not None and url is None:
            raise ConfigurationError(f"{place}: a {key} goes with a service or a url only.")
    if section.key is not None and section.certificate is None:
        raise ConfigurationError(f"{place}: a key goes with a certificate.")
    database = None
    if section.database is not None:
        password = reader.secret(section.password, f"{place}.password")
        text = config.secret(section.database, f"{place}.database", reader.environment, reader.base)
        path = text if "://" in text else str(reader.base / text)
        if "://" not in text or is_files(text):
            text = url_of(path, section.alias) or text
            if "://" not in text and "@" not in text and not Path(path).exists():
                raise ConfigurationError(
                    f"{section.alias}: there is no file {text!r} in {reader.base.resolve()}.",
                    hint=f"For a data service write http://{text}."
                    if ":" in text
                    else "Paths are relative to that directory.",
                )
        database = config.database_url(text, f"{place}.database", reader.base, password)
    for key, address in (("url", url), *(("replicas", each) for each in section.replicas)):
        if address is not None:
            _check_address(address, f"{place}.{key}")
    return SourceSettings(
        alias=section.alias,
        url=url,
        resource=resource,
        database=database,
        replicas=section.replicas,
        token=reader.secret(section.token, f"{place}.token"),
        ca=section.ca,
        certificate=section.certificate,
        key=section.key,
        forward=section.forward,
    )


def _check_address(address: Any, where: str) -> None:
    hint = "It looks like http://127.0.0.1:8080/resources/NAME."
    of_database = f"{hint} The URL of a database is its key database."
    if isinstance(address, str) and "@" in address.partition("://")[2].partition("/")[0]:
        raise ConfigurationError(f"{where} has a user or a password, which services do not take.", hint=of_database)
    if not isinstance(address, str) or not address.startswith(("http://", "https://")):
        shown = address.partition("?")[0] if isinstance(address, str) else address  # a password may stand behind it
        raise ConfigurationError(f"{where} is not the address of a resource: {shown!r}.", hint=of_database)
    try:
        _, name = parted(address)
        urlsplit(address).port  # noqa: B018 - raises ValueError where it is not a number
    except (RequestError, ValueError) as error:
        raise ConfigurationError(f"{where} is not an address: {error}", hint=hint) from error
    if name is None:
        raise ConfigurationError(f"{where} names no resource: {address!r}.", hint=hint)
