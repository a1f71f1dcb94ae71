"""A federation that follows a replica index: three services as processes, two with copies of one table and catalogs of
their own, the third with the index; they are killed, join and leave."""

import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from dai.api.server.serve import Background, background
from dai.client.testing import Scripted, ScriptedServer
from dai.config import ReplicasConfig
from dai.errors import DaiError, UnreachableError
from dai.replicas.client import ReplicaClient, TableTarget
from dai.replicas.filters import Filter, arrow
from dai.replicas.replicas import Remote
from dai.streams.cancellation import Cancellation
from dqp.catalog.replicas.copies import client_of
from dqp.coordinator import Coordinator
from dqp.interfaces.lab import Lab
from dqp.settings import load, parse
from tests.api.conftest import configured
from tests.faults.gates import Gate
from tests.processes import ServiceProcess, until

pytestmark = pytest.mark.server
ROWS = 20_000
ALL = (
    "select p.id, p.name, v.n from replicas.people p join c.visits v on v.person % 7 = p.id % 7 where v.person < 8"
    " order by p.id"
)
"""It is joined here: no row of the answer has left while the table is read."""
JOINED = "select count(*) as n, sum(v.n) as s from replicas.people p join c.visits v on v.person = p.id"


def ask(lab: Coordinator, sql: str) -> Any:
    with lab.query(sql, cancellation=Cancellation()) as stream:
        return stream.table().to_pydict()


def said(lab: Coordinator, name: str = "people") -> str:
    """What EXPLAIN says of a logical table."""
    remarks = lab.explain(f"select count(*) from replicas.{name}").remarks
    return next(each for each in remarks if each.startswith("replicas."))


def made(file: Path, *statements: str) -> str:
    with closing(sqlite3.connect(file)) as connection:
        for each in statements:
            connection.execute(each)
        connection.commit()
    return f"sqlite:///{file}"


NUMBERS = "with recursive n(i) as (select 1 union all select i + 1 from n where i < {})"
PEOPLE = (
    "create table people (id integer primary key, name text not null)",
    f"insert into people {NUMBERS.format(ROWS)} select i, 'person ' || i from n",
)
VISITS = (
    "create table visits (person integer, n integer)",
    f"insert into visits {NUMBERS.format(100)} select i, 2 from n",
)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_services_are_killed_and_join_and_leave(tmp_path: Path, stack: ExitStack) -> None:
    places = {name: tmp_path / name for name in "abc"}
    for place in places.values():
        place.mkdir()
    more = '[replicas]\ncatalog = "sqlite:///replicas.db"'
    index = ServiceProcess(places["c"], {"c": made(places["c"] / "c.db", *VISITS)}, workers=1, more=more).start()
    stack.callback(index.kill)
    services, gates = {}, {}
    for name, cost in (("a", 0.001), ("b", 1e6)):
        services[name] = ServiceProcess(places[name], {name: made(places[name] / "x.db", *PEOPLE)}, workers=1)
        gates[name] = stack.enter_context(Gate(services[name].port))
        services[name].more = (
            f'[replicas]\ncatalog = "sqlite:///replicas.db"\nurl = "http://127.0.0.1:{gates[name].port}"\n'
            f'service = "{services[name].url}"\nindexes = ["{index.url}"]\nchange_seconds = 0.05\n'
            f'[replicas.publish]\npeople = {{resource = "{name}", table = "people", cost = {cost}}}'
        )
        services[name].start()
        stack.callback(services[name].kill)
    targets = {name: f"http://127.0.0.1:{gates[name].port}/resources/{name}#people" for name in "ab"}
    told = {name: f"{targets[name]} told by http://127.0.0.1:{gates[name].port}" for name in "ab"}
    replicas = {"url": index.url, "lifetime": 1e-6, "catalogs": ["http://127.0.0.1"]}
    settings = load({"sources": {"c": f"{index.url}/resources/c"}, "replicas": replicas, "second_chance": 0})
    lab = stack.enter_context(closing(Coordinator(settings)))

    def hears(*words: str) -> bool:
        try:
            text = said(lab)
        except DaiError as error:
            text = str(error)
        print(text)  # what it was, should it never come true
        return all(each in text for each in words)

    expected: dict[str, list[Any]] = {
        "id": [*range(1, ROWS + 1)],
        "name": [f"person {each}" for each in range(1, ROWS + 1)],
    }
    expected["n"] = [2] * ROWS
    until(lambda: hears(f"read at {told['a']}", f"else at {told['b']}"))
    assert ask(lab, ALL) == expected
    # killed in mid-query
    reached = gates["a"].shut("people", after=50_000)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, lab, ALL)
        assert reached.wait(90)
        services["a"].kill()
        gates["a"].open()
        assert answer.result(90) == expected
    # killed in mid-session: what its catalog said last is not read, and said to be so
    assert ask(lab, JOINED) == {"n": [100], "s": [200]}
    until(lambda: hears(f"read at {told['b']}", f"the catalog http://127.0.0.1:{gates['a'].port} was not heard"))
    assert ask(lab, ALL) == expected
    # joins again, and is read first or second: both have been read, and the one that was faster comes first
    services["a"].start()
    until(lambda: any(hears(f"read at {told[one]}", f"else at {told[two]}") for one, two in ("ab", "ba")))
    assert "was not heard" not in said(lab)
    assert ask(lab, ALL) == expected
    # leaves
    services["b"].stop()
    until(lambda: f"127.0.0.1:{gates['b'].port}" not in said(lab))
    assert hears(f"read at {told['a']}")
    assert ask(lab, JOINED) == {"n": [100], "s": [200]}
    # the index is away: what it said last counts
    index.kill()
    assert ask(lab, "select count(*) as n from replicas.people") == {"n": [ROWS]}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    directory = tmp_path_factory.mktemp("index")
    with background(configured(directory, {}, replicas={"catalog": f"sqlite:///{directory / 'r.db'}"})) as running:
        yield running


