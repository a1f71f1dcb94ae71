"""TPC-H on each runtime: the answers of DuckDB with all the data in one place, or not?

In this process, on two evaluator services, on the same with every operator split that can be, whatever that costs, and
so on two actors of a Ray cluster. The sources are data services throughout. Ray listens on all interfaces, so that all
of it, databases included, runs in a network namespace of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dqp.coordinator import Coordinator
from dqp.planning.distribution.spreading import DEFAULT, Thresholds
from dqp.runtimes import RUNTIMES
from dqp.settings import load
from perf.federated_world import Urls, make_tpch, services
from perf.harness import Report, shown
from perf.world import SETTINGS, World
from tests.clusters import ALONE, loopback_up, ray_cluster
from tests.dqp.generated.differential import compared, order
from tests.processes import ServiceProcess
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer
from tests.tpch import PLACEMENTS, QUERIES, gather, qualified, tables

ROOT = Path(__file__).parents[1]
NAMES = ("facts_in_postgres", "facts_in_maria", "four_databases")
SMALL = 0.1
"""This scale is always run, and the world's."""
EVALUATORS = 2
ALWAYS = Thresholds(split_rows=0.0, broadcast_bytes=0.0, spread_seconds=0.0)
MEMORY = 2_000_000_000
"""Bytes of each evaluator."""
Answer = tuple[float, str]
"""Seconds, and how the answer differs ("" where it is right)."""


def run(world: World, rounds: int) -> Report:
    del rounds  # what is right once is right
    report = Report("tpch_runtimes", "TPC-H on each runtime: are the answers right?")
    report.text(
        "Each of the 22 queries once, through data services over HTTP; the answer compared, types, rows and order, "
        "with that of DuckDB on all the data in one place. `local`: in this process. `service`: two evaluators, "
        "split where the cost model says so. `service, split` and `ray, split`: two evaluators with every join and "
        "aggregate split that can be, whatever it costs, so that rows do travel between them. Seconds are those of one "
        "run, not warmed up: they say that it works, not how fast."
    )
    for scale in sorted({SMALL, world.scale}):
        for name, runtimes in _alone(scale).items():
            report.text(f"## Scale {scale:g}, {name}\n\n" + _where(name))
            report.table(
                ["query", *runtimes],
                [[query, *(_said(answers[query]) for answers in runtimes.values())] for query in QUERIES],
            )
            for runtime, answers in runtimes.items():
                right = sum(not wrong for _, wrong in answers.values())
                report.goal(
                    f"scale {scale:g}, {name}, {runtime}: right answers", right, float(len(QUERIES)), at_least=True
                )
    return report


def _where(name: str) -> str:
    placement = PLACEMENTS[name]
    lines = (
        f"`{alias}`: " + ", ".join(table for table, at in placement.items() if at == alias)
        for alias in sorted(set(placement.values()))
    )
    return "; ".join(lines) + "."


def _said(answer: Answer) -> str:
    seconds, wrong = answer
    return f"**{wrong.splitlines()[0]}**" if wrong else shown(seconds)


def _alone(scale: float) -> dict[str, dict[str, dict[str, Answer]]]:
    """Placement, runtime, query: what ``main`` measured in a namespace of its own."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "answers.json"
        root = os.geteuid() == 0
        command = [*ALONE, *([] if root else ["--map-root-user"]), sys.executable, "-m", "perf.tpch_runtimes"]
        subprocess.run([*command, str(scale), str(path), str(os.geteuid())], cwd=ROOT, check=True)
        answers: dict[str, dict[str, dict[str, Answer]]] = json.loads(path.read_text())
        return answers


def main(scale: float, path: Path, user: int) -> None:
    """In the namespace. ``user``: whose we are; the servers do not start for somebody who seems to be root."""
    with suppress(PermissionError):  # up already, and no right to it any more
        loopback_up()
    if os.geteuid() != user:
        again = ["unshare", f"--map-user={user}", sys.executable, "-m", "perf.tpch_runtimes"]
        os.execvp(again[0], [*again, str(scale), str(path), str(user)])
    content = tables(scale)
    answers: dict[str, dict[str, dict[str, Answer]]] = {}
    with PostgresServer(SETTINGS["postgresql"]) as postgres, MariaServer(SETTINGS["mariadb"]) as mariadb:
        for name in NAMES:
            with tempfile.TemporaryDirectory() as directory:
                urls = make_tpch(postgres, mariadb, name, content, Path(directory))
                answers[name] = _placed(name, urls, _whole(name, content), Path(directory))
            for server in (postgres, mariadb):
                server.drop_database(f"tpch_{name}")
            path.write_text(json.dumps(answers))


def _whole(name: str, content: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The right answers."""
    with duckdb.connect() as connection:
        gather(connection, content, PLACEMENTS[name])
        return {query: connection.sql(sql).to_arrow_table() for query, sql in QUERIES.items()}


