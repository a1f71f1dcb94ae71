"""What the catalog knows of tables, and sources that change or are away."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from decimal import Decimal

import psutil
import psycopg
import pyarrow as pa
import pytest

from dai.drivers import driver_for
from dai.drivers.tables import Column as ColumnInfo
from dai.drivers.tables import ColumnStatistics, ForeignKey, Index, Statistics, TableInfo
from dai.errors import DaiError, DatabaseUnavailableError, StatementError, UnreachableError
from dqp.algebra.table import UNKNOWN_ROWS
from dqp.catalog import reflection
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.local import DriverSource
from tests.dqp.scripted import Scripted, info
from tests.processes import SECONDS, until

# --- what a table is ---


def test_a_table_from_what_its_source_knows(catalog_of: Callable[..., Catalog]) -> None:
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
    table = catalog_of(source).table("s", "t")
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
    assert table.column("huge").type == "DOUBLE"
    assert table.column("code").width == 3.0
    assert 25 < table.column("note").width < 45
    assert table.bytes == sum(each.width for each in table.columns) * 1000


def test_a_source_that_knows_nothing(catalog_of: Callable[..., Catalog]) -> None:
    source = Scripted("s", info("t"), info("v", kind="view"))
    source.known = Statistics(rows=None)
    catalog = catalog_of(source)
    assert catalog.table("s", "t").rows == UNKNOWN_ROWS
    assert catalog.table("s", "t").column("id").distinct is None
    assert catalog.table("s", "v").kind == "view"


def test_rows_that_nobody_counted_are_as_many_as_the_key_has_numbers(catalog_of: Callable[..., Catalog]) -> None:
    source = Scripted("s", info("t", primary_key=("id",)))
    source.known = Statistics(rows=None, columns={"id": ColumnStatistics(low="11", high="510")})
    assert catalog_of(source).table("s", "t").rows == 500
    source.known = Statistics(rows=None, columns={"id": ColumnStatistics(low="a", high="b")})
    assert catalog_of(source).table("s", "t").rows == UNKNOWN_ROWS


def test_a_database(catalog_of: Callable[..., Catalog], postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            "create table t (id int primary key, k int not null unique, u uuid, n numeric, l text[], at timestamptz);"
            "insert into t select i, i, null, 1, null, now() from generate_series(1, 500) i; analyze t"
        )
    catalog = catalog_of(DriverSource("pg", driver_for(postgres_url)))
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


# --- sources ---


def test_a_source_is_asked_when_a_query_first_names_it(catalog_of: Callable[..., Catalog]) -> None:
    one, two = Scripted("one", info("t")), Scripted("two", info("t"))
    catalog = catalog_of(one, two)
    assert one.asked == two.asked == []
    catalog.describe("select * from one.t")
    assert two.asked == []
    assert one.asked[:2] == ["fingerprint", "tables"]
    catalog.describe("select * from one_t, one.t")
    catalog.table("one", "t")
    assert sorted(one.asked) == ["fingerprint", "statistics t", "tables"]
    assert [str(each) for each in catalog.tables()] == ["one.t", "two.t"]


def test_sources_are_asked_at_once(catalog_of: Callable[..., Catalog]) -> None:
    sources = [Scripted(f"s{number}", info("t")) for number in range(8)]
    for each in sources:
        each.held.clear()
    catalog = catalog_of(*sources)
    sql = "select 1 from " + ", ".join(f"s{number}.t" for number in range(8))
    with ThreadPoolExecutor(1) as pool:
        described = pool.submit(catalog.describe, sql)
        until(lambda: all(each.asked for each in sources))
        for each in sources:
            each.held.set()
        assert described.result(SECONDS) == (("1", "INTEGER"),)


def test_a_catalog_that_asks_nothing_has_no_threads(catalog_of: Callable[..., Catalog]) -> None:
    """Each caller who is passed on has a catalog."""
    before = []
    for _ in range(2):
        catalog = catalog_of(*(Scripted(f"s{number}", info("t")) for number in range(8)))
        assert len(catalog.tables()) == 8
        assert catalog.describe("select count(*) n from s1.t") == (("n", "BIGINT"),)
        assert catalog.table("s1", "t").rows is not None
        until(lambda: not any(each.name.startswith("dqp-catalog") for each in threading.enumerate()))
        if before:
            until(lambda: psutil.Process().num_threads() <= before[0])  # those of DuckDB, too
        before.append(psutil.Process().num_threads())


def test_a_source_that_is_away_is_missed_only_where_it_is_needed(
    catalog_of: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflection, "RETRY_SECONDS", 0.0)
    one, two = Scripted("one", info("t")), Scripted("two", info("t"))
    two.away = True
    catalog = catalog_of(one, two, views={"joined": "select * from one.t, two.t"})
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


@pytest.mark.parametrize("sql", ["from s.t", "from s_t", "from v"])
def test_a_source_that_comes_back_while_an_error_is_made(
    catalog_of: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    monkeypatch.setattr(reflection, "RETRY_SECONDS", 0.0)
    source = Scripted("s", info("t"))
    answer = source.fingerprint

    def fingerprint(*, fresh: bool = False) -> str:
        source.away = not source.asked
        return answer(fresh=fresh)

    monkeypatch.setattr(source, "fingerprint", fingerprint)
    assert len(catalog_of(source, views={"v": "from s.t"}).describe(sql)) == 2
    assert source.asked[:3] == ["fingerprint", "fingerprint", "tables"]


def test_a_source_that_is_away_is_not_asked_again_and_again(
    catalog_of: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AGAIN_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(reflection, name, 3600.0)
    source = Scripted("s", info("t"))
    source.away = True
    catalog = catalog_of(source)
    for _ in range(5):
        with pytest.raises(DatabaseUnavailableError):
            catalog.describe("from s.t")
    assert source.asked == ["fingerprint"]


def test_a_replica_stands_in(catalog_of: Callable[..., Catalog]) -> None:
    first, second = Scripted("s", info("t")), Scripted("s@1", info("t"), replica_of="s")
    first.away = True
    catalog = catalog_of(first, second, Scripted("other", info("u")), replicas={"s.t": ("other.u",)})
    table = catalog.table("s", "t")
    assert table.source == "s"
    assert table.rows == 5.0
    assert table.replicas == (("other", None, "u"), ("s@1", None, "t"))
    assert [str(each) for each in catalog.tables()] == ["s.t", "other.u"]
    assert catalog.sources["s@1"] is second
    with pytest.raises(StatementError):
        catalog.describe('from "s@1".t')


def test_a_changed_source_is_noticed_in_the_background(
    catalog_of: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Scripted("s", info("t"))
    catalog = catalog_of(source)
    assert len(catalog.describe("from s.t")) == 2
    before = catalog.version
    source.infos = (info("t", "id:int:int64"),)
    assert len(catalog.describe("from s.t")) == 2
    monkeypatch.setattr(reflection, "CHECK_SECONDS", 0.0)
    until(lambda: catalog.version != before)
    assert catalog.describe("from s.t") == (("id", "BIGINT"),)
    assert catalog.table("s", "t").columns[0].type == "BIGINT"


def test_a_new_table_is_found_at_once(catalog_of: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflection, "FRESH_SECONDS", 0.0)
    source = Scripted("s", info("t"))
    catalog = catalog_of(source)
    catalog.describe("from s.t")
    source.infos = (info("t"), info("new"))
    assert len(catalog.describe("from s.new")) == 2
    source.infos = (info("t", "id:int:int32", "later:int:int32"),)
    assert catalog.describe("select later from s.t") == (("later", "INTEGER"),)
    with pytest.raises(StatementError, match=r"no table s\.new"):
        catalog.describe("from s.new")


def test_a_change_that_is_noticed_while_a_query_is_looked_at(
    catalog_of: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflection, "FRESH_SECONDS", 1000.0)
    source = Scripted("s", info("t"))
    catalog = catalog_of(source)
    catalog.describe("from s.t")
    version = Catalog.version.fget

    def noticed(of: Catalog) -> int:
        before = version(of)
        source.infos = (info("t", "later:int:int32"),)
        of._reflection._compare("s")
        return before

    monkeypatch.setattr(Catalog, "version", property(noticed))
    assert catalog.describe("select later from s.t") == (("later", "INTEGER"),)


def test_a_new_table_that_an_upload_is_called_like_in_other_letters(catalog_of: Callable[..., Catalog]) -> None:
    source = Scripted("s", info("t"))
    catalog = catalog_of(source)
    catalog.upload("s_Later", pa.table({"up": [1]}))
    source.infos = (info("t"), info("later"))
    catalog._reflection._compare("s")
    assert catalog.describe("from s_LATER") == (("up", "BIGINT"),)
    assert [name for name, _ in catalog.describe("from s.later")] != ["up"]


def test_a_source_of_another_dialect_than_its_replica(catalog_of: Callable[..., Catalog]) -> None:
    class Duck(Scripted):
        @property
        def dialect(self) -> str:
            return "duckdb"

    first, second = Scripted("s", info("t")), Duck("s@1", info("t"), replica_of="s")
    catalog = catalog_of(first, second)
    first.away = True
    catalog.table("s", "t")
    assert catalog.dialect("s") == "duckdb"
    before = catalog.version
    first.away = False
    catalog._reflection._compare("s")
    assert catalog.dialect("s") == "sqlite"
    assert catalog.version != before  # plans of before are for the other one


def test_wrong_queries_keep_no_source_busy(catalog_of: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflection, "FRESH_SECONDS", 1000.0)
    source = Scripted("s", info("t"))
    catalog = catalog_of(source)
    for _ in range(20):
        with pytest.raises(StatementError):
            catalog.describe("select nothing from s.t")
    assert source.asked.count("fingerprint") == 1 + reflection.FRESH_TIMES


def test_a_table_that_was_dropped_and_created_again_is_found_at_once(catalog_of: Callable[..., Catalog]) -> None:
    source = Scripted("s", info("t"), info("u"))
    catalog = catalog_of(source)
    catalog.describe("from s.t")
    for _ in range(2):
        source.infos = (info("u"),)
        catalog._reflection.renew("s")
        with pytest.raises(StatementError, match=r"no table s\.t"):
            catalog.describe("from s.t")
        source.infos = (info("t"), info("u"))
        assert len(catalog.describe("from s.t")) == 2


def test_row_estimates_change_no_version(catalog_of: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch) -> None:
    source = Scripted("s", info("t", rows=5))
    catalog = catalog_of(source)
    assert catalog.table("s", "t").rows == 5
    before = catalog.version
    source.infos = (replace(source.infos[0], rows=6),)
    monkeypatch.setattr(reflection, "CHECK_SECONDS", 0.0)
    until(lambda: catalog.version == before and source.asked.count("tables") == 2)
    assert catalog.version == before


def test_statistics_are_read_again_after_their_lifetime(
    catalog_of: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Scripted("s", info("t"), info("unused"))
    catalog = catalog_of(source, lifetime=0.01)
    assert catalog.table("s", "t").rows == 5
    before = catalog.version
    source.known = Statistics(rows=9)
    monkeypatch.setattr(reflection, "CHECK_SECONDS", 0.0)
    until(lambda: catalog.version != before)
    assert catalog.table("s", "t").rows == 9
    assert "statistics unused" not in source.asked


def test_statistics_that_are_on_their_way_are_not_asked_for_again(catalog_of: Callable[..., Catalog]) -> None:
    source = Scripted("s", info("t"))
    catalog = catalog_of(source, lifetime=-1.0)
    catalog.tables()
    source.held.clear()
    catalog._reflection.prefetch("s", source.infos[0])
    until(lambda: "statistics t" in source.asked)
    refreshing = threading.Thread(target=catalog._reflection._kept.refresh, args=["s"], daemon=True)
    refreshing.start()
    refreshing.join(SECONDS)
    assert not refreshing.is_alive()
    source.held.set()
    assert catalog.table("s", "t").rows == 5
    assert source.asked.count("statistics t") == 1


def test_statistics_of_before_a_change_are_not_kept(
    catalog_of: Callable[..., Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Scripted("s", info("t"))
    catalog = catalog_of(source, lifetime=-1.0)
    assert catalog.table("s", "t").rows == 5

    def statistics(table: str) -> Statistics:
        monkeypatch.undo()
        source.infos = (info("t", "id:int:int64"),)
        catalog._reflection._load("s")
        source.known = Statistics(rows=9)
        return Statistics(rows=7)

    monkeypatch.setattr(source, "statistics", statistics)
    catalog._reflection._kept.refresh("s")
    assert catalog.table("s", "t").rows == 9


def test_statistics_that_cannot_be_had_stop_nothing(catalog_of: Callable[..., Catalog]) -> None:
    source = Scripted("s", info("t", rows=7))
    catalog = catalog_of(source)
    catalog.tables()
    source.away = True
    assert catalog.table("s", "t").rows == 7


def test_closing_closes_the_sources(catalog_of: Callable[..., Catalog]) -> None:
    source = Scripted("s", info("t"))
    catalog_of(source).close()
    assert source.asked == ["close"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DatabaseUnavailableError("The file is locked.", hint="Wait."), "the file is locked."),
        (DatabaseUnavailableError("The source at http://10.0.0.1 took it."), "the database cannot be reached."),
        (UnreachableError("Nothing answers at 10.0.0.1."), "no service answers."),
    ],
)
def test_why_a_source_is_away(error: DaiError, told: str) -> None:
    assert reflection.unavailable("pg", error).detail == f"The source 'pg' is not available: {told}"
