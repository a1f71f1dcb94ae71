"""The evaluator as a data service: the role, its resource, and the activity that runs fragments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from dai import config
from dai.config import RoleConfig
from dai.drivers import DriverOptions
from dai.drivers.virtual import WithoutTables
from dai.errors import ConfigurationError, RequestError
from dai.perform.activity import Activity, Context, Output, child, output
from dai.streams.stream import Stream
from dqp.runtimes.evaluator import Evaluator, Work
from dqp.runtimes.flight.server import is_loopback
from dqp.runtimes.wire import decoded
from dqp.settings import EvaluatorSettings, TlsSettings, check_memory

ROLE = "evaluator"
REPORTS = pa.schema([pa.field("report", pa.string(), nullable=False)])


def configured(role: RoleConfig) -> EvaluatorDriver:
    """The resource of ``[roles.evaluator]``, with the keys of ``EvaluatorSettings``."""
    where, tls = f"roles.{role.name}", TlsSettings.of(role.tls)
    settings: EvaluatorSettings = config.section(EvaluatorSettings, where, role.content, role.base, tls=tls)
    known = tls.certificate is not None and (tls.client_ca is not None or role.identifies)
    if not known and not (is_loopback(role.host) and is_loopback(settings.flight_host)):
        raise ConfigurationError(
            f"[{where}]: beyond loopback an evaluator needs TLS, and callers with certificates or tokens.",
            hint="Set certificate and key in [service.tls]; and either client_ca there, or methods in [identity] "
            "without anonymous.",
        )
    check_memory(settings.memory_bytes, f"roles.{role.name}.memory_bytes")
    for name in ("sources", "python"):
        if not all(isinstance(each, str) for each in getattr(settings, name)):
            raise ConfigurationError(f"roles.{role.name}.{name} must be a list of texts.")
    if settings.directory is not None:
        settings.directory.mkdir(parents=True, exist_ok=True)
    return EvaluatorDriver(Evaluator(settings))


class EvaluatorDriver(WithoutTables):
    """The resource of the role."""

    dialect = "fragments"
    called = "An evaluator"
    instead = (
        "It runs fragments of distributed queries (runFragments), for the federations that name it as an evaluator."
    )
    role: ClassVar[str | None] = ROLE

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator

    @classmethod
    def connect(cls, url: str, options: DriverOptions) -> EvaluatorDriver:
        raise ConfigurationError(
            "An evaluator is not a database: configure it in the section [roles.evaluator] of a service."
        )

    def product(self) -> str:
        return "dqp evaluator"

    def properties(self) -> Mapping[str, Any]:
        """``flight``: the address of its port; ``instance``: which port that is; ``works``, ``tickets``, ``readers``:
        what is under way."""
        state = self.evaluator.state()
        return {
            "flight": state["address"],
            **{name: state[name] for name in ("instance", "works", "tickets", "readers")},
        }

    def close(self) -> None:
        self.evaluator.close()


@dataclass(frozen=True, kw_only=True)
class RunFragments(Activity):
    """Runs fragments of a distributed query, of one attempt, on an evaluator.

    For ``dqp`` only. Clients with the tickets read the rows from the evaluator's Arrow Flight port. The output is a
    report on the fragments, as JSON, at least once a second. The end of the request ends the fragments.
    """

    example: ClassVar[str] = """
        <runFragments name="run">
          <fragments>[]</fragments>
          <reports name="how"/>
        </runFragments>"""
    role: ClassVar[str | None] = ROLE

    fragments: str = child()
    result: Output[Stream] = output("reports")

    def run(self, context: Context) -> Stream:
        driver = context.driver
        if not isinstance(driver, EvaluatorDriver):
            raise RequestError("This resource is not an evaluator.", hint="Name the resource 'evaluator' of a service.")
        work = driver.evaluator.begin(decoded(self.fragments), context.cancellation)
        return Stream(REPORTS, _batches(work), work.close)


def _batches(work: Work) -> Iterator[pa.RecordBatch]:
    for reports in work.reports():
        yield pa.record_batch([pa.array(map(json.dumps, reports), pa.string())], schema=REPORTS)
