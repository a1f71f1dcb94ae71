"""The SQLAlchemy dialect, and programs that stand on it."""

import builtins
import datetime
import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pandas as pd
import polars
import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects import postgresql

from dai import dbapi
from dai.api.server.serve import Background
from dai.client.sqlalchemy.databases import DIALECTS
from dai.client.sqlalchemy.served import address
from tests.client.conftest import databases  # noqa: F401 - a fixture
from tests.client.databases import DATABASES, served
from tests.servers.mariadb import MySQLServer

pytestmark = pytest.mark.server
Engine = Callable[..., sa.Engine]
ROW = {
    "name": "a 'b' ?",
    "price": Decimal("1.50"),
    "day": datetime.date(2024, 2, 29),
    "moment": datetime.datetime(2024, 2, 29, 1, 2, 3),
    "number": 1.5,
    "data": b"\x00\xff",
    "good": True,
}


class Base(orm.DeclarativeBase):
    pass


class Thing(Base):
    __tablename__ = "things"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(20))
    price: orm.Mapped[Decimal] = orm.mapped_column(sa.Numeric(8, 2))
    day: orm.Mapped[datetime.date]
    moment: orm.Mapped[datetime.datetime]
    number: orm.Mapped[float] = orm.mapped_column(sa.Double)
    data: orm.Mapped[bytes]
    good: orm.Mapped[bool]


@pytest.fixture
def engine(databases: Background) -> Iterator[Engine]:  # noqa: F811
    made: list[sa.Engine] = []

    def created(name: str, query: str = "", **options: Any) -> sa.Engine:
        if name == "mysql" and not MySQLServer.found():
            pytest.skip("there is no MySQL here")
        made.append(sa.create_engine(f"{databases.url.replace('http', 'dai')}/{name}{query}", **options))
        return made[-1]

    yield created
    for each in made:
        each.dispose()


@pytest.fixture
def things(engine: Engine) -> Callable[[str], sa.Engine]:
    """An engine whose database has the table ``things``, with two rows."""

    def filled(name: str) -> sa.Engine:
        made = engine(name)
        with made.connect() as connection:
            connection.execute(sa.text("drop table if exists things"))
            Base.metadata.create_all(connection)
            rows = [{"id": 1, **ROW}, {"id": 2, **ROW, "name": "other"}]
            connection.execute(sa.insert(Thing), rows)
        return made

    return filled


@pytest.mark.parametrize("database", DATABASES)
def test_values_of_every_type(things: Any, database: str) -> None:
    with things(database).connect() as connection:
        table = Thing.__table__
        for column, value in ROW.items():
            found = connection.execute(sa.select(table).where(table.c[column] == value).order_by(table.c.id)).first()
            assert found is not None
            assert found._asdict() == {"id": 1, **ROW}, column
        assert connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 2
        assert connection.execute(table.delete().where(table.c.id == 2)).rowcount == 1


@pytest.mark.parametrize("database", [each for each in DATABASES if each != "duckdb"])
def test_objects_get_their_keys(things: Any, database: str) -> None:
    made = things(database)
    if database == "postgresql":
        with made.connect() as connection:
            connection.execute(sa.text("select 1"))
            connection.execute(sa.text("alter sequence things_id_seq restart with 3"))
    with orm.Session(made) as session:
        first, second = Thing(**ROW), Thing(**ROW)
        session.add_all([first, second])
        session.commit()
        assert (first.id, second.id) == (3, 4)
        first.name = "changed"
        session.commit()
        assert session.scalars(sa.select(Thing.name).where(Thing.id == 3)).all() == ["changed"]


