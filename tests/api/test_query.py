import json
import time
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from dai.api.server.serve import background
from dai.config import parse
from dai.perform.pipeline import Running
from tests.api.conftest import DOCUMENT, ENDLESS, ROWS, XML, Serve, statement
from tests.processes import until

URL = "/resources/book/query"


def ask(client: httpx.Client, sql: str, accept: str | None = None, **body: Any) -> httpx.Response:
    headers = {"Accept": accept} if accept else {}
    return client.post(URL, json={"sql": sql, **body}, headers=headers)


def test_arrow_by_default(client: httpx.Client) -> None:
    answer = ask(client, "select i, s from numbers order by i")
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.column_names == ["i", "s"]
    assert table["i"].to_pylist() == list(range(ROWS))


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("text/csv", "text/csv"),
        ("application/vnd.webrowset+xml", "application/vnd.webrowset+xml"),
        ("application/x-ndjson", "application/x-ndjson"),
        ("application/vnd.apache.parquet", "application/vnd.apache.parquet"),
        ("text/csv;q=0.5, application/x-ndjson;q=0.9", "application/x-ndjson"),
        ("text/*", "text/csv"),
        ("*/*", "application/vnd.apache.arrow.stream"),
        ("image/png, */*;q=0.1", "application/vnd.apache.arrow.stream"),
        ("application/vnd.apache.arrow.stream;q=0, */*", "application/vnd.webrowset+xml"),
    ],
)
def test_the_form_is_negotiated(client: httpx.Client, accept: str, media_type: str) -> None:
    answer = ask(client, "select 1 as one", accept)
    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == media_type


