"""Bearer tokens (RFC 6750): ``dai_ID_SECRET``. What is kept of one is its hash: a secret of 256 bits needs no slow one.

A token that was looked up is taken for ``identity.kept_seconds`` without looking again: one that is revoked stays good
for so long at most.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import ClassVar

from dai.config import IdentityConfig
from dai.errors import UnauthenticatedError
from dai.security.identity import BEARER, Caller, Headers, LookUp, StoredToken
from dai.security.identity.replay import Seen

MOST_KEPT = 10_000
_MOST_CHARACTERS = 200
_SCHEME, _PREFIX = b"bearer ", "dai_"


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def new(
    name: str,
    seconds: float,
    resources: tuple[str, ...] = (),
    administrator: bool = False,
    groups: tuple[str, ...] = (),
) -> tuple[str, StoredToken]:
    """A new token, which is shown once, and the record of it that is stored."""
    id = secrets.token_hex(8)
    token = f"{_PREFIX}{id}_{secrets.token_urlsafe(32)}"
    now = time.time()
    return token, StoredToken(id, name, digest_of(token), now, now + seconds, resources, administrator, groups)


class Tokens:
    hint: ClassVar[str] = BEARER

    def __init__(self, config: IdentityConfig, look_up: LookUp, seen: Seen | None = None) -> None:
        self._kept_seconds, self._look_up = config.kept_seconds, look_up
        self._known: dict[str, tuple[Caller, float, float]] = {}
        """By digest: whose it is, until when it need not be looked up, when it expires."""

    async def caller(self, headers: Headers) -> Caller | None:
        value = headers.get(b"authorization", b"")
        if value[: len(_SCHEME)].lower() != _SCHEME:
            return None
        token = value[len(_SCHEME) :].strip().decode("latin-1")
        if not token.startswith(_PREFIX) or len(token) > _MOST_CHARACTERS:
            return None
        digest = digest_of(token)
        kept = self._known.get(digest)
        if kept is None or kept[1] < time.monotonic():
            kept = await self._looked_up(token, digest)
        caller, _, expires = kept
        if expires <= time.time():
            raise UnauthenticatedError("This token has expired.", hint="Ask the operator of the service for a new one.")
        return caller

    async def _looked_up(self, token: str, digest: str) -> tuple[Caller, float, float]:
        stored = await self._look_up(token.split("_", 2)[1])
        if stored is None or not hmac.compare_digest(stored.digest, digest):
            self._known.pop(digest, None)
            raise UnauthenticatedError(
                "This service does not know this token; it may have been revoked.",
                hint="The operator of the service can make another: dai tokens create.",
            )
        resources, groups = frozenset(stored.resources), frozenset(stored.groups)
        caller = Caller(stored.name, "token", resources, stored.administrator, groups)
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        kept = self._known[digest] = caller, time.monotonic() + self._kept_seconds, stored.expires
        return kept
