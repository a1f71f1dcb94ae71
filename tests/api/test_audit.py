"""The audit: one record a request and one a job, whatever becomes of it, and nothing secret in it."""

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest

from dai.config import parse
from dai.errors import ConfigurationError
from dai.security import audit as audit_module
from dai.security.audit import Audit
from dai.security.identity.tokens import new
from tests.api.conftest import DOCUMENT, FAILS_LATE, XML, Serve, statement
from tests.processes import ServiceProcess, until
from tests.replicas.conftest import RpcClient


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_request_says_who_what_and_what_came_of_it(serve: Serve, tmp_path: Path) -> None:
    running = serve(identity={"methods": ["token"]}, audit={"file": "audit.jsonl"})
    file = tmp_path / "audit.jsonl"
    token, stored = new("alice", 3600)
    admin, administrator = new("root", 3600, administrator=True)
    for each in (stored, administrator):
        running.service.store.add_token(each)
    document = DOCUMENT.format(statement("select * from numbers where i < 7")).encode()
    with httpx.Client(base_url=running.url, headers={"Authorization": f"Bearer {token}"}) as alice:
        answer = alice.post("/resources/book/perform", content=document, headers=XML)
        assert answer.status_code == 200
        alice.post("/resources/book/query", json={"sql": "select * from nowhere"})
        alice.post("/resources/nowhere/query", json={"sql": "select 1 as a"})
        job = alice.post("/resources/book/query", json={"sql": "select 1 as a"}, headers={"Prefer": "respond-async"})
        id = job.headers["location"].rpartition("/")[2]
        until(lambda: alice.get(f"/jobs/{id}").json()["phase"] == "COMPLETED")
    with httpx.Client(base_url=running.url) as nobody:
        nobody.get("/health/ready")
        refused = nobody.get("/jobs", headers={"X-Request-Id": "of-nobody"})
        nobody.get(f"/jobs/{id}", headers={"Authorization": f"Bearer {admin}"})
    until(lambda: any(each["event"] == "job" for each in records(file)))
    until(lambda: records(file)[-1].get("caller") == "root")
    done, wrong, missing, *rest = records(file)
    (submitted,) = [each for each in rest if each.get("status") == 202]
    assert done.items() >= {
        "event": "request", "id": answer.headers["x-request-id"], "caller": "alice", "identified_by": "token",
        "address": "127.0.0.1", "method": "POST", "route": "/resources/{resource}/perform", "resource": "book",
        "document": hashlib.sha256(document).hexdigest(), "status": 200, "outcome": "ok", "rows": 7,
        "bytes": int(answer.headers.get("content-length", len(answer.content))),
    }.items()  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", done["time"])
    assert done["seconds"] > 0
    assert (wrong["status"], wrong["outcome"], wrong["resource"]) == (400, "sql-error", "book")
    assert (missing["status"], missing["outcome"]) == (404, "not-found")
    assert submitted["job"] == id
    assert submitted["status"] == 202
    (ended,) = [each for each in rest if each["event"] == "job"]
    assert ended.items() >= {"job": id, "caller": "alice", "phase": "COMPLETED", "outcome": "ok", "rows": 1}.items()
    assert ended["document"] == submitted["document"]
    (unknown,) = [each for each in rest if each.get("id") == "of-nobody"]
    assert refused.status_code == unknown["status"] == 401
    assert unknown["outcome"] == "unauthenticated"
    assert "caller" not in unknown
    assert "document" not in unknown
    assert rest[-1].items() >= {"caller": "root", "administrator": True, "job": id}.items()
    assert not [each for each in records(file) if "health" in str(each.get("route"))]
    text = file.read_text()
    assert not [each for each in (token, admin, "nowhere\n", "select") if each in text]


def test_an_answer_that_breaks_off_is_recorded_as_that(serve: Serve, tmp_path: Path) -> None:
    running = serve(audit={"file": "audit.jsonl"})
    with pytest.raises(httpx.RemoteProtocolError), httpx.Client(base_url=running.url, timeout=60) as client:
        client.post("/resources/book/query", json={"sql": FAILS_LATE}, headers={"Accept": "text/csv"})
    until(lambda: records(tmp_path / "audit.jsonl"))
    (record,) = records(tmp_path / "audit.jsonl")
    assert record["broken"] is True
    assert record["status"] == 200
    assert record["outcome"] != "ok"
    assert record["bytes"] > 0


