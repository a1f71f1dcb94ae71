"""``dqp query``, ``dqp explain`` and ``dqp tables``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dai.client.http.body import Pieces
from dai.client.results import table
from dai.client.results.result import Result
from dai.commands import OK
from dai.commands.output import UsageError, add_numeric, add_options, chosen, named_parameter, write

if TYPE_CHECKING:
    from dai.streams.stream import Block
    from dqp.interfaces.lab import Lab, Query

PARAMETERS = """Parameters stand for $name in the statement. A number, true, false and null are taken as such;
"quoted" and anything else is text, also [a list] of them for IN $name."""
PLANS = ("text", "json", "svg")
VARIABLE, FILE = "DQP_FEDERATION", "federation.toml"
"""The default federation: the environment variable names it, or it is this file in the working directory."""


def add(commands: Any) -> None:
    query = commands.add_parser("query", help="run a query and show or save its result", epilog=PARAMETERS)
    _add_query(query)
    add_options(query)
    add_numeric(query)
    query.set_defaults(run=run_query)

    explain = commands.add_parser("explain", help="how a query would run, or did", epilog=PARAMETERS)
    _add_query(explain)
    explain.add_argument("--analyze", action="store_true", help="run the query to its end and report what happened")
    explain.add_argument(
        "--format", choices=PLANS, help="the plan's format (default: by the suffix of --output, else text)"
    )
    explain.add_argument("--output", type=Path, metavar="FILE", help="write to this file")
    explain.add_argument("--svg", type=Path, metavar="FILE", help="also draw the plan into this file")
    explain.set_defaults(run=run_explain)

    tables = commands.add_parser("tables", help="the tables of a federation")
    _add_federation(tables)
    tables.set_defaults(run=run_tables)


def _add_federation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "federation",
        nargs="?",
        default=os.environ.get(VARIABLE, FILE),
        help=f"a federation.toml, or the URL of a federation of a service (default: ${VARIABLE}, else {FILE} here)",
    )


def _add_query(parser: argparse.ArgumentParser) -> None:
    _add_federation(parser)
    parser.add_argument("sql", help="the query; - reads it from the standard input")
    parser.add_argument(
        "-p",
        dest="parameters",
        action="append",
        default=[],
        type=named_parameter,
        metavar="NAME=VALUE",
        help="a parameter",
    )


def run_query(arguments: argparse.Namespace) -> int:
    form = chosen(arguments.format, arguments.output)
    with _connected(arguments) as lab:
        query = _query(lab, arguments, arguments.numeric)
        source = _Bytes(query, "arrow" if form == "table" else form, arguments.blocksize)
        write(Result(source, "arrow" if form == "table" else form, progress=False), form, arguments.output)
    return OK


def run_explain(arguments: argparse.Namespace) -> int:
    output: Path | None = arguments.output
    form = arguments.format or "text"
    if arguments.format is None and output is not None and output.suffix:
        form = "text" if output.suffix.lower() == ".txt" else output.suffix.lower()[1:]
        if form not in PLANS:
            raise UsageError(
                f"A plan is text, JSON or SVG, not {output.suffix}.", hint="Name a file .txt, .json or .svg."
            )
    with _connected(arguments) as lab:
        explanation = _query(lab, arguments).explain(analyze=arguments.analyze)
    if arguments.svg is not None:
        _save(explanation.svg, arguments.svg)
    text = {"text": lambda: explanation.text, "json": lambda: explanation.json, "svg": lambda: explanation.svg}[form]()
    if output is None:
        print(text)
    else:
        _save(text, output)
    return OK


def _save(text: str, path: Path) -> None:
    path.write_text(text + "\n", encoding="utf-8")
    print(f"{path}: {len(text):,} characters", file=sys.stderr)


def run_tables(arguments: argparse.Namespace) -> int:
    with _connected(arguments) as lab:
        rows = [
            [
                f"{each['source']}.{each['table']}" if each["source"] else each["table"],
                each["rows"],
                [
                    f"{name} [{unit}]" if unit else name
                    for name, unit in zip(each["columns"], each["units"], strict=True)
                ],
            ]
            for each in lab.tables().to_pylist()
        ]
        lines = [[name, "" if count is None else f"{count:,}", ", ".join(columns)] for name, count, columns in rows]
        for line in table.lines(["table", "rows", "columns"], lines, right=[1]):
            print(line)
        problems = lab.problems
        away = lab.coordinator.catalog.away if problems else {}
        for name, why in problems.items():
            first, *more = why.split("\n")
            message = f"{name} is away: {first}" if name in away else f"{name}: {first}"
            print("\n".join([message, *(f"  {each}" for each in more)]), file=sys.stderr)
    return OK


def _connected(arguments: argparse.Namespace) -> Lab:
    from dqp.interfaces.lab import Lab

    return Lab(arguments.federation)


def _query(lab: Lab, arguments: argparse.Namespace, numeric: str | None = None) -> Query:
    sql = sys.stdin.read() if arguments.sql == "-" else arguments.sql
    parameters = dict(arguments.parameters)
    if len(parameters) < len(arguments.parameters):
        names = [name for name, _ in arguments.parameters]
        twice = next(each for each in names if names.count(each) > 1)
        raise UsageError(f"The parameter {twice} is given twice.")
    return lab.sql(sql, *([parameters] if parameters else []), numeric=numeric)


class _Bytes(Pieces):
    """A query's tuples in a form, as a result's bytes: encoded as they are read."""

    def __init__(self, query: Query, form: str, blocksize: int | None) -> None:
        from dai.formats import format_named

        self._stream = query.stream(blocksize)
        self._blocks: Iterator[Block] = format_named(form).encode(self._stream, blocksize)
        self.received = 0

    def piece(self) -> memoryview | None:
        block = next(self._blocks, None)
        if block is None:
            return None
        data = memoryview(block.data).cast("B")
        self.received += data.nbytes
        return data

    def close(self) -> None:
        self._stream.close()
