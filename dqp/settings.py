"""What a federation is made of: read once, from a service's configuration or a federation.toml, into frozen values.

Both have the same keys: in ``[federations.NAME]`` of a service, at the top of a federation.toml (or below
``[federations.NAME]`` there too, so that one file can be both).
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from dai import config
from dai.client import parted
from dai.config import TlsConfig
from dai.config.data_files import is_files
from dai.config.database_files import url_of
from dai.config.identity import is_safe
from dai.errors import ConfigurationError, RequestError
from dai.plugins import nearest

LEAST_MEMORY = 100_000_000
"""Bytes that DuckDB needs to spill a join's build side with one thread, measured with rows of 1 KB."""
_NAME = re.compile(r"[^\W\d]\w*")
_RESERVED = frozenset({"main", "temp", "system", "memory", "pg_catalog", "information_schema"})
"""Names that DuckDB gives a meaning of its own."""

PUSHDOWN = ("cost", "all", "none")
"""What sources compute: what takes less time there, all that they can, or filters and columns only."""
REGISTRY = "registry"
"""In the place of the addresses of evaluators, which a registry names."""
CALLERS = ("own", "forward", "exchange")
LOOPBACK = tuple(f"{scheme}://{host}" for scheme in ("http", "https") for host in ("127.0.0.1", "localhost", "[::1]"))


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """TLS between nodes, by files (PEM): the ``certificate`` that this process shows at its port and to others, its
    private ``key`` (none: in the same file); ``client_ca``: authorities of the certificates that everybody must show
    who comes to its port; ``ca``: authorities trusted besides those of the system."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    ca: Path | None = None

    @classmethod
    def of(cls, config: TlsConfig | None) -> TlsSettings:
        """That of a service."""
        if config is None:
            return cls()
        return cls(certificate=config.certificate, key=config.key, client_ca=config.client_ca, ca=config.ca)


@dataclass(frozen=True, kw_only=True)
class ExchangeSettings:
    """Where and how tokens of callers are exchanged (RFC 8693) for tokens of a source: the token endpoint at ``url``,
    which knows this federation as ``client_id`` by ``client_secret``; ``ca`` in the place of that of the federation's
    ``tls``. ``audience``, ``resource`` and ``scope``: what the token is for. The types of tokens are URIs, or the last
    part of those of RFC 8693."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    ca: Path | None = None
    subject_token_type: str = "access_token"
    requested_token_type: str = "access_token"
    audience: str | None = None
    resource: str | None = None
    scope: str | None = None


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """Tables are ``alias.table``. One of ``url`` (a resource of a data service), ``resource`` (of this service) and
    ``database`` (an SQLAlchemy URL, in this process; it may hold a password and is never printed). ``replicas``: URLs
    of resources that have the same tables. ``token``: what the services at ``url`` and ``replicas`` know this
    federation by. ``ca``, ``certificate`` and ``key`` in the place of those of the federation's ``tls``. ``forward``:
    they are sent the caller's token in the place of one of the federation; ``exchange``: one that is exchanged for it.
    """

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
class ReplicaServiceSettings:
    """The service at ``url`` says where copies of logical tables are; in SQL these are ``alias.NAME``. ``token``: what
    it, and the ``services`` that are listed, know this federation by; ``ca`` in the place of that of the federation's
    ``tls``. What it says is taken for the present state for ``lifetime`` seconds. Copies older than ``max_age`` seconds
    are not read. ``services``: prefixes of the addresses at which copies are read, besides those of the sources.
    ``catalogs``: the service is asked, as an index, which catalogs have a name, and then those at the addresses with
    these prefixes, which know this federation by ``token``, too."""

    url: str
    alias: str = "replicas"
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None
    lifetime: float = field(default=30.0, metadata=config.POSITIVE)
    max_age: float = field(default=3600.0, metadata=config.POSITIVE)
    services: tuple[str, ...] = LOOPBACK
    catalogs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RegistrySettings:
    """The registry at ``url`` names sources, or evaluators: those that ``find`` says, in SPARQL or by conditions;
    empty: all. ``publishers``: the owners of entries that are believed; none: those of nobody, in a registry that knows
    no callers. ``allow``: prefixes of the addresses that are asked. ``token``: what the registry knows this federation
    by; ``source_token``: what the services that ``allow`` lists know it by. ``ca`` in the place of that of ``tls``."""

    url: str
    find: str = ""
    publishers: tuple[str, ...] = ()
    allow: tuple[str, ...] = LOOPBACK
    token: str | None = field(default=None, repr=False)
    source_token: str | None = field(default=None, repr=False)
    ca: Path | None = None


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """``evaluators``: ``local``, URLs of evaluator services, or one ``ray://…``. ``memory_bytes`` is what the queries
    of one evaluator hold before they spill to disk, at least ``LEAST_MEMORY`` (0: DuckDB's own limit). ``lifetime``:
    seconds that statistics are taken for the present ones. ``pushdown``: what sources compute, one of ``PUSHDOWN``.
    ``second_chance``: a statement without a row after so many times its estimated seconds, and at least
    ``second_chance_after``, is overtaken (0: never). ``liveness_timeout``: seconds without a sign of life, while
    a statement waits for its rows, until a service counts as lost. ``upload_bytes``: of tables that were loaded into a
    service's federation, of all sessions together (0: nothing may be loaded). ``replicas``: ``alias.table`` to other
    tables with the same rows; ``replica_service`` says where copies of logical tables are; ``registry`` and
    ``evaluator_registry`` name more sources, and evaluators in the place of ``evaluators``. ``functions``: operation
    calls by name, as they are configured; relative paths in them count from ``base``. ``columns``: what columns mean,
    by ``alias.table.column``. ``token``: what the evaluators know this federation by; ``flight_host`` and
    ``flight_port``: where evaluators read what only this process can read; ``tls``: how it speaks with evaluators and
    sources. ``callers``: whether sources are asked by the right of the federation (``own``) or of the caller
    (``forward``, ``exchange``: where tokens are exchanged)."""

    name: str = "federation"
    evaluators: tuple[str, ...] = ("local",)
    callers: str = "own"
    exchange: ExchangeSettings | None = None
    token: str | None = field(default=None, repr=False)
    flight_host: str = "127.0.0.1"
    flight_port: int = field(default=0, metadata={"most": 65_535})
    tls: TlsSettings = TlsSettings()
    memory_bytes: int = 0
    lifetime: float = field(default=300.0, metadata=config.POSITIVE)
    pushdown: str = "cost"
    second_chance: float = field(default=5.0, metadata={"most": 1_000_000})
    second_chance_after: float = field(default=1.0, metadata={"most": 1_000_000})
    liveness_timeout: float = field(default=10.0, metadata={"formerly": "silence", **config.POSITIVE})
    upload_bytes: int = 256_000_000
    sources: tuple[SourceSettings, ...] = ()
    views: Mapping[str, str] = field(default_factory=dict)
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    replica_service: ReplicaServiceSettings | None = None
    registry: RegistrySettings | None = None
    evaluator_registry: RegistrySettings | None = None
    functions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    columns: Mapping[str, config.ColumnConfig] = field(default_factory=dict)
    base: Path = Path()

    @property
    def passes_callers_on(self) -> bool:
        return self.callers != "own"


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


