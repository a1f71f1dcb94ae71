"""Evaluators that are data services with the role ``evaluator``: they get tasks over HTTP, and their rows are read by
Arrow Flight."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from dai.client import Options, parted
from dai.client import Service as Client
from dai.client.documents import activity, document, element
from dai.client.results.result import Result
from dai.errors import (
    BusyError,
    ConfigurationError,
    DaiError,
    DeniedError,
    NotFoundError,
    TruncatedError,
    UnauthenticatedError,
    UnreachableError,
)
from dai.formats import media_type
from dai.streams.cancellation import Cancellation
from dqp.catalog.heartbeat import Heartbeat
from dqp.runtimes.attempt import ANSWER, RemoteEvaluator, evaluator_lost
from dqp.runtimes.distributed import LIVENESS_TIMEOUT, Distributed
from dqp.runtimes.flight.server import is_loopback
from dqp.runtimes.wire import Task, encoded
from dqp.settings import FederationSettings, TlsSettings

RESOURCE = "evaluator"
AFTER = 2.0
"""Seconds without a report after which it is asked whether it lives."""


class Service(Distributed):
    """``evaluators`` of the settings are addresses of services."""

    def join(self, settings: FederationSettings) -> Sequence[ServiceEvaluator]:
        secure = [each.startswith("https://") for each in settings.evaluators]
        if not any(secure):
            return tuple(ServiceEvaluator(each, token=settings.token) for each in settings.evaluators)
        if not all(secure):
            raise ConfigurationError(
                f"evaluators of {settings.name}: some have https:// and others do not.",
                hint="All exchange rows with each other: give all of them TLS, or none.",
            )
        if settings.tls.certificate is None:
            raise ConfigurationError(
                f"evaluators of {settings.name}: they read from this process too, with TLS, and it has no certificate.",
                hint="Set certificate and key in [service.tls], or in [tls] of a federation.toml.",
            )
        if is_loopback(settings.flight_host) and not all(map(_near, settings.evaluators)):
            raise ConfigurationError(
                f"evaluators of {settings.name}: those on other machines cannot read from {settings.flight_host}.",
                hint="Set flight_host to the name of this machine in its certificate, by which they reach it.",
            )
        return tuple(ServiceEvaluator(each, settings.tls, token=settings.token) for each in settings.evaluators)


def _near(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


class ServiceEvaluator(RemoteEvaluator):
    """The evaluator at ``http://host:port`` (or ``…/resources/evaluator``), which knows its coordinator by the
    certificate of ``tls`` or by the ``token``. ConfigurationError for no such address."""

    def __init__(self, url: str, tls: TlsSettings | None = None, *, token: str | None = None) -> None:
        base, resource = parted(url)
        super().__init__(base, tls)
        self._path = f"/resources/{resource or RESOURCE}"
        files = tls or TlsSettings()
        known = Options(connect=2.0, token=token, ca=files.ca, certificate=files.certificate, key=files.key)
        self._client = Client(base, replace(known, retries=1))
        self._prompt = Client(base, replace(known, retries=0))
        self._asked = Client(base, replace(known, connect=ANSWER, read=ANSWER, retries=0))
        self._heartbeat = Heartbeat(self._lives, self.name, after=AFTER, patience=LIVENESS_TIMEOUT - AFTER - ANSWER)

    def ask(self) -> tuple[str, str | None]:
        try:
            properties: Mapping[str, Any] = self._asked.get(self._path)
        except UnreachableError as error:
            if isinstance(error.__cause__, ssl.SSLError):
                raise self._refused(error) from error
            raise evaluator_lost(self.name) from error
        except (UnauthenticatedError, DeniedError) as error:
            raise self._refused(error) from error
        except NotFoundError as error:
            raise self._no_evaluator() from error
        if "flight" not in properties:
            raise self._no_evaluator()
        return str(properties["flight"]), properties.get("instance")

    def _refused(self, error: DaiError) -> DaiError:
        """A refusal as a fault of the configuration, because the federation, not its caller, sends requests to
        evaluators."""
        return ConfigurationError(
            f"The evaluator {self.name} and this federation do not accept each other: {error.detail}",
            hint="Check the federation's token, certificate, client_ca and ca in [service.tls] of both, and "
            "[roles.evaluator.policy].",
        )

    def _no_evaluator(self) -> DaiError:
        return ConfigurationError(
            f"The service {self.name} is not an evaluator.", hint="Give its configuration a section [roles.evaluator]."
        )

    def run(
        self, tasks: Sequence[Task], cancellation: Cancellation, *, waits: bool
    ) -> Iterator[Sequence[Mapping[str, Any]]]:
        fragments, reports = element("fragments", encoded(tasks)), element("reports", name="how")
        work = activity("runFragments", fragments, reports, name="run")
        headers = {"Content-Type": "application/xml", "Accept": media_type("arrow")}
        if not waits:
            headers["Prefer"] = "wait=0"
        client = self._client if waits else self._prompt
        path = f"{self._path}/perform?output=how"
        own = Cancellation(cancellation.span)  # What ends this request alone.
        try:
            with cancellation.on_cancel(lambda: own.cancel(cancellation.cause)):
                with self._heartbeat.waiting(own):
                    reply = client.transport.send("POST", path, document(work), headers, cancellation=own)
                with Result(reply.body, "arrow") as result:
                    yield []
                    batches = iter(result)
                    while (batch := self._next(batches, own)) is not None:
                        yield [json.loads(each) for each in batch.column(0).to_pylist()]
        except (UnreachableError, TruncatedError) as error:
            raise evaluator_lost(self.name) from error
        except (UnauthenticatedError, DeniedError) as error:
            raise self._refused(error) from error
        except BusyError as error:
            raise BusyError(
                f"The evaluator {self.name} is busy.",
                hint="Run the query again later, or name more evaluators; limits.concurrent of the evaluator is "
                "how many requests it runs at once.",
                evaluator=self.name,
            ) from error

    def _next(self, batches: Iterator[pa.RecordBatch], cancellation: Cancellation) -> pa.RecordBatch | None:
        with self._heartbeat.waiting(cancellation):
            return next(batches, None)

    def _lives(self) -> None:
        with self._asked.transport.send("GET", "/health/live").body:
            pass

    def close(self) -> None:
        self._client.close()
        self._prompt.close()
        self._asked.close()
