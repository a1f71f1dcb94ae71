"""Configuration: one TOML file, each value overridable by the environment, read once into frozen values.

``DAI_SERVICE__PORT=8081`` overrides ``port`` in ``[service]``, ``DAI_RESOURCES__BOOK__URL`` the ``url`` of
``[resources.book]``: two underscores between levels, any case, ``_`` also for ``-``. Relative paths count from the
directory of the file. A value ``env:NAME`` or ``file:PATH`` of a secret is replaced by what the variable or the file
holds. Nothing else in the package reads the environment.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from dai.errors import ConfigurationError
from dai.plugins import nearest

PREFIX = "DAI_"
SEPARATOR = "__"
MOST = {int: 1 << 53, float: 1e9}
"""No number in a configuration is larger, or negative; fields with a bound of their own say it in their metadata."""
POSITIVE = {"positive": True}
"""Of a number that must not be 0 either."""
_SWITCH = {"true": True, "false": False}
_FILE_DATABASES = frozenset({"sqlite", "duckdb"})


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """``state``: an SQLAlchemy URL for jobs; ``name`` tells services apart that share one state database;
    ``results_directory``: where results of jobs are kept, and what
    outgrows the memory while it waits for a slower reader; ``grace``: seconds that running requests get at shutdown;
    ``hosts``: names that requests may call this service by, besides addresses, localhost and the machine's name;
    ``workers``: processes that serve."""

    host: str = "127.0.0.1"
    port: int = field(default=8080, metadata={"most": 65_535})
    hosts: tuple[str, ...] = ()
    name: str = "dai"
    state: str = field(default="sqlite:///dai-state.db", repr=False)
    results_directory: Path = Path("dai-results")
    grace: float = 10.0
    workers: int = field(default=1, metadata={"most": 64, **POSITIVE})

    @property
    def loopback(self) -> bool:
        return self.host in {"127.0.0.1", "::1", "localhost"}


@dataclass(frozen=True, kw_only=True)
class LimitsConfig:
    """What one service does at most; 0 means no limit for ``rows``, ``bytes``, ``seconds``, ``execution_seconds`` and
    ``result_bytes``.

    ``concurrent`` requests run at once, ``queue`` more wait, at most ``queue_seconds``; ``jobs`` jobs run at once,
    ``job_queue`` more wait. ``rows`` and ``bytes`` are those of one synchronous answer (before compression), or of all
    that one job keeps; streams that clients pull are not counted. A synchronous request may take ``seconds``, a job
    ``execution_seconds`` from when it leaves the queue. The head of a request must arrive within ``receive_seconds``,
    and so must each MiB of its body. ``document_bytes``,
    ``document_depth`` and ``activities`` bound a perform document, ``table_bytes`` the tables that a query brings
    along. A client asks for at most ``block_rows`` rows a
    block, and pushes at most ``block_bytes`` a block; blocks wait in at most ``session_bytes`` of one session and
    ``sessions_bytes`` of all. What an activity decompresses has at most ``unpacked_bytes``, a document
    or a style sheet that xslTransform reads ``transform_bytes``; all style sheets of one document take at most
    ``transform_seconds`` of processor time. The waiting times that one document asks for (Sleep, the timeout of
    sqlResilient) are ``wait_seconds`` together. ``session_seconds`` after its last use a session ends,
    ``job_seconds`` after its creation a job is destroyed. ``result_bytes`` is for all kept results together.
    """

    concurrent: int = field(default=16, metadata=POSITIVE)
    queue: int = 100
    queue_seconds: float = field(default=30.0, metadata=POSITIVE)
    jobs: int = field(default=8, metadata=POSITIVE)
    job_queue: int = 1000
    rows: int = 0
    bytes: int = 0
    seconds: float = 3600.0
    execution_seconds: float = 0.0
    receive_seconds: float = field(default=60.0, metadata=POSITIVE)
    document_bytes: int = field(default=4 << 20, metadata=POSITIVE)
    table_bytes: int = field(default=16 << 20, metadata=POSITIVE)
    document_depth: int = field(default=32, metadata=POSITIVE)
    activities: int = field(default=500, metadata=POSITIVE)
    block_rows: int = field(default=1_000_000, metadata=POSITIVE)
    block_bytes: int = field(default=64 << 20, metadata=POSITIVE)
    unpacked_bytes: int = field(default=1 << 30, metadata=POSITIVE)
    transform_bytes: int = field(default=32 << 20, metadata=POSITIVE)
    transform_seconds: int = field(default=60, metadata={"most": 86_400, **POSITIVE})
    wait_seconds: int = field(default=3600, metadata={"most": 86_400, **POSITIVE})
    session_bytes: int = field(default=128 << 20, metadata=POSITIVE)
    sessions_bytes: int = field(default=512 << 20, metadata=POSITIVE)
    sessions: int = 1000
    session_seconds: float = field(default=600.0, metadata=POSITIVE)
    job_seconds: float = field(default=7 * 86400.0, metadata=POSITIVE)
    result_bytes: int = 16 << 30


@dataclass(frozen=True, kw_only=True)
class IdentityConfig:
    """Who may ask. ``methods`` say who asks, in this order; without any nobody is asked, and the service listens on
    loopback only. ``anonymous``: whoever sends no credentials is served all the same, also beyond loopback. A token
    that was looked up is good for ``kept_seconds`` without looking again. The answer to wrong credentials waits at most
    ``wrong_seconds``: the longer, the more of them came from an address."""

    methods: tuple[str, ...] = ()
    anonymous: bool = False
    kept_seconds: float = field(default=5.0, metadata={"most": 3600})
    wrong_seconds: float = field(default=5.0, metadata={"most": 60})


@dataclass(frozen=True, kw_only=True)
class QuotaConfig:
    """What one caller may have; 0 means no limit. ``jobs`` that have not ended, ``result_bytes`` of kept results,
    ``day_bytes`` of answers a day (UTC)."""

    jobs: int = 0
    result_bytes: int = 0
    day_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class QuotasConfig:
    """``every``: what each caller may have, and each who has no name together; ``callers``: those who may have other
    shares."""

    every: QuotaConfig = QuotaConfig()
    callers: Mapping[str, QuotaConfig] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """``file``: where each request is recorded; without it none is."""

    file: Path | None = None


DELIVERY_SCHEMES = ("http", "https", "ftp", "sftp", "s3")
"""Of the addresses that deliveries may be allowed."""
MAIL_TLS = ("starttls", "tls", "none")


@dataclass(frozen=True, kw_only=True)
class AccountConfig:
    """Credentials for the addresses that begin with ``url``: ``user`` and ``password``, or the file of a private
    ``key`` (sftp); or a bearer ``token`` (http, https). For an object store ``user`` is the name of the access key,
    ``password`` the key; ``endpoint`` and ``region`` say where the store is."""

    name: str
    url: str
    user: str = ""
    password: str | None = field(default=None, repr=False)
    key: Path | None = None
    token: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    region: str = "us-east-1"


@dataclass(frozen=True, kw_only=True)
class MailConfig:
    """The server that deliverToSMTP sends by, and who may write to whom: addresses, or ``@example.org`` for all of a
    domain. ``tls``: starttls, tls (from the first byte) or none. A message carries at most ``bytes``."""

    host: str
    port: int = field(default=587, metadata={"most": 65_535, **POSITIVE})
    tls: str = "starttls"
    user: str = ""
    password: str | None = field(default=None, repr=False)
    senders: tuple[str, ...] = ()
    recipients: tuple[str, ...] = ()
    bytes: int = field(default=25 << 20, metadata=POSITIVE)


@dataclass(frozen=True, kw_only=True)
class DeliveryConfig:
    """What perform documents may read and write besides resources; by default nothing.

    ``directory``: files. ``urls``: the beginnings of addresses; ``private``: their hosts may have private
    addresses. One delivery takes at most ``seconds``, waits ``silence`` seconds for the other side, and reads ``bytes``
    (0: no limit). ``authorities``: certificates (PEM) trusted besides those of the system; ``known_hosts``: the keys of
    SFTP servers, as OpenSSH keeps them.
    """

    directory: Path | None = None
    urls: tuple[str, ...] = ()
    private: bool = False
    seconds: float = field(default=3600.0, metadata={"most": 1_000_000, **POSITIVE})
    silence: float = field(default=60.0, metadata={"most": 1_000_000, **POSITIVE})
    bytes: int = 0
    authorities: Path | None = None
    known_hosts: Path | None = None
    accounts: Mapping[str, AccountConfig] = field(default_factory=dict)
    mail: MailConfig | None = None


@dataclass(frozen=True, kw_only=True)
class ResourceConfig:
    """A data resource: ``url`` (an SQL database), ``collections`` (XML documents) or ``directory`` (files).

    ``collections``: the database that stores them, a file of SQLite or a URL of SQLite or PostgreSQL. ``replicas``:
    URLs of databases with the same data, for sqlResilient; a ``password`` is that of all.
    ``url`` holds the password once ``password`` was resolved: it is never printed.
    """

    name: str
    url: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    description: str | None = None
    replicas: tuple[str, ...] = field(default=(), repr=False)
    collections: str | None = field(default=None, repr=False)
    directory: Path | None = None
    roles: Path | None = None
    pool_size: int = field(default=16, metadata={"most": 10_000, **POSITIVE})
    pool_wait: float = field(default=30.0, metadata={"most": 1_000_000})
    connect_wait: float = field(default=10.0, metadata={"most": 1_000_000})
    read_sockets: bool = True

    @property
    def kind(self) -> str:
        if self.url is not None:
            return "database"
        return "collections" if self.collections is not None else "directory"


@dataclass(frozen=True, kw_only=True)
class FederationConfig:
    """A virtual resource over tables in many data services. Its ``content`` belongs to the package that runs it, which
    reads it with ``section``, ``secret`` and ``database_url``; relative paths count from ``base``."""

    name: str
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)
    base: Path = Path()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class RoleConfig:
    """What a service does besides serving its resources: the section ``[roles.NAME]``, whose ``content`` belongs to the
    package that has the role and is read as that of a federation."""

    name: str
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)
    base: Path = Path()


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole file; the sections by their names."""

    service: ServiceConfig = ServiceConfig()
    limits: LimitsConfig = LimitsConfig()
    identity: IdentityConfig = IdentityConfig()
    quotas: QuotasConfig = QuotasConfig()
    audit: AuditConfig = AuditConfig()
    delivery: DeliveryConfig = DeliveryConfig()
    resources: Mapping[str, ResourceConfig] = field(default_factory=dict)
    federations: Mapping[str, FederationConfig] = field(default_factory=dict)
    roles: Mapping[str, RoleConfig] = field(default_factory=dict)


