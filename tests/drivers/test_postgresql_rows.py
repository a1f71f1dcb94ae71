"""COPY's binary rows, against an encoder that follows PostgreSQL's send functions value by value."""

import struct
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dai.drivers import DriverOptions, driver_for
from dai.drivers.connections.socket_reader import SLACK
from dai.drivers.postgresql import rows as postgresql_rows
from dai.drivers.postgresql.driver import PostgreSQL
from dai.drivers.postgresql.rows import _arrays, _messages
from dai.drivers.postgresql.types import Shape
from dai.errors import CancelledError, DatabaseUnavailableError, DataError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from tests.drivers.statements import table

SHAPES = (
    Shape(pa.field("n", pa.int32()), "int4"),
    Shape(pa.field("t", pa.string()), "text"),
    Shape(pa.field("b", pa.binary()), "bytea"),
)


def message(values: list[bytes | None]) -> bytes:
    body = struct.pack(">h", len(values)) + b"".join(
        struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value for value in values
    )
    return b"d" + struct.pack(">I", len(body) + 4) + body


def decoded(data: bytes, shapes: tuple[Shape, ...]) -> tuple[list[list[object]], int]:
    """Rows, and bytes that were read."""
    whole = np.frombuffer(data + bytes(SLACK), np.uint8)
    starts, ends = _messages(whole[: len(data)], len(shapes))
    if not len(starts):
        return [], 0
    arrays = _arrays(whole, starts, ends, shapes)
    return [list(row) for row in zip(*(each.to_pylist() for each in arrays), strict=True)], int(ends[-1])


# Values that look like the beginning of a row, and 100, whose last byte is the letter of one.
LIKE_A_ROW = b"d\0\0\0\x15\0\3"
ROW = st.tuples(
    st.one_of(st.none(), st.just(100), st.integers(-(1 << 31), (1 << 31) - 1)),
    st.one_of(st.none(), st.text(max_size=5), st.builds(lambda size: "x" * size, st.integers(65_000, 66_000))),
    st.one_of(st.none(), st.binary(max_size=9), st.builds(lambda times: LIKE_A_ROW * times, st.integers(1, 9))),
)


@given(st.lists(ROW, min_size=1, max_size=12), st.data())
@example([(100, "", LIKE_A_ROW * 3)] * 300, None)
def test_rows_come_back_wherever_the_data_are_cut(
    rows: list[tuple[int | None, str | None, bytes | None]], data: st.DataObject | None
) -> None:
    sent = b"".join(
        message([None if n is None else struct.pack(">i", n), None if t is None else t.encode(), b]) for n, t, b in rows
    )
    cut = len(sent) if data is None else data.draw(st.integers(0, len(sent)))
    actual, at = decoded(sent[:cut], SHAPES)
    while at < len(sent):
        more, read = decoded(sent[at:], SHAPES)
        actual += more
        at += read
    assert actual == [list(row) for row in rows]


WIRES: dict[str, tuple[pa.DataType, str, st.SearchStrategy[object]]] = {
    "bool": (pa.bool_(), ">?", st.booleans()),
    "int2": (pa.int16(), ">h", st.integers(-(1 << 15), (1 << 15) - 1)),
    "int4": (pa.int32(), ">i", st.integers(-(1 << 31), (1 << 31) - 1)),
    "int8": (pa.int64(), ">q", st.integers(-(1 << 63), (1 << 63) - 1)),
    "float8": (pa.float64(), ">d", st.floats(allow_nan=False)),
    "bytea": (pa.binary(), "", st.binary(max_size=9)),
}


def sent(rows: list[tuple[object, ...]], wires: list[str]) -> bytes:
    def value(wire: str, each: object) -> bytes | None:
        return each if each is None or isinstance(each, bytes) else struct.pack(WIRES[wire][1], each)

    return b"".join(message([value(*pair) for pair in zip(wires, row, strict=True)]) for row in rows)


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[str], list[tuple[object, ...]]]:
    wires = draw(st.lists(st.sampled_from(list(WIRES)), min_size=1, max_size=14))
    values = [WIRES[wire][2] if draw(st.booleans()) else st.one_of(st.none(), WIRES[wire][2]) for wire in wires]
    return wires, draw(st.lists(st.tuples(*values), min_size=1, max_size=6))


@given(columns())
@example((["int8"] * 9, [tuple(range(9)), (*range(8), None)]))
def test_columns_of_numbers_that_follow_each_other(given: tuple[list[str], list[tuple[object, ...]]]) -> None:
    wires, rows = given
    shapes = tuple(Shape(pa.field("x", WIRES[wire][0]), wire) for wire in wires)
    assert decoded(sent(rows, wires), shapes)[0] == [list(row) for row in rows]


