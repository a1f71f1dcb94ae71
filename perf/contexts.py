"""Blocks of a stream in frames, and the store of their contexts.

A stream is pulled in blocks as the client does by itself (frames, as many blocks a request as pay) and as it did before
(one block a request), beside ``fetchall`` of psycopg and one answer that streams the same blocks without a session:
what the session costs is the difference. Sizes are those of one block of 100 rows. The store is asked over HTTP, as a
client asks it.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from urllib.parse import urlsplit

import psycopg

import dai
from dai.client import Resource
from dai.formats import frames
from perf.blocks import fetchall, pipeline, synchronous
from perf.harness import Report, measured, median, ratio, shown
from perf.world import World, service

TABLE, ROWS = "protein_goterm", 16_803
SIZES = {100: 8.0, 1_000: 2.5}
"""Rows a block, and how many times ``fetchall`` the whole table may take."""
FORMS = {"webrowset": "WebRowSet", "arrow": "Arrow"}
PEER = "psycopg, fetchall"
REQUESTS = 300
DOCUMENTS = "application/vnd.webrowset+xml, application/vnd.apache.arrow.stream"


def run(world: World, rounds: int) -> Report:
    report = Report("contexts", "Blocks without their static part")
    with service({"pg": world.postgres.url}) as (base, _), psycopg.connect(world.postgres.dsn) as connection:
        with closing(dai.connect(f"{base}/pg")) as resource:
            _speed(report, resource, connection, rounds)
            _fixed(report, resource, rounds)
            _sizes(report, resource)
        _store(report, base)
    return report


def _speed(report: Report, resource: Resource, connection: psycopg.Connection, rounds: int) -> None:
    peer: Callable[[], None] = partial(fetchall, connection, f"select * from {TABLE}", ROWS)
    rows = []
    for size, limit in SIZES.items():
        cases = {PEER: peer}
        for form, name in FORMS.items():
            document = pipeline(f"select * from {TABLE}", size, form)
            cases[f"{name}, one block a request"] = partial(_pulled, resource, document, 1)
            cases[f"{name}, frames, in a session"] = partial(_pulled, resource, document, None)
            cases[f"{name}, frames"] = partial(_pulled_at_once, resource, document)
            cases[f"{name}, one streamed answer"] = partial(
                synchronous, resource, f"select * from {TABLE}", size, form, ROWS
            )
        took = measured(cases, rounds)
        rows += [[f"{size:,}", name, shown(median(took[name])), f"{ratio(took, name, PEER):.2f}"] for name in took]
        for name in FORMS.values():
            over = ratio(took, f"{name}, frames", PEER)
            report.goal(f"{name}, blocks of {size:,} rows in frames / fetchall", over, limit)
    report.text(f"{TABLE}, {ROWS:,} rows, until all are in the caller's hand as record batches; {rounds} rounds.")
    report.table(["rows a block", "case", "time", "ratio to fetchall"], rows)


def _fixed(report: Report, resource: Resource, rounds: int) -> None:
    """What a pull costs besides its blocks: the job, the session, and the request that ends it."""
    sql = f"select * from {TABLE} limit 1"
    cases: dict[str, Callable[[], None]] = {}
    for form, name in FORMS.items():
        cases[f"{name}, frames"] = partial(_pulled_at_once, resource, pipeline(sql, 1_000, form), 1)
        cases[f"{name}, one streamed answer"] = partial(synchronous, resource, sql, 1_000, form, 1)
    took = measured(cases, rounds * 10)
    report.text("The same with one row: what a pull costs once, however many blocks follow.")
    report.table(["case", "time"], [[name, shown(median(each))] for name, each in took.items()])


def _pulled(resource: Resource, document: bytes, count: int | None) -> None:
    with resource.session() as session:
        resource.perform(document, session=session.id).check()
        count_of = sum(batch.num_rows for batch in session.pull("out", count).result())
        if count_of != ROWS:
            raise AssertionError(f"{count_of} rows instead of {ROWS}")


def _pulled_at_once(resource: Resource, document: bytes, rows: int = ROWS) -> None:
    with resource.pull(document, "out") as result:
        count_of = sum(batch.num_rows for batch in result)
    if count_of != rows:
        raise AssertionError(f"{count_of} rows instead of {rows}")


def _sizes(report: Report, resource: Resource) -> None:
    """Of the block in the middle."""
    sizes: dict[str, dict[str, int]] = {}
    for form, name in FORMS.items():
        document = pipeline(f"select * from {TABLE} limit 1000", 100, form)
        with resource.session() as session:
            resource.perform(document, session=session.id).check()
            path = session.stream_path("out")

            def pull(asked: object, path: str = path) -> bytes:
                headers = {"Accept": str(asked)}
                reply = resource.service.transport.send("GET", f"{path}/blocks/5?wait=20", headers=headers)
                with reply.body:
                    return reply.body.read_all()

            for number in range(5):
                with resource.service.transport.send("GET", f"{path}/blocks/{number}?wait=20").body as body:
                    body.read_all()
            (whole,) = frames.read(pull(frames.Asked()))
            sizes[name] = {
                "a document of its own": len(whole.payload),
                "the block as it stands in the document": len(pull(DOCUMENTS)),
                "a frame": len(pull(frames.Asked(whole.context))),
                "a compressed frame": len(pull(frames.Asked(whole.context, True))),
            }
    full = sizes["WebRowSet"]["a document of its own"]
    report.text("Bytes of a block of 100 rows, heads of answers not counted.")
    report.table(
        ["form", *FORMS.values()],
        [
            [form, *(f"{sizes[name][form]:,} ({sizes[name][form] / full:.1%})" for name in FORMS.values())]
            for form in sizes["WebRowSet"]
        ],
    )
    report.goal("a block of 100 rows / its full XML", sizes["WebRowSet"]["a compressed frame"] / full, 0.06)


def _store(report: Report, base: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(base).netloc)
    contents = [os.urandom(2500) for _ in range(REQUESTS)]
    ids = [hashlib.sha256(each).hexdigest() for each in contents]
    calls: dict[str, Iterator[Callable[[], None]]] = {
        "put, durable": (
            partial(_asked, connection, "PUT", id, content) for id, content in zip(ids, contents, strict=True)
        ),
        "get": (partial(_asked, connection, "GET", id, None) for id in ids),
    }
    rows, p50 = [], {}
    for name, each in calls.items():
        took = sorted(_timed(call) for call in each)
        p50[name] = median(took)
        rows.append([name, shown(p50[name]), shown(took[int(len(took) * 0.95)])])
    connection.close()
    report.text(f"The store over HTTP: {REQUESTS} contexts of 2,500 bytes, one after the other.")
    report.table(["call", "p50", "p95"], rows)
    report.goal("get of a context, p50, ms", p50["get"] * 1e3, 1)
    report.goal("durable put of a context, p50, ms", p50["put, durable"] * 1e3, 6)


def _asked(connection: http.client.HTTPConnection, method: str, id: str, body: bytes | None) -> None:
    headers = {} if body is None else {"Content-Type": "application/octet-stream"}
    connection.request(method, f"/contexts/{id}", body, headers)
    response = connection.getresponse()
    content = response.read()
    if response.status not in (200, 201):
        raise AssertionError(content)


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
