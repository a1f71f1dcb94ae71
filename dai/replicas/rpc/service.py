"""The methods about the service itself: its parents, figures and configuration."""

from __future__ import annotations

import time

import dai
from dai.replicas.catalog.operations import Index
from dai.replicas.codes import Code, Refused
from dai.replicas.rpc.calls import Arguments, Items, Rpc, apart, described, listed

_PING, _QUIT, _UPDATE = "0", "1", "2"


def parents(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    return listed(described(rpc, Index(url)) for url in rpc.replicas.settings.parents)


@apart
def statistics(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    own, others = rpc.catalog.counts(), rpc.index.counts()
    numbers = [
        time.time() - rpc.begun, 3, rpc.replicas.settings.update_seconds, rpc.replicas.settings.update_seconds,
        own["logical"], own["target"], own["mappings"],
        others["names"], others["catalogs"], others["catalogs"], others["names"],
    ]  # fmt: skip
    return [dai.__version__, *(str(int(each)) for each in numbers)]


def configuration(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    settings = rpc.replicas.configuration()
    if before[0] and before[0] not in settings:
        raise Refused(Code.BADARG, before[0])
    return listed((name, value) for name, value in settings.items() if before[0] in ("", name))


def configure(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    rpc.replicas.configure(*before)
    return []


def administer(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    if before[0] == _UPDATE:
        rpc.replicas.update_now()
    elif before[0] == _QUIT:
        raise Refused(Code.UNSUPPORTED, "a caller cannot stop this server")
    elif before[0] != _PING:
        raise Refused(Code.BADARG, f"command {before[0][:40]!r}")
    return []
