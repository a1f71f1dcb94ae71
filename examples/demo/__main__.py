"""``python -m examples.demo``: a data service over embedded databases, asked in every way; then it stops.

Loads the demo data into SQLite and DuckDB in a temporary directory, starts ``dai serve`` in front of them on a
free loopback port, runs the documents of ``examples``, queries in every format, pulls a result by block, joins tables
of both databases in one query, and shows what a mistake looks like.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dai

from .load import load

EXAMPLES = Path(__file__).parents[1]
ACROSS = """select i."interactionType" as kind, count(*) as pairs, count(distinct g."GOTermIdentifier") as terms
from lite.protein_interaction i join duck.protein_goterm g on i."ORF1" = g."ORF"
where i.repeats > ? group by all order by pairs desc"""
START_SECONDS = 30.0
SHOWN_FIRST, SHOWN_LAST = 5, 14


def main() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="dai-demo-") as directory:
        urls = {name: f"{name}:///{Path(directory) / f'demo.{name}'}" for name in ("sqlite", "duckdb")}
        for name, url in urls.items():
            _title(f"Demo data into {name}")
            for table, rows in load(url).items():
                print(f"{rows:>8,} rows  {table}")
        with _service(Path(directory), urls) as base:
            for name in urls:
                _show(base, name)
                _stream(base, name)
            _federate(base)
    print(f"\nDone in {time.perf_counter() - began:.1f} s; everything is stopped and removed.")
    print("Next: dai serve YOUR-DATABASE-URL; see README.md.")


def _title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


@contextmanager
def _service(directory: Path, urls: dict[str, str]) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = directory / "dai.toml"
    resources = "".join(f'[resources.{name}]\nurl = "{url}"\n' for name, url in urls.items())
    aliases = {"lite": "sqlite", "duck": "duckdb"}
    sources = "".join(
        f'[[federations.lab.sources]]\nalias = "{alias}"\nresource = "{name}"\n' for alias, name in aliases.items()
    )
    config.write_text(f'[service]\nport = {port}\nstate = "sqlite:///state.db"\n{resources}{sources}')
    log = directory / "service.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dai", "serve", "--write", "--config", str(config)], stdout=output, stderr=output
        )
    base = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(base):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"The service did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield base
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(base: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{base}/health/ready", timeout=1):
        return True
    return False


def _show(base: str, name: str) -> None:
    """Each step is the command that a reader would type, so that it can be typed again."""
    query = "select id, name, phone from littleblackbook where id <= ? order by id"
    _run("resources", "--server", base)
    _run("query", f"{base}/{name}", query, "3")
    for form in ("csv", "json", "webrowset"):
        _run("query", f"{base}/{name}", query, "2", "--format", form)
    for document in ("query", "query-2005", "query-preview", "fan-out", "update", "schema"):
        _run("perform", str(EXAMPLES / f"{document}.xml"), "--server", base, "--resource", name)
    _run("perform", str(EXAMPLES / "mistake.xml"), "--server", base, "--resource", name, expected=1)


def _run(*arguments: str, expected: int = 0) -> None:
    shown = " ".join(shlex.quote(each.replace(str(EXAMPLES), "examples")) for each in arguments)
    _title(f"dai {shown}")
    ended = subprocess.run([sys.executable, "-m", "dai", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = ended.stdout.decode().splitlines()
    if len(lines) > SHOWN_FIRST + SHOWN_LAST:
        left_out = len(lines) - SHOWN_FIRST - SHOWN_LAST
        lines = [*lines[:SHOWN_FIRST], f"    … {left_out} lines …", *lines[-SHOWN_LAST:]]
    print("\n".join(line[:160] for line in lines))
    if ended.returncode != expected:
        raise SystemExit(f"dai {arguments[0]} ended with {ended.returncode}.")


def _stream(base: str, name: str) -> None:
    """The same from Python: a whole table at once, and block by block through a session."""
    data = dai.connect(f"{base}/{name}")
    for sql in ("select * from protein_goterm", "select * from protein_interaction"):
        _title(f"dai.connect({base + '/' + name!r}).query({sql!r}).arrow()")
        began = time.perf_counter()
        table = data.query(sql).arrow()
        print(f"{table.num_rows:,} rows, {table.nbytes:,} bytes in {time.perf_counter() - began:.3f} s")
    _title("examples/blocks.xml: blocks of 1,000 rows pulled from the session's stream")
    with data.session() as session:
        session.perform((EXAMPLES / "blocks.xml").read_bytes())
        blocks = session.pull("goterms")
        rows = blocks.result().arrow().num_rows
    print(f"{blocks.next} blocks, {rows:,} rows, {blocks.received:,} bytes")


def _federate(base: str) -> None:
    """Both databases in one query: the service has them as a resource of its own, ``lab``."""
    _run("resources", "lab", "--server", base)
    _run("query", f"{base}/lab", ACROSS, "2", "--format", "table")
    _run("query", f"{base}/lab", ACROSS.replace("repeats", "repeat"), "2", expected=1)
    lab = dai.connect(f"{base}/lab")
    _title(f"dai.connect({base + '/lab'!r}).query('explain analyze select …', 2): what was sent where, and how it went")
    for line in lab.query(f"explain analyze {ACROSS}", 2).arrow().column(0).to_pylist():
        print(line[:160])
    sql = 'select l.*, d.* from lite.protein_goterm l join duck.protein_interaction d on l."ORF" = d."ORF1"'
    _title(f"dai.connect({base + '/lab'!r}).query({sql!r}).arrow()")
    began = time.perf_counter()
    table = lab.query(sql).arrow()
    print(f"{table.num_rows:,} rows, {table.nbytes:,} bytes in {time.perf_counter() - began:.3f} s")


if __name__ == "__main__":
    main()
