"""The properties of a resource that perform documents have published (deliverToResourceProperty), in memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from dai.errors import LimitError

MOST = 100
MOST_BYTES = 1 << 20


class Published:
    """Thread-safe. A name that is published again gets the new text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[str, str] = {}

    def put(self, name: str, text: str) -> None:
        """LimitError beyond ``MOST`` names; MOST_BYTES is for who reads the text."""
        with self._lock:
            if name not in self._texts and len(self._texts) >= MOST:
                raise LimitError(
                    f"This resource already has {MOST} published properties.", hint="Use the name of one of them."
                )
            self._texts[name] = text

    def texts(self) -> Mapping[str, str]:
        with self._lock:
            return dict(self._texts)
