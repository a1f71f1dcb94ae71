"""Finds the process of the service that owns a session or a job: the id names it by its last character."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass

from dai.config.service import MOST_WORKERS

_ALPHABET = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
assert len(_ALPHABET) == MOST_WORKERS


@dataclass(frozen=True, slots=True)
class Identities:
    """The ids of one of the ``workers`` of a service: that of ``number``. Whatever number of workers made an id, one of
    those that run now owns it."""

    number: int = 0
    workers: int = 1

    def new(self) -> str:
        id = secrets.token_urlsafe(12)
        if self.workers == 1:
            return id
        return id[:-1] + _ALPHABET[self.number + self.workers * secrets.randbelow(MOST_WORKERS // self.workers)]

    def owner(self, id: str) -> int:
        """The number of the worker that owns the id; 0 of what is no id."""
        return max(_ALPHABET.find(id[-1:]), 0) % self.workers if id else 0

    def owns(self, id: str) -> bool:
        return self.owner(id) == self.number


ALONE = Identities()
"""Those of a service that is one process."""
