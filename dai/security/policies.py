"""Policies: who may do what with a resource. ``docs/identity.md`` says how an operator writes them.

A policy is checked before anything of a request runs. That a caller who may only read cannot write stands in the
database, too: queries run in transactions that only read, and what runs in others is an activity that ``writes``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from dai.config import Config, IdentityConfig, PolicyConfig
from dai.errors import DeniedError
from dai.perform.activity import ANY, Activity
from dai.security.identity import Caller

Who = tuple[str, ...]
_WRITING = frozenset({"deliverToResourceProperty"})
"""Activities of any resource that write in it all the same."""
ANYBODY: Who = ("*", "anonymous")
GROUP = "group:"


def matches(who: Who, caller: Caller) -> bool:
    """Whether the caller is one of those. A name is never taken for a group, nor an empty one for any."""
    return any(_is(each, caller) for each in who)


def _is(each: str, caller: Caller) -> bool:
    if each == "anonymous":
        return not caller.name
    if not caller.name:
        return False
    if each.startswith(GROUP):
        return each.removeprefix(GROUP) in caller.groups - {""}
    return each in ("*", caller.name)


def check_metrics(identity: IdentityConfig, caller: Caller) -> None:
    """DeniedError for a caller who may not see the metrics, which name all resources."""
    if not identity.methods or "anonymous" in identity.metrics:
        return
    if caller.resources or not (caller.administrator or matches(identity.metrics, caller)):
        raise DeniedError(
            "You may not see the metrics of this service.",
            hint="Ask its operator to name you, or a group of yours, in metrics of [identity].",
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """Of the resource ``name``; for each kind of work who may do it. ``activities``: the elements that may run; empty:
    all."""

    name: str
    read: Who = ANYBODY
    write: Who = ANYBODY
    load: Who = ANYBODY
    statistics: Who = ANYBODY
    deliver: Who = ANYBODY
    activities: frozenset[str] = frozenset()

    def may_read(self, caller: Caller) -> bool:
        return caller.may_ask(self.name) and matches(self.read, caller)

    def check(self, work: str, caller: Caller, what: str, **extra: str) -> None:
        """DeniedError where the caller may not do that ``work`` (the name of a field). ``what`` says it in words."""
        caller.check(self.name)
        who: Who = getattr(self, work)
        if not (matches(self.read, caller) and matches(who, caller)):
            raise DeniedError(
                f"{repr(caller.name) if caller.name else 'An anonymous caller'} may not {what} the resource "
                f"{self.name!r}.",
                hint=f"Ask the operator of the service to grant it (policy.{work} of the resource"
                + ("; for those without a policy: dai serve --write)." if work == "write" else ")."),
                **extra,
            )

    def check_element(self, element: str, **extra: str) -> None:
        """DeniedError where activities of this name may not run, whoever asks."""
        if self.activities and element not in self.activities:
            raise DeniedError(
                f"The activity {element} may not run on the resource {self.name!r}.",
                hint=f"These may: {', '.join(sorted(self.activities))}.",
                **extra,
            )

    def check_document(
        self, activities: Iterable[Activity], caller: Caller, *, loads: bool = False, fixed: bool = False
    ) -> None:
        """DeniedError where the caller may not run one of them. ``loads``: what bulk loads make is tables of a session,
        not of a database. ``fixed``: nothing of the resource changes, whoever asks."""
        for each in activities:
            self.check_element(each.element, activity=each.name)
            if (work := _work(each, loads, fixed)) is not None:
                self.check(work, caller, f"run {each.element} ({work}) on", activity=each.name)
            if getattr(each, "tables", ()):
                self.check("load", caller, "load tables for queries of", activity=each.name)


def _work(activity: Activity, loads: bool, fixed: bool) -> str | None:
    """What kind of work the activity is besides reading."""
    if (loads or fixed) and activity.role != ANY:  # the resource itself refuses what would change data: no grant helps
        return "load" if loads and activity.element == "sqlBulkLoadRowSet" else None
    if activity.role != ANY or activity.element in _WRITING:
        return "write" if activity.changes else None
    return "deliver" if activity.element.startswith("deliver") and activity.element != "deliverToResponse" else None


def policy_for(name: str, config: PolicyConfig | None) -> Policy:
    """What the configuration says. Without a policy everybody reads and nobody writes."""
    config = config or PolicyConfig()
    read = config.read
    load, deliver = (read if each is None else each for each in (config.load, config.deliver))
    # statistics have values of tables, which queries alone show otherwise
    queries = not config.activities or "sqlQueryStatement" in config.activities
    statistics = config.statistics if config.statistics is not None else read if queries else ()
    return Policy(name, read, config.write, load, statistics, deliver, frozenset(config.activities))


def narrowed(config: Config, policy: PolicyConfig | None) -> Config:
    """The configuration as it holds for a resource with this policy."""
    if policy is None:
        return config
    limits, delivery = config.limits, config.delivery
    if policy.seconds is not None:
        limits = dataclasses.replace(limits, seconds=policy.seconds, execution_seconds=policy.seconds)
    for each in ("rows", "bytes"):
        if (most := getattr(policy, each)) is not None:
            limits = dataclasses.replace(limits, **{each: most})
    if policy.jobs is not None:
        limits = dataclasses.replace(limits, resource_jobs=policy.jobs)
    if policy.urls is not None:
        delivery = dataclasses.replace(delivery, urls=policy.urls)
    if policy.directory is not None:
        delivery = dataclasses.replace(delivery, directory=policy.directory)
    return dataclasses.replace(config, limits=limits, delivery=delivery)
