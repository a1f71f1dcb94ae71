"""Inputs that other processes send."""

import threading

from dai.streams.stream import Stream
from dqp.execution.arriving import Arriving
from tests.dqp.doubles import batch, cancelled_when_woken, execution


def test_cancelling_while_the_first_producer_begins_ends_both() -> None:
    begins = threading.Event()

    def late(arriving: Arriving) -> None:
        assert begins.wait(30)
        arriving.take(Stream(batch(1, 0).schema, []))

    with execution() as running:
        arriving = Arriving([late], None, running, running.measure("input"))
        assert cancelled_when_woken(arriving, arriving.stream, running.cancellation, begins.set)
