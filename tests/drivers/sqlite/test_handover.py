"""When a process reads what the driver's connection has begun, and that it makes no difference to the answer."""

import contextlib
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from dai.drivers.connections import rows
from dai.drivers.sqlite import handover, readers
from dai.drivers.sqlite.driver import SQLite
from dai.errors import DataError, StatementError
from dai.streams.cancellation import Cancellation
from tests.drivers.sqlite.conftest import ROWS, without
from tests.drivers.statements import table, update


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT x'00' AS v FROM t",
        "SELECT w FROM wide",
        "SELECT id FROM t LIMIT 1500",
        "SELECT count(*) FROM t",
    ],
)
def test_what_no_process_is_asked(driver: SQLite, asked: list[str], sql: str) -> None:
    update(driver, "CREATE TABLE wide (w decimal(18,2))")
    update(driver, "INSERT INTO wide SELECT id FROM t")
    table(driver, sql)
    assert not asked


def test_what_takes_long_until_its_first_rows_is_not_computed_twice(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table(driver, "SELECT i FROM t")
    assert len(asked) == 1
    monkeypatch.setattr(handover, "AGAIN_SECONDS", 0.0)
    assert table(driver, "SELECT i, count(*) AS n FROM t GROUP BY id").num_rows == ROWS
    assert len(asked) == 1


def test_when_a_process_is_asked_for() -> None:
    asked: list[float] = []
    hand = handover.Handover(
        cast(readers.Readers, SimpleNamespace(take=asked.append)), lambda *_: None, contextlib.nullcontext
    )
    at = [each / 1000 for each in (2, 9, 11, 15, 22, 40, 45, 95, 106, 150, 200, 300, 400, 500)]
    said = [len(asked) for each in at if not hand._interrupts(each)]
    assert said == [0, 0, 1, 1, 2, 3, 3, 4, 5, 6, 7, 8, 8, 8], "every 10 ms, and eight times at most"


def test_what_is_read_again_has_bounds() -> None:
    def begun(value: str, seconds: float) -> handover.Begun:
        def fetch(wanted: int) -> list[tuple[str]]:
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
            return [(value,)] * wanted

        columns = [pa.array([value] * 256)]
        return handover.Begun(
            columns,
            256,
            0.0,
            rows.Portions(fetch, contextlib.nullcontext),
            lambda given, _: [pa.array(next(zip(*given, strict=True)))],
        )

    assert begun("a", 0.0).read().have >= handover.MANY_ROWS
    assert begun("a", 2 * handover.SOME_SECONDS).read().have == 512
    assert begun("a" * 100_000, 0.0).read().have == 512


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, i, r, n, s, d, m, k, b FROM t",
        'SELECT late, early, s AS "ts" FROM t WHERE id % 9000 = 1',
        "SELECT i, s FROM t WHERE i > 100000",
        "SELECT a.id, a.d, z.n FROM t AS a JOIN t AS z ON z.id = a.id + 1 ORDER BY a.n, a.id",
        "WITH q(one, two) AS (SELECT id, n FROM t WHERE i IS NULL) SELECT * FROM q",
        f"SELECT s FROM t WHERE id IN ({','.join(map(str, range(0, 60_000, 3)))})",
    ],
)
@pytest.mark.parametrize("batch_rows", [None, 7])
def test_the_same_answer_where_the_first_rows_take_long(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch, sql: str, batch_rows: int | None
) -> None:
    with driver.query(sql, cancellation=Cancellation(), batch_rows=batch_rows) as stream:
        batches = list(stream)
        actual = pa.Table.from_batches(batches, stream.schema)
    assert len(asked) == 1
    assert batch_rows is None or {each.num_rows for each in batches[:-1]} <= {batch_rows}
    expected = without(driver, sql, monkeypatch)
    assert actual.equals(expected)
    assert actual.schema.equals(expected.schema, check_metadata=True)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("batch_rows", "most"), [(None, handover._FEW_ROWS), (50, 50)])
def test_rows_that_come_slowly_do_not_wait_for_many_others(
    driver: SQLite, asked: list[str], batch_rows: int | None, most: int
) -> None:
    with driver.query("SELECT i FROM t", cancellation=Cancellation(), batch_rows=batch_rows) as stream:
        assert next(iter(stream)).num_rows <= most
    assert len(asked) == 1


def test_batches_of_a_process_are_small_where_rows_came_slowly() -> None:
    columns, portions = [pa.array(range(256))], rows.Portions(lambda _: [], contextlib.nullcontext)

    def begun(seconds: float) -> handover.Begun:
        return handover.Begun(columns, 256, seconds, portions, lambda *_: [])

    assert begun(0.1).batch_rows(1 << 20) == handover._FEW_ROWS
    assert begun(0.001).batch_rows(1 << 20) == 25_600
    assert begun(0.0).batch_rows(8_000) == 1_000


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("values", "sql"),
    [
        ("(1, 'a'), (2, 'b'), (3, 'c')", "SELECT v, w FROM u WHERE v > 0"),
        ("('a', 1), ('b', 'x'), (NULL, 2)", "SELECT v, w FROM u WHERE w IS NOT NULL"),
        ("(1, '2026-01-02'), (2, 'no date')", "SELECT w FROM u WHERE v > 0"),
    ],
)
def test_first_rows_of_other_types_than_declared(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch, values: str, sql: str
) -> None:
    """Their types are those of the values, as without a process."""
    update(driver, "CREATE TABLE u (v integer, w date)")
    update(driver, f"INSERT INTO u VALUES {values}")
    update(driver, "CREATE TABLE x AS SELECT id FROM t LIMIT 200")
    sql = f"{sql} AND NOT EXISTS (SELECT * FROM x WHERE x.id + v = -1)"  # which takes its time
    try:
        actual: object = table(driver, sql)
    except DataError as error:
        actual = str(error)
    assert len(asked) == 1
    try:
        expected: object = without(driver, sql, monkeypatch)
    except DataError as error:
        expected = str(error)
    assert actual == expected


