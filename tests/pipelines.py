"""Scripted databases and pipelines over them, for tests of running documents."""

import threading

from dai.drivers.memory import Memory, Script
from dai.errors import DaiError, DataError, StatementError
from dai.perform.pipeline import Running
from tests.documents import query, table, to_csv

FAILS = DataError("half-way")


def memory(rows: int = 4, **scripts: Script) -> Memory:
    fixed = {
        "all": Script(table(rows), batch_rows=1),
        "fails": Script(table(2), batch_rows=1, fails=FAILS),
        "refused": Script(refused=StatementError("no such table")),
        "blocks": Script(table(1), blocks=True),
        "change": Script(count=2),
        "broken": Script(table(1), fails=KeyError("secret /path")),
    }
    return Memory({**fixed, **scripts})


def reports(work: Running) -> dict[str, tuple[str, str]]:
    return {each.activity: (each.status, str(each.error or "")) for each in work.reports()}


def begun(work: Running) -> tuple[threading.Thread, list[DaiError]]:
    """A thread that runs it to its end, and what it raised by then."""
    raised: list[DaiError] = []

    def run() -> None:
        with work:
            try:
                work.open().finish()
            except DaiError as error:
                raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def chain(sql: str, of: str = "") -> str:
    """Query, CSV, blocks of two: an independent pipeline ``of`` that name."""
    return (
        query(f"query{of}", sql, f"tuples{of}")
        + to_csv(f"csv{of}", f"tuples{of}", f"text{of}")
        + f'<blockAggregator name="blocks{of}"><input from="text{of}"/><blocksize size="2"/><output name="end{of}"/>'
        "</blockAggregator>"
    )
