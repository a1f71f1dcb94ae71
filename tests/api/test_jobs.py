import datetime
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pyarrow as pa
import pytest

import dai
from dai.api.server.serve import Background
from dai.client.http.transport import Transport
from dai.errors import DataError
from dai.formats import FORMATS, format_named, status
from dai.service.jobs.phases import MOVES
from tests.api.conftest import DOCUMENT, ENDLESS, FAILS_LATE, ROWS, XML, Serve, statement, streamed
from tests.processes import ServiceProcess

ALL = "select i, s from numbers order by i"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def submit(client: httpx.Client, sql: str, query: str = "", resource: str = "book") -> str:
    answer = client.post(
        f"/resources/{resource}/perform{query}",
        content=DOCUMENT.format(statement(sql)),
        headers={**XML, "Prefer": "respond-async"},
    )
    assert answer.status_code == 202, answer.text
    return answer.headers["location"]


def ended(client: httpx.Client, job: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        description: dict[str, Any] = client.get(f"{job}?wait=10").json()
        if description["phase"] not in MOVES:
            return description
        assert time.monotonic() < deadline


def phase_of(client: httpx.Client, job: str, phase: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while (description := client.get(job).json())["phase"] != phase:
        assert time.monotonic() < deadline, description
        time.sleep(0.01)
    return dict(description)


def test_a_job_from_its_start_to_its_end(client: httpx.Client) -> None:
    job = submit(client, ALL)
    description = ended(client, job)
    assert description["phase"] == "COMPLETED"
    assert description["created"] <= description["started"] <= description["ended"] < description["destruction"]
    assert description["activities"][0]["rows"] == ROWS
    assert [(each["name"], each["rows"]) for each in description["outputs"]] == [("rows", ROWS)]
    assert description["id"] in [each["id"] for each in client.get("/jobs?phase=COMPLETED").json()["jobs"]]
    assert client.delete(job).status_code == 204
    assert client.get(job).status_code == 404
    assert client.get(f"{job}/outputs/rows").status_code == 404


def test_a_result_in_every_form(client: httpx.Client) -> None:
    job = submit(client, ALL)
    ended(client, job)
    output = f"{job}/outputs/rows"
    arrow = client.get(output, headers={"Accept": "application/vnd.apache.arrow.stream"})
    assert pa.ipc.open_stream(arrow.content).read_all()["i"].to_pylist() == list(range(ROWS))
    sync = client.post("/resources/book/query?format=csv", json={"sql": ALL})
    assert client.get(output, headers={"Accept": "text/csv"}).content == sync.content
    assert client.get(f"{output}?format=csv").content == sync.content
    sync = client.post("/resources/book/query?format=webrowset", json={"sql": ALL})
    assert client.get(output, headers={"Accept": "application/xml"}).content == sync.content
    assert client.get(output, headers={"Accept": "image/png"}).status_code == 406
    assert client.get(f"{job}/outputs/nothing").status_code == 404


def test_a_format_that_a_result_cannot_have_is_named(client: httpx.Client) -> None:
    document = (
        '<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">'
        '<sqlQueryStatement name="q"><expression>select 1 as one</expression><webRowSetStream name="rows"/>'
        '</sqlQueryStatement><gzipCompression name="z"><input from="rows"/><compressedOutput name="zipped"/>'
        "</gzipCompression></gridDataServicePerform>"
    )
    headers = {"Content-Type": "application/xml", "Accept": "application/json", "Prefer": "respond-async"}
    job = client.post("/resources/book/perform", content=document, headers=headers).headers["location"]
    assert ended(client, job)["phase"] == "COMPLETED"
    for address, named in (("zipped?format=csv", "csv"), ("zipped", "image/png")):
        answer = client.get(f"{job}/outputs/{address}", headers={"Accept": "image/png"})
        assert answer.status_code == 406
        assert answer.json()["detail"] == f"The format '{named}' is not possible here."


@pytest.mark.parametrize("form", ["csv", "arrow"])
def test_a_download_is_resumed_by_ranges(client: httpx.Client, form: str) -> None:
    job = submit(client, ALL)
    ended(client, job)
    address = f"{job}/outputs/rows?format={form}"
    whole = client.get(address)
    etag, size = whole.headers["etag"], len(whole.content)
    assert whole.headers["accept-ranges"] == "bytes"
    parts = b""
    while len(parts) < size:
        part = client.get(address, headers={"Range": f"bytes={len(parts)}-{len(parts) + 99_999}", "If-Range": etag})
        assert part.status_code == 206
        last = min(len(parts) + 99_999, size - 1)
        assert part.headers["content-range"] == f"bytes {len(parts)}-{last}/{size}"
        parts += part.content
    assert parts == whole.content
    assert client.get(address, headers={"Range": "bytes=-10"}).content == whole.content[-10:]
    assert client.get(address, headers={"Range": f"bytes={size - 3}-"}).content == whole.content[-3:]
    assert client.get(address, headers={"Range": "bytes=5-9", "If-Range": '"other"'}).status_code == 200
    assert client.get(address, headers={"Range": "bytes=0-1,5-6"}).content == whole.content
    outside = client.get(address, headers={"Range": f"bytes={size}-"})
    assert (outside.status_code, outside.headers["content-range"]) == (416, f"bytes */{size}")
    assert client.get(address, headers={"If-None-Match": etag}).status_code == 304
    answers = [client.get(address, headers={"If-Match": each}) for each in (etag, f'"x", {etag}', "*", '"x"')]
    assert [each.status_code for each in answers] == [200, 200, 200, 412]
    assert answers[-1].json()["type"] == "precondition-failed"
    head = client.head(address)
    assert (head.status_code, int(head.headers["content-length"]), head.content) == (200, size, b"")


@pytest.mark.parametrize("form", FORMATS)
def test_of_all_block_sizes_asked_for_one_file_is_kept(serve: Serve, form: str) -> None:
    running = serve()
    results = running.service.results
    with httpx.Client(base_url=running.url, timeout=60) as client:
        job = submit(client, "select i from numbers where i < 100 order by i")
        ended(client, job)
        address = f"{job}/outputs/rows?format={form}"
        plain = client.get(address)
        with httpx.Client(base_url=running.url, timeout=60) as other:
            asking = threading.Thread(
                target=lambda: [other.get(f"{address}&blocksize={each}") for each in range(2, 20)], daemon=True
            )
            asking.start()
            for size in (*range(20, 40), 30):
                answer = client.get(f"{address}&blocksize={size}")
                assert answer.status_code == 200
                stream = format_named(form).decode([answer.content])
                with stream:
                    sizes = [batch.num_rows for batch in stream]
                assert sum(sizes) == 100
                if form == "arrow":
                    assert sizes == [size] * (100 // size) + [100 % size] * (100 % size > 0)
                if format_named(form).binary:
                    assert answer.headers["etag"].endswith(f'{form}-{size}"')
                else:
                    assert answer.content == plain.content
            asking.join(60)
        files = [path for path in results.directory.glob("*/*") if path.is_file()]
        assert len(files) <= 3  # as it is kept, in this form, and this form in blocks of one size
        assert results.used == sum(path.stat().st_size for path in files)


def test_a_failed_job_says_why_and_has_no_result(client: httpx.Client) -> None:
    job = submit(client, FAILS_LATE)
    description = ended(client, job)
    assert description["phase"] == "ERROR"
    assert description["error"]["type"] == "sql-error"
    assert description["error"]["instance"] == description["id"]
    assert description["activities"][0]["status"] == "ERROR"
    answer = client.get(f"{job}/outputs/rows")
    assert (answer.status_code, answer.json()["type"]) == (410, "gone")


def test_progress_while_it_runs_and_abort_in_the_database(serve: Serve, postgres_url: str) -> None:
    running = serve(resources={"pg": {"url": postgres_url}})
    # in the select list the series streams; in FROM the server would gather it first
    sql = "select generate_series(1, 1000000000) as i, repeat('x', 1000) as s"
    with (
        httpx.Client(base_url=running.url, timeout=60) as client,
        psycopg.connect(postgres_url, autocommit=True) as watching,
    ):
        job = submit(client, sql, resource="pg")
        deadline = time.monotonic() + 60
        while (description := phase_of(client, job, "EXECUTING"))["activities"][0]["rows"] == 0:
            assert time.monotonic() < deadline
        assert description["activities"][0]["status"] == "PROCESSING"
        conflict = client.get(f"{job}/outputs/rows")
        assert conflict.status_code == 409
        answer = client.post(f"{job}/phase", content="PHASE=ABORT", headers=FORM)
        assert answer.status_code == 200
        assert ended(client, job)["phase"] == "ABORTED"
        assert client.post(f"{job}/phase", json={"PHASE": "ABORT"}).status_code == 200
        active = (
            "select count(*) from pg_stat_activity where state = 'active' and pid <> pg_backend_pid() "
            "and datname = current_database()"
        )
        # a database says that it was stopped before it is idle
        deadline = time.monotonic() + 60
        while watching.execute(active).fetchone() != (0,):
            assert time.monotonic() < deadline
        results = running.service.results
        assert results.used == 0
        assert not list(results.directory.glob("*/*"))


def test_the_status_in_few_bytes(client: httpx.Client, shared: Background) -> None:
    """What changes, for slow links: the same as in JSON, in a tenth of the bytes."""
    job = client.post("/resources/book/perform?phase=PENDING", content=kept("select * from numbers"), headers=XML)
    path = job.headers["location"]
    plain = client.get(path)
    few = client.get(path, headers={"Accept": status.MEDIA_TYPE})
    assert few.headers["content-type"] == status.MEDIA_TYPE
    assert status.merged(plain.json(), *status.items([few.content])) == plain.json()
    with client.stream("GET", f"{path}?every=60", headers={"Accept": status.SEQUENCE}) as following:
        items = status.items(following.iter_raw(1))
        said = [next(items)]
        client.post(f"{path}/phase", data={"PHASE": "RUN"})
        said += items
    phases = [status.merged(plain.json(), each)["phase"] for each in said]
    assert (phases[0], phases[-1]) == ("PENDING", "COMPLETED")
    assert phases == sorted(phases, key=status.PHASES.index)
    done = client.get(path)
    few = client.get(path, headers={"Accept": f"{status.MEDIA_TYPE}, application/json;q=0.5"})
    item = status.merged(plain.json(), *status.items([few.content]))
    for each, shown in zip(item["activities"], done.json()["activities"], strict=True):
        assert (each["status"], each["rows"], each["bytes"]) == (shown["status"], shown["rows"], shown["bytes"])
        assert each["seconds"] == pytest.approx(shown["seconds"], abs=0.001)
    assert (item["started"], item["ended"]) == (done.json()["started"], done.json()["ended"])
    assert len(few.content) <= 0.1 * len(done.content)
    for wrong in (b"\xff", b"\x84\x00"):
        with pytest.raises(DataError):
            list(status.items([wrong]))
    others: tuple[Any, ...] = ([0, None, None, 0, []], [9, None, None, 0, [[0]] * len(item["activities"])], 1)
    for other in others:
        with pytest.raises(DataError):
            status.merged(plain.json(), other)


def test_who_follows_a_job_comes_again(
    client: httpx.Client, shared: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is asked again who it is: a token may have been revoked."""
    monkeypatch.setattr("dai.api.streaming.FOLLOWED_SECONDS", 0.0)
    job = client.post("/resources/book/perform?phase=PENDING", content=kept("select * from numbers"), headers=XML)
    path = job.headers["location"]
    assert len(list(status.items([client.get(path, headers={"Accept": status.SEQUENCE}).content]))) == 1
    monkeypatch.setattr("dai.client.jobs.AGAIN_SECONDS", 0.0)
    followed = dai.connect(f"{shared.url}/book").submit(ENDLESS)
    asked, send = [], Transport.send

    def counted(transport: Transport, method: str, path: str, *given: Any, **named: Any) -> Any:
        if named.get("headers", {}).get("Accept") == status.SEQUENCE:
            asked.append(path)
            if len(asked) == 3:
                followed.abort()
        return send(transport, method, path, *given, **named)

    monkeypatch.setattr(Transport, "send", counted)
    phases = [each.phase for each in followed.follow()]
    assert phases[-1] == "ABORTED"
    assert len(asked) >= 3


def test_the_client_asks_for_few_bytes_over_a_network(shared: Background) -> None:
    resource = dai.connect(f"{shared.url}/book", compression="zstd")
    job = resource.submit(kept("select * from numbers"))
    phases = [each.phase for each in job.follow()]
    assert (phases[-1], job.outputs) == ("COMPLETED", ["result"])
    assert job.result().arrow().num_rows == ROWS
    assert [each.phase for each in job.follow()] == ["COMPLETED"]
    endless = resource.submit(ENDLESS)
    assert endless.phase in ("QUEUED", "EXECUTING")
    endless.abort()
    assert endless.wait().phase == "ABORTED"


def kept(sql: str) -> str:
    return DOCUMENT.format(statement(sql, output="result"))


def test_a_pending_job_waits_for_run(client: httpx.Client) -> None:
    for address, content in (
        ("/resources/book/perform?phase=PENDING", DOCUMENT.format(statement("select 1 as a"))),
        ("/resources/book/query?phase=PENDING", '{"sql": "select ? as a", "parameters": [1]}'),
    ):
        kind = "application/json" if "query" in address else "application/xml"
        job = client.post(address, content=content, headers={"Content-Type": kind}).headers["location"]
        assert client.get(f"{job}?wait=1").json()["phase"] == "PENDING"
        assert client.post(f"{job}/phase", content="PHASE=RUN", headers=FORM).status_code == 200
        assert ended(client, job)["phase"] == "COMPLETED"
        again = client.post(f"{job}/phase", content="PHASE=RUN", headers=FORM)
        assert again.status_code == 409
        assert client.post(f"{job}/phase", content="PHASE=ABORT", headers=FORM).status_code == 409


def test_a_pending_job_can_be_aborted(client: httpx.Client) -> None:
    job = submit(client, "select 1 as a", "?phase=PENDING")
    assert client.post(f"{job}/phase", json={"phase": "ABORT"}).json()["phase"] == "ABORTED"


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        ("PHASE=DANCE", "application/x-www-form-urlencoded", 400),
        ("", "application/x-www-form-urlencoded", 400),
        ("&&&", "application/x-www-form-urlencoded", 400),
        ("PHASE=RUN&PAUSE=1", "application/x-www-form-urlencoded", 400),
        ("[]", "application/json", 400),
        ('{"PHASE": 1}', "application/json", 400),
        ("<x/>", "text/xml", 415),
    ],
)
def test_phases_that_are_none(client: httpx.Client, content: str, kind: str, status: int) -> None:
    job = submit(client, "select 1 as a")
    assert client.post(f"{job}/phase", content=content, headers={"Content-Type": kind}).status_code == status


def test_the_destruction_time_destroys(client: httpx.Client) -> None:
    job = submit(client, "select 1 as a")
    ended(client, job)
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    answer = client.post(f"{job}/destruction", json={"DESTRUCTION": later.isoformat()})
    assert answer.json()["destruction"].startswith(later.isoformat()[:19])
    assert client.post(f"{job}/destruction", json={"DESTRUCTION": "soon"}).status_code == 400
    client.post(f"{job}/destruction", content="DESTRUCTION=2020-01-01T00:00:00Z", headers=FORM)
    deadline = time.monotonic() + 90
    while client.get(job).status_code != 404:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_jobs_wait_in_the_queue_and_the_queue_is_bounded(serve: Serve) -> None:
    running = serve(limits={"jobs": 1, "job_queue": 1})
    with httpx.Client(base_url=running.url, timeout=60) as client:
        first = submit(client, ENDLESS)
        phase_of(client, first, "EXECUTING")
        second = submit(client, "select 1 as a")
        assert client.get(second).json()["phase"] == "QUEUED"
        refused = client.post("/resources/book/query", json={"sql": "select 1"}, headers={"Prefer": "respond-async"})
        assert (refused.status_code, refused.json()["type"]) == (503, "busy")
        assert client.delete(first).status_code == 204
        assert ended(client, second)["phase"] == "COMPLETED"


def test_full_room_for_results_is_an_error_that_leaves_nothing(serve: Serve) -> None:
    running = serve(limits={"result_bytes": 50_000})
    with httpx.Client(base_url=running.url, timeout=60) as client:
        job = submit(client, "select i, hex(randomblob(50)) as s from numbers")
        description = ended(client, job)
        assert description["phase"] == "ERROR"
        assert description["error"]["type"] == "limit-exceeded"
        assert "space for job results" in description["error"]["detail"]
        assert running.service.results.used == 0
        assert not list(running.service.results.directory.glob("*/*"))
        small = submit(client, "select 1 as a")
        assert ended(client, small)["phase"] == "COMPLETED"


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path, book: str) -> None:
    server = ServiceProcess(tmp_path, {"book": book}, largest_file=300_000, workers=1).start()
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            job = submit(client, "select i, hex(randomblob(50)) as s from numbers")
            description = ended(client, job)
            assert description["phase"] == "ERROR"
            assert description["error"]["detail"] == "The disk for job results is full."
            assert not list((tmp_path / "results").glob("*/*"))
    finally:
        server.stop()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_restart_keeps_finished_jobs_and_marks_interrupted_ones(tmp_path: Path, book: str, how: str) -> None:
    server = ServiceProcess(tmp_path, {"book": book}, workers=1).start()
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            finished = submit(client, ALL)
            ended(client, finished)
            pending = submit(client, "select 1 as a", "?phase=PENDING")
            interrupted = submit(client, ENDLESS)
            phase_of(client, interrupted, "EXECUTING")
            until_written(tmp_path / "results")
    finally:
        server.kill() if how == "killed" else server.stop()
    if how == "killed":
        assert list((tmp_path / "results").glob("*/*.part"))
        with sqlite3.connect(tmp_path / "state.db") as state:
            assert ("EXECUTING",) in state.execute("select phase from dai_jobs").fetchall()
    server = ServiceProcess(tmp_path, {"book": book}, workers=1).start()
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            assert client.get(finished).json()["phase"] == "COMPLETED"
            arrow = client.get(f"{finished}/outputs/rows")
            assert pa.ipc.open_stream(arrow.content).read_all().num_rows == ROWS
            description = client.get(interrupted).json()
            assert description["phase"] == "ERROR"
            assert "service stopped" in description["error"]["detail"]
            assert client.get(f"{interrupted}/outputs/rows").status_code == 410
            assert not list((tmp_path / "results").glob("*/*.part"))
            client.post(f"{pending}/phase", content="PHASE=RUN", headers=FORM)
            assert ended(client, pending)["phase"] == "COMPLETED"
    finally:
        server.stop()


def until_written(directory: Path) -> None:
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in directory.glob("*/*.part")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_job_that_feeds_a_stream_can_be_aborted(client: httpx.Client) -> None:
    answer = client.post("/resources/book/perform", content=streamed(ENDLESS), headers=XML)
    job = answer.headers["location"]
    phase_of(client, job, "EXECUTING")
    client.post(f"{job}/phase", content="PHASE=ABORT", headers=FORM)
    assert ended(client, job)["phase"] == "ABORTED"