@pytest.mark.parametrize(
    "values",
    [[b"1234", b"12345678", b"1"], [b"1234", b"1234", b"12"], [b"123", b"12345678", b"12"], [b"", b"", b""]],
    ids=["the last too short", "the second", "the first", "all empty"],
)
def test_a_number_of_another_size_is_refused(values: list[bytes | None]) -> None:
    shapes = tuple(Shape(pa.field("x", WIRES[wire][0]), wire) for wire in ("int4", "int8", "int2"))
    good: list[bytes | None] = [b"1234", b"12345678", b"12"]
    for data in (message(values), message(good) + message(values)):
        with pytest.raises(DatabaseUnavailableError):
            decoded(data, shapes)


@pytest.mark.parametrize("columns", [(b"1234", b"1234"), (b"1234", b"1234", b"1234", b"1234"), (b"1234", None)])
def test_a_row_that_is_not_as_long_as_its_columns_is_refused(columns: tuple[bytes | None, ...]) -> None:
    shapes = (Shape(pa.field("x", pa.int32()), "int4"),) * 3
    whole = message([b"1234"] * 3)
    data = message(list(columns))
    with pytest.raises(DatabaseUnavailableError):
        decoded(whole + data[:5] + struct.pack(">h", 3) + data[7:] + whole, shapes)