def load(
    federation: Path | str | Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> FederationSettings:
    """The settings in a file, or in a document of the same shape; relative paths count from the file's directory. A
    database, by its URL or its file, is a federation of one source, which has the name of the database.

    ConfigurationError names the key that is wrong, and the nearest that would be right.
    """
    environment = os.environ if environment is None else environment
    if isinstance(federation, Mapping):
        known = {each.name for each in dataclasses.fields(FederationSettings)} | {"sources", "replicas", "registry"}
        if federation and not known & federation.keys() and all(isinstance(each, str) for each in federation.values()):
            raise ConfigurationError(
                "Sources stand below the key sources.", hint='dqp.connect({"sources": {"alias": "field.db"}})'
            )
        return _federation(federation, Path(), environment)
    named = str(federation)
    if is_files(named):
        return _federation({"sources": {_alias_of_files(named): named}}, Path(), environment)
    url = named if "://" in named else url_of(federation)
    if url is not None:
        return _federation({"sources": {_alias(url): url}}, Path(), environment)
    path = Path(federation)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "Name a federation.toml, a file of SQLite or DuckDB, files of tables, or the URL of a federation."
        raise ConfigurationError(f"The federation {path} cannot be read: {error.strerror}.", hint=hint) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The federation {path} is not TOML: {error}.") from error
    return _federation(document, path.parent, environment)


def _alias(url: str) -> str:
    try:
        database = make_url(url).database or ""
    except ArgumentError:
        raise ConfigurationError(
            "This is no URL of a database.", hint="It looks like postgresql://user@host/database or sqlite:///file.db."
        ) from None
    return _as_alias(Path(database).stem)


def _alias_of_files(path: str) -> str:
    """The name of the file or the folder, of a pattern that of the folder before it."""
    parts = [each for each in path.split("/") if each not in ("", ".", "..") and not glob.has_magic(each)]
    return _as_alias(parts[-1].partition(".")[0] if parts else "data")


def _as_alias(text: str) -> str:
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name and not name[0].isdigit() else f"db{name}"


def _federation(document: Mapping[str, Any], base: Path, environment: Mapping[str, str]) -> FederationSettings:
    sections = document.get("federations")
    if sections is None:
        return parse(document, base=base, environment=environment)
    if not isinstance(sections, Mapping) or len(sections) != 1:
        raise ConfigurationError("Here must be one [federations.NAME], and no more.", hint="Give each a file.")
    ((name, section),) = sections.items()
    return parse(section, name=name, where=f"federations.{name}", base=base, environment=environment)


def check_memory(memory_bytes: int, where: str) -> None:
    """ConfigurationError where queries would fail instead of spilling."""
    if memory_bytes and memory_bytes < LEAST_MEMORY:
        raise ConfigurationError(
            f"{where} must be at least {LEAST_MEMORY:_}, or 0, not {memory_bytes}.",
            hint="With less, queries would fail instead of spilling to disk.",
        )


def parse(
    document: Mapping[str, Any],
    *,
    name: str = "federation",
    where: str = "",
    base: Path | str = ".",
    environment: Mapping[str, str] | None = None,
    served: TlsSettings | None = None,
) -> FederationSettings:
    """The settings of a section, which errors call ``where``; ConfigurationError as in ``load``. ``served``: it is a
    service's, whose sources are resources, and whose TLS that is."""
    base, environment = Path(base), environment or {}
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"[{where}] must be a section, not {document!r}.")
    dot = f"{where}." if where else ""
    parts = ("sources", "views", "replicas", "functions", "columns", "tls", "exchange", "registry")
    plain = {key: value for key, value in document.items() if key not in parts}
    evaluators = plain.get("evaluators")
    if isinstance(evaluators, Mapping):
        plain["evaluators"] = (REGISTRY,)
    elif REGISTRY in (evaluators or ()):
        raise ConfigurationError(
            f"{dot}evaluators: the registry needs a section.", hint=f"Set url in [{dot}evaluators]."
        )
    if "evaluator_registry" in plain:
        raise ConfigurationError(f"{dot}evaluator_registry is no key.", hint=f"Set url in [{dot}evaluators].")
    if "replica_service" in plain:
        raise ConfigurationError(f"{dot}replica_service is no key.", hint=f"Set url in [{dot}replicas].")
    tls = _tls(document.get("tls"), f"{dot}tls", base, served)
    settings: FederationSettings = config.section(FederationSettings, where, plain, base, name=name, base=base, tls=tls)
    check_memory(settings.memory_bytes, f"{dot}memory_bytes")
    if settings.pushdown not in PUSHDOWN:
        raise ConfigurationError(
            f"{dot}pushdown must be one of {', '.join(PUSHDOWN)}, not {settings.pushdown!r}.",
            hint=nearest(settings.pushdown, list(PUSHDOWN)),
        )
    if not settings.evaluators or not all(isinstance(each, str) for each in settings.evaluators):
        raise ConfigurationError(f"{dot}evaluators must be a list of texts, at least one.", hint='["local"]')
    exchange = _exchange(document.get("exchange"), f"{dot}exchange", base, environment)
    sources = _sources(document.get("sources", ()), f"{dot}sources", base, environment, served is not None, exchange)
    if exchange is not None and settings.callers != "exchange":
        raise ConfigurationError(f'[{dot}exchange] needs {dot}callers = "exchange".')
    _check_callers(settings, sources, dot, served is not None)
    said, copied = _parted(document.get("replicas", {}), f"{dot}replicas")
    token = settings.token
    aliases = {each.alias.casefold() for each in sources}
    return dataclasses.replace(
        settings,
        token=None if token is None else config.secret(token, f"{dot}token", environment, base),
        sources=sources,
        exchange=exchange,
        views=_views(document.get("views", {}), f"{dot}views"),
        replicas=_replicas(copied, f"{dot}replicas", aliases),
        replica_service=_replica_service(said, f"{dot}replicas", aliases, base, environment),
        registry=_registry(document.get("registry"), f"{dot}registry", settings, base, environment),
        evaluator_registry=_registry(
            evaluators if isinstance(evaluators, Mapping) else None,
            *(f"{dot}evaluators", settings, base, environment),
            evaluators=True,
        ),
        columns=config.columns(document.get("columns", {}), f"{dot}columns", base, least=2),
        functions=_mapping(document.get("functions", {}), f"{dot}functions", Mapping, "a section"),
    )