def load(path: Path | str, environment: Mapping[str, str] | None = None) -> Config:
    """The configuration in the file ``path``, overridden by ``environment`` (the process's own unless given)."""
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"The configuration {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # also a number of thousands of digits
        raise ConfigurationError(f"The configuration {path} is not TOML: {error}.") from error
    return parse(document, path.parent, environment)


def parse(document: Mapping[str, Any], base: Path | str = ".", environment: Mapping[str, str] | None = None) -> Config:
    """The configuration of a TOML document as Python values; relative paths count from ``base``."""
    if environment is None:
        import os

        environment = dict(os.environ)
    base = Path(base)
    merged = _overridden(document, environment)
    known = [each.name for each in dataclasses.fields(Config)]
    for name, value in merged.items():
        if name not in known:
            raise ConfigurationError(f"There is no section [{name}].", hint=nearest(name, known))
        if not isinstance(value, dict):
            raise ConfigurationError(f"[{name}] must be a section, not {value!r}.")
    service = section(ServiceConfig, "service", merged.get("service", {}), base)
    service = dataclasses.replace(
        service, state=database_url(secret(service.state, "service.state", environment, base), "service.state", base)
    )
    for each in service.hosts:
        if not isinstance(each, str) or not each or "/" in each:
            hint = 'It looks like hosts = ["data.example.org"].'
            raise ConfigurationError(f"service.hosts: {each!r} is no host name.", hint=hint)
    limits = section(LimitsConfig, "limits", merged.get("limits", {}), base)
    identity = section(IdentityConfig, "identity", merged.get("identity", {}), base)
    audit = section(AuditConfig, "audit", merged.get("audit", {}), base)
    quotas = _quotas(dict(merged.get("quotas", {})), base)
    delivery = _delivery(dict(merged.get("delivery", {})), base, environment)
    resources = {}
    for name, value in _named(merged, "resources"):
        resources[name] = _resource(name, value, base, environment)
    federations = {}
    for name, value in _named(merged, "federations"):
        if name in resources:
            raise ConfigurationError(f"[federations.{name}]: there is a resource of this name already.")
        federations[name] = FederationConfig(name=name, content=value, base=base, environment=environment)
    roles = {}
    for name, value in _named(merged, "roles"):
        if name in resources or name in federations:
            raise ConfigurationError(f"[roles.{name}]: there is a resource of this name already.")
        roles[name] = RoleConfig(name=name, content=value, base=base)
    return Config(
        service=service,
        limits=limits,
        identity=identity,
        quotas=quotas,
        audit=audit,
        delivery=delivery,
        resources=resources,
        federations=federations,
        roles=roles,
    )


