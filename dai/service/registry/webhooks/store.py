"""Webhooks: which changes each wants, and the number of the last one that it has got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from dai.security.identity import Caller
from dai.service.registry.database import RENEWED, Change, Database

MOST_OF_OWNER = 100
_metadata = sa.MetaData()
_webhooks = sa.Table(
    "dai_registry_webhooks",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("groups", sa.JSON, nullable=False),
    sa.Column("administrator", sa.Boolean, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("secret", sa.Text, nullable=False),
    sa.Column("kinds", sa.JSON, nullable=False),
    sa.Column("actions", sa.JSON, nullable=False),
    sa.Column("prefix", sa.Text, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("problem", sa.Text, nullable=False),
    sa.Column("stopped", sa.Boolean, nullable=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """``kinds``, ``actions``, ``prefix`` (of keys): which changes are sent; empty: all. ``number``: of the last that
    was taken. ``failures`` in a row, the last for the ``problem``; what has ``stopped`` is not sent to."""

    id: str
    owner: str
    groups: Sequence[str]
    administrator: bool
    url: str
    secret: str
    kinds: Sequence[str]
    actions: Sequence[str]
    prefix: str
    number: int
    failures: int = 0
    problem: str = ""
    stopped: bool = False

    @property
    def caller(self) -> Caller:
        """The caller who created it, with the rights of that time."""
        return Caller(self.owner, "webhook", administrator=self.administrator, groups=frozenset(self.groups))

    def wants(self, change: Change) -> bool:
        """Whether its owner wants to be told, if they see it."""
        return (
            change.action != RENEWED
            and (not self.kinds or change.kind in self.kinds)
            and (not self.actions or change.action in self.actions)
            and change.key.startswith(self.prefix)
        )


class Webhooks:
    """Thread-safe. Raises DatabaseUnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.create(_metadata)

    def all(self) -> list[Webhook]:
        with self._database.connection() as connection:
            rows = connection.execute(sa.select(_webhooks).order_by(_webhooks.c.id))
            return [Webhook(**row._mapping) for row in rows]

    def put(self, webhook: Webhook) -> None:
        with self._database.connection() as connection:
            connection.execute(_webhooks.delete().where(_webhooks.c.id == webhook.id))
            connection.execute(_webhooks.insert().values(**asdict(webhook)))

    def took(self, webhook: Webhook, number: int) -> None:
        """All up to that number; unless it was changed or deleted meanwhile."""
        self._update(webhook, number=number, failures=0, problem="")

    def failed(self, webhook: Webhook, problem: str, *, stop: bool) -> None:
        self._update(webhook, failures=webhook.failures + 1, problem=problem, stopped=stop)

    def _update(self, webhook: Webhook, **values: object) -> None:
        same = sa.and_(_webhooks.c.id == webhook.id, _webhooks.c.number == webhook.number)
        with self._database.connection() as connection:
            connection.execute(_webhooks.update().where(same).values(**values))

    def delete(self, id: str) -> None:
        with self._database.connection() as connection:
            connection.execute(_webhooks.delete().where(_webhooks.c.id == id))
