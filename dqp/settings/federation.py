"""A federation: the whole of its settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dai import config
from dai.config.identity import is_safe
from dai.errors import ConfigurationError
from dai.plugins import nearest
from dqp.settings.exchange import ExchangeSettings, exchange
from dqp.settings.registry import RegistrySettings, registry
from dqp.settings.replicas import ReplicaServiceSettings, parted, replica_service, replicas
from dqp.settings.sections import Reader, mapping
from dqp.settings.sources import SourceSettings, sources
from dqp.settings.tls import TlsSettings, tls

LEAST_MEMORY = config.LEAST_MEMORY
"""Bytes that DuckDB needs to spill a join's build side with one thread, measured with rows of 1 KB."""


PUSHDOWN = ("cost", "all", "none")
"""What sources compute: what takes less time there, all that they can, or filters and columns only."""


REGISTRY = "registry"
"""In the place of the addresses of evaluators, which a registry names."""


CALLERS = ("own", "forward", "exchange")


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """Where a federation runs, and what it reads.

    Execution: ``evaluators`` are ``local``, URLs of evaluator services, or one address of Ray. They know this
    federation by ``token``; at ``flight_host`` and ``flight_port`` they read rows of sources that only this process
    can read, and ``tls`` has the certificates for that. ``memory_bytes``: what DuckDB uses for all queries before
    it spills to disk, at least 100 MB (0: DuckDB's own limit; in a service with ``limits.memory_bytes``
    half of that); queries that DuckDB runs as they are written use at most half as much beside it, or
    100 MB if that is more. ``liveness_timeout``: seconds without a sign of life, while a statement waits for
    its rows, until a service counts as lost. ``upload_bytes``: all tables that were uploaded into a service's
    federation together (0: no uploads).

    Planning: ``lifetime``: seconds for which statistics count as current. ``pushdown``: what sources compute, one
    of ``PUSHDOWN``. ``second_chance``: a statement is overtaken if it gives no row within so many times its
    estimated seconds, or in the time that its alternative takes, and at least ``second_chance_after`` (0: never).

    Tables: ``sources``. ``views``: named queries. ``replicas``: from ``alias.table`` to other tables with the same
    rows; ``replica_service``: where copies of logical tables are. ``registry`` and ``evaluator_registry``: sources
    and evaluators from a registry. ``functions``: operation calls by name; relative paths in them start at
    ``base``. ``columns``: what columns mean, by ``alias.table.column``.

    Rights: ``callers``: sources get the credentials of the federation (``own``), the caller's token (``forward``),
    or a token in exchange for it (``exchange``).
    """

    name: str = "federation"
    evaluators: tuple[str, ...] = ("local",)
    callers: str = "own"
    exchange: ExchangeSettings | None = None
    token: str | None = field(default=None, repr=False)
    flight_host: str = "127.0.0.1"
    flight_port: int = field(default=0, metadata={"most": 65_535})
    tls: TlsSettings = field(default_factory=TlsSettings)
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
    reader = Reader(Path(base), environment or {})
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
            f"{dot}evaluators: evaluators from a registry need a section.", hint=f"Set url in [{dot}evaluators]."
        )
    if "evaluator_registry" in plain:
        raise ConfigurationError(f"{dot}evaluator_registry is not a key.", hint=f"Set url in [{dot}evaluators].")
    if "replica_service" in plain:
        raise ConfigurationError(f"{dot}replica_service is not a key.", hint=f"Set url in [{dot}replicas].")
    settings: FederationSettings = reader.section(
        FederationSettings,
        where,
        plain,
        name=name,
        base=reader.base,
        tls=tls(document.get("tls"), f"{dot}tls", reader, served),
    )
    check_memory(settings.memory_bytes, f"{dot}memory_bytes")
    if settings.pushdown not in PUSHDOWN:
        raise ConfigurationError(
            f"{dot}pushdown must be one of {', '.join(PUSHDOWN)}, not {settings.pushdown!r}.",
            hint=nearest(settings.pushdown, list(PUSHDOWN)),
        )
    if not settings.evaluators or not all(isinstance(each, str) for each in settings.evaluators):
        raise ConfigurationError(f"{dot}evaluators must be a list of texts, at least one.", hint='["local"]')
    exchanged_at = exchange(document.get("exchange"), f"{dot}exchange", reader)
    sources_of = sources(document.get("sources", ()), f"{dot}sources", reader, served is not None, exchanged_at)
    if exchanged_at is not None and settings.callers != "exchange":
        raise ConfigurationError(f'[{dot}exchange] needs {dot}callers = "exchange".')
    _check_callers(settings, sources_of, dot, served is not None)
    service, tables = parted(document.get("replicas", {}), f"{dot}replicas")
    aliases = {each.alias.casefold() for each in sources_of}
    passes_on = settings.passes_callers_on
    return dataclasses.replace(
        settings,
        token=reader.secret(settings.token, f"{dot}token"),
        sources=sources_of,
        exchange=exchanged_at,
        views=_views(document.get("views", {}), f"{dot}views"),
        replicas=replicas(tables, f"{dot}replicas", aliases),
        replica_service=replica_service(service, f"{dot}replicas", aliases, reader),
        registry=registry(document.get("registry"), f"{dot}registry", reader, passes_callers_on=passes_on),
        evaluator_registry=registry(
            evaluators if isinstance(evaluators, Mapping) else None,
            f"{dot}evaluators",
            reader,
            passes_callers_on=passes_on,
            evaluators_token=settings.token,
        ),
        columns=config.columns(document.get("columns", {}), f"{dot}columns", reader.base, least=2),
        functions=mapping(document.get("functions", {}), f"{dot}functions", Mapping, "a section"),
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
            f"{dot}evaluators: a federation that passes callers on can only use this process.",
            hint='Set evaluators = ["local"].',
        )
    for each in sources:
        for key, chosen in (("forward", each.forward), ("exchange", each.exchange is not None)):
            place = f"{dot}sources: {each.alias}.{key}"
            if chosen and settings.callers != key:
                raise ConfigurationError(f'{place} needs callers = "{key}" of the federation.')
            if chosen and (each.url is None or each.token is not None):
                raise ConfigurationError(f"{place} is for services only, in the place of a token.")
            for address in (each.url, *each.replicas) if chosen else ():
                if not is_safe(str(address)):
                    host = urlsplit(str(address)).hostname
                    raise ConfigurationError(
                        f"{place}: tokens of callers would travel to {host!r} without encryption.",
                        hint="Use an address with https://.",
                    )


def _views(document: Any, where: str) -> dict[str, str]:
    views = mapping(document, where, str, "a query as text")
    known: dict[str, str] = {}
    for name in views:
        if not name or "." in name:
            raise ConfigurationError(f"{where}: {name!r} cannot be the name of a view.")
        if (other := known.setdefault(name.casefold(), name)) != name:
            raise ConfigurationError(f"{where}: {other!r} and {name!r} are the same name in SQL.")
    return views
