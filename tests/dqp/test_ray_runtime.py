"""The Ray runtime: ``on_ray`` where nobody else can reach Ray's ports, and what is wrong before there is a cluster."""

import subprocess
import sys
from pathlib import Path

import pytest

from dai.errors import ConfigurationError
from dqp.runtimes import RUNTIMES
from dqp.settings import load
from tests.clusters import ALONE
from tests.servers import free_port

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_queries_on_a_cluster() -> None:
    alone = [*ALONE, "--map-root-user"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/dqp/on_ray.py"]
    found = subprocess.run([*alone, *tests], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]


def test_no_cluster_is_said() -> None:
    settings = load({"sources": {}, "evaluators": [f"ray:127.0.0.1:{free_port()}"]})
    with pytest.raises(ConfigurationError, match="There is no Ray cluster"):
        RUNTIMES["ray"](None, settings)


def test_several_addresses_are_refused() -> None:
    settings = load({"sources": {}, "evaluators": ["ray:auto", "ray:other"]})
    with pytest.raises(ConfigurationError, match="One address"):
        RUNTIMES["ray"](None, settings)
