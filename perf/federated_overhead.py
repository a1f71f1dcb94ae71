"""What a federation adds to a data service: one table, protein_goterm (16,803 rows), through both.

The service has the federation as one more resource beside the database's, and the federation reads that very resource;
in this process a federation reads the resource over HTTP. Published for the original middleware: 1.4 by tuple, 2.6 by
block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dai
import dqp
from dqp.interfaces.lab import Lab
from perf.goterm import ROWS, SQL, drained, received, whole
from perf.harness import Report, measured, median, ratio, shown
from perf.world import World, service

LIMIT = 1.3
FEDERATED = "select * from pg.protein_goterm"
ALONE, AGAIN = "the service alone", "the service alone, once more"
INSIDE, HERE = "federation in the service", "federation in this process"


def run(world: World, rounds: int) -> Report:
    report = Report("federated_overhead", f"protein_goterm: {ROWS:,} rows through a federation and without")
    rounds = max(rounds, 31)  # of some milliseconds each
    urls = {"pg": world.postgres.url}
    with (
        service(urls, {"lab": {"pg": {"resource": "pg"}}}) as (base, _),
        dqp.connect({"sources": {"pg": f"{base}/resources/pg"}}) as lab,
    ):
        alone, inside = dai.connect(f"{base}/pg"), dai.connect(f"{base}/lab")
        cases = _cases(alone, inside, lab)
        seconds = measured(cases, rounds, warm=3)
    report.text(
        f"PostgreSQL, warm, medians of {rounds} rounds; the ratio is the median of the rounds' ratios to the service "
        "alone in the same form. The service alone takes part twice: how far its second ratio is from 1 is how far the "
        "others can be told from each other. *Pulled*: a session is made, a document run in it, one request a block, "
        "and the session ended."
    )
    forms = list(dict.fromkeys(form for form, _ in (_named(case) for case in cases)))
    lines = []
    for form in forms:
        for way in (ALONE, AGAIN, INSIDE, HERE):
            case = f"{form}: {way}"
            if case in seconds:
                quotient = ratio(seconds, case, f"{form}: {ALONE}")
                lines.append([form, way, shown(median(seconds[case])), f"{quotient:.2f}"])
                if way in (INSIDE, HERE):
                    report.goal(f"{case} / {ALONE}", quotient, LIMIT)
    report.table(["result", "way", "time", "ratio"], lines)
    return report


def _named(case: str) -> tuple[str, str]:
    form, _, way = case.partition(": ")
    return form, way


def _cases(alone: Any, inside: Any, lab: Lab) -> dict[str, Callable[[], None]]:
    def here() -> None:
        # Kept tables belong to a query: each round asks a new one.
        assert lab.sql(FEDERATED).arrow().num_rows == ROWS

    return {
        f"Arrow, into a table: {ALONE}": lambda: whole(alone.query(SQL)),
        f"Arrow, into a table: {AGAIN}": lambda: whole(alone.query(SQL)),
        f"Arrow, into a table: {INSIDE}": lambda: whole(inside.query(FEDERATED)),
        f"Arrow, into a table: {HERE}": here,
        f"WebRowSet, to the last byte: {ALONE}": lambda: drained(alone.query(SQL, format="webrowset")),
        f"WebRowSet, to the last byte: {AGAIN}": lambda: drained(alone.query(SQL, format="webrowset")),
        f"WebRowSet, to the last byte: {INSIDE}": lambda: drained(inside.query(FEDERATED, format="webrowset")),
        f"WebRowSet, pulled in blocks of 100: {ALONE}": lambda: received(alone, SQL, 100),
        f"WebRowSet, pulled in blocks of 100: {AGAIN}": lambda: received(alone, SQL, 100),
        f"WebRowSet, pulled in blocks of 100: {INSIDE}": lambda: received(inside, FEDERATED, 100),
        f"WebRowSet, pulled in blocks of 1,000: {ALONE}": lambda: received(alone, SQL, 1000),
        f"WebRowSet, pulled in blocks of 1,000: {AGAIN}": lambda: received(alone, SQL, 1000),
        f"WebRowSet, pulled in blocks of 1,000: {INSIDE}": lambda: received(inside, FEDERATED, 1000),
    }
