"""docs/federations/tutorial.md works as written: its commands run, its output and its Python blocks are compared."""

from __future__ import annotations

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

from tests.processes import until
from tests.servers import free_port

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(
    r"^```(\w+)\n(.*?)^```$",
    (ROOT / "docs" / "federations" / "tutorial.md").read_text(),
    re.MULTILINE | re.DOTALL,
)
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
}


def _lines(language: str, start: str) -> list[str]:
    blocks = [text for each, text in BLOCKS if each == language]
    return [line for block in blocks for line in block.splitlines() if line.startswith(start)]


def _run(command: str, directory: Path) -> str:
    process = subprocess.run(
        ["sh", "-c", command], cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, timeout=400
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The reader's directory after step 3: databases loaded, services started, federation.toml written."""
    place = tmp_path_factory.mktemp("reader")
    for command in [*_lines("sh", "mkdir"), *_lines("sh", "python")]:
        _run(command, place)
    (federation,) = (text for language, text in BLOCKS if language == "toml")
    with contextlib.ExitStack() as stack:
        for command in _lines("sh", "cd tutorial/"):
            port = command.split()[-1]
            base = f"http://127.0.0.1:{free_port()}"
            federation = federation.replace(f"http://127.0.0.1:{port}", base)
            command = command.replace("&& dai", "&& exec dai").replace(port, base.rpartition(":")[2])
            log = stack.enter_context((place / f"{port}.log").open("w+b"))
            process = subprocess.Popen(["sh", "-c", command], cwd=place, env=ENVIRONMENT, stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)

            def is_ready(
                process: subprocess.Popen[bytes] = process, base: str = base, log: Path = Path(log.name)
            ) -> bool:
                assert process.poll() is None, log.read_text()[-4000:]
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{base}/health/ready", timeout=30):
                    return True
                return False

            until(is_ready)
        (place / "tutorial" / "federation.toml").write_text(federation)
        yield place / "tutorial"


def test_there_are_two_services_and_two_commands() -> None:
    assert len(_lines("sh", "cd tutorial/")) == 2
    assert len(_lines("sh", "dqp")) == 2


@pytest.mark.parametrize("command", _lines("sh", "dqp"), ids=["tables", "query"])
def test_output_of_commands(directory: Path, command: str) -> None:
    output = BLOCKS[[text for _, text in BLOCKS].index(f"{command}\n") + 1][1]
    if command.startswith("dqp query"):
        command += " --format table"
    assert _run(command, directory) == output


def test_python_blocks(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    text = "\n".join(code for language, code in BLOCKS if language == "python")
    assert text.count(">>>") >= 7
    test = doctest.DocTestParser().get_doctest(text, {}, "tutorial.md", "tutorial.md", 0)
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test, out=failures.append)
    assert not failures, "".join(failures)
