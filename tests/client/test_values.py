"""Values that a query and a cursor take alike: moments with and without a zone, and numbered parameters."""

import datetime

import pandas as pd
import pyarrow as pa
import pytest

from dai.errors import ParameterError
from tests.client.databases import BINARY, DATABASES, MOMENT, Connect, table


@pytest.mark.parametrize("database", DATABASES)
def test_a_query_takes_moments_as_a_cursor_does(connect: Connect, database: str) -> None:
    connection = connect(database)
    name = table(connection, "moments", f"id integer primary key, ts {MOMENT.get(database, 'timestamp')}")
    noon = datetime.datetime(2023, 5, 5, 12)
    rows = [(1, noon - datetime.timedelta(hours=7)), (2, noon), (3, noon + datetime.timedelta(days=1))]
    connection.cursor().executemany(f"insert into {name} values (?, ?)", rows)
    zoned = noon.replace(hour=17, tzinfo=datetime.timezone(datetime.timedelta(hours=5)))
    for moment in (noon, pd.Timestamp(noon), zoned, pd.Timestamp(zoned)):
        for condition, ids in (("ts = ?", [2]), ("ts < ?", [1]), ("ts > ?", [3])):
            sql = f"select id from {name} where {condition}"
            assert connection.execute(sql, [moment]).fetchall() == [(each,) for each in ids], (moment, condition)
            assert connection.source.resource.query(sql, moment).rows() == [(each,) for each in ids], (
                moment,
                condition,
            )
    found = connection.source.resource.query(f"select id from {name} where ts in :these", these=[noon, zoned])
    assert found.rows() == [(2,)]


@pytest.mark.parametrize("database", ["postgresql", "sqlite", "duckdb"])
def test_a_moment_with_a_zone_is_the_same_moment_in_a_column_with_one(connect: Connect, database: str) -> None:
    connection = connect(database)
    name = table(connection, "zoned_moments", "ts timestamptz")
    moment = datetime.datetime(2023, 5, 5, 17, tzinfo=datetime.timezone(datetime.timedelta(hours=5)))
    connection.execute(f"insert into {name} values (?)", [moment])
    found = connection.source.resource.query(f"select ts from {name} where ts = ?", moment)
    assert found.rows() == [(moment,)]
    assert found.schema.field("ts").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize("database", DATABASES)
def test_a_query_takes_bytes_as_a_cursor_does(connect: Connect, database: str) -> None:
    connection = connect(database)
    name = table(connection, "blobs", f"id integer primary key, b {BINARY[database]}")
    connection.cursor().executemany(f"insert into {name} values (?, ?)", [(1, b"\x00\xff"), (2, b"")])
    for condition, value in (("b = ?", b"\x00\xff"), ("b in ?", [b"\x00\xff", b"x"])):
        found = connection.source.resource.query(f"select id, b from {name} where {condition}", value)
        assert found.rows() == [(1, b"\x00\xff")]


def test_a_federation_takes_moments_as_its_sources_do(connect: Connect) -> None:
    for database in ("postgresql", "sqlite"):
        connection = connect(database)
        name = table(connection, "lab_moments", "ts timestamp")
        connection.execute(f"insert into {name} values (?)", [datetime.datetime(2023, 5, 5, 12)])
    lab = connect("lab")
    noon = datetime.datetime(2023, 5, 5, 12)
    zoned = noon.replace(hour=17, tzinfo=datetime.timezone(datetime.timedelta(hours=5)))
    for source in ("pg", "lite"):
        for moment in (noon, zoned):
            sql = f"select count(*) from {source}.lab_moments where ts = ?"
            assert lab.execute(sql, [moment]).fetchall() == [(1,)], (source, moment)
            assert lab.source.resource.query(sql, moment).rows() == [(1,)], (source, moment)


@pytest.mark.parametrize("database", ["postgresql", "duckdb"])
@pytest.mark.parametrize(
    ("sql", "values", "says"),
    [
        ("select $1", [], "The statement has $1, which gets no value"),
        ("select 1 where 1 = $1", [1], "0 parameters (?), 1 value was given"),
        ("select '$2', $1", [1], "0 parameters (?), 1 value was given"),
    ],
)
def test_a_numbered_parameter_is_written_otherwise(
    connect: Connect, database: str, sql: str, values: list[int], says: str
) -> None:
    resource = connect(database).source.resource
    with pytest.raises(ParameterError) as caught:
        resource.query(sql, *values)
    assert says in str(caught.value)
    assert "$1 is not a parameter here. Write ? for each value, in order, or :name." in str(caught.value)
    assert resource.query("select 1").rows() == [(1,)]


def test_a_federation_takes_numbered_parameters(connect: Connect) -> None:
    resource = connect("lab").source.resource
    assert resource.query("select $1 + $2", 1, 2).rows() == [(3,)]
    with pytest.raises(ParameterError, match=r"Parameter \$2 is number 2") as caught:
        resource.query("select $1 + $2", 1)
    assert "not a parameter" not in str(caught.value)