def _placed(name: str, urls: Urls, right: Mapping[str, pa.Table], directory: Path) -> dict[str, dict[str, Answer]]:
    answers: dict[str, dict[str, Answer]] = {}
    with services(urls) as sources:
        for runtime, connect in _RUNTIMES.items():
            with connect(sources, directory) as lab:
                answers[runtime] = {}
                for query, sql in QUERIES.items():
                    answers[runtime][query] = answer = _asked(lab, qualified(sql, PLACEMENTS[name]), sql, right[query])
                    print(name, runtime, query, shown(answer[0]), answer[1] or "right", flush=True)
    return answers


def _asked(lab: Coordinator, sql: str, plain: str, right: pa.Table) -> Answer:
    began = time.perf_counter()
    try:
        answer = lab.query(sql, cancellation=Cancellation()).table()
    except DaiError as error:  # what it is stands in the table
        return time.perf_counter() - began, f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - began
    wrong = compared(right, answer, order(plain, right.schema.names))
    return seconds, "" if wrong is None else f"{wrong.kind} differ\n{wrong.detail}"


@contextmanager
def _local(sources: Urls, directory: Path) -> Iterator[Coordinator]:
    with _coordinator(sources, []) as lab:
        yield lab


@contextmanager
def _service(sources: Urls, directory: Path, thresholds: Thresholds = DEFAULT) -> Iterator[Coordinator]:
    with ExitStack() as stack:
        started = []
        for _ in range(EVALUATORS):
            own = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=directory)))
            role = f'directory = "{own / "spill"}"\nmemory_bytes = {MEMORY}'
            service = ServiceProcess(own, {}, roles={"evaluator": role})
            stack.callback(service.stop)
            started.append(service.start().url)
        yield stack.enter_context(_coordinator(sources, started, thresholds))


@contextmanager
def _service_split(sources: Urls, directory: Path) -> Iterator[Coordinator]:
    with _service(sources, directory, ALWAYS) as lab:
        yield lab


@contextmanager
def _ray_split(sources: Urls, directory: Path) -> Iterator[Coordinator]:
    with ray_cluster() as address, _coordinator(sources, [f"ray:{address}?evaluators={EVALUATORS}"], ALWAYS) as lab:
        yield lab


_RUNTIMES: Mapping[str, Callable[[Urls, Path], Any]] = {
    "local": _local,
    "service": _service,
    "service, split": _service_split,
    "ray, split": _ray_split,
}


@contextmanager
def _coordinator(sources: Urls, evaluators: list[str], thresholds: Thresholds = DEFAULT) -> Iterator[Coordinator]:
    settings = load({"sources": dict(sources), "evaluators": evaluators or ["local"], "memory_bytes": MEMORY})
    lab = Coordinator(settings)
    if thresholds is not DEFAULT:
        lab.runtime.close()
        kind = RUNTIMES[evaluators[0].partition(":")[0]]
        lab.use(lab.catalog, kind(lab.catalog, settings, operations=lab.operations, thresholds=thresholds))
    try:
        yield lab
    finally:
        lab.close()


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
