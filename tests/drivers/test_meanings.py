"""A column of a result means what the column of a table means that it is, unchanged; what is computed means nothing."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
import sqlalchemy as sa

from dai.drivers import Driver, driver_for
from dai.drivers.postgresql.syntax import SYNTAX
from dai.drivers.sql.meanings import CURRENT_SECONDS
from dai.drivers.sql.origins import selection
from dai.streams.cancellation import Cancellation
from dai.streams.meaning import Meaning

pytestmark = pytest.mark.server
FLUX = Meaning(unit="mJy", ucd="phot.flux.density", quantity="http://qudt.org/vocab/quantitykind/SpectralFluxDensity")
TABLES = (
    "create table galaxies (id integer primary key, flux double precision, kind integer)",
    "create table kinds (kind integer primary key, label varchar(20))",
)
COMMENT = "the flux at 21 cm, \"peak\" <?> & 'more'"
ROWS = ("insert into galaxies values (1, 5.5, 1), (2, 6.5, 1)", "insert into kinds values (1, 'spiral')")


def _sqlite(directory: Path, _: Any) -> str:
    with closing(sqlite3.connect(directory / "sky.db")) as connection:
        for each in (*TABLES, *ROWS):
            connection.execute(each)
        connection.commit()
    return f"sqlite:///{directory / 'sky.db'}"


def _duckdb(directory: Path, _: Any) -> str:
    with duckdb.connect(str(directory / "sky.duckdb")) as connection:
        for each in (*TABLES, *ROWS):
            connection.execute(each)
        connection.execute(f"comment on column galaxies.flux is '{COMMENT.replace(chr(39), chr(39) * 2)}'")
    return f"duckdb:///{directory / 'sky.duckdb'}"


def _postgresql(_: Path, request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("postgres_module_url")
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as connection:
        for each in (*TABLES, *ROWS):
            connection.execute(each)
        connection.execute(f"comment on column galaxies.flux is '{COMMENT.replace(chr(39), chr(39) * 2)}'")
    return url


def _mariadb(_: Path, request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("mariadb_module_url")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for each in (*TABLES, *ROWS):
            connection.exec_driver_sql(each)
        comment = COMMENT.replace("'", "''")
        connection.exec_driver_sql(f"alter table galaxies modify flux double comment '{comment}'")
    engine.dispose()
    return url


@pytest.fixture(scope="module", params=[_sqlite, _duckdb, _postgresql, _mariadb], ids=lambda each: each.__name__[1:])
def sky(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A database with a comment of the flux (but for SQLite), whose configuration says more of it and of labels."""
    driver = driver_for(request.param(tmp_path_factory.mktemp("sky"), request))
    driver.meanings.configured = {"galaxies.flux": FLUX, "kinds.label": Meaning(description="for people")}
    yield driver
    driver.close()


def meant(driver: Driver, sql: str, hidden: tuple[str, ...] = ()) -> list[Meaning]:
    said = driver.meant(sql, hidden)
    with driver.query(sql, cancellation=Cancellation()) as stream:
        schema = stream.schema if said is None else said(stream.schema)
    return [Meaning.of(each.metadata) for each in schema]


def whole(driver: Driver) -> Meaning:
    return FLUX if driver.dialect == "sqlite" else FLUX.or_else(Meaning(description=COMMENT))


NONE, LABEL = Meaning(), Meaning(description="for people")


