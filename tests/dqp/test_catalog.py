"""The catalog: names, statistics, what SQL means, sources that change or are away."""

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from dai.cancellation import Cancellation
from dai.drivers import Column as ColumnInfo
from dai.drivers import ColumnStatistics, ForeignKey, Index, Statistics, TableInfo, driver_for
from dai.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    NotAQueryError,
    NotFoundError,
    ParameterError,
    StatementError,
    UnreachableError,
)
from dai.stream import Stream
from dqp import reflection
from dqp.catalog import UNKNOWN_ROWS, Catalog
from dqp.settings import FederationSettings
from dqp.sources import DriverSource, Source
from tests.dqp.catalogs import catalog_of


class Scripted(Source):
    """A source that says what it was told to, and counts what it is asked."""

    def __init__(self, alias: str, *tables: TableInfo, replica_of: str | None = None) -> None:
        self.alias, self.address, self.replica_of = alias, f"scripted:{alias}", replica_of
        self.infos = tables
        self.known = Statistics(rows=5)
        self.away = False
        self.asked: list[str] = []
        self.held = threading.Event()
        self.held.set()

    @property
    def dialect(self) -> str:
        return "sqlite"

    def _answer(self, what: str) -> None:
        self.asked.append(what)
        assert self.held.wait(30)
        if self.away:
            raise UnreachableError("Nothing answers at http://10.0.0.1:80.")

    def tables(self) -> tuple[TableInfo, ...]:
        self._answer("tables")
        return self.infos

    def statistics(self, table: str) -> Statistics:
        self._answer(f"statistics {table}")
        return self.known

    def fingerprint(self, *, fresh: bool = False) -> str:
        self._answer("fingerprint")
        return repr(self.infos)

    def query(
        self, sql: str, parameters: Sequence[Any] = (), *, cancellation: Cancellation, batch_rows: int | None = None
    ) -> Stream:
        raise AssertionError("A catalog runs no query.")

    def close(self) -> None:
        self.asked.append("close")


def info(name: str, *columns: str, schema: str | None = None, **facts: Any) -> TableInfo:
    made = tuple(ColumnInfo(*each.split(":")) for each in columns or ("id:int:int32", "name:text:string"))
    return TableInfo(name=name, schema=schema, columns=made, **facts)


@pytest.fixture
def made() -> Iterator[Callable[..., Catalog]]:
    catalogs = []

    def make(*sources: Source, **settings: Any) -> Catalog:
        catalog = Catalog(FederationSettings(**settings), sources=sources)
        catalogs.append(catalog)
        return catalog

    yield make
    for each in catalogs:
        each.close()


@pytest.fixture
def small() -> Iterator[Catalog]:
    made = catalog_of(
        pg={
            "orders": "id int not null, amt decimal(12,2), s varchar, at timestamptz",
            "people": "id int, name varchar",
        },
        maria={"regions": "id bigint, name varchar"},
        views={
            "busy": "select o.id, r.name from pg.orders o join maria.regions r on o.id = r.id",
            "above": "select count(*) n from busy",
            "lost": "select * from pg.ordrs",
            "wrong": "select nam from pg.people",
            "round": "select * from trip",
            "trip": "select * from round",
        },
    )
    yield made
    made.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- names ---


def test_tables_by_every_name(made: Callable[..., Catalog]) -> None:
    catalog = made(
        Scripted("pg", info("Orders"), info("regions", schema="sales"), info("x", schema="a"), info("x", schema="b")),
        Scripted("lite", info("orders")),
    )
    assert str(catalog.table("pg", "orders")) == "pg.Orders"
    assert catalog.table("PG", "ORDERS") == catalog.table(None, "pg_orders") == catalog.table(None, "PG_Orders")
    assert catalog.table("pg", "orders") != catalog.table("lite", "orders")
    assert str(catalog.table("pg", "regions")) == "pg.sales.regions"
    assert (
        catalog.table("pg", "regions")
        == catalog.table("pg", "regions", "SALES")
        == catalog.table("pg", "sales.regions")
        == catalog.table(None, "pg_sales_regions")
        == catalog.table(None, "pg_regions")
    )
    assert catalog.table("pg", "x", "b").schema == "b"
    with pytest.raises(NotFoundError, match=r"no table pg\.x") as caught:
        catalog.table("pg", "x")
    assert_says(caught.value, r"Known: .*a\.x, b\.x")
    with pytest.raises(NotFoundError) as caught:
        catalog.table("pg", "regons")
    assert_says(caught.value, "Did you mean 'regions'")
    for sql in (
        "select Orders.ID from pg.orders",
        "select pg.orders.id from PG.ORDERS",
        "select pg_orders.id from pg_orders",
        "select pg.sales.regions.id from pg.sales.regions",
        "select regions.id from pg.regions",
        'select id from pg."sales.regions"',
        "select id from pg_sales_regions",
        'select id from "pg"."Orders"',
        "select id from pg.b.x",
    ):
        assert catalog.describe(sql)[0][1] == "INTEGER", sql


