"""What a process may have of the machine: all of it, or what its control groups (versions 1 and 2) allow."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")


def memory(root: Path = ROOT) -> int:
    """Bytes."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group in _groups(root):
        for name in ("memory.max", "memory/memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # not there, or "max"
                sizes.append(int((group / name).read_text()))
    return min(sizes)


def cores(root: Path = ROOT) -> int:
    """Whole ones, at least one. Linux alone tells what it allows."""
    allowed = [float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)]
    for group in _groups(root):
        with suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            allowed.append(int(quota) / int(period))
        with suppress(OSError, ValueError):
            quota, period = ((group / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            allowed += [int(quota) / int(period)] if int(quota) > 0 else []
    return max(1, math.floor(min(allowed)))


def _groups(root: Path) -> Iterator[Path]:
    """The control groups of this process, from its own to that of all."""
    groups = root / "sys/fs/cgroup"
    try:
        own = groups / (root / "proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
    except OSError:
        own = groups
    yield from (own, *own.parents, groups)
