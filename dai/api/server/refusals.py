"""Why a configuration cannot be served: ``dai serve`` looks before it listens, ``dai check-config`` tells all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dai.api.server.listening import listen
from dai.api.server.tls import Certificate
from dai.config import Config
from dai.errors import ConfigurationError, DaiError
from dai.security.audit import check_file
from dai.security.identity import Identification
from dai.service.results import check_directory
from dai.service.state.database import check_store


def refusals(config: Config) -> Iterator[DaiError]:
    """Each reason. Nothing is made that stays."""
    checks = (
        _check_callers,
        _check_host,
        _check_certificate,
        _check_identity,
        _check_audit,
        _check_state,
        _check_replicas,
        _check_rules,
        _check_registry,
        _check_results,
    )
    for check in checks:
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


def _check_audit(config: Config) -> None:
    if config.audit.file is not None:
        check_file(config.audit.file)


def _check_state(config: Config) -> None:
    check_store(config.service.state, "service.state")


def _check_replicas(config: Config) -> None:
    if config.replicas.catalog is not None:
        check_store(config.replicas.catalog, "replicas.catalog")


def _check_rules(config: Config) -> None:
    if config.replicas.acl:  # else the supervisor does not need its module
        from dai.replicas.rpc.server import Rules

        Rules(config.replicas.acl, open_to_all=False)


def _check_registry(config: Config) -> None:
    if config.registry.store is not None:
        check_store(config.registry.store, "registry.store")


def _check_results(config: Config) -> None:
    check_directory(config.service.results_directory)
