"""How much memory a process of the service may have; decision 53 says why it is bounded so."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import sys
import threading
import time

from dai.streams import machine

SHARE = 0.9
"""The default part of the machine's memory for a process: using more could make the system kill processes."""
STACKS_BYTES = 512 << 20
"""Threads that are still to begin take addresses for their stacks (8 MiB each), and next to no memory."""
RESERVE_BYTES, STEP_BYTES, TICK_SECONDS = 256 << 20, 12 << 20, 0.05
GARBAGE_BYTES, GARBAGE_SECONDS, GARBAGE_PAUSES = 128 << 20, 0.25, 10
"""Python collects garbage by the number of its objects: a few may have gigabytes. So it is collected, too, whenever a
process has grown by so much. Nothing else runs meanwhile: it pauses for so many times as long as that took."""
ALLOCATORS = {"DUCKDB_JE_MALLOC_CONF": "retain:false", "RUST_BACKTRACE": "0"}
"""The system counts addresses, and DuckDB's allocator would keep those of all memory that it ever had. It reads this
when DuckDB is loaded, and answers are as fast. A library in Rust that finds no memory while it prints where it found
none waits for itself for ever, and every other thread for it."""
_MALLOPT = ((-3, 1 << 17), (-8, 4))
"""M_MMAP_THRESHOLD, M_ARENA_MAX of glibc."""


def bound(most: int, processes: int = 1) -> None:
    """From now on this process gets about ``most`` more bytes than it has (0: it and others, so many ``processes``, get
    ``SHARE`` of the machine, or of their control group, in all). A statement that asks for more fails, and what runs
    beside it goes on."""
    if sys.platform.startswith("linux"):
        statm = os.open("/proc/self/statm", os.O_RDONLY)  # once: later there may be no file or memory left
        least = _mapped(statm)
        begun = least + STACKS_BYTES
        most = begun + most if most else by_itself(begun, machine.memory() // processes)
        threading.Thread(target=_watch, args=(most, statm), name="memory", daemon=True).start()
        threading.Thread(target=_collect, args=(statm, least), name="garbage", daemon=True).start()


def give_back() -> None:
    """From now on the C library gives large blocks back to the system when they are freed. By itself it stops that with
    the first one, up to 32 MiB, and then keeps the addresses of as many as there ever were, in a pool for each few
    threads."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in _MALLOPT:
            mallopt(parameter, value)


def by_itself(begun: int, size: int) -> int:
    """Bytes for a process of a machine of that ``size`` which begins with ``begun``, most of them only addresses."""
    return max(int(size * SHARE), begun + size // 4)


def _watch(most: int, statm: int) -> None:
    """Large allocations are refused first: the last ``RESERVE_BYTES`` are released in small steps."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    before = 0
    while True:
        with contextlib.suppress(OSError, MemoryError):
            soft = min(most, max(most - RESERVE_BYTES, _mapped(statm) + STEP_BYTES))
            if soft != before:
                resource.setrlimit(
                    resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
                )
                before = soft
        time.sleep(TICK_SECONDS)


def _collect(statm: int, least: int) -> None:
    took = 0.0
    while True:
        time.sleep(max(GARBAGE_SECONDS, GARBAGE_PAUSES * took))
        took = 0.0
        with contextlib.suppress(OSError, MemoryError):
            least = min(least, now := _mapped(statm))
            if now > least + GARBAGE_BYTES:
                began = time.perf_counter()
                gc.collect()
                took = time.perf_counter() - began
                least = _mapped(statm)


def _mapped(statm: int) -> int:
    """Bytes of memory that can be written to."""
    return int(os.pread(statm, 200, 0).split()[5]) * resource.getpagesize()
