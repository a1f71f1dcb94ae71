"""The settings of a federation: read once, from a service's configuration or a federation.toml, into frozen values.

Both have the same keys: in ``[federations.NAME]`` of a service, at the top of a federation.toml (or below
``[federations.NAME]`` there too, so that one file can be both).

A section's dataclass and what reads it stand in the module of its subject; ``sections`` has what they share,
``federation`` reads the whole, ``loading`` the file. A new key is a field of its section's dataclass. The package
imports ``dai.config`` and ``dai.client``.
"""

from dqp.settings.evaluator import EvaluatorSettings
from dqp.settings.exchange import ExchangeSettings
from dqp.settings.federation import LEAST_MEMORY, PUSHDOWN, REGISTRY, FederationSettings, check_memory, parse
from dqp.settings.loading import load
from dqp.settings.registry import RegistrySettings
from dqp.settings.replicas import ReplicaServiceSettings
from dqp.settings.sections import LOOPBACK, within
from dqp.settings.sources import SourceSettings
from dqp.settings.tls import TlsSettings

__all__ = [
    "LEAST_MEMORY", "LOOPBACK", "PUSHDOWN", "REGISTRY", "EvaluatorSettings", "ExchangeSettings", "FederationSettings",
    "RegistrySettings", "ReplicaServiceSettings", "SourceSettings", "TlsSettings", "check_memory", "load", "parse",
    "within",
]  # fmt: skip
