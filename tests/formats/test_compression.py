"""Content codings: negotiation, early blocks, truncation, bombs."""

import gzip
import tracemalloc
from collections.abc import Iterator

import httpx
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dai.errors import DataError, NotAcceptableError, TruncatedError
from dai.formats.compression import CODINGS, compress, decompress, negotiate


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (None, "identity"),
        ("", "identity"),
        ("gzip", "gzip"),
        ("x-gzip", "gzip"),
        ("GZip", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip, deflate, br", "gzip"),
        ("br", "identity"),
        ("gzip;q=0.5, zstd;q=0.4", "gzip"),
        ("gzip ; Q=0.001", "gzip"),
        ("zstd;q=0, *", "gzip"),
        ("*", "zstd"),
        ("*;q=0, gzip", "gzip"),
        ("identity, gzip;q=0.5", "identity"),
        ("identity;q=0.5, gzip;q=0.6", "gzip"),
        ("identity;q=0, gzip", "gzip"),
        ("gzip;q=0", "identity"),
        ("gzip;q=nonsense", "identity"),
        ("gzip;q=7", "identity"),
    ],
)
def test_negotiation(header: str | None, coding: str) -> None:
    assert negotiate(header) == coding


@pytest.mark.parametrize("header", ["identity;q=0", "*;q=0", "br, *;q=0", "zstd;q=0, gzip;q=0, identity;q=0"])
def test_nothing_acceptable(header: str) -> None:
    with pytest.raises(NotAcceptableError):
        negotiate(header)


@pytest.mark.parametrize("coding", [*CODINGS, "identity"])
@given(chunks=st.lists(st.binary(max_size=3000), max_size=5), cut=st.integers(1, 5000))
def test_what_goes_in_comes_out(coding: str, chunks: list[bytes], cut: int) -> None:
    coded = b"".join(compress(chunks, coding))
    pieces = [coded[start : start + cut] for start in range(0, len(coded), cut)]
    assert b"".join(decompress(pieces, coding)) == b"".join(chunks)


def test_other_implementations_read_it() -> None:
    data = [b"a,b\r\n" * 1000, b"1,2\r\n" * 1000]
    assert gzip.decompress(b"".join(compress(data, "gzip"))) == b"".join(data)
    body = b"".join(compress(data, "zstd"))
    assert zstandard.ZstdDecompressor().stream_reader(body).read() == b"".join(data)
    for coding in CODINGS:
        response = httpx.Response(200, headers={"content-encoding": coding}, content=b"".join(compress(data, coding)))
        assert response.content == b"".join(data)


@pytest.mark.parametrize("coding", CODINGS)
def test_each_block_can_be_read_before_the_next_is_made(coding: str) -> None:
    made = 0

    def blocks() -> Iterator[bytes]:
        nonlocal made
        for number in range(20):
            made += 1
            yield b"block %d;" % number

    read = decompress(compress(blocks(), coding), coding)
    for number in range(20):
        assert next(read) == b"block %d;" % number
        assert made == number + 1
    assert list(read) == []


@pytest.mark.parametrize("coding", CODINGS)
def test_cut_anywhere_is_noticed(coding: str) -> None:
    coded = b"".join(compress([b"one", b"two" * 100], coding))
    for end in range(1, len(coded)):
        with pytest.raises(TruncatedError):
            list(decompress([coded[:end]], coding))


@pytest.mark.parametrize("coding", CODINGS)
def test_an_empty_body_is_empty(coding: str) -> None:
    assert list(decompress([], coding)) == []
    assert b"".join(decompress(compress([], coding), coding)) == b""


@pytest.mark.parametrize("coding", CODINGS)
def test_members_follow_each_other(coding: str) -> None:
    coded = b"".join(compress([b"one"], coding)) + b"".join(compress([b"two"], coding))
    assert b"".join(decompress([coded], coding)) == b"onetwo"


@pytest.mark.parametrize("coding", CODINGS)
def test_what_is_not_compressed_is_refused(coding: str) -> None:
    with pytest.raises(DataError, match=coding):
        list(decompress([b"<html>no</html>"], coding))


@pytest.mark.parametrize("coding", CODINGS)
def test_a_bomb_goes_off_in_parts(coding: str) -> None:
    bomb = b"".join(compress([bytes(1 << 20)] * 256, coding))
    tracemalloc.start()
    try:
        assert sum(map(len, decompress([bomb], coding))) == 1 << 28
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("way", [compress, decompress])
def test_unknown_coding(way: object) -> None:
    with pytest.raises(NotAcceptableError, match="br"):
        way([b""], "br")  # type: ignore[operator]


@pytest.mark.parametrize("coding", [*CODINGS, "identity"])
def test_closing_closes_the_source(coding: str) -> None:
    closed = False

    def blocks() -> Iterator[bytes]:
        nonlocal closed
        try:
            while True:
                yield b"x"
        finally:
            closed = True

    compressed = compress(blocks(), coding)
    next(compressed)
    compressed.close()  # type: ignore[attr-defined]
    assert closed
