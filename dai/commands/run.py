"""``dai serve`` and ``dai check-config``."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dai.commands import FAILED, OK
from dai.commands.output import UsageError, whole
from dai.config.database_files import address
from dai.config.service import MOST_WORKERS
from dai.errors import DaiError
from dai.plugins import extra_hint

if TYPE_CHECKING:
    from dai.api.server.self_signed import SelfSigned
    from dai.config import Config

DEFAULT_FILE = "dai.toml"
ONE_LINER = """A database in the place of a configuration is served as the resource `data`, on loopback, e.g.
dai serve book.db (a file of SQLite or DuckDB), dai serve postgresql://user@localhost/lab,
dai serve data/*.parquet (CSV, JSON, Parquet and Arrow files: a table each), dai serve folder"""


def add(commands: Any) -> None:
    serve = commands.add_parser("serve", help="run the data service", epilog=ONE_LINER)
    serve.add_argument(
        "source", nargs="*", metavar="DATABASE", help="a URL, a file or files: serve it as the resource `data`"
    )
    serve.add_argument("--config", metavar="FILE", help=f"the configuration (default: {DEFAULT_FILE})")
    serve.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    port, workers = whole(0, 65535, "a port"), whole(1, MOST_WORKERS, "a number of processes")
    serve.add_argument("--port", type=port, help="port to listen on, 0 for a free one (default: 8080)")
    serve.add_argument(
        "--workers",
        type=workers,
        metavar="N",
        help="processes that serve (default: as many as cores, if each can serve all resources)",
    )
    serve.add_argument(
        "--self-signed",
        action="store_true",
        help="use TLS with a certificate that the service makes for itself; only for trying it",
    )
    serve.add_argument(
        "--write",
        action="store_true",
        help="callers may change data, where a resource has no policy that says otherwise (default: they only read)",
    )
    serve.set_defaults(run=run_serve)

    check = commands.add_parser("check-config", help="read the configuration, connect to everything, and report")
    check.add_argument("file", nargs="?", default=DEFAULT_FILE, help="(default: %(default)s)")
    check.set_defaults(run=run_check)


def configuration(source: str | Sequence[str] | None, file: str | None) -> Config:
    """Of a TOML file, or of one database, or files. Raises UsageError for both, ConfigurationError for what is wrong in
    it."""
    from dai import config
    from dai.config import data_files, database_files

    named = [source] if isinstance(source, str) else list(source or ())
    single = named[0] if len(named) == 1 else None
    databases = [
        "URL" if "://" in each else each
        for each in named
        if ("://" in each and not data_files.is_files(each)) or database_files.kind_of(each) is not None
    ]
    if databases and single is None:
        raise UsageError(
            "Only one database can be served; several files with tables can be.",
            hint=f"dai serve {databases[0]}. Or write a dai.toml with a [resources.NAME] for each.",
        )
    url = None
    if single is not None and databases == ["URL"]:
        url = single
    elif single is not None and database_files.kind_of(single) is not None:
        url = database_files.url_of(single)
    elif named and (len(named) > 1 or data_files.is_files(named[0])):
        url = data_files.url(named, "dai serve", Path(), "data")
    elif single is not None and file is None:
        # `dai serve dai.toml` means the file.
        file, named = single, []
    if named and file is not None:
        raise UsageError(
            "A database and --config cannot be used together.", hint="Put the database's URL into the file."
        )
    if url is not None:
        return config.parse({"resources": {"data": {"url": url}}})
    path = Path(file or DEFAULT_FILE)
    if file is None and not path.exists():
        raise UsageError(
            f"There is no {DEFAULT_FILE} here.", hint="Name one with --config FILE, or serve a database:\n" + ONE_LINER
        )
    return config.load(path)


def run_serve(arguments: argparse.Namespace) -> int:
    loaded = configuration(arguments.source, arguments.config)
    overrides = {
        name: getattr(arguments, name) for name in ("host", "port", "workers") if getattr(arguments, name) is not None
    }
    from dai.api.server.start import serve
    from dai.config import PolicyConfig
    from dai.security.policies import ANYBODY

    chosen = replace(loaded, service=replace(loaded.service, **overrides))
    if arguments.write:
        if chosen.policy is not None:
            raise UsageError("--write cannot be used with [policy].", hint="Say in [policy] who may write.")
        chosen = replace(chosen, policy=PolicyConfig(write=ANYBODY))
    signed = _self_signed(chosen) if arguments.self_signed else None
    if signed is not None:
        chosen = replace(chosen, service=replace(chosen.service, tls=signed.tls))
    # The server raises a signal again once it has shut down: a wanted stop is no failure.
    signal.signal(signal.SIGTERM, _stopped)
    try:
        return serve(chosen, lambda url: print(greeting(chosen, url, signed), flush=True))
    except KeyboardInterrupt:
        return OK


def _stopped(number: int, frame: FrameType | None) -> None:
    raise SystemExit(OK)


def _self_signed(config: Config) -> SelfSigned:
    if config.service.tls is not None:
        raise UsageError(
            "--self-signed cannot be used with [service.tls].",
            hint="Leave --self-signed out.",
        )
    try:
        from dai.api.server.self_signed import self_signed
    except ImportError as error:
        raise UsageError("--self-signed needs the package cryptography.", hint=extra_hint("identity")) from error
    return self_signed(config.service, Path.cwd())


def greeting(config: Config, url: str, signed: SelfSigned | None = None) -> str:
    """The greeting: where everything is, and a first command to try."""
    from dai.config import PolicyConfig
    from dai.config.data_files import SCHEME

    if not config.service.loopback:
        url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    names = [*config.resources, *config.federations]
    width = max(map(len, names), default=0)
    lines = [f"Data service at {url}", *(f"  {name:<{width}}  {url}/resources/{name}" for name in names)]
    if signed is not None:
        file = signed.tls.certificate
        lines += [
            "To try it only: TLS with a certificate that the service made for itself.",
            f"  SHA-256 fingerprint  {signed.fingerprint}",
            f'  Clients trust it by its file: dai.connect("{url}", ca="{file}"); for the commands:',
            f"  export DAI_CA={file}",
        ]
    if names:
        lines += ["Try:", f"  dai resources {names[0]} --server {url}", f'  dai query {url}/{names[0]} "select 1"']
        changeable = [each for each in config.resources.values() if not (each.url or "").startswith(f"{SCHEME}:")]
        granted = {who for each in changeable for who in (each.policy or config.policy or PolicyConfig()).write}
        if changeable and not (granted if config.identity.methods else granted & {"anonymous"}):
            lines.append("Callers only read. With --write, or by a policy, they may change data.")
    else:
        lines.append("It serves nothing yet: add [resources.NAME] with a url to the configuration.")
    if config.service.loopback:
        lines.append(f"The HTTP API is described at {url}/docs. This machine only. Ctrl-C stops it.")
    else:
        whoever = "known callers" if config.identity.methods and not config.identity.anonymous else "everybody"
        encrypted = "with TLS" if config.service.tls is not None else "without encryption of its own"
        lines.append(f"It listens beyond this machine, {encrypted}, and answers {whoever}.")
    return "\n".join(lines)


def run_check(arguments: argparse.Namespace) -> int:
    from dai.api.server.refusals import refusals
    from dai.commands.database_problems import database_problems
    from dai.config import origins
    from dai.service.resources import Resources

    failed = 0
    with origins() as secrets:
        loaded = configuration(None, arguments.file)
        resources = Resources(loaded)
    with closing(resources):
        print(f"{arguments.file} is well-formed: {len(resources)} resource(s).")
        for place, origin in secrets.items():
            print(f"  secret {place}: from {origin}")
        for refusal in refusals(loaded):
            failed += 1
            print("  dai serve refuses this: " + str(refusal).replace("\n", "\n    "))
        for name, resource in resources.items():
            for seen in (resource, *resource.by_each_user()):
                who = f"{name} as {seen.database_user}" if seen is not resource else name
                config = loaded.resources.get(name)
                urls = (config.url, *config.replicas) if config is not None else ()
                for number, driver in enumerate((seen.driver, *seen.driver.replicas)):
                    try:
                        seconds = driver.check()
                        print(f"  {who}: {driver.product()}, answers in {seconds * 1000:.1f} ms")
                        if config is not None and config.url is not None:
                            for said in database_problems(driver, config.columns):
                                failed += 1
                                print(f"  {who}: {said}")
                    except DaiError as error:
                        failed += 1
                        url = urls[number] if number < len(urls) else None
                        if url is not None:
                            error.hint = f"Check its url in {arguments.file}: {address(url)}."
                        print(f"  {who}: " + str(error).replace("\n", "\n    "))
            read, write = resource.policy.read, resource.policy.write
            if resource.kind == "federation" or resource.driver.fixed:
                write = ()
            read_by, written_by = (", ".join(who) or "nobody" for who in (read, write))
            print(f"  {name}: may be read by {read_by}; written by {written_by}")
            if resource.users is not None and not resource.users.map.users:
                failed += 1
                print(f"  {name}: its role map has no entry for it, so nobody may ask it.")
    return FAILED if failed else OK
