"""Other ways to join tables of several databases in one line, each asked the same queries over the same databases.

A peer that needs libraries of its own runs as a process in the environment that ``perf/peers/install`` makes, and
speaks a line of JSON a request (``serving``). What is timed, ``run``, ends when the whole answer is at hand there, in
Arrow; fetching it from there for comparison is not timed.
"""

from __future__ import annotations

import json
import select
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

HERE = Path(__file__).parent
FATAL = ("INTERNAL Error", "FATAL Error")
"""Of DuckDB: after these it answers nothing, so that the next query has a new process."""
PYTHON = HERE / ".venv" / "bin" / "python"


class PeerError(Exception):
    """A peer is not installed, died, or refused a query."""


class PeerTimeoutError(PeerError):
    """A peer took longer than was allowed."""


class Peer:
    """A peer in a process of its own: ``program`` (a module of this package) over databases by alias. A query that
    takes more than ``patience`` seconds (None: as long as it wants) is ended with its process; the next has a new
    one."""

    def __init__(self, program: str, urls: Mapping[str, str], settings: Mapping[str, Any] | None = None) -> None:
        if not PYTHON.exists():
            raise PeerError("the peers are not installed: run perf/peers/install")
        self.patience: float | None = None
        self._command = [str(PYTHON), "-m", f"perf.peers.{program}"]
        self._databases = {"urls": dict(urls), "settings": dict(settings or {})}
        self.product = self._start()

    def _start(self) -> str:
        self._process = subprocess.Popen(
            self._command, cwd=HERE.parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return str(self._ask(open=self._databases))

    def run(self, sql: str) -> None:
        """Executes a query to its end; PeerError with the peer's own message when it cannot."""
        if self._process.poll() is not None:
            self._start()
        self._ask(run=sql)

    def result(self) -> pa.Table:
        """What the last ``run`` gave."""
        with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
            self._ask(save=file.name)
            with pa.ipc.open_file(file.name) as reader:
                return reader.read_all()

    def plan(self, sql: str) -> str:
        """The peer's own account of how it runs the query, for people."""
        return str(self._ask(plan=sql))

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:  # it still computes an answer
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], self.patience if "run" in request else None)[0]:
            self._process.kill()
            self._process.wait()
            raise PeerTimeoutError(f"no answer after {self.patience:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"the peer ended with status {self._process.wait(10)}")
        answer = json.loads(line)
        if "error" in answer:
            if any(each in answer["error"] for each in FATAL):
                self._process.kill()
                self._process.wait()
            raise PeerError(answer["error"])
        return answer.get("answer")
