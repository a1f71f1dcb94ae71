"""``dai query`` and ``dai perform``."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from dai.client import Resource, Response, Result, connect
from dai.client.documents import input_streams
from dai.commands import FAILED, OK
from dai.commands.output import UsageError, add_numeric, add_options, add_server, chosen, named_parameter, write
from dai.errors import DaiError

PARAMETERS = """Parameters replace each ? of the statement, in order, or with -p each :name. A number, true, false and
null are taken as such, with -p [1, 2] as a list; "quoted" and anything else is text."""


def add(commands: Any) -> None:
    query = commands.add_parser("query", help="run a query and show or save its result", epilog=PARAMETERS)
    query.add_argument("resource", help="the resource: its address, or its name at --server")
    query.add_argument("sql", help="the statement; it only reads")
    query.add_argument(
        "parameters", nargs="*", default=[], metavar="parameter", type=_parameter, help="the value of the next ?"
    )
    query.add_argument(
        "-p",
        dest="named",
        action="append",
        default=[],
        type=named_parameter,
        metavar="NAME=VALUE",
        help="a parameter by name",
    )
    add_server(query)
    add_options(query)
    add_numeric(query)
    query.set_defaults(run=run_query)

    perform = commands.add_parser("perform", help="run a perform document (XML)")
    resource = "the resource: its address, or its name at --server (default: the only one)"
    perform.add_argument("resource", nargs="?", default=argparse.SUPPRESS, help=resource)
    perform.add_argument("file", help="the document; - reads it from the standard input")
    perform.add_argument("--resource", help="the same")
    perform.add_argument("--end-point", metavar="NAME", help="return only this result, in --format")
    perform.add_argument(
        "--async", dest="background", action="store_true", help="run it as a job and print the job's id"
    )
    add_server(perform)
    add_options(perform)
    perform.set_defaults(run=run_perform)


def resource_named(name: str | None, server: str) -> Resource:
    """A resource by its address, by its name at ``server``, or the only one there."""
    if name is None:
        return connect(server)
    return connect(name if "://" in name else f"{server.rstrip('/')}/resources/{name}")


def _parameter(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict | list) else value


def run_query(arguments: argparse.Namespace) -> int:
    if arguments.parameters and arguments.sql.casefold() in ("select", "with", "from", "values"):
        raise UsageError(
            "The SQL came as several arguments.", hint='Put it in quotes: dai query NAME "select … from …".'
        )
    form = chosen(arguments.format, arguments.output)
    resource = resource_named(arguments.resource, arguments.server)
    result = resource.query(
        arguments.sql,
        *arguments.parameters,
        *([dict(arguments.named)] if arguments.named else []),
        blocksize=arguments.blocksize,
        format="arrow" if form == "table" else form,
        numeric=arguments.numeric,
    )
    write(result, form, arguments.output)
    return OK


def run_perform(arguments: argparse.Namespace) -> int:
    document = _read(arguments.file)
    if arguments.background:
        job = resource_named(arguments.resource, arguments.server).submit(document, blocksize=arguments.blocksize)
        print(job.id)
        print(f"Follow it with: dai jobs {job.id} --wait", file=sys.stderr)
        return OK
    if arguments.end_point is not None:
        return _one_end_point(arguments, document)
    if arguments.format is not None:
        raise UsageError("A response document has no other format.", hint="Name one result with --end-point NAME.")
    resource = resource_named(arguments.resource, arguments.server)
    with ExitStack() as ending:
        session = _waited_for(resource, document, ending)
        with resource.perform(document, blocksize=arguments.blocksize, session=session) as response:
            code = _show(response, arguments.output)
        if response.job is not None:
            ending.pop_all()  # the job goes on in the session
    return code


def _waited_for(resource: Resource, document: bytes, ending: ExitStack) -> str | None:
    """A session, told at once, for a document that waits for what is pushed. None where nothing is pushed. ``ending``
    ends the session."""
    names = input_streams(document)
    if not names:
        return None
    session = ending.enter_context(resource.session())
    print(f"Session {session.id} waits for what is pushed into: {', '.join(names)}", file=sys.stderr, flush=True)
    return session.id


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        hint = "Name the document behind the address: dai perform ADDRESS FILE." if "://" in file else None
        raise UsageError(f"The document {file} cannot be read: {error.strerror}.", hint=hint) from error


def _one_end_point(arguments: argparse.Namespace, document: bytes) -> int:
    form = chosen(arguments.format, arguments.output)
    resource = resource_named(arguments.resource, arguments.server)
    wanted = "arrow" if form == "table" else form
    with ExitStack() as ending:
        session = _waited_for(resource, document, ending)
        result: Result = resource.perform(
            document, arguments.end_point, format=wanted, blocksize=arguments.blocksize, session=session
        )
        write(result, form, arguments.output)
    return OK


def _show(response: Response, output: Path | None) -> int:
    """The response document as it arrives; the exit code is what it says."""
    if output is None:
        code = _copied(response, sys.stdout.buffer)
    else:
        part = output.with_name(output.name + ".part")
        try:
            with part.open("wb") as file:
                code = _copied(response, file)
            part.replace(output)
        finally:
            part.unlink(missing_ok=True)
    if response.job is not None and not response.completed:
        print(f"It goes on as a job; follow it with: dai jobs {response.job.id} --wait", file=sys.stderr)
    return code


def _copied(response: Response, file: BinaryIO) -> int:
    response.copy_to(file)
    try:
        response.check()
    except DaiError as error:
        print(f"dai: {error}", file=sys.stderr)
        return FAILED
    return OK
