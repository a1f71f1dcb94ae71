"""Ctrl-C while a query is asked or read: a notebook shows one line of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dai.errors import own_lines


class QueryInterrupted(KeyboardInterrupt):
    """The user pressed Ctrl-C."""

    def _render_traceback_(self) -> list[str]:
        return [*own_lines(self), "Interrupted: the query and its statements in the databases were stopped."]


@contextmanager
def shortly_told() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise QueryInterrupted from None
