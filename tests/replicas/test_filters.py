"""Filters of names: none that is there is missed, few that are not seem to be, alone and side by side."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.errors import DataError
from dai.replicas.filters import SEED, Filter, Slices, arrow, hashed, hashes, size_for

NAMES = st.lists(st.text(min_size=1, max_size=40).filter(lambda each: each < "\ud800" or each > "\udfff"), max_size=50)


@given(NAMES, st.integers(0, 2**64 - 1))
def test_many_hashes_at_once_are_those_of_each(names: list[str], seed: int) -> None:
    assert hashes(arrow(names), seed).tolist() == [hashed(each, seed) for each in names]
    assert hashes(arrow(["x", *names]).slice(1), seed).tolist() == [hashed(each, seed) for each in names]


@given(NAMES)
def test_what_is_in_a_filter_is_found(names: list[str]) -> None:
    made = Filter.of(arrow(names))
    again = Filter.from_bytes(made.to_bytes())
    assert all(each in made and each in again for each in names)
    assert (again.names, again.size, again.seed) == (len(names), made.size, SEED)


def test_few_names_are_found_that_are_not_there() -> None:
    made = Filter.of(arrow([f"lfn://archive/{at:06}" for at in range(50_000)]))
    wrong = sum(f"lfn://archive/{at:06}" in made for at in range(50_000, 150_000))
    assert wrong <= 1000


@given(st.integers(0, 1 << 27))
def test_filters_have_ten_bits_a_name_and_few_sizes(names: int) -> None:
    size = size_for(names)
    assert size % 64 == 0
    assert names * 10 <= size <= max(names, 1024) * 12


def test_filters_side_by_side_answer_as_each_alone() -> None:
    """Put in, replaced and taken out in turn, past the width of a machine word."""
    generator = np.random.Generator(np.random.PCG64(7))
    size = size_for(0)
    slices = Slices(size, SEED)
    alone: dict[int, tuple[str, Filter]] = {}
    names = [f"n{at}" for at in range(300)]
    for step in range(300):
        made = Filter.of(arrow(list(generator.choice(names, 40))))
        if alone and step % 3 == 0:
            number = int(generator.choice(list(alone)))
            slices.remove(number)
            del alone[number]
        else:
            number = slices.put(f"c{step}", made.bits)
            assert number not in alone
            alone[number] = f"c{step}", made
    assert len(alone) > 64
    for name in names:
        expected = sorted(url for url, made in alone.values() if name in made)
        assert sorted(slices.having(hashed(name))) == expected
    number, (url, _) = next(iter(alone.items()))
    slices.add(number, hashed("another"))
    assert slices.having(hashed("another")) == [url]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"DAIF", b"x" * 100,
        Filter.empty(10).to_bytes()[:-1],
        Filter.empty(10).to_bytes() + b"\0",
        Filter.empty(10).to_bytes().replace(b"\x01\x00\x07\x00", b"\x02\x00\x07\x00"),
    ],
)  # fmt: skip
def test_what_is_no_filter_is_refused(data: bytes) -> None:
    with pytest.raises(DataError):
        Filter.from_bytes(data)


def test_names_that_are_too_long_are_refused() -> None:
    for each in ("", "x" * 1001):
        with pytest.raises(DataError):
            hashes(pa.array([each], pa.large_string()))
