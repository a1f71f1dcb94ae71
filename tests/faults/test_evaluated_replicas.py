"""A source with a replica dies while evaluators read it: the answer is right, or rows have been handed out."""

import pytest

from dai.streams.cancellation import Cancellation
from tests.faults.evaluated import BIG, Asked, Victim, World, at_rest
from tests.faults.federation import SOON, large, rest, right_or_clear, streamed
from tests.processes import ServiceProcess, until


def sources(evaluated: World, replica: ServiceProcess) -> dict[str, object]:
    urls = evaluated.urls()
    return {"pg": {"url": urls["pg"], "replicas": [f"{replica.url}/resources/copy"]}, "maria": urls["maria"]}


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize(
    ("kind", "how", "after"),
    [("service", "killed", 0), ("database", "killed", BIG // 2), ("database", "stopped", BIG // 2)],
)
def test_before_a_row_was_handed_out(
    evaluated: World, replica: ServiceProcess, kind: str, how: str, after: int
) -> None:
    evaluated.begin()
    victim = Victim(evaluated, kind, "pg", how)
    gate = evaluated.gates["pg"]
    try:
        with evaluated.federation(sources(evaluated, replica)) as coordinator:
            asked = Asked(evaluated, coordinator, large("pg", "maria"))
            reached = gate.shut("/query ", "big", after=after)
            asked.begin()
            assert reached.wait(SOON)
            victim()
            gate.open()
            assert asked.query.right(asked.answer.result(2 * SOON))
        until(lambda: not victim.left(), SOON)
    finally:
        gate.open()
        victim.back()
    until(lambda: all(map(at_rest, evaluated.evaluators)) and replica.at_rest(), SOON)


@pytest.mark.usefixtures("temporary")
def test_after_rows_were_handed_out(evaluated: World, replica: ServiceProcess) -> None:
    evaluated.begin()
    victim, query = Victim(evaluated, "service", "pg", "killed"), streamed("pg", "maria")
    try:
        with evaluated.federation(sources(evaluated, replica)) as coordinator:
            stream = coordinator.query(query.sql, cancellation=Cancellation())
            first = next(stream)
            assert first.num_rows
            victim()
            right_or_clear(lambda: rest(first, stream), query, "pg")
            again = coordinator.query(query.sql, cancellation=Cancellation())
            assert query.right(again.table())
    finally:
        victim.back()
    until(lambda: all(map(at_rest, evaluated.evaluators)) and replica.at_rest(), SOON)
