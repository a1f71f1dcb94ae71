"""An evaluator, a data service or a database is killed or stopped while a query runs on evaluators.

The points, victims and checks are those of ``evaluated``, which goes through all combinations when it is run by itself.
"""

import pytest

from tests.faults.evaluated import POINTS, World, run
from tests.faults.federation import unending

RIGHT, CLEAR, EITHER = "right", "clear", "either"
CASES = [
    ("planning", "database pg", "stopped", CLEAR),
    ("describing", "evaluator 1", "stopped", RIGHT),
    ("planned", "database maria", "killed", CLEAR),
    ("build fetched", "evaluator 2", "stopped", RIGHT),
    ("statement started", "evaluator 2", "killed", RIGHT),
    ("first batch", "evaluator 1", "killed", RIGHT),
    ("mid-scan", "database pg", "killed", EITHER),
    ("exchange filled", "evaluator 1", "killed", RIGHT),
    ("outbox spilling", "database maria", "killed", EITHER),
    ("last batch", "evaluator 2", "stopped", EITHER),
    ("handing out", "service pg", "killed", EITHER),
    ("closing", "evaluator 1", "stopped", RIGHT),
]
"""Every point, and with the cases below every kind of victim killed and stopped. Whether the rows that were on their
way are all that the answer needs is not known beforehand: it depends on how much buffers hold, and how fast they
fill."""


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize(("point", "who", "how", "expected"), CASES)
def test_killed_or_stopped(evaluated: World, point: str, who: str, how: str, expected: str) -> None:
    actual = run(evaluated, point, who, how)
    assert expected == EITHER or (actual == "right") is (expected == RIGHT), actual


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize(
    ("point", "who", "how"),
    [
        ("mid-scan", "database pg", "killed"),
        ("mid-scan", "service pg", "killed"),
        ("last batch", "database pg", "killed"),
        ("last batch", "service pg", "stopped"),
        ("handing out", "database pg", "killed"),
    ],
)
def test_never_a_short_answer(evaluated: World, point: str, who: str, how: str) -> None:
    """The last rows are not there yet, wherever those before them are."""
    assert run(evaluated, point, who, how, unending) != "right"


def test_every_point_is_there() -> None:
    assert {each for each, *_ in CASES} == set(POINTS)
