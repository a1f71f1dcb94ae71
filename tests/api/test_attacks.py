"""What an attack on a running service found, over HTTP: each way in is closed, and so are those beside it."""

import base64
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest
from starlette.requests import Request

from dai.api.requests import route
from dai.api.server.serve import Background, background
from dai.errors import ParameterError
from dai.security.identity.tokens import new
from tests.api.conftest import DOCUMENT, XML, configured, statement
from tests.processes import until

CSV = {"Accept": "text/csv"}


def inline(**columns: list[Any]) -> str:
    """A table as the body of a query holds it."""
    table, file = pa.table(columns), io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, book: str) -> Iterator[Background]:
    """A service that asks who calls, with resources of several policies."""
    directory = tmp_path_factory.mktemp("attacked")
    with duckdb.connect(str(directory / "duck.db")) as connection:
        connection.execute("create table numbers as select range as i from range(10)")
    resources: dict[str, Any] = {
        "book": {"url": book},
        "narrow": {"url": book, "policy": {"activities": ["Echo"]}},
        "closed": {"url": book, "policy": {"load": []}},
        "few": {"url": book, "policy": {"rows": 10}},
        "hidden": {"url": book, "policy": {"read": ["bob"]}},
        "duck": {"url": f"duckdb:///{directory / 'duck.db'}"},
    }
    with background(configured(directory, resources, identity={"methods": ["token"]})) as running:
        yield running


