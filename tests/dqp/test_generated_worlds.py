"""Generated questions with parameters over views and uploaded tables: asked with values one after the other, and again
when other tables have been uploaded, they have the answers of one DuckDB database."""

import random
from collections.abc import Iterator
from itertools import islice, pairwise

import pytest

from tests.dqp.generated.blocks import asks, failures
from tests.dqp.generated.differential import Connected, difference
from tests.dqp.generated.forms import filled
from tests.dqp.generated.oracle import Oracle
from tests.dqp.generated.parameters import FORMS_OF_VALUES, Bound, values
from tests.dqp.generated.report import determined
from tests.dqp.generated.worlds import STATES, World, uploaded, world
from tests.thoroughness import part

FIRST, BLOCKS = 2_000_000, 6
"""The blocks that are asked."""
Oracles = tuple[Oracle, Oracle]


@pytest.fixture(scope="module")
def oracles() -> Iterator[Oracles]:
    with Oracle() as forwards, Oracle(backwards=True) as backwards:
        yield forwards, backwards


@pytest.fixture
def first(oracles: Oracles) -> World:
    """A world that the oracles are in."""
    scene = world(FIRST)
    for oracle in oracles:
        oracle.state(uploaded(0), scene.queries)
    return scene


@pytest.mark.parametrize("number", part(range(FIRST, FIRST + BLOCKS)))
def test_the_answers_of_one_database(number: int, oracles: Oracles, generated: Connected) -> None:
    problems = failures(number, oracles, generated.urls)
    assert not problems, "\n".join(problems)


def test_every_view_holds_whatever_is_uploaded(oracles: Oracles) -> None:
    for number in range(3):
        scene = world(number)
        for state in range(len(STATES)):
            oracles[0].state(uploaded(state), scene.queries)
            for name in scene.queries:
                assert oracles[0].answer(f'FROM "{name}" LIMIT 1').column_names


def test_every_form_of_values_runs(oracles: Oracles, first: World) -> None:
    for number, each in enumerate(FORMS_OF_VALUES):
        sql = filled(each, random.Random(number), first.wide)
        given = values(sql, random.Random(number))
        right, other = (Bound(oracle, given) for oracle in oracles)
        assert right.answer(sql).column_names
        assert determined(sql, (right, other))


def test_answers_are_determined(oracles: Oracles, first: World) -> None:
    for ask in islice(asks(FIRST), 15):
        right, other = (Bound(oracle, ask.values) for oracle in oracles)
        assert determined(ask.sql, (right, other)), ask


def test_values_that_were_kept_are_seen(oracles: Oracles, first: World) -> None:
    asked = [ask for ask in islice(asks(FIRST), 30) if ask.values]
    pairs = [(one, other) for one, other in pairwise(asked) if one.sql == other.sql]
    actual = [
        difference(one.sql, Bound(oracles[0], other.values), Bound(oracles[0], one.values)) for one, other in pairs
    ]
    assert len([each for each in actual if each is not None]) > len(pairs) / 3


def test_a_table_that_was_kept_is_seen(oracles: Oracles, first: World) -> None:
    oracles[1].state(uploaded(1), first.queries)
    for name in (*STATES[0], "lent"):
        assert difference(f"FROM {name}", *oracles) is not None
