"""What every driver does with loads and tables."""

import pyarrow as pa
import pytest

from dai.drivers import Driver
from dai.errors import (
    DataError,
    NotFoundError,
    StatementError,
)
from tests.drivers.conformance_cases import loaded
from tests.drivers.every import database, driver, load
from tests.drivers.statements import table, update

__all__ = ["database", "driver"]


def converted(column: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    return column.cast(pa.int64()).cast(type) if pa.types.is_duration(type) else column.cast(type)


def test_a_load_comes_back(database: str, driver: Driver) -> None:
    cases = loaded(database)
    key = pa.array([1, 2, 3], pa.int64())
    sent = pa.table(
        [key, *(pa.array([*values, None], type) for _, type, _, values in cases)],
        names=["k", *(name for name, *_ in cases)],
    )
    assert load(driver, "copied", sent, create=True) == 3
    actual = table(driver, "SELECT * FROM copied ORDER BY k")
    assert {name: actual.schema.field(name).type for name, *_ in cases} == {name: type for name, _, type, _ in cases}
    for name, _, type, _ in cases:
        assert actual.column(name).to_pylist() == converted(sent.column(name), type).to_pylist(), name
    again = sent.select(list(reversed(sent.schema.names)))
    assert load(driver, "copied", again) == 3
    assert table(driver, "SELECT k FROM copied").num_rows == 6


def test_a_load_of_many_rows(driver: Driver) -> None:
    n = 40_000
    data = pa.table({"n": pa.array(range(n), pa.int64()), "t": pa.array([f"row {at}" for at in range(n)])})
    assert load(driver, "many", data, create=True) == n
    actual = table(driver, "SELECT count(*) AS c, sum(n) AS s, min(t) AS t FROM many").to_pylist()[0]
    assert (int(actual["c"]), int(actual["s"]), actual["t"]) == (n, n * (n - 1) // 2, "row 0")


def test_a_load_is_all_or_nothing(driver: Driver) -> None:
    update(driver, "CREATE TABLE strict (n integer NOT NULL PRIMARY KEY)")
    data = pa.table({"n": pa.array([*range(30_000), 5], pa.int32())})
    with pytest.raises(StatementError):
        load(driver, "strict", data)
    assert table(driver, "SELECT n FROM strict").num_rows == 0
    with pytest.raises(StatementError) as caught:
        load(driver, "strict", data, transactional=False)
    stayed = table(driver, "SELECT n FROM strict").num_rows
    assert str(stayed) in str(caught.value)


def test_a_load_names_what_does_not_fit(driver: Driver) -> None:
    with pytest.raises(DataError) as caught:
        load(driver, "made", pa.table({"nn": [1]}))
    assert "'n'" in str(caught.value)
    with pytest.raises(NotFoundError) as missing:
        load(driver, "maid", pa.table({"n": [1]}))
    assert "maid" in str(missing.value)
    assert missing.value.hint == "Did you mean 'made'?"
    assert table(driver, "SELECT n FROM made").num_rows == 0


def test_names_are_quoted(driver: Driver) -> None:
    names = ["select", 'a "b" `c` [d]', "Ünicode", "UPPER"]
    data = pa.table([[1]] * len(names), names=names)
    assert load(driver, "order", data, create=True) == 1
    (actual,) = driver.tables("order")
    assert [column.name for column in actual.columns] == names


def test_tables_with_their_keys(driver: Driver) -> None:
    update(driver, "CREATE TABLE orf (name varchar(55) NOT NULL, part integer NOT NULL, PRIMARY KEY (name, part))")
    update(
        driver,
        "CREATE TABLE goterm (id integer PRIMARY KEY, orf_name varchar(55), part integer, "
        "score decimal(10,2) NOT NULL, FOREIGN KEY (orf_name, part) REFERENCES orf (name, part))",
    )
    update(driver, "CREATE UNIQUE INDEX by_score ON goterm (score, id)")
    update(driver, "CREATE VIEW scores AS SELECT score FROM goterm")
    actual = {each.name: each for each in driver.tables()}
    assert set(actual) == {"made", "orf", "goterm", "scores"}
    assert actual["orf"].primary_key == ("name", "part")
    assert actual["goterm"].primary_key == ("id",)
    (key,) = actual["goterm"].foreign_keys
    assert (key.columns, key.table, key.referred_columns) == (("orf_name", "part"), "orf", ("name", "part"))
    (index,) = (each for each in actual["goterm"].indexes if each.name == "by_score")
    assert (index.columns, index.unique) == (("score", "id"), True)
    score = actual["goterm"].columns[3]
    assert (score.name, score.arrow, score.nullable, score.precision, score.scale) == (
        "score", "decimal128(10, 2)", False, 10, 2,
    )  # fmt: skip
    assert actual["scores"].kind == "view"
    assert [each.name for each in driver.tables("go%")] == ["goterm"]
    with pytest.raises(NotFoundError) as caught:
        driver.statistics("gotern")
    assert "goterm" in str(caught.value)
    assert driver.statistics("goterm").rows in (None, -1, 0)