def _check_callers(settings: FederationSettings, sources: Sequence[SourceSettings], dot: str, served: bool) -> None:
    """ConfigurationError where callers could not be passed on, or their tokens would travel in the clear."""
    if settings.callers not in CALLERS:
        raise ConfigurationError(
            f"{dot}callers must be one of {', '.join(CALLERS)}, not {settings.callers!r}.",
            hint=nearest(settings.callers, list(CALLERS)),
        )
    if settings.passes_callers_on and not served:
        raise ConfigurationError(f"{dot}callers: only a federation of a service has callers to pass on.")
    if settings.passes_callers_on and settings.evaluators != ("local",):
        raise ConfigurationError(
            f"{dot}evaluators: callers are passed on by this process alone.", hint='Set evaluators = ["local"].'
        )
    for each in sources:
        for key, chosen in (("forward", each.forward), ("exchange", each.exchange is not None)):
            place = f"{dot}sources: {each.alias}.{key}"
            if chosen and settings.callers != key:
                raise ConfigurationError(f'{place} needs callers = "{key}" of the federation.')
            if chosen and (each.url is None or each.token is not None):
                raise ConfigurationError(f"{place} is for services, in the place of a token.")
            for address in (each.url, *each.replicas) if chosen else ():
                if not is_safe(str(address)):
                    host = urlsplit(str(address)).hostname
                    raise ConfigurationError(
                        f"{place}: tokens of callers would travel to {host!r} without encryption.",
                        hint="Use an address with https://.",
                    )


