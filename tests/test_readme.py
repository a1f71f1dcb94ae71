"""README.md and the examples do what they say: every Python block is a doctest, every `dai` and `curl` line is run."""

import contextlib
import doctest
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.load import load
from tests.processes import until
from tests.servers import free_port

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
BIN = str(Path(sys.executable).parent)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The newcomer's one-liner, `dai serve` with a bare URL; one of the examples writes."""
    directory = tmp_path_factory.mktemp("readme")
    url = f"sqlite:///{directory / 'demo.db'}"
    load(url)
    port = free_port()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [f"{BIN}/dai", "serve", url, "--write", "--port", str(port)], cwd=directory, stdout=log, stderr=log
        )
    base = f"http://127.0.0.1:{port}"
    try:

        def answers() -> bool:
            assert process.poll() is None, (directory / "log").read_text()[-4000:]
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{base}/health/ready", timeout=30):
                return True
            return False

        until(answers)
        yield base
    finally:
        process.terminate()
        process.wait(60)


def test_python_blocks(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = "\n".join(code for language, code in BLOCKS if language == "python")
    assert text.count(">>>") >= 10
    text = text.replace("http://127.0.0.1:8080", server)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(text, {}, "README.md", "README.md", 0)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=options).run(test, out=said.append)
    assert not said, "".join(said)


def _commands() -> list[str]:
    lines = "\n".join(code for language, code in BLOCKS if language == "sh").replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith(("dai query", "dai perform", "curl"))]


@pytest.mark.parametrize("command", _commands())
def test_shell_lines(server: str, command: str) -> None:
    if command.startswith("dai"):
        command += f" --server {server}"
    command = command.replace("http://127.0.0.1:8080", server)
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=400
    )
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) > 3


@pytest.mark.parametrize("document", sorted(each.name for each in (ROOT / "examples").glob("*.xml")))
def test_examples(server: str, document: str) -> None:
    ended = subprocess.run(
        [f"{BIN}/dai", "perform", str(ROOT / "examples" / document), "--server", server, "--resource", "data"],
        capture_output=True,
        text=True,
        timeout=400,
    )
    if document == "mistake.xml":
        assert ended.returncode == 1
        assert "nmae" in ended.stderr
        assert "Traceback" not in ended.stderr
    elif document == "deliver-to-service.xml":  # between the two services of docs/transfers.md
        assert ended.returncode == 1
        assert "no such table: numbers" in ended.stderr
    else:
        assert ended.returncode == 0, ended.stderr


def test_flights_from_new_york() -> None:
    ended = subprocess.run(
        [sys.executable, "examples/flights.py"], cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    assert "336,776 flights" in ended.stdout
    # The figures of the data set, counted with pandas.
    for line in ("Frontier Airlines Inc. 681 21.9", "BOEING 1630 82912 50", "bad sight 6818 30.2 17.9"):
        assert line in " ".join(ended.stdout.split())
    assert "16,174 rows in 9 blocks" in ended.stdout
    assert "The service is stopped" in ended.stdout


def test_demo_runs_and_stops() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "examples.demo"], cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "everything is stopped" in ended.stdout
