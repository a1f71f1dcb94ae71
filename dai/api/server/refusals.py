"""Why a configuration cannot be served: ``dai serve`` looks before it listens, ``dai check-config`` tells all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dai.api.server.listening import listen
from dai.api.server.tls import Certificate
from dai.config import Config
from dai.errors import ConfigurationError, DaiError
from dai.security.identity import Identification
from dai.service.results import check_directory
from dai.service.state.database import check_state


def refusals(config: Config) -> Iterator[DaiError]:
    """Each reason. Nothing is made that stays."""
    for check in (_check_callers, _check_host, _check_certificate, _check_identity, _check_state, _check_results):
        try:
            check(config)
        except DaiError as error:
            yield error


def _check_callers(config: Config) -> None:
    if not config.service.loopback and not config.identity.methods and not config.identity.anonymous:
        raise ConfigurationError(
            f"At {config.service.host} everybody who can reach the port could send requests: callers are not "
            "identified.",
            hint='Set methods = ["token"] in [identity], and make tokens with dai tokens create NAME; or '
            "anonymous = true, if everybody may.",
        )


def _check_host(config: Config) -> None:
    """Any port will do: that of the configuration may be the service's, which runs."""
    try:
        listen(replace(config, service=replace(config.service, port=0))).close()
    except OSError as error:
        raise ConfigurationError(
            f"The service cannot listen on {config.service.host}: {error.strerror}.",
            hint="service.host must be a name or an address of this machine.",
        ) from error


def _check_certificate(config: Config) -> None:
    if config.service.tls is not None:
        Certificate(config.service.tls)


def _check_identity(config: Config) -> None:
    async def nobody(id: str) -> Any:
        return None

    Identification(config.identity, nobody)


def _check_state(config: Config) -> None:
    check_state(config.service.state)


def _check_results(config: Config) -> None:
    check_directory(config.service.results_directory)
