"""Files that are replaced while a process uses what is in them: certificates, role maps."""

from __future__ import annotations

import os
from pathlib import Path


def state_of(*files: str | Path | None) -> tuple[tuple[int, int, int], ...] | None:
    """Something else whenever one of the files is replaced or written; None where one of them cannot be looked at."""
    try:
        states = [os.stat(each) for each in files if each is not None]
    except OSError:
        return None
    return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in states)
