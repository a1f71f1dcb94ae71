"""The catalog against a dictionary, under random operations, through each of its faces and on both databases."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dai.api.server.serve import Background
from dai.errors import ClosedError
from dai.replicas.catalog import operations, writer
from dai.replicas.catalog.catalog import Catalog
from dai.replicas.catalog.database import Connection
from dai.replicas.catalog.operations import Attribute, Changes, Value
from dai.replicas.codes import LOGICAL, TARGET, Code, Refused
from dai.replicas.names import beginning, like
from tests.replicas.conftest import RpcClient
from tests.thoroughness import examples

pytestmark = pytest.mark.server
NAMES = st.sampled_from(["a", "b", "ab", "A", "a_b", "a%b", "ä", "日本", "a'b", 'a"b\\', "x y", "a\nb", "0"])
PAIRS = st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=6)
PATTERNS = st.text("ab%_\\A*", max_size=4)
CHANGES = {"create", "add", "delete", "rename_logical", "rename_target"}


class Face(Protocol):
    def change(self, operation: str, pairs: list[tuple[str, str]]) -> list[int]: ...
    def partners(self, kind: int, name: str) -> list[str] | int: ...
    def matching(self, kind: int, pattern: str) -> list[tuple[str, str]]: ...
    def clear(self) -> None: ...


class Direct:
    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def change(self, operation: str, pairs: list[tuple[str, str]]) -> list[int]:
        return [int(each) for each in self.catalog.change(getattr(operations, operation), pairs)]

    def partners(self, kind: int, name: str) -> list[str] | int:
        try:
            return self.catalog.partners(kind, name)
        except Refused as error:
            return int(error.code)

    def matching(self, kind: int, pattern: str) -> list[tuple[str, str]]:
        try:
            return self.catalog.matching(kind, pattern)
        except Refused:
            return []

    def clear(self) -> None:
        self.catalog.change(operations.clear, [None])


METHODS = {
    "create": "lrc_create",
    "add": "lrc_add",
    "delete": "lrc_delete",
    "rename_logical": "lrc_renamelfn",
    "rename_target": "lrc_renamepfn",
}


class Rpc:
    def __init__(self, client: RpcClient) -> None:
        self.client = client

    def change(self, operation: str, pairs: list[tuple[str, str]]) -> list[int]:
        method = METHODS[operation]
        if len(pairs) == 1:
            return [self.client.call(method, *pairs[0])]
        refused = self.client.lists(3, f"{method}_bulk", *(text for pair in pairs for text in pair), "")
        codes = []
        for pair in pairs:  # only what is refused is told, in order
            if refused and refused[0][1:] == pair and self._is_refused(pairs, pair, refused, codes):
                codes.append(int(refused.pop(0)[0]))
            else:
                codes.append(0)
        return codes

    @staticmethod
    def _is_refused(
        pairs: list[tuple[str, str]], pair: tuple[str, str], refused: list[tuple[str, ...]], codes: list[int]
    ) -> bool:
        """Of equal pairs the last are refused."""
        left = pairs[len(codes) :].count(pair)
        return left <= sum(each[1:] == pair for each in refused)

    def partners(self, kind: int, name: str) -> list[str] | int:
        method = ("lrc_get_pfn", "lrc_get_lfn")[kind]
        listed = self.client.lists(2, method, name, "0", "0")
        return [each[1 - kind] for each in listed] if not self.client.code else self.client.code

    def matching(self, kind: int, pattern: str) -> list[tuple[str, str]]:
        listed = self.client.lists(2, ("lrc_get_pfn_wc", "lrc_get_lfn_wc")[kind], pattern, "0", "0")
        return [(logical, target) for logical, target in listed]

    def clear(self) -> None:
        assert self.client.call("lrc_clear") == 0


class Http:
    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def change(self, operation: str, pairs: list[tuple[str, str]]) -> list[int]:
        if operation.startswith("rename"):
            names = [{"from": old, "to": new} for old, new in pairs]
            body = {"of": operation.removeprefix("rename_"), "names": names}
            answer = self.client.post("/replicas/names/rename", json=body)
            told = ("from", "to")
        else:
            path = "/replicas/mappings/delete" if operation == "delete" else f"/replicas/mappings?mode={operation}"
            answer = self.client.post(path, json={"mappings": [{"logical": a, "target": b} for a, b in pairs]})
            told = ("logical", "target")
        assert answer.status_code == 200, answer.text
        refused = [(str(each["code"]), each[told[0]], each[told[1]]) for each in answer.json()["refused"]]
        assert answer.json()["done"] == len(pairs) - len(refused)
        codes: list[int] = []
        for pair in pairs:
            if refused and refused[0][1:] == pair and Rpc._is_refused(pairs, pair, refused, codes):
                codes.append(int(refused.pop(0)[0]))
            else:
                codes.append(0)
        return codes

    def partners(self, kind: int, name: str) -> list[str] | int:
        asked = ("logical", "target")[kind]
        answer = self.client.get("/replicas/mappings", params={asked: name})
        if answer.status_code == 404:
            return int(answer.json()["replica_code"])
        return [each[("target", "logical")[kind]] for each in answer.json()["mappings"]]

    def matching(self, kind: int, pattern: str) -> list[tuple[str, str]]:
        # its patterns are those of Unix
        unix = (
            "".join(
                {"%": "*", "_": "?"}.get(each, each) if not escaped else f"\\{each}" if each in "*?\\" else each
                for each, escaped in _characters(pattern)
            )
            or None
        )
        if unix is None:
            return []
        answer = self.client.get("/replicas/mappings", params={("logicalPattern", "targetPattern")[kind]: unix})
        return [(each["logical"], each["target"]) for each in answer.json()["mappings"]]

    def clear(self) -> None:
        assert self.client.delete("/replicas/mappings").status_code == 200


def _characters(pattern: str) -> Iterator[tuple[str, bool]]:
    """Of an SQL pattern, each with whether it stands for itself."""
    characters = iter(pattern)
    for each in characters:
        if each == "\\":
            yield next(characters, "\\"), True
        else:
            yield each, each not in "%_"


def fits(pattern: str, name: str) -> bool:
    written = "".join(
        re.escape(each) if itself else {"%": ".*", "_": "."}[each] for each, itself in _characters(pattern)
    )
    return re.fullmatch(written, name, re.DOTALL) is not None


def machine_for(make: Callable[[], Face]) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.face = make()
            self.face.clear()
            self.mapped: set[tuple[str, str]] = set()

        def names(self, kind: int) -> set[str]:
            return {pair[kind] for pair in self.mapped}

        @rule(pairs=PAIRS)
        def create(self, pairs: list[tuple[str, str]]) -> None:
            expected = []
            for pair in pairs:
                if pair[0] in self.names(LOGICAL):
                    expected.append(Code.LFN_EXIST)
                else:
                    self.mapped.add(pair)
                    expected.append(Code.OK)
            assert self.face.change("create", pairs) == expected

        @rule(pairs=PAIRS)
        def add(self, pairs: list[tuple[str, str]]) -> None:
            expected = []
            for pair in pairs:
                if pair[0] not in self.names(LOGICAL):
                    expected.append(Code.LFN_NEXIST)
                elif pair in self.mapped:
                    expected.append(Code.MAPPING_EXIST)
                else:
                    self.mapped.add(pair)
                    expected.append(Code.OK)
            assert sorted(self.face.change("add", pairs)) == sorted(expected)

        @precondition(lambda self: self.mapped)
        @rule(data=st.data())
        def delete(self, data: st.DataObject) -> None:
            pairs = data.draw(st.lists(st.sampled_from(sorted(self.mapped)) | st.tuples(NAMES, NAMES), max_size=4))
            pairs = [*dict.fromkeys(pairs)]
            expected = [Code.OK if pair in self.mapped else Code.MAPPING_NEXIST for pair in pairs]
            assert self.face.change("delete", pairs) == expected
            self.mapped -= set(pairs)

        @rule(kind=st.sampled_from([LOGICAL, TARGET]), old=NAMES, new=NAMES)
        def rename(self, kind: int, old: str, new: str) -> None:
            there = self.names(kind)
            if old not in there:
                expected = (Code.LFN_NEXIST, Code.PFN_NEXIST)[kind]
            elif new in there:
                expected = (Code.LFN_EXIST, Code.PFN_EXIST)[kind]
            else:
                expected = Code.OK
                moved = {pair for pair in self.mapped if pair[kind] == old}
                self.mapped -= moved
                self.mapped |= {(new, pair[1]) if kind == LOGICAL else (pair[0], new) for pair in moved}
            operation = ("rename_logical", "rename_target")[kind]
            assert self.face.change(operation, [(old, new)]) == [expected]

        @rule(kind=st.sampled_from([LOGICAL, TARGET]), name=NAMES)
        def look_up(self, kind: int, name: str) -> None:
            there = sorted(pair[1 - kind] for pair in self.mapped if pair[kind] == name)
            assert self.face.partners(kind, name) == (there or (Code.LFN_NEXIST, Code.PFN_NEXIST)[kind])

        @rule(kind=st.sampled_from([LOGICAL, TARGET]), pattern=PATTERNS)
        def match(self, kind: int, pattern: str) -> None:
            expected = [pair for pair in self.mapped if fits(pattern, pair[kind])]
            assert sorted(self.face.matching(kind, pattern)) == sorted(expected)

        @invariant()
        def all_is_there(self) -> None:
            assert sorted(self.face.matching(LOGICAL, "%")) == sorted(self.mapped)

    return Machine


def explore(make: Callable[[], Face]) -> None:
    run_state_machine_as_test(machine_for(make), settings=settings(max_examples=examples(20), stateful_step_count=20))


def _backslashes(catalog: Catalog) -> None:
    """A backslash at the end of a pattern is itself."""
    pair, face = ("a\\", "t\\"), Direct(catalog)
    assert face.change("create", [pair]) == [Code.OK]
    for pattern in ("a\\", "%\\", "a\\\\", "%\\\\"):
        assert face.matching(LOGICAL, pattern) == [pair], pattern
        assert [*catalog.pages(LOGICAL, pattern)] == [[pair]]
        assert [*catalog.logical_names(pattern)] == [[pair[0]]]
    assert face.matching(LOGICAL, "%\\\\\\") == []
    face.clear()


@pytest.mark.parametrize("database", ["sqlite", "redo log", "postgres"])
def test_direct(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str) -> None:
    """``redo log``: every change is held, and two are committed at once."""
    url = request.getfixturevalue("postgres_url") if database == "postgres" else f"sqlite:///{tmp_path / 'r.db'}"
    if database == "redo log":
        monkeypatch.setattr(writer, "LARGE", 1)
        monkeypatch.setattr(writer, "HELD", 2)
    catalog = Catalog(url)
    try:
        _backslashes(catalog)
        explore(lambda: Direct(catalog))
        _attributes(catalog)
    finally:
        catalog.close()


def test_rpc(rpc: RpcClient) -> None:
    explore(lambda: Rpc(rpc))


def test_http(located: Background) -> None:
    with httpx.Client(base_url=located.url, timeout=60) as client:
        explore(lambda: Http(client))


def _attributes(catalog: Catalog) -> None:
    """Attributes follow their names, and go with them."""
    catalog.change(operations.clear, [None])
    catalog.change(operations.create, [("a", "1"), ("b", "2")])
    assert catalog.change(
        operations.define, [Attribute("size", LOGICAL, "int"), Attribute("size", TARGET, "string")]
    ) == [0, 0]
    values = [Value("a", LOGICAL, "size", "int", 1 << 62), Value("1", TARGET, "size", "string", "x%")]
    assert catalog.change(operations.add_values, values) == [0, 0]
    assert catalog.change(operations.rename_logical, [("a", "c")]) == [0]
    assert catalog.values(LOGICAL, "c") == [values[0]._replace(key="c")]
    assert catalog.search(TARGET, "size", "like", [like("x%")]) == [values[1]]
    assert catalog.search(LOGICAL, "size", "ge", [1 << 62]) == [values[0]._replace(key="c")]
    assert catalog.change(operations.delete, [("c", "1")]) == [0]
    assert catalog.search(LOGICAL, "size", "all", []) == []
    assert catalog.change(operations.undefine(False), [Attribute("size", LOGICAL), Attribute("size", TARGET)]) == [0, 0]


def test_one_change_that_fails_does_not_take_others_with_it(tmp_path: Path) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path / 'r.db'}")

    def failing(*_: Any) -> list[Code]:
        raise ZeroDivisionError

    try:
        with catalog._writer._changed:  # one group of three
            answers = [
                catalog.submit(operations.create, [("a", "1")]),
                catalog.submit(failing, [None]),
                catalog.submit(operations.create, [("b", "2")]),
            ]
        assert (answers[0].result(), answers[2].result()) == ([0], [0])
        with pytest.raises(ZeroDivisionError):
            answers[1].result()
        assert catalog.counts() == {"logical": 2, "target": 2, "mappings": 2}
    finally:
        catalog.close()
    with pytest.raises(ClosedError):
        catalog.submit(operations.create, [])


def test_a_change_that_was_taken_back_stops_nobody_elses(tmp_path: Path) -> None:
    """A client that goes away while its change waits takes it back."""
    writing, waiting = threading.Event(), threading.Event()

    def slow(connection: Connection, items: Sequence[Any], changes: Changes) -> list[Code]:
        writing.set()
        waiting.wait(30)
        return [Code.OK]

    catalog = Catalog(f"sqlite:///{tmp_path / 'r.db'}")
    try:
        begun = catalog.submit(slow, [None])
        assert writing.wait(30)
        taken_back = catalog.submit(operations.create, [("a", "b")])
        assert taken_back.cancel()
        waiting.set()
        assert begun.result(30) == [Code.OK]
        assert catalog.submit(operations.create, [("c", "d")]).result(30) == [Code.OK]
        assert [each for page in catalog.pages(LOGICAL, "%") for each in page] == [("c", "d")]
    finally:
        catalog.close()


def test_all_pages_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dai.replicas.catalog.catalog.PORTION", 3)
    catalog = Catalog(f"sqlite:///{tmp_path / 'r.db'}")
    try:
        pairs = sorted((f"n{at}", f"t{at % 3}{more}") for at in range(7) for more in range(2))
        catalog.change(operations.put, pairs)
        assert [each for page in catalog.pages(LOGICAL, "%") for each in page] == pairs
        by_target = sorted(pairs, key=lambda pair: pair[::-1])
        assert [each for page in catalog.pages(TARGET, "t%") for each in page] == by_target
        assert [each for page in catalog.logical_names() for each in page] == [f"n{at}" for at in range(7)]
        assert catalog.partners_of(LOGICAL, ["n1", "no", "n6", "n0"]).keys() == {"n0", "n1", "n6"}
    finally:
        catalog.close()


def test_patterns_of_unix() -> None:
    assert like("a*b?c%d_e\\*\\?f\\") == "a%b_c\\%d\\_e*?f\\\\"
    assert beginning(like("a%b*c")) == "a%b"
    assert beginning("%x") == ""