def test_no_value_begins_a_line_of_its_own(serve: Serve, tmp_path: Path) -> None:
    running = serve(audit={"file": "audit.jsonl"})
    with httpx.Client(base_url=running.url) as client:
        for forged in ('x%0A{"event":"request","caller":"root"}', "%E2%80%A8forged", "%0D%0A%1B[31m"):
            client.get(f"/jobs/{forged}")
    until(lambda: len(records(tmp_path / "audit.jsonl")) >= 3)
    text = (tmp_path / "audit.jsonl").read_bytes()
    assert len(text.splitlines()) == 3
    assert text.isascii()
    assert b"\x1b" not in text
    assert [each["status"] for each in records(tmp_path / "audit.jsonl")] == [404, 404, 404]


def test_calls_of_the_replica_protocol(serve: Serve, tmp_path: Path) -> None:
    """Its callers have no name; what they did, and what they were refused, is recorded all the same."""
    acl = [".*: lrc_read lrc_update"]
    replicas = {"catalog": "sqlite:///replicas.db", "rpc_port": 0, "acl": acl}
    running = serve(replicas=replicas, audit={"file": "audit.jsonl"})
    assert running.rpc_port is not None
    client = RpcClient(running.rpc_port)
    assert client.call("lrc_create", "planted", "https://planted") == 0
    assert client.lists(2, "lrc_get_pfn", "other", "0", "0") == []
    assert client.call("lrc_clear") == 7
    client.close()
    until(lambda: len(records(tmp_path / "audit.jsonl")) == 3)
    told = records(tmp_path / "audit.jsonl")
    assert {(each["event"], each["address"]) for each in told} == {("rpc", "127.0.0.1")}
    assert [(each["method"], each["status"], each["outcome"]) for each in told] == [
        ("lrc_create", 0, "ok"),
        ("lrc_get_pfn", 12, "refused"),
        ("lrc_clear", 7, "refused"),
    ]
    assert b"planted" not in (tmp_path / "audit.jsonl").read_bytes()


def test_two_workers_write_one_file(tmp_path: Path, book: str) -> None:
    file = tmp_path / "audit.jsonl"
    (tmp_path / "service").mkdir()
    process = ServiceProcess(tmp_path / "service", {"book": book}, workers=2, audit=file).start()
    try:
        for number in range(40):
            httpx.post(f"{process.url}/resources/book/query", json={"sql": f"select {number} as a"}).raise_for_status()
        until(lambda: len(records(file)) == 40)
    finally:
        process.kill()
    assert len({each["id"] for each in records(file)}) == 40


def test_the_file_is_its_owners_alone_and_grows_only(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    for number in range(3):
        audit = Audit(file)
        audit.record("request", number=number, nothing=None)
        audit.close()
        audit.record("request", number=-1)
    assert [each["number"] for each in records(file)] == [0, 1, 2]
    assert "nothing" not in records(file)[0]
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "ROTATION_SECONDS", 0.0)
    file, moved = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    audit = Audit(file)
    audit.record("request", number=1)
    file.rename(moved)
    audit.record("request", number=2)
    moved.unlink()
    audit.record("request", number=3)
    assert [each["number"] for each in records(file)] == [2, 3]
    audit.close()


def test_a_disk_that_is_full_loses_records_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    audit = Audit(Path("/dev/full"))
    for _ in range(3):
        audit.record("request")
    assert audit.lost == 3
    assert [each.getMessage() for each in caplog.records] == ["a record of the audit is lost"]
    audit.close()


def test_a_service_does_not_start_without_the_audit_that_it_should_write(tmp_path: Path) -> None:
    for name in ("nowhere/audit.jsonl", "."):
        with pytest.raises(ConfigurationError, match=r"audit file .* cannot be written"):
            Audit(parse({"audit": {"file": name}}, tmp_path, {}).audit.file)
