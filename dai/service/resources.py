"""The data resources of one service: by name, each with its driver."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from dai.config import Config, PolicyConfig, ResourceConfig
from dai.drivers import Driver, DriverOptions, driver_for
from dai.drivers.collections.driver import Collections
from dai.drivers.connections.pool import Limit
from dai.drivers.directory.driver import Directory
from dai.errors import ConfigurationError, DaiError, DeniedError, MissingDependencyError, NotFoundError
from dai.perform.activity import ACTIVITIES, ANY, Activity
from dai.plugins import Table, nearest
from dai.security.identity import Caller
from dai.security.policies import Policy, narrowed, policy_for
from dai.security.roles import DatabaseUser, RoleMap
from dai.streams.meaning import Meaning

IDLE_SECONDS = 60.0
"""After which an unused connection of a database user of a role map is closed."""
MOST_CALLERS = 64
CALLER_SECONDS = 3600.0
"""Credentials of callers of a federation that passes them on: how many are kept in memory, and how long after their
last use."""
SCHEMA_SECONDS = 30.0
"""Seconds that a reflected schema counts as current."""
VIRTUAL = Table("virtual resource", "dai.virtual", {})
"""Drivers of resources that other packages serve. ``federations``: a function of a federation's configuration, and of a
function that returns the driver of a resource by name; it returns a driver. Where that ``passes_callers_on``, its
``of`` returns the driver for a caller, from the bearer token and such a function of what the caller may do, whose
second argument says that: ``read`` (the default), ``query``, ``statistics``, ``load``."""
ROLES = Table("role", "dai.roles", {})
"""Roles that other packages give to a service, by name: a function of the role's configuration that returns the driver
of the resource of that name."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A resource's tables as values for JSON; ``etag`` changes when they change."""

    tables: list[dict[str, Any]]
    etag: str
    until: float


class Resource:
    """One resource, as one database user sees it. Its driver connects when it is first used. ``config``: as it holds
    for this resource. ``users``: where a role map says who the database users are. ``callers``: of a federation that
    passes them on."""

    def __init__(
        self,
        name: str,
        driver: Driver,
        kind: str = "database",
        description: str | None = None,
        database_user: str | None = None,
        users: Users | None = None,
        *,
        callers: Callers | None = None,
        policy: Policy | None = None,
        config: Config = Config(),
    ) -> None:
        self.name, self.driver, self.kind, self.description = name, driver, kind, description
        self.database_user, self.policy, self.config = database_user, policy or Policy(name), config
        self.users, self.callers = users, callers
        self._lock = threading.Lock()
        self._schemas: dict[str, Schema] = {}

    def of(self, caller: Caller) -> Resource:
        """The resource as the caller's database user sees it. DeniedError if the role map has none."""
        if self.callers is not None:
            return self.callers.of(caller, self)
        return self if self.users is None else self.users.seen_by(self.users.map.user_of(caller), self)

    def by(self, database_user: str | None) -> Resource:
        """The resource as the database user of a job sees it. DeniedError if the role map no longer has it."""
        if self.callers is not None:
            return self.callers.by(database_user)
        return self if self.users is None else self.users.seen_by(self.users.map.named(database_user), self)

    def check_document(self, activities: Iterable[Activity], caller: Caller) -> None:
        """DeniedError where the policy does not let the caller run one of them."""
        loads = self.kind == "federation"
        self.policy.check_document(activities, caller, loads=loads, fixed=self.driver.fixed)

    def by_each_user(self) -> Iterator[Resource]:
        """The resource as each user of the role map sees it."""
        for name in self.users.map.users if self.users is not None else ():
            yield self.by(name)

    def close(self) -> None:
        for each in (self.users, self.callers):
            if each is not None:
                each.close()
        for driver in (self.driver, *self.driver.replicas):
            driver.close()

    def properties(self, answers: bool = True) -> dict[str, Any]:
        """The description for clients. While the database is down, ``product`` is None and ``available`` is false. If
        the caller knows that, the database is not asked."""
        product: str | None = None
        if answers:
            with suppress(DaiError):
                product = self.driver.product()
        return {
            "name": self.name,
            "kind": self.kind,
            "description": self.description,
            "dialect": self.driver.dialect,
            "product": product,
            "available": product is not None,
            "tables": product is not None and self.driver.takes_tables(),
            "activities": self.activities(),
            "published": self.driver.published.texts(),
            **self.driver.properties(),
        }

    def activities(self) -> list[str]:
        """Those that documents for it may have."""
        return sorted(filter(self._offers, ACTIVITIES))

    def _offers(self, activity: str) -> bool:
        """Not where a package that it needs is missing: a document with it says which."""
        try:
            return ACTIVITIES[activity].role in (self.driver.role, ANY)
        except MissingDependencyError:
            return False

    def known_schema(self, pattern: str = "%") -> Schema | None:
        """As ``schema``, but None if the database would have to be asked."""
        known = self._schemas.get(pattern)
        return known if known is not None and known.until > time.monotonic() else None

    def schema(self, pattern: str = "%", fresh: bool = False) -> Schema:
        """The tables whose names match the LIKE pattern, with columns, at most SCHEMA_SECONDS old; ``fresh``: read
        now."""
        with self._lock:
            if not fresh and (known := self.known_schema(pattern)) is not None:
                return known
            tables = [dataclasses.asdict(table) for table in self.driver.described(pattern)]
            etag = hashlib.sha256(repr(tables).encode()).hexdigest()[:32]
            if len(self._schemas) > 100:
                self._schemas.clear()
            schema = self._schemas[pattern] = Schema(tables, etag, time.monotonic() + SCHEMA_SECONDS)
            return schema


