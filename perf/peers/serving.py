"""The peer's end of the line: a request of JSON a line on standard input, an answer on standard output.

Runs in the peers' environment, where nothing of the project is installed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Opened:
    """``product``: name and version; ``run`` and ``plan`` take SQL."""

    product: str
    run: Callable[[str], pa.Table]
    plan: Callable[[str], str]


def serve(open: Callable[[Mapping[str, str], Mapping[str, Any]], Opened]) -> None:
    """Answers until standard input ends: ``open`` first, then ``run``, ``plan`` and ``save`` (of the last answer, to a
    file). What a library prints goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        opened: Opened | None = None
        table = pa.table({})
        for line in sys.stdin:
            ((verb, what),) = json.loads(line).items()
            answer: Any = None
            try:
                if opened is None:
                    opened = open(what["urls"], what["settings"])
                    answer = opened.product
                elif verb == "run":
                    table = pa.table({})  # the last answer is freed first
                    table = opened.run(what)
                elif verb == "plan":
                    answer = opened.plan(what)
                else:
                    with pa.ipc.new_file(what, table.schema) as writer:
                        writer.write_table(table)
                reply = {"answer": answer}
            except Exception as error:  # noqa: BLE001 - told to whoever asked
                reply = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), file=answers, flush=True)