_OF_SOURCES = ("audience", "resource", "scope")


def _exchange(document: Any, where: str, base: Path, environment: Mapping[str, str]) -> ExchangeSettings | None:
    if document is None:
        return None
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"[{where}] must be a section.")
    for key in ("url", "client_id", "client_secret"):
        if not document.get(key):
            raise ConfigurationError(
                f"{where}.{key} is missing.",
                hint="The token endpoint knows this federation by its client_id and secret.",
            )
    for key in _OF_SOURCES:
        if key in document:
            raise ConfigurationError(f"{where}.{key} is a key of a source.", hint=f'exchange = {{ {key} = "…" }}')
    settings: ExchangeSettings = config.section(ExchangeSettings, where, document, base)
    if "@" in settings.url or "#" in settings.url or not is_safe(settings.url):
        raise ConfigurationError(
            f"{where}.url must be an address with https://, or on loopback, without a user and a fragment.",
            hint="Tokens of callers are sent there.",
        )
    return dataclasses.replace(
        settings,
        client_secret=config.secret(settings.client_secret, f"{where}.client_secret", environment, base),
        subject_token_type=_token_type(settings.subject_token_type),
        requested_token_type=_token_type(settings.requested_token_type),
    )


def _exchange_for(said: Any, where: str, exchange: ExchangeSettings | None, section: str) -> ExchangeSettings:
    """``exchange`` with what a source says of its tokens."""
    if exchange is None:
        raise ConfigurationError(
            f"{where} needs a section [{section}].",
            hint="It says where tokens are exchanged: url, client_id, client_secret.",
        )
    of: dict[str, Any] = _mapping(said, where, str, "a text")
    if unknown := [key for key in of if key not in _OF_SOURCES]:
        raise ConfigurationError(f"[{where}] has no key {unknown[0]!r}.", hint=nearest(unknown[0], list(_OF_SOURCES)))
    if not any(of.values()):
        raise ConfigurationError(f"{where} must say what its tokens are for.", hint='exchange = { audience = "…" }')
    return dataclasses.replace(exchange, **of)


