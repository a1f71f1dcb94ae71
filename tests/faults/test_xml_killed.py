"""kill -9 while an update of a collection runs: the collection is as it was, or wholly changed once committed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from dai.streams.cancellation import Cancellation
from tests.collections import contents, musicians
from tests.processes import ROOT

DOCUMENTS = 300
COMMIT = DOCUMENTS + 1
"""The step before which the last document has been written; the one behind it is after the commit."""
SCRIPT = """
import os, signal, sys
from sqlalchemy import Connection
from dai.drivers import DriverOptions
from dai.drivers.collections.driver import Collections
from dai.drivers.collections.store import Transaction
from tests.activities.test_xml import blocks, update

def run(url, last):
    steps = -1
    def counted(step):
        def wrapped(*arguments, **options):
            nonlocal steps
            steps += 1
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*arguments, **options)
        return wrapped
    driver = Collections.connect(url, DriverOptions())
    driver.product()
    Transaction.collection = counted(Transaction.collection)
    Transaction.replace = counted(Transaction.replace)
    Connection.commit = counted(Connection.commit)
    blocks(update('<xu:rename select="/a/b">c</xu:rename>', "killed"), driver)
    counted(print)()

for line in sys.stdin:
    url, last = line.split()
    child = os.fork()
    if not child:
        run(url, int(last))
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def killed() -> Iterator[Any]:
    """Runs an update of the collection ``killed`` in a process that is killed at a step."""
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def kill(url: str, step: int) -> None:
            print(url, step, file=process.stdin, flush=True)
            assert os.WTERMSIG(int(process.stdout.readline())) == signal.SIGKILL

        yield kill
        process.stdin.close()


@pytest.mark.parametrize(
    ("database", "step"),
    [("sqlite", step) for step in (0, 1, 2, 50, 100, 150, 200, 250, DOCUMENTS, COMMIT, COMMIT + 1)]
    + [("postgres", step) for step in (0, 150, COMMIT, COMMIT + 1)],
)
def test_killed(database: str, step: int, killed: Any, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(f"{database}_url")
    driver = musicians(url)
    before = {f"d{number}": b"<a><b>%d</b></a>" % number for number in range(DOCUMENTS)}
    with driver.store.transaction(Cancellation(), write=True) as transaction:
        transaction.create_collection("", "killed")
        transaction.add(transaction.collection("killed"), list(before.items()))
    killed(url, step)
    after = {name: content.replace(b"b>", b"c>") for name, content in before.items()}
    assert contents(driver, "killed") == (after if step > COMMIT else before)
    driver.close()
