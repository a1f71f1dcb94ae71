"""Inputs that other processes send."""

import threading

from dai.streams.stream import Stream
from dqp.execution.arriving import Arriving
from tests.dqp.doubles import batch, ends_when_cancelled, execution
from tests.processes import SECONDS


def test_a_reader_waiting_for_the_first_producer_can_be_cancelled() -> None:
    begins = threading.Event()

    def late(arriving: Arriving) -> None:
        assert begins.wait(SECONDS)
        arriving.take(Stream(batch(1, 0).schema, []))

    with execution() as running:
        arriving = Arriving([late], None, running, running.measure("input"))
        assert ends_when_cancelled(arriving.stream, running.cancellation)
        begins.set()
