"""HTTP content codings (RFC 9110 section 8.4): which one a client gets, and streams through it, block by block.

Every chunk is flushed, so what goes in comes out at once; the price is a few bytes a chunk.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import zstandard

from dai.errors import DataError, NotAcceptableError, TruncatedError
from dai.formats.blocks import closing

IDENTITY = "identity"
CODINGS = ("zstd", "gzip")
"""The content codings that are offered, the better one first."""
_ALIASES = {"x-gzip": "gzip"}
_ZSTD_LEVEL = 1
_GZIP_LEVEL = 1
"""The fastest levels: on result rows the higher ones give a tenth at a third of the speed (zstd) or less (gzip)."""
_ZSTD_WINDOW = 1 << 23
"""RFC 9659: a decoder of the coding ``zstd`` need not support a window above 8 MiB."""
_SLICE = {"zstd": 1 << 10, "gzip": 1 << 15}
"""Input bytes at a time when decompressing. A byte becomes at most 32 KiB (zstd) or 1 KiB (gzip), so that a bomb from
whatever sender takes 32 MiB at most before what it gave is handed on."""


@lru_cache(256)
def negotiate(accept_encoding: str | None) -> str:
    """The coding for a request's Accept-Encoding: the one of the highest weight, zstd before gzip before identity.

    No header means identity. Raises NotAcceptableError where the header forbids all three (RFC 9110 section 12.5.3).
    """
    if accept_encoding is None:
        return IDENTITY
    weights: dict[str, float] = {}
    for member in accept_encoding.split(","):
        coding, *parameters = (part.strip().lower() for part in member.split(";"))
        if coding:
            weights[_ALIASES.get(coding, coding)] = quality(parameters)
    rest = weights.get("*")
    offered = {coding: weights.get(coding, rest or 0.0) for coding in CODINGS}
    # Identity is acceptable unless it is excluded, but only asked for where it is named.
    offered[IDENTITY] = weights.get(IDENTITY, 0.0 if rest == 0.0 else 1e-4)
    best = max(offered, key=lambda coding: offered[coding])
    if not offered[best]:
        raise NotAcceptableError(
            "Accept-Encoding forbids every coding that the service has.",
            hint=f"Known: {', '.join(CODINGS)}, {IDENTITY}.",
        )
    return best


def quality(parameters: list[str]) -> float:
    """The q-value among the parameters: 1 without one, 0 for one that is none."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if 0.0 <= weight <= 1.0 else 0.0
    return 1.0


def compress(chunks: Iterable[Any], coding: str) -> Iterator[bytes]:
    """One chunk of compressed bytes for each chunk (any buffer), decodable as soon as it is there, and one that ends
    the coding. Closing the generator closes ``chunks``. Raises NotAcceptableError for an unknown coding.
    """
    if coding == IDENTITY:
        return _passed(chunks)
    if coding not in CODINGS:
        raise _unknown(coding)
    return _compressed(chunks, coding)


def _unknown(coding: str) -> NotAcceptableError:
    return NotAcceptableError(f"There is no content coding {coding!r}.", hint=f"Known: {', '.join(CODINGS)}.")


def _passed(chunks: Iterable[Any]) -> Iterator[bytes]:
    try:
        yield from chunks
    finally:
        closing(chunks)()


def _compressed(chunks: Iterable[Any], coding: str) -> Iterator[bytes]:
    compressor = Compressor(coding)
    try:
        for chunk in chunks:
            if data := compressor.add(chunk):
                yield data
        yield compressor.end()
    finally:
        closing(chunks)()


class Compressor:
    """One body in a coding. NotAcceptableError for an unknown one; ``identity`` needs none."""

    def __init__(self, coding: str) -> None:
        self._compressor: Any
        if coding == "zstd":
            self._compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj()
            self._flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK
        elif coding == "gzip":
            self._compressor = zlib.compressobj(_GZIP_LEVEL, wbits=zlib.MAX_WBITS | 16)
            self._flush = zlib.Z_SYNC_FLUSH
        else:
            raise _unknown(coding)

    def add(self, chunk: Any) -> bytes:
        """What a chunk (any buffer) becomes, decodable as soon as it is there."""
        coded: bytes = self._compressor.compress(memoryview(chunk)) + self._compressor.flush(self._flush)
        return coded

    def end(self) -> bytes:
        """What ends the coding."""
        coded: bytes = self._compressor.flush()
        return coded


def decompress(chunks: Iterable[bytes], coding: str) -> Iterator[bytes]:
    """The bytes inside, each as soon as it can be known; several members or frames one after the other are read as one.

    Raises TruncatedError where the coding does not come to its end, DataError for bytes that are none of it,
    NotAcceptableError for an unknown coding. Closing the generator closes ``chunks``.
    """
    coding = _ALIASES.get(coding.lower(), coding.lower())
    if coding == IDENTITY:
        return _passed(chunks)
    if coding not in CODINGS:
        raise _unknown(coding)
    return _decompressed(chunks, coding)


def _decompressor(coding: str) -> Any:
    if coding == "zstd":
        return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


def _decompressed(chunks: Iterable[bytes], coding: str) -> Iterator[bytes]:
    decompressor: Any = None
    step = _SLICE[coding]
    try:
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            for start in range(0, view.nbytes, step):
                rest: Any = view[start : start + step]
                while rest:
                    decompressor = decompressor or _decompressor(coding)
                    data = decompressor.decompress(rest)
                    rest = decompressor.unused_data if decompressor.eof else b""
                    if decompressor.eof:
                        decompressor = None
                    if data:
                        yield data
    except (zlib.error, zstandard.ZstdError) as error:
        raise DataError(f"The body is not {coding}: {error}") from error
    finally:
        closing(chunks)()
    if decompressor is not None:
        raise TruncatedError(f"The {coding} coding of the body ends before it should.")
