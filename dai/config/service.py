"""The sections ``[service]`` and ``[limits]``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dai.config.values import POSITIVE, section
from dai.errors import ConfigurationError

_ORIGIN = re.compile(r"https?://[^/\s@?#]+")
TLS_VERSIONS = ("1.2", "1.3")
MOST_WORKERS = 64
"""A character in the ids of sessions and jobs says which worker owns them."""


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """PEM files for HTTPS. ``certificate``: the service's certificate with the intermediate ones; ``key``: its
    private key (default: in ``certificate``). ``client_ca``: the authorities whose certificates every client must
    have. ``ca``: authorities that this service trusts, besides those of the system, when it calls other nodes; it
    shows them the same certificate. ``minimum_version``: the oldest accepted version of TLS."""

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None
    ca: Path | None = None
    minimum_version: str = "1.2"


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """The process. ``host`` and ``port``: where it listens. ``hosts``: further host names by which clients call it,
    besides addresses, localhost and the machine's name. ``origins``: sites whose pages may use it from a browser
    (CORS); ``*``: any page may read. ``name`` distinguishes services that share a state database. ``state``: the
    state database, an SQLAlchemy URL. ``results_directory``: for results of jobs, and rows that wait for a slow
    reader and do not fit in memory. ``grace``: seconds that running requests get when the service stops.
    ``workers``: the number of processes (0: ``dai.api.server.supervisor`` chooses). ``tls``: HTTPS."""

    host: str = "127.0.0.1"
    port: int = field(default=8080, metadata={"most": 65_535})
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    name: str = "dai"
    state: str = field(default="sqlite:///dai-state.db", repr=False)
    results_directory: Path = Path("dai-results")
    grace: float = 10.0
    workers: int = field(default=0, metadata={"most": MOST_WORKERS})
    tls: TlsConfig | None = None

    @property
    def loopback(self) -> bool:
        return self.host in {"127.0.0.1", "::1", "localhost"}


def service(values: Mapping[str, Any], base: Path) -> ServiceConfig:
    rest = {name: value for name, value in values.items() if name != "tls"}
    for origin in rest.get("origins", ()) if isinstance(rest.get("origins"), list) else ():
        if not (origin == "*" or (isinstance(origin, str) and _ORIGIN.fullmatch(origin))):
            raise ConfigurationError(
                f"service.origins has {origin!r}, which is not an origin.",
                hint='An origin has a scheme, a host and perhaps a port: "https://portal.example.org". "*" allows all.',
            )
    tls: TlsConfig | None = None
    if "tls" in values:
        if not isinstance(values["tls"], dict) or "certificate" not in values["tls"]:
            raise ConfigurationError("[service.tls] must be a section with certificate, a file.")
        tls = section(TlsConfig, "service.tls", values["tls"], base)
        if tls.minimum_version not in TLS_VERSIONS:
            raise ConfigurationError(f"service.tls.minimum_version must be one of {', '.join(TLS_VERSIONS)}.")
    read: ServiceConfig = section(ServiceConfig, "service", rest, base, tls=tls)
    return read


@dataclass(frozen=True, kw_only=True)
class LimitsConfig:
    """Limits of one service. 0 means no limit for ``rows``, ``bytes``, ``seconds``, ``execution_seconds``,
    ``stuck_seconds``, ``resource_jobs`` and ``result_bytes``.

    Memory: a process may use ``memory_bytes`` (0: nine tenths of the machine's, divided among the workers if each has
    every resource).

    Requests: ``concurrent`` run at once, and ``queue`` more wait, at most ``queue_seconds``. A synchronous request
    may take ``seconds``. Its head, and each MiB of its body, must arrive within ``receive_seconds``. ``rows`` and
    ``bytes`` (before compression) limit one synchronous answer, or all results of one job, but not streams that
    clients pull. If a statement goes on ``stuck_seconds`` after it was stopped, its process is replaced.

    Jobs: ``jobs`` run at once, and ``job_queue`` more wait; ``resource_jobs`` is for those of one resource. A job
    may take ``execution_seconds`` after it left the queue. It is destroyed ``job_seconds`` after its creation, or
    at a time that its caller sets, at most ``job_seconds_most`` after its creation. ``result_bytes`` limits all
    stored results together.

    Documents: ``document_bytes``, ``document_depth`` and ``activities`` limit a perform document, and
    ``table_bytes`` the tables that are sent with a query. An activity decompresses at most ``unpacked_bytes``;
    xslTransform reads at most ``transform_bytes``, and all style sheets of a document take at most
    ``transform_seconds`` of processor time. A document may wait at most ``wait_seconds`` in all (Sleep, the timeout
    of sqlResilient).

    Sessions: there are at most ``sessions``; one ends ``session_seconds`` after its last use. A block has at most
    ``block_rows`` rows when it is pulled, and ``block_bytes`` when it is pushed; the blocks that wait have at most
    ``session_bytes`` in one session and ``sessions_bytes`` in all.

    Contexts and feeds: a context or document has at most ``context_bytes``, and all together ``contexts_bytes``, of
    which ``contexts_memory`` stay in memory; a lease lasts at most ``context_seconds``. There are at most ``feeds``
    feeds. One keeps at most ``feed_bytes`` for ``feed_seconds``, all together ``feeds_bytes``; at most
    ``followers`` follow those of one process.
    """

    memory_bytes: int = field(default=0, metadata={"most": 1 << 50})
    concurrent: int = field(default=16, metadata=POSITIVE)
    queue: int = 100
    queue_seconds: float = field(default=30.0, metadata=POSITIVE)
    jobs: int = field(default=8, metadata=POSITIVE)
    job_queue: int = 1000
    rows: int = 0
    bytes: int = 0
    seconds: float = 3600.0
    stuck_seconds: float = 60.0
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
    job_seconds_most: float = field(default=30 * 86400.0, metadata=POSITIVE)
    result_bytes: int = 16 << 30
    context_bytes: int = field(default=1 << 20, metadata=POSITIVE)
    contexts_bytes: int = field(default=256 << 20, metadata=POSITIVE)
    contexts_memory: int = 32 << 20
    context_seconds: float = field(default=7 * 86400.0, metadata=POSITIVE)
    feeds: int = field(default=100, metadata=POSITIVE)
    feed_bytes: int = field(default=16 << 20, metadata=POSITIVE)
    feeds_bytes: int = field(default=256 << 20, metadata=POSITIVE)
    feed_seconds: float = field(default=3600.0, metadata=POSITIVE)
    followers: int = field(default=2000, metadata=POSITIVE)
    resource_jobs: int = 0
