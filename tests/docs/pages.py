"""Pages of the documentation as programs: their blocks are run in order, as a reader would, and what they print is
compared.

- ``sh``: each line is run; ``dai serve`` goes on beside what follows until the page ends, on a free port instead of the
  one that is written, in a forked process (that one begun anew serves, too, the README shows). Lines that set the
  reader up (``make``, ``pip``, ``. .venv/…``) are left out.
- ``text`` behind ``sh``: what the last command printed on a terminal, and its errors; ``...`` stands for anything.
- ``python``: a doctest where it has ``>>>``, a program otherwise; all of a page share their names.
- a block of any kind behind a paragraph that ends with "as `NAME`:" is written to that file.
- a block behind the comment ``<!-- not run: REASON -->`` is not run.
"""

from __future__ import annotations

import contextlib
import doctest
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.forks import Forked
from tests.processes import ROOT, until
from tests.servers import free_port

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"as `([\w./-]+)`[^`\n]*:\s*\Z")
NOT_RUN = re.compile(r"<!-- not run: [^\n]+ -->\s*\Z")
SET_UP = ("make ", "git ", "pip ", ".venv/bin/pip ", ". .venv/", "pre-commit ", "sudo ", "#")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Step:
    """A block: its language, its text, the file that it is written to."""

    language: str
    text: str
    file: str | None


def steps(page: Path) -> Iterator[Step]:
    text = page.read_text()
    end = 0
    for block in BLOCK.finditer(text):
        before, end = text[end : block.start()].rstrip(), block.end()
        if not NOT_RUN.search(before):
            file = FILE.search(before)
            yield Step(block[1], block[2], file[1] if file else None)


@dataclass
class Reader:
    """Somebody who follows a page in ``directory``, where ``examples`` is that of the project."""

    directory: Path
    stack: contextlib.ExitStack
    addresses: dict[str, str] = field(default_factory=dict)
    names: dict[str, object] = field(default_factory=dict)
    printed: str = ""

    def follow(self, page: Path) -> None:
        """Runs and compares its blocks."""
        (self.directory / "examples").symlink_to(ROOT / "examples")
        before = ""
        for step in steps(page):
            text = self._here(step.text)
            if step.file is not None:
                path = self.directory / step.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            elif step.language == "sh":
                for line in text.replace("\\\n", " ").splitlines():
                    self._line(line.strip())
            elif step.language == "text" and before == "sh":
                assert doctest.OutputChecker().check_output(text, self.printed, OPTIONS), self.printed
            elif step.language == "python":
                self._python(text, page.name)
            before = step.language

    def _here(self, text: str) -> str:
        for written, address in self.addresses.items():
            text = text.replace(f"127.0.0.1:{written}", address).replace(f"localhost:{written}", address)
        return text

    def _line(self, line: str) -> None:
        if not line or line.startswith(SET_UP):
            return
        if "dai serve" in line:
            self._serve(line)
            return
        if line.startswith("cd ") and "&&" not in line:
            self.directory /= line.removeprefix("cd ")
            return
        terminal, end = pty.openpty()
        with tempfile.TemporaryFile() as errors:  # no terminal: there is no progress to be written
            process = subprocess.Popen(
                ["sh", "-ec", line], cwd=self.directory, env=self._environment(), stdout=end, stderr=errors, stdin=end
            )
            os.close(end)
            printed = bytearray()
            with os.fdopen(terminal, "rb", 0) as reading, contextlib.suppress(OSError):  # EIO: nobody writes any more
                while piece := reading.read(65536):
                    printed += piece
            status = process.wait(400)
            errors.seek(0)
            self.printed = printed.decode().replace("\r\n", "\n") + errors.read().decode()
        assert status == 0, f"{line}\n{self.printed}"

    def _serve(self, line: str) -> None:
        written = re.search(r"--port (\d+)", line)
        port = free_port()
        self.addresses[written[1] if written else "8080"] = f"127.0.0.1:{port}"
        line = line.replace(written[0], "") if written else line
        *before, command = line.split(" && ")
        directory = self.directory.joinpath(*(each.removeprefix("cd ") for each in before))
        temporary = self.directory / f"{port}.tmp"
        temporary.mkdir()
        log = self.directory / f"{port}.log"
        arguments = [*shlex.split(command)[1:], "--port", str(port)]
        process = Forked(arguments, directory, temporary, log, largest_file=0, with_workers=True)
        self.stack.callback(process.wait, 60)
        self.stack.callback(process.terminate)

        def answers() -> bool:
            assert process.poll() is None, log.read_text()[-4000:]
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=30),
            ):
                return True
            return False

        until(answers)

    def _python(self, text: str, name: str) -> None:
        with contextlib.chdir(self.directory):
            if ">>>" not in text:
                exec(compile(text, name, "exec"), self.names)
                return
            test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
            test.globs = self.names
            said: list[str] = []
            doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=said.append, clear_globs=False)
            assert not said, "".join(said)

    def _environment(self) -> dict[str, str]:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "DAI_SERVER": self._server()}

    def _server(self) -> str:
        """Of commands that name none: the first service of the page, as the reader's is on port 8080."""
        return f"http://{next(iter(self.addresses.values()), '127.0.0.1:8080')}"
