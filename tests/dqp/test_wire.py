"""Fragments as JSON: what comes out is what went in, and nothing else is taken."""

import base64
import json
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.errors import DataError
from dqp.execution.fragment import Body, Called, Tuples
from dqp.execution.service_calls import Operation
from dqp.runtimes.flight.server import Ticket
from dqp.runtimes.wire import MOST_TEXT, Input, Received, RemoteInput, Task, decoded, encoded

OPERATION = Operation(
    name="root", types=(pa.int64(), pa.decimal128(12, 2)), result=pa.float64(), url="http://127.0.0.1:1/x", batch=7
)
names = st.text(min_size=1, max_size=12)
columns = st.lists(st.tuples(names, st.sampled_from(["BIGINT", "DECIMAL(12,2)", "VARCHAR"])), max_size=3).map(tuple)
tickets = st.builds(Ticket, names, st.integers(1, 9), names, st.integers(0, 99), names)
keys = st.lists(st.integers(-5, 5), max_size=3).map(lambda values: pa.table({"k1": pa.array(values, pa.int64())}))
remotes = st.builds(
    RemoteInput,
    st.lists(st.tuples(names, names, names), max_size=2).map(tuple),
    columns,
    st.dictionaries(names, keys, max_size=2),
    st.integers(0, 2),
)
received = st.builds(
    Received, st.lists(st.tuples(names, tickets), max_size=3).map(tuple), st.none() | columns, st.booleans()
)
tuples = st.builds(
    lambda values, told: Tuples(pa.table({"v": pa.array(values, pa.int64())}), told),
    st.lists(st.integers(-5, 5) | st.none(), max_size=4),
    st.none() | columns,
)
inputs = st.recursive(
    remotes | received | tuples,
    lambda below: st.builds(
        Called,
        st.just(OPERATION),
        st.builds(Body, names, st.dictionaries(names, below, max_size=2), st.frozensets(names), st.booleans()),
        st.integers(0, 5),
        names,
    ),
    max_leaves=4,
)
tasks = st.builds(
    Task,
    query=names,
    attempt=st.integers(1, 9),
    name=names,
    token=names,
    coordinator=names,
    body=st.builds(Body, st.text(), st.dictionaries(names, inputs, max_size=3), st.frozensets(names), st.booleans()),
    partitions=st.integers(1, 9),
    broadcast=st.booleans(),
    bucket=st.none() | names,
    types=st.none() | st.lists(names, max_size=3).map(tuple),
    names=st.none() | st.lists(names, max_size=3).map(tuple),
)

TASK = Task(query="q", attempt=1, name="0.0", token="t", coordinator="127.0.0.1:1", body=Body("x"))


@given(st.lists(tasks, max_size=3))
def test_there_and_back(given: list[Task]) -> None:
    text = encoded(given)
    assert text.isascii()
    assert not any(ord(each) < 32 for each in text)
    assert decoded(text) == tuple(given)


def test_tuples_keep_their_types() -> None:
    data = pa.table({"d": pa.array([Decimal("1.50"), None], pa.decimal128(12, 2)), "s": ["a", None]})
    (task,) = decoded(encoded([replace(TASK, body=Body("x", {"i1": Tuples(data)}))]))
    actual = task.body.inputs["i1"]
    assert isinstance(actual, Tuples)
    assert actual.data.equals(data)


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}x", "[1]", '[{"query": "q"}]', "null", "[" * 100_000],
)
def test_what_is_no_fragment_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="fragments cannot be read"):
        decoded(text)


def test_damaged_types_are_refused() -> None:
    called = Called(OPERATION, Body("x"), 1, "r")
    text = encoded([replace(TASK, body=Body("x", {"c": called}))])
    (made,) = json.loads(text)
    made["body"]["inputs"]["c"]["operation"]["types"] = base64.b64encode(
        b"\xff\xff\xff\xff\x08\0\0\0" + b"\x7f" * 8
    ).decode()
    with pytest.raises(DataError, match="fragments cannot be read"):
        decoded(json.dumps([made]))


@pytest.mark.parametrize("key", ["query", "name", "token", "coordinator"])
def test_long_names_are_refused(key: str) -> None:
    """An evaluator kept megabytes for each of them."""
    text = encoded([replace(TASK, **{key: "x" * (MOST_TEXT + 1)})])
    with pytest.raises(DataError, match="fragments cannot be read"):
        decoded(text)


def test_long_addresses_are_refused() -> None:
    remote = RemoteInput((("a", "http://127.0.0.1/" + "x" * MOST_TEXT, "SELECT 1"),), ())
    text = encoded([replace(TASK, body=Body("x", {"r1": remote}))])
    with pytest.raises(DataError, match="fragments cannot be read"):
        decoded(text)


def test_threads_of_inputs_have_a_limit() -> None:
    ticket = Ticket("q", 1, "f", 0, "t")
    operation = Operation(name="f", types=(pa.int64(),), result=pa.int64(), python="math:sqrt", concurrent=1000)
    called: Input = Tuples(pa.table({"a": [1]}))
    for _ in range(6):
        called = Called(operation, Body("x", {"c": called}), 1, "r")
    for each in (Received((("127.0.0.1:1", ticket),) * 5_001), called):
        text = encoded([replace(TASK, body=Body("x", {"i": each}))])
        with pytest.raises(DataError, match="more than 5,000 inputs"):
            decoded(text)


def test_numbers_that_are_none_are_refused() -> None:
    (made,) = json.loads(encoded([TASK]))
    inputs = {"kind": "remote", "places": [], "columns": None, "tables": {}, "bringing": float("inf")}
    with pytest.raises(DataError, match="fragments cannot be read"):
        decoded(json.dumps([{**made, "body": {"sql": "", "inputs": {"x1": inputs}, "repeated": []}}]))


@pytest.mark.parametrize(("key", "value"), [("attempt", "1"), ("token", 5), ("partitions", None), ("body", {"sql": 1})])
def test_a_member_of_another_type_is_refused(key: str, value: object) -> None:
    (made,) = json.loads(encoded([TASK]))
    with pytest.raises(DataError, match="fragments cannot be read"):
        decoded(json.dumps([{**made, key: value}]))
