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


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """Files (PEM): ``certificate`` with those between it and its authority, its private ``key`` (none: in the same
    file), ``client_ca``: the authorities of certificates that every client must have. ``minimum_version`` of TLS.
    ``ca``: authorities trusted besides those of the system where this service calls other nodes, to which it shows the
    same certificate."""

    certificate: Path
    key: Path | None = None
    client_ca: Path | None = None
    ca: Path | None = None
    minimum_version: str = "1.2"


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """``state``: an SQLAlchemy URL for jobs; ``name`` tells services apart that share one state database;
    ``results_directory``: where results of jobs are kept, and what
    outgrows the memory while it waits for a slower reader; ``grace``: seconds that running requests get at shutdown;
    ``hosts``: names that requests may call this service by, besides addresses, localhost and the machine's name;
    ``origins``: whose pages a browser lets ask this service (CORS), ``*``: any page may read;
    ``workers``: processes that serve; ``tls``: how connections are encrypted."""

    host: str = "127.0.0.1"
    port: int = field(default=8080, metadata={"most": 65_535})
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    name: str = "dai"
    state: str = field(default="sqlite:///dai-state.db", repr=False)
    results_directory: Path = Path("dai-results")
    grace: float = 10.0
    workers: int = field(default=1, metadata={"most": 64, **POSITIVE})
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
    """What one service does at most; 0 means no limit for ``rows``, ``bytes``, ``seconds``, ``execution_seconds``,
    ``stuck_seconds``, ``resource_jobs`` and ``result_bytes``.

    A process may have ``memory_bytes`` (0: nine tenths of the machine's). ``concurrent`` requests run at once,
    ``queue`` more wait, at most ``queue_seconds``; ``jobs`` jobs run at once,
    ``job_queue`` more wait; of one resource ``resource_jobs`` run or wait. ``rows`` and ``bytes`` are those of one
    synchronous answer (before compression), or of all that one job keeps; streams that clients pull are not counted. A
    synchronous request may take ``seconds``, a job ``execution_seconds`` from when it leaves the queue; a statement
    that goes on ``stuck_seconds`` after it was stopped costs its process. The head of a request must
    arrive within ``receive_seconds``, and so must each MiB of its body. ``document_bytes``,
    ``document_depth`` and ``activities`` bound a perform document, ``table_bytes`` the tables that a query brings
    along. A client asks for at most ``block_rows`` rows a block, and pushes at most ``block_bytes`` a block; blocks
    wait in at most ``session_bytes`` of one session and ``sessions_bytes`` of all. What an activity decompresses has at
    most ``unpacked_bytes``, a document or a style sheet that xslTransform reads ``transform_bytes``; all style sheets
    of one document take at most ``transform_seconds`` of processor time. The waiting times that one document asks for
    (Sleep, the timeout of sqlResilient) are ``wait_seconds`` together. ``session_seconds`` after its last use a session
    ends, ``job_seconds`` after its creation a job is destroyed, or when its caller says, at most
    ``job_seconds_most`` after its creation. ``result_bytes`` is for all kept results together.
    A context, or a document beside them, has at most ``context_bytes``, all together ``contexts_bytes``, of which
    ``contexts_memory`` stay in memory; a lease lasts ``context_seconds`` at most. There are ``feeds`` feeds; one keeps
    ``feed_bytes`` at most for ``feed_seconds``, all together ``feeds_bytes``; ``followers`` follow those of a process.
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
