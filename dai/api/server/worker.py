"""One of several processes that serve: ``python -m dai.api.server.worker``, which the supervisor starts."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import time
from types import FrameType

from dai.api.monitoring.logs import configure
from dai.api.server.serve import Process, bounded, run
from dai.api.server.supervisor import LOOK_SECONDS, READY, Orders
from dai.api.workers.member import Member, part
from dai.api.workers.peers import Inbox, Peers
from dai.api.workers.table import Table
from dai.errors import DaiError
from dai.service.identities import Identities


def main() -> int:
    configure()
    told: list[int] = []

    def stopped(number: int, frame: FrameType | None) -> None:
        told.append(number)
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stopped)
    orders: Orders = pickle.load(sys.stdin.buffer)  # noqa: S301
    watching = threading.Thread(target=_end_with_the_supervisor, args=(orders,), name="supervisor", daemon=True)
    watching.start()
    try:
        service = bounded(part(orders.config, orders.number, orders.workers, orders.shared), _member(orders))
        process = Process(service, lambda: _tell(orders.ready))
    except DaiError as error:
        os.write(orders.ready, f"dai: {error}".encode())
        return 2
    if told:  # and Python ignored it, as it ignores whatever is raised in a finaliser
        return 0
    return run(process, [])


def _member(orders: Orders) -> Member:
    inboxes = [Inbox(socket.socket(fileno=each), socket.socket(fileno=other)) for each, other in orders.inboxes]
    peers = Peers(orders.number, inboxes)
    identities = Identities(orders.number, orders.workers)
    table = Table(orders.table, orders.workers, orders.number)
    threading.Thread(target=_live, args=(table,), name="alive", daemon=True).start()
    config = orders.config
    alone = not config.federations and not config.roles and set(config.resources) <= orders.shared
    return Member(identities, orders.token, table, peers, orders.counters, orders.shared, alone)


def _live(table: Table) -> None:
    """The supervisor sees that threads still run here."""
    while True:
        table.set("alive", table.get("alive") + 1)
        time.sleep(LOOK_SECONDS / 2)


def _tell(ready: int) -> None:
    os.write(ready, READY)
    os.close(ready)


def _end_with_the_supervisor(orders: Orders) -> None:
    """As the service would if it was one process."""
    while os.read(sys.stdin.fileno(), 1):
        continue
    shutil.rmtree(orders.counters, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