def _token_type(name: str) -> str:
    return name if ":" in name else f"urn:ietf:params:oauth:token-type:{name}"


def _tls(document: Any, where: str, base: Path, served: TlsSettings | None) -> TlsSettings:
    if document is None:
        return served or TlsSettings()
    if served is not None:
        raise ConfigurationError(
            f"[{where}]: a service's federation has the TLS of the service.", hint="Set its keys in [service.tls]."
        )
    tls: TlsSettings = config.section(TlsSettings, where, _mapping(document, where, str, "a file"), base)
    return tls


def _sources(
    document: Any,
    where: str,
    base: Path,
    environment: Mapping[str, str],
    served: bool,
    exchange: ExchangeSettings | None,
) -> tuple[SourceSettings, ...]:
    """From a list of sections; or, short, from alias to address or section."""
    if isinstance(document, Mapping):
        entries = []
        for alias, value in document.items():
            if isinstance(value, str):
                is_service = value.startswith(("http://", "https://")) and not is_files(value)
                value = {"url" if is_service else "database": value}
            if not isinstance(value, Mapping):
                raise ConfigurationError(f"{where}.{alias} must be an address or a section, not {value!r}.")
            entries.append({"alias": alias, **value})
    elif isinstance(document, list | tuple) and all(isinstance(each, Mapping) for each in document):
        entries = [dict(each) for each in document]
    else:
        raise ConfigurationError(f"{where} must be a list of sections [[{where}]].")
    by_alias: dict[str, SourceSettings] = {}
    for number, entry in enumerate(entries, 1):
        place = f"{where}[{number}]"
        if "alias" not in entry:
            raise ConfigurationError(f"{place} has no alias.", hint="Its tables are alias.table.")
        said = {key: value for key, value in entry.items() if key != "exchange"}
        source = _source(config.section(_Source, place, said, base), place, base, environment, served)
        if "exchange" in entry:
            section = f"{where.rpartition('sources')[0]}exchange"
            of = _exchange_for(entry["exchange"], f"{place}.exchange", exchange, section)
            source = dataclasses.replace(source, exchange=of)
        if source.alias.casefold() in by_alias:
            raise ConfigurationError(f"{place}: there is a source {source.alias!r} already.")
        by_alias[source.alias.casefold()] = source
    return tuple(by_alias.values())


def _source(section: _Source, place: str, base: Path, environment: Mapping[str, str], served: bool) -> SourceSettings:
    if not _NAME.fullmatch(section.alias) or section.alias.casefold() in _RESERVED:
        raise ConfigurationError(
            f"{place}: {section.alias!r} cannot be an alias.",
            hint=f"An alias is a letter and then letters, digits or '_', and none of {', '.join(sorted(_RESERVED))}.",
        )
    url, resource = section.url, section.resource
    if section.service is not None:
        if resource is None or url is not None:
            raise ConfigurationError(f"{place}: with service goes resource, the name of one of its resources.")
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
    token = None
    for key in ("token", "ca", "certificate", "key"):
        if getattr(section, key) is not None and url is None:
            raise ConfigurationError(f"{place}: a {key} goes with a service or a url only.")
    if section.key is not None and section.certificate is None:
        raise ConfigurationError(f"{place}: a key goes with a certificate.")
    if section.token is not None:
        token = config.secret(section.token, f"{place}.token", environment, base)
    database = None
    if section.database is not None:
        password = None
        if section.password is not None:
            password = config.secret(section.password, f"{place}.password", environment, base)
        text = config.secret(section.database, f"{place}.database", environment, base)
        path = text if "://" in text else str(base / text)
        if "://" not in text or is_files(text):
            text = url_of(path, section.alias) or text
            if "://" not in text and "@" not in text and not Path(path).exists():
                raise ConfigurationError(
                    f"{section.alias}: there is no file {text!r} in {base.resolve()}.",
                    hint=f"For a data service write http://{text}." if ":" in text else "Files are named from there.",
                )
        database = config.database_url(text, f"{place}.database", base, password)
    for key, address in (("url", url), *(("replicas", each) for each in section.replicas)):
        if address is not None:
            _check_address(address, f"{place}.{key}")
    return SourceSettings(
        alias=section.alias,
        url=url,
        resource=resource,
        database=database,
        replicas=section.replicas,
        token=token,
        ca=section.ca,
        certificate=section.certificate,
        key=section.key,
        forward=section.forward,
    )