def tell(index: Background, url: str, names: Sequence[str], *, filtered: bool = False) -> None:
    with closing(Remote(index.url, ReplicasConfig())) as remote:
        if filtered:
            remote.filter(url, Filter.of(arrow(names)), 3600)
        else:
            remote.names(url, len(names), [list(names)], 3600)


def test_catalogs_that_are_wrong_are_moved_past(index: Background, tmp_path: Path) -> None:
    """One has not the name, though its filter says so; one does not answer; one answers, but not as a catalog."""
    right = TableTarget("http://127.0.0.1:1/resources/x", "t")
    with (
        background(configured(tmp_path, {}, replicas={"catalog": f"sqlite:///{tmp_path / 'r.db'}"})) as catalog,
        ScriptedServer(Scripted(body=b"[]")) as strange,
        closing(ReplicaClient(catalog.url)) as client,
    ):
        client.register({("t", right): {"schema": "x", "rows": 3}})
        for url in (catalog.url, strange.url, "http://127.0.0.1:9"):
            tell(index, url, ["t", "no"], filtered=url == catalog.url)
        said = {"url": index.url, "catalogs": ["http://127.0.0.1"]}
        with closing(client_of(parse({"sources": {}, "replicas": said}))) as following:
            found = following.find(["t", "no"])
            assert found.targets["t"] == [str(right)]
            assert found.attributes[str(right)]["rows"] == 3
            assert found.told_by == {str(right): catalog.url}
            assert not found.targets.get("no")
            assert set(found.faults["t"]) == {strange.url, "http://127.0.0.1:9"}
            assert following.names(10) == ["t"]


@pytest.mark.parametrize(("prefixes", "asked"), [(["{}"], {"Bearer planted"}), (["http://127.0.0.1:9"], set())])
def test_a_catalog_is_asked_where_the_configuration_allows_it(
    index: Background, prefixes: Sequence[str], asked: set[str]
) -> None:
    """Whoever tells the index may name any address: no request goes there, and no token."""
    with ScriptedServer(Scripted(status=401)) as other:
        name = f"secret of {other.url}"
        tell(index, other.url, [name])
        allowed = [each.format(other.url) for each in prefixes]
        said = {"url": index.url, "token": "planted", "catalogs": allowed}
        with closing(client_of(parse({"sources": {}, "replicas": said}))) as following:
            if asked:
                with pytest.raises(DaiError):
                    following.find([name])
            else:
                assert following.find([name]).faults == {name: {other.url: "it may not be asked"}}
            following.names(10)
        assert {each.headers.get("authorization") for each in other.requests} == asked


def test_the_error_of_the_index(tmp_path: Path) -> None:
    said = {"url": "http://127.0.0.1:9", "catalogs": ["http://127.0.0.1"]}
    with closing(client_of(parse({"sources": {}, "replicas": said}))) as following, pytest.raises(UnreachableError):
        following.find(["t"])


def test_logical_tables_are_listed(tmp_path: Path) -> None:
    url = made(tmp_path / "x.db", "create table people (id integer primary key, name text)")
    replicas = {"catalog": f"sqlite:///{tmp_path / 'r.db'}"}
    with background(configured(tmp_path, {"x": {"url": url}}, replicas=replicas)) as service:
        target = TableTarget(f"{service.url}/resources/x", "people")
        with closing(ReplicaClient(service.url)) as client:
            client.register({("sky.people", target): {}, ("gone", TableTarget(target.address, "gone")): {}})
            client.ask("POST", "/mappings", {"mappings": [{"logical": "file", "target": "file:///x"}]}, mode="put")
        with Lab({"sources": {"x": target.address}, "replicas": service.url}) as lab:
            listed = {(each["source"], each["table"]): each for each in lab.tables().to_pylist()}
            assert set(listed) == {("x", "people"), ("replicas", "sky.people")}
            assert listed["replicas", "sky.people"]["columns"] == ["id", "name"]
            assert listed["replicas", "sky.people"]["comment"] == f"read at {target} (x)"
            assert lab.replicas.sky.people.arrow().num_rows == 0
