"""The sources that a federation is configured with, and what services are shown of who asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dai.client import Options
from dai.client.credentials import Personal
from dai.client.http.transport import Tokens
from dai.drivers import Driver, driver_for
from dai.errors import ConfigurationError, NotFoundError
from dqp.catalog.exchanged import ExchangedTokens
from dqp.catalog.sources.local import CallersSource, DriverSource
from dqp.catalog.sources.service import STATEMENT_SECONDS, ServiceSource
from dqp.catalog.sources.source import Source
from dqp.settings import FederationSettings, SourceSettings, TlsSettings


class Credentials:
    """What services are shown of a caller whose token is ``bearer`` (None: there is none), or of the federation; or,
    where sources that are listed say nothing of it, of the ``person`` in whose program the federation runs."""

    def __init__(self, settings: FederationSettings, bearer: str | None = None, person: Personal | None = None) -> None:
        self._tls, self._bearer, self._person = settings.tls, bearer, person
        self._listed = settings.sources
        self._exchanged: dict[str, ExchangedTokens] = {}

    def options(self, source: SourceSettings, url: str) -> Options:
        """Of calls to the source, or one of its replicas, at the address."""
        if self._person is not None and not source.private and source in self._listed:
            own = {name: getattr(options_of(self._tls, source), name) for name in ("ca", "certificate", "key")}
            said = {name: each for name, each in own.items() if each is not None}
            return Options(**{"read": STATEMENT_SECONDS, **self._person.options(url, said)})
        token: str | Tokens | None = source.token
        if source.forward:
            token = self._bearer
        elif source.exchange is not None:
            token = self._exchanged.setdefault(
                source.alias,
                ExchangedTokens(source.alias, source.exchange, self._bearer, options_of(self._tls)),
            )
        return replace(options_of(self._tls, source), token=token)


def sources_of(
    settings: FederationSettings, credentials: Credentials, resolve: Callable[..., Driver] | None = None
) -> list[Source]:
    """The sources of a federation and their replicas, not connected yet. ``resolve`` gives the driver of a resource of
    this service, for a caller who is passed on to do what its second argument says."""
    sources: list[Source] = []
    for each in settings.sources:
        if each.url is not None:
            sources.append(service_source(settings, each, each.alias, each.url, credentials, alone=not each.replicas))
        elif each.database is not None:
            sources.append(DriverSource(each.alias, driver_for(each.database)))
        elif resolve is None:
            raise ConfigurationError(
                f"The source {each.alias!r} names the resource {each.resource!r}, but this process is not a service.",
                hint="Give the resource's url.",
            )
        elif settings.passes_callers_on:
            sources.append(CallersSource(each.alias, partial(resolve, str(each.resource))))
        else:
            sources.append(DriverSource(each.alias, _resolved(resolve, each), own=False))
        sources += [
            service_source(settings, each, f"{each.alias}@{number}", url, credentials, replica_of=each.alias)
            for number, url in enumerate(each.replicas, 1)
        ]
    return sources


def service_source(
    settings: FederationSettings,
    source: SourceSettings,
    alias: str,
    url: str,
    credentials: Credentials,
    *,
    replica_of: str | None = None,
    alone: bool = False,
) -> ServiceSource:
    """A resource at the URL, asked as the settings of the source say."""
    options = credentials.options(source, url)
    return ServiceSource(
        *(alias, url),
        replica_of=replica_of,
        options=options,
        liveness_timeout=settings.liveness_timeout,
        alone=alone,
        private=source.private or bool(options.token or options.certificate or options.signing_key),
        for_callers=source.for_callers,
    )


def options_of(tls: TlsSettings, source: SourceSettings | None = None) -> Options:
    """Of calls to a source, which may have files of its own in the place of those of ``tls``, by the right of the
    federation."""
    ca, certificate, key = tls.ca, tls.certificate, tls.key
    token = None
    if source is not None:
        ca, token = source.ca or ca, source.token
        if source.certificate is not None:
            certificate, key = source.certificate, source.key
    return Options(read=STATEMENT_SECONDS, token=token, ca=ca, certificate=certificate, key=key)


def _resolved(resolve: Callable[[str], Driver], source: SourceSettings) -> Driver:
    """ConfigurationError where the service has no such resource."""
    try:
        return resolve(str(source.resource))
    except NotFoundError as error:
        raise ConfigurationError(f"The source {source.alias!r}: {error.detail}", hint=error.hint) from error