class Users:
    """The database users of a resource with a role map, the file ``roles``. They share nothing that comes from the
    database: each has a resource of its own, with a driver, its connections and all that it learns, and with the
    schema. ``limits`` are those of all their connections together, one for each database. What documents have published
    is everybody's."""

    def __init__(self, config: ResourceConfig, roles: Path) -> None:
        self.map = RoleMap(config.name, roles, config.environment)
        self.limits = tuple(Limit(config.pool_size, config.pool_wait) for _ in (config.url, *config.replicas))
        self._config = config
        self._lock = threading.Lock()
        self._resources: dict[DatabaseUser, Resource] = {}

    def seen_by(self, user: DatabaseUser, resource: Resource) -> Resource:
        with self._lock:
            if (known := self._resources.get(user)) is None:
                driver = _driver(self._config, self.limits, user)
                driver.published = resource.driver.published
                described = resource.name, driver, resource.kind, resource.description, user.name
                known = self._resources[user] = Resource(*described, policy=resource.policy, config=resource.config)
            return known

    def tidy(self) -> None:
        """Follows the map, and closes connections that nobody uses. What former users still run is stopped."""
        for limit in self.limits:
            limit.close_idle(IDLE_SECONDS)
        if self.map.follow():
            self._close(set(self.map.users.values()))

    def close(self) -> None:
        self._close(set())

    def _close(self, but: Set[DatabaseUser]) -> None:
        with self._lock:
            gone = [self._resources.pop(user) for user in self._resources.keys() - but]
        for each in gone:
            each.close()


class Callers:
    """The callers of a federation that passes them on to its sources. Each has, for each of its credentials, a
    federation of its own, ``federation_of``: so nothing that a source said to one is seen by another. They are kept in
    memory while they are used. What stands for the database user is a digest of the credentials."""

    def __init__(self, federation_of: Callable[[Caller], Driver]) -> None:
        self._federation_of = federation_of
        self._lock = threading.Lock()
        self._resources: OrderedDict[str, tuple[Resource, float, str]] = OrderedDict()
        """With the time of the last use, and the name of the caller."""

    def of(self, caller: Caller, resource: Resource) -> Resource:
        who = (caller.name, caller.method, sorted(caller.resources), sorted(caller.groups), caller.bearer)
        key = "caller " + hashlib.sha256(repr(who).encode()).hexdigest()[:32]
        with self._lock:
            known = self._resources.pop(key, (None, 0.0, ""))[0]
            if known is None:
                driver, described = self._federation_of(caller), (resource.kind, resource.description, key)
                driver.published = resource.driver.published
                known = Resource(resource.name, driver, *described, policy=resource.policy, config=resource.config)
            self._resources[key] = known, time.monotonic(), caller.name
            # running queries hold a federation that is dropped; a caller with many credentials displaces no other
            # caller's
            if len(self._resources) > MOST_CALLERS:
                names = {each: name for each, (_, _, name) in self._resources.items()}
                ((most, _),) = Counter(names.values()).most_common(1)
                del self._resources[next(each for each, name in names.items() if name == most)]
            return known

    def by(self, key: str | None) -> Resource:
        """DeniedError where the credentials are not in memory any more."""
        with self._lock:
            if (known := self._resources.get(key or "")) is None:
                raise DeniedError(
                    "The credentials with which this job was sent are no longer kept.",
                    hint="Send it again: for a federation that passes callers on, credentials are kept in memory only.",
                )
            return known[0]

    def tidy(self) -> None:
        since = time.monotonic() - CALLER_SECONDS
        with self._lock:
            for key in [key for key, (_, used, _) in self._resources.items() if used < since]:
                del self._resources[key]

    def close(self) -> None:
        with self._lock:
            gone = [resource for resource, *_ in self._resources.values()]
            self._resources.clear()
        for each in gone:
            each.close()


