"""Logical tables: three services, two with copies of one table, each behind a gate that can be shut and closed."""

import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dai.api.server.serve import Background, background
from dai.client.testing import Scripted, ScriptedServer
from dai.errors import DaiError, DatabaseUnavailableError, NotFoundError, StatementError, UnreachableError
from dai.replicas.client import Locations, ReplicaClient, TableTarget, schema_digest
from dai.streams.cancellation import Cancellation
from dqp.algebra.operators import Remote
from dqp.algebra.trees import walk
from dqp.catalog.replicas.copies import CopySources
from dqp.catalog.sources.configured import Credentials
from dqp.catalog.statistics.learned import Learned
from dqp.coordinator import Coordinator
from dqp.settings import load, parse
from tests.api.conftest import configured
from tests.dqp.in_process import in_process
from tests.faults.gates import Gate, _end
from tests.processes import until

pytestmark = pytest.mark.server
ROWS = 20_000
SLOW = 1e6
"""A cost that no measured one comes near."""
COUNT = "select count(*) as n, sum(id) as s from replicas.people"
RIGHT = {"n": ROWS, "s": ROWS * (ROWS + 1) // 2}
JOINED = "select count(*) as n, sum(v.n) as s from replicas.people p join c.visits v on v.person = p.id"
EACH = "select p.id, p.name, v.n from replicas.people p join c.visits v on v.person % 7 = p.id % 7 where v.person < 8"
Make = Callable[..., Coordinator]


@dataclass(frozen=True)
class World:
    """``files``: the databases by name; ``services``: the service of each, and ``replicas``."""

    files: Mapping[str, Path]
    services: Mapping[str, Background]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("copies")
    with ExitStack() as stack:
        files, services = {}, {}
        for name in ("a", "b", "c"):
            files[name] = directory / f"{name}.db"
            with closing(sqlite3.connect(files[name])) as connection:
                if name == "c":
                    connection.execute("create table visits (person integer, n integer)")
                    connection.executemany("insert into visits values (?, 2)", ((each,) for each in range(1, 101)))
                else:
                    collation = "" if name == "a" else "collate nocase"
                    connection.execute(f"create table people (id integer primary key, name text {collation})")
                    rows = ((each, f"{'Pp'[each % 2]}erson") for each in range(1, ROWS + 1))
                    connection.executemany("insert into people values (?, ?)", rows)
                    connection.execute("create table few (id integer primary key)")
                connection.commit()
            place = directory / name
            place.mkdir()
            config = configured(place, {name: {"url": f"sqlite:///{files[name]}"}})
            services[name] = stack.enter_context(background(config))
        place = directory / "replicas"
        place.mkdir()
        config = configured(place, {}, replicas={"catalog": f"sqlite:///{place / 'replicas.db'}"})
        services["replicas"] = stack.enter_context(background(config))
        yield World(files, services)


def port_of(service: Background) -> int:
    return int(service.url.rpartition(":")[2])


@dataclass(frozen=True)
class Here:
    """The world of one test: ``gates`` before the copies, what the replica service knows, and federations."""

    world: World
    gates: Mapping[str, Gate]
    catalog: ReplicaClient
    made: ExitStack

    def target(self, name: str, table: str = "people") -> TableTarget:
        return TableTarget(f"http://127.0.0.1:{self.gates[name].port}/resources/{name}", table)

    def register(self, name: str, table: str = "people", logical: str = "people", **attributes: Any) -> TableTarget:
        target = self.target(name, table)
        assert self.catalog.register({(logical, target): attributes}) == []
        return target

    def federation(self, **replicas: Any) -> Coordinator:
        services = self.world.services
        settings = load(
            {
                "sources": {"c": f"{services['c'].url}/resources/c"},
                "replicas": {"url": services["replicas"].url, **replicas},
                "second_chance": 0,
            }
        )
        coordinator = Coordinator(settings)
        self.made.callback(coordinator.close)
        return coordinator


@pytest.fixture
def here(world: World) -> Iterator[Here]:
    with ExitStack() as stack:
        gates = {name: stack.enter_context(Gate(port_of(world.services[name]))) for name in ("a", "b", "c")}
        catalog = ReplicaClient(world.services["replicas"].url)
        stack.callback(catalog.close)
        catalog.ask("DELETE", "/mappings")
        yield Here(world, gates, catalog, stack)


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


def ask(coordinator: Coordinator, sql: str) -> list[dict[str, Any]]:
    with coordinator.query(sql, cancellation=Cancellation()) as stream:
        return stream.table().to_pylist()  # type: ignore[no-any-return]


def read_at(coordinator: Coordinator, name: str = "people") -> str:
    """What EXPLAIN says of a logical table."""
    (said,) = [
        each
        for each in coordinator.explain(f"select count(*) from replicas.{name}").remarks
        if each.startswith("replicas.")
    ]
    return said


def alias_of(coordinator: Coordinator, target: TableTarget) -> str:
    """The source of a copy that is read."""
    found = re.search(re.escape(str(target)) + r" \((replicas@\d+)\)", read_at(coordinator))
    assert found is not None
    return found[1]


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


# --- services come and go ---


@pytest.mark.parametrize("distributed", [False, True], ids=["here", "evaluators"])
def test_one_is_killed_in_mid_query(here: Here, distributed: bool) -> None:
    victim, other = here.register("a", cost=0.001), here.register("b", cost=SLOW)
    lab = here.federation()
    if distributed:
        lab.use(lab.catalog, here.made.enter_context(in_process(lab.catalog)))
    expected = ask(lab, f"{EACH} order by all")
    reached = here.gates["a"].shut("people", after=100_000)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, lab, f"{EACH} order by all")
        assert reached.wait(60)
        here.gates["a"].__exit__()
        assert answer.result(60) == expected
    assert ask(lab, COUNT) == [RIGHT]
    assert str(victim) in read_at(lab)
    assert str(other) in read_at(lab)


