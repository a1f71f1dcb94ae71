"""Blocks and control messages over slow links, with and without contexts.

By the method of Oh and Fox (Handheld Flexible Representation, 2005 to 2010): the same messages over the same link, once
each with all that makes it readable by itself, once with what does not change in a context store; bytes and transit
time of each, the access to the store counted in. Their link was that of a telephone. This one is a relay in this
process with the rates of such links and a delay; ratios are compared. ``python -m perf.contexts_link`` runs this over
PostgreSQL alone.
"""

from __future__ import annotations

import argparse
import http.client
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import dai
from dai.client import Resource
from dai.formats import frames, status
from examples.demo.load import load
from perf.blocks import pipeline
from perf.harness import Report
from perf.link import Link, link
from perf.world import SETTINGS, World, service
from tests.servers.postgresql import PostgresServer

TABLE = "protein_goterm"
RATES = {14.4: 3, 57.6: 10, 144.0: 10}
"""kbit/s of links of telephones of that time, and how many blocks a session has there."""
RATE = 57.6
DELAY = 0.15
"""Seconds one way."""
ROWS = 100
SIZES, BLOCKS = (1, 3, 10, 30, 100), 10
"""Rows of a block; blocks of a session with each."""
PUBLISHED_SIZE, PUBLISHED_SAVED = 0.17, 0.41
BLOCK_GOAL, CONTROL_GOAL = 0.06, 0.90
ITEMS, TOGETHER = 12, 16
DEPTHS: Mapping[str, tuple[int | None, int]] = {
    "as the client chooses": (None, 1),
    "1 block a request, 2 on their way": (1, 2),
    "1 block a request, 4 on their way": (1, 4),
    "8 blocks a request, 3 on their way": (8, 3),
}
WHOLE, TUPLES = "whole documents", "tuples, compressed with the context"


@dataclass
class Sum:
    """``seconds`` and ``bytes`` (both ways, heads included) of so many ``blocks``; ``payload``: bytes of bodies."""

    blocks: int = 0
    seconds: float = 0.0
    bytes: int = 0
    payload: int = 0


def run(world: World, rounds: int) -> Report:
    return linked(world.postgres.url)


def linked(database: str) -> Report:
    report = Report("contexts_link", "Over slow links, with and without contexts")
    with service({"pg": database}) as (base, _), closing(dai.connect(f"{base}/pg")) as resource:
        port = urlsplit(base).port
        assert port is not None
        _blocks(report, resource, port)
        _depths(report, resource, port)
        _control(report, resource, port)
    return report


