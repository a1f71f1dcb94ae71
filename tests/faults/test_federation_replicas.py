"""A source with a replica dies: the query goes on while no row has been handed out, and is never short."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dai.streams.cancellation import Cancellation
from dqp.coordinator import Coordinator
from tests.faults.federation import (
    KEYS,
    ROWS,
    Once,
    Side,
    ask,
    federation,
    large,
    rest,
    right_or_clear,
    soon,
    streamed,
    watch,
)
from tests.processes import ServiceProcess, until


@pytest.fixture
def coordinator(sides: Mapping[str, Side], replica: ServiceProcess, temporary: Path) -> Iterator[Coordinator]:
    first = {"url": sides["pg"].url, "replicas": [f"{replica.url}/resources/copy"]}
    with federation({"pg": first, "maria": sides["maria"].url}) as made:
        yield made
    until(replica.at_rest)


def test_before_planning(sides: Mapping[str, Side], coordinator: Coordinator) -> None:
    sides["pg"].service.kill()
    query = streamed("pg", "maria")
    assert query.right(soon(lambda: ask(coordinator, query.sql)))


def test_between_planning_and_sending(sides: Mapping[str, Side], coordinator: Coordinator) -> None:
    query = streamed("pg", "maria")
    coordinator.plan(query.sql)
    sides["pg"].service.kill()
    assert query.right(soon(lambda: ask(coordinator, query.sql)))


def test_a_query_with_a_subquery_in_the_source_moves_as_a_whole(
    sides: Mapping[str, Side], coordinator: Coordinator
) -> None:
    """Keys that may be NULL: PostgreSQL computes the NOT IN."""
    sql = "select s.id from pg.small s where s.id not in (select b.k from pg.big b where b.k > 3)"
    assert "NOT IN" in str(coordinator.plan(sql))
    sides["pg"].service.kill()
    answer = soon(lambda: ask(coordinator, sql))
    assert sorted(answer.column("id").to_pylist()) == [1, 2, 3, KEYS]


@pytest.mark.parametrize("victim", ["service", "database"])
def test_in_the_middle_of_a_join(sides: Mapping[str, Side], coordinator: Coordinator, victim: str) -> None:
    query = large("pg", "maria")
    kill = sides["pg"].service.kill if victim == "service" else sides["pg"].database.server.kill
    killed = Once(kill, lambda rows: rows > ROWS // 4)
    watch(coordinator, "pg", passed=killed)
    assert query.right(soon(lambda: ask(coordinator, query.sql)))
    assert killed.done
    until(lambda: sides["maria"].idle)


def test_after_rows_were_handed_out(sides: Mapping[str, Side], coordinator: Coordinator) -> None:
    query = streamed("pg", "maria")
    stream = coordinator.query(query.sql, cancellation=Cancellation())
    first = next(stream)
    assert first.num_rows
    sides["pg"].service.kill()
    right_or_clear(lambda: rest(first, stream), query, "pg")
    assert query.right(soon(lambda: ask(coordinator, query.sql)))
