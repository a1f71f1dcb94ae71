"""A federation whose sources a registry names: they come and go with the leases of their services."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

import dqp
from dai.api.server.serve import Background, background
from dai.errors import ConfigurationError, DaiError, StatementError
from dai.security.identity.tokens import new
from dai.streams.cancellation import Cancellation
from dqp.catalog.discovery.conditions import query_of
from dqp.catalog.discovery.leases import Leases
from dqp.catalog.discovery.sources import alias_of
from dqp.coordinator import Coordinator
from dqp.interfaces.lab import Lab
from dqp.planning.distribution.spreading import Thresholds
from dqp.runtimes.discovered import DiscoveredEvaluators
from dqp.settings import load
from tests.api.conftest import configured
from tests.processes import ServiceProcess, until

pytestmark = pytest.mark.server
ALWAYS = Thresholds(split_rows=0.0, broadcast_bytes=0.0, spread_seconds=0.0)
LEASE = 1.0
"""Of services that are to be lost."""


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    """A data service that publishes nothing by itself, with the resources ``sky`` and ``deep``."""
    directory = tmp_path_factory.mktemp("sky")
    with closing(sqlite3.connect(directory / "sky.db")) as connection:
        connection.execute("create table galaxies (id integer primary key, flux real)")
        connection.execute("insert into galaxies values (1, 5), (2, 6)")
        connection.commit()
    url = f"sqlite:///{directory / 'sky.db'}"
    columns = {"galaxies.flux": {"unit": "mJy"}}
    with background(configured(directory, {each: {"url": url, "columns": columns} for each in ("sky", "deep")})) as it:
        yield it


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    with background(
        configured(tmp_path_factory.mktemp("registry"), {}, registry={"store": "sqlite:///registry.db"})
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    if "registry" in request.fixturenames:
        url = f"{request.getfixturevalue('registry').url}/registry/entries"
        for each in httpx.get(url, params={"deprecated": "true"}).json()["entries"]:
            if "parent" not in each:
                httpx.delete(url, params={"key": each["key"]}).raise_for_status()


def entries(address: str, name: str = "urn:s:sky", unit: str = "mJy", **more: Any) -> list[dict[str, Any]]:
    """A service with a resource at the address, with a table that has a unit."""
    table, about = f"{address}#galaxies", {"kind": "table"}
    told = {"address": {"uri": address}, "kind": "database"}
    column = {"type": "real", "arrow": "double", "position": 1, "unit": unit, "ucd": "phot.flux.density;em.radio"}
    return [
        {"key": name, "kind": "service", "name": "Sky", "then": "deprecate", **more},
        {"key": address, "kind": "resource", "parent": name, "name": address.rpartition("/")[2], "properties": told},
        {"key": table, "kind": "table", "parent": address, "name": "galaxies", "properties": about},
        {"key": f"{table}/flux", "kind": "column", "parent": table, "name": "flux", "properties": column},
    ]


def publish(url: str, listed: Sequence[dict[str, Any]], headers: dict[str, str] | None = None) -> None:
    body = {"entries": list(listed), "whole": True}
    httpx.post(f"{url}/registry/entries", json=body, headers=headers).raise_for_status()


def renewed(url: str, key: str, seconds: float) -> float:
    """When the lease ends now, by the registry."""
    answer = httpx.post(f"{url}/registry/leases", json={"keys": [key], "seconds": seconds})
    return float(answer.raise_for_status().json()["expires"][key])


def sources(lab: Lab) -> list[str]:
    """As a plan would see them now."""
    catalog = lab.coordinator.catalog
    assert catalog.version >= 0
    return sorted(catalog.sources)


def counted(lab: Lab, alias: str) -> int:
    return int(lab.sql(f"select count(*) as n from {alias}.galaxies").fetchall()[0][0])


def lab_of(registry: str, find: str = "unit=mJy", **more: Any) -> Lab:
    return dqp.connect({"registry": {"url": registry, "find": find, **more}})


def test_a_service_that_appears_is_a_source_until_its_lease_ends(registry: Background, sky: Background) -> None:
    address = f"{sky.url}/resources/sky"
    alias = alias_of(address)
    with lab_of(registry.url) as lab:
        assert sources(lab) == []
        with pytest.raises(StatementError, match="no source"):
            counted(lab, alias)
        publish(registry.url, entries(f"{sky.url}/resources/deep", "urn:s:deep", "Jy", seconds=600))
        publish(registry.url, entries(address, seconds=600))
        until(lambda: sources(lab) == [alias])
        assert counted(lab, alias) == 2
        (listed,) = lab.tables().to_pylist()
        assert listed["origin"] == f"{address}, from the registry {registry.url}"
        assert listed["units"] == [None, "mJy"]
        assert f"{alias} is {address}" in lab.explain(f"select * from {alias}.galaxies").text
        assert lab.sql(f"select flux from {alias}.galaxies").arrow().schema.field(0).metadata[b"unit"] == b"mJy"
        # a lease that is renewed holds
        for _ in range(3):
            renewed(registry.url, "urn:s:sky", 500)
            assert counted(lab, alias) == 2
        expires = renewed(registry.url, "urn:s:sky", LEASE)
        until(lambda: alias not in sources(lab))
        assert registry.service.registry is not None
        # no sooner than the registry says, but for what a request takes
        assert registry.service.registry.now() >= expires - 0.5
        with pytest.raises(StatementError, match="no source"):
            counted(lab, alias)
        # back, as the same source; and its resource may go by itself
        publish(registry.url, entries(address, seconds=600))
        until(lambda: sources(lab) == [alias])
        assert counted(lab, alias) == 2
        publish(registry.url, entries(address, seconds=600)[:1])
        until(lambda: sources(lab) == [])


def test_leases_decide_while_the_registry_is_away(sky: Background, tmp_path: Path) -> None:
    """It is killed, and comes back: what has a lease stays, what has none leaves, also while nobody tells it."""
    registry = ServiceProcess(tmp_path / "registry", {}, workers=1)
    registry.more = '[registry]\nstore = "sqlite:///registry.db"\n'
    registry.start()
    long, short = f"{sky.url}/resources/sky", f"{sky.url}/resources/deep"
    publish(registry.url, entries(long, "urn:s:long", seconds=600))
    with lab_of(registry.url) as lab:
        publish(registry.url, entries(short, "urn:s:short", seconds=600))
        until(lambda: sources(lab) == sorted([alias_of(long), alias_of(short)]))
        renewed(registry.url, "urn:s:short", 2 * LEASE)
        publish(registry.url, entries("http://127.0.0.1:1/resources/none", "urn:s:none", seconds=600))
        until(lambda: alias_of("http://127.0.0.1:1/resources/none") in sources(lab))
        httpx.delete(f"{registry.url}/registry/entries", params={"key": "urn:s:none"}).raise_for_status()
        until(lambda: alias_of("http://127.0.0.1:1/resources/none") not in sources(lab))
        registry.kill()
        until(lambda: sources(lab) == [alias_of(long)])
        assert counted(lab, alias_of(long)) == 2
        assert "does not answer" in " ".join(lab.problems.values())
        registry.start()
        publish(registry.url, entries(short, "urn:s:short", seconds=600))
        until(lambda: sources(lab) == sorted([alias_of(long), alias_of(short)]))
        until(lambda: not lab.problems)
    # who comes while it is away finds nothing, and later all
    registry.kill()
    with lab_of(registry.url) as lab:
        assert sources(lab) == []
        assert "does not answer" in lab.problems[registry.url]
        registry.start()
        until(lambda: counted_or_none(lab, alias_of(long)) == 2)
    assert registry.stop() == 0


def counted_or_none(lab: Lab, alias: str) -> int | None:
    try:
        return counted(lab, alias)
    except DaiError:
        return None


def test_a_service_that_is_killed_leaves_and_comes_back(registry: Background, tmp_path: Path, sky: Background) -> None:
    database = sky.service.resources["sky"].config.resources["sky"].url
    service = ServiceProcess(tmp_path / "data", {"sky": str(database)}, workers=1)
    service.more = f'[registry]\nurl = "{registry.url}"\naddress = "{service.url}"\nlease_seconds = {LEASE}\n'
    service.start()
    alias = alias_of(f"{service.url}/resources/sky")
    with lab_of(registry.url, "table=Galaxies") as lab:
        until(lambda: counted_or_none(lab, alias) == 2)
        service.kill()
        until(lambda: sources(lab) == [])
        with pytest.raises(StatementError, match="no source"):
            counted(lab, alias)
        service.start()
        until(lambda: counted_or_none(lab, alias) == 2)
        assert service.stop() == 0
        until(lambda: sources(lab) == [])


def test_evaluators_come_and_go(registry: Background, sky: Background, tmp_path: Path) -> None:
    """Without any a query runs here."""
    service = ServiceProcess(tmp_path / "evaluator", {}, roles={"evaluator": "memory_bytes = 500_000_000"}, workers=1)
    service.more = f'[registry]\nurl = "{registry.url}"\naddress = "{service.url}"\nlease_seconds = {LEASE}\n'
    settings = load(
        {
            "sources": {each: f"{sky.url}/resources/{each}" for each in ("sky", "deep")},
            "evaluators": {"url": registry.url},
        }
    )
    with closing(Coordinator(settings)) as coordinator:
        runtime = coordinator.runtime
        assert isinstance(runtime, DiscoveredEvaluators)
        runtime._thresholds = ALWAYS

        def ran() -> str:
            sql = "select count(*) from sky.galaxies s join deep.galaxies d on s.id = d.id"
            with coordinator.query(sql, cancellation=Cancellation()) as stream:
                assert next(stream).column(0).to_pylist() == [2]
            return coordinator.explain(sql).text

        assert service.url not in ran()
        service.start()
        until(lambda: runtime.evaluators)
        assert [each.name for each in runtime.evaluators] == [service.url]
        assert service.url in ran()
        service.kill()
        until(lambda: not runtime.evaluators)
        assert service.url not in ran()


def test_strangers_are_not_believed_and_nothing_else_is_asked(sky: Background, tmp_path: Path) -> None:
    settings = {"store": "sqlite:///registry.db", "policy": {"read": ["*"], "write": ["alice", "mallory"]}}
    identity = {"methods": ["token"]}
    with background(configured(tmp_path, {}, identity=identity, registry=settings)) as registry:
        tokens = {}
        for name in ("alice", "mallory"):
            tokens[name], stored = new(name, 3600)
            registry.service.store.add_token(stored)

        def told(name: str, address: str, key: str) -> None:
            headers = {"Authorization": f"Bearer {tokens[name]}"}
            publish(registry.url, entries(address, key, seconds=600), headers)

        fake = "http://127.0.0.1:1/resources/sky"
        told("mallory", fake, "urn:s:fake")
        forged = {"properties": {"owner": "alice"}}
        headers = {"Authorization": f"Bearer {tokens['mallory']}"}
        body = {"entries": entries("http://127.0.0.1:2/resources/sky", "urn:s:forged", **forged)}
        assert httpx.post(f"{registry.url}/registry/entries", json=body, headers=headers).status_code == 400
        told("alice", "http://169.254.169.254/resources/sky", "urn:s:elsewhere")
        told("alice", f"{sky.url}/resources/sky", "urn:s:sky")
        known = {"token": tokens["alice"]}
        with lab_of(registry.url, **known, publishers=["alice"]) as lab:
            assert sources(lab) == [alias_of(f"{sky.url}/resources/sky")]
            assert "publishers" in lab.problems[fake]
            assert "allow" in lab.problems["http://169.254.169.254/resources/sky"]
            assert "published by 'alice'" in str(lab.tables().to_pylist()[0]["origin"])
        with lab_of(registry.url, **known) as lab:
            assert sources(lab) == []
            assert "publishers must say" in lab.problems[registry.url]
        other = [f"{sky.url}/resources/deep"]
        with lab_of(registry.url, **known, publishers=["alice"], allow=other) as lab:
            assert sources(lab) == []


@pytest.mark.parametrize(
    ("find", "fits"),
    [
        ("", True),
        ("unit=mJy ucd=phot.flux table=GALAXIES resource=sky service=Sky", True),
        ("ucd=em.radio", True),
        ("ucd=flux", False),
        ("unit=Jy", False),
        ("table=galaxies resource=deep", False),
        ("""unit='m"Jy'""", False),
        ("prefix : <urn:dai:registry:> select ?table { ?table a :Table filter exists { ?c :unit 'mJy' } }", True),
        ("select ?service { ?service a <urn:dai:registry:Service> }", True),
        ("select ?resource { ?resource a <urn:dai:registry:Evaluator> }", False),
    ],
)
def test_what_is_sought(registry: Background, sky: Background, find: str, fits: bool) -> None:
    publish(registry.url, entries(f"{sky.url}/resources/sky"))
    with lab_of(registry.url, find) as lab:
        assert bool(sources(lab)) is fits
        assert lab.problems == {}


@pytest.mark.parametrize("find", ["mJy", "units=mJy", "unit=", "unit='mJy"])
def test_what_is_no_condition(find: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape("registry.find")):
        query_of(find, "registry.find")


def test_aliases_are_made_of_addresses() -> None:
    assert alias_of("https://data.example.org/resources/Sky-2") == "sky_2_data_example_org"
    assert alias_of("http://data.example.org:8080/resources/2mass") == "_2mass_data_example_org_8080"
    assert alias_of("http://[::1]:80/a/resources/sky") == "sky___1_a"


def test_a_lease_counts_as_long_as_it_surely_holds() -> None:
    """The registry's clock is told of by answers, whose way takes time; neither clock is that of the day."""
    leases = Leases()
    leases.clock(sent=10.0, answered=1000.0, anew=True)
    leases.hold("a", 1005.0)
    leases.hold("b", None)
    assert (leases.ended(14.9), leases.ended(15.0)) == ([], ["a"])
    assert leases.next_end() == 15.0
    leases.clock(sent=11.0, answered=1000.2)  # a faster answer knows it better
    assert (leases.ended(15.5), leases.ended(15.8)) == ([], ["a"])
    leases.clock(sent=12.0, answered=1009.0)  # a slow one says nothing
    assert leases.ended(15.5) == []
    leases.clock(sent=12.0, answered=500.0, anew=True)  # another process of the registry
    leases.hold("a", 505.0)
    assert (leases.ended(16.9), leases.ended(17.0)) == ([], ["a"])
    leases.drop("a")
    assert not leases.known("a")
    assert leases.ended(1e9) == []


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"find": "unit=mJy"}, "must be a section with url"),
        ("http://127.0.0.1:1", "must be a section"),
        ({"url": "registry"}, "is not the address of a service"),
        ({"url": "http://[r]"}, "is not the address of a service"),
        ({"url": "http://r", "allow": ["data.example.org"]}, "is not the address of a service"),
        ({"url": "http://r", "publishers": [""]}, "list of names"),
        ({"url": "http://r", "source_token": "t"}, "needs registry.allow"),
        ({"url": "http://r", "source_token": "t", "allow": ["http://data.example.org"]}, "without encryption"),
        ({"url": "http://r", "fnd": "x"}, "Did you mean 'find'"),
    ],
)
def test_a_configuration_that_cannot_be(section: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        load({"registry": section})


@pytest.mark.parametrize(
    ("allow", "says"),
    [({}, "needs evaluators.allow"), ({"allow": ["http://data.example.org"]}, "without encryption")],
)
def test_the_token_of_a_federation_is_for_evaluators_that_are_listed(allow: dict[str, Any], says: str) -> None:
    """Whoever may publish could name a port of this machine, or read what goes there."""
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        load({"token": "t", "evaluators": {"url": "http://r", **allow}})
    listed = load({"token": "t", "evaluators": {"url": "http://r", "allow": ["https://data.example.org"]}})
    assert listed.token == "t"
