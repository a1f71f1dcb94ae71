"""Filters of names: a set that may say yes to a name that is not in it, and never no to one that is.

Those of many catalogs lie side by side, a machine word for each bit of a filter and a bit of the word for each
catalog, so that one look-up asks all of them at once (a bit-sliced signature file).

A name's hash is ``sum((byte + 1) * weight[place])`` modulo 2**64, which numpy computes for a million names at once;
splitmix64 makes the weights from the seed, and mixes the sum. The places in a filter are those of double hashing.

Source: B. Bloom, "Space/time trade-offs in hash coding with allowable errors" (CACM 1970); A. Kirsch and
M. Mitzenmacher, "Less hashing, same performance" (2006); D. Lemire and O. Kaser, "Strongly universal string hashing is
fast" (2014); S. Vigna, splitmix64.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import mul

import numpy as np
import pyarrow as pa

from dai.errors import DataError
from dai.replicas.names import MOST_BYTES

HASHES = 7
BITS = 10
"""For each name: 0.8 % of the names that are not there seem to be."""
SEED = 0x9E3779B97F4A7C15
_FORMAT = struct.Struct("<4sHHQQQ")
_MAGIC, _VERSION = b"DAIF", 1
_ALL = (1 << 64) - 1
_STEP = 4
"""Sizes of filters between a power of two and the next: those of about as many names have one size."""
_LEAST = 1024
MOST_BITS = 1 << 31
_AT_ONCE = 1 << 22


def _mixed(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _ALL
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _ALL
    return value ^ (value >> 31)


class _Weights:
    """Of the places of a name's bytes, and their sums up to each place."""

    def __init__(self, seed: int) -> None:
        self.weights = [_mixed((seed + (at + 1) * 0x9E3779B97F4A7C15) & _ALL) | 1 for at in range(MOST_BYTES + 1)]
        sums = [0]
        for each in self.weights:
            sums.append((sums[-1] + each) & _ALL)
        self.sums = sums
        self.array = np.array(self.weights, np.uint64)


_made: dict[int, _Weights] = {}


def _weights(seed: int) -> _Weights:
    if seed not in _made:
        if len(_made) > 16:
            _made.clear()
        _made[seed] = _Weights(seed)
    return _made[seed]


def hashed(name: str, seed: int = SEED) -> int:
    weights, data = _weights(seed), name.encode()
    return _mixed(sum(map(mul, data, weights.weights), weights.sums[len(data)]) & _ALL)


