"""``dai resources``, ``dai jobs`` and ``dai find``."""

from __future__ import annotations

import argparse
from typing import Any

from dai.client import Job, Service, parted
from dai.client.registry import RegistryClient
from dai.client.results.table import lines
from dai.commands import FAILED, OK
from dai.commands.output import UsageError, add_options, add_server, chosen, identity, whole, write


def add(commands: Any) -> None:
    resources = commands.add_parser("resources", help="the data resources of a service, or the tables of one")
    resources.add_argument("name", nargs="?", help="show this one's tables; or the address of a service or resource")
    add_server(resources)
    resources.set_defaults(run=run_resources)

    jobs = commands.add_parser("jobs", help="the jobs of a service; or one: follow, fetch, abort, destroy")
    jobs.add_argument("id", nargs="?", help="the id of one job (default: list all)")
    action = jobs.add_mutually_exclusive_group()
    action.add_argument(
        "--wait", action="store_true", help="wait until the job has ended; after Ctrl-C the job goes on"
    )
    action.add_argument("--result", nargs="?", const="", metavar="NAME", help="fetch its result (in --format)")
    action.add_argument("--abort", action="store_true", help="stop the work, in the database too")
    action.add_argument("--delete", action="store_true", help="stop the work and destroy the results")
    add_server(jobs)
    add_options(jobs)
    jobs.set_defaults(run=run_jobs)

    find = commands.add_parser("find", help="find the entries of a registry that fit a text best, with the reasons")
    find.add_argument("text", nargs="?", help="words to look for")
    for name, what in (("unit", "mJy"), ("ucd", "phot.flux"), ("quantity", "a kind of quantity")):
        find.add_argument(f"--{name}", help=f"of a column: {what}")
    find.add_argument("--kind", help="only this kind of entry: service, table … (default: all)")
    find.add_argument("--limit", type=whole(1, 10_000), default=20, metavar="N", help="the most results (default: 20)")
    add_server(find)
    find.set_defaults(run=run_find)


def run_find(arguments: argparse.Namespace) -> int:
    meanings = {name: each for name in ("unit", "ucd", "quantity") if (each := getattr(arguments, name))}
    if arguments.text is None and not meanings:
        raise UsageError(
            "There is nothing to look for.", hint='dai find "galaxies with redshift", or dai find --unit mJy'
        )
    client = RegistryClient(arguments.server, identity(arguments.server))
    hits = client.find(arguments.text, arguments.kind, arguments.limit, **meanings)
    client.close()
    for each in hits:
        print(f"{each.kind} {each.name}  {each.key}")
        for reason in each.reasons:
            print(f"    {reason}")
    return OK if hits else FAILED


def run_resources(arguments: argparse.Namespace) -> int:
    address, name = arguments.server, arguments.name
    if name is not None and "://" in name:
        address, name = parted(name)
    service = Service(address, identity(address))
    if name is not None:
        print(service.resource(name).schema())
        return OK
    rows = [
        [str(each["name"]), str(each.get("product") or each.get("kind") or ""), str(each.get("description") or "")]
        for each in service.resources()
    ]
    for line in lines(["name", "product", "description"], rows):
        print(line)
    return OK


def run_jobs(arguments: argparse.Namespace) -> int:
    service = Service(arguments.server, identity(arguments.server))
    if arguments.id is None:
        if arguments.wait or arguments.abort or arguments.delete or arguments.result is not None:
            raise UsageError("Give the id of the job.", hint="`dai jobs` lists them.")
        for line in lines(_HEADINGS, [_row(job) for job in service.jobs()], right=[2]):
            print(line)
        return OK
    job = service.jobs()[arguments.id]
    if arguments.abort:
        job.abort()
    elif arguments.delete:
        job.delete()
        return OK
    elif arguments.wait:
        job.wait()
    elif arguments.result is not None:
        form = chosen(arguments.format, arguments.output)
        wanted = "arrow" if form == "table" else form
        write(
            job.result(arguments.result or None, format=wanted, blocksize=arguments.blocksize), form, arguments.output
        )
        return OK
    return _print(job)


_HEADINGS = ["job", "phase", "done", "label", "who", "resource", "created", "what"]


def _row(job: Job) -> list[str]:
    """Its line of the table; the last column is its statement or, if it failed, the error."""
    done = "" if job.share is None else f"{job.share:.0%}"
    problem = job.properties.get("error") or {}
    what = str(problem.get("detail") or problem.get("title") or "") if job.phase == "ERROR" else job.sql or ""
    said = [str(job.properties.get(name) or "") for name in ("label", "owner", "resource", "created")]
    return [job.id, job.phase, done, *said, " ".join(what.split())]


def _print(job: Job) -> int:
    print(f"job      {job.id}\nphase    {job.phase}")
    for name, value in job.properties.items():
        if isinstance(value, str | int | float) and name not in ("id", "phase") and value != "":
            print(f"{name:<8} {value}")
    if job.outputs:
        print(f"outputs  {', '.join(job.outputs)}")
    activities = job.progress
    if activities:
        names = ("activity", "status", "rows", "blocks", "bytes", "seconds")
        rows = [[_cell(each.get(name)) for name in names] for each in activities]
        for line in lines(names, rows, right=range(2, len(names))):
            print(line)
    if job.phase == "ERROR" and (error := job.error) is not None:
        print(f"error    {error}")
        return FAILED
    return OK


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value or "")
