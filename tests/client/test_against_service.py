"""The client and the real service, over HTTP, on a real PostgreSQL."""

import datetime
import decimal
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import psycopg
import pyarrow as pa
import pytest
from pyarrow import parquet

import dai
from dai.api.server.serve import Background, background
from dai.client import Options, Resource, activity, document, element
from dai.config import parse
from dai.errors import (
    BackPressureError,
    CancelledError,
    ConflictError,
    DaiError,
    DataError,
    DocumentError,
    GoneError,
    LimitError,
    NotAcceptableError,
    NotAQueryError,
    NotFoundError,
    ParameterError,
    RequestError,
    StatementError,
)
from dai.formats import FORMATS
from tests.processes import WRITABLE, until

SERIES = "select n, 'row ' || n as name from generate_series(1, ?) n"
ENDLESS = "select generate_series(1, 100000000) as n, repeat('x', 1000) as filler"


@pytest.fixture(scope="module")
def service(postgres_module_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    directory: Path = tmp_path_factory.mktemp("service")
    config = parse(
        {
            "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results"},
            "resources": {"lab": {"url": postgres_module_url, "pool_size": 4}},
            **WRITABLE,
        },
        directory,
        environment={},
    )
    with psycopg.connect(postgres_module_url) as connection:
        connection.execute("create table shelf (id integer primary key, name text, price numeric(8,2), day date)")
        connection.execute("insert into shelf values (1, 'a & <b>', 1.10, '2026-11-21'), (2, null, null, null)")
    with background(config) as running:
        yield running


@pytest.fixture
def lab(service: Background) -> Iterator[Resource]:
    resource = dai.connect(f"{service.url}/lab")
    yield resource
    resource.close()


def query_document(sql: str, blocksize: int | None = None) -> bytes:
    steps = [
        activity("sqlQueryStatement", element("expression", sql), element("webRowSetStream", name="rows"), name="q")
    ]
    if blocksize is not None:
        steps.append(
            activity(
                "blockAggregator",
                element("input", from_="rows"),
                element("blocksize", size=blocksize),
                element("output", name="blocks"),
                name="b",
            )
        )
    return document(*steps)


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_a_query_in_every_form(lab: Resource, form: str) -> None:
    table = lab.query("select id, name, price, day from shelf order by id", format=form).arrow()
    assert table.column_names == ["id", "name", "price", "day"]
    assert table["name"].to_pylist() == ["a & <b>", None]
    if form != "csv":
        assert table["price"].to_pylist()[1] is None
        assert decimal.Decimal(str(table["price"].to_pylist()[0])) == decimal.Decimal("1.10")
        assert str(table["day"].to_pylist()[0]).startswith("2026-11-21")


def test_parameters_are_bound(lab: Resource) -> None:
    table = lab.query("select name from shelf where id = ? and day = ?", 1, datetime.date(2026, 11, 21)).arrow()
    assert table["name"].to_pylist() == ["a & <b>"]
    assert lab.query("select name from shelf where name = ?", "' or true --").arrow().num_rows == 0


@pytest.mark.parametrize("form", ["arrow", "webrowset"])
def test_blocks(lab: Resource, form: str) -> None:
    sizes = [batch.num_rows for batch in lab.query(SERIES, 250, blocksize=100, format=form)]
    assert sizes == [100, 100, 50]


def test_compressed_results(service: Background) -> None:
    plain = dai.connect(f"{service.url}/lab").query(SERIES, 20_000, format="csv")
    content = plain.bytes()
    for compression in ("zstd", "gzip"):
        resource = dai.connect(f"{service.url}/lab", compression=compression)
        packed = resource.query(SERIES, 20_000, format="csv")
        assert packed.bytes() == content
        assert packed.received < plain.received / 2
        assert resource.query(SERIES, 20_000).arrow().num_rows == 20_000


