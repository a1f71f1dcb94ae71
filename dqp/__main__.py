"""The commands: ``dqp`` or ``python -m dqp``. Exit codes as those of ``dai``: 0 success, 1 a service or a database
refused, 2 the command line or the federation is wrong, 130 Ctrl-C, which stops the statements in all databases."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import dai
from dai.__main__ import carried_out
from dqp.interfaces import commands


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(prog="dqp", description="SQL queries over the tables of many databases.")
    command_line.add_argument("--version", action="version", version=f"dqp {dai.__version__}")
    commands.add(command_line.add_subparsers(title="commands", metavar="COMMAND", required=True))
    return command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; errors are printed on stderr."""
    return carried_out(parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