def test_a_small_result_has_a_length_and_says_where_the_time_went(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dai.api.work.GATHER_SECONDS", 60.0)
    answer = ask(client, "select 1 as one", "text/csv")
    assert answer.text.splitlines() == ["one", "1"]
    assert int(answer.headers["content-length"]) > 0
    assert {each.split(";")[0].strip() for each in answer.headers["server-timing"].split(",")} >= {
        "validate",
        "execute",
        "fetch",
        "encode",
    }


def test_a_small_result_of_a_statement_that_begins_slowly_has_a_length(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Running.open

    def slowly(running: Running, **options: bool) -> Running:
        time.sleep(0.6)
        return begin(running, **options)

    monkeypatch.setattr("dai.api.work.GATHER_SECONDS", 0.5)
    monkeypatch.setattr(Running, "open", slowly)
    assert int(ask(client, "select 1 as one", "text/csv").headers["content-length"]) > 0


def test_format_in_the_address_wins(client: httpx.Client) -> None:
    answer = client.post(f"{URL}?format=csv", json={"sql": "select 1 as one"}, headers={"Accept": "image/png"})
    assert answer.headers["content-type"].startswith("text/csv")


def test_what_cannot_be_accepted_is_said_with_what_can(client: httpx.Client) -> None:
    answer = ask(client, "select 1", "image/png")
    assert answer.status_code == 406
    assert answer.json()["type"] == "not-acceptable"
    assert "text/csv" in answer.json()["hint"]


def test_parameters_are_bound(client: httpx.Client) -> None:
    text = "x' or '1'='1"
    answer = ask(client, "select ? as a, ? as b, ? as c", "application/x-ndjson", parameters=[text, 7, None])
    assert json.loads(answer.text) == {"a": text, "b": 7, "c": None}


def test_values_of_types_that_json_does_not_have(client: httpx.Client) -> None:
    values = [{"type": "timestamp", "value": "2023-05-05T00:00:00"}, [{"type": "date", "value": "2023-05-06"}, "b"]]
    sql = "select ? = '2023-05-05 00:00:00' as moment, '2023-05-06' in ? as day"
    answer = ask(client, sql, "application/x-ndjson", parameters=values)
    assert json.loads(answer.text) == {"moment": 1, "day": 1}
    for wrong in ({"type": "timestamp", "value": "noon"}, {"type": "moment", "value": "x"}, {"type": "date"}, {"a": 1}):
        answer = ask(client, "select ? as a", "application/x-ndjson", parameters=[wrong])
        assert (answer.status_code, answer.json()["type"]) == (400, "bad-parameter")
        assert "1" in answer.json()["detail"] or "1" in answer.json()["hint"]


@pytest.mark.parametrize("coding", ["zstd", "gzip", "identity"])
def test_compressed_answers_are_the_same(client: httpx.Client, coding: str) -> None:
    sql = "select i, s from numbers order by i"
    plain = client.post(f"{URL}?format=csv", json={"sql": sql}, headers={"Accept-Encoding": "identity"})
    coded = client.post(f"{URL}?format=csv", json={"sql": sql}, headers={"Accept-Encoding": coding})
    assert coded.headers.get("content-encoding", "identity") == coding
    assert coded.content == plain.content
    assert plain.content.count(b"\n") == ROWS + 1


@pytest.mark.parametrize("blocksize", [1, 7, 100, 40_000])
def test_the_block_size_changes_nothing_in_the_text(client: httpx.Client, blocksize: int) -> None:
    sql = "select i, s from numbers where i < 3000 order by i"
    whole = ask(client, sql, "application/vnd.webrowset+xml")
    assert ask(client, sql, "application/vnd.webrowset+xml", blocksize=blocksize).content == whole.content


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"sql": "selec 1"}, 400, "sql-error"),
        ({"sql": "delete from numbers"}, 400, "not-a-query"),
        ({"sql": "select nothing from numbers"}, 400, "sql-error"),
        ({"sql": ""}, 400, "bad-parameter"),
        ({"sql": 3}, 400, "bad-parameter"),
        ({}, 400, "bad-parameter"),
        ([], 400, "bad-data"),
        ({"sql": "select 1", "sqll": 1}, 400, "bad-parameter"),
        ({"sql": "select 1", "parameters": "x"}, 400, "bad-parameter"),
        ({"sql": "select ?", "parameters": [{}]}, 400, "bad-parameter"),
        ({"sql": "select 1", "blocksize": 0}, 400, "bad-parameter"),
        ({"sql": "select 1", "blocksize": True}, 400, "bad-parameter"),
    ],
)
def test_what_is_wrong_is_a_problem_with_its_own_status(
    client: httpx.Client, body: Any, status: int, code: str
) -> None:
    answer = client.post(URL, json=body)
    assert (answer.status_code, answer.json()["type"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["instance"] == answer.headers["x-request-id"]


def test_a_body_that_is_not_json(client: httpx.Client) -> None:
    assert client.post(URL, content=b"{", headers={"Content-Type": "application/json"}).json()["type"] == "bad-data"
    answer = client.post(URL, content=b"sql=select", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert answer.status_code == 415


def test_unknown_resources_and_parameters_suggest_the_nearest(client: httpx.Client) -> None:
    answer = client.post("/resources/boook/query", json={"sql": "select 1"})
    assert answer.status_code == 404
    assert "'book'" in answer.json()["hint"]
    answer = client.post(f"{URL}?blocksiz=3", json={"sql": "select 1"})
    assert answer.status_code == 400
    assert "'blocksize'" in answer.json()["hint"]


def test_the_correlation_id_is_taken_over_where_it_is_sane(client: httpx.Client) -> None:
    answer = client.post(URL, json={"sql": "x"}, headers={"X-Request-ID": "my-id.7"})
    assert answer.headers["x-request-id"] == answer.json()["instance"] == "my-id.7"
    answer = client.post(URL, json={"sql": "x"}, headers={"X-Request-ID": 'no"sane id'})
    assert answer.headers["x-request-id"] != 'no"sane id'


def ended(client: httpx.Client, job: str) -> Any:
    while (known := client.get(f"{job}?wait=20").json())["phase"] in ("QUEUED", "EXECUTING"):
        pass
    return known


def test_a_query_as_a_job(client: httpx.Client) -> None:
    answer = client.post(URL, json={"sql": "select 5 as five"}, headers={"Prefer": "respond-async"})
    assert answer.status_code == 202
    job = ended(client, answer.headers["location"])
    result = client.get(job["outputs"][0]["href"], headers={"Accept": "text/csv"})
    assert result.text.splitlines() == ["five", "5"]


def test_a_job_says_what_it_is_in_json(client: httpx.Client) -> None:
    sql = "select i from numbers\n where i < 3 and 'x' <> '" + "long " * 100 + "'"
    answer = client.post(f"{URL}?label=few", json={"sql": sql}, headers={"Prefer": "respond-async"})
    job = answer.json()
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    assert (job["label"], job["phase"] in ("QUEUED", "EXECUTING", "COMPLETED")) == ("few", True)
    assert ended(client, answer.headers["location"])["progress"] == 1.0
    listed = next(each for each in client.get("/jobs").json()["jobs"] if each["id"] == job["id"])
    assert listed["sql"].startswith("select i from numbers where i < 3 and")
    assert len(listed["sql"]) == 160
    xml = {"Prefer": "respond-async", "Accept": "application/xml"}
    assert client.post(URL, json={"sql": "select 1"}, headers=xml).text.startswith("<?xml")


def test_limits_on_small_answers_are_refusals(serve: Serve) -> None:
    running = serve(limits={"rows": 10, "bytes": 100_000, "document_bytes": 1000})
    with httpx.Client(base_url=running.url, timeout=60) as client:
        answer = ask(client, "select i from numbers limit 11")
        assert (answer.status_code, answer.json()["type"]) == (422, "limit-exceeded")
        assert ask(client, "select i from numbers limit 10").status_code == 200
        assert ask(client, "select zeroblob(200000)").status_code == 422
        answer = client.post("/resources/book/perform", content=b" " * 1001, headers={"Content-Type": "text/xml"})
        assert (answer.status_code, answer.json()["type"]) == (413, "too-large")


def test_a_chunked_body_that_grows_too_large_is_refused(serve: Serve) -> None:
    running = serve(limits={"document_bytes": 1000})
    with httpx.Client(base_url=running.url, timeout=60) as client:
        answer = client.post(
            "/resources/book/perform", content=(b" " * 300 for _ in range(10)), headers={"Content-Type": "text/xml"}
        )
        assert answer.status_code == 413


def test_characters_that_xml_cannot_carry_are_replaced_as_the_hint_says(client: httpx.Client) -> None:
    sql = {"sql": "select 'a' || char(1) as a"}
    refused = client.post(f"{URL}?format=webrowset", json=sql)
    assert (refused.status_code, refused.json()["type"]) == (400, "cannot-encode")
    assert "on_invalid" not in refused.text
    assert "?invalidCharacters=replace" in refused.json()["hint"]
    assert client.post(f"{URL}?format=webrowset&invalidCharacters=refuse", json=sql).status_code == 400
    answer = client.post(f"{URL}?format=webrowset&invalidCharacters=replace", json=sql)
    assert answer.status_code == 200
    assert "<columnValue>a\ufffd</columnValue>" in answer.text
    assert client.post(f"{URL}?format=csv&invalidCharacters=replace", json=sql).text == "a\r\na\x01\r\n"


def test_rows_of_a_block_are_limited_wherever_they_are_asked_for(serve: Serve) -> None:
    running = serve(limits={"block_rows": 100})
    document = DOCUMENT.format(statement("select 1 as a"))
    with httpx.Client(base_url=running.url, timeout=60) as client:
        job = client.post(URL, json={"sql": "select 1 as a"}, headers={"Prefer": "respond-async"}).headers["location"]
        until(lambda: client.get(f"{job}?wait=20").json()["phase"] == "COMPLETED")
        for rows, status in ((100, 200), (101, 400)):
            answers = [
                ask(client, "select 1 as a", blocksize=rows),
                client.post(f"{URL}?blocksize={rows}", json={"sql": "select 1 as a"}),
                client.post(f"/resources/book/perform?blocksize={rows}", content=document, headers=XML),
                client.get(f"{job}/outputs/result?blocksize={rows}"),
            ]
            assert [each.status_code for each in answers] == [status] * len(answers)
            if status == 400:
                assert {each.json()["detail"] for each in answers if "json" in each.headers["content-type"]} == {
                    "'blocksize' must be a whole number from 1 to 100."
                }


def test_a_body_has_bounds_besides_its_tables(client: httpx.Client) -> None:
    answer = ask(client, "select 1 -- " + "x" * (4 << 20))
    assert (answer.status_code, answer.json()["type"]) == (413, "too-large")
    assert "besides the tables" in answer.json()["detail"]


def test_a_query_in_the_address(client: httpx.Client) -> None:
    sql = {"sql": "select i, s from numbers where i < 2 order by i"}
    for accept in ("application/json", "*/*", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"):
        answer = client.get(URL, params=sql, headers={"Accept": accept})
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == [{"i": 0, "s": "number 0"}, {"i": 1, "s": "number 1"}]
    lines = client.get(URL, params=sql, headers={"Accept": "application/x-ndjson"}).text.splitlines()
    assert [json.loads(each)["i"] for each in lines] == [0, 1]
    assert client.get(URL, params={**sql, "format": "csv"}).text.splitlines()[0] == "i,s"
    assert client.get(URL, params={"sql": "select 1 where 1 = 0"}).json() == []
    for given in ('{"ids": [1, 7]}', "[[1, 7]]"):
        marker = ":ids" if given[0] == "{" else "?"
        asked = {"sql": f"select i from numbers where i in {marker} order by i", "parameters": given}
        assert client.get(URL, params=asked).json() == [{"i": 1}, {"i": 7}]
    head = client.head(URL, params=sql)
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({}, 400, "bad-parameter"),
        ({"sql": "delete from numbers"}, 400, "not-a-query"),
        ({"sql": "selct 1"}, 400, "sql-error"),
        ({"sql": "select 1", "limit": 0}, 400, "bad-parameter"),
        ({"sql": "select 1", "parameters": "{"}, 400, "bad-parameter"),
        ({"sql": "select 1", "parameters": "7"}, 400, "bad-parameter"),
        ({"sql": "select 1", "phase": "RUN"}, 400, "bad-parameter"),
        ({"sql": "select i from numbers", "limit": 2}, 422, "limit-exceeded"),
    ],
)
def test_what_is_wrong_in_an_address(client: httpx.Client, asked: dict[str, Any], status: int, code: str) -> None:
    answer = client.get(URL, params=asked, headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (status, code)


def test_a_limit_cuts_on_purpose_or_refuses(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for held in (1 << 25, 1 << 10):  # then most of it waits in a file
        monkeypatch.setattr("dai.streams.limited.HELD_BYTES", held)
        sql = "select i, s from numbers order by i"
        refused = ask(client, sql, limit=ROWS - 1)
        assert (refused.status_code, refused.json()["limit"]) == (422, "limit")
        assert "truncate=true" in refused.json()["hint"]
        whole = ask(client, sql, limit=ROWS, truncate=True)
        assert "truncated" not in whole.headers
        assert pa.ipc.open_stream(whole.content).read_all().num_rows == ROWS
        for rows in (1, 20_000, ROWS - 1):
            answer = ask(client, sql, limit=rows, truncate=True)
            assert answer.headers["truncated"] == "true"
            table = pa.ipc.open_stream(answer.content).read_all()
            assert table["i"].to_pylist() == list(range(rows))
            assert table.schema.metadata[b"dai.truncated"] == b"true"
        cut = client.get(URL, params={"sql": sql, "limit": 2, "truncate": "true"})
        assert (len(cut.json()), cut.headers["truncated"]) == (2, "true")


def test_what_decimal_numbers_are(tmp_path: Path) -> None:
    config = {"service": {"port": 0, "state": "sqlite://"}, "resources": {"book": {"url": "duckdb://"}}}
    with background(parse(config, tmp_path, {})) as service, httpx.Client(base_url=service.url) as client:
        for numeric, value in ((None, 0.5), ("double", 0.5), ("text", "0.50"), ("decimal", 0.5)):
            asked = {"sql": "select 0.5::decimal(4, 2) as d"} | ({"numeric": numeric} if numeric else {})
            answer = client.get("/resources/book/query", params=asked).json()
            assert answer == [{"d": value}]
            body: dict[str, Any] = {"json": asked, "headers": {"Accept": "application/json"}}
            assert client.post("/resources/book/query", **body).json() == answer
            body["headers"] |= {"Prefer": "respond-async"}
            job = client.post("/resources/book/query", **body).headers["location"]
            assert ended(client, job)["phase"] == "COMPLETED"
            accept = {"Accept": "application/json"}
            assert client.get(f"{job}/outputs/result", headers=accept).json() == answer
        wrong = client.get("/resources/book/query", params={"sql": "select 1", "numeric": "float"})
        assert (wrong.status_code, wrong.json()["type"]) == (400, "bad-parameter")


def test_an_endless_query_with_a_limit_ends(client: httpx.Client) -> None:
    answer = client.get(URL, params={"sql": ENDLESS, "limit": 3, "truncate": "true"})
    assert answer.json() == [{"i": 1}, {"i": 2}, {"i": 3}]


def test_a_job_has_the_limit_too(client: httpx.Client) -> None:
    body = {"sql": "select i from numbers order by i", "limit": 2, "truncate": True}
    answer = client.post(URL, json=body, headers={"Prefer": "respond-async"})
    job = answer.headers["location"]
    assert ended(client, job)["phase"] == "COMPLETED"
    assert client.get(f"{job}/outputs/result", headers={"Accept": "application/json"}).json() == [{"i": 0}, {"i": 1}]
