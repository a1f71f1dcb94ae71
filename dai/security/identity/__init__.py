"""Who asks: each method of METHODS looks at the headers of a request and says whose they are.

A new method is a module here and a line in METHODS (or an entry point ``dai.identity``). It is made from the
configuration, from where tokens are looked up and from what was seen, and has one coroutine, ``caller``: None where the
headers are not for it, UnauthenticatedError where they are and do not hold. It runs on the event loop and must not
block.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dai.config import IdentityConfig
from dai.errors import ConfigurationError, DeniedError, UnauthenticatedError
from dai.plugins import Table, nearest
from dai.security.attempts import Attempts
from dai.security.identity.replay import Seen

Headers = Mapping[bytes, bytes]
"""Of a request, by their names in lower case."""

METHODS = Table(
    "identity method",
    "dai.identity",
    {
        "token": "dai.security.identity.tokens:Tokens",
        "jwt": "dai.security.identity.jwt:JsonWebTokens",
        "signature": "dai.security.identity.signatures:Signatures",
    },
    extras={"jwt": "identity", "signature": "identity"},
)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, by which method; nobody in particular where ``name`` is empty. ``resources`` are those that may be
    asked (none: all). An administrator sees what belongs to others. ``groups``: what policies may name in its place."""

    name: str = ""
    method: str = "none"
    resources: frozenset[str] = frozenset()
    administrator: bool = False
    groups: frozenset[str] = frozenset()

    def sees(self, owner: str | None, *resources: str) -> bool:
        """Whether what belongs to this owner is the caller's, or the caller an administrator, and comes from resources
        that the caller may ask."""
        return (self.administrator or (owner or "") == self.name) and all(map(self.may_ask, resources))

    def may_ask(self, resource: str) -> bool:
        return not self.resources or resource in self.resources

    def check(self, resource: str) -> None:
        """DeniedError where the caller may not ask the resource."""
        if not self.may_ask(resource):
            raise DeniedError(
                f"{self.name!r} may not ask the resource {resource!r}.",
                hint=f"These credentials are for {', '.join(sorted(self.resources))}.",
            )


ANONYMOUS = Caller()


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A bearer token as it is kept: ``digest`` is the SHA-256 of the token in hexadecimal digits. Times are seconds
    since 1970 UTC."""

    id: str
    name: str
    digest: str
    created: float
    expires: float
    resources: tuple[str, ...] = ()
    administrator: bool = False
    groups: tuple[str, ...] = ()


LookUp = Callable[[str], Awaitable[StoredToken | None]]
"""The token of an id, if there is one."""


class Head(dict[bytes, bytes]):
    """The headers of a request by their names in lower case; all their ``lines``, and the ``target``, the path with the
    query. A method that knows what the body must be sets its ``digests`` (none: empty), one that takes a request once
    ``forget``, for a request that another worker looks at again."""

    def __init__(
        self,
        lines: Iterable[tuple[bytes, bytes]],
        method: str = "GET",
        scheme: str = "http",
        target: bytes = b"/",
    ) -> None:
        super().__init__(lines)
        self.lines, self.method, self.scheme, self.target = lines, method, scheme, target
        self.digests: Mapping[str, bytes] | None = None
        self.forget: Callable[[], None] | None = None


class Method(Protocol):
    async def caller(self, head: Head, /) -> Caller | None: ...


class Identification:
    """The methods of the configuration, in its order."""

    def __init__(self, config: IdentityConfig, look_up: LookUp, seen: Seen | None = None) -> None:
        """ConfigurationError for a method that is not there. ``seen``: what all workers have seen."""
        for each in config.methods:
            if each not in METHODS:
                raise ConfigurationError(
                    f"identity.methods: there is no method {each!r}.", hint=nearest(each, list(METHODS))
                )
        self._methods: list[Method] = [METHODS[each](config, look_up, seen) for each in config.methods]
        self._anonymous = config.anonymous or not config.methods
        self._attempts = Attempts(config.wrong_seconds)

    @property
    def asks(self) -> bool:
        """Whether credentials are looked at."""
        return bool(self._methods)

    async def caller(self, head: Head, address: str = "") -> Caller:
        """UnauthenticatedError for nobody who is known, later the more often that came from the ``address``."""
        try:
            for method in self._methods:
                if (caller := await method.caller(head)) is not None:
                    return caller
            if self._methods and (b"authorization" in head or b"signature-input" in head):
                raise UnauthenticatedError("These credentials are of no kind that this service takes.")
        except UnauthenticatedError:
            await self._attempts.failed(address)
            raise
        if not self._anonymous:
            raise UnauthenticatedError(
                "This service serves known callers only.",
                hint="Send a token: Authorization: Bearer …. In Python: dai.connect(…, token=…). Commands: DAI_TOKEN.",
            )
        return ANONYMOUS
