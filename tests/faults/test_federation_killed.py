"""A data service or a database dies, or is told to stop, while a federated query runs in this process."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import pytest

from dai.errors import DatabaseUnavailableError
from dai.streams.cancellation import Cancellation
from dqp.coordinator import Coordinator
from tests.faults.federation import (
    ROWS,
    SOON,
    Once,
    Query,
    Side,
    ask,
    federation,
    large,
    leftovers,
    reduced,
    rest,
    right_or_clear,
    soon,
    streamed,
    unending,
    watch,
)
from tests.processes import until

pytestmark = pytest.mark.usefixtures("temporary")


class Victim:
    """A service or a database that is ended once and started again."""

    def __init__(self, sides: Mapping[str, Side], name: str, how: str) -> None:
        self.alias, _, kind = name.partition(" ")
        self.other = "maria" if self.alias == "pg" else "pg"
        self._side, self._how, self._kind = sides[self.alias], how, kind
        self.gone = False

    def __call__(self) -> None:
        ended = self._side.database.server if self._kind == "database" else self._side.service
        self.gone = True
        if self._how == "killed":
            ended.kill()
        else:
            ended.stop()

    def back(self) -> None:
        self._side.begin()


def run(
    sides: Mapping[str, Side],
    victim: Victim,
    query: Query,
    work: Callable[[Coordinator], None] = lambda _: None,
    *,
    answered: bool | None = None,
    **settings: object,
) -> None:
    """The query, prepared by ``work``, which must have ended the victim when it is over. ``answered``: whether it can
    be answered without the victim; None: either way. Then nothing is left, and both sides answer when all is back."""
    with federation({alias: each.url for alias, each in sides.items()}, **settings) as coordinator:
        work(coordinator)
        try:
            error = right_or_clear(lambda: ask(coordinator, query.sql), query, victim.alias)
            assert victim.gone, "the point was never reached"
            assert answered is None or answered is (error is None), error
            assert not leftovers()
            until(lambda: sides[victim.other].idle, SOON)
        finally:
            victim.back()
        answered_again(coordinator)
        until(lambda: all(each.idle for each in sides.values()), SOON)


def answered_again(coordinator: Coordinator) -> None:
    """A source that did not answer is left alone for a while, as long as it took to find that out."""
    query = reduced("pg", "maria")

    def answered() -> bool:
        with suppress(DatabaseUnavailableError):
            return query.right(soon(lambda: ask(coordinator, query.sql)))
        return False

    until(answered, SOON)


@pytest.fixture
def victim(sides: Mapping[str, Side], request: pytest.FixtureRequest) -> Victim:
    return Victim(sides, *request.param.rsplit(" ", 1))


def ended(*victims: str) -> pytest.MarkDecorator:
    """Each such as "pg service killed". Every point has a service and a database that are killed, now this side's, now
    that side's: what the two do differently is seen where they are told to stop, too."""
    return pytest.mark.parametrize("victim", victims, indirect=True)


@ended("pg service killed", "maria database killed")
def test_before_planning(sides: Mapping[str, Side], victim: Victim) -> None:
    run(sides, victim, streamed(victim.alias, victim.other), lambda _: victim(), answered=False)


@ended("maria service stopped", "pg database killed", "maria database stopped")
def test_between_planning_and_sending(sides: Mapping[str, Side], victim: Victim) -> None:
    query = streamed(victim.alias, victim.other)

    def work(coordinator: Coordinator) -> None:
        coordinator.plan(query.sql)
        victim()

    run(sides, victim, query, work, answered=False)


@ended("maria service killed", "pg database killed")
def test_while_the_build_side_is_fetched(sides: Mapping[str, Side], victim: Victim) -> None:
    def work(coordinator: Coordinator) -> None:
        watch(coordinator, victim.alias, passed=Once(victim, lambda rows: rows > 0))

    query = large(victim.other, victim.alias)
    query = replace(query, sql=query.sql.replace(f"{victim.alias}.big", f"{victim.alias}.big_unending"))
    run(sides, victim, query, work, answered=False)


