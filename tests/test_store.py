from collections.abc import Iterator
from pathlib import Path

import pytest

from dai.errors import ConfigurationError, DatabaseUnavailableError
from dai.store import Job, Store


def job(id: str, phase: str = "QUEUED", created: float = 1.0) -> Job:
    return Job(id, "here", "book", phase, "perform", b"<x/>", created=created, destruction=created + 10)


@pytest.fixture(params=["file", "memory", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    urls = {"file": f"sqlite:///{tmp_path / 'deep' / 'state.db'}", "memory": "sqlite://"}
    url = urls.get(request.param) or request.getfixturevalue("postgres_url")
    made = Store(url, "here")
    yield made
    made.close()


def test_what_is_stored_is_found(store: Store) -> None:
    store.check()
    store.add(job("a"))
    store.add(job("b", "COMPLETED", 2.0))
    assert store.get("a") == job("a")
    assert store.get("c") is None
    assert [each.id for each in store.listed()] == ["b", "a"]
    assert [each.id for each in store.listed({"QUEUED"})] == ["a"]
    assert [each.id for each in store.listed(limit=1)] == ["b"]
    assert store.due(11.5) == ["a"]
    store.remove("a")
    assert store.get("a") is None


def test_a_change_happens_only_from_the_phases_it_expects(store: Store) -> None:
    store.add(job("a"))
    outputs = [{"name": "x", "rows": 3}]
    changed = store.change(job("a"), {"QUEUED"}, phase="EXECUTING", outputs=outputs)
    assert changed is not None
    assert store.get("a") == changed
    assert changed.outputs == outputs
    assert store.change(job("a"), {"QUEUED"}, phase="ABORTED") is None
    found = store.get("a")
    assert found is not None
    assert found.phase == "EXECUTING"


def test_services_that_share_a_database_see_their_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    one, other = Store(url, "here"), Store(url, "there")
    one.add(job("a"))
    assert other.listed() == []
    assert other.get("a") is None
    one.close()
    other.close()


def test_a_state_database_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="state database"):
        Store("sqlite:////proc/nothing/state.db", "here")


def test_a_state_database_that_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Store(f"sqlite:///{path}", "here")
    store.close()
    path.unlink()
    for leftover in tmp_path.glob("state.db-*"):
        leftover.unlink()
    with pytest.raises(DatabaseUnavailableError) as caught:
        store.listed()
    assert str(path) not in str(caught.value)
