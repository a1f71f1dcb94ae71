"""Logical tables: three services, two with copies of one table, each behind a gate that can be shut and closed."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from dai.errors import DaiError, DatabaseUnavailableError, StatementError
from dai.replicas.client import Locations, ReplicaClient, TableTarget, schema_digest
from dqp.algebra.operators import Remote
from dqp.algebra.trees import walk
from dqp.catalog.statistics.learned import Learned
from dqp.coordinator import Coordinator
from dqp.settings import load
from tests.dqp.replica_copies import COUNT, RIGHT, ROWS, Here, alias_of, ask, here, read_at, world

__all__ = ["here", "world"]

pytestmark = pytest.mark.server
Make = Callable[..., Coordinator]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of each request for copies."""
    requests: list[list[str]] = []
    find = ReplicaClient.find

    def counted(self: ReplicaClient, names: Any) -> Locations:
        requests.append(list(names))
        return find(self, names)

    monkeypatch.setattr(ReplicaClient, "find", counted)
    return requests


# --- which copy ---


def test_all_tables_of_a_query_are_asked_for_in_one_request(here: Here, asked: list[list[str]]) -> None:
    here.register("a")
    here.register("b", logical="sky.people")
    here.register("a", "few", logical="few")
    lab = here.federation()
    sql = 'select count(*) as n from replicas.people p, replicas.sky.people q, "REPLICAS"."few" f where p.id = q.id'
    assert ask(lab, sql) == [{"n": 0}]
    assert len(asked) == 1
    assert {"people", "sky.people", "few"} <= set(asked[0])
    assert ask(lab, f"{sql} and p.id > 5") == [{"n": 0}]
    assert ask(lab, "select 1 as x from c.visits limit 1") == [{"x": 1}]
    assert len(asked) == 1
    here.register("b", "few", logical="more")
    assert ask(lab, 'select count(*) as n from replicas."more", replicas.few') == [{"n": 0}]
    assert asked[1:] == [["more"]]


def test_what_was_used_is_asked_for_again_in_one_request(here: Here, asked: list[list[str]]) -> None:
    here.register("a")
    here.register("a", "few", logical="few")
    lab = here.federation(lifetime=1e-6)
    ask(lab, "select count(*) from replicas.people, replicas.few")
    asked.clear()
    lab.catalog.version  # noqa: B018
    assert [sorted(each) for each in asked] == [["few", "people"]]


@pytest.mark.parametrize(
    ("a", "b", "best"),
    [
        ({}, {}, "a"),
        ({"cost": 9.0}, {}, "b"),
        ({"cost": 1.1}, {}, "a"),
        ({"distance": 0.5, "rows": 10_000}, {"cost": 5.0, "rows": 10_000}, "b"),
        ({"distance": 0.5, "rows": 10_000_000}, {"cost": 5.0, "rows": 10_000_000}, "a"),
        ({"copied": -60.0}, {}, "b"),
        ({"copied": -60.0}, {"copied": -30.0}, "b"),
        ({"copied": -60.0, "cost": 0.01}, {}, "a"),
    ],
)
def test_the_best_copy_is_read(here: Here, a: dict[str, float], b: dict[str, float], best: str) -> None:
    ports = sorted(here.gates["ab"[at]].port for at in (0, 1))
    names = ("a", "b") if ports[0] == here.gates["a"].port else ("b", "a")
    targets = {}
    for name, attributes in zip(names, (a, b), strict=True):
        if "copied" in attributes:
            attributes = {**attributes, "copied": time.time() + attributes["copied"]}
        targets["ab"[names.index(name)]] = here.register(name, **attributes)
    lab, other = here.federation(), here.federation()
    assert read_at(lab).startswith(f"replicas.people: read at {targets.pop(best)} (replicas@")
    assert f"; else at {next(iter(targets.values()))} (replicas@" in read_at(lab)
    assert read_at(other).split(" (")[0] == read_at(lab).split(" (")[0]
    assert ask(lab, COUNT) == [RIGHT]