def numeric(value: Decimal, scale: int) -> bytes:
    """As numeric_send: digits of base 10,000 without zeros at either end."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits))) * 10 ** (-scale % 4)
    base: list[int] = []
    while number:
        number, digit = divmod(number, 10_000)
        base.append(digit)
    weight = len(base) - 1 - -(-scale // 4)
    while base and base[0] == 0:
        base.pop(0)
    head = struct.pack(">hhHh", len(base), weight if base else 0, 0x4000 if sign and base else 0, scale)
    return head + b"".join(struct.pack(">h", digit) for digit in reversed(base))


@st.composite
def decimals(draw: st.DrawFn) -> tuple[pa.DataType, list[Decimal | None]]:
    precision = draw(st.integers(1, 18))
    scale = draw(st.integers(0, precision))
    most = 10**precision - 1
    number = st.one_of(st.integers(-most, most), st.sampled_from([0, most, -most, 1, most // 10_000 * 10_000]))
    values = st.one_of(st.none(), st.builds(lambda each: Decimal(each).scaleb(-scale), number))
    return pa.decimal128(precision, scale), draw(st.lists(values, min_size=1))


@given(decimals())
def test_decimals_come_back(given: tuple[pa.DataType, list[Decimal | None]]) -> None:
    kind, values = given
    sent = b"".join(message([None if value is None else numeric(value, kind.scale)]) for value in values)
    assert decoded(sent, (Shape(pa.field("x", kind), "numeric"),))[0] == [[value] for value in values]


@pytest.mark.parametrize("sign", [0xC000, 0xD000, 0xF000])
def test_what_is_no_number_is_refused(sign: int) -> None:
    shape = Shape(pa.field("x", pa.decimal128(12, 2)), "numeric")
    with pytest.raises(DataError, match="NaN or an infinity"):
        decoded(message([struct.pack(">hhHh", 0, 0, sign, 0)]), (shape,))


@pytest.fixture
def driver(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgreSQL]:
    monkeypatch.setattr("dai.drivers.postgresql.driver.is_small", lambda *_: False)
    made = driver_for(postgres_url, DriverOptions(pool_size=2))
    assert isinstance(made, PostgreSQL)
    yield made
    state = made.pool_state()
    made.close()
    assert state["open"] == state["idle"]


@pytest.mark.parametrize("most", [None, 1, 1000])
def test_a_large_result_is_whole_and_in_order(driver: PostgreSQL, most: int | None) -> None:
    rows = 500 if most == 1 else 100_000
    sql = (
        "SELECT n::int, CASE WHEN n % 7 > 0 THEN to_hex(n) END AS h, (n / 8.0)::numeric(12,3) AS d "
        f"FROM generate_series(1, {rows}) n"
    )
    actual = table(driver, sql, batch_rows=most)
    assert actual.column("n").to_pylist() == list(range(1, rows + 1))
    assert actual.column("h").to_pylist() == [f"{n:x}" if n % 7 else None for n in range(1, rows + 1)]
    assert actual.column("d").to_pylist() == [Decimal(n) / 8 for n in range(1, rows + 1)]


@pytest.mark.parametrize("size", [65_536, 1 << 20, 1 << 24, (1 << 24) + 77])
def test_long_values(driver: PostgreSQL, size: int) -> None:
    actual = table(driver, f"SELECT n, repeat('x', {size}) AS x FROM generate_series(1, 3) n")
    assert [len(value) for value in actual.column("x").to_pylist()] == [size] * 3


def slowly(stream: Stream, rows: int | None = None, into: list[int] | None = None) -> list[int]:
    """The first column, of a consumer that takes longer than reading does; it closes the stream after some rows."""
    taken = [] if into is None else into
    began = time.monotonic()
    with stream:
        for batch in stream:
            time.sleep(0.03 + 2 * (time.monotonic() - began))
            taken += batch.column(0).to_pylist()
            if rows is not None and len(taken) > rows:
                break
            began = time.monotonic()
    return taken


def threads() -> set[str]:
    return {each.name for each in threading.enumerate() if each.name.startswith("ahead")}


@pytest.mark.parametrize("most", [None, 70_000])
def test_rows_are_read_ahead_for_a_consumer_that_takes_long(
    driver: PostgreSQL, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    seen: set[str] = set()
    decode = postgresql_rows._arrays

    def noted(*given: Any) -> Any:
        seen.add(threading.current_thread().name.partition("_")[0])
        return decode(*given)

    monkeypatch.setattr(postgresql_rows, "_arrays", noted)
    sql = "SELECT n::int, repeat('x', 40) FROM generate_series(1, 100000) n"
    taken = slowly(driver.query(sql, cancellation=Cancellation()), most)
    assert taken == list(range(1, len(taken) + 1))
    assert len(taken) == 100_000 if most is None else most < len(taken) < 100_000
    assert "ahead" in seen
    assert not threads()
    assert driver.pool_state()["open"] == (1 if most is None else 0)


STOPS = (
    "SELECT n::int, repeat('x', 40), CASE WHEN n > 60000 THEN pg_sleep(100)::text END FROM generate_series(1, 100000) n"
)


def test_a_stream_is_closed_while_the_database_computes_what_is_read_ahead(driver: PostgreSQL) -> None:
    began = time.monotonic()
    assert len(slowly(driver.query(STOPS, cancellation=Cancellation()), 50_000)) > 50_000
    assert time.monotonic() - began < 30
    assert not threads()
    assert table(driver, "SELECT count(*) AS n FROM pg_stat_activity WHERE query LIKE '%n > 60000%'").to_pylist() == [
        {"n": 1}
    ]


def test_cancelling_stops_what_is_read_ahead(driver: PostgreSQL) -> None:
    cancellation = Cancellation()
    timer = threading.Timer(1, cancellation.cancel, [CancelledError("enough")])
    timer.start()
    began = time.monotonic()
    with pytest.raises(CancelledError, match="enough"):
        slowly(driver.query(STOPS, cancellation=cancellation))
    assert time.monotonic() - began < 30
    timer.join()
    assert not threads()


def test_a_failure_in_what_is_read_ahead_comes_behind_the_rows_before_it(driver: PostgreSQL) -> None:
    stream = driver.query(
        "SELECT 1 / (n - 90000) + n AS q, repeat('x', 40) FROM generate_series(1, 100000) n",
        cancellation=Cancellation(),
    )
    taken: list[int] = []
    with pytest.raises(StatementError, match="division by zero"):
        slowly(stream, into=taken)
    assert 70_000 < len(taken) < 90_000
    assert driver.pool_state()["open"] == 1
    assert not threads()


def test_no_rows(driver: PostgreSQL) -> None:
    assert table(driver, "SELECT 1 AS one, 'x' AS x WHERE false").num_rows == 0


def test_a_failure_behind_rows_leaves_the_connection_of_use(driver: PostgreSQL) -> None:
    for _ in range(2):
        with pytest.raises(StatementError, match="division by zero") as caught:
            table(driver, "SELECT 1 / (n - 50000) AS q FROM generate_series(1, 100000) n WHERE n > ?", 0)
        assert (caught.value.sqlstate, caught.value.position) == ("22012", None)
    assert table(driver, "SELECT 2 AS two").to_pylist() == [{"two": 2}]
    assert driver.pool_state()["open"] == 1


def test_adbc_reads_the_same(driver: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a connection with TLS.
    sql = (
        "SELECT n, n::numeric(15,2) / 7 AS q, (n / 7.0)::numeric(15,2) AS d, CASE WHEN n % 3 > 0 THEN 'é' END AS s, "
        "timestamp '2024-01-01' + n * interval '1 hour' AS t, n * interval '1 day 1 us' AS i, n % 2 = 0 AS b, "
        "n::real AS f FROM generate_series(1, 40000) n WHERE n > ?"
    )
    actual = table(driver, sql, 5)
    monkeypatch.setattr("dai.drivers.postgresql.driver.readable", lambda connection: False)
    other = table(driver, sql, 5)
    assert other.schema == actual.schema
    assert other.equals(actual)


def test_which_results_are_read_here(driver: PostgreSQL) -> None:
    read: list[object] = []
    for sql in ("SELECT 1 AS n", "SELECT ARRAY[1] AS n"):
        table(driver, sql)
        (description,) = [each for key, each in driver._descriptions._kept.items() if key[0] == sql]
        read.append(postgresql_rows.shapes_of(description) is not None)
    assert read == [True, False]
