"""The registry against a dictionary, under random operations of three callers, with leases on a clock of the test. Now
and then it is opened again, and a second one over the same database must say the same."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from dai.config import RegistryConfig
from dai.errors import ConflictError, DaiError, DeniedError, NotFoundError, ParameterError, QuotaError, TooLargeError
from dai.security.identity import Caller
from dai.service.registry import database, operations
from dai.service.registry.database import DELETED, MODIFIED, PUBLISHED, RENEWED
from dai.service.registry.entries import EVERYBODY, METADATA, Entry, Metadata
from dai.service.registry.operations import Publication
from dai.service.registry.registry import Registry
from tests.thoroughness import examples

ALICE, BOB, ROOT = Caller("alice"), Caller("bob"), Caller("root", administrator=True)
CALLERS = st.sampled_from([ALICE, ALICE, BOB, ROOT])
KEYS = st.sampled_from([f"urn:k:{each}" for each in range(5)])
PARENTS = st.none() | KEYS
KINDS = st.sampled_from(["business", "service", METADATA])
SECONDS = st.sampled_from([None, 5.0, 20.0])
READERS = st.sampled_from([EVERYBODY, EVERYBODY, ("alice",), ("bob",)])
TYPE = "http://example.org/terms#quality"


def entry(key: str, kind: str = "service", parent: str | None = None, name: str = "a", **more: Any) -> Entry:
    if kind == METADATA:
        return Entry(key=key, kind=kind, parent=parent, metadata=Metadata(type=TYPE, value=name), **more)
    return Entry(key=key, kind=kind, parent=parent, names=((name, ""),), **more)


def done(work: Callable[[], Any]) -> Any:
    """What it gives, or the kind of its error."""
    try:
        return work()
    except DaiError as error:
        return type(error)


@dataclass
class Known:
    """An entry as the model has it."""

    kind: str
    owner: str
    parent: str | None
    name: str
    readers: tuple[str, ...]
    expires: float | None
    deprecates: bool
    deprecated: bool = field(default=False)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.settings = RegistryConfig(store=f"sqlite:///{Path(self.directory.name) / 'registry.db'}")
        self.now = 1000.0
        self.registry, self.other = self.opened(), self.opened()
        self.known: dict[str, Known] = {}

    def opened(self) -> Registry:
        return Registry(self.settings, lambda: self.now)

    def teardown(self) -> None:
        self.registry.close()
        self.other.close()
        self.directory.cleanup()

    # The model

    def sees(self, caller: Caller, key: str) -> bool:
        each: str | None = key
        while each is not None:
            known = self.known[each]
            if not (caller.administrator or caller.name == known.owner or {"*", caller.name} & {*known.readers}):
                return False
            each = known.parent
        return True

    def drop(self, key: str) -> None:
        for each in [each for each, known in self.known.items() if known.parent == key]:
            self.drop(each)
        self.known.pop(key, None)

    def end(self) -> None:
        for key, known in list(self.known.items()):
            if key in self.known and known.expires is not None and known.expires <= self.now:
                if known.deprecates:
                    known.deprecated, known.expires = True, None
                else:
                    self.drop(key)

    def refusal(self, caller: Caller, key: str) -> type[DaiError] | None:
        """Of a change of that entry."""
        if key not in self.known or not self.sees(caller, key):
            return NotFoundError
        return None if caller.administrator or self.known[key].owner == caller.name else DeniedError

    def expected(self, caller: Caller, key: str, kind: str, parent: str | None) -> type[DaiError] | None:
        """Of a publication."""
        if key in self.known:
            if self.refusal(caller, key) is not None:
                return DeniedError
            if self.known[key].kind != kind:
                return ConflictError
        if parent is not None and (parent not in self.known or not self.sees(caller, parent)):
            return NotFoundError
        if kind == METADATA:
            if parent is None:
                return ParameterError
            return ConflictError if self.within(parent, key) else None
        if parent is None:
            return None
        if kind != "service" or self.known[parent].kind != "business":
            return ParameterError
        return None if caller.administrator or self.known[parent].owner == caller.name else DeniedError

    def within(self, key: str, top: str) -> bool:
        each: str | None = key
        while each is not None:
            if each == top:
                return True
            each = self.known[each].parent
        return False

    # Operations

    @rule(
        caller=CALLERS, key=KEYS, kind=KINDS, parent=PARENTS, name=st.sampled_from("ab"), readers=READERS,
        seconds=SECONDS, deprecates=st.booleans(), here=st.booleans(),
    )  # fmt: skip
    def publish(
        self, caller: Caller, key: str, kind: str, parent: str | None, name: str, readers: tuple[str, ...],
        seconds: float | None, deprecates: bool, here: bool,
    ) -> None:  # fmt: skip
        self.end()
        registry = self.registry if here else self.other
        new = entry(key, kind, parent, name, readers=readers, deprecates=deprecates)
        publications = [Publication(new, seconds)]
        given = done(
            lambda: registry.change(lambda draft: operations.publish(draft, caller, publications, self.settings))
        )
        expected = self.expected(caller, key, kind, parent)
        if expected is not None:
            assert given is expected
            return
        owner = self.known[key].owner if key in self.known else caller.name
        expires = None if seconds is None else self.now + seconds
        self.known[key] = Known(kind, owner, parent, name, readers, expires, deprecates)
        assert [each.key for each in given] == [key]

    @rule(caller=CALLERS, keys=st.lists(KEYS, min_size=1, max_size=2), seconds=st.sampled_from([5.0, 20.0]))
    def renew(self, caller: Caller, keys: list[str], seconds: float) -> None:
        self.end()
        given = done(
            lambda: self.registry.change(lambda draft: operations.renew(draft, caller, keys, seconds, self.settings))
        )
        refusals = [refusal for each in keys if (refusal := self.refusal(caller, each)) is not None]
        if refusals:
            assert given is refusals[0]
            return
        for each in keys:
            self.known[each].expires, self.known[each].deprecated = self.now + seconds, False

    @rule(caller=CALLERS, key=KEYS)
    def delete(self, caller: Caller, key: str) -> None:
        self.end()
        given = done(lambda: self.registry.change(lambda draft: operations.delete(draft, caller, [key])))
        assert given is self.refusal(caller, key)
        if given is None:
            self.drop(key)

    @rule(caller=CALLERS, key=KEYS, readers=READERS)
    def restrict(self, caller: Caller, key: str, readers: tuple[str, ...]) -> None:
        self.end()
        given = done(lambda: self.registry.change(lambda draft: operations.restrict(draft, caller, key, readers)))
        if (refusal := self.refusal(caller, key)) is not None:
            assert given is refusal
        else:
            self.known[key].readers = readers

    @rule(caller=CALLERS, key=KEYS)
    def deprecate(self, caller: Caller, key: str) -> None:
        self.end()
        given = done(lambda: self.registry.change(lambda draft: operations.deprecate(draft, caller, key)))
        if (refusal := self.refusal(caller, key)) is not None:
            assert given is refusal
        else:
            self.known[key].deprecated, self.known[key].expires = True, None

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def open_again(self) -> None:
        self.registry.close()
        self.registry = self.opened()

    @invariant()
    def says_what_the_model_says(self) -> None:
        self.end()
        for registry in (self.registry, self.other):
            with registry.reading() as mirror:
                there = {
                    key: Known(
                        each.kind, each.owner, each.parent, each.metadata.value if each.metadata else each.name,
                        each.readers, each.expires, each.deprecates, each.deprecated,
                    )
                    for key, each in mirror.entries.items()
                }  # fmt: skip
                assert there == self.known
                for caller in (ALICE, BOB, ROOT, Caller()):
                    seen = {each.key for each in mirror.shown(mirror.entries, caller, deprecated=True)}
                    assert seen == {key for key in self.known if self.sees(caller, key)}
                services = {key for key, known in self.known.items() if known.kind == "service" and known.name == "a"}
                assert set(mirror.named("service", "A")) == services
                assert mirror.having(("kind", "service"), ("name", "a")) == services
                metadata = {key for key, known in self.known.items() if known.kind == METADATA and known.name == "b"}
                assert mirror.having(("metadata", TYPE, "b")) == metadata


def test_the_registry_is_what_a_dictionary_is() -> None:
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples(25), stateful_step_count=25, deadline=None)
    )


@pytest.fixture
def config(tmp_path: Path) -> RegistryConfig:
    return RegistryConfig(store=f"sqlite:///{tmp_path / 'registry.db'}", owner_entries=3, entry_bytes=1000)


def publish(registry: Registry, *entries: Entry, whole: bool = False, seconds: float | None = None) -> list[Entry]:
    publications = [Publication(each, seconds) for each in entries]
    return registry.change(lambda draft: operations.publish(draft, ALICE, publications, registry.settings, whole=whole))


def test_all_entries_of_a_publication_or_none(config: RegistryConfig) -> None:
    registry = Registry(config)
    with pytest.raises(NotFoundError):
        publish(registry, entry("urn:a"), entry("urn:b", parent="urn:missing"))
    with pytest.raises(QuotaError):
        publish(registry, *(entry(f"urn:{each}") for each in range(4)))
    with pytest.raises(TooLargeError):
        publish(registry, entry("urn:a", name="x" * 1000))
    with registry.reading() as mirror:
        assert not mirror.entries
    assert registry.changes(0, 10) == []
    registry.close()


def test_a_large_entry_counts_for_several(tmp_path: Path) -> None:
    config = RegistryConfig(store=f"sqlite:///{tmp_path / 'registry.db'}", owner_entries=3)
    registry = Registry(config)

    def of(key: str, size: int) -> Entry:
        return entry(key, descriptions=(("x" * size, ""),))

    publish(registry, of("urn:a", 5_000))
    publish(registry, of("urn:b", 10))
    for each in (of("urn:a", 9_000), of("urn:b", 5_000), of("urn:c", 10)):
        with pytest.raises(QuotaError):
            publish(registry, each)
    publish(registry, of("urn:a", 10))
    publish(registry, of("urn:c", 10))
    registry.close()


def test_the_changes_in_order_without_gaps(config: RegistryConfig) -> None:
    registry = Registry(config)
    publish(registry, entry("urn:a"), seconds=9)
    publish(registry, entry("urn:a", name="b"), seconds=9)
    registry.change(lambda draft: operations.renew(draft, ALICE, ["urn:a"], 50, config))
    publish(registry, entry("urn:m", METADATA, "urn:a"))
    registry.change(lambda draft: operations.delete(draft, ALICE, ["urn:a"]))
    changes = registry.changes(0, 10)
    assert changes is not None
    assert [(each.number, each.action, each.key) for each in changes] == [
        (1, PUBLISHED, "urn:a"),
        (2, MODIFIED, "urn:a"),
        (3, RENEWED, "urn:a"),
        (4, PUBLISHED, "urn:m"),
        (5, DELETED, "urn:m"),
        (6, DELETED, "urn:a"),
    ]
    registry.close()


def test_what_is_published_again_as_it_is_changes_nothing_and_whole_takes_the_rest_away(config: RegistryConfig) -> None:
    registry = Registry(config)
    top, below = entry("urn:a", "business"), entry("urn:b", parent="urn:a")
    publish(registry, top, below)
    number = registry.number()
    publish(registry, top, below)
    assert registry.number() == number
    annotation = Publication(entry("urn:m", METADATA, "urn:a"))
    registry.change(lambda draft: operations.publish(draft, BOB, [annotation], config))
    publish(registry, top, whole=True)
    with registry.reading() as mirror:
        assert set(mirror.entries) == {"urn:a", "urn:m"}
    registry.close()


def test_nothing_is_about_itself(config: RegistryConfig) -> None:
    registry = Registry(config)
    publish(registry, entry("urn:a"), entry("urn:m", METADATA, "urn:a"), entry("urn:n", METADATA, "urn:m"))
    for about in ("urn:m", "urn:n"):
        with pytest.raises(ConflictError, match="cannot be about itself"):
            publish(registry, entry("urn:m", METADATA, about))
    registry.close()


def test_a_thousand_leases_are_renewed_at_once(tmp_path: Path) -> None:
    config = RegistryConfig(store=f"sqlite:///{tmp_path / 'registry.db'}")
    now = [1000.0]
    registry = Registry(config, lambda: now[0])
    keys = [f"urn:service:{each}" for each in range(1000)]
    publish(registry, *map(entry, keys), seconds=10)
    now[0] = 1009.0
    renewed = [
        registry.submit(lambda draft, key=key: operations.renew(draft, ALICE, [key], 10, config)) for key in keys[:999]
    ]
    for each in renewed:
        each.result()
    now[0] = 1018.9
    with registry.reading() as mirror:
        assert set(mirror.entries) == set(keys[:999])
    now[0] = 1019.0
    with registry.reading() as mirror:
        assert not mirror.entries
    registry.close()


def test_no_lease_ends_or_lasts_by_a_jump_of_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RegistryConfig(store=f"sqlite:///{tmp_path / 'registry.db'}")
    registry = Registry(config)
    publish(registry, entry("urn:a"), seconds=60)
    day = 86_400
    for jump in (day, -day):
        real = time.time()
        monkeypatch.setattr(time, "time", lambda: real + jump)  # noqa: B023 - used before the next one
        with registry.reading() as mirror:
            assert set(mirror.entries) == {"urn:a"}
    registry.close()


def test_a_clock_that_was_set_back_while_nobody_served(tmp_path: Path) -> None:
    config = RegistryConfig(store=f"sqlite:///{tmp_path / 'registry.db'}")
    now = [100_000.0]
    registry = Registry(config, lambda: now[0])
    publish(registry, entry("urn:a"), seconds=60)
    publish(registry, entry("urn:b"), seconds=3600)
    registry.close()
    now[0] = 5000.0
    registry = Registry(config, lambda: now[0])
    with registry.reading() as mirror:
        assert set(mirror.entries) == {"urn:a", "urn:b"}
    now[0] += 61
    with registry.reading() as mirror:
        assert set(mirror.entries) == {"urn:b"}
    publish(registry, entry("urn:c"), seconds=10)
    now[0] += 11
    with registry.reading() as mirror:
        assert set(mirror.entries) == {"urn:b"}
    registry.close()


def test_old_changes_are_forgotten_and_who_is_behind_reads_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "KEPT", 10)
    config = RegistryConfig(store=f"sqlite:///{tmp_path / 'registry.db'}")
    registry, behind = Registry(config), Registry(config)
    publish(registry, *(entry(f"urn:{each}") for each in range(1500)))
    registry.reap()
    assert registry.changes(0, 2000) is None
    kept = registry.changes(1490, 2000)
    assert kept is not None
    assert [each.number for each in kept] == list(range(1491, 1501))
    with behind.reading() as mirror:
        assert len(mirror.entries) == 1500
    registry.close()
    behind.close()