def _quotas(values: dict[str, Any], base: Path) -> QuotasConfig:
    callers = values.pop("callers", {})
    if not isinstance(callers, dict) or not all(isinstance(each, dict) for each in callers.values()):
        raise ConfigurationError("[quotas.callers]: each caller is a section [quotas.callers.NAME].")
    every: QuotaConfig = section(QuotaConfig, "quotas", values, base)
    return QuotasConfig(
        every=every,
        callers={
            name: section(QuotaConfig, f"quotas.callers.{name}", dataclasses.asdict(every) | each, base)
            for name, each in callers.items()
        },
    )


def _delivery(values: dict[str, Any], base: Path, environment: Mapping[str, str]) -> DeliveryConfig:
    def referred(where: str, value: str | None) -> str | None:
        return None if value is None else secret(value, where, environment, base)

    def address(where: str, value: Any) -> None:
        if not isinstance(value, str) or not value.startswith(tuple(f"{each}://" for each in DELIVERY_SCHEMES)):
            hint = 'It looks like urls = ["https://data.example.org/incoming/"].'
            raise ConfigurationError(f"{where}: {value!r} is no address.", hint=hint)

    accounts: dict[str, AccountConfig] = {}
    for name, each in _named(values, "accounts"):
        place = f"delivery.accounts.{name}"
        if "url" not in each:
            raise ConfigurationError(f"[{place}] needs url, the beginning of the addresses that it is for.")
        account = section(AccountConfig, place, each, base, name=name)
        address(f"{place}.url", account.url)
        password, token = (referred(f"{place}.{each}", getattr(account, each)) for each in ("password", "token"))
        accounts[name] = dataclasses.replace(account, password=password, token=token)
    mail: MailConfig | None = None
    if "mail" in values:
        where = "delivery.mail"
        if not isinstance(values["mail"], dict) or "host" not in values["mail"]:
            raise ConfigurationError(f"[{where}] is a section that needs host, the name of the mail server.")
        mail = section(MailConfig, where, values["mail"], base)
        if mail.tls not in MAIL_TLS:
            raise ConfigurationError(f"{where}.tls is one of {', '.join(MAIL_TLS)}, not {mail.tls!r}.")
        if mail.user and mail.tls == "none":
            raise ConfigurationError(f"{where}: a user name needs TLS.", hint='Set tls = "starttls".')
        mail = dataclasses.replace(mail, password=referred(f"{where}.password", mail.password))
    rest = {name: value for name, value in values.items() if name not in ("accounts", "mail")}
    delivery: DeliveryConfig = section(DeliveryConfig, "delivery", rest, base, accounts=accounts, mail=mail)
    for url in delivery.urls:
        address("delivery.urls", url)
    return delivery


