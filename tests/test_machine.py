"""How many processes serve by themselves, and what control groups allow of the machine."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dai.api.server.supervisor import possible_workers
from dai.config import parse
from dai.streams import machine

LITE: Mapping[str, Any] = {"url": "sqlite:///a.db"}
DUCK: Mapping[str, Any] = {"url": "duckdb:///a.duckdb"}
LAB: Mapping[str, Any] = {"sources": [{"alias": "lite", "url": "sqlite:///a.db"}]}
CORES = os.sched_getaffinity(0)


def _groups(root: Path, said: str | None, limits: Mapping[str, str]) -> None:
    own = {"proc/self/cgroup": said} if said is not None else {}
    for name, text in {**own, **{f"sys/fs/cgroup/{each}": limit for each, limit in limits.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("said", "limits"),
    [
        ("0::/a/b\n", {"a/memory.max": "1000000\n", "a/b/memory.max": "max\n"}),
        ("0::/a/b\n", {"a/memory.max": "2000000\n", "a/b/memory.max": "1000000\n"}),
        (None, {"memory/memory.limit_in_bytes": "1000000\n"}),
    ],
)
def test_control_groups_bound_the_memory(tmp_path: Path, said: str | None, limits: Mapping[str, str]) -> None:
    _groups(tmp_path, said, limits)
    assert machine.memory(tmp_path) == 1_000_000


@pytest.mark.parametrize(
    ("said", "limits", "cores"),
    [
        (None, {}, 8),
        ("0::/a/b\n", {"a/cpu.max": "250000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),
        ("0::/a/b\n", {"a/cpu.max": "250000 100000\n", "a/b/cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "9000000 100000\n"}, 8),
        (None, {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        (None, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_control_groups_bound_the_cores(
    tmp_path: Path, said: str | None, limits: Mapping[str, str], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    _groups(tmp_path, said, limits)
    assert machine.cores(tmp_path) == cores


def test_the_machine_itself() -> None:
    assert 1 <= machine.cores() <= len(CORES)


@pytest.mark.parametrize(
    ("configured", "cores", "workers"),
    [
        ({"resources": {"a": LITE}}, 4, 4),
        ({"resources": {"a": LITE}}, 100, 8),  # two connections of 16 for each
        ({"resources": {"a": {**LITE, "pool_size": 1000}}}, 100, 64),
        ({"resources": {"a": LITE, "b": {"url": "postgresql://h/b", "pool_size": 5}}}, 4, 2),
        ({"resources": {"a": {**LITE, "pool_size": 3}}}, 4, 0),
        ({"resources": {"a": LITE}}, 1, 0),
        ({"resources": {"a": LITE, "b": DUCK}}, 4, 0),
        ({"resources": {"a": {"url": "sqlite://"}}}, 4, 0),
        ({"resources": {"a": LITE}, "federations": {"lab": LAB}}, 4, 0),
        ({"resources": {"a": LITE}, "service": {"state": "sqlite://"}}, 4, 0),
        ({}, 4, 0),
        ({"resources": {"a": LITE}, "service": {"workers": 1}}, 4, 0),
        ({"resources": {"a": LITE}, "service": {"workers": 3}}, 1, 3),
        ({"resources": {"a": LITE, "b": DUCK}, "service": {"workers": 3}}, 4, 3),
        ({"resources": {"b": DUCK}, "service": {"workers": 3}}, 4, 1),
    ],
)
def test_as_many_workers_as_cores_where_each_can_have_every_resource(
    configured: Mapping[str, Any],
    cores: int,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("dai.streams.machine.cores", lambda: cores)
    caplog.set_level("INFO", logger="dai.api")
    assert possible_workers(parse(configured, environment={})) == workers
    chosen = "workers" not in configured.get("service", {})
    assert [hasattr(each, "why") for each in caplog.records] == [True] * ((chosen and workers == 0) or workers == 1)
