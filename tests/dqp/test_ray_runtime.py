"""The Ray runtime: ``on_ray`` where nobody else can reach Ray's ports, and what is wrong before there is a cluster."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from dai.errors import ConfigurationError
from dai.streams.cancellation import Cancellation
from dqp.execution.fragment import Body
from dqp.runtimes import RUNTIMES
from dqp.runtimes.ray import Actor
from dqp.runtimes.wire import Task, encoded
from dqp.settings import EvaluatorSettings, load
from tests.clusters import ALONE
from tests.servers import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(1200)
def test_queries_on_a_cluster() -> None:
    alone = [*ALONE, "--map-root-user"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/dqp/on_ray.py"]
    process = subprocess.run([*alone, *tests], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-6000:] + process.stderr[-2000:]


def test_no_cluster_is_said() -> None:
    settings = load({"sources": {}, "evaluators": [f"ray:127.0.0.1:{free_port()}"]})
    with pytest.raises(ConfigurationError, match="There is no Ray cluster"):
        RUNTIMES["ray"](None, settings)


def test_several_addresses_are_refused() -> None:
    settings = load({"sources": {}, "evaluators": ["ray:auto", "ray:other"]})
    with pytest.raises(ConfigurationError, match="one address of a Ray cluster"):
        RUNTIMES["ray"](None, settings)


def test_work_that_was_given_up_before_it_began_does_not_stay() -> None:
    """An actor that had stopped gets both calls when it goes on, in any order."""
    actor = Actor(EvaluatorSettings())
    task = Task(query="q", attempt=1, name="0.0", token="t", coordinator="127.0.0.1:1", body=Body("SELECT 1 AS a"))
    assert actor.begin("first", encoded([task]), {}) is None
    assert actor.state()["works"] == 1
    actor.end("first")
    actor.end("second")
    assert actor.begin("second", encoded([task]), {}) is None
    assert actor.state()["works"] == 0
    actor._evaluator.close()


def test_an_actor_that_was_begun_anew_does_not_know_the_work_of_the_one_before() -> None:
    actor = Actor(EvaluatorSettings())
    assert actor.report("before") is None
    actor._evaluator.close()


def test_an_actor_goes_on_with_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the work asks services, it hands it on to them."""
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=some"}
    actor = Actor(EvaluatorSettings())
    begun: list[Cancellation] = []
    monkeypatch.setattr(actor._evaluator, "begin", lambda tasks, cancellation: begun.append(cancellation) or Mock())
    for headers in (trace, {}):
        actor.begin(str(headers), encoded([]), headers)
    assert [None if each.span is None else each.span.headers for each in begun] == [trace, None]
    actor._evaluator.close()
