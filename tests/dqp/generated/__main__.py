"""``python -m tests.dqp.generated SEED``: a query and its answer; ``… fuzz``: new seeds against real databases."""

from __future__ import annotations

import argparse
import importlib
import math
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import duckdb

from dqp.settings import PUSHDOWN
from tests.clusters import ALONE, loopback_up, ray_cluster
from tests.dqp.generated import blocks, differential
from tests.dqp.generated.grammar import query
from tests.dqp.generated.oracle import Oracle
from tests.dqp.generated.report import report
from tests.servers.hostile import hostile
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer

PLAIN = 100
"""Queries between two blocks of questions with parameters."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dqp.generated", description=__doc__)
    parser.add_argument("seed", help="the seed of a query, or the word fuzz")
    parser.add_argument("--seconds", type=float, default=math.inf, help="how long (default: until Ctrl-C)")
    parser.add_argument("--first", type=int, default=None, help="the first seed (default: of the clock)")
    parser.add_argument("--runtime", choices=["local", "service", "ray"], default="local", help="where plans run")
    parser.add_argument("--eager", action="store_true", help="steps that are to pay are taken always")
    parser.add_argument("--pushdown", choices=PUSHDOWN, default="cost", help="what sources compute")
    parser.add_argument("--overtaking", action="store_true", help="statements are overtaken, sources answer at random")
    parser.add_argument("--sql", help="ask this instead of generated queries, once")
    parser.add_argument("--block", type=int, help="ask this block of questions with parameters alone, once")
    parser.add_argument("--blocks", action="store_true", help="ask blocks of questions with parameters alone")
    arguments = parser.parse_args()
    if arguments.seed == "fuzz" and arguments.runtime == "ray" and not alone():
        command = [*ALONE, "--map-root-user", sys.executable, "-m", "tests.dqp.generated", *sys.argv[1:]]
        return subprocess.run(command, check=False).returncode
    if arguments.eager:
        for (module, name), value in differential.EAGER.items():
            setattr(importlib.import_module(module), name, value)
    if arguments.seed == "fuzz":
        return fuzz(arguments)
    return show(int(arguments.seed))


def alone() -> bool:
    """Whether nobody else can reach the ports of this process: there is no network but loopback."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]


def show(seed: int) -> int:
    sql = query(seed)
    print(sql)
    with Oracle() as oracle:
        try:
            print(oracle.answer(sql))
        except duckdb.Error as error:
            print(error)
    return 0


def fuzz(wanted: argparse.Namespace) -> int:
    """Prints every failing seed with both answers and a smaller query. 1 if any failed."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls, evaluators = _placed(stack, directory, wanted.runtime)
        oracle, other = stack.enter_context(Oracle()), stack.enter_context(Oracle(backwards=True))
        federation = stack.enter_context(
            differential.Connected(urls, evaluators, pushdown=wanted.pushdown, overtaking=wanted.overtaking)
        )
        if wanted.sql is not None:
            actual = differential.difference(wanted.sql, oracle, federation)
            print("no difference" if actual is None else f"{actual.kind}\n{actual.detail}")
            return int(actual is not None)
        if wanted.block is not None:
            told = blocks.failures(wanted.block, (oracle, other), urls, evaluators)
            print("\n".join(told) or "no difference")
            return int(bool(told))
        seed = int(time.time()) * 1000 if wanted.first is None else wanted.first
        start, asked, failed = time.monotonic(), 0, 0
        try:
            while time.monotonic() - start < wanted.seconds:
                actual = None if wanted.blocks else differential.difference(query(seed), oracle, federation)
                asked += not wanted.blocks
                if actual is not None:
                    failed += 1
                    print(report(seed, query(seed), actual, (oracle, other), federation), flush=True)
                seed += 1
                if wanted.blocks or seed % PLAIN == 0:
                    told = blocks.failures(seed, (oracle, other), urls, evaluators)
                    asked += len(list(blocks.asks(seed)))
                    failed += len(told)
                    print("".join(f"{each}\n" for each in told), end="", flush=True)
        except KeyboardInterrupt:
            pass
        left = federation.running()
        failed += len(left)
        print("".join(f"still running: {each}\n" for each in left), end="")
        print(f"{asked} queries in {time.monotonic() - start:.0f} s, {failed} failed; the last seed was {seed - 1}")
        return int(failed > 0)


def _placed(stack: ExitStack, directory: Path, runtime: str) -> tuple[dict[str, str], list[str]]:
    """The URLs of sources with the tables, and the evaluators. The servers have hostile settings. On Ray all sources
    are files."""
    if runtime == "ray":
        loopback_up()
        return differential.filed(directory), [f"ray:{stack.enter_context(ray_cluster())}?evaluators=2"]
    urls = differential.files(directory)
    for source, kind in (("pg", PostgresServer), ("maria", MariaServer)):
        server = stack.enter_context(kind())
        urls[source] = server.create_database("generated")
        stack.enter_context(hostile(server, "generated"))
    differential.load(urls)
    return stack.enter_context(differential.served(directory, urls)) if runtime == "service" else (urls, [])


if __name__ == "__main__":
    sys.exit(main())
