"""The lease of a service's name: one process at a time has it, and renews it regularly."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dai.errors import ConfigurationError, DatabaseUnavailableError
from dai.service.state.database import Database
from dai.service.state.tables import SERVICES

log = logging.getLogger("dai.service.state")

LEASE_SECONDS = 30.0
"""A lease ends when it was not renewed for so long. Clocks are not compared: a process that wants the name watches
whether the lease is renewed."""
LOOK_SECONDS = 0.5


class Lease:
    """The lease of the name ``service``. Nobody has it before ``claim`` or ``join``. Thread-safe."""

    def __init__(self, database: Database, service: str) -> None:
        self._database, self.service = database, service
        self._token: str | None = None
        self._claimed = False
        self._renewed = 0.0

    def claim(self) -> None:
        """Takes the service's name for this process until ``close``. Raises ConfigurationError if another process has
        it. A process that died on this machine loses it at once; a process elsewhere when its lease ends."""
        deadline = time.monotonic() + LEASE_SECONDS
        first = lease = self._holder()
        while lease is not None and (living := _living(lease)) is not False:
            if living or (first is not None and (lease.token, lease.renewals) != (first.token, first.renewals)):
                raise self._taken_by(lease)
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_SECONDS)
            lease = self._holder()
        if not self._try(lease):
            raise self._taken_by(self._holder())

    def _holder(self) -> sa.Row[Any] | None:
        with self._database.transaction() as connection:
            rows = connection.execute(sa.select(SERVICES).where(SERVICES.c.name == self.service))
            return rows.first()

    def _taken_by(self, lease: sa.Row[Any] | None) -> ConfigurationError:
        who = f"process {lease.process} on {lease.host}" if lease is not None else "another process"
        return ConfigurationError(
            f"Another service named {self.service!r} already keeps its jobs in this state database "
            f"(service.state): {who}.",
            hint="Stop that service, start this one in another directory, or set another name or state in [service].",
        )

    def _try(self, lease: sa.Row[Any] | None) -> bool:
        """Tries to take the name in place of ``lease``. False if another process was faster."""
        token, began = secrets.token_hex(16), time.monotonic()
        machine, started = _process(os.getpid())
        values = {"token": token, "renewals": 0, "host": socket.gethostname(), "process": os.getpid()}
        values.update(machine=machine, began=started)
        statement: Any = SERVICES.insert().values(name=self.service, **values)
        if lease is not None:
            same = (SERVICES.c.token == lease.token, SERVICES.c.renewals == lease.renewals)
            statement = SERVICES.update().where(SERVICES.c.name == self.service, *same).values(**values)
        try:
            with self._database.transaction() as connection:
                if not connection.execute(statement).rowcount:
                    return False
        except DatabaseUnavailableError as error:
            if isinstance(error.__cause__, IntegrityError):
                return False
            raise
        self._token, self._renewed, self._claimed = token, began, True
        return True

    @property
    def token(self) -> str | None:
        """Of the lease; None without one."""
        return self._token

    def join(self, token: str) -> None:
        """Shares the lease of another process of the same service. Raises DatabaseUnavailableError if it is lost."""
        self._token = token
        self.check()

    def check(self) -> None:
        """Renews the lease, which also checks that the database can be written. Raises DatabaseUnavailableError if the
        lease is lost."""
        began = time.monotonic()
        ours = (SERVICES.c.name == self.service, SERVICES.c.token == self._token)
        renewed = SERVICES.update().where(*ours).values(renewals=SERVICES.c.renewals + 1)
        with self._database.transaction() as connection:
            if not connection.execute(renewed).rowcount:
                self._renewed = -LEASE_SECONDS  # whatever is asked next looks again
                log.error("another process has taken over the name of this service", extra={"service": self.service})
                raise DatabaseUnavailableError(
                    "Another process has taken over the state of this service.", hint="The service must be restarted."
                )
        self._renewed = began

    def check_in_time(self) -> None:
        """The same, where it has not been renewed for so long that another process may have it; nothing without one."""
        if self._token is not None and time.monotonic() - self._renewed > LEASE_SECONDS:
            self.check()

    def release(self) -> None:
        """Gives the name back, if this process has claimed it."""
        if self._claimed:
            with suppress(DatabaseUnavailableError), self._database.transaction() as connection:
                connection.execute(SERVICES.delete().where(SERVICES.c.token == self._token))


def _process(number: int) -> tuple[str, str]:
    """The machine (with the container) of a process and the process's start time; empty if they cannot be known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "", ""
    try:
        # proc(5): field 22, counted behind the name in brackets, which may hold anything
        return machine, Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return machine, ""


def _living(lease: sa.Row[Any]) -> bool | None:
    """Whether the process with the lease lives; None if it is on another machine."""
    machine, began = _process(lease.process)
    return lease.began == began if machine and machine == lease.machine else None