@pytest.fixture(scope="module")
def alice(known: Background) -> Iterator[httpx.Client]:
    token, stored = new("alice", 3600)
    known.service.store.add_token(stored)
    with httpx.Client(base_url=known.url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        yield client


# --- what a policy says holds whichever way is taken ----------------------------------------------------------------


@pytest.mark.parametrize("way", ["", "?phase=PENDING", "?phase=RUN"])
def test_a_query_is_an_activity_of_its_policy(alice: httpx.Client, way: str) -> None:
    answer = alice.post(f"/resources/narrow/query{way}", json={"sql": "select 1 as one"})
    assert (answer.status_code, answer.json()["type"]) == (403, "denied")
    assert "sqlQueryStatement" in answer.json()["detail"]


def test_tables_of_a_document_are_loaded_as_those_of_a_query(alice: httpx.Client) -> None:
    sent = alice.post("/resources/closed/query", json={"sql": "select * from t", "tables": {"t": inline(k=[1])}})
    table = '<table name="t" from="rows"/><expression>select * from t</expression><webRowSetStream name="out"/>'
    document = DOCUMENT.format(f'{statement("select 1 as k")}<sqlQueryStatement name="t">{table}</sqlQueryStatement>')
    within = alice.post("/resources/closed/perform", content=document, headers=XML)
    for answer in (sent, within):
        assert (answer.status_code, "policy.load" in answer.text) == (403, True), answer.text


UPDATE = (
    '<sqlUpdateStatement name="u"><expression>delete from numbers</expression><resultStream name="n"/>'
    "</sqlUpdateStatement>"
)
IN_ITS_TURN = f'<sequence name="s">{statement("select 1 as a")}{UPDATE}</sequence>'
PREVIEW = '<gridDataServicePerform xmlns="http://ogsadai.org.uk/P2R2/schemas/gds">{}</gridDataServicePerform>'
WRITING = {
    "alone": DOCUMENT.format(UPDATE),
    "of 2005": f'<perform xmlns="http://ogsadai.org.uk/namespaces/2005/10/types">{UPDATE}</perform>',
    "of the preview": PREVIEW.format(f'<request name="r">{UPDATE}</request><execute name="e" requestName="r"/>'),
    "in a sequence": DOCUMENT.format(IN_ITS_TURN),
    "in a flow": DOCUMENT.format(f'<flow name="f">{IN_ITS_TURN}</flow>'),
    "by a prefix": DOCUMENT.replace("xmlns=", "xmlns:x=").replace("<", "<x:").replace("<x:/", "</x:")
    .format(UPDATE.replace("<", "<x:").replace("<x:/", "</x:")),
    "of two bytes a letter": f'<?xml version="1.0" encoding="UTF-16"?>{DOCUMENT.format(UPDATE)}',
    "in a bag": DOCUMENT.format(
        '<sqlBag name="b"><statement><expression>delete from numbers</expression></statement>'
        '<resultStream name="n"/></sqlBag>'
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ["", "?phase=PENDING", "?phase=RUN"])
@pytest.mark.parametrize("form", WRITING)
def test_who_reads_writes_in_no_form_of_a_document(alice: httpx.Client, form: str, way: str) -> None:
    body = WRITING[form].encode("utf-16" if form == "of two bytes a letter" else "utf-8")
    answer = alice.post(f"/resources/book/perform{way}", content=body, headers=XML)
    assert answer.status_code == 403, answer.text
    assert "policy.write" in answer.text
    counted = alice.post("/resources/book/query", json={"sql": "select count(*) as n from numbers"}, headers=CSV)
    assert counted.text.split() == ["n", "30000"]


@pytest.mark.parametrize("rows", [9, 30_000])
def test_a_document_delivers_no_more_than_its_policy_allows(alice: httpx.Client, rows: int) -> None:
    """It delivered what came in the same piece, too: four thousand rows where ten are allowed."""
    some = [statement(f"select i from numbers limit {each}", f"q{each}", f"r{each}") for each in (8, rows)]
    for document in (DOCUMENT.format("".join(some)), DOCUMENT.format(f"<sequence name='s'>{''.join(some)}</sequence>")):
        answer = alice.post("/resources/few/perform", content=document, headers=XML)
        assert answer.text.count("<currentRow>") == 8, answer.text[:2000]
        assert "8 rows came before" in answer.text
    alone = alice.post(
        "/resources/few/perform", content=DOCUMENT.format(statement("select i from numbers")), headers=XML
    )
    assert (alone.status_code, "limits.rows" in alone.text, "<currentRow>" in alone.text) == (422, True, False)


# --- small requests that cost much ----------------------------------------------------------------------------------


def test_parameters_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of them, and then one twice, held up all other requests for seconds."""
    hashed = 0

    class Name(str):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal hashed
            hashed += 1
            return super().__hash__()

    listed = [(Name(number), "") for number in range(1000)]
    monkeypatch.setattr(route, "pairs", lambda _: [*listed, listed[-1]])
    with pytest.raises(ParameterError, match="'999' is given twice"):
        route._query(Request({"type": "http", "query_string": b"a=1"}))
    assert hashed < 5 * len(listed)


@pytest.mark.parametrize("number", ["1e999999999", "-1E+999999999", "1e-999999999", "0e999999999"])
def test_a_decimal_is_not_written_out_as_gigabytes(alice: httpx.Client, number: str) -> None:
    document = DOCUMENT.format(
        f'<sqlQueryStatement name="q"><sqlParameter position="1" type="decimal">{number}</sqlParameter>'
        '<expression>select ? as a</expression><webRowSetStream name="rows"/></sqlQueryStatement>'
    )
    answer = alice.post("/resources/book/perform", content=document, headers=XML)
    assert (answer.status_code, answer.json()["type"]) == (400, "bad-parameter")
    assert "must be of the type decimal" in answer.json()["detail"]


def test_a_query_has_no_more_parameters_than_a_database_takes(alice: httpx.Client) -> None:
    answer = alice.post("/resources/book/query", json={"sql": "select 1", "parameters": [1] * 65_536})
    assert (answer.status_code, answer.json()["type"]) == (400, "bad-parameter")


@pytest.mark.parametrize("expression", ["length(zeroblob(900000000))", "length(hex(zeroblob(100000000)))"])
def test_a_few_characters_make_no_gigabyte(alice: httpx.Client, expression: str) -> None:
    answer = alice.post("/resources/book/query", json={"sql": f"select {expression} as n"})
    assert (answer.status_code, answer.json()["type"]) == (400, "sql-error")


def test_what_an_aggregate_gathers_has_a_limit(alice: httpx.Client) -> None:
    """It was an internal error."""
    sql = "select json_group_array(hex(zeroblob(1000000))) as n from numbers"
    answer = alice.post("/resources/book/query", json={"sql": sql})
    assert answer.json()["type"] in ("limit-exceeded", "sql-error"), answer.text


@pytest.mark.parametrize("range_header", ["bytes={}-", "bytes=0-{}", "bytes=-{}"])
def test_ranges_of_many_digits(alice: httpx.Client, range_header: str) -> None:
    job = alice.post("/resources/book/query?phase=RUN", json={"sql": "select 1 as one"}).headers["location"]
    until(lambda: alice.get(job).json()["phase"] == "COMPLETED")
    answer = alice.get(f"{job}/outputs/result", headers={"Range": range_header.format("9" * 5000)})
    assert answer.status_code == 200


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-23:59"])
def test_moments_that_cannot_be_told(alice: httpx.Client, moment: str) -> None:
    """They were kept, and nobody who saw the job could list jobs any more."""
    job = alice.post("/resources/book/query?phase=PENDING", json={"sql": "select 1 as one"}).headers["location"]
    before = alice.get(job).json()["destruction"]
    answer = alice.post(f"{job}/destruction", json={"DESTRUCTION": moment})
    assert (answer.status_code, answer.json()["type"]) == (400, "bad-parameter")
    assert alice.get(job).json()["destruction"] == before
    assert alice.get("/jobs").status_code == 200


@pytest.mark.parametrize(("sql", "phase"), [("select 1 as one", "COMPLETED"), ("select nothing", "ERROR")])
def test_jobs_that_have_ended_keep_no_request(known: Background, alice: httpx.Client, sql: str, phase: str) -> None:
    """They stay for days, and their requests may have megabytes, and values that nobody needs any more."""
    body = {"sql": sql, "tables": {"t": inline(k=list(range(1000)))}}
    made = alice.post("/resources/book/query?phase=PENDING", json=body).headers["location"]
    store, id = known.service.store, made.rpartition("/")[2]
    waiting = store.get(id)
    assert waiting is not None
    assert len(waiting.request) > 8000
    alice.post(f"{made}/phase", data={"PHASE": "RUN"}).raise_for_status()
    until(lambda: alice.get(made).json()["phase"] == phase)
    ended = store.get(id)
    assert ended is not None
    assert ended.request == b""
    again = alice.post(f"{made}/phase", data={"PHASE": "RUN"})
    assert (again.status_code, again.json()["type"]) == (409, "conflict")


# --- what is told ---------------------------------------------------------------------------------------------------


def test_who_watches_the_process_learns_no_names(known: Background) -> None:
    ready = httpx.get(f"{known.url}/health/ready", timeout=60)
    assert ready.json() == {"status": "ready", "checks": {"state": "ok"}}


@pytest.mark.parametrize("name", ["hiden", "x" * 50])
def test_a_wrong_name_tells_no_names_of_others(alice: httpx.Client, name: str) -> None:
    answer = alice.post(f"/resources/{name}/query", json={"sql": "select 1 as one"})
    assert answer.status_code == 404
    assert "hidden" not in answer.text
    assert "hidden" not in alice.get("/resources").text


@pytest.mark.parametrize(
    ("resource", "sql"),
    [
        ("book", "select sql from sqlite_stmt"),
        ("book", "select count(*) from (select 1 from SQLITE_STMT as s)"),
        ("duck", "select path from duckdb_databases()"),
        ("duck", 'select * from "DUCKDB_databases"'),
        ("duck", "from pragma_database_list"),
        ("duck", "select current_setting('temp_directory')"),
        ("duck", "select current_setting /* */ ('temp_directory')"),
        ("duck", "select * from duckdb_settings()"),
        ("duck", "select * from pg_catalog.pg_settings"),
        ("duck", "select * from query('select path from duckdb_' || 'databases()')"),
        ("duck", "from \"query\" ('select 1')"),
        ("duck", "from query_table('duckdb_' || 'settings')"),
        ("duck", "select * from read_text('/etc/hostname')"),
        ("duck", "select * from glob('/*')"),
    ],
)
def test_a_query_tells_nothing_of_the_service_and_of_others(alice: httpx.Client, resource: str, sql: str) -> None:
    answer = alice.post(f"/resources/{resource}/query", json={"sql": sql}, headers=CSV)
    assert (answer.status_code, answer.json()["type"]) == (400, "sql-error")


@pytest.mark.parametrize(
    "sql", ["select i as query from numbers limit 1", "select max(query) from (select 1 as query) t"]
)
def test_columns_may_be_called_as_those_functions(alice: httpx.Client, sql: str) -> None:
    assert alice.post("/resources/duck/query", json={"sql": sql}, headers=CSV).status_code == 200


NOTE = """<xmlResourceManagement name="m"><createResource name="n">&lt;a/&gt;</createResource>
<outputStream name="e"/></xmlResourceManagement>"""


def test_the_state_and_the_results_are_for_their_owner_alone(tmp_path: Path, book: str) -> None:
    before = os.umask(0o022)
    try:
        duckdb.connect(tmp_path / "duck.db").close()
        (tmp_path / "duck.db").chmod(0o600)
        resources = {"book": {"url": book}, "duck": {"url": "duckdb:///duck.db"}, "notes": {"collections": "notes.db"}}
        stores = {"registry": {"store": "sqlite:///registry.db"}, "replicas": {"catalog": "sqlite:///replicas.db"}}
        with (
            background(configured(tmp_path, resources, **stores)) as running,
            httpx.Client(base_url=running.url, timeout=60) as client,
        ):
            client.get("/resources/duck/query?sql=select 1").raise_for_status()
            client.post("/resources/notes/perform", content=DOCUMENT.format(NOTE), headers=XML).raise_for_status()
            job = client.post("/resources/book/query?phase=RUN", json={"sql": "select 1 as one"}).headers["location"]
            until(lambda: client.get(job).json()["phase"] == "COMPLETED")
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert {name for name, mode in modes.items() if mode & 0o077} == set()
    assert {"state.db", "results", "duck.db.tmp", "notes.db-wal", "registry.db-wal", "replicas.db-wal"} <= modes.keys()
