"""Slows down guessing: the answer to wrong credentials is delayed, the longer the more of them came from the same
address. Right credentials are never delayed, so that callers who share an address with an attacker are not locked
out."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from dai.errors import QuotaError

FREE = 3
"""Attempts that are answered at once …"""
FIRST_SECONDS = 0.1
"""… then one waits so long, and each further one twice as long."""
FORGOTTEN_SECONDS = 300.0
"""After so long without an attempt the count of an address starts again."""
ADDRESSES = 10_000
"""Kept at most; those that tried longest ago are forgotten first."""
WAITING = 100
"""Most answers that are delayed at the same time; further ones are sent at once, with the time after which to try
again."""


def origin_of(address: str) -> str:
    """Whom an address stands for: who has one of IPv6 may have all that begin with the same 64 bits."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


class Attempts:
    """Of one process, on its event loop. An answer waits at most ``most`` seconds."""

    def __init__(self, most: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._most, self._sleep = most, sleep
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """By address: how many, and when the last."""
        self._waiting = 0

    async def failed(self, address: str) -> None:
        """Returns when the attempt may be answered. QuotaError where too many answers wait already."""
        if not self._most:
            return
        now, address = time.monotonic(), origin_of(address)
        count, last = self._failed.pop(address, (0, now))
        count = 1 if now - last > FORGOTTEN_SECONDS else count + 1
        self._failed[address] = count, now
        if len(self._failed) > ADDRESSES:
            self._failed.popitem(last=False)
        if count <= FREE:
            return
        seconds = min(self._most, FIRST_SECONDS * 2 ** min(count - FREE - 1, 30))
        if self._waiting >= WAITING:
            raise QuotaError("Too many attempts to identify failed.", retry_after=math.ceil(self._most))
        self._waiting += 1
        try:
            await self._sleep(seconds)
        finally:
            self._waiting -= 1
