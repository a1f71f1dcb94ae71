"""``dai replicas``: which targets hold copies of the data with a logical name, with the verbs of the original's
command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dai.client import Options
from dai.client.credentials import from_environment
from dai.client.results.table import lines
from dai.commands import FAILED, OK
from dai.commands.output import UsageError, add_server, identity
from dai.errors import DaiError
from dai.replicas.client import ReplicaClient

if TYPE_CHECKING:
    from dai.replicas.copying import Copied

PORTION = 10_000
_CHANGES = {"create": "?mode=create", "add": "?mode=add", "put": "?mode=put", "delete": "/delete"}
_HELP = {
    "create": "map a new logical name to a target",
    "add": "add a target to an existing logical name",
    "put": "map a logical name to a target, whether the name exists or not",
    "delete": "delete a mapping",
}


def add(commands: Any) -> None:
    replicas = commands.add_parser("replicas", help="logical names and where their copies are")
    actions = replicas.add_subparsers(metavar="ACTION", required=True)
    for name, help in _HELP.items():
        change = actions.add_parser(name, help=f"{help}; or do so for each line of a file")
        change.add_argument("logical", nargs="?", help="the logical name")
        change.add_argument("target", nargs="?", help="where a copy is, as a URL")
        change.add_argument(
            "--from",
            dest="file",
            metavar="FILE",
            help="a file with lines of a logical name, a tab and a target; - reads the standard input",
        )
        change.set_defaults(run=run_change, change=name)
    query = actions.add_parser("query", help="print the targets of logical names (default: of all)")
    query.add_argument("names", nargs="*", metavar="NAME", help="a name, or a pattern with * and ?")
    query.add_argument("--target", action="store_true", help="the names are targets")
    query.add_argument("--index", action="store_true", help="ask the index which catalogs have the names")
    query.set_defaults(run=run_query)
    rename = actions.add_parser(
        "rename", help="rename a logical name or target; its mappings and attributes stay with it"
    )
    rename.add_argument("before", help="the old name")
    rename.add_argument("after", help="the new name")
    rename.add_argument("--target", action="store_true", help="the name is a target")
    rename.set_defaults(run=run_rename)
    attribute = actions.add_parser("attribute", help="show the attributes of a name, or set one")
    attribute.add_argument("key", help="the name")
    attribute.add_argument("name", nargs="?", help="name of an attribute (default: list all)")
    attribute.add_argument("value", nargs="?", help="its new value")
    attribute.add_argument("--type", choices=("date", "float", "int", "string"), default="string")
    attribute.add_argument("--target", action="store_true", help="the name is a target")
    attribute.add_argument("--remove", action="store_true", help="remove the attribute from the name")
    attribute.set_defaults(run=run_attribute)
    exists = actions.add_parser("exists", help="print which of the names exist")
    exists.add_argument("names", nargs="+", metavar="NAME", help="an exact name, not a pattern")
    exists.add_argument("--target", action="store_true", help="the names are targets")
    exists.set_defaults(run=run_exists)
    search = actions.add_parser("search", help="print the names with an attribute, or with a certain value of it")
    search.add_argument("name", metavar="ATTRIBUTE", help="its name")
    search.add_argument("operator", nargs="?", default="all", help="all, eq, ne, gt, ge, lt, le, between, like")
    search.add_argument("values", nargs="*", metavar="VALUE", help="between takes two; like a pattern with * and ?")
    search.add_argument("--target", action="store_true", help="the names are targets")
    search.set_defaults(run=run_search)
    undefine = actions.add_parser("undefine", help="remove an attribute that no name has")
    undefine.add_argument("name", metavar="ATTRIBUTE", help="its name")
    undefine.add_argument("--clear", action="store_true", help="also from the names that have it")
    undefine.add_argument("--target", action="store_true", help="the names are targets")
    undefine.set_defaults(run=run_undefine)
    indexes = actions.add_parser(
        "indexes", help="print the indexes that this catalog tells its names; add or remove one"
    )
    indexes.add_argument("--tell", metavar="URL", help="tell this index the names, from now on")
    indexes.add_argument("--filter", action="store_true", help="with --tell: send a Bloom filter instead of the names")
    indexes.add_argument(
        "--pattern", default="", help="with --tell: only names that fit (a regular expression, glob:…)"
    )
    indexes.add_argument("--forget", metavar="URL", help="stop telling this index")
    indexes.add_argument("--now", action="store_true", help="tell all indexes all names soon")
    indexes.set_defaults(run=run_indexes)
    copy = actions.add_parser("copy", help="make a verified copy of a logical table in another resource")
    copy.add_argument("logical", metavar="TABLE", help="its logical name")
    copy.add_argument("--to", required=True, metavar="URL", help="the resource that gets the copy")
    copy.add_argument("--name", help="name of the copy (default: that of the original)")
    copy.add_argument("--source", metavar="TARGET", help="the table to copy (default: the first original)")
    copy.set_defaults(run=run_copy)
    refresh = actions.add_parser("refresh", help="bring copies of a logical table up to date")
    refresh.add_argument("logical", metavar="TABLE", help="its logical name")
    refresh.add_argument("targets", nargs="*", metavar="TARGET", help="the copies (default: all)")
    refresh.add_argument("--source", metavar="TARGET", help="the table to copy (default: the first original)")
    refresh.set_defaults(run=run_refresh)
    for each in (copy, refresh):
        trust = (
            "a service in the catalog that gets your credentials, besides this machine and what you name; repeatable"
        )
        each.add_argument("--service", action="append", default=[], metavar="URL", help=trust)
    status = actions.add_parser("status", help="print the numbers of names, targets, mappings and catalogs")
    status.set_defaults(run=run_status)
    for each in actions.choices.values():
        add_server(each)


def _server(arguments: argparse.Namespace) -> ReplicaClient:
    return ReplicaClient(arguments.server, identity(arguments.server))


def run_change(arguments: argparse.Namespace) -> int:
    if (arguments.file is None) == (arguments.target is None):
        raise UsageError(f"`dai replicas {arguments.change}` takes a logical name and a target, or --from FILE.")
    server, done, refused = _server(arguments), 0, 0
    pairs: Iterator[tuple[str, str]] = iter([(arguments.logical, arguments.target)])
    if arguments.file is not None:
        pairs = _pairs(arguments.file)
    while portion := [*islice(pairs, PORTION)]:
        body = {"mappings": [{"logical": logical, "target": target} for logical, target in portion]}
        answer = server.ask("POST", f"/mappings{_CHANGES[arguments.change]}", body)
        done += answer["done"]
        refused += len(answer["refused"])
        for each in answer["refused"]:
            print(f"{each['logical']}\t{each['target']}: {each['reason']}", file=sys.stderr)
    print(f"{done:,} done" + (f", {refused:,} refused" if refused else ""))
    return FAILED if refused else OK


def _pairs(file: str) -> Iterator[tuple[str, str]]:
    with nullcontext(sys.stdin) if file == "-" else Path(file).open(encoding="utf-8") as read:
        for number, line in enumerate(read, 1):
            logical, tab, target = line.rstrip("\n").partition("\t")
            if not (logical and tab and target):
                raise UsageError(f"Line {number} is not a logical name, a tab and a target.")
            yield logical, target


def _is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def run_query(arguments: argparse.Namespace) -> int:
    server, of = _server(arguments), "target" if arguments.target else "logical"
    names: Sequence[str] = arguments.names or ["*"]
    heading, path, member = ("target", "/mappings", "mappings")
    asked = {False: of, True: f"{of}Pattern"}
    if arguments.index:
        heading, path, member = ("catalog", "/index", "names")
        asked = {False: "logical", True: "pattern"}
    rows = []
    for name in names:
        offset = 0
        while True:
            answer = server.ask(
                "GET", path, **{asked[_is_pattern(name)]: name, "offset": str(offset), "limit": str(PORTION)}
            )
            rows += [[each["logical"], each[heading]] for each in answer[member]]
            if (offset := answer.get("next")) is None:
                break
    for line in lines(["logical", heading], rows):
        print(line)
    return OK


def run_rename(arguments: argparse.Namespace) -> int:
    of = "target" if arguments.target else "logical"
    names = [{"from": arguments.before, "to": arguments.after}]
    return _printed(_server(arguments).ask("POST", "/names/rename", {"of": of, "names": names}))


def run_attribute(arguments: argparse.Namespace) -> int:
    server, of = _server(arguments), _of(arguments)
    if arguments.remove:
        removed = {"values": [{"of": of, "key": arguments.key, "name": arguments.name}]}
        if arguments.name is None or arguments.value is not None:
            raise UsageError("`dai replicas attribute --remove` takes a name and an attribute.")
        return _printed(server.ask("POST", "/values/delete", removed))
    if arguments.value is None:
        asked = {"of": of, "key": arguments.key} | ({"name": arguments.name} if arguments.name else {})
        rows = [
            [each["name"], each["type"], str(each["value"])] for each in server.ask("GET", "/values", **asked)["values"]
        ]
        for line in lines(["attribute", "type", "value"], rows):
            print(line)
        return OK
    server.ask("POST", "/attributes", {"attributes": [{"name": arguments.name, "of": of, "type": arguments.type}]})
    value = {
        "of": of, "key": arguments.key, "name": arguments.name, "type": arguments.type, "value": arguments.value,
    }  # fmt: skip
    return _printed(server.ask("POST", "/values", {"values": [value]}, mode="put"))


def _of(arguments: argparse.Namespace) -> str:
    return "target" if arguments.target else "logical"


def run_exists(arguments: argparse.Namespace) -> int:
    asked = {"of": _of(arguments), "names": arguments.names}
    missing = _server(arguments).ask("POST", "/mappings/query", asked)["missing"]
    for each in arguments.names:
        print(f"{each}: {'missing' if each in missing else 'there'}")
    return FAILED if missing else OK


def run_search(arguments: argparse.Namespace) -> int:
    server = _server(arguments)
    asked = {"of": _of(arguments), "name": arguments.name, "operator": arguments.operator, "limit": str(PORTION)}
    asked |= dict(zip(("value", "value2"), arguments.values, strict=False))
    rows: list[list[str]] = []
    offset: int | None = 0
    while offset is not None:
        answer = server.ask("GET", "/values/search", **asked, offset=str(offset))
        rows += [[each["key"], each["type"], str(each["value"])] for each in answer["values"]]
        offset = answer["next"]
    for line in lines(["name", "type", "value"], rows):
        print(line)
    return OK


def run_undefine(arguments: argparse.Namespace) -> int:
    asked = {"of": _of(arguments), "name": arguments.name, "clear": "true" if arguments.clear else "false"}
    return _printed(_server(arguments).ask("DELETE", "/attributes", **asked))


def _printed(answer: Any) -> int:
    for each in answer["refused"]:
        print(each["reason"], file=sys.stderr)
    return FAILED if answer["refused"] else OK


def run_indexes(arguments: argparse.Namespace) -> int:
    server = _server(arguments)
    if arguments.tell is not None:
        server.ask(
            "POST", "/indexes", {"url": arguments.tell, "filter": arguments.filter, "pattern": arguments.pattern}
        )
    if arguments.forget is not None:
        server.ask("DELETE", "/indexes", url=arguments.forget)
    if arguments.now:
        server.ask("POST", "/updates")
    rows = [
        [each["url"], "filter" if each["filter"] else "names", each["pattern"]]
        for each in server.ask("GET", "/indexes")["indexes"]
    ]
    for line in lines(["index", "is sent", "of"], rows):
        print(line)
    return OK


def run_copy(arguments: argparse.Namespace) -> int:
    from dai.replicas.copying import Copying

    services = [arguments.server, *arguments.service]
    copying = Copying(_server(arguments), Options(**from_environment()), services)
    copied = copying.copy(arguments.logical, arguments.to, source=arguments.source, name=arguments.name)
    print(f"{copied.target}: {copied.rows:,} rows, checksum {copied.checksum}")
    _say_missing(copied)
    return OK


def _say_missing(copied: Copied) -> None:
    for each in copied.missing:
        print(f"{copied.target}: not copied: {each}", file=sys.stderr)


def run_refresh(arguments: argparse.Namespace) -> int:
    """Of several copies each by itself."""
    from dai.replicas.copying import Copying

    server, failed = _server(arguments), False
    services = [arguments.server, *arguments.service, *arguments.targets]
    copying = Copying(server, Options(**from_environment()), services)
    locations = server.find([arguments.logical])
    listed = locations.targets.get(arguments.logical, ())
    copies = [each for each in listed if "copied" in locations.attributes.get(each, {}) and each != arguments.source]
    for target in arguments.targets or copies:
        try:
            copied = copying.refresh(arguments.logical, target, source=arguments.source)
            done = "copied again" if copied.renewed else "was the same already"
            print(f"{target}: {done}, {copied.rows:,} rows, checksum {copied.checksum}")
            _say_missing(copied)
        except DaiError as error:
            failed = True
            print(f"{target}: {error}", file=sys.stderr)
    if not arguments.targets and not copies:
        print(f"{arguments.logical!r} has no copy.", file=sys.stderr)
    return FAILED if failed or not (arguments.targets or copies) else OK


def run_status(arguments: argparse.Namespace) -> int:
    answer = _server(arguments).ask("GET", "")
    rows = [
        [f"{each} of the {part}", f"{count:,}"] for part in ("catalog", "index") for each, count in answer[part].items()
    ]
    for line in lines(["what", "count"], rows, right=[1]):
        print(line)
    return OK
