"""Tables that a query brings along, over HTTP: as JSON, through the client, in a perform document, as a job."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pyarrow as pa
import pytest

import dai
from dai.client import documents as d
from dai.errors import DataError, ParameterError, TooLargeError
from dai.formats.inline import table_of, text_of
from tests.api.conftest import Serve

GIVEN = pa.table({"i": pa.array([3, 5, 7, 10**9], pa.int32()), "s": ["number 3", "no", None, "x"]})
SQL = "select n.i from numbers n where (n.i, n.s) in (select i, s from given) order by 1"


def ask(client: httpx.Client, tables: Any, sql: str = SQL, **more: Any) -> httpx.Response:
    return client.post(
        "/resources/book/query", json={"sql": sql, "tables": tables, **more}, headers={"Accept": "text/csv"}
    )


def test_a_query_joins_what_it_brings(client: httpx.Client) -> None:
    assert client.get("/resources/book").json()["tables"] is True
    assert ask(client, {"given": text_of(GIVEN)}).text.split() == ["i", "3"]
    answer = ask(client, {"given": text_of(GIVEN)}, "select i from given where i > ? order by i", parameters=[5])
    assert answer.text.split() == ["i", "7", "1000000000"]
    assert ask(client, None, "select count(*) as n from given").status_code == 400


def test_the_client_takes_tables_and_what_makes_them(serve: Serve) -> None:
    book = dai.connect(f"{serve().url}/resources/book")
    assert book.query(SQL, tables={"given": GIVEN}).arrow()["i"].to_pylist() == [3]
    assert book.query("select sum(k) as s from given", tables={"given": {"k": [1, 2]}}).arrow()["s"].to_pylist() == [3]
    with pytest.raises(DataError, match="cannot be sent"):
        book.query("select 1", tables={"given": 7})
    with pytest.raises(ParameterError, match="cannot be the name"):
        book.query("select 1", tables={"gi ven": GIVEN})


def test_a_job_brings_it_too(serve: Serve) -> None:
    url = serve().url
    body = {"sql": SQL, "tables": {"given": text_of(GIVEN)}}
    answer = httpx.post(f"{url}/resources/book/query", json=body, headers={"Prefer": "respond-async"})
    assert answer.status_code == 202
    job = dai.connect(url).jobs()[answer.headers["location"].rpartition("/")[2]]
    assert job.wait().result().arrow()["i"].to_pylist() == [3]


def test_one_query_feeds_the_table_of_another(client: httpx.Client) -> None:
    document = d.document(
        d.activity(
            "sqlQueryStatement",
            d.element("expression", "select i, s from numbers where i in (2, 4)"),
            d.element("webRowSetStream", name="few"),
            name="first",
        ),
        d.activity(
            "sqlQueryStatement",
            d.element("table", name="given", from_="few"),
            d.element("expression", SQL),
            d.element("webRowSetStream", name="found"),
            name="second",
        ),
    )
    answer = client.post(
        "/resources/book/perform?output=found&format=csv", content=document, headers={"Content-Type": "application/xml"}
    )
    assert answer.text.split() == ["i", "2", "4"]


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ([], None),
        ([1], "must be an object"),
        ({"given": 1}, "must be an object"),
        ({"given": "%%%"}, "no base64"),
        ({"given": base64.b64encode(b"nothing").decode()}, "Arrow"),
        ({"given": ""}, "Arrow"),
        ({"given": text_of(GIVEN)[:-40]}, "Arrow"),
        ({'given" as (select 1)': text_of(GIVEN)}, "cannot be the name"),
    ],
)
def test_what_is_no_table(client: httpx.Client, tables: Any, said: str | None) -> None:
    answer = ask(client, tables, "select 1 as one")
    assert answer.status_code == (200 if said is None else 400), answer.text
    assert said is None or said in answer.json()["detail"]


def compressed(codec: str, table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_nothing_is_unpacked_whose_size_nobody_knows(codec: str) -> None:
    plain = pa.table({"a": pa.array([0] * 100_000)})
    words = pa.table({"a": pa.array(["x" * 1000] * 1000).dictionary_encode()})
    for table in (plain, words):
        with pytest.raises(DataError, match="compressed"):
            table_of(compressed(codec, table), 1 << 30)
    assert table_of(text_of(plain), 1 << 30).equals(plain)


def test_limits(serve: Serve) -> None:
    service = serve(limits={"table_bytes": 100_000})
    book = dai.connect(f"{service.url}/resources/book")
    small, large = pa.table({"a": range(10_000)}), pa.table({"a": range(20_000)})
    assert book.query("select count(*) as n from t", tables={"t": small}).arrow()["n"].to_pylist() == [10_000]
    for tables in ({"t": large}, {"t": small, "u": small}):
        with pytest.raises(TooLargeError):
            book.query("select 1", tables=tables)
    with pytest.raises(TooLargeError):
        book.query("select 1 /* " + "x" * (5 << 20) + " */")
