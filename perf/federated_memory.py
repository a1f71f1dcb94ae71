"""A join whose build side is three times the memory it may use, beside DuckDB alone with the same limit; and many
queries at once with that limit.

Each case runs in a process of its own, whose resident set and spilled files are sampled. Ours: a federation over a data
service in front of each database. DuckDB alone reads the same rows, made in its process, through Arrow readers: what it
is spared is the way from the databases.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa

import dqp
from dqp.execution.buffer import TOTAL
from perf.federated_world import services
from perf.harness import Report, median, shown
from perf.world import World
from tests.faults.databases import maria_database, postgres_database
from tests.faults.federated_process import Ran
from tests.faults.federated_process import run as run_at_once

LIMIT = 200_000_000
TIMES = 3
WIDTH = 1_000
ROWS = TIMES * LIMIT // WIDTH
PIECE = 10_000
PAUSE = 0.02
MIB = float(1 << 20)
GOAL_MIB = 3 * LIMIT / MIB
"""DuckDB's limit, the buffers of two inputs, batches on their way and what allocators keep; far below the build side
and its probe together, which are six times the limit."""
SQL = "select count(*) as n, sum(length(a.s || b.s)) as s from {a} a join {b} b on a.id = b.id"
RIGHT = {"n": [ROWS], "s": [2 * ROWS * WIDTH]}
SIDES = ("dqp", "DuckDB alone")

QUERIES = 16
PART = 100_000
KEYS = 1_000
MANY = (
    "select b.id, b.s, a.id as k from {0}.wide b join {1}.wide a on b.id % {2} = a.id where b.id <= {3} and a.id < {2}"
)
MANY_GOAL_MIB = (LIMIT + TOTAL) / MIB + 32 * QUERIES
"""DuckDB's limit, what the buffers of a process share, and what is on its way for each query."""


def run(world: World, rounds: int) -> Report:
    report = Report("federated_memory", f"A join whose build side is {TIMES} x the memory limit")
    rounds = min(rounds, 3)
    urls = {"pg": world.postgres.create_database("wide"), "maria": world.mariadb.create_database("wide")}
    try:
        _fill(world)
        with services(urls) as resources:
            measured: dict[str, list[dict[str, float]]] = {each: [] for each in SIDES}
            for _ in range(rounds):
                for side in SIDES:
                    measured[side].append(_apart(side, resources))
            many = [_many(resources) for _ in range(rounds)]
    finally:
        for server in (world.postgres, world.mariadb):
            server.drop_database("wide")
    report.text(
        f"{ROWS:,} rows of {WIDTH:,} bytes on each side, memory_bytes = {LIMIT:,}; medians of {rounds} rounds, each in "
        f"a process of its own. Growth: the peak of the resident set over what it was before the query, sampled every "
        f"{PAUSE * 1e3:.0f} ms. `{SQL.format(a='pg.wide', b='maria.wide')}`"
    )
    report.table(
        ["side", "seconds", "growth, MiB", "spilled, MiB"],
        [
            [
                side,
                shown(_middle(measured[side], "seconds")),
                *(f"{_middle(measured[side], each):.0f}" for each in _SIZES),
            ]
            for side in SIDES
        ],
    )
    report.text(
        f"{QUERIES} queries at once, each of {PART:,} rows of {WIDTH:,} bytes, half of them from either side; each "
        f"reads its first rows, waits until all have theirs, and reads the rest. Medians of {rounds} rounds. "
        f"`{_many_sql('pg', 'maria')}`"
    )
    report.table(
        ["queries", "seconds", "growth, MiB", "answers, MiB"],
        [
            [
                str(QUERIES),
                shown(median([each.seconds for each in many])),
                f"{median([each.grown / MIB for each in many]):.0f}",
                f"{QUERIES * PART * WIDTH / MIB:.0f}",
            ]
        ],
    )
    report.goal("dqp: growth of the resident set, MiB", max(each["grown"] for each in measured["dqp"]), GOAL_MIB)
    report.goal("dqp: spilled, MiB", _middle(measured["dqp"], "spilled"), 1, at_least=True)
    report.goal(f"{QUERIES} at once: growth of the resident set, MiB", max(e.grown for e in many) / MIB, MANY_GOAL_MIB)
    together = min(each.waiting for each in many)
    report.goal(f"{QUERIES} at once: in mid-answer at one moment", together, QUERIES, at_least=True)
    return report


