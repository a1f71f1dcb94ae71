"""A data service publishes itself, is found, and is gone one lease after it died; what others said about it is not."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

import dai
from dai.__main__ import main
from dai.api.server.serve import Background, background
from dai.commands import FAILED, OK
from dai.config import parse
from dai.errors import ConfigurationError, ParameterError
from dai.security.identity.tokens import new
from dai.service.registry.publisher import Publisher
from tests.api.conftest import configured
from tests.processes import ServiceProcess, until
from tests.registry.conftest import Known

pytestmark = pytest.mark.server
UNIT = "http://example.org/terms#unit"
LEASE = 1.5


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Background]:
    directory = tmp_path / "registry"
    directory.mkdir()
    with background(configured(directory, {}, registry={"store": "sqlite:///registry.db"})) as running:
        yield running


@pytest.fixture
def sky(tmp_path: Path) -> str:
    path = tmp_path / "sky.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table galaxies (id integer primary key, red_shift real, flux real)")
        connection.execute("insert into galaxies values (1, 0.1, 5), (2, 0.2, 6)")
        connection.commit()
        connection.execute("analyze")
    return f"sqlite:///{path}"


def keys(registry: str, **asked: Any) -> list[str]:
    answer = httpx.get(f"{registry}/registry/entries", params=asked)
    return [each["key"] for each in answer.raise_for_status().json()["entries"]]


def test_a_service_says_what_it_holds_and_takes_it_back(registry: Background, sky: str, tmp_path: Path) -> None:
    here = "http://127.0.0.1:1"
    settings = {"url": registry.url, "address": here + "/", "lease_seconds": LEASE}
    hidden = {"url": sky, "policy": {"read": ["alice"]}, "description": "not for all"}
    resources = {"sky": {"url": sky}, "hidden": hidden}
    with background(configured(tmp_path, resources, registry=settings)):
        until(lambda: keys(registry.url, kind="column"))
        tree = httpx.get(f"{registry.url}/registry/entry", params={"key": here, "below": "true"}).json()
        assert tree["kind"] == "service"
        assert "sqlQueryStatement" in tree["properties"]["activities"]
        resource = next(each for each in tree["below"] if each["name"] == "sky")
        assert resource["key"] == f"{here}/resources/sky"
        (table,) = resource["below"]
        assert table["key"] == f"{here}/resources/sky#galaxies"
        assert table["properties"]["rows"] == 2
        columns = {each["name"]: each["properties"]["arrow"] for each in table["below"]}
        assert columns == {"id": "int64", "red_shift": "double", "flux": "double"}
        unseen = next(each for each in tree["below"] if each["name"] == "hidden")
        assert unseen["readers"] == ["alice"]
        first = tree["expires"]
        until(lambda: httpx.get(f"{registry.url}/registry/entry", params={"key": here}).json()["expires"] > first)
    assert keys(registry.url) == []
    assert httpx.get(f"{registry.url}/registry/entry", params={"key": here}).json()["deprecated"] is True


def test_a_service_that_dies_is_gone_in_one_lease_and_comes_back(
    registry: Background, sky: str, tmp_path: Path
) -> None:
    service = ServiceProcess(tmp_path / "data", {"sky": sky})
    service.more = f'[registry]\nurl = "{registry.url}"\naddress = "{service.url}"\nlease_seconds = {LEASE}\n'
    service.start()
    until(lambda: keys(registry.url, kind="column"))
    about = f"{service.url}/resources/sky#galaxies/flux"
    said = {"about": about, "type": UNIT, "value": "mJy"}
    httpx.post(f"{registry.url}/registry/metadata", json=said).raise_for_status()
    (found,) = dai.find("mJy", registry.url)
    assert (found.kind, found.key) == ("table", f"{service.url}/resources/sky#galaxies")
    assert list(found.reasons) == [f"column flux, {UNIT}: mJy"]
    query = {"query": f"ask {{ ?column <{UNIT}> 'mJy' }}"}
    asked = httpx.get(f"{registry.url}/registry/sparql", params=query, timeout=60)
    assert asked.json()["boolean"] is True
    service.kill()
    expires = httpx.get(f"{registry.url}/registry/entry", params={"key": service.url}).json()["expires"]
    assert registry.service.registry is not None
    until(lambda: not keys(registry.url))
    now = registry.service.registry._clock()
    assert now >= expires
    assert dai.find("mJy", registry.url) == []
    assert httpx.get(f"{registry.url}/registry/sparql", params=query).json()["boolean"] is False
    service.start()
    until(lambda: dai.find("mJy", registry.url))
    assert service.stop() == 0


def test_what_the_registry_has_lost_is_told_again(registry: Background, sky: str, tmp_path: Path) -> None:
    here = "http://127.0.0.1:1"
    settings = {"url": registry.url, "address": here, "lease_seconds": 0.3}
    with background(configured(tmp_path, {"sky": {"url": sky}}, registry=settings)):
        until(lambda: keys(registry.url, kind="column"))
        httpx.delete(f"{registry.url}/registry/entries", params={"key": here}).raise_for_status()
        until(lambda: keys(registry.url, kind="column"))


def test_a_table_that_is_gone_is_published_no_more(registry: Background, sky: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"url": registry.url, "address": "http://127.0.0.1:1", "lease_seconds": 0.3}
    settings |= {"publish": ["sky"], "look_seconds": 0.1}
    config = configured(tmp_path, {"sky": {"url": sky}, "other": {"url": sky}}, registry=settings)
    with background(configured(tmp_path, {"sky": {"url": sky}})) as running:
        publisher = Publisher(config, running.service.resources)
        until(lambda: len(keys(registry.url, kind="column")) == 3)
        with closing(sqlite3.connect(sky.removeprefix("sqlite:///"))) as connection:
            connection.execute("create table stars (id integer)")
            connection.execute("drop table galaxies")
            connection.commit()
        until(lambda: keys(registry.url, kind="table") == ["http://127.0.0.1:1/resources/sky#stars"])
        assert keys(registry.url, kind="resource") == ["http://127.0.0.1:1/resources/sky"]
        publisher.close()


def test_a_registry_that_is_away_keeps_nobody_from_work(sky: str, tmp_path: Path) -> None:
    settings = {"url": "http://127.0.0.1:1", "address": "http://127.0.0.1:2"}
    with background(configured(tmp_path, {"sky": {"url": sky}}, registry=settings)) as running:
        answer = httpx.post(f"{running.url}/resources/sky/query", json={"sql": "select count(*) as n from galaxies"})
        assert answer.status_code == 200


def test_meanings_are_published_and_taken_over_from_whom_the_service_believes(
    served: Background, known: Known, sky: str, tmp_path: Path
) -> None:
    """``alice`` runs the service, which believes her and ``bob``."""
    here = "http://127.0.0.1:1"
    token, stored = new("alice", 3600)
    served.service.store.add_token(stored)
    settings = {"url": served.url, "address": here, "token": token, "look_seconds": 0.1, "annotators": ["bob"]}
    columns = {"galaxies.red_shift": {"ucd": "src.redshift;stat.mean", "description": "z"}}
    resources = {"sky": {"url": sky, "columns": columns}, "text": {"directory": str(tmp_path)}}
    roles = {"evaluator": {}}
    flux, said = f"{here}/resources/sky#galaxies/flux", {"type": "urn:dai:meaning:unit", "form": "string"}
    with background(configured(tmp_path, resources, registry=settings, roles=roles)) as running:
        root = known("root")

        def entry(key: str) -> Any:
            return root.get("/entry", params={"key": key}).json()

        until(lambda: root.get("/entries", params={"kind": "column"}).json()["entries"])
        shift = entry(f"{here}/resources/sky#galaxies/red_shift")
        assert (shift["properties"]["ucd"], shift["description"]) == ("src.redshift;stat.mean", "z")
        assert entry(f"{here}/resources/evaluator")["kind"] == "evaluator"
        assert "sqlQueryStatement" in entry(f"{here}/resources/sky")["properties"]["activities"]
        assert "fileAccessActivity" in entry(f"{here}/resources/text")["properties"]["activities"]
        known("root").post("/metadata", json={**said, "about": flux, "value": "a stranger's"}).raise_for_status()
        known("bob").post("/metadata", json={**said, "about": flux, "value": "mJy"}).raise_for_status()
        until(lambda: entry(flux)["properties"].get("unit") == "mJy")
        resource = dai.connect(f"{running.url}/resources/sky")
        result = resource.query("select flux, red_shift from galaxies").arrow()
        assert result.schema.field("flux").metadata[b"unit"] == b"mJy"
        assert result.schema.field("red_shift").metadata[b"description"] == b"z"
        found = root.get("/find", params={"ucd": "src", "unit": "mJy", "kind": "table"}).json()["found"]
        assert [each["key"] for each in found] == [f"{here}/resources/sky#galaxies"]
        assert "column red_shift, ucd: src.redshift;stat.mean" in found[0]["reasons"]
        assert root.get("/find", params={"ucd": "stat.mean"}).json()["found"]
        for nothing in ({"ucd": "src", "unit": "Jy"}, {"ucd": "redshift"}, {"unit": "mjy"}):
            assert root.get("/find", params=nothing).json()["found"] == []
        assert root.get("/find").status_code == 400


def test_followers_hear_of_renewals_who_want_to(registry: Background) -> None:
    entry = {"key": "urn:s:a", "kind": "service", "name": "a", "seconds": 60}
    httpx.post(f"{registry.url}/registry/entries", json={"entries": [entry]}).raise_for_status()
    now = httpx.get(f"{registry.url}/registry").json()["time"]
    httpx.post(f"{registry.url}/registry/leases", json={"keys": ["urn:s:a"], "seconds": 90}).raise_for_status()

    def actions(**asked: Any) -> list[tuple[str, bool]]:
        told = httpx.get(f"{registry.url}/registry/changes", params={"after": 0, **asked}).json()["changes"]
        return [(each["action"], each.get("expires", 0) >= now + 90) for each in told]

    assert actions() == [("published", False)]
    assert actions(renewals="true") == [("published", True), ("renewed", True)]


def test_the_command_shows_what_fits_with_reasons(
    registry: Background, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [
        {"key": "urn:s:sky", "kind": "service", "name": "Sky survey"},
        {"key": "urn:t:sky", "kind": "tmodel", "name": "Survey of skies"},
    ]
    httpx.post(f"{registry.url}/registry/entries", json={"entries": entries}).raise_for_status()
    assert main(["find", "sky", "--server", registry.url]) == OK
    assert capsys.readouterr().out == "service Sky survey  urn:s:sky\n    name: Sky survey\n"
    assert main(["find", "survey", "--kind", "tmodel", "--limit", "1", "--server", registry.url]) == OK
    assert capsys.readouterr().out.startswith("tmodel Survey of skies")
    assert main(["find", "nothing", "--server", registry.url]) == FAILED
    monkeypatch.setenv("DAI_SERVER", registry.url)
    assert [each.key for each in dai.find("sky")] == ["urn:s:sky"]
    with pytest.raises(ParameterError, match="Did you mean 'token'"):
        dai.find("sky", tokn="x")


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"url": "http://r"}, "must both be set"),
        ({"url": "r", "address": "http://a"}, "is not the URL of a service"),
        ({"url": "http://[r]", "address": "http://a"}, "is not the URL of a service"),
        ({"url": "http://r", "address": "http://a", "publish": ["sky"]}, "no resource 'sky'"),
        ({"store": "no url"}, "is not a database URL"),
        ({"policy": 1}, "must be a section"),
        ({"stor": "x"}, "Did you mean 'store'"),
    ],
)
def test_a_configuration_that_cannot_be(section: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse({"registry": section}, tmp_path, {})
