import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.errors import DataError
from dai.formats import format_named
from dai.streams import stream as streams
from dai.streams.stream import Block, ByteStream, Encoded, Stream
from tests.documents import table


class Closes:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def test_closes_once_at_the_end():
    closes = Closes()
    stream = Stream(table(3).schema, table(3).to_batches(), closes)
    assert sum(batch.num_rows for batch in stream) == 3
    assert closes.times == 1
    stream.close()
    assert closes.times == 1
    assert list(stream) == []


def test_closes_generators_before_what_they_stand_on():
    order = []

    def batches():
        try:
            yield from table(3).to_batches(1)
        finally:
            order.append("generator")

    with Stream(table(3).schema, batches(), lambda: order.append("below")) as stream:
        next(stream)
    assert order == ["generator", "below"]


def test_closes_at_a_failure():
    closes = Closes()

    def batches():
        yield from table(1).to_batches()
        raise DataError("half-way")

    stream = Stream(table(1).schema, batches(), closes)
    next(stream)
    with pytest.raises(DataError):
        next(stream)
    assert closes.times == 1


def test_map_passes_closing_on():
    closes = Closes()
    stream = Stream(table(3).schema, table(3).to_batches(1), closes)
    mapped = stream.map(lambda batch: batch.select(["id"]), pa.schema([table(0).schema.field("id")]))
    assert next(mapped).schema.names == mapped.schema.names == ["id"]
    mapped.close()
    assert closes.times == 1


@given(sizes=st.lists(st.integers(0, 7), max_size=8), rows=st.integers(1, 9))
def test_rebatch(sizes, rows):
    whole = table(sum(sizes))
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    batches = [
        batch
        for start, size in zip(starts, sizes, strict=True)
        for batch in whole.slice(start, size).combine_chunks().to_batches()
    ]
    actual = list(Stream(whole.schema, batches).rebatch(rows))
    assert pa.Table.from_batches(actual, whole.schema).equals(whole)
    assert [batch.num_rows for batch in actual[:-1]] == [rows] * (len(actual) - 1)
    assert all(0 < batch.num_rows <= rows for batch in actual)


def test_rebatch_refuses_nothing():
    with pytest.raises(DataError, match="at least one row"):
        Stream.of(table(1)).rebatch(0)


def test_reader_checks_the_schema():
    stream = Stream(table(1).schema, pa.table({"x": [1]}).to_batches())
    with pytest.raises(DataError, match="has the schema"):
        stream.reader().read_all()


@pytest.mark.parametrize("data", [table(5), table(5).to_batches()[0], table(5).to_reader()])
def test_of(data):
    assert Stream.of(data).table().equals(table(5))


@given(st.lists(st.tuples(st.binary(max_size=5), st.integers(0, 5)), max_size=10), st.integers(1, 6))
def test_reblock_joins_and_never_cuts(blocks, size):
    stream = ByteStream("text/plain", [Block(data, rows) for data, rows in blocks])
    actual = list(stream.reblock(size))
    assert b"".join(bytes(block.data) for block in actual) == b"".join(data for data, _ in blocks)
    assert sum(block.rows for block in actual) == sum(rows for _, rows in blocks)
    assert all(block.rows >= size for block in actual[:-1])


def test_reblock_does_not_copy_what_is_large_enough():
    blocks = [Block(b"ab", 2, 1), Block(b"c", 1), Block(b"d", 1), Block(b"ef", 2, 0, 1)]
    joined = list(ByteStream("text/plain", blocks).reblock(2))
    assert joined[0] is blocks[0]
    assert joined[1:] == [Block(b"cd", 2), blocks[3]]


@pytest.mark.parametrize("rows", [0, 1])
def test_reblock_joins_no_more_than_a_block_may_have(monkeypatch, rows):
    """Before, a document in memory had all of a result, and bytes without rows were never let go."""
    monkeypatch.setattr(streams, "JOINED_BYTES", 10)
    stream = ByteStream("text/plain", [Block(b"abc", rows)] * 6)
    assert [(len(block), block.rows) for block in stream.reblock(1000)] == [(12, 4 * rows), (6, 2 * rows)]


@pytest.mark.parametrize(
    "data", [b"abc", memoryview(b"abc"), pa.py_buffer(b"abc"), memoryview(pa.array([1]).buffers()[1])]
)
def test_length_of_a_block_is_in_bytes(data):
    assert len(Block(data, 1)) == len(bytes(data))


def counting(seen: list[str], name: str):
    def watch(items):
        for item in items:
            seen.append(name)
            yield item

    return watch


def encoded(closes: Closes | None = None) -> Encoded:
    stream = Stream(table(4).schema, table(4).to_batches(2), closes or Closes())
    return Encoded(stream, format_named("csv"))


def test_nothing_is_pulled_before_it_is_asked_for():
    pulled = []

    def batches():
        pulled.append(True)
        yield from table(2).to_batches()

    stream = Encoded(Stream(table(2).schema, batches()), format_named("csv"))
    again = stream.reblock(1)
    assert not pulled
    assert [block.rows for block in again] == [1, 1]


def test_form_can_be_chosen_late():
    assert format_named("arrow").decode([encoded().recoded(format_named("arrow")).read()]).table().equals(table(4))
    assert encoded().reblock(1).read() == encoded().read() == b"".join(block.data for block in encoded().pieces())


def test_all_who_watch_see_what_passes_in_any_form():
    for form in (
        lambda it: it,
        lambda it: it.reblock(4),
        lambda it: it.pieces(),
        lambda it: it.recoded(format_named("arrow")),
        lambda it: it.unencoded(),
    ):
        seen: list[str] = []
        watched = encoded().watched(counting(seen, "producer")).watched(counting(seen, "consumer"))
        list(form(watched))
        assert set(seen) == {"producer", "consumer"}


def test_closing_any_form_closes_the_tuples():
    for form in (Encoded.unencoded, lambda it: it.reblock(3), lambda it: it):
        closes = Closes()
        form(encoded(closes)).close()
        assert closes.times == 1