@ended("pg service killed", "maria database killed")
def test_after_a_dynamic_semi_join_was_made(sides: Mapping[str, Side], victim: Victim) -> None:
    def work(coordinator: Coordinator) -> None:
        watch(coordinator, victim.alias, asked=Once(victim, lambda sql: "1990" in sql or " IN (" in sql))

    run(sides, victim, reduced(victim.alias, victim.other), work, answered=False)


@ended("maria service killed", "pg database killed")
def test_at_the_first_batch(sides: Mapping[str, Side], victim: Victim) -> None:
    def work(coordinator: Coordinator) -> None:
        watch(coordinator, victim.alias, passed=Once(victim, lambda rows: rows > 0))

    run(sides, victim, unending(victim.alias, victim.other), work, answered=False)


@ended("pg service killed", "maria service killed", "pg database killed", "maria database killed")
def test_never_a_short_answer(sides: Mapping[str, Side], victim: Victim) -> None:
    """The last rows are not there yet, wherever those before them are."""

    def work(coordinator: Coordinator) -> None:
        watch(coordinator, victim.alias, passed=Once(victim, lambda rows: rows > ROWS // 2))

    run(sides, victim, unending(victim.alias, victim.other), work, answered=False)


@ended("pg service killed", "maria database killed")
def test_in_the_middle_of_the_probe_side(sides: Mapping[str, Side], victim: Victim) -> None:
    def work(coordinator: Coordinator) -> None:
        watch(coordinator, victim.alias, passed=Once(victim, lambda rows: rows > ROWS // 4))

    run(sides, victim, streamed(victim.alias, victim.other), work)


@ended("maria service killed", "pg database killed")
def test_the_build_side_while_the_probe_side_is_read(sides: Mapping[str, Side], victim: Victim) -> None:
    def work(coordinator: Coordinator) -> None:
        watch(coordinator, victim.other, passed=Once(victim, lambda rows: rows > ROWS // 4))

    run(sides, victim, streamed(victim.other, victim.alias), work, answered=True)


@ended("pg service killed", "maria database killed")
def test_while_duckdb_joins(sides: Mapping[str, Side], victim: Victim) -> None:
    def work(coordinator: Coordinator) -> None:
        watch(coordinator, victim.alias, passed=Once(victim, lambda rows: rows > ROWS // 2))

    run(sides, victim, large(victim.alias, victim.other), work)


@ended("maria service killed", "pg database stopped", "maria database killed")
def test_when_the_first_rows_were_handed_out(sides: Mapping[str, Side], victim: Victim) -> None:
    query = streamed(victim.alias, victim.other)
    with federation({alias: each.url for alias, each in sides.items()}) as coordinator:
        try:
            stream = coordinator.query(query.sql, cancellation=Cancellation())
            first = next(stream)
            assert first.num_rows
            victim()
            right_or_clear(lambda: rest(first, stream), query, victim.alias)
            assert not leftovers()
            until(lambda: sides[victim.other].idle, SOON)
        finally:
            victim.back()
        answered_again(coordinator)


@ended("pg service killed", "pg database killed")
def test_near_the_end(sides: Mapping[str, Side], victim: Victim) -> None:
    def work(coordinator: Coordinator) -> None:
        watch(coordinator, victim.alias, passed=Once(victim, lambda rows: rows > ROWS - ROWS // 20))

    run(sides, victim, streamed(victim.alias, victim.other), work)


@ended("maria service killed", "maria database killed")
def test_after_the_end(sides: Mapping[str, Side], victim: Victim) -> None:
    def work(coordinator: Coordinator) -> None:
        watch(coordinator, victim.alias, passed=Once(victim, lambda rows: rows == ROWS))

    run(sides, victim, streamed(victim.alias, victim.other), work)
