"""Query-scoped tables over HTTP: as JSON, through the client, in a perform document, as a job."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pyarrow as pa
import pytest

import dai
from dai.api.routes import queries
from dai.client import documents as d
from dai.errors import DaiError, DataError, ParameterError, TooLargeError
from dai.formats.inline import table_of, tables_of, text_of
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
    answer = httpx.post(f"{url}/resources/book/query", json=body, headers={"Prefer": "respond-async"}, timeout=60)
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
        ({"given": "%%%"}, "not base64"),
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
    with pytest.raises(DataError, match="compressed"):
        table_of(compressed(codec, plain), 1 << 30)
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


_POOLS: list[pa.MemoryPool] = []
"""Those of ``peak``: a buffer may live longer than the test."""


@contextmanager
def peak() -> Iterator[pa.MemoryPool]:
    """What Arrow allocates meanwhile."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def written(*arrays: pa.Array, end: bool = True) -> str:
    """A stream with a batch for each array, as anybody may write it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("a", arrays[0].type)])) as writer:
        for each in arrays:
            writer.write_batch(pa.record_batch([each], names=["a"]))
    data = sink.getvalue().to_pybytes()
    return base64.b64encode(data if end else data[:-8]).decode()


def dictionary(rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(bytes(rows), pa.int8()), pa.array(["x" * 1000]))


def refused() -> dict[str, pa.Array]:
    words = dictionary(30_000)
    offsets = pa.array([0, len(words)], pa.int32())
    return {
        "dictionary": words,
        "dictionary of nulls": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.nulls(1)),
        "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([1_500_000], pa.int64()), pa.array(["x" * 1000])),
        "view": pa.array(["x" * 1000] * 40, pa.string_view()),
        "binary view": pa.array([b"x" * 1000] * 40, pa.binary_view()),
        "list": pa.ListArray.from_arrays(offsets, words),
        "struct": pa.StructArray.from_arrays([words], ["s"]),
        "list of structs": pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([words], ["s"])),
        "no fields": pa.Array.from_buffers(pa.struct([]), 2_000_000_000, [None]),
        "no items": pa.FixedSizeListArray.from_buffers(
            pa.list_(pa.null(), 0), 2_000_000_000, [None], children=[pa.nulls(0)]
        ),
        "no bytes": pa.Array.from_buffers(pa.binary(0), 2_000_000_000, [None, pa.py_buffer(b"")]),
    }


@pytest.mark.parametrize("kind", refused())
def test_types_that_may_be_much_larger_in_memory_are_refused_undecoded(client: httpx.Client, kind: str) -> None:
    text = written(refused()[kind])
    with peak() as pool:
        with pytest.raises(DataError, match=r"The column 'a' is a .*which a query-scoped table cannot have"):
            table_of(text, 16 << 20)
        assert pool.max_memory() < 2 * len(text) + (1 << 16)
    answer = ask(client, {"given": text}, "select 1 as one")
    assert answer.status_code == 400
    assert answer.json()["column"] == "a"


def test_no_damage_ends_the_process() -> None:
    """The first message was taken for a schema whatever it was, and memory read that is not there: whoever might ask a
    query could end the service."""
    whole = bytearray(base64.b64decode(written(pa.array([1, 2]))))
    assert whole[29] == 1  # the kind of the message: a schema
    whole[29] = 127
    child = os.fork()
    if not child:
        status = 1
        try:
            for at in range(30, len(whole)):
                with suppress(DaiError):
                    table_of(base64.b64encode(whole[:at] + b"\xff" + whole[at + 1 :]).decode(), 1 << 20)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_rows_without_bytes_are_counted(client: httpx.Client) -> None:
    text = written(pa.nulls(500_000_000))
    assert len(text) < 1000
    with peak() as pool:
        with pytest.raises(TooLargeError):
            table_of(text, 16 << 20)
        assert pool.max_memory() < 1 << 16
    assert ask(client, {"given": text}, "select 1 as one").status_code == 413
    few = written(pa.nulls(3))
    assert ask(client, {"given": few}, "select count(*) as n, max(a) as a from given").text.split() == ["n,a", "3,"]
    many = written(pa.nulls(3_000_000))
    assert tables_of({"tables": {"a": many}}, 16 << 20)["a"].num_rows == 3_000_000
    with pytest.raises(TooLargeError):
        tables_of({"tables": {"a": many, "b": many}}, 16 << 20)


def test_nothing_is_read_behind_the_limit() -> None:
    small, large = pa.nulls(10), pa.nulls(1_000_000)
    with pytest.raises(DataError, match="end-of-stream marker"):
        table_of(written(small, small, end=False), 1 << 20)
    with pytest.raises(TooLargeError):
        table_of(written(small, large, end=False), 1 << 20)


def test_what_the_client_sends_is_plain(serve: Serve) -> None:
    """Categories, views and nulls, as data frames make them."""
    given = pa.table(
        {
            "d": pa.array(["x", None, "y"]).dictionary_encode(),
            "v": pa.array(["p", None, "a text that is longer than a view"], pa.string_view()),
            "n": pa.nulls(3),
            "r": pa.RunEndEncodedArray.from_arrays(pa.array([3], pa.int32()), pa.array(["q"])),
        }
    )
    assert table_of(text_of(given), 1 << 20).schema.types == [pa.string()] * 4
    book = dai.connect(f"{serve().url}/resources/book")
    table = book.query("select d, v, n, r from given", tables={"given": given}).arrow().to_pylist()
    assert sorted(table, key=repr) == sorted(given.to_pylist(), key=repr)


def test_a_small_body_is_decoded_beside_the_event_loop_too(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def watched(asked: Mapping[str, Any], most: int) -> dict[str, pa.Table]:
        threads.append(threading.current_thread().name)
        return tables_of(asked, most)

    monkeypatch.setattr(queries, "tables_of", watched)
    book = dai.connect(f"{serve().url}/resources/book")
    assert book.query("select 1 as one from given", tables={"given": {"a": [1]}}).arrow().num_rows == 1
    (name,) = threads
    assert name.startswith("file")
