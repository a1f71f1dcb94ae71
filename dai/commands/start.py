"""The start of the commands: Ctrl-C while modules are still being imported prints one line, too."""

from __future__ import annotations

import sys
from importlib import import_module

from dai.commands import INTERRUPTED


def dai() -> int:
    """The command ``dai``."""
    return _started("dai")


def dqp() -> int:
    """The command ``dqp``."""
    return _started("dqp")


def _started(name: str) -> int:
    try:
        code: int = import_module(f"{name}.__main__").main()
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code
