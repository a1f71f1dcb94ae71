"""The commands: ``dai`` or ``python -m dai``. Exit codes: 0 success, 1 the service or the database refused, 2 the
command line or the configuration is wrong, 130 Ctrl-C."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import dai
from dai.commands import FAILED, INTERRUPTED, USAGE, ask, generate, look, replicas, run, tokens
from dai.commands.output import UsageError
from dai.commands.terminal import harmless
from dai.errors import ConfigurationError, DaiError, MissingDependencyError
from dai.plugins import nearest

ELSEWHERE = {
    **dict.fromkeys(("dai tables", "dai schema", "dai describe", "dai show"), "dai resources NAME"),
    **{f"{name} version": f"{name} --version" for name in ("dai", "dqp")},
    **{f"{name} help": f"{name} --help" for name in ("dai", "dqp")},
    "dai explain": "dqp explain FEDERATION …",
    "dai federation": "dqp query FEDERATION …",
    **dict.fromkeys(("dai sql", "dai select", "dai run"), 'dai query NAME "select …"'),
    "dqp serve": "dai serve --config dai.toml, with [federations.NAME] in it",
    "dqp describe": "dqp tables FEDERATION",
}
"""Commands that users may expect, and what to type instead."""


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="dai", description="A data service: serve databases, ask them, follow jobs.")
    root.add_argument("--version", action="version", version=f"dai {dai.__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for group in (run, ask, look, generate, tokens, replicas):
        group.add(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; errors are printed on stderr."""
    try:
        commands = parser()
    except ConfigurationError as error:  # a profile that DAI_PROFILE names and that does not exist
        return _ended("dai", error, USAGE)
    return carried_out(commands, argv)


def carried_out(commands: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """As ``main``, for any parser whose commands set ``run``."""
    name = commands.prog
    words = sys.argv[1:] if argv is None else argv
    if not words:
        commands.print_help(sys.stderr)
        return USAGE
    (known,) = [each.choices for each in commands._actions if isinstance(each, argparse._SubParsersAction)]
    if not words[0].startswith("-") and words[0] not in known:
        instead = ELSEWHERE.get(f"{name} {words[0]}")
        hint = f"Type: {instead}" if instead else nearest(words[0], [*known])
        commands.error(f"There is no command {words[0]!r}. {hint}")
    arguments, unknown = commands.parse_known_args(words)
    if unknown:
        option = next((each for each in unknown if each.startswith("-")), None)
        hint = f"Type {name} {words[0]} --help for what it takes."
        if option is None and any(each.startswith("-") for each in words):
            hint = f"Put the options behind the other arguments. {hint}"
        if option is not None:
            hint = nearest(option.partition("=")[0], _options(known.get(words[0], commands), words[1:]))
        commands.error(f"unrecognized arguments: {' '.join(unknown)}. {hint}")
    with harmless():
        return _run(name, arguments)


def _options(command: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Of the command, or of the one below it that the words name."""
    options = [each for action in command._actions for each in action.option_strings]
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction) and words and words[0] in action.choices:
            options += _options(action.choices[words[0]], words[1:])
    return options


def _run(name: str, arguments: argparse.Namespace) -> int:
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except (UsageError, ConfigurationError, MissingDependencyError) as error:
        return _ended(name, error, USAGE)
    except DaiError as error:
        return _ended(name, error, FAILED)
    except KeyboardInterrupt as error:
        print(f"{name}: {str(error) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has stopped (`| head`). Output that is still buffered cannot be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        # A file of the caller's: their own path may be named.
        return _ended(name, OSError(f"{error.filename}: {error.strerror}.") if error.filename else error, FAILED)
    return code


def _ended(name: str, error: Exception, code: int) -> int:
    first, *rest = str(error).split("\n")
    print("\n".join([f"{name}: {first}", *(f"     {line}" for line in rest)]), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