def _named(document: dict[str, Any], section: str) -> list[tuple[str, dict[str, Any]]]:
    entries = list(document.get(section, {}).items())
    for name, value in entries:
        if not isinstance(value, dict):
            raise ConfigurationError(f"[{section}]: {name!r} must be a section [{section}.NAME].")
        if not name or not all(character.isalnum() or character in "-_." for character in name) or name[0] == ".":
            raise ConfigurationError(f"[{section}.{name}]: a name is made of letters, digits, '-', '_' and '.'.")
    return entries


def _resource(name: str, value: dict[str, Any], base: Path, environment: Mapping[str, str]) -> ResourceConfig:
    where = f"resources.{name}"
    resource: ResourceConfig = section(ResourceConfig, where, value, base, name=name)
    kinds = [kind for kind in ("url", "collections", "directory") if getattr(resource, kind) is not None]
    if len(kinds) != 1:
        what = " and ".join(kinds) or "none of them"
        raise ConfigurationError(f"[{where}] needs one of url, collections and directory, but has {what}.")
    password = None
    if resource.password is not None:
        password = secret(resource.password, f"{where}.password", environment, base)
    if resource.collections is not None:
        store = secret(resource.collections, f"{where}.collections", environment, base)
        if "://" not in store:
            return dataclasses.replace(resource, collections=f"sqlite:///{(base / store).resolve()}", password=None)
        store = database_url(store, f"{where}.collections", base, password)
        url = make_url(store)
        in_memory = url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")
        if in_memory or url.get_backend_name() not in ("sqlite", "postgresql"):
            hint = 'It looks like "notes.db" or "postgresql://user@host/database".'
            raise ConfigurationError(f"{where}.collections is no file and no URL of SQLite or PostgreSQL.", hint=hint)
        return dataclasses.replace(resource, collections=store, password=None)
    if resource.url is None:
        return resource
    database = secret(resource.url, f"{where}.url", environment, base)
    replicas = []
    for each in resource.replicas:
        if not isinstance(each, str):
            raise ConfigurationError(f"{where}.replicas: {each!r} is no database URL.")
        replica = secret(each, f"{where}.replicas", environment, base)
        replicas.append(database_url(replica, f"{where}.replicas", base, password))
    database = database_url(database, f"{where}.url", base, password)
    return dataclasses.replace(resource, url=database, replicas=tuple(replicas), password=None)