def test_one_is_killed_in_mid_session(here: Here) -> None:
    victim, other = here.register("a", cost=0.001), here.register("b", cost=SLOW)
    lab = here.federation()
    assert ask(lab, JOINED) == [{"n": 100, "s": 200}]
    dead, alive = alias_of(lab, victim), alias_of(lab, other)
    assert f"read at {victim} ({dead}); else at {other} ({alive})" in read_at(lab)
    here.gates["a"].__exit__()
    assert ask(lab, JOINED) == [{"n": 100, "s": 200}]
    assert alive in lab.explain(COUNT, analyze=True).text.partition("replicas.people:")[0]
    lab.catalog._reflection.renew(dead)  # what the catalog does in the background
    assert f"read at {other} ({alive}); else at {victim}" in read_at(lab)
    assert ask(lab, COUNT) == [RIGHT]


def test_one_joins_and_one_leaves(here: Here) -> None:
    first = here.register("a")
    lab = here.federation(lifetime=1e-6)
    assert ask(lab, COUNT) == [RIGHT]
    joined = here.register("b", cost=0.001)
    assert f"read at {joined}" in read_at(lab)
    assert ask(lab, COUNT) == [RIGHT]
    here.catalog.withdraw([("people", joined)])
    assert ask(lab, COUNT) == [RIGHT]
    assert read_at(lab).startswith(f"replicas.people: read at {first} ({alias_of(lab, first)})")
    assert str(joined) not in read_at(lab)
    here.catalog.withdraw([("people", first)])
    with pytest.raises(StatementError, match=r"There is no table replicas\.people"):
        ask(lab, COUNT)


def test_one_that_joins_is_read_by_a_query_that_was_asked_before(here: Here) -> None:
    """Its plan is used again, and asks for no table."""
    first = here.register("a", cost=SLOW)
    lab = here.federation(lifetime=1e-6)
    for _ in range(2):
        assert f"read at {first}" in read_at(lab)
    joined = here.register("b", cost=0.001)
    until(lambda: f"read at {joined}" in read_at(lab))