@pytest.mark.parametrize("database", DATABASES)
def test_reflection(things: Any, database: str) -> None:
    made = things(database)
    with made.connect() as connection:
        for statement in (
            "drop view if exists shown",
            "drop table if exists parts",
            "create table parts (id integer primary key, thing integer references things (id), kind varchar(7) unique)"
            if database != "mysql" and database != "mariadb"
            else "create table parts (id integer primary key, thing integer, kind varchar(7) unique, "
            "foreign key (thing) references things (id)) comment 'of things'",
            "create view shown as select id, name from things",
        ):
            connection.execute(sa.text(statement))
        if database == "postgresql":
            connection.execute(sa.text("comment on table parts is 'of things'"))
    inspector = sa.inspect(made)
    assert {"things", "parts"} <= set(inspector.get_table_names())
    assert inspector.get_view_names() == ["shown"]
    parts = sa.Table("parts", sa.MetaData(), autoload_with=made)
    assert [each.name for each in parts.primary_key] == ["id"]
    if database != "duckdb":  # the service says no foreign keys of DuckDB's
        assert [each.target_fullname for each in parts.foreign_keys] == ["things.id"]
    if database in ("postgresql", "mariadb", "mysql"):
        assert inspector.get_table_comment("parts") == {"text": "of things"}
        assert [each["column_names"] for each in inspector.get_indexes("parts") if each["unique"]] == [["kind"]]
    assert str(parts.c.kind.type).startswith("VARCHAR")
    things_table = sa.Table("things", sa.MetaData(), autoload_with=made)
    affinities = [each.type._type_affinity for each in things_table.c]
    boolean = sa.Integer if database in ("mysql", "mariadb") else sa.Boolean
    assert affinities == [
        *(sa.Integer, sa.String, sa.Numeric, sa.Date, sa.DateTime, sa.Float, sa.types._Binary, boolean)
    ]
    assert (things_table.c.price.type.precision, things_table.c.price.type.scale) == (8, 2)
    assert not sa.inspect(made).has_table("nothing")
    with made.connect() as connection:
        connection.execute(sa.text("drop view shown"))
        connection.execute(sa.text("drop table parts"))
    with pytest.raises(sa.exc.NoSuchTableError, match="nothing"):
        sa.Table("nothing", sa.MetaData(), autoload_with=made)


@pytest.mark.parametrize("database", DATABASES)
def test_whether_there_is_a_table(things: Any, database: str) -> None:
    made = things(database)
    inspector = sa.inspect(made)
    assert inspector.has_table("things")
    assert not any(map(inspector.has_table, ("thing_", "thin%", "none", "select * from things", "t" * 300)))
    with made.connect() as connection:
        connection.execute(sa.text("drop table things"))
        assert made.dialect.has_table(connection, "things") is False


def test_the_sql_is_that_of_the_database(engine: Engine) -> None:
    statement = sa.select(sa.func.now(), sa.literal_column("'a'").concat("b")).limit(1)
    written = {name: str(statement.compile(engine(name))) for name in ("postgresql", "mariadb", "sqlite", "lab")}
    assert "concat(" in written["mariadb"]
    assert "CURRENT_TIMESTAMP" in written["sqlite"]
    assert "LIMIT ?::INTEGER" in written["postgresql"]
    assert [engine(name).dialect.name for name in written] == ["postgresql", "mariadb", "sqlite", "duckdb"]


def test_types_of_postgresql(engine: Engine) -> None:
    unique = UUID(int=7)
    values = [
        (unique, sa.Uuid()),
        ({"a": [1, None]}, postgresql.JSONB()),
        (datetime.timedelta(days=3, seconds=5), sa.Interval()),
        (["a", 'b"\\', None], sa.ARRAY(sa.String)),
        ([1, 2], sa.ARRAY(sa.Integer)),
        (datetime.time(1, 2, 3), sa.Time()),
        (2**40, sa.BigInteger()),
        (Decimal("0.33333333333333333333"), sa.Numeric()),
    ]
    with engine("postgresql").connect() as connection:
        for value, kind in values:
            statement = sa.select(sa.cast(sa.bindparam("v", value, kind), kind))
            assert connection.execute(statement).scalar() == value
        holder = sa.cast(sa.literal('{"key": 1}'), postgresql.JSONB)
        assert connection.execute(sa.select(holder.has_key("key"), holder.has_key("none"))).first() == (True, False)


def test_each_statement_is_a_transaction_and_nothing_else_is_offered(things: Any) -> None:
    made = things("sqlite")
    with made.connect() as connection:
        assert connection.get_isolation_level() == "AUTOCOMMIT"
        connection.execute(sa.update(Thing).values(name="kept"))
        connection.rollback()
        assert connection.execute(sa.select(Thing.name).distinct()).scalars().all() == ["kept"]
        with pytest.raises(sa.exc.InvalidRequestError, match="no savepoints"):
            connection.begin_nested()
    with pytest.raises(sa.exc.ArgumentError, match="AUTOCOMMIT"), made.connect() as connection:
        connection.execution_options(isolation_level="SERIALIZABLE")


def test_errors_are_sqlalchemys(things: Any) -> None:
    with things("postgresql").connect() as connection:
        with pytest.raises(sa.exc.IntegrityError, match="duplicate key"):
            connection.execute(sa.insert(Thing), {"id": 1, **ROW})
        with pytest.raises(sa.exc.ProgrammingError, match="Did you mean 'things'"):
            connection.execute(sa.text("select * from thingz"))