def test_measured_seconds_count_more_than_what_the_owner_says(here: Here) -> None:
    slow, fast = here.register("a", cost=0.1), here.register("b", cost=1.0)
    lab = here.federation()
    assert f"read at {slow}" in read_at(lab)
    before = lab.catalog.version
    lab.catalog.learned.learn_speed(alias_of(lab, slow), 1_000_000, 9.0)
    assert lab.catalog.version != before
    assert f"read at {fast}" in read_at(lab)


def test_a_measured_speed_is_forgotten() -> None:
    """So that a copy that was slow once is tried again."""
    now = [0.0]
    learned = Learned(300.0, lambda: now[0])
    learned.learn_speed("a", 500_000, 1.0)
    learned.learn_speed("a", 1_000_000, 4.0)
    assert learned.speed("a") == 3.0
    assert learned.speed("b") is None
    now[0] = 301.0
    assert learned.speed("a") is None
    learned.learn_speed("a", 1_000_000, 4.0)
    assert learned.speed("a") == 4.0


def test_a_query_teaches_how_fast_a_copy_is(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.register("a")
    monkeypatch.setattr("dqp.coordinator.running.LEAST_SECONDS", 0.0)
    monkeypatch.setattr("dqp.planning.learning.LEAST_SECONDS", 0.0)
    lab = here.federation()
    assert len(ask(lab, "select * from replicas.people")) == ROWS
    assert lab.catalog.learned.speed("replicas@1")


def _old(here: Here) -> None:
    here.register("a", copied=time.time() - 7200, cost=0.001)


def _ended(here: Here) -> None:
    here.register("a", expires=time.time() - 5, cost=0.001)


def _said_schema(here: Here) -> None:
    (people,) = [
        each for each in here.world.services["b"].service.resources["b"].driver.tables() if each.name == "people"
    ]
    here.register("b", schema=schema_digest(people))
    here.register("a", schema="another", cost=0.001)


def _real_schema(here: Here) -> None:
    here.catalog.register({("people", here.target("b")): {"schema": "one"}})
    here.catalog.register(
        {("people", here.target("a", "few")): {"schema": "one", "cost": 0.001, "copied": time.time()}}
    )


def _no_table(here: Here) -> None:
    here.register("a", "poeple", cost=0.001)


def _dead(here: Here) -> None:
    here.register("a", cost=0.001)
    here.gates["a"].__exit__()


def _no_resource(here: Here) -> None:
    target = TableTarget(here.target("a").address + "2", "people")
    here.catalog.register({("people", target): {"cost": 0.001}})


def _not_a_table(here: Here) -> None:
    here.catalog.ask("POST", "/mappings", {"mappings": [{"logical": "people", "target": "gsiftp://a/people"}]})


def _elsewhere(here: Here) -> None:
    target = TableTarget("https://203.0.113.1/resources/a", "people")
    here.catalog.register({("people", target): {"cost": 0.001}})


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (_old, "it was copied more than 3,600 seconds ago"),
        (_ended, "its entry has ended"),
        (_said_schema, "it has another schema"),
        (_real_schema, "it has another schema"),
        (_no_table, "its resource has no such table"),
        (_dead, "it does not answer"),
        (_no_resource, "it refuses: Not found"),
        (_not_a_table, "it is not a table of a resource"),
        (_elsewhere, "the federation may not read at this address"),
    ],
)
def test_a_copy_that_does_not_fit_is_not_read(here: Here, wrong: Callable[[Here], None], why: str) -> None:
    wrong(here)
    good = here.register("b")
    lab = here.federation()
    assert ask(lab, COUNT) == [RIGHT]
    said = read_at(lab)
    assert said.startswith(f"replicas.people: read at {good} (")
    assert said.endswith(why)
    assert why in lab.catalog.problems["replicas.people"]


