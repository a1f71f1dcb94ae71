"""Results read by curl and by the libraries scientists have."""

import hashlib
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import duckdb
import httpx
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import requests

from tests.interop.conftest import GOTERM, GOTERMS, asked
from tests.processes import ServiceProcess

ARROW, CSV = "application/vnd.apache.arrow.stream", "text/csv"
QUERY = ["-H", "Content-Type: application/json", "-d", json.dumps({"sql": GOTERM})]
RESOURCES = pytest.mark.parametrize("resource", ["postgresql", "mariadb"])


def curl(*arguments: str | Path) -> bytes:
    command = shutil.which("curl")
    assert command, "these tests need curl"
    done = subprocess.run([command, "-sS", "--fail", *arguments], capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def completed(service: ServiceProcess, sql: str = GOTERM) -> str:
    """A job, by a UWS client written by hand: made PENDING, run, polled by its phase. Its address."""
    request = urllib.request.Request(
        f"{service.url}/resources/postgresql/query?phase=PENDING",
        json.dumps({"sql": sql}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        assert reply.status == 202
        job = urllib.parse.urljoin(service.url, reply.headers["Location"])
    assert phase(job) == "PENDING"
    with urllib.request.urlopen(f"{job}/phase", urllib.parse.urlencode({"PHASE": "RUN"}).encode()) as run:
        assert json.load(run)["phase"] in ("QUEUED", "EXECUTING", "COMPLETED")
    deadline = time.monotonic() + 60
    seen = [phase(job)]
    while seen[-1] in ("QUEUED", "EXECUTING"):
        assert time.monotonic() < deadline
        seen.append(phase(f"{job}?wait=5"))
    assert seen[-1] == "COMPLETED"
    return str(job)


def phase(address: str) -> str:
    with urllib.request.urlopen(address) as answer:
        return str(json.load(answer)["phase"])


@RESOURCES
def test_curl_saves_and_decompresses(service: ServiceProcess, tmp_path: Path, resource: str) -> None:
    address = f"{service.url}/resources/{resource}/query"
    curl(address, *QUERY, "-H", f"Accept: {CSV}", "-o", tmp_path / "plain.csv")
    plain = (tmp_path / "plain.csv").read_bytes()
    assert plain.count(b"\r\n") == GOTERMS + 1
    headers = tmp_path / "headers"
    assert curl(address, *QUERY, "-H", f"Accept: {CSV}", "--compressed", "-D", headers) == plain
    assert "content-encoding: " in headers.read_text().lower()


def test_curl_takes_a_part_and_resumes(service: ServiceProcess, tmp_path: Path) -> None:
    output = f"{completed(service)}/outputs/result?format=csv"
    whole = curl(output)
    assert whole.count(b"\r\n") == GOTERMS + 1
    assert curl(output, "-r", "1000-1999") == whole[1000:2000]
    begun = tmp_path / "begun.csv"
    begun.write_bytes(whole[:100_000])
    curl(output, "-C", "-", "-o", begun)
    assert begun.read_bytes() == whole


def test_curl_sees_a_refusal(service: ServiceProcess) -> None:
    answer = subprocess.run(
        ["curl", "-s", "-w", "%{http_code}", f"{service.url}/resources/postgresql/query", "-d", '{"sql": "select nix"}',
         "-H", "Content-Type: application/json"], capture_output=True, timeout=60, check=True,
    ).stdout.decode()  # fmt: skip
    assert answer.endswith("400")
    assert json.loads(answer[:-3])["type"] == "sql-error"


@RESOURCES
def test_the_libraries_agree(service: ServiceProcess, resource: str) -> None:
    with asked(service, GOTERM, ARROW, resource) as answer, pa.ipc.open_stream(answer) as reader:
        table = reader.read_all()
    assert table.num_rows == GOTERMS
    assert len(set(zip(*table.to_pydict().values(), strict=True))) > GOTERMS // 2
    with asked(service, GOTERM, CSV, resource) as answer:
        frame = pd.read_csv(answer)
    assert frame.to_numpy().tolist() == table.to_pandas().to_numpy().tolist()
    with asked(service, GOTERM, ARROW, resource) as answer:
        assert pl.read_ipc_stream(answer.read()).equals(pl.from_arrow(table))
    with asked(service, GOTERM, ARROW, resource) as answer, pa.ipc.open_stream(answer) as reader:
        name = table.column_names[1]
        counted = duckdb.sql(f"select count(*), count(distinct {name}) from reader").fetchall()
    assert counted == [(GOTERMS, len(set(table[name].to_pylist())))]


def test_streaming_clients(service: ServiceProcess) -> None:
    with asked(service, GOTERM, CSV) as answer:
        expected = hashlib.sha256(answer.read()).hexdigest()
    address, headers = f"{service.url}/resources/postgresql/query", {"Accept": CSV}
    actual = hashlib.sha256()
    with httpx.stream("POST", address, json={"sql": GOTERM}, headers=headers, timeout=60) as streamed:
        for piece in streamed.iter_bytes():
            actual.update(piece)
    assert actual.hexdigest() == expected
    actual = hashlib.sha256()
    with requests.post(address, json={"sql": GOTERM}, headers=headers, stream=True, timeout=60) as response:
        for piece in response.iter_content(8192):
            actual.update(piece)
    assert actual.hexdigest() == expected


@RESOURCES
def test_every_type_arrives(service: ServiceProcess, resource: str) -> None:
    sql = "select * from every_type order by id"
    with asked(service, sql, ARROW, resource) as answer, pa.ipc.open_stream(answer) as reader:
        table = reader.read_all()
    assert table.num_rows >= 3
    assert all(table[name].null_count for name in table.column_names[1:])
    with asked(service, sql, CSV, resource) as answer:
        frame = pd.read_csv(answer, dtype=str, keep_default_na=False)
    assert frame.shape == (table.num_rows, table.num_columns)


def test_a_uws_client_aborts(service: ServiceProcess) -> None:
    endless = "select generate_series(1, 2000000000) as i"
    request = urllib.request.Request(
        f"{service.url}/resources/postgresql/query",
        json.dumps({"sql": endless}).encode(),
        {"Content-Type": "application/json", "Prefer": "respond-async"},
    )
    with urllib.request.urlopen(request) as reply:
        job = urllib.parse.urljoin(service.url, reply.headers["Location"])
    with urllib.request.urlopen(f"{job}/phase", b"PHASE=ABORT"):
        pass
    deadline = time.monotonic() + 60
    while (now := phase(f"{job}?wait=5")) != "ABORTED":
        assert time.monotonic() < deadline, now
    with pytest.raises(urllib.error.HTTPError) as gone:
        urllib.request.urlopen(f"{job}/outputs/result")
    assert gone.value.code == 410
    gone.value.close()
