"""The sources of a federation that a registry names, and their aliases."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote, urlsplit

from dai.errors import DaiError
from dqp.catalog.discovery.conditions import query_of
from dqp.catalog.discovery.follower import Discovered, Follower
from dqp.catalog.reflection import Reflection
from dqp.catalog.sources.configured import Credentials, options_of, service_source
from dqp.catalog.sources.source import Source
from dqp.settings import LOOPBACK, FederationSettings, SourceSettings

_DEFAULT_PORTS = {"http": 80, "https": 443}


def alias_of(address: str) -> str:
    """The alias of the resource at the address, such as ``sky_data_example_org``, with the port if it is not the
    default; it does not depend on other sources."""
    parts = urlsplit(address)
    base, _, name = parts.path.rpartition("/")
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"_{parts.port}"
    path = base.removesuffix("/resources")
    text = re.sub(r"\W", "_", f"{unquote(name)}_{(parts.hostname or '').strip('.')}{port}{path}").lower()
    return f"_{text}" if text[0].isdigit() else text


class DiscoveredSources:
    """Keeps ``sources``, by alias, and the reflection's as the registry says. Thread-safe."""

    def __init__(
        self, settings: FederationSettings, sources: dict[str, Source], credentials: Credentials, reflection: Reflection
    ) -> None:
        assert settings.registry is not None
        self._settings, self._registry, self._sources = settings, settings.registry, sources
        self._credentials, self._reflection = credentials, reflection
        self._configured = {each.casefold() for each in sources}
        self._discovered: Mapping[str, Discovered] = {}
        self._taken: Mapping[str, str] = {}
        query = query_of(self._registry.find, "registry.find")
        self._follower = Follower(self._registry, options_of(settings.tls), query, self._take)

    def check(self) -> None:
        self._follower.check()

    def origin(self, alias: str) -> str | None:
        """Where the source comes from; None for one of the configuration."""
        entry = self._discovered.get(alias)
        if entry is None:
            return None
        who = f", published by {entry.publisher!r}" if entry.publisher else ""
        return f"{entry.address}, from the registry {self._registry.url}{who}"

    @property
    def problems(self) -> Mapping[str, str]:
        return {**self._follower.problems, **self._taken}

    def _take(self, entries: Sequence[Discovered]) -> None:
        """One call at a time: the follower's lock is held."""
        by_alias: dict[str, Discovered] = {}
        taken = {}
        for each in entries:
            alias = alias_of(each.address)
            if alias in self._configured or alias in by_alias:
                taken[each.address] = f"There is already a source {alias!r}."
            else:
                by_alias[alias] = each
        for alias, each in by_alias.items():
            known = self._sources.get(alias)
            if known is None or known.address != each.address:
                try:
                    self._sources[alias] = self._source(alias, each.address)
                except DaiError as error:
                    taken[each.address] = error.detail or error.title
        there = {alias: each for alias, each in by_alias.items() if alias in self._sources}
        gone = self._discovered.keys() - there.keys()
        self._discovered, self._taken = there, taken
        self._reflection.follow([self._sources[alias] for alias in there])
        for alias in gone:
            # running queries still hold the source; nothing else does
            self._sources.pop(alias, None)

    def _source(self, alias: str, address: str) -> Source:
        # anybody may listen at a port of this machine, so the token goes to listed addresses only
        token = self._registry.source_token if self._registry.allow != LOOPBACK else None
        asked = SourceSettings(alias=alias, url=address, token=token, ca=self._registry.ca)
        return service_source(self._settings, asked, alias, address, self._credentials, alone=True)

    def close(self) -> None:
        self._follower.close()