def hashes(names: pa.Array, seed: int = SEED) -> np.ndarray:
    """Of an Arrow array of texts: shape (names,), uint64."""
    if len(names) == 0:
        return np.empty(0, np.uint64)
    array = names.cast(pa.large_binary())
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets)
    if (lengths == 0).any() or (lengths > MOST_BYTES).any():
        raise DataError(f"A name must have 1 to {MOST_BYTES:,} bytes.")
    data = np.frombuffer(array.buffers()[2], np.uint8)
    weights = _weights(seed).array
    sums = np.empty(len(array), np.uint64)
    with np.errstate(over="ignore"):
        at = 0
        while at < len(array):
            end = max(at + 1, int(np.searchsorted(offsets, offsets[at] + _AT_ONCE, "right")) - 1)
            own = offsets[at : end + 1]
            begins = own[:-1] - own[0]
            places = np.arange(own[-1] - own[0]) - np.repeat(begins, lengths[at:end])
            terms = (data[own[0] : own[-1]].astype(np.uint64) + np.uint64(1)) * weights[places]
            sums[at:end] = np.add.reduceat(terms, begins)
            at = end
        value = (sums ^ (sums >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def size_for(names: int) -> int:
    """The bits of a filter of so many names."""
    steps = math.ceil(_STEP * math.log2(max(names, _LEAST) / _LEAST))
    return (int(BITS * _LEAST * 2 ** (steps / _STEP)) + 63) // 64 * 64


def _places(value: int, size: int) -> list[int]:
    step = value >> 32 | 1
    return [(value + at * step & _ALL) % size for at in range(HASHES)]


@dataclass
class Filter:
    """``bits``: one byte has eight places, the lowest bit first; ``names``: how many are in it."""

    size: int
    bits: np.ndarray
    names: int = 0
    seed: int = SEED

    @classmethod
    def of(cls, names: pa.Array | Iterable[pa.Array], expected: int | None = None) -> Filter:
        """Of an array of texts, or of several of ``expected`` texts together."""
        if isinstance(names, pa.Array):
            names, expected = [names], len(names)
        filled = cls.empty(expected or 0)
        for each in names:
            filled.add(each)
        return filled

    @classmethod
    def empty(cls, expected: int) -> Filter:
        size = size_for(expected)
        return cls(size, np.zeros(size // 8, np.uint8))

    def add(self, names: pa.Array) -> None:
        values = hashes(names, self.seed)
        step = values >> np.uint64(32) | np.uint64(1)
        with np.errstate(over="ignore"):
            for at in range(HASHES):
                place = (values + np.uint64(at) * step) % np.uint64(self.size)
                mask = np.left_shift(np.uint8(1), (place & np.uint64(7)).astype(np.uint8))
                np.bitwise_or.at(self.bits, (place >> np.uint64(3)).astype(np.int64), mask)
        self.names += len(names)

    def __contains__(self, name: str) -> bool:
        return all(self.bits[at >> 3] >> (at & 7) & 1 for at in _places(hashed(name, self.seed), self.size))

    def to_bytes(self) -> bytes:
        """The filter behind a head of 32 bytes, little-endian: ``DAIF``, version 1, the number of hashes (2 bytes
        each), seed, size in bits, names (8 bytes each)."""
        return _FORMAT.pack(_MAGIC, _VERSION, HASHES, self.seed, self.size, self.names) + self.bits.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Filter:
        """DataError for what is no filter of this version."""
        view = memoryview(data)
        if len(view) < _FORMAT.size or bytes(view[:4]) != _MAGIC:
            raise DataError("This is not a filter of names.")
        _, version, count, seed, size, names = _FORMAT.unpack(view[: _FORMAT.size])
        if version != _VERSION or count != HASHES:
            raise DataError(f"The filter has version {version} with {count} hashes; version {_VERSION} has {HASHES}.")
        if not 0 < size <= MOST_BITS or size % 64 or len(view) != _FORMAT.size + size // 8:
            raise DataError("The length of the filter is not the one in its head.")
        return cls(size, np.frombuffer(view[_FORMAT.size :], np.uint8), names, seed)


class Slices:
    """Filters of one size and seed, side by side. Each has a number, which it gives up when it is taken out."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self._free: list[int] = []
        self._words = 0
        self._rows = np.zeros((0, size), np.uint64)
        self._views: list[memoryview] = []
        self.members: dict[int, str] = {}

    def put(self, catalog: str, bits: np.ndarray) -> int:
        if not self._free:
            self._free = list(range(64 * self._words + 63, 64 * self._words - 1, -1))
            self._words += 1
            self._rows = np.concatenate([self._rows, np.zeros((1, self.size), np.uint64)])
            self._views = [each.data for each in self._rows]
        number = self._free.pop()
        self._set(number, bits)
        self.members[number] = catalog
        return number

    def _set(self, number: int, bits: np.ndarray) -> None:
        row, mask = self._rows[number >> 6], np.uint64(1 << (number & 63))
        row &= ~mask
        row |= np.where(np.unpackbits(bits, bitorder="little").view(bool), mask, np.uint64(0))

    def replace(self, number: int, bits: np.ndarray) -> None:
        self._set(number, bits)

    def remove(self, number: int) -> None:
        self._rows[number >> 6] &= ~np.uint64(1 << (number & 63))
        del self.members[number]
        self._free.append(number)

    def add(self, number: int, value: int) -> None:
        """One more name, by its hash."""
        row, mask = self._rows[number >> 6], np.uint64(1 << (number & 63))
        for at in _places(value, self.size):
            row[at] |= mask

    def having(self, value: int) -> list[str]:
        """The catalogs whose filter has the hash."""
        places, members = _places(value, self.size), self.members
        having = []
        for word, view in enumerate(self._views):
            mask = _ALL
            for at in places:
                mask &= view[at]
                if not mask:
                    break
            while mask:
                lowest = mask & -mask
                having.append(members[64 * word + lowest.bit_length() - 1])
                mask ^= lowest
        return having


def arrow(names: Sequence[str]) -> pa.Array:
    return pa.array(names, pa.large_string())
