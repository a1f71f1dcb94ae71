"""The command that serves databases, as a process, and what it says to a terminal."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dai.__main__ import main
from dai.client.testing import ScriptedServer
from dai.commands import FAILED, OK, USAGE
from dai.errors import ConfigurationError, DaiError, MissingDependencyError
from tests.client.replies import problem, said


@contextmanager
def serving(*arguments: str, cwd: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`dai serve` in a process of its own: its address, from what it says at its start."""
    command = [sys.executable, "-m", "dai", "serve", "--port", "0", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            drained = threading.Thread(target=process.stderr.read)
            drained.start()
            first = process.stdout.readline()
            assert first.startswith("Data service at http://127.0.0.1:")
            yield first.split()[-1], process
        finally:
            process.terminate()
            process.wait(60)
            drained.join()


def environment() -> dict[str, str]:
    root = str(Path(__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": root}


def test_a_database_is_served_with_one_line(tmp_path: Path, capsys) -> None:
    with closing(sqlite3.connect(tmp_path / "book.db")) as connection:
        connection.executescript(
            "create table book (id integer primary key, name text); insert into book values (7, 'x')"
        )
    with serving("sqlite:///book.db", cwd=tmp_path) as (url, process):
        assert main(["resources", "--server", url]) == OK
        assert "data" in capsys.readouterr().out
        assert main(["resources", "data", "--server", url]) == OK
        assert "book" in capsys.readouterr().out
        assert main(["query", f"{url}/data", "select * from book where id = ?", "7", "--format", "csv"]) == OK
        assert capsys.readouterr().out.replace("\r", "") == "id,name\n7,x\n"
        assert main(["query", f"{url}/data", "select * from book", "--format", "table"]) == OK
        assert capsys.readouterr().out.splitlines() == ["id  name", "──  ────", " 7  x", "(1 row)"]
        assert main(["query", f"{url}/data", "select * from bok"]) == FAILED
        assert "bok" in capsys.readouterr().err
        assert main(["query", f"{url}/dota", "select 1"]) == FAILED
        assert "Did you mean 'data'?" in capsys.readouterr().err
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == OK


@pytest.mark.parametrize("error", [ConfigurationError("No such driver."), MissingDependencyError("No package.")])
def test_a_driver_that_is_not_there_is_a_wrong_command_line(
    error: DaiError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> int:
        raise error

    monkeypatch.setattr("dai.api.server.start.serve", refused)
    assert main(["serve", "nosuch://host/data"]) == USAGE
    assert error.detail in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "dai", "serve", "sqlite:///book.db", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False)
    assert done.returncode == USAGE
    assert "cannot listen on" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stream", ["error", "list"])
def test_nothing_that_a_service_says_steers_the_terminal(stream: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and labels are other people's, and a service may be anybody."""
    steering = "a\x1b]0;b\x07\x1b[2Jc\rd\x9be\u202ef\x00"
    described = dict.fromkeys(("name", "kind", "dialect", "product", "description"), steering)
    answer = said({"resources": [{**described, "available": True}]})
    if stream == "error":
        answer = problem(400, type="sql-error", title=steering, detail=steering, hint=steering, instance=steering)
    with ScriptedServer(answer) as server:
        main(["resources", "--server", server.url])
    shown = "".join(capsys.readouterr())
    assert "\\x1b]0;b\\x07\\x1b[2Jc\\x0dd\\x9be\\u202ef\\x00" in shown
    assert not {each for each in shown if not each.isprintable() and each != "\n"}