def test_tables_say_what_columns_mean(sky: Driver) -> None:
    columns = {each.name: each for table in sky.described() for each in table.columns}
    flux = columns["flux"]
    assert (flux.unit, flux.ucd, flux.quantity) == (FLUX.unit, FLUX.ucd, FLUX.quantity)
    assert flux.comment == (None if sky.dialect == "sqlite" else COMMENT)
    assert columns["label"].comment == "for people"
    assert columns["id"].unit is None


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("select id, flux from galaxies", "-f"),
        ("select flux as f, flux x, flux + 1 as flux from galaxies -- where", "ff-"),
        ("select * from galaxies where id > 1", "-f-"),
        ("select g.*, k.label from galaxies g join kinds as k on g.kind = k.kind order by 1", "-f-l"),
        ("select label, FLUX from galaxies left join kinds using (kind)", "lf"),
        ("select kind, max(flux) as flux from galaxies group by kind", "--"),
        ("select flux, count(*) from galaxies, kinds group by flux", "f-"),
        ("select label from kinds where kind in (select kind from galaxies where flux > 1)", "l"),
        # nothing is said where it is not plain
        ("select flux from galaxies union all select id from galaxies", "-"),
        ("select flux from (select id as flux from galaxies) t", "-"),
        ("with galaxies as (select 1 as flux) select flux from galaxies", "-"),
        ("select flux from galaxies, (select 1 as more) t", "-"),
        ("select t.flux from galaxies, (select 1 as flux) t", "-"),
        ("select galaxies.flux, t.more from galaxies, (select 1 as more) t", "f-"),
        ("select cast(flux as integer) as flux, 'flux' as label from galaxies", "--"),
    ],
)
def test_what_is_unchanged_means_the_same(sky: Driver, sql: str, columns: str) -> None:
    by_letter = {"-": NONE, "f": whole(sky), "l": LABEL}
    assert meant(sky, sql) == [by_letter[each] for each in columns]


def test_a_query_scoped_table_is_no_table_of_the_database(sky: Driver) -> None:
    assert meant(sky, "select flux from galaxies", ("Galaxies",)) == [NONE]


def test_what_others_say_counts_less_than_the_configuration_and_more_than_comments(sky: Driver) -> None:
    sky.meanings.annotated = {"galaxies.flux": Meaning(unit="Jy", description="said"), "galaxies.id": Meaning(ucd="m")}
    assert meant(sky, "select id, flux from galaxies") == [
        Meaning(ucd="m"),
        FLUX.or_else(Meaning(description="said")),
    ]
    sky.meanings.annotated = {}
    assert meant(sky, "select id, flux from galaxies") == [NONE, whole(sky)]


def test_the_database_is_asked_once(sky: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    sky.meanings.of("select flux from galaxies")
    asked: list[str] = []
    monkeypatch.setattr(type(sky), "tables", lambda self, pattern="%": asked.append(pattern) or ())
    assert sky.meanings.of("select id, flux from galaxies where id = 1") is not None
    assert sky.meanings.of("select id, flux from galaxies where id = 2") is not None
    assert asked == []
    assert CURRENT_SECONDS >= 10


@pytest.mark.parametrize(
    ("sql", "items"),
    [
        ('select "a""b", "c where" from "t"', (('a"b',), ("c where",))),
        ("select 'x where', c from t where d = 'union'", ((), ("c",))),
        ("select current_user, a::int, a[1], f(a), -a, t.a b from t where", ((), (), (), (), (), ("t", "a"))),
        ("select distinct a, b from t limit 1;", (("a",), ("b",))),
        ("select a from t where b = 1 union select c from t", None),
        ("select a from t -- where\nunion select b from t", None),
        ("select a into t2 from t", None),
        ("values (1)", None),
        ("from t select a", None),
        ("select a", None),
    ],
)
def test_what_is_selected(sql: str, items: Any) -> None:
    selected = selection(sql, SYNTAX)
    assert (None if selected is None else selected.items) == items


@pytest.mark.parametrize(
    ("tables", "read"),
    [
        ("s.t as x join u on x.a = u.b, v", ["x", "u", "v"]),
        ("t natural left outer join u using (a) cross join v", ["t", "u", "v"]),
        ("f(1) x, lateral (select 1) y, t as z(a, b), only t, t", [None, None, None, None, "t"]),
        ("(t join u on true) join v on true", [None, "v"]),
    ],
)
def test_the_tables_of_a_query(tables: str, read: list[str | None]) -> None:
    selected = selection(f"select 1 from {tables} where true", SYNTAX)
    assert selected is not None
    assert [None if each is None else each.alias for each in selected.tables] == read
