"""``dai tokens``: the tokens of a service whose identity methods include ``token``."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from dai.client.results.table import lines
from dai.commands import OK
from dai.commands.output import UsageError, whole
from dai.commands.run import DEFAULT_FILE, configuration

if TYPE_CHECKING:
    from dai.config import Config
    from dai.service.state.store import Store

DAY = 86400.0
MOST_DAYS = 3650


def add(commands: Any) -> None:
    tokens = commands.add_parser("tokens", help="make, list and revoke the tokens of a service's callers")
    actions = tokens.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser("create", help="make a token; it is printed once")
    create.add_argument("name", help="name of the caller")
    days = whole(1, MOST_DAYS, "a number of days")
    create.add_argument("--days", type=days, default=90, metavar="N", help="days until it expires (default: 90)")
    create.add_argument(
        "--resource",
        action="append",
        default=[],
        metavar="NAME",
        help="limit the token to this resource; may be repeated",
    )
    create.add_argument(
        "--group", action="append", default=[], metavar="NAME", help="a group of the caller; may be repeated"
    )
    create.add_argument("--administrator", action="store_true", help="the caller also sees jobs and sessions of others")
    create.set_defaults(run=run_create)
    listed = actions.add_parser("list", help="list all tokens, without their secrets")
    listed.set_defaults(run=run_list)
    revoke = actions.add_parser("revoke", help="make a token invalid, within identity.kept_seconds")
    revoke.add_argument("id", help="the token's id, from `dai tokens list`")
    revoke.set_defaults(run=run_revoke)
    for each in (create, listed, revoke):
        each.add_argument(
            "--config", metavar="FILE", help=f"the configuration of the service (default: {DEFAULT_FILE})"
        )


@contextmanager
def _store(file: str | None) -> Iterator[tuple[Store, Config]]:
    from dai.service.state.store import Store

    config = configuration(None, file)
    with closing(Store(config.service.state, config.service.name)) as store:
        yield store, config


def run_create(arguments: argparse.Namespace) -> int:
    from dai.security.identity.tokens import new

    for each in (arguments.name, *arguments.group):
        if not each or len(each) > 200 or not each.isprintable():
            raise UsageError(f"{each!r} is not a name.", hint="A name has 1 to 200 printable characters.")
    with _store(arguments.config) as (store, config):
        known = [*config.resources, *config.federations, *config.roles]
        for each in arguments.resource:
            if each not in known:
                raise UsageError(f"The service has no resource {each!r}.", hint=f"It has {', '.join(known)}.")
        resources, groups = tuple(arguments.resource), tuple(arguments.group)
        token, kept = new(arguments.name, arguments.days * DAY, resources, arguments.administrator, groups)
        store.add_token(kept)
        print(token)
    return OK


def run_list(arguments: argparse.Namespace) -> int:
    with _store(arguments.config) as (store, _):
        rows = [
            [
                each.id,
                each.name,
                _moment(each.created),
                _moment(each.expires),
                ", ".join(each.resources) or "all",
                ", ".join(each.groups),
                "administrator" if each.administrator else "",
            ]
            for each in store.tokens()
        ]
    for line in lines(["token", "name", "made", "expires", "resources", "groups", ""], rows):
        print(line)
    return OK


def run_revoke(arguments: argparse.Namespace) -> int:
    with _store(arguments.config) as (store, _):
        if not store.remove_token(arguments.id):
            raise UsageError(f"There is no token {arguments.id!r}.", hint="`dai tokens list` lists them.")
    return OK


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M")