def database_url(text: str, where: str, base: Path, password: str | None = None) -> str:
    """The URL with its password, and with an absolute path where the database is a file."""
    try:
        url = make_url(text)
    except ArgumentError:
        hint = "It looks like postgresql://user@host/database or sqlite:///file.db."
        raise ConfigurationError(f"{where} is not a database URL.", hint=hint) from None
    original = url
    if password is not None:
        url = url.set(password=password)
    database = url.database or ""
    if url.get_backend_name() in _FILE_DATABASES and database not in ("", ":memory:") and database[:5] != "file:":
        url = url.set(database=str((base / database).resolve()))
    return text if url == original else url.render_as_string(hide_password=False)


def secret(value: str, where: str, environment: Mapping[str, str], base: Path) -> str:
    """What a reference ``env:NAME`` or ``file:PATH`` stands for; any other text is itself."""
    kind, _, name = value.partition(":")
    if kind == "env":
        if name not in environment:
            raise ConfigurationError(f"{where}: the environment variable {name!r} is not set.")
        return environment[name]
    if kind == "file":
        try:
            return (base / name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{where}: the file {name!r} cannot be read.") from error
    return value


def _overridden(document: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    merged: dict[str, Any] = {
        section: {name: dict(each) if isinstance(each, dict) else each for name, each in value.items()}
        if isinstance(value, dict)
        else value
        for section, value in document.items()
    }
    for variable, text in environment.items():
        if not variable.upper().startswith(PREFIX) or SEPARATOR not in variable:
            continue
        levels = variable[len(PREFIX) :].lower().split(SEPARATOR)
        place: Any = merged
        for level in levels[:-1]:
            place = place.setdefault(_known_as(level, place), {})
            if not isinstance(place, dict):
                raise ConfigurationError(f"{variable}: {level!r} is a value, not a section.")
        if not all(levels):
            raise ConfigurationError(f"{variable} names no value.")
        place[_known_as(levels[-1], place)] = _Override(text, variable)
    return merged


class _Override(str):
    """A value from the environment: text that is read as what its place wants."""

    def __new__(cls, text: str, variable: str) -> _Override:
        secret = super().__new__(cls, text)
        secret.variable = variable
        return secret

    variable: str

    def __reduce__(self) -> tuple[type[_Override], tuple[str, str]]:
        return _Override, (str(self), self.variable)


def _known_as(level: str, place: Mapping[str, Any]) -> str:
    for name in place:
        if name.lower().replace("-", "_").replace(".", "_") == level:
            return name
    return level


def keys(kind: Any) -> dict[str, str]:
    """The fields of a section by the keys that set them: its name, and the one that it had in an earlier release."""
    fields = dataclasses.fields(kind)
    former = {each.metadata["formerly"]: each.name for each in fields if "formerly" in each.metadata}
    return {each.name: each.name for each in fields} | former


def section(kind: Any, where: str, values: Mapping[str, Any], base: Path, /, **fixed: Any) -> Any:
    """A dataclass ``kind`` of the values of a section; ``fixed`` are fields that no key sets. ``where`` names it in
    errors. ConfigurationError for an unknown key, with the nearest, and for a value of another type."""
    hints = typing.get_type_hints(kind)
    bounds = {each.name: each.metadata for each in dataclasses.fields(kind)}
    known = {key: name for key, name in keys(kind).items() if name not in fixed}
    fields: dict[str, Any] = dict(fixed)
    for name, value in values.items():
        key = known.get(name.replace("-", "_"))
        if key is None:
            source = f" ({value.variable})" if isinstance(value, _Override) else ""
            whose = f"[{where}]" if where else "The top level"
            raise ConfigurationError(
                f"{whose} has no key {name!r}{source}.", hint=nearest(name, list(dict.fromkeys(known.values())))
            )
        place = f"{where}.{name}" if where else name
        if key in fields:
            raise ConfigurationError(f"{place}: {key} is set already, by another key.", hint=f"Set {key} once.")
        fields[key] = _bounded(_value(value, hints[key], place, base), place, bounds[key])
    return kind(**fields)


def _bounded(value: Any, where: str, bounds: Mapping[str, Any]) -> Any:
    """``value``; ConfigurationError for a number below 0, beyond its field's ``bounds``, or that is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        most = bounds.get("most", MOST[type(value)])
        if value < 0:
            raise ConfigurationError(f"{where} must be 0 or more, not {value}.")
        if not value and "positive" in bounds:
            raise ConfigurationError(f"{where} must be more than 0.")
        if not value <= most:
            raise ConfigurationError(f"{where} must be at most {int(most):_}, not {value}.")
    return value


def _value(value: Any, hint: Any, where: str, base: Path) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = [each for each in typing.get_args(hint) if each is not type(None)]
    if typing.get_origin(hint) is tuple:
        if isinstance(value, _Override):
            value = [each.strip() for each in value.split(",")]
        if not isinstance(value, list | tuple):
            raise ConfigurationError(f"{where} must be a list.")
        return tuple(value)
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}[hint]
    wrong = ConfigurationError(f"{where} must be {wanted}, not {_shown(value)}.")
    if isinstance(value, _Override) and hint in (int, float):
        try:
            return hint(value)
        except ValueError:
            raise wrong from None
    if isinstance(value, _Override) and hint is bool and value.lower() in _SWITCH:
        return _SWITCH[value.lower()]
    if isinstance(value, bool) and hint is not bool:
        raise wrong
    if hint is Path and isinstance(value, str):
        return (base / value).resolve()
    if hint is float and isinstance(value, int):
        # a larger one than any float is refused as that
        return float(min(max(value, -(1 << 60)), 1 << 60))
    if not isinstance(value, hint):
        raise wrong
    return str(value) if hint is str else value


def _shown(value: Any) -> str:
    return repr(str(value)) if isinstance(value, str) else repr(value)
