"""Replica indexes that a registry names: a catalog tells them, too, as long as the leases of their services hold."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator

from dai.client.http.transport import Options
from dai.client.registry import RegistryClient
from dai.config import RegistryConfig, ReplicasConfig, is_web
from dai.errors import DaiError, NotFoundError

log = logging.getLogger("dai.replicas")

QUERY = """PREFIX : <urn:dai:registry:>
SELECT DISTINCT ?service ?index WHERE {{
?service a :Service ; :replicaIndex ?index ; :owner ?owner .
FILTER(?owner IN ({publishers}))
}}"""


class Members:
    """Asks the registry every ``look_seconds``, from the thread that calls ``look``."""

    def __init__(self, registry: RegistryConfig, settings: ReplicasConfig) -> None:
        assert registry.url is not None
        options = Options(connect=3.0, read=10.0, retries=0, token=registry.token, ca=registry.ca)
        self._client = RegistryClient(registry.url, options)
        self._query = QUERY.format(publishers=", ".join(map(json.dumps, settings.index_publishers)))
        self._own, self._seconds, self._due = settings.url, registry.look_seconds, -math.inf
        self.urls: tuple[str, ...] = ()
        """As the registry said the last time that it answered."""

    def look(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._seconds
        try:
            self.urls = tuple(sorted(self._from_registry()))
        except DaiError as error:
            log.warning("the registry does not say which replica indexes there are", extra={"error": error.code})

    def _from_registry(self) -> Iterator[str]:
        for each in self._client.sparql(self._query):
            index = each["index"]
            if index == self._own or not is_web(index):
                continue
            try:
                holds = not self._client.entry(each["service"]).get("deprecated")
            except NotFoundError:
                continue
            if holds:
                yield index

    def close(self) -> None:
        self._client.close()
