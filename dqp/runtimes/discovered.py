"""Evaluators that a registry names: they come and go with the leases of their services. Without any, queries run
here."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from dai.errors import DaiError
from dai.streams.stream import Stream
from dqp.algebra.operators import Operator
from dqp.catalog.discovery.conditions import query_of
from dqp.catalog.discovery.follower import Discovered, Follower
from dqp.catalog.sources.configured import options_of
from dqp.execution.readings import Readings
from dqp.planning.context import Context
from dqp.planning.distribution.placement import Placement
from dqp.runtimes.attempt import RemoteEvaluator
from dqp.runtimes.local import Local, Query
from dqp.runtimes.service import Service, ServiceEvaluator
from dqp.settings import FederationSettings

log = logging.getLogger("dqp.registry")


class DiscoveredEvaluators(Service):
    """Of the settings' ``evaluator_registry``."""

    def join(self, settings: FederationSettings) -> Sequence[ServiceEvaluator]:
        registry = settings.evaluator_registry
        assert registry is not None
        self._by_address: dict[str, ServiceEvaluator] = {}
        query = query_of(registry.find, "evaluators.find", evaluators=True)
        self._follower = Follower(registry, options_of(settings.tls), query, self._take)
        return ()

    def _take(self, entries: Sequence[Discovered]) -> None:
        """Takes the registry's evaluators; one call at a time. Work on evaluators that are no longer listed goes on."""
        evaluators = {}
        for each in entries:
            known = self._by_address.get(each.address)
            try:
                one = replace(self._settings, evaluators=(each.address,))
                evaluators[each.address] = known or super().join(one)[0]
            except DaiError as error:
                log.warning("The evaluator %s is not asked: %s", each.address, error.detail or error.title)
        self._by_address = evaluators

    @property
    def evaluators(self) -> Sequence[RemoteEvaluator]:
        self._follower.check()
        return tuple(self._by_address.values())

    def _place(self, tree: Operator, context: Context) -> Placement:
        return super()._place(tree, context) if self.evaluators else Local._place(self, tree, context)

    def _start(self, query: Query, readings: Readings) -> Stream:
        return super()._start(query, readings) if self.evaluators else Local._start(self, query, readings)

    def close(self) -> None:
        self._follower.close()
        super().close()
