"""A column of a source keeps its meaning through the operators of a federated query; an expression has none."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import duckdb
import pytest

import dqp
from dai.errors import ConfigurationError
from dai.streams.meaning import Meaning
from dqp.interfaces.lab import Lab
from dqp.settings import load

JY, KM = Meaning(unit="Jy", description="the flux"), Meaning(unit="km/s", ucd="phys.veloc")
NONE = Meaning()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("meanings")
    with duckdb.connect(str(directory / "radio.duckdb")) as connection:
        connection.execute("create table flux as select i as id, i / 2 as flux, i % 2 as band from range(6) t(i)")
        connection.execute("comment on column flux.flux is 'the flux'")
    with closing(sqlite3.connect(directory / "optical.db")) as connection:
        connection.execute("create table speed (id integer, v real)")
        connection.executemany("insert into speed values (?, ?)", [(i, i * 1.5) for i in range(4)])
        connection.commit()
    federation = {
        "sources": {
            "radio": f"duckdb:///{directory / 'radio.duckdb'}",
            "optical": f"sqlite:///{directory / 'optical.db'}",
        },
        "columns": {
            "radio.flux.flux": {"unit": "Jy"},
            "optical.speed.v": {"unit": "km/s", "ucd": "phys.veloc"},
        },
        "views": {"fast": "select id, v from optical.speed where v > 1"},
    }
    with dqp.connect(federation) as connected:
        yield connected


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("select flux, flux as other, flux + 1 as flux2, id from radio.flux", [JY, JY, NONE, NONE]),
        ("select s.v, f.flux from radio.flux f join optical.speed s using (id) where s.v > 1", [KM, JY]),
        ("select * from radio.flux f left join optical.speed s on f.id = s.id", [NONE, JY, NONE, NONE, KM]),
        ("select flux, count(*), max(flux) from radio.flux group by flux order by flux limit 2", [JY, NONE, NONE]),
        ("select distinct v from (select v from optical.speed) t", [KM]),
        ("with t as (select v as x from optical.speed) select x from t order by x limit 1", [KM]),
        ("select v from optical.speed union all select v from optical.speed where v > 2", [KM]),
        ("select v from optical.speed union all select flux from radio.flux", [NONE]),
        ("select cast(v as integer) as v from optical.speed", [NONE]),
        ("select v from fast", [KM]),
    ],
)
def test_what_is_unchanged_means_the_same(lab: Lab, sql: str, columns: list[Meaning]) -> None:
    table = lab.sql(sql).arrow()
    assert [Meaning.of(each.metadata) for each in table.schema] == columns
    assert table.num_rows > 0


def test_tables_and_frames_say_it(lab: Lab) -> None:
    listed = {each["table"]: each for each in lab.tables().to_pylist()}
    assert (listed["flux"]["units"], listed["flux"]["comments"]) == ([None, "Jy", None], [None, "the flux", None])
    assert listed["speed"]["ucds"] == [None, "phys.veloc"]
    assert "id, flux [Jy], band" in repr(lab.tables())
    assert "[km/s, phys.veloc]" in lab.tables()._repr_html_()
    described = {each["column_name"]: each for each in lab.sql("describe radio.flux").arrow().to_pylist()}
    assert (described["flux"]["unit"], described["id"]["unit"]) == ("Jy", None)
    assert lab.sql("select v from optical.speed").to_pandas().attrs == {"v": dict(KM.said)}


def test_names_of_columns_have_the_source() -> None:
    with pytest.raises(ConfigurationError, match=r"alias\.table\.column"):
        load({"sources": {"a": "sqlite://"}, "columns": {"flux.flux": {"unit": "Jy"}}})
