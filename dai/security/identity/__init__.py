"""Identifies callers: each method of METHODS reads the head of a request and says who sent it.

A new method is a module here and a line in METHODS (or an entry point ``dai.identity``). It is made from the
configuration, from where tokens are looked up and from what was seen. It has one coroutine, ``caller``: None where the
request has nothing for it, UnauthenticatedError where it has and that does not hold. It runs on the event loop and must
not block. Its ``hint`` says what a caller has to send.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

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
        "certificate": "dai.security.identity.certificates:Certificates",
        "xml-signature": "dai.security.identity.xml_signatures:XmlSignatures",
        "ws-security": "dai.security.identity.ws_security:WsSecurity",
    },
    extras=dict.fromkeys(("jwt", "signature", "certificate", "xml-signature", "ws-security"), "identity"),
)
METRICS = "/metrics"
OPEN = frozenset({"/", "/health", "/health/live", "/health/ready"})
"""Paths that need no identification: those for monitoring the process, and those that say what the service is."""
_BEARERS = frozenset({"token", "jwt"})
"""Methods whose credentials are a bearer token."""
MOST_NAME = 200
BEARER = "Send a token: Authorization: Bearer …. In Python: dai.connect(…, token=…). Commands: DAI_TOKEN."


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller and the method that identified it; an empty ``name`` is an anonymous caller. ``resources``: those that
    the caller may use (none: all). An administrator sees what belongs to others. ``groups``: what policies may name in
    its place. ``bearer``: the token that the caller sent, for federations that pass it on."""

    name: str = ""
    method: str = "none"
    resources: frozenset[str] = frozenset()
    administrator: bool = False
    groups: frozenset[str] = frozenset()
    bearer: str | None = field(default=None, repr=False, compare=False)

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
                f"{self.name!r} may not use the resource {resource!r}.",
                hint=f"These credentials are for {', '.join(sorted(self.resources))}.",
            )


ANONYMOUS = Caller()


def is_name(text: str) -> bool:
    """Whether a caller may have that name: it stands in logs, in the audit and in lists."""
    return 0 < len(text) <= MOST_NAME and text.isprintable()


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
    query. ``address``: where it comes from; ``certificate``: what the client has shown (PEM), verified. ``read``
    gives the body, within the limits. A method that knows what the body must be sets its ``digests`` (none: empty), one
    that knows what of the body may run sets that as ``document``, one that takes a request once ``forget``, for a
    request that another worker looks at again."""

    def __init__(
        self,
        lines: Iterable[tuple[bytes, bytes]],
        method: str = "GET",
        scheme: str = "http",
        target: bytes = b"/",
        address: str = "",
        certificate: str | None = None,
        read: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        super().__init__(lines)
        self.lines, self.method, self.scheme, self.target = lines, method, scheme, target
        self.address, self.certificate, self.read = address, certificate, read
        self.document: bytes | None = None
        self.digests: Mapping[str, bytes] | None = None
        self.forget: Callable[[], None] | None = None


class Method(Protocol):
    hint: ClassVar[str]

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
        self.open = OPEN | {METRICS} if "anonymous" in config.metrics else OPEN
        """Paths that ask nobody who they are."""

    @property
    def asks(self) -> bool:
        """Whether credentials are looked at."""
        return bool(self._methods)

    async def caller(self, head: Head) -> Caller:
        """The caller. UnauthenticatedError for an unknown one, delayed the longer the more of them came from the same
        address."""
        try:
            for method in self._methods:
                if (caller := await method.caller(head)) is not None:
                    return replace(caller, bearer=_bearer(head)) if caller.method in _BEARERS else caller
            if self._methods and (b"authorization" in head or b"signature-input" in head):
                raise UnauthenticatedError(
                    "This service does not take credentials of this kind.",
                    hint="Was the whole token copied, from its first letter to its last?",
                )
        except UnauthenticatedError:
            await self._attempts.failed(head.address)
            raise
        if not self._anonymous:
            hints = dict.fromkeys(getattr(method, "hint", "") for method in self._methods)
            raise UnauthenticatedError(
                "This service serves identified callers only.", hint=" Or: ".join(filter(None, hints)) or None
            )
        return ANONYMOUS


def _bearer(head: Head) -> str:
    return head[b"authorization"].partition(b" ")[2].strip().decode("latin-1")
