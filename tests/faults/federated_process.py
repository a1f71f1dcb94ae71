"""A federation in a process of its own, so that its memory is that of its queries: ``python -m`` with what to ask.

Every query has a thread that reads its first rows, waits until all queries have handed out theirs, and reads the rest:
a query that gets nothing before another one ends never gets there.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dqp.coordinator import Coordinator
from dqp.settings import load

ROOT = Path(__file__).parents[2]
PAUSE = 0.01
SECONDS = 300.0
PATIENCE = 120.0
"""Seconds after which the others' first rows do not come any more."""


@dataclass(frozen=True)
class Ran:
    """``answers``: of each query its number of rows and, where it is one row, that row. ``grown``: the peak of the
    resident set over what it was before the queries, bytes. ``spilled``: the most that DuckDB had in files at a
    time, bytes; ``spooled``: the buffers. ``waiting``: queries that had handed out their first rows, and not all, at
    one moment. ``left``: files that are there in the end. ``error``: of a query that failed, type and text."""

    answers: list[tuple[int, dict[str, Any]]]
    grown: int
    spilled: int
    spooled: int
    waiting: int
    left: list[str]
    seconds: float
    error: tuple[str, str] | None = None


def run(
    sources: Mapping[str, str],
    queries: Sequence[str],
    memory_bytes: int,
    directory: Path,
    *,
    largest_file: int = 0,
) -> Ran:
    """Asks all queries at once, in a new process whose temporary files are made in ``directory``, none larger than
    ``largest_file`` bytes (0: any size)."""

    def prepare() -> None:
        if largest_file:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    given = {"sources": dict(sources), "queries": list(queries), "memory_bytes": memory_bytes}
    command = [sys.executable, "-m", "tests.faults.federated_process", json.dumps(given)]
    environment = {**os.environ, "TMPDIR": str(directory)}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=SECONDS,
        preexec_fn=prepare,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    actual = json.loads(done.stdout.splitlines()[-1])
    return Ran(**{**actual, "answers": [tuple(each) for each in actual["answers"]]})


def _here(sources: Mapping[str, str], queries: Sequence[str], memory_bytes: int) -> Ran:
    directory = Path(tempfile.gettempdir())
    urls = {alias: {"url": url} for alias, url in sources.items()}
    coordinator = Coordinator(load({"sources": urls, "memory_bytes": memory_bytes}))
    all_begun = threading.Barrier(len(queries))
    answers: list[tuple[int, dict[str, Any]]] = []
    failure, waiting, spilled, spooled = None, 0, 0, 0
    try:
        for each in set(queries):
            coordinator.plan(each)
        before, began = _status("VmRSS"), time.perf_counter()
        with ThreadPoolExecutor(len(queries)) as pool:
            asked = [pool.submit(_answer, coordinator, each, all_begun) for each in queries]
            while not all(each.done() for each in asked):
                files = _written(directory)
                engines = sum(size for name, size in files if name.startswith("duckdb_temp"))
                spilled = max(spilled, engines)
                spooled = max(spooled, sum(size for _, size in files) - engines)
                time.sleep(PAUSE)
        try:
            actual = [each.result() for each in asked]
            answers, waiting = [each for each, _ in actual], sum(held for _, held in actual)
        except DaiError as error:
            failure = (type(error).__name__, str(error))
        seconds, peak = time.perf_counter() - began, _status("VmHWM")
    finally:
        coordinator.close()
    left = [str(each.relative_to(directory)) for each in directory.rglob("*") if each.is_file()]
    return Ran(answers, max(peak - before, 0), spilled, spooled, waiting, left, seconds, failure)


def _answer(
    coordinator: Coordinator, sql: str, all_begun: threading.Barrier
) -> tuple[tuple[int, dict[str, Any]], bool]:
    """Rows and the first one; whether it stood in mid-answer with all the others."""
    try:
        with coordinator.query(sql, cancellation=Cancellation()) as stream:
            first = next(stream)
            all_begun.wait(PATIENCE)
            more = next(stream, None)
            rows = first.num_rows + (more.num_rows if more is not None else 0)
            rows += sum(each.num_rows for each in stream)
        return (rows, first.to_pylist()[0] if rows == 1 else {}), more is not None
    except BaseException:
        all_begun.abort()
        raise


def _status(name: str) -> int:
    """A figure of this process's memory, bytes (proc_pid_status(5))."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(each.split()[1]) for each in lines if each.startswith(f"{name}:")) * 1024


def _written(directory: Path) -> list[tuple[str, int]]:
    """Names and bytes of open files in the directory, those included that have no name any more."""
    actual = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            if str(path := each.readlink()).startswith(f"{directory}/"):
                actual.append((path.name, each.stat().st_size))
        except OSError:
            continue
    return actual


if __name__ == "__main__":
    # The sums of integers are Decimals.
    print(json.dumps(asdict(_here(**json.loads(sys.argv[1]))), default=int))