def test_rows_stream(engine: Engine) -> None:
    endless = sa.text("select generate_series(1, 1000000000) as n")
    with engine("postgresql").connect() as connection:
        result = connection.execution_options(stream_results=True).execute(endless)
        assert [len(part) for part, _ in zip(result.partitions(10), range(3), strict=False)] == [10, 10, 10]
        result.close()
        assert connection.execute(sa.text("select 1")).scalar() == 1


def test_a_connection_that_goes_back_stops_its_statements(engine: Engine) -> None:
    """The service has four connections to the database."""
    endless = sa.text("select generate_series(1, 1000000000) as n")
    made = engine("postgresql")
    results = []
    for _ in range(5):
        with made.connect() as connection:
            results.append(connection.execute(endless))
            assert results[-1].fetchone() == (1,)
    with pytest.raises(sa.exc.InterfaceError, match="closed"):
        results[0].fetchone()


def test_cancelling(engine: Engine) -> None:
    with engine("postgresql").connect() as connection:
        cursors: list[Any] = []
        sa.event.listen(connection, "before_cursor_execute", lambda _connection, cursor, *_: cursors.append(cursor))
        timer = threading.Timer(0.3, lambda: cursors[0].cancel())
        timer.start()
        with pytest.raises(sa.exc.OperationalError, match="cancelled"):
            connection.execute(sa.text("select count(*) from generate_series(1, 2000000000) n"))
        timer.join()


def test_a_federation(tmp_path: Path, postgres_url: str) -> None:
    sqlite3.connect(tmp_path / "data.db").close()
    urls = {"postgresql": postgres_url, "sqlite": f"sqlite:///{tmp_path}/data.db"}
    with served(tmp_path, urls) as running:
        made = {name: sa.create_engine(f"{running.url.replace('http', 'dai')}/{name}") for name in (*urls, "lab")}
        for name in urls:
            Base.metadata.create_all(made[name])
            with made[name].connect() as connection:
                connection.execute(sa.insert(Thing), [{"id": 1, **ROW}, {"id": 2, **ROW, "name": "other"}])
        lab = made["lab"]
        pg = sa.Table("things", sa.MetaData(), autoload_with=lab, schema="pg")
        lite = sa.Table("things", sa.MetaData(), autoload_with=lab, schema="lite")
        assert set(sa.inspect(lab).get_schema_names()) == {"pg", "lite"}
        with lab.connect() as connection:
            joined = sa.select(pg.c.id, lite.c.name).join(lite, pg.c.id == lite.c.id).where(pg.c.day == ROW["day"])
            assert connection.execute(joined.order_by(pg.c.id)).all() == [(1, ROW["name"]), (2, "other")]
            with pytest.raises(sa.exc.NotSupportedError, match="read-only"):
                connection.execute(pg.insert(), {"id": 3})
        for each in made.values():
            each.dispose()


