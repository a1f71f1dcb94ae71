"""Services with copies of a table come, go, are killed, and have a federation's token only where that is allowed."""

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from dai.client.testing import Scripted, ScriptedServer
from dai.errors import DaiError, DatabaseUnavailableError, NotFoundError, StatementError, UnreachableError
from dai.replicas.client import Locations, ReplicaClient
from dqp.catalog.replicas.copies import CopySources
from dqp.catalog.sources.configured import Credentials
from dqp.settings import parse
from tests.dqp.in_process import in_process
from tests.dqp.replica_copies import COUNT, RIGHT, ROWS, Here, alias_of, ask, here, port_of, read_at, world
from tests.faults.gates import _end
from tests.processes import until

__all__ = ["here", "world"]

pytestmark = pytest.mark.server
SLOW = 1e6
"""A cost that no measured one comes near."""
JOINED = "select count(*) as n, sum(v.n) as s from replicas.people p join c.visits v on v.person = p.id"
EACH = "select p.id, p.name, v.n from replicas.people p join c.visits v on v.person % 7 = p.id % 7 where v.person < 8"


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
