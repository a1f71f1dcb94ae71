"""The registry for one caller, as an interface has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from dai.security.identity import Caller
from dai.service.registry.draft import Draft
from dai.service.registry.mirror import Mirror
from dai.service.registry.registry import Registry

T = TypeVar("T")


class Access(Protocol):
    """``may`` raises DeniedError where the policy does not let the caller do that ``work``. ``query`` gives solutions
    in JSON; ``fetch`` the text that is at a URL, of ``most`` bytes, where the operator allows deliveries from there."""

    registry: Registry
    caller: Caller

    def may(self, work: str, what: str) -> None: ...
    async def read(self, work: Callable[[Mirror], T]) -> T: ...
    async def change(self, operation: Callable[[Draft], T]) -> T: ...
    async def query(self, sparql: str) -> bytes: ...
    async def fetch(self, url: str, most: int) -> str: ...