def test_errors_say_where(lab: Resource) -> None:
    with pytest.raises(StatementError) as caught:
        lab.query("select id,\n  nme from shelf")
    text = str(caught.value).split("\n")
    assert "line 2:   nme from shelf" in text
    assert text[text.index("line 2:   nme from shelf") + 1].index("^") == len("line 2:   ")
    assert text[-1].startswith("Correlation id: ")
    with pytest.raises(NotAQueryError):
        lab.query("delete from shelf")
    with pytest.raises(DocumentError) as refused:
        lab.perform("<gridDataServicePerform><oops/></gridDataServicePerform>")
    assert refused.value.detail
    with pytest.raises(NotFoundError, match="Did you mean 'rows'"):
        lab.perform(query_document("select 1"), "row")


def test_values_that_are_missing_or_too_many(lab: Resource) -> None:
    value = element("sqlParameter", "1", position="1")

    def rows(name: str, sql: str, *values: ElementTree.Element) -> ElementTree.Element:
        output = element("webRowSetStream", name=f"{name}Rows")
        return activity("sqlQueryStatement", *values, element("expression", sql), output, name=name)

    with pytest.raises(ParameterError) as caught:
        lab.perform(document(rows("first", "select 1"), rows("second", "select ?::int, ?::int", value)))
    assert str(caught.value).split("\n")[:3] == [
        "The statement has 2 parameters (?), 1 value was given.",
        "Give one value for each ?, in order (in a perform document: one sqlParameter each).",
        "Activity: second",
    ]
    # PostgreSQL has operators with a question mark: without any values it is asked itself.
    for sql in ("select id from shelf where id = ?", "select id from shelf where id = ? and true"):
        with pytest.raises(StatementError, match=r"If \? stands for a value, give one for each"):
            lab.query(sql)
        with pytest.raises(StatementError, match=r"If \? stands for a value, give one for each"):
            lab.perform(document(rows("only", sql)))
    with pytest.raises(StatementError) as other:
        lab.query("select '?' fro shelf")
    assert "stands for a value" not in str(other.value)


def test_a_wrong_name(service: Background) -> None:
    with pytest.raises(NotFoundError, match="Did you mean 'lab'"):
        dai.connect(f"{service.url}/labb")
    assert dai.connect(service.url).name == "lab"


def test_a_response_document(lab: Resource) -> None:
    with lab.perform(query_document("select id, name from shelf order by id")) as response:
        table = response.results["rows"].arrow()
        assert table["name"].to_pylist() == ["a & <b>", None]
        assert response.results["q"].status == "COMPLETED"
        assert response.check().status == "COMPLETED"
        assert response.session
    alone = lab.perform(query_document("select id from shelf", 1), "blocks")
    assert alone.arrow().num_rows == 2


def test_an_update_and_its_count(lab: Resource) -> None:
    update = activity(
        "sqlUpdateStatement",
        element("expression", "update shelf set name = name where id = 1"),
        element("resultStream", name="count"),
        name="u",
    )
    with lab.perform(document(update)) as response:
        assert response.results["count"].update_count == 1


def test_a_failure_half_way(lab: Resource) -> None:
    failing = "select 10 / (2000000 - n) as x from (select generate_series(1, 2500000) as n) as numbers"
    with lab.perform(query_document(failing)) as response:
        with pytest.raises(StatementError, match="division by zero"):
            response.results["rows"].bytes()
        with pytest.raises(StatementError, match="division by zero"):
            response.check()
        assert response.results["q"].status == "ERROR"
    with pytest.raises(DaiError):
        lab.query(failing).arrow()


def test_the_schema(lab: Resource) -> None:
    schema = lab.schema()
    assert [column["name"] for column in schema["shelf"]["columns"]] == ["id", "name", "price", "day"]
    assert "shelf" in repr(schema)


def at_work(url: str) -> int:
    with psycopg.connect(url) as connection:
        actual = connection.execute(
            "select count(*) from pg_stat_activity where state = 'active' and datname = current_database()"
            " and query like '%generate_series(1, 100000000)%' and pid <> pg_backend_pid()"
        ).fetchone()
    assert actual is not None
    return int(actual[0])


def wait_until_idle(url: str) -> None:
    until(lambda: at_work(url) == 0)