def _check_address(address: Any, where: str) -> None:
    hint = "It looks like http://127.0.0.1:8080/resources/NAME."
    if isinstance(address, str) and "@" in address.partition("://")[2].partition("/")[0]:
        hint += " The URL of a database is its key database."
        raise ConfigurationError(f"{where} has a user or a password, which services do not know.", hint=hint)
    if not isinstance(address, str) or not address.startswith(("http://", "https://")):
        raise ConfigurationError(f"{where} is not the address of a resource: {address!r}.", hint=hint)
    try:
        _, name = parted(address)
        urlsplit(address).port  # noqa: B018 - raises ValueError where it is not a number
    except (RequestError, ValueError) as error:
        raise ConfigurationError(f"{where} is not an address: {error}", hint=hint) from error
    if name is None:
        raise ConfigurationError(f"{where} names no resource: {address!r}.", hint=hint)


def _views(document: Any, where: str) -> dict[str, str]:
    views = _mapping(document, where, str, "a query as text")
    known: dict[str, str] = {}
    for name in views:
        if not name or "." in name:
            raise ConfigurationError(f"{where}: {name!r} cannot be the name of a view.")
        if (other := known.setdefault(name.casefold(), name)) != name:
            raise ConfigurationError(f"{where}: {other!r} and {name!r} are one name to SQL.")
    return views


def _parted(document: Any, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is said of a replica service, and the tables that have replicas: their names have a dot."""
    if isinstance(document, str):
        return {"url": document}, {}
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"[{where}] must be a section, or the address of a replica service, not {document!r}.")
    keys = [name for name in document if "." not in name]
    return {name: document[name] for name in keys}, {name: document[name] for name in document if name not in keys}


def _replica_service(
    said: Mapping[str, Any], where: str, aliases: set[str], base: Path, environment: Mapping[str, str]
) -> ReplicaServiceSettings | None:
    if not said:
        return None
    if "url" not in said:
        keys = [each.name for each in dataclasses.fields(ReplicaServiceSettings)]
        if any(name in keys for name in said):
            raise ConfigurationError(f"{where}.url is missing: the address of the replica service.")
        raise ConfigurationError(
            f"{where}: {next(iter(said))!r} is not a table alias.table.", hint=nearest(next(iter(said)), keys)
        )
    settings: ReplicaServiceSettings = config.section(ReplicaServiceSettings, where, said, base)
    listed: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("url", (settings.url,)),
        ("services", settings.services),
        ("catalogs", settings.catalogs),
    )
    for name, urls in listed:
        for each in urls:
            if not isinstance(each, str) or urlsplit(each).scheme not in ("http", "https") or not urlsplit(each).netloc:
                raise ConfigurationError(f"{where}.{name}: {each!r} is no address of a service.")
    alias = settings.alias
    if not _NAME.fullmatch(alias) or alias.casefold() in _RESERVED:
        raise ConfigurationError(f"{where}.alias: {alias!r} cannot be an alias.")
    if alias.casefold() in aliases:
        raise ConfigurationError(
            f"{where}: there is a source {alias!r} already.", hint="Give the replica service another alias."
        )
    token = None if settings.token is None else config.secret(settings.token, f"{where}.token", environment, base)
    return dataclasses.replace(settings, token=token)


def _registry(
    said: Any,
    where: str,
    settings: FederationSettings,
    base: Path,
    environment: Mapping[str, str],
    *,
    evaluators: bool = False,
) -> RegistrySettings | None:
    """``evaluators``: it names those, who get the federation's own token."""
    if said is None:
        return None
    if not isinstance(said, Mapping) or "url" not in said:
        raise ConfigurationError(f"[{where}] must be a section with url, the address of a registry.")
    if settings.passes_callers_on:
        raise ConfigurationError(f'{where}: what a registry names is asked by this federation alone: callers = "own".')
    registry: RegistrySettings = config.section(RegistrySettings, where, said, base)
    listed: tuple[tuple[str, tuple[object, ...]], ...] = (("url", (registry.url,)), ("allow", registry.allow))
    for name, urls in listed:
        for each in urls:
            if not isinstance(each, str) or urlsplit(each).scheme not in ("http", "https") or not urlsplit(each).netloc:
                raise ConfigurationError(f"{where}.{name}: {each!r} is no address of a service.")
    publishers: tuple[object, ...] = registry.publishers
    if not all(isinstance(each, str) and each for each in publishers):
        raise ConfigurationError(f"{where}.publishers must be a list of names.")
    given, key = registry.source_token, f"{where}.source_token"
    if evaluators and given is None:
        given, key = settings.token, f"{where.removesuffix('evaluators')}token"
    # at any port of this machine may be anybody, and whoever publishes says which port is asked
    if given is not None and registry.allow == LOOPBACK:
        raise ConfigurationError(
            f"{key} needs {where}.allow, which says who gets it.",
            hint='It looks like allow = ["https://data.example.org"].',
        )
    for address in registry.allow if given is not None else ():
        if not is_safe(address):
            raise ConfigurationError(f"{key} would travel to {address!r} without encryption.")
    return dataclasses.replace(
        registry,
        token=None if registry.token is None else config.secret(registry.token, f"{where}.token", environment, base),
        source_token=None
        if registry.source_token is None
        else config.secret(registry.source_token, f"{where}.source_token", environment, base),
    )


def _replicas(document: Any, where: str, aliases: set[str]) -> dict[str, tuple[str, ...]]:
    replicas = _mapping(document, where, list | tuple, 'a list of tables ["alias.table"]')
    for name, places in replicas.items():
        for each in (name, *places):
            alias, dot, table = each.partition(".") if isinstance(each, str) else ("", "", "")
            if not dot or not table:
                raise ConfigurationError(f"{where}: {each!r} is not a table alias.table.")
            if alias.casefold() not in aliases:
                raise ConfigurationError(f"{where}: there is no source {alias!r}.", hint=nearest(alias, list(aliases)))
    return {name: tuple(places) for name, places in replicas.items()}


def _mapping(document: Any, where: str, kind: Any, wanted: str) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"[{where}] must be a section, not {document!r}.")
    for name, value in document.items():
        if not isinstance(value, kind):
            raise ConfigurationError(f"{where}.{name} must be {wanted}, not {value!r}.")
    return dict(document)


