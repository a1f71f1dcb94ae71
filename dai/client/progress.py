"""How far a transfer is: one line that is written over on a terminal or in a notebook, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

FIRST = 0.5
"""Seconds before a line appears: quick work shows none."""
EVERY = 0.2
DONE, STOPPED = "done", "stopped"


@dataclass(frozen=True, slots=True)
class Progress:
    """``rows`` decoded (0 for raw bytes) and ``bytes`` received in ``seconds``; ``note``: what is going on, and at the
    end, how it ended. ``share``: how much of it is done, from 0 to 1, about; None where that is unknown."""

    rows: int
    bytes: int
    seconds: float
    finished: bool
    note: str = ""
    share: float | None = None

    def __str__(self) -> str:
        rate = self.bytes / 1e6 / self.seconds if self.seconds else 0.0
        share = "" if self.share is None or self.finished else f"about {min(99, int(100 * self.share))} %, "
        rows = f"{self.rows:,} rows, " if self.rows else ""
        note = f"; {self.note}" if self.note else ""
        return f"{share}{rows}{self.bytes / 1e6:,.1f} MB, {rate:,.1f} MB/s, {self.seconds:,.1f} s{note}"


Report = Callable[[Progress], None]
Asked = Report | bool | None
"""True: a line on stderr; False: nothing; None: a line where somebody watches; a function is called instead."""


class Line:
    """Writes over one line; the last one says how it ended, and stays."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._width = 0

    def __call__(self, progress: Progress) -> None:
        text = str(progress)
        self._stream.write("\r" + text.ljust(self._width) + ("\n" if progress.finished else ""))
        self._stream.flush()
        self._width = len(text)


class Meter:
    """Calls the report at most every EVERY seconds, and once at the end if it was called before."""

    def __init__(self, choice: Asked) -> None:
        self._report = _report(choice)
        self._started = time.monotonic()
        self._due = self._started + (0.0 if callable(choice) else FIRST)
        self._shown = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def update(
        self,
        rows: int,
        received: int,
        note: Callable[[], str] | None = None,
        share: Callable[[], float | None] | None = None,
    ) -> None:
        """``note`` and ``share`` are called when something is to be shown."""
        now = time.monotonic()
        if self._report is not None and now >= self._due:
            self._due, self._shown = now + EVERY, True
            said, part = note() if note else "", share() if share else None
            self._report(Progress(rows, received, now - self._started, False, said, part))

    def finish(self, rows: int, received: int, ending: str = DONE) -> None:
        """Once: how it ended, if anything was shown."""
        if self._report is not None and self._shown:
            share = 1.0 if ending == DONE else None
            self._report(Progress(rows, received, time.monotonic() - self._started, True, ending, share))
        self._report = None


def _report(choice: Asked) -> Report | None:
    if callable(choice):
        return choice
    if choice or (choice is None and _watched()):
        return Line(sys.stderr)
    return None


def _watched() -> bool:
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    # Only a notebook's kernel has loaded this.
    kernel = sys.modules.get("ipykernel.kernelapp")
    return kernel is not None and bool(kernel.IPKernelApp.initialized())