_SIZES = ("grown", "spilled")


def _many_sql(probe: str, build: str) -> str:
    return MANY.format(probe, build, KEYS, PART)


def _many(resources: Any) -> Ran:
    queries = [_many_sql("pg", "maria"), _many_sql("maria", "pg")] * (QUERIES // 2)
    with tempfile.TemporaryDirectory() as directory:
        ran = run_at_once(resources, queries, LIMIT, Path(directory))
    assert ran.error is None, ran.error
    assert [rows for rows, _ in ran.answers] == [PART - PART // KEYS] * QUERIES, ran.answers
    return ran


def _middle(measured: list[dict[str, float]], what: str) -> float:
    return median([each[what] for each in measured])


def _fill(world: World) -> None:
    for database, statements in (
        (
            postgres_database(world.postgres),
            (
                f"create table wide as select i as id, repeat('x', {WIDTH}) as s from generate_series(1, {ROWS}) i",
                "alter table wide add primary key (id)",
                "analyze wide",
            ),
        ),
        (
            maria_database(world.mariadb),
            (
                f"create table wide (id int primary key, s varchar({WIDTH}) character set ascii)",
                f"insert into wide select seq, repeat('x', {WIDTH}) from seq_1_to_{ROWS}",
                "analyze table wide persistent for all",
            ),
        ),
    ):
        database.run(*statements, name="wide")


def _apart(side: str, resources: Any) -> dict[str, float]:
    command = [sys.executable, "-m", "perf.federated_memory", side, json.dumps(dict(resources))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).parents[1])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _here(side: str, resources: dict[str, str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        tempfile.tempdir = directory
        ask, close = _federated(resources) if side == "dqp" else _alone(directory)
        with _sampled(Path(directory)) as figures:
            answer = ask()
        close()
        assert answer.to_pydict() == RIGHT, answer
    return figures


def _federated(resources: dict[str, str]) -> tuple[Callable[[], pa.Table], Callable[[], None]]:
    lab = dqp.connect({"sources": resources, "memory_bytes": LIMIT})
    lab.explain(SQL.format(a="pg.wide", b="maria.wide"))
    return lab.sql(SQL.format(a="pg.wide", b="maria.wide")).arrow, lab.close


def _alone(directory: str) -> tuple[Callable[[], pa.Table], Callable[[], None]]:
    connection = duckdb.connect(config={"memory_limit": f"{LIMIT}B", "temp_directory": f"{directory}/spilled"})
    schema = pa.schema([("id", pa.int32()), ("s", pa.string())])

    def pieces() -> Iterator[pa.RecordBatch]:
        for at in range(1, ROWS + 1, PIECE):
            ids = pa.array(range(at, at + PIECE), pa.int32())
            yield pa.record_batch([ids, pa.array(["x" * WIDTH] * PIECE)], schema)

    for name in ("a", "b"):
        connection.register(f"wide_{name}", pa.RecordBatchReader.from_batches(schema, pieces()))
    sql = SQL.format(a="wide_a", b="wide_b")
    return lambda: connection.sql(sql).to_arrow_reader().read_all(), connection.close


@contextmanager
def _sampled(directory: Path) -> Iterator[dict[str, float]]:
    process, over, figures = psutil.Process(), threading.Event(), {"grown": 0.0, "spilled": 0.0}
    start, began = process.memory_info().rss, time.perf_counter()

    def sample() -> None:
        while not over.wait(PAUSE):
            figures["grown"] = max(figures["grown"], (process.memory_info().rss - start) / MIB)
            figures["spilled"] = max(figures["spilled"], _written(process, directory) / MIB)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield figures
    finally:
        figures["seconds"] = time.perf_counter() - began
        over.set()
        sampler.join()


def _written(process: psutil.Process, directory: Path) -> int:
    """Bytes of temporary files, those included that have no name."""
    total = 0
    for each in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            if str(each.readlink()).startswith(str(directory)):
                total += each.stat().st_size
        except OSError:
            continue
    return total


if __name__ == "__main__":
    print(json.dumps(_here(sys.argv[1], json.loads(sys.argv[2]))))
