"""Services with copies of logical tables, and a federation that reads them."""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dai.api.server.serve import Background, background
from dai.replicas.client import ReplicaClient, TableTarget
from dai.streams.cancellation import Cancellation
from dqp.coordinator import Coordinator
from dqp.settings import load
from tests.api.conftest import configured
from tests.faults.gates import Gate

ROWS = 20_000
COUNT = "select count(*) as n, sum(id) as s from replicas.people"
RIGHT = {"n": ROWS, "s": ROWS * (ROWS + 1) // 2}


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
