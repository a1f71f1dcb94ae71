"""Evaluators that do not share loopback with the process that asks them: refused in plain words, whatever stands at
the address of their port from here. (The addresses of documentation, RFC 5737, are no machine's; nothing is sent.)"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dai.api.server.serve import Background, background
from dai.config import parse
from dai.drivers import driver_for
from dai.errors import ConfigurationError, MissingDependencyError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.coordinator import Coordinator
from dqp.errors import EvaluatorLostError
from dqp.interfaces.activity import EvaluatorDriver
from dqp.runtimes import RUNTIMES
from dqp.runtimes import ray as on_ray
from dqp.runtimes.flight.client import reached
from dqp.runtimes.flight.server import FlightPort
from dqp.runtimes.ray import here, settings_of
from dqp.settings import load
from tests.processes import SECONDS
from tests.servers import free_port

ELSEWHERE = "198.51.100.7"
SQL = "SELECT count(*) AS n FROM one.t a JOIN two.t b ON a.k = b.k"

# --- is it the port?


def test_the_port_that_is_meant(port: FlightPort) -> None:
    told = port.address, port.health()["instance"]
    assert reached("x", lambda: told, timeout=SECONDS) == port.address


def test_the_port_of_somebody_else(port: FlightPort) -> None:
    with FlightPort() as other, pytest.raises(ConfigurationError, match=r"evaluator x .* on another machine"):
        reached("x", lambda: (port.address, other.health()["instance"]), timeout=SECONDS)


def test_nobody_at_the_address() -> None:
    told = f"127.0.0.1:{free_port()}", "some"
    with pytest.raises(ConfigurationError, match="another machine"):
        reached("x", lambda: told, timeout=SECONDS)


@pytest.mark.parametrize("same", [True, False], ids=["the same address", "another address"])
def test_an_evaluator_that_is_started_again_meanwhile(port: FlightPort, same: bool) -> None:
    before = port.address if same else f"127.0.0.1:{free_port()}", "before"
    told = iter([before, (port.address, port.health()["instance"])])
    with pytest.raises(EvaluatorLostError, match="started again"):
        reached("x", lambda: next(told), timeout=SECONDS)


def test_one_that_has_stopped_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped, pytest.raises(EvaluatorLostError):
        reached("x", lambda: (f"127.0.0.1:{stopped.getsockname()[1]}", "some"), timeout=0.2)


# --- evaluator services


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Background]:
    """Two sources and an evaluator."""
    urls = {alias: f"duckdb:///{tmp_path / alias}.duckdb" for alias in ("one", "two")}
    for url in urls.values():
        with closing(driver_for(url)) as driver:
            driver.load("t", Stream.of(pa.table({"k": [1, 2, 3]})), cancellation=Cancellation(), create=True)
    document: dict[str, Any] = {
        "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
        "resources": {name: {"url": url} for name, url in urls.items()},
        "roles": {"evaluator": {}},
    }
    with background(parse(document, tmp_path, {})) as running:
        yield running


def lab_of(service: Background) -> Coordinator:
    sources = {alias: f"{service.url}/resources/{alias}" for alias in ("one", "two")}
    return Coordinator(load({"sources": sources, "evaluators": [service.url]}))


def test_an_evaluator_here(service: Background) -> None:
    with closing(lab_of(service)) as lab:
        assert lab.query(SQL, cancellation=Cancellation()).table().to_pylist() == [{"n": 3}]


@pytest.mark.parametrize("taken", [True, False], ids=["another port there", "nobody there"])
def test_an_evaluator_elsewhere(
    service: Background, port: FlightPort, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from here the address of its port is another's, or nobody's."""
    address = port.address if taken else f"127.0.0.1:{free_port()}"
    properties = EvaluatorDriver.properties

    def seen(self: EvaluatorDriver) -> Mapping[str, Any]:
        return {**properties(self), "flight": address}

    monkeypatch.setattr(EvaluatorDriver, "properties", seen)
    with closing(lab_of(service)) as lab:
        for ask in (lab.query, lab.explain):
            with pytest.raises(ConfigurationError, match=f"{service.url} .* on another machine") as caught:
                ask(SQL, cancellation=Cancellation())
            assert "run the federation and all of its evaluators on one machine" in str(caught.value.hint)
    assert port.health()["tickets"] == 0


# --- Ray


@pytest.mark.parametrize(("host", "is_it"), [("127.0.0.1", True), ("localhost", True), (ELSEWHERE, False)])
def test_whose_address_it_is(host: str, is_it: bool) -> None:
    assert here(host) is is_it


@pytest.mark.parametrize("address", [f"ray:{ELSEWHERE}:6379", f"ray://{ELSEWHERE}:10001"])
def test_a_cluster_elsewhere_is_not_asked(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any, **__: Any) -> Any:
        raise AssertionError("it is asked")

    monkeypatch.setattr(socket, "create_connection", asked)
    monkeypatch.setattr(on_ray.ray, "init", asked)
    with pytest.raises(ConfigurationError, match=f"{ELSEWHERE}:.* is on another machine"):
        RUNTIMES["ray"](None, load({"sources": {}, "evaluators": [address]}))


@pytest.mark.parametrize("nodes", [["127.0.0.1", ELSEWHERE], [ELSEWHERE]], ids=["one of two nodes", "the only node"])
def test_a_cluster_with_nodes_elsewhere(nodes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    left = []
    monkeypatch.setattr(on_ray.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(on_ray.ray, "init", lambda **_: None)
    monkeypatch.setattr(on_ray.ray, "nodes", lambda: [{"NodeManagerAddress": each, "Alive": True} for each in nodes])
    monkeypatch.setattr(on_ray.ray, "shutdown", lambda: left.append(True))
    with pytest.raises(ConfigurationError, match=f"nodes on other machines: {ELSEWHERE}"):
        RUNTIMES["ray"](None, load({"sources": {}, "evaluators": ["ray:auto"]}))
    assert left == [True]


def test_a_client_address_without_rays_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="Ray's client") as caught:
        RUNTIMES["ray"](None, load({"sources": {}, "evaluators": [f"ray://127.0.0.1:{free_port()}"]}))
    assert caught.value.hint == "pip install 'ray[client]'"


def test_actors_may_ask_the_replicas_of_sources() -> None:
    url, replica = "http://a.example/resources/pg", "http://b.example/resources/pg"
    settings = load({"sources": [{"alias": "pg", "url": url, "replicas": [replica]}]})
    assert {url, replica} <= set(settings_of(settings, {}).sources)
