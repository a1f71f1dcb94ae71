"""Packets and rows of MariaDB's protocol, against an encoder that follows its description value by value."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dai.drivers import Driver, DriverOptions, driver_for
from dai.drivers.connections.socket_reader import SLACK
from dai.drivers.mariadb import driver as mariadb
from dai.drivers.mariadb import wire
from dai.drivers.mariadb.wire import columns, packets
from dai.errors import CancelledError, DataError, LimitError, StatementError
from dai.streams.cancellation import Cancellation
from tests.drivers.statements import table
from tests.processes import until

Row = list[bytes | None]


def number(value: int) -> bytes:
    for mark, width in ((None, 1), (252, 2), (253, 3), (254, 8)):
        if mark is None and value < 251:
            return bytes([value])
        if mark is not None and value < 1 << 8 * width:
            return bytes([mark]) + value.to_bytes(width, "little")
    raise AssertionError(value)


def packet(row: Row, sequence: int) -> bytes:
    payload = b"".join(b"\xfb" if value is None else number(len(value)) + value for value in row)
    return len(payload).to_bytes(3, "little") + bytes([sequence % 256]) + payload


def encoded(rows: list[Row], first: int = 0) -> bytes:
    return b"".join(packet(row, at) for at, row in enumerate(rows, first))


def decoded(data: bytes, count: int) -> tuple[list[Row], int]:
    """Rows, and bytes that were read."""
    whole = np.frombuffer(data + bytes(SLACK), np.uint8)
    view = whole[: len(data)]
    starts, ends = packets(view)
    if not len(starts):
        return [], 0
    values = [each.to_pylist() for each in columns(whole, starts, ends, count)]
    return [list(row) for row in zip(*values, strict=True)], int(ends[-1])


# Zeros, and lengths of packets, where a packet is looked for by them; long values among short ones.
VALUE = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.sampled_from(
        [b"", b"\0", b"\0\0\0", b"\5\0\0\0", b"\1\0\0\0\0", b"\0" * 70, b"x" * 250, b"x" * 251, b"y" * 300]
    ),
    st.builds(lambda size: b"z" * size, st.integers(65_500, 65_600)),
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Row], int]:
    count = draw(st.integers(1, 4))
    return draw(st.lists(st.lists(VALUE, min_size=count, max_size=count), min_size=1, max_size=12)), count


@given(tables(), st.integers(0, 255), st.data())
@example(([[b""] * 4] * 9, 4), 250, None)
@example(([[b"\5\0\0\0\0"]] * 600, 1), 0, None)
def test_rows_come_back_wherever_the_data_are_cut(
    table: tuple[list[Row], int], first: int, data: st.DataObject | None
) -> None:
    rows, count = table
    sent = encoded(rows, first)
    cut = len(sent) if data is None else data.draw(st.integers(0, len(sent)))
    begun, at = decoded(sent[:cut], count)
    assert begun == rows[: len(begun)]
    rest: list[Row] = []
    while at < len(sent):
        more, read = decoded(sent[at:], count)
        rest += more
        at += read
    assert begun + rest == rows


@given(st.integers(1, 2000), st.integers(0, 60), st.binary(min_size=1, max_size=3))
def test_rows_of_one_length(number_of_rows: int, length: int, letters: bytes) -> None:
    row: Row = [letters * length, b"", None, b""]
    actual, read = decoded(encoded([row] * number_of_rows), 4)
    assert actual == [row] * number_of_rows
    assert read == len(encoded([row] * number_of_rows))


@pytest.fixture
def driver(mariadb_url: str) -> Iterator[Driver]:
    made = driver_for(mariadb_url, DriverOptions(pool_size=2))
    yield made
    until(lambda: made.pool_state()["open"] == made.pool_state()["idle"] == 1)
    made.close()


@pytest.mark.parametrize("most", [None, 1, 1000, 70_000])
def test_a_large_result_is_whole_and_in_order(driver: Driver, most: int | None) -> None:
    rows = 500 if most == 1 else 100_000
    actual = table(
        driver, f"SELECT seq, IF(seq % 7, HEX(seq), NULL) AS h, '' AS e, '' AS f FROM seq_1_to_{rows}", batch_rows=most
    )
    assert actual.column("seq").to_pylist() == list(range(1, rows + 1))
    assert actual.column("h").to_pylist() == [f"{at:X}" if at % 7 else None for at in range(1, rows + 1)]
    assert set(actual.column("e").to_pylist()) == {""}


def test_a_small_result_is_one_batch(driver: Driver) -> None:
    # The bytes are there: a small first batch would have them looked through twice.
    with driver.query("SELECT seq FROM seq_1_to_4000", cancellation=Cancellation()) as stream:
        assert [each.num_rows for each in stream] == [4000]


@pytest.mark.parametrize("size", [251, 65_536, 1 << 20, (1 << 24) - 1 - 5, 1 << 24, (1 << 25) + 7])
def test_long_values(driver: Driver, size: int) -> None:
    sql = f"SELECT seq, REPEAT('x', {size}) AS x, REPEAT(CHAR(0), {size % 1000}) AS zeros FROM seq_1_to_3"
    actual = table(driver, sql)
    assert actual.column("seq").to_pylist() == [1, 2, 3]
    assert [len(value) for value in actual.column("x").to_pylist()] == [size] * 3
    assert actual.column("zeros").to_pylist() == [b"\0" * (size % 1000)] * 3


def test_a_row_of_a_few_characters_is_no_gigabyte(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ROW_BYTES", 1 << 20)
    with pytest.raises(LimitError, match="substring"):
        table(driver, "SELECT repeat('x', 17000000) AS t")
    assert table(driver, "SELECT 1 AS one").num_rows == 1


def test_no_rows(driver: Driver) -> None:
    actual = table(driver, "SELECT 1 AS one, 'x' AS x FROM dual WHERE FALSE")
    assert (actual.num_rows, actual.schema.names) == (0, ["one", "x"])


def test_a_failure_behind_rows(driver: Driver) -> None:
    # The second row has a subquery of two rows.
    sql = "SELECT seq, (SELECT s.seq FROM seq_1_to_9 s WHERE s.seq < t.seq) AS n FROM seq_1_to_5 t"
    with pytest.raises(StatementError, match="more than 1 row") as caught:
        table(driver, sql)
    assert caught.value.sqlstate == "21000"
    assert table(driver, "SELECT 1 AS one").num_rows == 1
    assert driver.pool_state()["open"] == 1


def test_text_that_is_none_names_its_row(driver: Driver) -> None:
    with pytest.raises(DataError) as caught:
        table(
            driver,
            "SELECT IF(seq = 70000, CAST('0000-00-00' AS DATE), CURRENT_DATE) AS d FROM seq_1_to_80000",
            batch_rows=100,
        )
    assert caught.value.extra["row"] == 70_000


def test_a_connection_is_used_again_by_the_library(driver: Driver) -> None:
    for _ in range(3):
        stream = driver.query("SELECT seq FROM seq_1_to_10000000", cancellation=Cancellation())
        next(stream)
        stream.close()
        driver.check()
    cancellation = Cancellation()
    stream = driver.query("SELECT seq FROM seq_1_to_10000000", cancellation=cancellation)
    next(stream)
    cancellation.cancel()
    with pytest.raises(CancelledError):
        list(stream)
    stream.close()
    assert table(driver, "SELECT 2 AS two").to_pylist() == [{"two": 2}]


def test_the_library_reads_the_same(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a connection with TLS.
    sql = "SELECT seq, seq / 7 AS q, IF(seq % 3, 'é', NULL) AS s, X'00ff' AS b, NOW() AS t FROM seq_1_to_40000"
    actual = table(driver, sql)
    monkeypatch.setattr(mariadb, "readable", lambda raw: False)
    other = table(driver, sql)
    assert other.schema == actual.schema
    assert other.drop_columns("t").equals(actual.drop_columns("t"))