def within(address: str, prefix: str) -> bool:
    """Whether an address lies below a prefix; without a port in the prefix, at any."""
    wanted, allowed = urlsplit(address), urlsplit(prefix)
    try:
        same = allowed.port is None or wanted.port == allowed.port
    except ValueError:
        return False
    path = allowed.path.rstrip("/")
    return (
        same
        and "@" not in wanted.netloc
        and (wanted.scheme, wanted.hostname) == (allowed.scheme, allowed.hostname)
        and (wanted.path == path or wanted.path.startswith(path + "/"))
        and not {"..", "."} & set(unquote(wanted.path).split("/"))
    )


@dataclass(frozen=True, kw_only=True)
class EvaluatorSettings:
    """``flight_host`` and ``flight_port`` (0: a free one): where exchanges are served. ``memory_bytes``: what DuckDB
    holds for all queries together before it spills (0: its own limit); ``exchange_bytes`` and ``buffer_bytes``: what
    one output and one input hold. ``directory``: for what does not fit; the system's place for temporary files unless
    given. ``liveness_timeout``: seconds without a sign of life from a coordinator, until its fragments end. ``tls``:
    that of the service, for its exchanges too.
    ``sources``: prefixes of the addresses of resources and operations that may be asked; ``python``: functions
    ``package.module:function`` that may be called. ``keep_freed_memory``: the C library keeps large blocks that were
    freed, which makes exchanges faster and the process larger."""

    flight_host: str = "127.0.0.1"
    flight_port: int = field(default=0, metadata={"most": 65_535})
    memory_bytes: int = 0
    exchange_bytes: int = 64 << 20
    buffer_bytes: int = 64 << 20
    directory: Path | None = None
    liveness_timeout: float = field(default=60.0, metadata={"formerly": "silence", **config.POSITIVE})
    sources: tuple[str, ...] = LOOPBACK
    python: tuple[str, ...] = ()
    keep_freed_memory: bool = True
    tls: TlsSettings = TlsSettings()