@pytest.mark.parametrize(
    ("alias", "name", "says"),
    [
        ("pg", "ordrs", "no table pg.ordrs.*'orders'"),
        ("gp", "orders", "no source 'gp'.*maria, pg"),
        (None, "pg_ordrs", "no table 'pg_ordrs'"),
        (None, "orders", "no table 'orders'.*'pg.orders'"),
    ],
)
def test_the_nearest_name_is_suggested(small: Catalog, alias: str | None, name: str, says: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        small.table(alias, name)
    assert_says(caught.value, says)
    assert small.table("pg", "orders").column("AMT").name == "amt"
    with pytest.raises(NotFoundError, match=r"no column 'amount' in pg\.orders"):
        small.table("pg", "orders").column("amount")


def assert_says(error: BaseException, says: str) -> None:
    assert re.search(says, str(error), re.DOTALL), str(error)


def test_names_that_differ_in_case_alone(made: Callable[..., Catalog]) -> None:
    catalog = made(Scripted("m", info("T", "a:int:int32", "b:int:int32", "A:text:string"), info("t", "b:int:int32")))
    assert catalog.describe("select * from m.t") == (("a_1", "INTEGER"), ("b", "INTEGER"), ("A_2", "VARCHAR"))
    columns = catalog.table("m", "t").columns
    assert [(each.name, each.source_name) for each in columns] == [("a_1", "a"), ("b", "b"), ("A_2", "A")]
    assert "case of letters" in catalog.problems["m.t"]
    assert "a (a_1), A (A_2)" in catalog.problems["m.T"]
    with pytest.raises(StatementError, match=r"no column 'a' in m\.T"):
        catalog.describe("select a from m.t")


def test_a_name_with_quotes(made: Callable[..., Catalog]) -> None:
    catalog = made(Scripted("pg", info('we "ird', "a:int:int32")))
    assert catalog.describe('from pg."we ""ird"') == (("a", "INTEGER"),)
    assert catalog.describe('select pg."we ""ird".a from pg."we ""ird"') == (("a", "INTEGER"),)


def test_a_table_without_columns(made: Callable[..., Catalog]) -> None:
    catalog = made(Scripted("pg", TableInfo(name="bare", columns=()), info("orders")))
    assert [each.name for each in catalog.tables()] == ["orders"]
    assert catalog.problems["pg.bare"] == "It has no columns."
    with pytest.raises(StatementError, match=r"no table pg\.bare"):
        catalog.describe("from pg.bare")


# --- what a table is ---


def test_a_table_from_what_its_source_knows(made: Callable[..., Catalog]) -> None:
    columns = (
        ColumnInfo("id", "int", "int32", nullable=False),
        ColumnInfo("code", "varchar", "string", nullable=False, length=3),
        ColumnInfo("amt", "decimal", "decimal128(12, 2)"),
        ColumnInfo("day", "date", "date32[day]"),
        ColumnInfo("note", "text", "string"),
        ColumnInfo("huge", "decimal", "decimal256(50, 2)"),
    )
    described = TableInfo(
        name="t",
        columns=columns,
        primary_key=("id",),
        indexes=(Index("a", ("code",), True), Index("b", ("amt",), True), Index("c", ("day",), False)),
        foreign_keys=(ForeignKey(("id",), "other", ("id",)),),
    )
    source = Scripted("s", described)
    source.known = Statistics(
        rows=1000,
        size_bytes=100_000,
        columns={
            "amt": ColumnStatistics(distinct=50, null_fraction=0.1, low="1.50", high="99.00", width=6),
            "day": ColumnStatistics(low="2024-01-01", high="infinity"),
        },
    )
    table = made(source).table("s", "t")
    assert (table.rows, table.kind) == (1000.0, "table")
    # A unique index of a column that may be NULL tells nothing: NULLs repeat.
    assert table.keys == (("id",), ("code",))
    assert table.foreign_keys == described.foreign_keys
    assert table.column("id").distinct == 1000.0
    assert table.column("id").null_fraction == 0.0
    amount = table.column("amt")
    assert (amount.type, amount.source_type, amount.distinct, amount.null_fraction) == (
        "DECIMAL(12,2)",
        "decimal",
        50,
        0.1,
    )
    assert (amount.low, amount.high, amount.width) == (Decimal("1.50"), Decimal("99.00"), 6)
    assert (table.column("day").low, table.column("day").high) == (date(2024, 1, 1), None)
    assert table.column("huge").type == "VARCHAR"
    assert table.column("code").width == 3.0
    assert 25 < table.column("note").width < 35
    assert table.bytes == sum(each.width for each in table.columns) * 1000


def test_a_source_that_knows_nothing(made: Callable[..., Catalog]) -> None:
    source = Scripted("s", info("t"), info("v", kind="view"))
    source.known = Statistics(rows=None)
    catalog = made(source)
    assert catalog.table("s", "t").rows == UNKNOWN_ROWS
    assert catalog.table("s", "t").column("id").distinct is None
    assert catalog.table("s", "v").kind == "view"


def test_rows_that_nobody_counted_are_as_many_as_the_key_has_numbers(made: Callable[..., Catalog]) -> None:
    source = Scripted("s", info("t", primary_key=("id",)))
    source.known = Statistics(rows=None, columns={"id": ColumnStatistics(low="11", high="510")})
    assert made(source).table("s", "t").rows == 500
    source.known = Statistics(rows=None, columns={"id": ColumnStatistics(low="a", high="b")})
    assert made(source).table("s", "t").rows == UNKNOWN_ROWS


def test_a_database(made: Callable[..., Catalog], postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            "create table t (id int primary key, k int not null unique, u uuid, n numeric, l text[], at timestamptz);"
            "insert into t select i, i, null, 1, null, now() from generate_series(1, 500) i; analyze t"
        )
    catalog = made(DriverSource("pg", driver_for(postgres_url)))
    table = catalog.table("pg", "t")
    assert [each.type for each in table.columns] == [
        "INTEGER",
        "INTEGER",
        "VARCHAR",
        "DOUBLE",
        "VARCHAR[]",
        "TIMESTAMP WITH TIME ZONE",
    ]
    assert table.rows == 500
    assert table.keys == (("id",), ("k",))
    assert table.column("u").null_fraction == 1.0
    assert (table.column("id").low, table.column("id").high) == (1, 500)
    assert catalog.describe("from pg.t") == tuple((each.name, each.type) for each in table.columns)


# --- what SQL means ---


def test_describe(small: Catalog) -> None:
    assert small.describe("select id, sum(amt) total, count(*) from pg.orders group by all order by 1") == (
        ("id", "INTEGER"),
        ("total", "DECIMAL(38,2)"),
        ("count_star()", "BIGINT"),
    )
    assert small.describe("select 1 a, 2 a") == (("a", "INTEGER"), ("a", "INTEGER"))
    assert small.describe("with x as (values (1)) from x, pg.people")[1] == ("id", "INTEGER")
    assert small.describe("select 7 / 2, 7 // 2") == (("(7 / 2)", "DOUBLE"), ("(7 // 2)", "INTEGER"))


def test_parameters(small: Catalog) -> None:
    assert small.describe("select id from pg.orders where s = ? and id < ?", ["x", 3]) == (("id", "INTEGER"),)
    assert small.describe("select $a, :b::int, [1,2][:c]", {"a": "x", "b": 1, "c": 1})[1][1] == "INTEGER"
    with pytest.raises(ParameterError, match="parameter 2"):
        small.describe("select ?, ?", [1])
    with pytest.raises(ParameterError, match="b"):
        small.describe("select $a", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("sql", "position", "says"),
    [
        ("select foo from pg.orders", 8, r"no column 'foo' in pg.orders"),
        ("select amtt from pg.orders", 8, "Did you mean 'amt'"),
        ("select 'é→', amtt\nfrom pg.orders", 14, "line 1: .*amtt"),
        ("select id,\n  nme from pg.people", 14, "line 2: .*Did you mean 'name'"),
        ("select o.amtt from pg.orders o", 8, "no column 'amtt' in o.*'amt'"),
        ("select x.id from pg.orders o", 8, "no table 'x' in this FROM clause.*o"),
        ("select * from pg.ordrs", 15, "no table pg.ordrs.*'orders'"),
        ('select * from pg."ordrs"', 15, "no table pg.ordrs.*'orders'"),
        ("select * from gp.orders", 15, "no source 'gp'.*pg"),
        ("select * from orders", 15, "no table 'orders'.*'pg.orders'"),
        ("select * from pg_ordrs", 15, "no table 'pg_ordrs'"),
        ("select * from pg.sales.orders", 15, "no table pg.sales.orders"),
        ("selec 1", 1, "syntax error"),
        ("select id from pg.orders o, pg.people p", 8, "Ambiguous"),
        ("select bount(*) from pg.orders", 8, "no scalar function 'bount'"),
        ("select upper(1, 2)", 8, r"upper\(INTEGER, INTEGER\).*There is: upper"),
        ("select id from pg.orders group by s", 8, "must appear in the GROUP BY"),
        ("select * from lost", None, "The view 'lost' does not hold: There is no table pg.ordrs"),
        ("select * from wrong", None, "The view 'wrong' does not hold: There is no column 'nam'"),
        ("select * from round", None, "reads itself: round → trip → round"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(small: Catalog, sql: str, position: int | None, says: str) -> None:
    with pytest.raises(StatementError) as caught:
        small.describe(sql)
    assert_says(caught.value, says)
    if position is not None:
        assert caught.value.position == position


@pytest.mark.parametrize(
    "sql",
    [
        "",
        " -- nothing",
        "select 1; select 2",
        "delete from pg.orders",
        "insert into pg.orders values (1)",
        "create table x (i int)",
        "drop table pg.orders",
        "attach ':memory:' as other",
        "copy pg.orders to '/tmp/x.csv'",
        "copy (select 1) to '/tmp/x.csv'",
        "install httpfs",
        "load httpfs",
        "set threads = 4",
        "pragma database_list",
        "explain select 1",
        "show tables",
        "describe pg.orders",
        "summarize pg.orders",
        "pivot pg.orders on s using sum(amt)",
        "begin",
        "call pragma_version()",
        "export database '/tmp/x'",
    ],
)
def test_only_one_query_may_stand_here(small: Catalog, sql: str) -> None:
    before = small.describe("from pg.orders")
    with pytest.raises(NotAQueryError):
        small.describe(sql)
    assert small.describe("from pg.orders") == before


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from read_parquet('http://127.0.0.1:9/x.parquet')",
        "select * from '/etc/passwd'",
        "select * from glob('/etc/*')",
        "select getenv('HOME')",
        "select * from sqlite_scan('/tmp/x.db', 't')",
        "from postgres_query('pg', 'select 1')",
        "select * from sql",
    ],
)
def test_nothing_outside_is_in_reach(small: Catalog, sql: str) -> None:
    with pytest.raises(StatementError) as caught:
        small.describe(sql)
    assert ".duckdb" not in str(caught.value)
    assert "install" not in str(caught.value)


def test_views(small: Catalog) -> None:
    assert small.describe("from busy") == (("id", "INTEGER"), ("name", "VARCHAR"))
    assert small.describe("from ABOVE") == (("n", "BIGINT"),)
    assert small.describe('select busy.id from busy, "above"') == (("id", "INTEGER"),)
    assert small.shapes_of_views().keys() == {"busy", "above"}
    assert {"lost", "wrong", "round", "trip"} <= small.problems.keys()


def test_uploads(small: Catalog) -> None:
    before = small.version
    small.upload("Mine", pa.table({"id": pa.array([1], pa.int64()), "x": ["a"]}))
    assert small.version != before
    assert small.describe("select m.*, o.amt from mine m join pg.orders o using (id)") == (
        ("id", "BIGINT"),
        ("x", "VARCHAR"),
        ("amt", "DECIMAL(12,2)"),
    )
    data = small.inline("MINE")
    assert data is not None
    assert data.num_rows == 1
    assert small.inline("other") is None
    small.upload("mine", pa.table({"y": [1.5]}))
    assert small.describe("from mine") == (("y", "DOUBLE"),)
    with pytest.raises(ParameterError, match="a view 'busy'"):
        small.upload("busy", data)
    with pytest.raises(ParameterError, match="same name: a"):
        small.upload("other", pa.table([[1], [2]], names=["a", "A"]))
    for nameless in (pa.table({}), pa.table({"": [1]}), pa.table({"a\0": [1]})):
        with pytest.raises(ParameterError, match="without a name"):
            small.upload("other", nameless)


def test_operation_calls() -> None:
    function = {"url": "http://127.0.0.1:9/", "arguments": ["VARCHAR", "INTEGER"], "returns": "DOUBLE"}
    catalog = Catalog(FederationSettings(functions={"blast": function}), sources=())
    assert catalog.describe("select Blast('x', 1), sum(blast('y', 2))")[0][1] == "DOUBLE"
    with pytest.raises(StatementError, match=r"blast\(INTEGER, VARCHAR\)"):
        catalog.describe("select blast(1, 'x'::varchar)")
    catalog.close()
    broken = Catalog(FederationSettings(functions={"f": {**function, "returns": "NOTHING"}}), sources=())
    with pytest.raises(ConfigurationError, match=r"functions.f: .* are no types"):
        broken.describe("select 1")
    broken.close()
    taken = Catalog(FederationSettings(functions={"entropy": function}), sources=())
    with pytest.raises(ConfigurationError, match=r"functions.entropy: DuckDB has a function of this name"):
        taken.describe("select 1")
    taken.close()


def test_many_threads_describe_at_once(small: Catalog) -> None:
    queries = ["from pg.orders", "from busy", "from maria.regions", "from pg_people", 'from "above"'] * 8
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(small.describe, queries))
    assert found == [small.describe(each) for each in queries]


# --- sources ---


def test_a_source_is_asked_when_a_query_first_names_it(made: Callable[..., Catalog]) -> None:
    one, two = Scripted("one", info("t")), Scripted("two", info("t"))
    catalog = made(one, two)
    assert one.asked == two.asked == []
    catalog.describe("select * from one.t")
    assert two.asked == []
    assert one.asked[:2] == ["fingerprint", "tables"]
    catalog.describe("select * from one_t, one.t")
    catalog.table("one", "t")
    assert sorted(one.asked) == ["fingerprint", "statistics t", "tables"]
    assert [str(each) for each in catalog.tables()] == ["one.t", "two.t"]


def test_sources_are_asked_at_once(made: Callable[..., Catalog]) -> None:
    sources = [Scripted(f"s{number}", info("t")) for number in range(8)]
    for each in sources:
        each.held.clear()
    catalog = made(*sources)
    sql = "select 1 from " + ", ".join(f"s{number}.t" for number in range(8))
    with ThreadPoolExecutor(1) as pool:
        described = pool.submit(catalog.describe, sql)
        until(lambda: all(each.asked for each in sources))
        for each in sources:
            each.held.set()
        assert described.result(timeout=30) == (("1", "INTEGER"),)


def test_a_source_that_is_away_is_missed_only_where_it_is_needed(
    made: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflection, "RETRY_SECONDS", 0.0)
    one, two = Scripted("one", info("t")), Scripted("two", info("t"))
    two.away = True
    catalog = made(one, two, views={"joined": "select * from one.t, two.t"})
    assert catalog.describe("select t.id as two from one.t") == (("two", "INTEGER"),)
    assert [str(each) for each in catalog.tables()] == ["one.t"]
    assert "Nothing answers" in catalog.problems["two"]
    assert catalog.answering() == ["one"]
    for ask in (
        lambda: catalog.describe("select * from one.t, two.t"),
        lambda: catalog.describe("select * from two_t"),
        lambda: catalog.describe("from joined"),
        lambda: catalog.table("two", "t"),
    ):
        with pytest.raises(DatabaseUnavailableError) as caught:
            ask()
        assert "'two'" in caught.value.detail
        assert "10.0.0.1" not in str(caught.value)
    two.away = False
    assert len(catalog.describe("from joined")) == 4
    assert catalog.problems == {}


def test_a_source_that_is_away_is_not_asked_again_and_again(made: Callable[..., Catalog]) -> None:
    source = Scripted("s", info("t"))
    source.away = True
    catalog = made(source)
    for _ in range(5):
        with pytest.raises(DatabaseUnavailableError):
            catalog.describe("from s.t")
    assert source.asked == ["fingerprint"]


def test_a_replica_stands_in(made: Callable[..., Catalog]) -> None:
    first, second = Scripted("s", info("t")), Scripted("s@1", info("t"), replica_of="s")
    first.away = True
    catalog = made(first, second, Scripted("other", info("u")), replicas={"s.t": ("other.u",)})
    table = catalog.table("s", "t")
    assert table.source == "s"
    assert table.rows == 5.0
    assert table.replicas == (("other", "u"), ("s@1", "t"))
    assert [str(each) for each in catalog.tables()] == ["s.t", "other.u"]
    assert catalog.sources["s@1"] is second
    with pytest.raises(StatementError):
        catalog.describe('from "s@1".t')


def test_a_changed_source_is_noticed_in_the_background(
    made: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Scripted("s", info("t"))
    catalog = made(source)
    assert len(catalog.describe("from s.t")) == 2
    before = catalog.version
    source.infos = (info("t", "id:int:int64"),)
    assert len(catalog.describe("from s.t")) == 2
    monkeypatch.setattr(reflection, "CHECK_SECONDS", 0.0)
    until(lambda: catalog.version != before)
    assert catalog.describe("from s.t") == (("id", "BIGINT"),)
    assert catalog.table("s", "t").columns[0].type == "BIGINT"


def test_a_new_table_is_found_at_once(made: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflection, "FRESH_SECONDS", 0.0)
    source = Scripted("s", info("t"))
    catalog = made(source)
    catalog.describe("from s.t")
    source.infos = (info("t"), info("new"))
    assert len(catalog.describe("from s.new")) == 2
    source.infos = (info("t", "id:int:int32", "later:int:int32"),)
    assert catalog.describe("select later from s.t") == (("later", "INTEGER"),)
    with pytest.raises(StatementError, match=r"no table s\.new"):
        catalog.describe("from s.new")


def test_wrong_queries_keep_no_source_busy(made: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflection, "FRESH_SECONDS", 1000.0)
    source = Scripted("s", info("t"))
    catalog = made(source)
    for _ in range(5):
        with pytest.raises(StatementError):
            catalog.describe("select nothing from s.t")
    assert source.asked.count("fingerprint") == 2


def test_row_estimates_change_no_version(made: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch) -> None:
    source = Scripted("s", info("t", rows=5))
    catalog = made(source)
    assert catalog.table("s", "t").rows == 5
    before = catalog.version
    source.infos = (replace(source.infos[0], rows=6),)
    monkeypatch.setattr(reflection, "CHECK_SECONDS", 0.0)
    until(lambda: catalog.version == before and source.asked.count("tables") == 2)
    assert catalog.version == before


def test_statistics_are_read_again_after_their_lifetime(
    made: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Scripted("s", info("t"), info("unused"))
    catalog = made(source, lifetime=0.01)
    assert catalog.table("s", "t").rows == 5
    before = catalog.version
    source.known = Statistics(rows=9)
    monkeypatch.setattr(reflection, "CHECK_SECONDS", 0.0)
    until(lambda: catalog.version != before)
    assert catalog.table("s", "t").rows == 9
    assert "statistics unused" not in source.asked


def test_statistics_that_cannot_be_had_stop_nothing(made: Callable[..., Catalog]) -> None:
    source = Scripted("s", info("t", rows=7))
    catalog = made(source)
    catalog.tables()
    source.away = True
    assert catalog.table("s", "t").rows == 7


def test_closing_closes_the_sources(made: Callable[..., Catalog]) -> None:
    source = Scripted("s", info("t"))
    made(source).close()
    assert source.asked == ["close"]