class Resources(Mapping[str, Resource]):
    """All resources of the service. Raises ConfigurationError for a resource that it cannot serve."""

    def __init__(self, config: Config) -> None:
        for name in config.federations:
            if "federations" not in VIRTUAL:
                raise ConfigurationError(
                    f"[federations.{name}]: no package that runs federations is installed.", hint="Remove it."
                )
        for name in config.roles:
            if name not in ROLES:
                raise ConfigurationError(
                    f"[roles.{name}]: no package that has this role is installed.",
                    hint=nearest(name, list(ROLES)) if ROLES else "Remove it.",
                )
        self._all: dict[str, Resource] = {}
        try:
            for name, each in config.resources.items():
                user = make_url(each.url).username if each.url is not None else None
                users = Users(each, each.roles) if each.roles is not None else None
                driver = _driver(each, users.limits if users is not None else ())
                self._add(config, each.policy or config.policy, name, driver, each.kind, each.description, user, users)
            for name, federation in config.federations.items():
                driver = VIRTUAL["federations"](federation, lambda wanted: self.named(wanted).driver)
                callers = Callers(partial(self._passed_on, driver)) if driver.passes_callers_on else None
                self._add(config, federation.policy or config.policy, name, driver, "federation", callers=callers)
            for name, role in config.roles.items():
                policy = role.policy
                if policy is None and config.identity.methods:
                    # a caller who gives work to a role reads with the rights of this service: that must be granted
                    policy = PolicyConfig(read=())
                self._add(config, policy, name, ROLES[name](role), name)
        except BaseException:
            self.close()
            raise

    def _passed_on(self, federation: Any, caller: Caller) -> Driver:
        """The federation as it asks for the caller."""

        def seen(wanted: str, work: str = "read") -> Driver:
            """To ask a query, where that is the ``work``; else as the policy calls it."""
            resource = self.named(wanted)
            resource.policy.check("read", caller, "read")
            if work == "query":
                resource.policy.check_element("sqlQueryStatement")
            else:
                resource.policy.check(work, caller, f"ask for {work} of")
            return resource.of(caller).driver

        driver: Driver = federation.of(caller.bearer, seen)
        return driver

    def _add(
        self,
        config: Config,
        policy: PolicyConfig | None,
        name: str,
        *described: Any,
        callers: Callers | None = None,
    ) -> None:
        for each in policy.activities if policy is not None else ():
            if each not in ACTIVITIES:
                where = "policy" if policy is config.policy else f"{name}.policy"
                raise ConfigurationError(
                    f"{where}.activities: there is no activity {each!r}.", hint=nearest(each, list(ACTIVITIES))
                )
        self._all[name] = Resource(
            name,
            *described,
            callers=callers,
            policy=policy_for(name, policy),
            config=narrowed(config, policy),
        )

    def seen_by(self, caller: Caller) -> Iterator[Resource]:
        """Those that the caller may read, each as the caller's database user sees it."""
        for resource in self._all.values():
            if resource.policy.may_read(caller):
                with suppress(DeniedError):
                    yield resource.of(caller)

    def tidy(self) -> None:
        """To be called regularly."""
        for resource in self._all.values():
            for each in (resource.users, resource.callers):
                if each is not None:
                    each.tidy()

    def __getitem__(self, name: str) -> Resource:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def named(self, name: str, caller: Caller | None = None) -> Resource:
        """The resource of that name. NotFoundError suggests the nearest name, of those that the ``caller`` may read."""
        resource = self._all.get(name)
        if resource is None:
            seen = [each for each in self._all if caller is None or self._all[each].policy.may_read(caller)]
            hint = nearest(name, seen) if seen else "This service has no resource for you yet."
            raise NotFoundError(f"There is no data resource {name!r}.", hint=hint)
        return resource

    def close(self) -> None:
        for resource in reversed(self._all.values()):
            resource.close()


def _driver(config: ResourceConfig, limits: Sequence[Limit | None] = (), user: DatabaseUser | None = None) -> Driver:
    """Of the database user, who has half of the connections at most; None: of the user of the URL."""
    if config.directory is not None:
        return Directory(config.directory)
    options = DriverOptions(
        pool_size=config.pool_size if user is None else (config.pool_size + 1) // 2,
        pool_wait=config.pool_wait,
        connect_wait=config.connect_wait,
        read_sockets=config.read_sockets,
        memory=f"{config.memory_bytes}B" if config.memory_bytes else "25%",
    )
    if config.collections is not None:
        return Collections.connect(config.collections, options)
    assert config.url is not None
    driver, *replicas = (
        driver_for(url if user is None else _as(url, user), dataclasses.replace(options, within=limit))
        for url, limit in zip_longest((config.url, *config.replicas), limits)
    )
    driver.replicas = tuple(replicas)
    meanings = {name: Meaning(**dataclasses.asdict(each)) for name, each in config.columns.items()}
    for each in (driver, *replicas):
        each.meanings.configured = meanings
    return driver


def _as(url: str, user: DatabaseUser) -> str:
    """The URL for another user. Without a password it has an empty one: that of the URL is the other user's."""
    return make_url(url).set(username=user.name, password=user.password or "").render_as_string(hide_password=False)
