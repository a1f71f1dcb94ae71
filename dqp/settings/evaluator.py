"""What an evaluator node may use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dai import config
from dqp.settings.sections import LOOPBACK
from dqp.settings.tls import TlsSettings


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
    tls: TlsSettings = field(default_factory=TlsSettings)
