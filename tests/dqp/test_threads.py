"""Threads that ask sources: as many as there is work for, no longer than that."""

import subprocess
import sys
import threading
from concurrent.futures import CancelledError, wait

import pytest

from dqp.catalog.threads import Threads
from tests.processes import SECONDS, until


def running() -> int:
    return sum(each.name == "of this test" for each in threading.enumerate())


def test_no_more_threads_than_work_and_none_without() -> None:
    threads, held = Threads(3, "of this test"), threading.Event()
    waiting = [threads.submit(held.wait, SECONDS) for _ in range(9)]
    assert running() == 3
    held.set()
    assert not wait(waiting, SECONDS).not_done
    until(lambda: not running())
    assert threads.submit(divmod, 7, 2).result(SECONDS) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 7, 0).result(SECONDS)


def test_what_waits_when_they_are_closed_is_cancelled() -> None:
    threads, held = Threads(1, "of this test"), threading.Event()
    begun, waiting = threads.submit(held.wait, SECONDS), threads.submit(int)
    until(begun.running)
    threads.close()
    with pytest.raises(CancelledError):
        waiting.result()
    with pytest.raises(RuntimeError):
        threads.submit(int)
    held.set()
    assert begun.result(SECONDS)
    until(lambda: not running())


LEAVING = """
import threading, time
from dqp.catalog.threads import Threads
threads, begun = Threads(1, "of this test"), threading.Event()

def work():
    begun.set()
    time.sleep(0.2)
    print("ended", flush=True)

threading.Thread(target=threads.submit, args=(work,), daemon=True).start()
begun.wait()
"""


def test_a_program_that_ends_waits_for_them_a_moment() -> None:
    """Before, those that a query's thread had begun were stopped, and DuckDB complained of what they had."""
    ran = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, check=True)
    assert ran.stdout == "ended\n"