@pytest.mark.usefixtures("at_once")
def test_what_has_no_declared_type_is_begun_by_the_connection(driver: SQLite, asked: list[str]) -> None:
    for sql in (
        "SELECT i + 1 AS a FROM t WHERE id % 100 = 1",
        "SELECT x FROM t WHERE id % 100 = 1",
        "SELECT id AS a, i AS a FROM t WHERE id % 100 = 1",
        'SELECT id AS "true", i AS "False" FROM t WHERE id % 100 = 1',
        'SELECT id, s AS "two words" FROM t WHERE id % 100 = 1',
        "SELECT s COLLATE NOCASE FROM t WHERE id % 100 = 1",
    ):
        assert table(driver, sql).num_rows == ROWS // 100
    assert not asked


@pytest.mark.usefixtures("at_once")
def test_an_error_of_a_statement_that_a_process_has_taken_over(driver: SQLite, asked: list[str]) -> None:
    with pytest.raises(StatementError, match="integer overflow"):
        table(driver, f"SELECT id FROM t WHERE id < {ROWS} OR abs(-9223372036854775807 - (id = {ROWS})) > 0")
    assert len(asked) == 1


def test_waiting_for_the_first_rows_is_not_computing_them(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "AGAIN_SECONDS", 0.5)
    following = rows.Portions.next

    def late(self: rows.Portions, most: int) -> Sequence[Any]:
        time.sleep(0.5)
        return following(self, most)

    monkeypatch.setattr(rows.Portions, "next", late)
    assert table(driver, "SELECT i FROM t").num_rows == ROWS
    assert len(asked) == 1


MANY = ", ".join(map(str, range(1, 20)))
TEXTS = ", ".join(f"'{each}'" for each in range(1, 20))


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT d, b, n FROM t WHERE id > max({MANY})",
        f"SELECT d, b, n FROM t WHERE (id, {MANY}) > ({MANY}, 1)",
        f"SELECT d, b, n FROM t WHERE s <> max({TEXTS})",
        f"WITH q AS (VALUES ({MANY}), (NULL, {MANY[3:]})) SELECT t.id, t.d FROM t, q",
    ],
)
def test_many_values_that_are_no_list_of_in(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    actual = table(driver, sql)
    expected = without(driver, sql, monkeypatch)
    assert actual.schema.equals(expected.schema, check_metadata=True)
    assert pa.types.is_date(actual.schema.field("d").type)
    assert actual.equals(expected)
    assert len(asked) == 1


@pytest.mark.parametrize("condition", ["n LIKE '%3'", "length(x) > 3", "lower(id + 0.5) = '7.5'", "i LIKE '3'"])
def test_texts_of_columns_that_may_hold_floating_numbers(
    driver: SQLite, asked: list[str], at_once: None, condition: str
) -> None:
    update(driver, "UPDATE t SET n = i / 7.0, x = i / 7.0 WHERE id > 100")
    table(driver, f"SELECT id, s FROM t WHERE {condition}")
    assert not asked
    table(driver, "SELECT id, s FROM t WHERE s LIKE '%99'")
    assert asked


_DAY = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]"
_REFUSED = "json_extract('{}', hex(printf('The column d holds the %s %s', typeof(d), d)))"


@pytest.mark.parametrize(
    ("condition", "reads"),
    [
        (f"NOT x GLOB '{_DAY}*'", True),
        (f"iif(d GLOB '{_DAY}' OR d IS NULL, 1, abs(id)) AND d >= '2020-01-01' AND d IS NOT x", True),
        (f"iif(date(d, '+00 days') = d OR d IS NULL, 1, {_REFUSED}) AND d >= '2020-01-01' AND d IS NOT x", True),
        ("hex(x) IS NOT s", False),
        ("printf('The columns hold %s', x) IS NOT s", False),
        ("json_extract('{\"a\": 1.5}', '$.a') IS NOT x", False),
        ("date(x, '+0 days') IS NOT d", False),
        ("date(x) IS NOT d", False),
        (f"NOT x GLOB CASE WHEN id > 5 THEN '{_DAY}' ELSE '1*' END", False),
        (f"NOT '{_DAY}' GLOB x", False),
        ("NOT x GLOB '[0-9][0-9][0-9][0-9]*'", False),
    ],
)
def test_no_floating_number_has_the_text_of_a_day(
    driver: SQLite, asked: list[str], at_once: None, condition: str, reads: bool
) -> None:
    """However a version of SQLite writes it."""
    update(driver, "UPDATE t SET x = i / 7.0 WHERE id > 100")
    assert table(driver, f"SELECT id, s FROM t WHERE {condition}").num_rows
    assert bool(asked) == reads


@pytest.mark.usefixtures("at_once")
def test_a_process_that_had_other_values_is_replaced(driver: SQLite, asked: list[str]) -> None:
    update(driver, "CREATE TABLE u (v integer)")
    update(driver, "INSERT INTO u SELECT 'a' || id FROM t")
    (before,) = driver._processes._idle
    assert table(driver, "SELECT v FROM u").schema.field("v").type == pa.string()
    assert asked
    assert driver._processes._idle
    assert before.ended()
