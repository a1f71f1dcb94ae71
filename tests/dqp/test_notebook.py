"""The lab: the same federation here and in a service, asked as a notebook asks it."""

from __future__ import annotations

import datetime
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import psycopg
import pyarrow as pa
import pytest

import dqp
from dai.api.server.serve import Background, background
from dai.client.progress import Progress
from dai.config import parse
from dai.drivers import driver_for
from dai.errors import (
    ClosedError,
    ConfigurationError,
    ParameterError,
    StatementError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.interfaces.lab import Lab
from tests.processes import SECONDS, until

ROWS = 2_000
JOINED = (
    "select o.id, c.name from shop.orders o join book.customers c on o.customer = c.id where o.id <= $most order by 1"
)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("lab")
    actual = {"shop": f"duckdb:///{place}/shop.db", "book": f"sqlite:///{place}/book.db"}
    numbers = list(range(1, ROWS + 1))
    tables = {
        ("shop", "orders"): {
            "id": numbers,
            "customer": [each % 50 for each in numbers],
            "amount": [Decimal(each) / 4 for each in numbers],
            "day": [datetime.date(2024, 1, 1) + datetime.timedelta(each % 30) for each in numbers],
        },
        ("book", "customers"): {"id": list(range(50)), "name": [f"<b>{each}&" for each in range(50)]},
    }
    for (alias, name), columns in tables.items():
        driver = driver_for(actual[alias])
        driver.load(name, Stream.of(pa.table(columns)), cancellation=Cancellation(), create=True)
        driver.close()
    with duckdb.connect(f"{place}/shop.db") as database:
        database.execute("comment on table orders is 'What was ordered'")
        database.execute("comment on column orders.amount is 'in euro'")
    return actual


@pytest.fixture(scope="module")
def service(urls: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    document: dict[str, Any] = {
        "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
        "resources": {name: {"url": url} for name, url in urls.items()},
        "federations": {
            "lab": {
                "sources": [{"alias": alias, "resource": alias} for alias in urls],
                "views": {"spent": "select customer, sum(amount) as total from shop.orders group by customer"},
                "upload_bytes": 100_000,
            }
        },
    }
    with background(parse(document, tmp_path_factory.mktemp("service"), {})) as running:
        yield running


@pytest.fixture(params=["here", "there"])
def lab(request: pytest.FixtureRequest, urls: dict[str, str], service: Background) -> Iterator[Lab]:
    views = {"spent": "select customer, sum(amount) as total from shop.orders group by customer"}
    where: Any = {"sources": urls, "views": views} if request.param == "here" else f"{service.url}/lab"
    with dqp.connect(where) as lab:
        yield lab


def test_a_query_in_every_form(lab: Lab) -> None:
    query = lab.sql(JOINED, most=25)
    assert "not read yet" in repr(query)
    table = query.arrow()
    assert table.num_rows == 25
    assert query.arrow() is table
    assert repr(query).endswith("25 rows>")
    assert query.to_pandas()["name"][0] == "<b>1&"
    assert query.to_polars().shape == (25, 2)
    assert [each.num_rows for each in lab.sql(JOINED, most=25).blocks(10)] == [10, 10, 5]
    assert sum(each.num_rows for each in lab.sql(JOINED, most=25)) == 25
    assert lab.sql(JOINED, most=25).reader().read_all().num_rows == 25
    assert pa.table(lab.sql(JOINED, most=25)).num_rows == 25


def test_a_long_list(lab: Lab) -> None:
    sql = "select count(*) as n from shop.orders where customer in $customers"
    actual = lab.sql(sql, customers=[*range(2, 3000), None])
    assert actual.arrow() == lab.sql("select count(*) as n from shop.orders where customer between 2 and 2999").arrow()
    assert actual.explain().text
    assert lab.sql("select 's7' in ($names) as v", names=[f"s{each}" for each in range(2000)]).arrow()["v"][0].as_py()


def test_parameters_of_every_kind(lab: Lab) -> None:
    sql = "select count(*) as n from shop.orders where day >= $day and amount < $amount and customer in $customers"
    table = lab.sql(sql, day=datetime.date(2024, 1, 10), amount=Decimal("100.25"), customers=[1, 2, 3]).arrow()
    plain = sql.replace("$day", "date '2024-01-10'").replace("$amount", "100.25").replace("$customers", "(1, 2, 3)")
    assert table == lab.sql(plain).arrow()
    assert lab.sql("select ? || ? as v", "it's ", "a ?").arrow().to_pylist() == [{"v": "it's a ?"}]
    with pytest.raises(ParameterError, match="has no value"):
        lab.sql("select $a").arrow()
    with pytest.raises(ParameterError, match="by position, or all by name"):
        lab.sql("select ?, $a", 1, a=2)


def test_what_a_notebook_shows(lab: Lab) -> None:
    long = lab.sql("select id, customer from shop.orders order by id")
    shown = long._repr_html_()
    assert shown.count("<tr>") == 11
    assert "the first rows" in shown
    assert "not read yet" in repr(long)
    short = lab.sql("select name from book.customers where id = 7")
    assert "&lt;b&gt;7&amp;" in short._repr_html_()
    assert "1 row × 1 column<" in short._repr_html_()
    assert repr(short).endswith(": 1 row>")
    wrong = lab.sql("select nmae from book.customers")._repr_html_()
    assert "Did you mean" in wrong
    assert "Traceback" not in wrong
    tables = lab._repr_html_()
    assert "orders" in tables
    assert "customers" in tables


def test_mistakes_point_into_the_sql(lab: Lab) -> None:
    with pytest.raises(StatementError) as caught:
        lab.sql("select o.nmae\nfrom shop.orders o where id < $most", most=5).arrow()
    assert caught.value.position == 8
    assert "line 1: select o.nmae\n               ^" in str(caught.value)
    with pytest.raises(StatementError) as caught:
        lab.sql("select 1 from shop.orders where $a < ids", a=12345).explain()
    assert "$a < ids" in str(caught.value)
    assert caught.value.position == 38


def test_plans(lab: Lab) -> None:
    sql = JOINED.replace("$most", "100")
    planned = lab.sql(sql).explain()
    assert planned.sql == sql
    assert repr(planned) == planned.text
    assert "Remote shop (duckdb)" in planned.text
    assert "<svg" in planned._repr_html_()
    ran = lab.explain(JOINED, most=100, analyze=True)
    assert ran.root.actual is not None
    assert ran.root.actual.rows == 100
    assert "running" in ran.seconds
    assert any("join" in each.title.lower() for each in _all(ran.fragments))
    assert "in the engine" in ran._repr_html_()


def _all(nodes: Any) -> Iterator[Any]:
    for each in nodes:
        yield each
        yield from _all(each.inputs)


def test_tables_of_ones_own(lab: Lab) -> None:
    frame = pa.table({"customer": [1, 2, 3], "weight": [0.5, None, 1.5]})
    assert lab.upload("mine", frame.to_pandas()) == 3
    sql = "select c.name, m.weight from mine m join book.customers c on c.id = m.customer order by 1"
    assert lab.sql(sql).arrow().num_rows == 3
    tables = {each["table"]: each for each in lab.tables().to_pylist()}
    assert (tables["mine"]["rows"], tables["mine"]["columns"]) == (3, ["customer", "weight"])
    assert (tables["spent"]["source"], tables["spent"]["columns"]) == (None, ["customer", "total"])
    # Replaced, whatever was there: other rows, other columns.
    lab.upload("mine", {"customer": [4], "note": ["x"]})
    assert lab.sql("from mine").arrow().to_pylist() == [{"customer": 4, "note": "x"}]
    polars = pytest.importorskip("polars")
    lab.upload("Other", polars.DataFrame({"a": [1, 2]}))
    assert lab.sql("select sum(a) as s from other").arrow().to_pylist() == [{"s": Decimal(3)}]


def test_the_tables_with_types_and_comments(lab: Lab) -> None:
    listed = lab.tables()
    orders = next(each for each in listed.to_pylist() if each["table"] == "orders")
    assert orders["types"] == ["bigint", "bigint", "decimal(5,2)", "date"], orders
    assert orders["comment"] == "What was ordered"
    assert orders["comments"] == [None, None, "in euro", None]
    assert lab.sql("SHOW TABLES").arrow() == listed.arrow()
    assert "amount <small>decimal(5,2) – in euro</small>" in listed._repr_html_()
    assert "shop.orders" in repr(listed)
    described = lab.sql("describe shop.orders").rows()
    assert described[2][:6] == ("amount", "DECIMAL(5,2)", "YES", None, "decimal", "in euro")
    assert [each[:2] for each in lab.sql("DESC select customer, total / 2 as half from spent").rows()] == [
        ("customer", "BIGINT"),
        ("half", "DOUBLE"),
    ]


def test_a_summary_of_each_column(lab: Lab) -> None:
    summary = {each["column_name"]: each for each in lab.sql("SUMMARIZE shop.orders;").arrow().to_pylist()}
    assert summary["id"] | {"column_type": ""} == {
        "column_name": "id",
        "column_type": "",
        "min": "1",
        "max": str(ROWS),
        "distinct": ROWS,
        "avg": (ROWS + 1) / 2,
        "count": ROWS,
        "null_percentage": 0.0,
    }
    assert summary["day"]["min"] == "2024-01-01"
    few = lab.sql("summarize select nullif(id, 3) as i from shop.orders where id <= $most", most=4).rows()
    assert few == [("i", "BIGINT", "1", "4", 3, pytest.approx(7 / 3), 4, 25.0)]


@pytest.mark.parametrize(
    ("sql", "position"),
    [("describe shop.ordres", 10), ("SUMMARIZE select nmae from shop.orders", 18), ("summarize", 9)],
)
def test_mistakes_in_descriptions_are_pointed_at(lab: Lab, sql: str, position: int) -> None:
    with pytest.raises(StatementError) as caught:
        lab.sql(sql).arrow()
    assert caught.value.position == position
    assert f"line 1: {sql}" in str(caught.value)


def test_a_data_frame_of_the_caller(lab: Lab, urls: dict[str, str]) -> None:
    """Here it is read as it is when the query runs; what a service does not have, a hint says how to send."""
    wanted = pa.table({"id": [2, 3], "note": ["x", "y"]})
    sql = "select o.id, note from shop.orders o join {} using (id) order by 1"
    if lab._coordinator is None:
        with pytest.raises(StatementError, match=r"lab\.upload\('wanted', wanted\)"):
            lab.sql(sql.format("wanted")).arrow()
        return
    frame, polar, asked = wanted.to_pandas(), pytest.importorskip("polars").from_arrow(wanted), lab.sql("from wanted")
    for name in ("wanted", "frame", "polar", "asked"):
        assert lab.sql(sql.format(name)).rows() == [(2, "x"), (3, "y")], (frame, polar, asked)
    assert "Remote shop" in lab.explain(sql.format("frame")).text
    frame.loc[0, "id"] = 1
    query = lab.sql(sql.format("frame"))
    assert query.rows() == [(1, "x"), (3, "y")]
    lab.upload("frame", {"id": [9], "note": ["uploaded"]})
    assert lab.sql(sql.format("frame")).rows() == [(9, "uploaded")], "what was uploaded counts more"
    shop = spent = frame
    assert lab.sql("select count(*) from shop.orders o, spent where o.customer = 0").rows()[0][0] > 0, (shop, spent)


def test_a_series(lab: Lab) -> None:
    lab.upload("few", pd.Series([1, 2], name="x"))
    assert lab.sql("select sum(x)::int from few").rows() == [(3,)]


def test_tables_by_attributes(lab: Lab) -> None:
    assert {"shop", "book", "spent", "sql"} <= set(dir(lab))
    assert "orders" in dir(lab.shop)
    assert {"amount", "df", "head"} <= set(dir(lab.shop.orders))
    assert lab.book.customers.name.fetchone() == ("<b>0&",)
    assert len(lab.spent.rows()) == 50
    for wrong in (lambda: lab.shop.ordres, lambda: lab.shop.orders.amuont):
        with pytest.raises(AttributeError, match=r"Did you mean '(orders|amount)'"):
            wrong()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("spent", "There is already a view"),
        ("shop", "There is already a source"),
        ("shop_orders", "in a source"),
        ("", "name"),
    ],
)
def test_names_that_mean_something_else(lab: Lab, name: str, says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        lab.upload(name, {"a": [1]})
    assert lab.sql("select count(*) as n from shop_orders").arrow().to_pylist() == [{"n": ROWS}]


def test_what_is_no_table_or_federation(urls: dict[str, str], service: Background) -> None:
    with dqp.connect({"sources": urls}) as lab:
        for data in (3, "text", {"a": [1, 2], "b": [1]}):
            with pytest.raises(ParameterError):
                lab.upload("mine", data)
    with pytest.raises(ConfigurationError, match="not int"):
        dqp.connect(5)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        dqp.connect("nowhere.toml")


def test_progress_says_what_runs(urls: dict[str, str]) -> None:
    """Held by an operation until it was told twice how far the query is."""
    told: list[Progress] = []
    function = {"python": f"{__name__}:held", "arguments": ["BIGINT"], "returns": "BIGINT"}
    with dqp.connect({"sources": urls, "functions": {"held": function}}, progress=told.append) as lab:
        OPENED.clear()

        def open_when_told() -> None:
            until(lambda: any("held" in each.note for each in told))
            OPENED.set()

        opener = threading.Thread(target=open_when_told)
        opener.start()
        sql = "select o.id, held(o.id) h from shop.orders o join book.customers c on o.customer = c.id where o.id < 20"
        assert lab.sql(sql).arrow().num_rows == 19
        opener.join()
    assert told[-1].finished
    assert told[-1].note == "done"
    assert any(str(each).startswith("about 99 %") for each in told), "the sources have given what was expected"
    assert told[-1].bytes > 0
    assert told[-1].rows == 19


OPENED = threading.Event()


def held(value: int) -> int:
    """An operation that takes as long as the test wants."""
    assert OPENED.wait(60)
    return value


SLOW = """
import sys
import dqp
lab = dqp.connect({where!r})
print("asking", flush=True)
try:
    lab.sql("select count(*) as n from pg.slow s join book.customers c on s.id = c.id").{how}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""


@pytest.mark.parametrize("how", ["arrow()", "explain(analyze=True)"])
@pytest.mark.parametrize("where", ["here", "there"])
def test_ctrl_c_ends_the_statement_in_the_database(
    where: str, how: str, postgres_url: str, urls: dict[str, str], tmp_path: Path
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as database:
        # A view that takes as long as nobody cancels it.
        database.execute("create view slow as select 1 as id, pg_sleep(600)::text as s from generate_series(1, 1)")
        sources = {"pg": postgres_url, "book": urls["book"]}
        document: dict[str, Any] = {
            "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
            "resources": {name: {"url": url} for name, url in sources.items()},
            "federations": {"lab": {"sources": [{"alias": alias, "resource": alias} for alias in sources]}},
        }
        with background(parse(document, tmp_path, {})) as running:
            address: Any = {"sources": sources} if where == "here" else f"{running.url}/lab"
            process = subprocess.Popen(
                [sys.executable, "-c", SLOW.format(where=address, how=how)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            sleeping = "select count(*) from pg_stat_activity where state = 'active' and wait_event = 'PgSleep'"

            def asleep() -> int:
                row = database.execute(sleeping).fetchone()
                assert row is not None
                return int(row[0])

            try:
                until(lambda: asleep() or process.poll() is not None)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=SECONDS)
            finally:
                process.kill()
            assert out.split() == ["asking", "interrupted"], err
            assert process.returncode == 130
            until(lambda: not asleep())


def test_a_lab_that_is_closed_says_so_to_its_queries(urls: dict[str, str]) -> None:
    lab = dqp.connect({"sources": urls})
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            lab.sql("select count(*) from range(1_000_000_000_000) t(i) where i % 7 = 3").arrow()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: bool(lab._running))
    lab.close()
    thread.join(SECONDS)
    assert [str(each) for each in failures] == ["The lab was closed while the query ran."]


def test_a_lab_that_is_closed_is_not_asked_any_more(lab: Lab) -> None:
    query = lab.sql("select count(*) as n from shop.orders")
    assert query.arrow().to_pylist() == [{"n": ROWS}]
    lab.close()
    assert query.arrow().to_pylist() == [{"n": ROWS}], "What has been read is kept."
    for ask in (
        lab.sql("select 1").arrow,
        lab.sql("select 1").reader,
        lambda: list(lab.sql("select 1")),
        lambda: lab.explain("select 1"),
        lab.tables,
        lambda: lab.upload("mine", {"a": [1]}),
    ):
        with pytest.raises(ClosedError, match="The lab is closed"):
            ask()
    assert "The lab is closed" in lab._repr_html_()
    lab.close()


@pytest.mark.parametrize("begun", [False, True])
def test_a_reader_that_nobody_has_any_more_stops_its_query(lab: Lab, begun: bool) -> None:
    reader = lab.sql("select o.id, t.n from shop.orders o, range(1_000_000) t(n)").reader()
    if begun:
        assert reader.read_next_batch().num_rows
    assert lab._running
    del reader
    until(lambda: not lab._running)


def test_a_reader_that_came_to_its_end_stops_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str | None] = []

    class Recorded(threading.Thread):
        def __init__(self, *args: Any, **given: Any) -> None:
            started.append(given.get("name"))
            super().__init__(*args, **given)

    monkeypatch.setattr(threading, "Thread", Recorded)
    assert lab.sql("SELECT count(*) AS n FROM shop.orders").arrow().num_rows == 1
    with lab.sql("SELECT * FROM shop.orders").stream() as stream:
        next(stream)
    del stream
    assert "dqp-stop" not in started


def test_a_lab_of_a_service_that_is_closed_ends_its_statements_in_the_database(
    postgres_url: str, urls: dict[str, str], tmp_path: Path
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as database:
        database.execute("create view slow as select 1 as id, pg_sleep(600)::text as s from generate_series(1, 1)")
        database.execute("create view long as select generate_series(1, 1000000000) as n, repeat('x', 100) as t")

        def busy() -> int:
            row = database.execute(
                "select count(*) from pg_stat_activity where datname = current_database() and state <> 'idle' "
                "and pid <> pg_backend_pid()"
            ).fetchone()
            assert row is not None
            return int(row[0])

        document: dict[str, Any] = {
            "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
            "resources": {"pg": {"url": postgres_url}},
            "federations": {"lab": {"sources": [{"alias": "pg", "resource": "pg"}]}},
        }
        with background(parse(document, tmp_path, {})) as running:
            lab = dqp.connect(f"{running.url}/lab")
            lab.tables()
            assert not busy()
            stream = lab.sql("select n, t from pg.long").stream()
            assert next(stream).num_rows
            failures: list[BaseException] = []

            def ask() -> None:
                try:
                    lab.sql("select s from pg.slow").arrow()
                except BaseException as error:  # noqa: BLE001
                    failures.append(error)

            thread = threading.Thread(target=ask)
            thread.start()
            until(lambda: busy() >= 2)
            lab.close()
            thread.join(SECONDS)
            assert [str(each) for each in failures] == ["The lab was closed while the query ran."]
            # nobody reads or closes this one
            until(lambda: not busy())
            with pytest.raises(ClosedError, match="lab was closed"):
                stream.table()
            assert not lab._running