class Reader:
    """A program at the other end of a link, with the heads that it needs and no others."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._connection.connect()

    def get(self, path: str, accept: str) -> bytes:
        self._connection.request("GET", path, headers={"Accept": accept})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise AssertionError((answer.status, content))
        return content

    def close(self) -> None:
        self._connection.close()


def _blocks(report: Report, resource: Resource, port: int) -> None:
    rows: list[list[str]] = []
    saved: dict[float, float] = {}
    for rate, count in RATES.items():
        with link(port, rate * 1000, DELAY) as slow:
            whole, tuples = (_session(resource, slow, count, ROWS, with_context) for with_context in (False, True))
        saved[rate] = 1 - tuples.seconds / whole.seconds
        for case, each in ((WHOLE, whole), (TUPLES, tuples)):
            size = f"{each.bytes / count:,.0f}", f"{each.bytes / whole.bytes:.1%}"
            took = f"{each.seconds / count:.2f} s", f"{1 - each.seconds / whole.seconds:.0%}"
            rows.append([f"{rate:g}", case, *size, *took])
    report.text(
        f"{TABLE}, blocks of {ROWS} rows of a session's stream, one a request, {min(RATES.values())} to "
        f"{max(RATES.values())} a session; {DELAY * 1000:g} ms one way. *Whole documents*: each is a WebRowSet by "
        "itself. *Tuples*: the reader gets the context from the store first, which is counted in, then frames. Bytes "
        "are those of both ways with the heads of requests and answers, without what TCP and IP add."
    )
    report.table(["kbit/s", "a block is", "bytes a block", "of whole", "seconds a block", "saved"], rows)
    sweep: dict[str, dict[int, Sum]] = {WHOLE: {}, TUPLES: {}}
    with link(port, RATE * 1000, DELAY) as slow:
        for count in SIZES:
            for case, sums in sweep.items():
                sums[count] = _session(resource, slow, BLOCKS, count, case == TUPLES)
    report.text(
        f"By the rows of a block, at {RATE:g} kbit/s, {BLOCKS} blocks a session. Published for SOAP messages: "
        f"{PUBLISHED_SIZE:.0%} of the bytes, {PUBLISHED_SAVED:.0%} of the transit time saved. The store here is behind "
        "the same link."
    )
    report.table(
        ["rows", "bytes a block, whole", "tuples", "of whole", "seconds a block, whole", "tuples", "saved"],
        [_row(count, sweep[WHOLE][count], sweep[TUPLES][count]) for count in SIZES],
    )
    report.plot("contexts_link", lambda axes: _draw(axes, sweep), "bytes and seconds by rows of a block", (1, 2))
    bodies = sweep[TUPLES][ROWS].payload / sweep[WHOLE][ROWS].payload
    report.goal(f"a block of {ROWS} rows, bodies alone, of its full XML", bodies, BLOCK_GOAL)
    for rate, part in saved.items():
        what = f"transit time saved at {rate:g} kbit/s, the store counted in"
        report.goal(what, part, PUBLISHED_SAVED, at_least=True)


def _row(rows: int, whole: Sum, tuples: Sum) -> list[str]:
    size = [f"{each.bytes / BLOCKS:,.0f}" for each in (whole, tuples)]
    took = [f"{each.seconds / BLOCKS:.2f} s" for each in (whole, tuples)]
    saved = f"{1 - tuples.seconds / whole.seconds:.0%}"
    return [str(rows), *size, f"{tuples.bytes / whole.bytes:.1%}", *took, saved]


def _session(resource: Resource, slow: Link, count: int, size: int, with_context: bool) -> Sum:
    """So many blocks of a new session, one after the other. What the service has to do is done before."""
    document = pipeline(f"select * from {TABLE} limit {(count + 1) * size}", size, "webrowset")
    found = Sum(count)
    with resource.session() as session:
        resource.perform(document, session=session.id).check()
        path = session.stream_path("out")
        with resource.service.transport.send("GET", f"{path}/blocks/0?wait=20").body as body:
            body.read_all()
        context = resource.service.get(f"/sessions/{session.id}")["streams"][0]["context"]
        with closing(Reader(slow.port)) as reader:
            reader.get("/health/live", "*/*")  # the connection stands
            known, began, before = frames.KnownContexts(), time.perf_counter(), slow.bytes
            if with_context:
                known.learn(context, reader.get(f"/contexts/{context}", "*/*"))
            asked = frames.Asked(context, True) if with_context else frames.Asked()
            for number in range(1, count + 1):
                data = reader.get(f"{path}/blocks/{number}?wait=20", str(asked))
                (frame,) = frames.read(data)
                if len(known.document(frame)) == 0 or frame.rows != size:
                    raise AssertionError(frame)
                found.payload += len(frame.payload)
            found.seconds, found.bytes = time.perf_counter() - began, slow.bytes - before
    return found


def _depths(report: Report, resource: Resource, port: int) -> None:
    """The whole of a stream by the Python client."""
    rows, seconds = [], {}
    document = pipeline(f"select * from {TABLE} limit 4800", ROWS, "webrowset")
    for case, (count, depth) in DEPTHS.items():
        with resource.session() as session, link(port, RATE * 1000, DELAY) as slow:
            resource.perform(document, session=session.id).check()
            far = dai.connect(f"http://127.0.0.1:{slow.port}/pg", compression="zstd")
            before, began = slow.bytes, time.perf_counter()
            pulled = far.session(id=session.id).pull("out", count, depth=depth)
            total = sum(batch.num_rows for batch in pulled.result(progress=False))
            seconds[case] = time.perf_counter() - began
            rows.append([case, f"{slow.bytes - before:,}", f"{seconds[case]:.1f} s"])
            if total != 4800:
                raise AssertionError(total)
            far.close()
    report.text(f"48 blocks of {ROWS} rows, in compressed frames, by the Python client at {RATE:g} kbit/s.")
    report.table(["case", "bytes", "time"], rows)


def _control(report: Report, resource: Resource, port: int) -> None:
    """Bytes of job status, and of pulls, by message: in the body, and with heads."""
    document = pipeline(f"select * from {TABLE} limit 12000", ROWS, "webrowset")
    with resource.session() as session, link(port, 1e9, 0.0) as slow, closing(Reader(slow.port)) as reader:
        job = resource.perform(document, session=session.id).job
        assert job is not None
        path, blocks = f"/jobs/{job.id}", session.stream_path("out")
        for number in range(3):
            with resource.service.transport.send("GET", f"{blocks}/blocks/{number}?wait=20").body as body:
                body.read_all()

        def counted(path: str, accept: object) -> tuple[bytes, int]:
            before = slow.bytes
            return reader.get(path, str(accept)), slow.bytes - before

        def status_of(accept: str) -> tuple[float, float]:
            body, size = counted(path, accept)
            return len(body), size

        def pulled(number: int, together: int, asked: frames.Asked) -> tuple[float, float]:
            """For each block, without its tuples."""
            data, size = counted(f"{blocks}/blocks/{number}?wait=20&count={together}", asked)
            received = [each for each in frames.read(data) if not each.end]
            if len(received) != together:
                raise AssertionError(len(received))
            tuples = sum(len(known.tuples(each)) if each.static else len(each.payload) for each in received)
            return (len(data) - tuples) / together, (size - tuples) / together

        plain, few = status_of("application/json"), status_of(status.MEDIA_TYPE)
        said, before, items = 0, slow.bytes, 0
        sizes: list[int]
        connection = http.client.HTTPConnection("127.0.0.1", slow.port)
        connection.request("GET", f"{path}?every=1", headers={"Accept": status.SEQUENCE})
        answer = connection.getresponse()
        for number in range(3, 3 + ITEMS):
            pieces = iter(lambda: answer.read1(1000), b"")
            next(status.items(_measured(pieces, sizes := [])))
            said, items = said + 1, items + sum(sizes)
            with resource.service.transport.send("GET", f"{blocks}/blocks/{number}?wait=20").body as body:
                body.read_all()
        followed = items / said, (slow.bytes - before) / said
        connection.close()
        known = frames.KnownContexts()
        alone = pulled(at := 3 + ITEMS, 1, frames.Asked())
        has = frames.Asked(known.latest, True)
        one = pulled(at + 1, 1, has)
        many = pulled(at + 2, TOGETHER, has)
        flowing = pulled(at + 2 + TOGETHER, TOGETHER, frames.Asked(known.latest, True, flow=True))
    cases = {
        "a status, asked for alone": (plain, few, "JSON", "CBOR"),
        f"a status, of {said} that are followed in one answer": (plain, followed, "JSON, asked for each time", "CBOR"),
        "a pull of one block": (alone, one, "a document by itself", "a frame"),
        f"a pull of a block, of {TOGETHER} at once (count)": (alone, many, "a document by itself", "a frame"),
        f"a pull of a block, of {TOGETHER} in one answer that flows": (
            alone,
            flowing,
            "a document by itself",
            "a frame",
        ),
    }
    report.text(
        "Control messages, counted in two ways. *Message*: the bytes of the body; the published figures speak "
        "of messages, not of what carries them. *With heads*: request and answer with all heads of HTTP, for each "
        "message. The job has four activities. Of pulls everything but the tuples is counted."
    )
    names = ["of", "before", "message", "with heads", "now", "message", "with heads", "smaller", "smaller with heads"]
    rows = []
    for message, (old, new, was, is_) in cases.items():
        cells = [was, *(f"{each:,.0f}" for each in old), is_, *(f"{each:,.0f}" for each in new)]
        rows.append([message, *cells, *(f"{1 - now / then:.0%}" for now, then in zip(new, old, strict=True))])
    report.table(names, rows)
    smaller = {
        message: [1 - now / then for now, then in zip(new, old, strict=True)]
        for message, (old, new, *_) in cases.items()
    }
    for at, counted_as in enumerate(("in messages, as the published figures are", "with heads, which is stricter")):
        missed = [message for message, parts in smaller.items() if parts[at] < CONTROL_GOAL]
        outcome = f"missed by {'; '.join(missed)}" if missed else "met by all"
        report.text(f"The goal of {CONTROL_GOAL:.0%}, counted {counted_as}: {outcome}.")
    report.text(
        "A message alone has one request and one answer, whose heads HTTP/1.1 does not do without (decision 49); those "
        "that share their heads meet the goal in both ways."
    )
    for message, (without_heads, with_heads) in smaller.items():
        report.goal(f"smaller: {message}, messages", without_heads, CONTROL_GOAL, at_least=True)
        report.goal(f"smaller: {message}, with heads", with_heads, CONTROL_GOAL, at_least=True)


def _measured(pieces: Iterator[bytes], sizes: list[int]) -> Iterator[bytes]:
    for each in pieces:
        sizes.append(len(each))
        yield each


def _times(sweep: Mapping[str, Mapping[int, Sum]]) -> float:
    return sweep[WHOLE][SIZES[-1]].seconds / sweep[WHOLE][SIZES[0]].seconds


def _draw(axes: Any, sweep: Mapping[str, Mapping[int, Sum]]) -> None:
    size, seconds = axes
    ratios = [sweep[TUPLES][rows].bytes / sweep[WHOLE][rows].bytes for rows in SIZES]
    bodies = [sweep[TUPLES][rows].payload / sweep[WHOLE][rows].payload for rows in SIZES]
    size.plot(SIZES, [100 * each for each in ratios], marker="o", label="with heads and the context")
    size.plot(SIZES, [100 * each for each in bodies], marker="s", label="bodies of blocks alone")
    below = next((str(rows) for rows, each in zip(SIZES, ratios, strict=True) if each < PUBLISHED_SIZE), "no")
    size.set_title(f"With heads, fewer bytes than published\nfrom {below} rows a block on", fontsize="medium")
    size.axhline(100 * PUBLISHED_SIZE, linestyle="--", color="gray", label="published")
    size.set(xscale="log", xlabel="rows of a block", ylabel="bytes, % of whole documents", ylim=(0, None))
    size.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), frameon=False)
    for case, each in sweep.items():
        seconds.plot(SIZES, [each[rows].seconds / BLOCKS for rows in SIZES], marker="o", label=case)
    more = sweep[TUPLES][SIZES[-1]].seconds / sweep[TUPLES][SIZES[0]].seconds
    title = f"{SIZES[-1]} rows take {more:.1f} times as long as one,\nas whole documents {_times(sweep):.1f} times"
    seconds.set_title(title, fontsize="medium")
    published = [(1 - PUBLISHED_SAVED) * sweep[WHOLE][rows].seconds / BLOCKS for rows in SIZES]
    seconds.plot(SIZES, published, linestyle="--", color="gray", label="whole documents less the published 41 %")
    seconds.set(xscale="log", yscale="log", xlabel="rows of a block", ylabel=f"seconds a block at {RATE:g} kbit/s")
    seconds.yaxis.set_major_formatter("{x:g}")
    seconds.yaxis.set_minor_formatter("{x:g}")
    seconds.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), frameon=False)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m perf.contexts_link", description=__doc__).parse_args()
    with PostgresServer(SETTINGS["postgresql"]) as postgres:
        load(postgres.url)
        print(linked(postgres.url).write())
