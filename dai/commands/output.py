"""Writes a result: as a table on the terminal, or its bytes into a file or a pipe."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dai.client.credentials import options_for, server_of
from dai.client.http.transport import Options
from dai.client.results.choices import NUMERIC
from dai.client.results.files import format_of_path
from dai.client.results.preview import first_rows, printed
from dai.client.results.result import Result
from dai.commands import SERVER
from dai.errors import NotAcceptableError, RequestError
from dai.formats import FORMATS, format_named

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN, COUNTED = 40, 100_000


class UsageError(RequestError):
    """The command line asks for what cannot be."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """--format, --output, --blocksize."""
    parser.add_argument(
        "--format",
        choices=("table", *FORMATS),
        help="format of the result (default: by the suffix of --output, else a table on a terminal and CSV in a pipe)",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write to this file; it appears when it is complete"
    )
    parser.add_argument("--blocksize", type=whole(1, 1_000_000), metavar="N", help="rows of a block")


def add_numeric(parser: argparse.ArgumentParser) -> None:
    """--numeric."""
    parser.add_argument("--numeric", choices=NUMERIC, help="type of decimal numbers in the result; see docs/types.md")


def add_server(parser: argparse.ArgumentParser) -> None:
    """--server."""
    server = os.environ.get("DAI_SERVER") or server_of() or SERVER
    about = "the data service (default: DAI_SERVER of the environment, the url of DAI_PROFILE, else " + SERVER + ")"
    parser.add_argument("--server", default=server, metavar="URL", help=about)


def identity(server: str) -> Options:
    """The caller's credentials, from the environment and the profile file. A token is not an argument, because
    everybody may see the arguments of a process."""
    return Options(**options_for(server, {}))


def whole(first: int, last: int, what: str = "a whole number") -> Callable[[str], int]:
    """For ``type=`` of an argument."""

    def read(text: str) -> int:
        if not (text.isdecimal() and len(text) < 10 and first <= int(text) <= last):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} ({first} to {last:,})")
        return int(text)

    return read


def named_parameter(text: str) -> tuple[str, Any]:
    """NAME=VALUE, for ``type=`` of an argument; lists and plain values as JSON writes them, anything else is text."""
    name, equals, written = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        value = json.loads(written)
    except ValueError:
        return name, written
    return name, written if isinstance(value, dict) else value


def chosen(form: str | None, output: Path | None) -> str:
    """The form that was asked for, or that fits where it goes. Refuses binary forms on a terminal."""
    if form is None and output is not None:
        try:
            form, _ = format_of_path(output)
        except NotAcceptableError as error:
            raise UsageError(error.detail, hint=f"{error.hint} Or add --format {'|'.join(FORMATS)}.") from error
        if form is None:
            raise UsageError(
                f"The name {output.name!r} does not tell the format.", hint=f"Add --format {'|'.join(FORMATS)}."
            )
    if form is None:
        form = "table" if sys.stdout.isatty() else "csv"
    if form != "table" and format_named(form).binary and output is None and sys.stdout.isatty():
        raise UsageError(f"{form} is binary and would spoil the terminal.", hint="Add --output FILE, or pipe it.")
    if form == "table" and output is not None:
        raise UsageError("A table shows the first rows only.", hint="Choose another --format for a file.")
    return form


def write(result: Result, form: str, output: Path | None) -> None:
    """The result to its end, or as a table its first rows. Raises what reading raises: nothing is cut short silently,
    and no part of a file is left."""
    with result:
        if form == "table":
            print_table(result)
        elif output is not None:
            size = result.save(output, form)
            print(f"{output}: {size:,} bytes", file=sys.stderr)
        else:
            for piece in result.chunks():
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()


def print_table(result: Result) -> None:
    """The first SHOWN rows, and the number of all, where it is at most COUNTED."""
    schema = result.schema
    batches: list[pa.RecordBatch] = []
    counted = 0
    for batch in result:
        if counted < SHOWN:
            batches.append(batch)
        counted += batch.num_rows
        if counted > COUNTED:
            break
    rows = first_rows(batches, SHOWN)
    for line in printed(schema, rows):
        print(line)
    print(_count(counted, len(rows), result.complete))


def _count(counted: int, printed: int, complete: bool) -> str:
    if not complete:
        return f"(the first {printed} of more than {COUNTED:,} rows; the rest was not read: use --output FILE)"
    total = "1 row" if counted == 1 else f"{counted:,} rows"
    return f"({total})" if printed == counted else f"(the first {printed} of {total}; for all of them: --format csv)"
