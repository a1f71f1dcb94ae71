import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import dai.service.resources
from dai.config import parse
from dai.drivers import Driver
from dai.drivers.memory import Memory
from dai.errors import ConfigurationError, NotFoundError
from dai.plugins import Table
from dai.security.identity import Caller
from dai.service.resources import MOST_CALLERS, Callers, Resource, Resources


def resources(document: dict[str, Any], base: Path | str = ".") -> Resources:
    return Resources(parse(document, base, {}))


def test_resources_by_name(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute("create table things (id integer primary key, name text)")
    connection.close()
    actual = resources({"resources": {"a": {"url": "sqlite:///a.db", "description": "about"}}}, tmp_path)
    try:
        resource = actual.named("a")
        properties = resource.properties()
        assert properties["product"].startswith("SQLite")
        assert properties["description"] == "about"
        assert "sqlQueryStatement" in properties["activities"]
        schema = resource.schema()
        assert [table["name"] for table in schema.tables] == ["things"]
        assert resource.schema() is schema
        assert resource.schema("none%").tables == []
        with pytest.raises(NotFoundError, match="no data resource 'b'"):
            actual.named("b")
    finally:
        actual.close()


def test_an_activity_whose_package_is_missing_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "needy", "no_such_package_at_all:Needy"

    monkeypatch.setattr("dai.plugins.entry_points", lambda group: [Point])
    table = Table("activity", "dai.activities", {"Echo": "dai.perform.activities.control:Echo"})
    monkeypatch.setattr("dai.service.resources.ACTIVITIES", table)
    actual = resources({"resources": {"data": {"url": "sqlite://"}}})
    try:
        assert actual.named("data").properties()["activities"] == ["Echo"]
    finally:
        actual.close()


def test_a_database_that_is_away_does_not_hide_the_resource() -> None:
    document = {"resources": {"a": {"url": "postgresql://x:y@127.0.0.1:9/none", "connect_wait": 1.0}}}
    actual = resources(document)
    try:
        properties = actual.named("a").properties()
        assert properties["available"] is False
        assert properties["product"] is None
    finally:
        actual.close()


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"resources": {"a": {"url": "sqlite://", "roles": "r.xml"}}}, "has no users"),
        ({"roles": {"evaluater": {}}}, r"\[roles\.evaluater\]: no package that has this role"),
        (
            {"resources": {"a": {"url": "sqlite://", "policy": {"activities": ["sqlQuery"]}}}},
            "there is no activity 'sqlQuery'",
        ),
    ],
)
def test_what_this_version_cannot_serve_is_said(document: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        resources(document)


def test_a_federation_needs_the_package_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dai.service.resources, "VIRTUAL", Table("virtual resource", "dai.none", {}))
    with pytest.raises(ConfigurationError, match="no package that runs federations"):
        resources({"federations": {"a": {}}})


def test_a_federation_is_a_resource_made_by_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Made(Memory):
        passes_callers_on = False

    def made(config: Any, resolve: Any) -> Made:
        seen.append((config.name, config.content, resolve("book")))
        return Made({})

    monkeypatch.setattr(dai.service.resources, "VIRTUAL", {"federations": made})
    actual = resources({"resources": {"book": {"url": "sqlite://"}}, "federations": {"lab": {"anything": [1]}}})
    try:
        assert actual.named("lab").kind == "federation"
        assert seen == [("lab", {"anything": [1]}, actual.named("book").driver)]
    finally:
        actual.close()


def test_each_kind_of_resource(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    document = {
        "files": {"directory": "files"},
        "papers": {"collections": "sqlite:///papers.db"},
        "book": {"url": "sqlite:///book.db", "replicas": ["sqlite:///copy.db"]},
    }
    actual = resources({"resources": document}, tmp_path)
    try:
        offered = {name: set(each.properties()["activities"]) for name, each in actual.items()}
        assert "xPathStatement" in offered["papers"] - offered["book"] - offered["files"]
        assert "sqlQueryStatement" in offered["book"] - offered["papers"] - offered["files"]
        assert len(actual.named("book").driver.replicas) == 1
        assert len(actual) == 3
        asked = actual.named("book").properties(answers=False)
        assert (asked["available"], asked["product"]) == (False, None)
    finally:
        actual.close()


def test_schemas_are_kept_by_their_patterns_but_not_all_of_them() -> None:
    class Counting(Memory):
        asked = 0

        def tables(self, pattern: str = "%") -> Any:
            self.asked += 1
            return super().tables(pattern)

    driver = Counting({})
    resource = Resource("a", driver)
    for number in range(101):
        resource.schema(f"t{number}%")
    assert resource.known_schema("t0%") is not None
    assert driver.asked == 101
    resource.schema("t0%")
    assert driver.asked == 101
    resource.schema("t0%", fresh=True)
    assert driver.asked == 102
    assert resource.known_schema("t0%") is not None
    assert resource.known_schema("t1%") is None, "they are forgotten from time to time"


def test_who_has_many_credentials_keeps_out_nobody() -> None:
    """Of a federation that passes callers on: jobs of others need theirs."""
    callers = Callers(lambda caller: cast(Driver, SimpleNamespace(published=None)))
    resource = Resource("lab", cast(Driver, SimpleNamespace(published=None)))
    bob = callers.of(Caller("bob", bearer="b"), resource)
    for number in range(2 * MOST_CALLERS):
        last = callers.of(Caller("alice", bearer=str(number)), resource)
    for each in (bob, last):
        assert callers.by(each.database_user) is each


def test_jobs_with_a_fresh_token_each_find_theirs() -> None:
    callers = Callers(lambda caller: cast(Driver, SimpleNamespace(published=None)))
    resource = Resource("lab", cast(Driver, SimpleNamespace(published=None)))
    sent = [callers.of(Caller("ci", bearer=str(number)), resource) for number in range(MOST_CALLERS)]
    for each in sent:
        assert callers.by(each.database_user) is each