def test_closing_a_result_stops_the_statement(lab: Resource, postgres_module_url: str) -> None:
    with lab.query(ENDLESS, blocksize=1000) as result:
        assert next(iter(result)).num_rows == 1000
    wait_until_idle(postgres_module_url)
    with lab.perform(query_document(ENDLESS)) as response:
        assert next(response.results["rows"].chunks())
    wait_until_idle(postgres_module_url)


def test_an_interrupt_stops_the_statement(lab: Resource, postgres_module_url: str) -> None:
    def interrupt(progress: dai.client.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lab.query(ENDLESS, progress=interrupt).arrow()
    wait_until_idle(postgres_module_url)


def test_a_job_from_its_beginning_to_its_end(lab: Resource, tmp_path: Path) -> None:
    job = lab.submit(SERIES, 5000)
    assert job.wait(60).phase == "COMPLETED"
    assert job.result().arrow().num_rows == 5000
    assert job.result(format="csv").text().count("\n") == 5001
    job.result(format="parquet").save(tmp_path / "result.parquet")
    assert parquet.read_table(tmp_path / "result.parquet").num_rows == 5000
    assert any(each.get("rows") == 5000 for each in job.progress)
    assert job.id in [each.id for each in lab.jobs()]
    job.delete()
    with pytest.raises(NotFoundError):
        job.refresh()


def test_the_results_of_a_job_in_their_own_form(lab: Resource) -> None:
    def statement(kind: str, sql: str, form: str, output: str) -> ElementTree.Element:
        return activity(kind, element("expression", sql), element(form, name=output), name=f"{output}Statement")

    job = lab.submit(
        document(
            statement("sqlQueryStatement", "select 7 as n", "webRowSetStream", "rows"),
            statement("sqlUpdateStatement", "update shelf set name = name", "resultStream", "update"),
        )
    )
    assert job.result("rows").arrow().to_pydict() == {"n": [7]}
    assert 'updateCount="2"' in job.result("update").text()
    with pytest.raises(NotAcceptableError):
        job.result("update", format="arrow")


def test_a_job_that_fails_and_one_that_is_aborted(lab: Resource, postgres_module_url: str) -> None:
    failed = lab.submit("select 1 / (n - 3) from generate_series(1, 5) n")
    with pytest.raises(StatementError, match="division by zero"):
        failed.result()
    endless = lab.submit(query_document(ENDLESS))
    endless.abort()
    with pytest.raises(CancelledError):
        endless.result()
    assert endless.phase == "ABORTED"
    wait_until_idle(postgres_module_url)


def test_streams_of_a_session(lab: Resource) -> None:
    out = activity("outputStream", element("fromLocal", from_="blocks"), name="out")
    steps = query_document("select n, 'x' as name from generate_series(1, 250) n", 100).replace(
        b"</gridDataServicePerform>", ElementTree.tostring(out) + b"</gridDataServicePerform>"
    )
    with lab.session(timeout=60) as session:
        response = session.perform(steps)
        assert response.job is not None
        assert session.pull("out").result().arrow().num_rows == 250
    with lab.session() as session:
        session.perform(steps)
        blocks = list(session.pull("out"))
        assert len(blocks) == 3
        whole = lab.query("select n, 'x' as name from generate_series(1, 250) n", format="webrowset").bytes()
        assert b"".join(blocks) == whole


def test_pushing_into_a_table(lab: Resource, postgres_module_url: str) -> None:
    load = document(
        activity("inputStream", element("toLocal", name="pushed"), name="in"),
        activity(
            "sqlBulkLoadRowSet",
            element("webRowSetStream", from_="pushed"),
            element("loadIntoTable", tableName="pushed"),
            element("resultStream", name="count"),
            name="load",
        ),
    )
    with psycopg.connect(postgres_module_url) as connection:
        connection.execute("create table pushed (id integer, name text)")
    table = pa.table({"id": pa.array(range(1000), pa.int32()), "name": [f"<{n}>" for n in range(1000)]})
    with lab.session() as session:
        counted: list[int] = []

        def perform() -> None:
            with session.perform(load) as response:
                counted.append(response.results["count"].update_count)

        loading = threading.Thread(target=perform)
        loading.start()
        assert session.push("in", table, blocksize=300) == 4
        loading.join(60)
        assert counted == [1000]
    assert lab.query("select count(*) as n from pushed").arrow()["n"].to_pylist() == [1000]


def test_pushing_what_nobody_reads(lab: Resource) -> None:
    told = r"(?s)^Nobody reads the stream 'nope'.*no other stream"
    with lab.session() as session, pytest.raises(BackPressureError, match=told):
        session.push("nope", [b"a", b"b", b"c"], patience=0.2)


def test_the_end_of_a_session_ends_a_push(lab: Resource, service: Background) -> None:
    failed: list[DaiError] = []
    session = lab.session()

    def push() -> None:
        with pytest.raises(GoneError, match="was ended") as caught:
            session.push("nope", [b"a", b"b", b"c"])
        failed.append(caught.value)

    pushing = threading.Thread(target=push)
    pushing.start()
    (held,) = [each for each in service.service.sessions.all() if each.id == session.id]
    until(lambda: held._waiters)
    session.close()
    pushing.join(60)
    assert [each.status for each in failed] == [410]


def test_blocks_out_of_order(lab: Resource) -> None:
    with lab.session() as session, pytest.raises(ConflictError):
        session.push("in", b"x", first=3)


def test_many_at_once_share_no_state(service: Background) -> None:
    resource = dai.client.Service(service.url, Options(retries=10)).resource("lab")
    actual: list[int] = []

    def ask(rows: int) -> None:
        for _ in range(5):
            actual.append(resource.query(SERIES, rows).arrow().num_rows - rows)

    threads = [threading.Thread(target=ask, args=(rows,)) for rows in range(100, 900, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert actual == [0] * 40


@pytest.mark.parametrize(
    ("numeric", "types", "values"),
    [
        ("double", ["double", "double"], [1.5, 1 / 3]),
        (
            "decimal",
            ["decimal128(4, 2)", "decimal256(76, 38)"],
            [decimal.Decimal("1.50"), decimal.Decimal("0.33333333333333333333")],
        ),
        ("text", ["string", "string"], ["1.50", "0.33333333333333333333"]),
    ],
)
def test_decimal_numbers_are_what_was_asked_for(
    lab: Resource, numeric: str, types: list[str], values: list[object]
) -> None:
    sql = "select 1.50::numeric(4,2) as declared, 1::numeric / 3 as undeclared"
    results = lab.query(sql, numeric=numeric), lab.submit(sql).result(numeric=numeric)
    for result in (*results, lab.perform(query_document(sql), "rows", format="arrow", numeric=numeric)):
        table = result.arrow()
        assert [str(each.type) for each in table.schema] == types
        assert list(table.to_pylist()[0].values()) == values
    assert [str(each) for each in lab.query(sql, numeric="double").to_pandas().dtypes] == ["float64", "float64"]


def test_a_number_that_is_no_decimal(lab: Resource) -> None:
    with pytest.raises(DataError, match="'n' has a value that does not fit decimal256"):
        lab.query("select 'NaN'::numeric as n", numeric="decimal").arrow()
    assert lab.query("select 'NaN'::numeric as n", numeric="text").arrow().to_pylist() == [{"n": "NaN"}]
    with pytest.raises(ParameterError, match="'double', 'decimal', 'text'"):
        lab.query("select 1", numeric="float")


def test_the_state_of_the_database_is_in_response_documents(lab: Resource) -> None:
    with pytest.raises(StatementError) as caught, lab.perform(query_document("select 1 / 0")) as response:
        response.check()
    assert caught.value.sqlstate == "22012"


def test_a_carriage_return_in_a_document_stays(lab: Resource) -> None:
    table = lab.perform(query_document("select 'a\r\nb' as text"), "rows", format="arrow").arrow()
    assert table.to_pylist() == [{"text": "a\r\nb"}]


def test_parameters_by_name_and_lists(lab: Resource) -> None:
    sql = "select id from shelf where id in :ids and (name <> :name or name is null) order by id"
    for values in ([1, 2, None], (1, 2), {1, 2}, range(1, 3), pa.array([1, 2])):
        assert lab.query(sql, ids=values, name="z").arrow()["id"].to_pylist() == [1, 2]
    assert lab.query(sql, {"ids": [], "name": "z"}).arrow().num_rows == 0
    assert lab.submit(sql, ids=[2], name="z").result().arrow()["id"].to_pylist() == [2]
    with pytest.raises(ParameterError, match="Parameter :name has no value; given: ids"):
        lab.query(sql, ids=[1])
    with pytest.raises(ParameterError, match="does not use parameter :nam"):
        lab.query("select 1", nam=1)
    with pytest.raises(ParameterError, match="by position, or all by name"):
        lab.query(sql, 1, ids=[1])
    with pytest.raises(StatementError, match=r"(?s)If :ids stands for a value, give it: query\(…, ids=…\)"):
        lab.query(sql)
    with pytest.raises(StatementError, match=r"(?s)id in :ids and nme = :name\n +\^") as caught:
        lab.query("select id from shelf where id in :ids and nme = :name", ids=[1, 2, 3], name="a")
    assert caught.value.position == len("select id from shelf where id in :ids and ") + 1


def test_execute_changes(lab: Resource) -> None:
    lab.execute("create table changed (id integer, name text)")
    assert lab.execute("insert into changed values (:id, :name), (:id, null)", id=1, name="a") == 2
    assert lab.execute("update changed set name = ? where id = ?", "b\x01", 1) == 2
    assert lab.query("select distinct name from changed").fetchall() == [("b\x01",)]
    assert lab.execute("delete from changed where id in :ids", ids=[]) == 0
    assert lab.execute("drop table changed") == 0
    with pytest.raises(StatementError, match=r"(?s)If :id stands for a value"):
        lab.execute("delete from shelf where id = :id")


def test_a_document_names_its_parameters(lab: Resource) -> None:
    items = [element("item", str(each), type="integer") for each in (1, 2)]
    query = activity(
        "sqlQueryStatement",
        element("sqlParameter", *items, name="ids", type="list"),
        element("sqlParameter", "a & <b>", name="name"),
        element("expression", "select id from shelf where id in :ids and name = :name"),
        element("webRowSetStream", name="rows"),
        name="query",
    )
    assert lab.perform(document(query), "rows", format="arrow").arrow()["id"].to_pylist() == [1]
    for wrong, says in (
        (element("sqlParameter", "1", name="ids", type="list"), "is a list: give its values as <item> elements"),
        (element("sqlParameter", *items, name="ids"), "Set type="),
        (element("sqlParameter", "1", name="ids", position=1), "Give all parameters different names"),
        (element("sqlParameter", "1"), "Not all parameters have positions"),
    ):
        bad = activity(
            "sqlQueryStatement",
            wrong,
            element("expression", "select id from shelf where id in :ids"),
            element("webRowSetStream", name="rows"),
            name="query",
        )
        with pytest.raises(ParameterError, match=says):
            lab.perform(document(bad), "rows")


def test_a_limit(lab: Resource) -> None:
    with pytest.raises(LimitError, match="more rows than limit=2"):
        lab.query(SERIES, 3, limit=2)
    cut = lab.query(SERIES, 3, limit=2, truncate=True)
    assert cut.truncated
    assert cut.arrow()["n"].to_pylist() == [1, 2]
    assert not lab.query(SERIES, 2, limit=2, truncate=True).truncated


@pytest.mark.parametrize("address", ["http://[x]/lab", "http://[::1/lab", "http://127.0.0.1:80x/lab", "http://x y/lab"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(RequestError, match=r"(?s)is not an address.*looks like"):
        dai.connect(address)


def test_the_environment_says_the_service(service: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAI_SERVER", raising=False)
    with pytest.raises(RequestError, match=r"(?s)no address.*DAI_SERVER"):
        dai.connect()
    with pytest.raises(RequestError, match="'lab' is not an address"):
        dai.connect("lab")
    monkeypatch.setenv("DAI_SERVER", service.url)
    for given in (dai.connect(), dai.connect("lab"), dai.connect(f"{service.url}/lab")):
        assert given.name == "lab"
        assert given.query("select 1 as one").rows() == [(1,)]
    with pytest.raises(NotFoundError, match="'lap'"):
        dai.connect("lap")
