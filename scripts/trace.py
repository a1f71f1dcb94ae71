#!/usr/bin/env python3
"""The modules that a federated query goes through, thread by thread, from a trace of its calls (``sys.setprofile``).

Of each function the first call in a thread counts, unless below it less than a share of the thread's calls are made. A
*stay* is a run of such calls in one module; a *return* is a stay in a module that the thread has left. Threads that go
the same way are shown once.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--share", type=float, default=0.03)
parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
parser.add_argument("federation", type=Path)
parser.add_argument("sql")
asked = parser.parse_args()
sys.path.insert(0, str(asked.root))

from dai.streams.cancellation import Cancellation  # noqa: E402 - of the check-out that was asked for
from dqp.coordinator import Coordinator  # noqa: E402
from dqp.settings import load  # noqa: E402

calls: defaultdict[int, list[tuple[CodeType, str]]] = defaultdict(list)  # function and module, by thread
below: dict[tuple[int, int], int] = {}
begun: dict[FrameType, int] = {}


def traced(frame: FrameType, event: str, _: object) -> None:
    path, thread = frame.f_code.co_filename, threading.get_ident()
    if event == "call" and path.startswith((f"{asked.root}/dqp/", f"{asked.root}/dai/")):
        begun[frame] = len(calls[thread])
        calls[thread].append((frame.f_code, path[len(str(asked.root)) + 1 : -3].replace("/", ".")))
    elif event == "return" and (at := begun.pop(frame, None)) is not None:
        below[thread, at] = len(calls[thread]) - at


coordinator = Coordinator(load(asked.federation))
coordinator.query(asked.sql, cancellation=Cancellation()).table()  # connects, and reads the catalog
threading.setprofile(traced)
sys.setprofile(traced)
coordinator.query(asked.sql + " ", cancellation=Cancellation()).table()  # is planned anew
sys.setprofile(None)
coordinator.close()
ways: dict[tuple[str, ...], None] = {}  # ordered
for thread, called in calls.items():
    first = {function: at for at, (function, _) in reversed([*enumerate(called)])}
    large = sorted(at for at in first.values() if below.get((thread, at), 0) >= asked.share * len(called))
    ways[tuple(module for module, _ in groupby(called[at][1] for at in large))] = None
print(*(" > ".join(each) for each in ways), sep="\n\n")
stays, back = sum(map(len, ways)), sum(len(each) - len(set(each)) for each in ways)
print(f"\n{stays} stays in {len(set().union(*ways))} modules, {back} returns")