@pytest.mark.parametrize(
    ("database", "kind", "ready", "other"),
    [
        ("postgresql", sa.Numeric(12, 2), pa.decimal128(12, 2), pa.float64()),
        ("postgresql", sa.Float(), pa.float64(), pa.decimal128(12, 2)),
        ("mariadb", sa.DateTime(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
        ("sqlite", sa.Date(), pa.date32(), pa.string()),
        ("sqlite", sa.Time(), pa.time64("us"), pa.string()),
        ("sqlite", sa.DateTime(), pa.timestamp("us"), pa.string()),
    ],
    ids=str,
)
def test_no_value_is_touched_that_is_what_it_should_be(database: str, kind: Any, ready: Any, other: Any) -> None:
    """A function for each value takes longer than the rest of its way into a row."""
    dialect = DIALECTS[database]()
    assert kind._cached_result_processor(dialect, ready) is None
    assert kind._cached_result_processor(dialect, other) is not None
    assert kind._cached_result_processor(dialect, None) is not None


def test_many_rows_without_passes_of_the_garbage_collector(engine: Engine) -> None:
    passes: list[int] = []

    def counted(phase: str, info: dict[str, int]) -> None:
        passes.append(info["generation"])

    many = sa.text("with recursive n(i) as (select 1 union all select i + 1 from n where i < 50000) select i from n")
    with engine("sqlite").connect() as connection:
        connection.execute(many).all()
        gc.callbacks.append(counted)
        try:
            rows = connection.execute(many).all()
        finally:
            gc.callbacks.remove(counted)
        assert [row.i for row in rows] == list(range(1, 50_001))
        assert len(passes) < 40, "two hundred if it is not paused"
        assert gc.isenabled()
        result = connection.execution_options(stream_results=True).execute(many)
        assert (len(result.fetchmany(20_000)), gc.isenabled()) == (20_000, True)
        assert (len(result.all()), gc.isenabled()) == (30_000, True)
        result = connection.execute(many)
        assert (result.scalars().all()[-1], result.scalars().all(), gc.isenabled()) == (50_000, [], True)
        with pytest.raises(sa.exc.NoSuchColumnError):
            connection.execute(many).columns("none").all()
        assert gc.isenabled()
        gc.disable()
        try:
            assert (len(connection.execute(many).all()), gc.isenabled()) == (50_000, False)
        finally:
            gc.enable()


# --- programs ---


def test_pandas(things: Any, engine: Engine) -> None:
    made = things("postgresql")
    frame = pd.read_sql("select id, number, name from things order by id", made, params=())
    assert frame.to_dict("list") == {"id": [1, 2], "number": [1.5, 1.5], "name": [ROW["name"], "other"]}
    frame = pd.read_sql(sa.select(Thing.id).where(Thing.name == sa.bindparam("n")), made, params={"n": "other"})
    assert frame["id"].to_list() == [2]
    assert pd.read_sql_table("things", made)["id"].to_list() == [1, 2]
    parts = list(pd.read_sql("select generate_series(1, 25) as n", made, chunksize=10))
    assert [len(each) for each in parts] == [10, 10, 5]
    written = pd.DataFrame({"n": [1, 2], "s": ["a", None]})
    for database in ("postgresql", "sqlite"):
        written.to_sql("written", engine(database), index=False, if_exists="replace")
        assert pd.read_sql("select * from written", engine(database)).to_dict("list")["n"] == [1, 2]
    numbers = pd.read_sql("select 1.5::numeric(4,2) as n, 2::numeric / 4 as m", engine("postgresql", "?numeric=double"))
    assert [str(each) for each in numbers.dtypes] == ["float64", "float64"]


def test_polars(things: Any) -> None:
    made = things("postgresql")
    query = "select id, price from things order by id"
    with made.connect() as connection:
        frame = polars.read_database(query, connection)
        assert frame.to_dict(as_series=False) == {"id": [1, 2], "price": [Decimal("1.50")] * 2}
    with dbapi.connect(address(made.url)) as connection:
        assert polars.read_database(query, connection)["id"].to_list() == [1, 2]
        assert isinstance(connection.execute(query).fetch_arrow_table(), pa.Table)
        assert polars.DataFrame(connection.execute(query))["id"].to_list() == [1, 2]
    assert os.environ.get("DAI_TOKEN") is None


def test_dask(things: Any) -> None:
    frames = pytest.importorskip("dask.dataframe", reason="needs the extra test")
    url = things("postgresql").url.render_as_string()
    frame = frames.read_sql_table("things", url, index_col="id", columns=["number"], npartitions=2)
    assert frame["number"].sum().compute(scheduler="synchronous") == 3.0


def test_what_superset_asks_of_a_connection(things: Any) -> None:
    """The test of a new database (a ping over a raw connection), the lists it shows, and a query of its SQL Lab."""
    made = things("postgresql")
    with closing(made.raw_connection()) as connection:
        assert made.dialect.do_ping(connection.dbapi_connection)
        cursor = connection.cursor()
        cursor.execute("SELECT id, name FROM things ORDER BY id LIMIT 1001")
        assert [each[0] for each in cursor.description] == ["id", "name"]
        assert [row[0] for row in cursor.fetchall()] == [1, 2]
    listed = sa.inspect(made)
    assert "public" in listed.get_schema_names()
    assert "things" in listed.get_table_names("public")
    assert listed.get_view_names("public") == []
    assert [each["name"] for each in listed.get_columns("things", "public")][:2] == ["id", "name"]


def test_ibis(things: Any) -> None:
    ibis = pytest.importorskip("ibis", reason="needs ibis-framework")
    pytest.importorskip("pyarrow_hotfix", reason="ibis needs it")
    with dbapi.connect(address(things("postgresql").url)) as connection:
        table = ibis.memtable(connection.execute("select id, name from things").fetch_arrow_table())
    assert table.filter(table.id == 2).name.execute().to_list() == ["other"]


def test_jupysql(things: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sql.magic", reason="needs jupysql")
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setenv("PLOOMBER_STATS_ENABLED", "false")
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)  # a shell sets it, and other libraries look at it
    shell = InteractiveShell.instance()
    try:
        shell.run_line_magic("load_ext", "sql")
        shell.run_line_magic("sql", things("postgresql").url.render_as_string())
        result = shell.run_cell_magic("sql", "", "select id, name from things order by id")
        assert result.DataFrame()["id"].to_list() == [1, 2]
    finally:
        InteractiveShell.clear_instance()
