"""The index against what catalogs told it, and that nothing outlives its time."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from dai.errors import LimitError
from dai.replicas import index as index_module
from dai.replicas.codes import Code, Refused
from dai.replicas.filters import Filter, arrow
from dai.replicas.index import ReplicaIndex
from tests.thoroughness import examples

NAMES = [f"name-{at}" for at in range(12)]
SOME = st.lists(st.sampled_from(NAMES), unique=True)
URLS = st.sampled_from([f"https://c{at}" for at in range(4)])


@pytest.fixture
def index(tmp_path: Path) -> Iterator[ReplicaIndex]:
    made = ReplicaIndex(tmp_path)
    yield made
    made.close()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test moves."""
    moment = [1000.0]
    monkeypatch.setattr(index_module.time, "monotonic", lambda: moment[0])
    return moment


def told(index: ReplicaIndex, url: str, names: list[str], seconds: float = 100.0) -> None:
    update = index.update(url, len(names))
    for at in range(0, len(names), 5):
        update.add(names[at : at + 5])
    update.finish(seconds)


class Machine(RuleBasedStateMachine):
    """Names that were sent as names are known exactly; a filter may know more."""

    index: ReplicaIndex

    def __init__(self) -> None:
        super().__init__()
        for each in self.index.senders():
            self.index.withdraw(each.url)
        self.exact: dict[str, set[str]] = {}
        self.filtered: dict[str, set[str]] = {}

    @rule(url=URLS, names=SOME)
    def send_names(self, url: str, names: list[str]) -> None:
        told(self.index, url, names)
        self.filtered.pop(url, None)
        self.exact[url] = set(names)

    @rule(url=URLS, names=SOME)
    def send_filter(self, url: str, names: list[str]) -> None:
        self.index.put_filter(url, Filter.of(arrow(names)), 100.0)
        self.exact.pop(url, None)
        self.filtered[url] = set(names)

    @rule(url=URLS, added=SOME, removed=SOME)
    def send_changes(self, url: str, added: list[str], removed: list[str]) -> None:
        removed = [each for each in removed if each not in added]
        known = url in self.exact or url in self.filtered
        taken = self.index.change(url, added, removed, 100.0)
        assert known or not taken
        if url in self.exact:
            self.exact[url] = (self.exact[url] | set(added)) - set(removed)
        elif url in self.filtered:
            self.filtered[url] |= set(added)

    @rule(url=URLS)
    def withdraw(self, url: str) -> None:
        self.index.withdraw(url)
        self.exact.pop(url, None)
        self.filtered.pop(url, None)

    @rule()
    def look_up(self) -> None:
        answers = self.index.catalogs_of(NAMES)
        for name in NAMES:
            found = set(answers.get(name, ()))
            assert {url for url in found if url in self.exact} == {
                u for u, names in self.exact.items() if name in names
            }
            assert found >= {url for url, names in self.filtered.items() if name in names}
            assert found <= self.exact.keys() | self.filtered.keys()

    @rule()
    def match(self) -> None:
        expected = sorted((name, url) for url, names in self.exact.items() for name in names)
        if expected:
            assert self.index.matching("name-%") == (expected, bool(self.filtered))
            return
        with pytest.raises(Refused) as caught:
            self.index.matching("name-%")
        assert caught.value.code in (Code.LFN_NEXIST, Code.UNSUPPORTED)


def test_the_index_knows_what_it_was_told(index: ReplicaIndex) -> None:
    machine = type("Bound", (Machine,), {"index": index})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples(30), stateful_step_count=25))


def test_what_is_not_told_again_expires(index: ReplicaIndex, now: list[float]) -> None:
    told(index, "https://a", ["x"], seconds=10)
    told(index, "https://b", ["x"], seconds=20)
    index.put_filter("https://c", Filter.of(arrow(["x"])), 15)
    assert index.catalogs("x") == ["https://a", "https://b", "https://c"]
    now[0] += 10
    assert index.catalogs("x") == ["https://b", "https://c"], "not a moment longer, whether it was reaped or not"
    assert not index.change("https://a", ["y"], [], 10), "what has expired is told everything"
    now[0] += 5
    assert index.catalogs("x") == ["https://b"]
    assert index.change("https://b", ["y"], [], 100)
    now[0] += 50
    assert index.catalogs("y") == ["https://b"], "a change renews"
    index.reap()
    assert index.counts() == {"catalogs": 1, "names": 2}
    now[0] += 100
    index.reap()
    assert index.counts() == {"catalogs": 0, "names": 0}
    with pytest.raises(Refused, match="LFN doesn't exist: x"):
        index.catalogs("x")


def test_an_update_counts_when_it_has_ended(index: ReplicaIndex) -> None:
    told(index, "https://a", ["old"])
    update = index.update("https://a", 2)
    update.add(["new"])
    assert index.catalogs("old") == ["https://a"]
    assert index.catalogs_of(["new"]) == {}
    update.abandon()
    assert index.catalogs("old") == ["https://a"]
    update = index.update("https://a", 2)
    update.add(["new"])
    update.finish(10)
    assert index.catalogs_of(["old", "new"]) == {"new": ["https://a"]}


def test_a_filter_that_has_grown_full_asks_for_everything(index: ReplicaIndex) -> None:
    told(index, "https://a", ["x"])
    assert index.change("https://a", ["y"], [], 10)
    assert not index.change("https://a", [f"n{at}" for at in range(5)], [], 10)


def test_catalogs_are_bounded(index: ReplicaIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MOST_CATALOGS", 1)
    told(index, "https://a", ["x"])
    told(index, "https://a", ["y"])
    with pytest.raises(LimitError):
        index.update("https://b", 1)