def test_no_copy_fits(here: Here) -> None:
    here.register("a", expires=time.time() - 5)
    lab = here.federation()
    with pytest.raises(StatementError, match=r"There is no table replicas.people that can be read: 1: its entry has"):
        ask(lab, COUNT)
    here.register("b", logical="other")
    here.gates["b"].__exit__()
    with pytest.raises(DatabaseUnavailableError, match=r"None of its 1 copies can be read: 1: it does not answer"):
        ask(lab, "select * from replicas.other")


# --- names ---


def test_names_are_those_of_the_replica_service(here: Here) -> None:
    here.register("a", logical="sky.people")
    here.register("b", logical="odd name")
    lab = here.federation()
    for name in ('replicas."sky.people"', "replicas.sky.people", 'Replicas."odd name"'):
        assert ask(lab, f"select count(*) as n from {name}") == [{"n": ROWS}]
    for name in ("replicas.sky.People", "replicas.none", 'replicas."Odd name"'):
        with pytest.raises(StatementError, match="There is no table replicas") as raised:
            ask(lab, f"select count(*) as n from {name}")
        assert "its names are case-sensitive" in str(raised.value.hint)


def test_what_duckdb_runs_as_it_is_written(here: Here) -> None:
    here.register("a", logical="sky.people")
    lab = here.federation()
    sql = "select distinct on (name) name, id from replicas.sky.people where people.id > 5 order by name, id"
    assert ask(lab, sql) == [{"name": "Person", "id": 6}, {"name": "person", "id": 7}]
    sql = 'select x.n from replicas."sky.people" p, lateral (select p.id + v.n as n from c.visits v) x where p.id = 1'
    assert ask(lab, f"{sql} limit 1") == [{"n": 3}]


def test_names_that_differ_in_case(here: Here) -> None:
    here.register("a")
    here.register("a", "few", logical="People")
    lab = here.federation()
    assert ask(lab, "select count(*) as n from replicas.people") == [{"n": ROWS}]
    assert ask(lab, 'select count(*) as n from replicas."People"') == [{"n": 0}]
    both = "select count(*) as n from replicas.people p left join replicas.People q on p.id = q.id"
    assert ask(lab, both) == [{"n": ROWS}]


def test_a_wrong_column_is_an_error_with_the_nearest(here: Here) -> None:
    here.register("a")
    with pytest.raises(StatementError) as raised:
        ask(here.federation(), "select nmae from replicas.people")
    assert "name" in str(raised.value.hint)


def test_a_view_and_another_alias(here: Here, asked: list[list[str]]) -> None:
    here.register("a")
    services = here.world.services
    settings = load(
        {
            "replicas": {"url": services["replicas"].url, "alias": "sky"},
            "views": {"Busy": "select id from sky.people where id < 4"},
        }
    )
    with closing(Coordinator(settings)) as lab:
        assert ask(lab, "select count(*) as n from busy") == [{"n": 3}]
        assert asked == [["people"]]


def test_a_copy_at_a_source_is_joined_there(here: Here) -> None:
    url = here.world.services["a"].url
    here.catalog.register({("people", TableTarget(f"{url}/resources/a", "people")): {}})
    here.register("b", cost=9.0)
    settings = load({"sources": {"here": f"{url}/resources/a"}, "replicas": here.world.services["replicas"].url})
    with closing(Coordinator(settings)) as lab:
        sql = "select count(*) as n from replicas.people p join here.few f using (id)"
        assert ask(lab, sql) == [{"n": 0}]
        remotes = [each for each in walk(lab.plan(sql).tree) if isinstance(each, Remote)]
        assert [each.source for each in remotes] == ["here"]


def test_an_upload_cannot_hide_the_copies(here: Here) -> None:
    with pytest.raises(DaiError, match="There is already a source 'Replicas'"):
        here.federation().catalog.check_name("Replicas")
