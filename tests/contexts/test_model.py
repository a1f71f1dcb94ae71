"""The store against dictionaries, under random operations of two callers."""

import hashlib
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from dai.config import LimitsConfig
from dai.errors import ConflictError, DaiError, LimitError, NotFoundError, PreconditionError
from dai.security.identity import Caller
from dai.service.contexts.contexts import Contexts
from dai.service.state.store import Store
from tests.thoroughness import examples

ROOM = 60
CALLERS = st.sampled_from([Caller("alice"), Caller("alice"), Caller("Alice")])
CONTENTS = st.binary(min_size=1, max_size=3).map(lambda each: each * 5)
PLACES = st.integers(0, 3)


def done(work: Callable[[], Any]) -> Any:
    """What it gives, or the kind of its error."""
    try:
        return work()
    except DaiError as error:
        return type(error)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store("sqlite://", "here")
        self.contexts = Contexts(self.store, LimitsConfig(contexts_bytes=ROOM, contexts_memory=1200), lambda *_: None)
        self.known: dict[tuple[str, str], tuple[bytes, int, tuple[str, ...]]] = {}
        """Content, version and parents by owner and id."""
        self.ids: list[str] = ["0" * 64]

    def teardown(self) -> None:
        self.contexts.close()
        self.store.close()

    def id(self, place: int) -> str:
        """The latest are the most likely."""
        return self.ids[-1 - place % len(self.ids)]

    def room(self, more: int) -> bool:
        return sum(len(content) for content, _, _ in self.known.values()) + more <= ROOM

    @rule(caller=CALLERS, content=CONTENTS, places=st.sets(PLACES, max_size=2))
    def put(self, caller: Caller, content: bytes, places: set[int]) -> None:
        id, parents = hashlib.sha256(content).hexdigest(), tuple(sorted({self.id(each) for each in places}))
        there = self.known.get((caller.name, id))
        given = done(lambda: self.contexts.put(content, "a/b", caller, None, parents).result())
        if there is not None:
            expected: Any = (there[0], False) if there[2] == parents else ConflictError
        elif any(self.known.get((caller.name, each), (b"", 1, ()))[1] for each in parents):
            expected = ConflictError
        else:
            expected = (content, True) if self.room(len(content)) else LimitError
        assert (given if isinstance(given, type) else (given[0].content, given[1])) == expected
        if expected == (content, True):
            self.known[caller.name, id] = content, 0, parents
            self.ids.append(id)

    @rule(caller=CALLERS, content=CONTENTS, places=st.sets(PLACES, max_size=1))
    def create(self, caller: Caller, content: bytes, places: set[int]) -> None:
        parents = tuple(self.id(each) for each in places)
        given = done(lambda: self.contexts.create(content, "a/b", caller, None, parents).result())
        if any((caller.name, each) not in self.known for each in parents):
            assert given is ConflictError
        elif not self.room(len(content)):
            assert given is LimitError
        else:
            self.known[caller.name, given.id] = content, 1, parents
            self.ids.append(given.id)

    @rule(caller=CALLERS, place=PLACES, content=CONTENTS, version=st.integers(1, 3) | st.none())
    def replace(self, caller: Caller, place: int, content: bytes, version: int | None) -> None:
        id = self.id(place)
        wanted = None if version is None else {version}
        given = done(lambda: self.contexts.replace(id, caller, wanted, content, "a/b").result().version)
        there = self.known.get((caller.name, id))
        if there is None:
            assert given is NotFoundError
        elif not there[1]:
            assert given is ConflictError
        elif version not in (None, there[1]):
            assert given is PreconditionError
        elif len(content) > len(there[0]) and not self.room(len(content) - len(there[0])):
            assert given is LimitError
        else:
            assert given == there[1] + 1
            self.known[caller.name, id] = content, given, there[2]

    @rule(caller=CALLERS, place=PLACES)
    def end(self, caller: Caller, place: int) -> None:
        id = self.id(place)
        given = done(lambda: self.contexts.end(id, caller).result())
        if (caller.name, id) not in self.known:
            assert given is NotFoundError
        elif any(owner == caller.name and id in parents for (owner, _), (_, _, parents) in self.known.items()):
            assert given is ConflictError
        else:
            assert given == caller.name
            del self.known[caller.name, id]

    @rule(caller=CALLERS, place=PLACES)
    def read(self, caller: Caller, place: int) -> None:
        given = done(lambda: self.contexts.get(self.id(place), caller))
        there = self.known.get((caller.name, self.id(place)), NotFoundError)
        assert (given if isinstance(given, type) else (given.content, given.version, given.parents)) == there

    @invariant()
    def lists_all(self) -> None:
        listed = self.contexts.listed(Caller("root", administrator=True))
        assert {(each.owner, each.id): (size, each.version) for each, size in listed} == {
            key: (len(content), version) for key, (content, version, _) in self.known.items()
        }


def test_the_store_is_what_dictionaries_are() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=examples(30), stateful_step_count=30))
