"""Output of commands: names, texts and errors of services and other people, which must not control the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

_STEERING = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""Control characters, and those that turn the direction of a text."""
_SHOWN = {each: f"\\x{each:02x}" if each < 0x100 else f"\\u{each:04x}" for each in _STEERING if chr(each) not in "\n\t"}


class _Shown:
    """A stream of text that shows control characters by their numbers. A carriage return that begins what is written
    stays: so progress is drawn. What goes through ``buffer`` stays as it is."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        begin = "\r" if text.startswith("\r") else ""
        self._stream.write(begin + text[len(begin) :].translate(_SHOWN))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def harmless() -> Iterator[None]:
    """A context in which printed text cannot control the terminal."""
    out: Any = _Shown(sys.stdout)
    err: Any = _Shown(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        yield