def test_a_table_that_was_dropped_is_read_at_the_next(here: Here) -> None:
    files = here.world.files
    for name in ("a", "b"):
        change(files[name], "drop table if exists people_2", "create table people_2 as select * from people")
    victim, other = here.register("a", "people_2", cost=0.001), here.register("b", "people_2", cost=SLOW)
    lab = here.federation()
    assert ask(lab, COUNT) == [RIGHT]
    assert f"read at {victim}" in read_at(lab)
    change(files["a"], "drop table people_2")
    assert ask(lab, COUNT) == [RIGHT]
    assert f"read at {other}" in read_at(lab)
    assert "its resource has no such table" in read_at(lab)


def change(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file, timeout=60)) as connection:
        for each in statements:
            connection.execute(each)
        connection.commit()


def test_a_resource_that_is_gone_is_read_at_the_next(here: Here) -> None:
    victim, other = here.register("a", cost=0.001), here.register("b", cost=SLOW)
    lab = here.federation()
    assert ask(lab, COUNT) == [RIGHT]
    gate = here.gates["a"]
    gate._target = port_of(here.world.services["c"])  # another service answers there, which has no such resource
    for each in list(gate._sockets):
        _end(each)
    assert ask(lab, COUNT) == [RIGHT]
    assert f"read at {other}" in read_at(lab)
    assert f"not at {victim}: " in read_at(lab)


def test_the_schema_stays_when_the_reference_is_away(here: Here) -> None:
    """Where nobody has said the schema of the name, another one does not take its place."""
    first = here.register("a")
    here.register("b", "few", copied=time.time())
    lab = here.federation()
    assert ask(lab, COUNT) == [RIGHT]
    alias = alias_of(lab, first)
    here.gates["a"].__exit__()
    lab.catalog._reflection.renew(alias)
    with pytest.raises(UnreachableError):
        ask(lab, COUNT)


def test_texts_are_compared_as_here_at_each_copy(here: Here) -> None:
    """The column of one copy takes 'P' for 'p'."""
    here.register("a", cost=0.001)
    here.register("b")
    lab = here.federation()
    sql = "select count(*) as n from replicas.people where name = 'person'"
    assert ask(lab, sql) == [{"n": ROWS // 2}]
    here.gates["a"].__exit__()
    assert ask(lab, sql) == [{"n": ROWS // 2}]


def test_a_replica_service_that_is_away(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.register("a")
    lab = here.federation(lifetime=1e-6)
    assert ask(lab, COUNT) == [RIGHT]

    def away(self: ReplicaClient, names: Any) -> Locations:
        raise NotFoundError("Nothing is here.")

    monkeypatch.setattr(ReplicaClient, "find", away)
    assert ask(lab, COUNT) == [RIGHT]
    assert "replicas" in lab.catalog.problems
    with pytest.raises(DatabaseUnavailableError, match="The source 'replicas' is not available"):
        ask(here.federation(), COUNT)


@pytest.mark.parametrize(("listed", "sent"), [(False, None), (True, "Bearer planted")])
def test_the_token_goes_to_services_that_are_listed(listed: bool, sent: str | None) -> None:
    """Whoever writes to the replica service may name any port of this machine, and listen there."""
    with ScriptedServer(Scripted(status=401)) as other:
        said: dict[str, Any] = {"url": "http://127.0.0.1:9", "token": "planted"}
        settings = parse({"sources": {}, "replicas": said | ({"services": [other.url]} if listed else {})})
        source = CopySources(settings, (), Credentials(settings), lambda _: None).at(f"{other.url}/resources/x")
        assert source is not None
        with suppress(DaiError):
            source.tables()
        assert {each.headers.get("authorization") for each in other.requests} == {sent}
