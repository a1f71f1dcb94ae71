"""The server as a process: its start, its end, what it says."""

import json
import signal
import subprocess
import sys
from os import environ
from pathlib import Path

import httpx

from tests.api.conftest import ENDLESS
from tests.forks import Forked
from tests.processes import ROOT, SECONDS, until

WITHOUT_ITS_SOURCE = '[federations.all]\nsources = [{alias = "x", resource = "missing"}]\n'


def served(directory: Path, text: str) -> subprocess.Popen[str]:
    (directory / "dai.toml").write_text(text)
    script = (
        "import sys; from dai.api.server.start import serve; from dai.config import load; "
        "sys.exit(serve(load(sys.argv[1], {}), lambda url: print(url, flush=True)))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, str(directory / "dai.toml")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def begun(directory: Path, text: str) -> tuple[Forked, Path]:
    """`dai serve` in a forked process, and the file of what it says."""
    (directory / "dai.toml").write_text(text)
    log = directory / "said"
    log.unlink(missing_ok=True)
    arguments = ["serve", "--config", str(directory / "dai.toml")]
    return Forked(arguments, ROOT, directory, log, largest_file=0, with_workers=True), log


def said_at_its_end(directory: Path, text: str) -> str:
    process, log = begun(directory, text)
    assert process.wait(SECONDS) != 0
    return log.read_text()


def test_it_starts_answers_and_stops_gracefully(tmp_path: Path, book: str) -> None:
    process = served(tmp_path, f'[service]\nport = 0\ngrace = 0.5\nworkers = 1\n[resources.book]\nurl = "{book}"\n')
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with httpx.Client(base_url=url, timeout=100) as client:
            assert client.post("/resources/book/query?format=csv", json={"sql": "select 1 as a"}).text == "a\r\n1\r\n"
            with client.stream("POST", "/resources/book/query", json={"sql": ENDLESS}) as answer:
                assert answer.status_code == 200
                process.send_signal(signal.SIGTERM)
                _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    lines = [json.loads(line) for line in stderr.splitlines()]
    assert process.returncode in (0, -signal.SIGTERM)
    assert any(line["message"] == "listening" for line in lines)
    requests = [line for line in lines if line["logger"] == "dai.access"]
    assert [line["status"] for line in requests] == [200, 200]
    assert requests[1]["broken"] is True
    assert "select" not in stderr


def test_it_ends_without_complaints_of_duckdb(tmp_path: Path) -> None:
    """Before, each end of a service with DuckDB or files printed 45 lines about leaks."""
    (tmp_path / "birds.csv").write_text("id\n1\n")
    command = [sys.executable, "-m", "dai", "serve", str(tmp_path / "birds.csv"), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, env={**environ, "PYTHONPATH": str(ROOT)}, **pipes)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        assert httpx.get(f"{url}/resources/data/query?sql=from+birds", timeout=100).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert "leaked" not in stderr


def test_it_says_why_it_does_not_start(tmp_path: Path) -> None:
    said = said_at_its_end(tmp_path, f"[service]\nport = 0\n{WITHOUT_ITS_SOURCE}")
    assert "There is no data resource 'missing'" in said


def test_a_database_that_does_not_answer_is_said_at_the_start(tmp_path: Path) -> None:
    url = "postgresql://reader:sesame@127.0.0.1:1/book"
    process, log = begun(tmp_path, f'[service]\nport = 0\n[resources.book]\nurl = "{url}"\n')
    try:
        until(lambda: log.exists() and "does not answer" in log.read_text())
    finally:
        process.terminate()
        process.wait(SECONDS)
    line = next(line for line in log.read_text().splitlines() if "does not answer" in line)  # of each worker
    said = json.loads(line)
    assert (said["level"], said["resource"], said["error"]) == ("warning", "book", "database-unavailable")
    assert said["at"] == "host 127.0.0.1, port 1, database book, user reader"


def test_nobody_listens_beyond_loopback_who_does_not_ask_for_identity(tmp_path: Path) -> None:
    text = f'[service]\nport = 0\nhost = "0.0.0.0"\n{WITHOUT_ITS_SOURCE}'
    assert 'methods = ["token"]' in said_at_its_end(tmp_path, text)
    for more in ('methods = ["token"]', "anonymous = true"):
        said = said_at_its_end(tmp_path, f"{text}[identity]\n{more}\n")
        assert "There is no data resource 'missing'" in said  # it went on to the resources
        assert ("everybody who can reach" in said) == (more == "anonymous = true")
