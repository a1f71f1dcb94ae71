"""Python values of columns: whatever makes them, they are those of pyarrow's ``to_pylist``."""

from __future__ import annotations

import datetime
import gc
import weakref
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dai.client.results import rows
from dai.client.results.rows import Rows, uncollected
from dai.errors import DataError
from dai.streams.stream import Stream
from tests.formats.columns import COLUMNS, columns
from tests.thoroughness import examples

MANY = 5_000


def rows_of(column: pa.Array, decimals: bool = False) -> list[Any]:
    batch = pa.record_batch([column], ["c"])
    return [row[0] for row in Rows(Stream(batch.schema, iter([batch])), decimals=decimals).take(None)]


def plain(column: pa.Array) -> list[Any] | None:
    """Moments in UTC; None for what Python cannot hold."""
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError, pa.ArrowException):
        return None
    if column.type in (pa.timestamp("us", "UTC"), pa.list_(pa.timestamp("us", "UTC"))):
        return _in_utc(values)
    return values


def _in_utc(values: list[Any]) -> list[Any]:
    """pyarrow gives the zone as a ``ZoneInfo``."""
    return [_in_utc(value) if isinstance(value, list) else value and value.astimezone(datetime.UTC) for value in values]


def same(column: pa.Array) -> None:
    wanted = plain(column)
    if wanted is None:
        with pytest.raises(DataError, match="'c'"):
            rows_of(column)
    else:
        assert repr(rows_of(column)) == repr(wanted)  # NaN is itself, and 1.50 is not 1.5


@pytest.mark.parametrize("type_", COLUMNS, ids=str)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_values_are_those_of_pyarrow(type_: pa.DataType, data: st.DataObject) -> None:
    column = data.draw(columns(type_))
    same(column)
    same(column[1:])


SOME = {
    "dates of a few years": pa.array([18_000 + number * 7 % 3_000 for number in range(MANY)], pa.date32()),
    "dates before 1970": pa.array([-number for number in range(MANY)], pa.date32()),
    "dates, some NULL": pa.array([number % 3 and number for number in range(MANY)], pa.date32()),
    "dates of all years": pa.array(np.linspace(-719_162, 2_932_896, MANY).astype(np.int32), pa.date32()),
    "the first and the last dates": pa.array([-719_162, -719_161] * MANY + [None], pa.date32()),
    "the last dates": pa.array([2_932_896, 2_932_895] * MANY, pa.date32()),
    "no dates": pa.nulls(MANY, pa.date32()),
    "prices": pa.array([Decimal(number) / 100 for number in range(-MANY, MANY)], pa.decimal128(12, 2)),
    "prices, some NULL": pa.array([Decimal(number) if number % 3 else None for number in range(MANY)]),
    "wide decimals": pa.array([Decimal(2**63 + number - MANY) for number in range(2 * MANY)], pa.decimal128(20, 0)),
    "moments": pa.array([number * 86_400_123_457 for number in range(-MANY, MANY)], pa.timestamp("us", "UTC")),
    "moments elsewhere": pa.array([1_700_000_000_000_000, None] * MANY, pa.timestamp("us", "Europe/Berlin")),
    "times": pa.array([number * 17_279_999 for number in range(MANY)], pa.time64("us")),
    "lists": pa.array([[number] * (number % 4) if number % 5 else None for number in range(MANY)]),
}


@pytest.mark.parametrize("name", SOME)
def test_many_values(name: str) -> None:
    column = SOME[name]
    if name == "moments elsewhere":  # PEP 249 has no zones: moments are in UTC
        column = column.cast(pa.timestamp("us", "UTC"))
        assert repr(rows_of(SOME[name])) == repr(rows_of(column))
    same(column)
    same(column[3:-2])


def test_a_decimal_is_the_same_whatever_the_caller_calculates_with() -> None:
    import decimal

    with decimal.localcontext(prec=3, rounding=decimal.ROUND_UP):
        (value,) = rows_of(pa.array([Decimal("1234567890.12")]))
    assert str(value) == "1234567890.12"


def test_numbers_as_text() -> None:
    field = pa.field("c", pa.string(), metadata={"dai.type": "numeric"})
    for texts in (["1.50", "NaN", "1e400"], ["1.50", None], ["1.50", "no number", None]):
        batch = pa.record_batch([pa.array(texts)], pa.schema([field]))
        wanted = [text if text in (None, "no number") else Decimal(text) for text in texts]
        made = Rows(Stream(batch.schema, iter([batch])), decimals=True).take(None)
        assert repr(made) == repr([(value,) for value in wanted])


def test_moments_share_one_zone() -> None:
    (value,) = rows_of(pa.array([0], pa.timestamp("us", "UTC")))
    assert value.tzinfo is datetime.UTC


@pytest.fixture
def collecting() -> Iterator[None]:
    """The tests themselves freeze what is loaded."""
    was, frozen, threshold = gc.isenabled(), gc.get_freeze_count(), gc.get_threshold()
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()
    if frozen:
        gc.freeze()
    if not was:
        gc.disable()


@pytest.mark.usefixtures("collecting")
def test_new_rows_are_none_that_the_garbage_collector_looks_at() -> None:
    """A portion of rows is not the reason for a pass over all of them; who froze objects keeps them frozen."""
    young: list[int] = []

    def counted(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            young.append(gc.get_count()[0])

    column = pa.array(range(50_000))
    gc.collect()
    gc.callbacks.append(counted)
    try:
        rows_of(column)
        made: list[list[int]] = [[] for _ in range(5_000)]
    finally:
        gc.callbacks.remove(counted)
    assert len(made) == 5_000
    assert young
    assert sorted(young)[-2] < 3_000, "8,192 if rows are young; those of the first portion are"
    gc.freeze()
    frozen = gc.get_freeze_count()
    rows_of(column)
    assert frozen // 2 < gc.get_freeze_count() <= frozen


class Holder:
    """Only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self
        batch = pa.record_batch([pa.array(range(2_000))], ["c"])
        self.rows = Rows(Stream(batch.schema, iter([batch])), decimals=False).take(None)


@pytest.mark.usefixtures("collecting")
def test_garbage_that_has_rows_is_soon_freed() -> None:
    """A few thousand rows make nothing old that was made shortly before: old garbage stays for long."""
    gc.collect()
    made = [weakref.ref(Holder()) for _ in range(100)]
    assert sum(each() is not None for each in made) < 50


@pytest.mark.usefixtures("collecting")
@pytest.mark.parametrize("name", ["collect", "disable", "get_freeze_count", "freeze", "unfreeze"])
def test_an_interrupt_leaves_the_garbage_collector_as_it_was(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    called = getattr(gc, name)

    def interrupted(*given: int) -> None:
        called(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(gc, name, interrupted)
    with pytest.raises(KeyboardInterrupt), uncollected(1_000_000):
        pass
    monkeypatch.undo()
    assert gc.isenabled()
    assert not gc.get_freeze_count()
    assert not rows._paused.locked()


@pytest.mark.usefixtures("collecting")
def test_a_garbage_collector_without_passes_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a threshold of 0 no pass begins by itself."""
    passes: list[int] = []
    monkeypatch.setattr(gc, "collect", passes.append)
    monkeypatch.setattr(gc, "get_threshold", lambda: (0, 10, 10))
    rows_of(pa.array(range(50_000)))
    assert not passes
