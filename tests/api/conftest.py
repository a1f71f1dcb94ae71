"""A service on a real server over loopback, with a SQLite resource `book` that holds a table `numbers`."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

import dai
from dai.api.server.serve import Background, background
from dai.client import Resource
from dai.config import Config, parse
from tests.processes import WRITABLE

ROWS = 30_000
DOCUMENT = (
    """<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">{}</gridDataServicePerform>"""
)
ENDLESS = "with recursive c(i) as (select 1 union all select i + 1 from c) select i from c"
FAILS_LATE = (
    "with recursive c(i) as (select 1 union all select i + 1 from c limit 200000) "
    "select case when i = 199999 then abs(-9223372036854775808) else i end as i, "
    "'a text that takes some room in every row of this result' as s from c"
)
XML = {"Content-Type": "application/xml"}

Serve = Callable[..., Background]


def statement(sql: str, name: str = "q", output: str = "rows") -> str:
    escaped = sql.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<sqlQueryStatement name="{name}"><expression>{escaped}</expression>'
        f'<webRowSetStream name="{output}"/></sqlQueryStatement>'
    )


def streamed(sql: str, stream: str = "out") -> str:
    """A document without end points: its rows wait in an output stream."""
    return DOCUMENT.format(statement(sql) + f'<outputStream name="{stream}"><fromLocal from="rows"/></outputStream>')


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("book") / "book.db"
    connection = sqlite3.connect(path)
    connection.execute("create table numbers (i integer primary key, s text)")
    connection.executemany("insert into numbers values (?, ?)", ((i, f"number {i}") for i in range(ROWS)))
    connection.commit()
    connection.close()
    return f"sqlite:///{path}"


def configured(directory: Path, resources: dict[str, Any], **sections: Any) -> Config:
    """Whoever may read may write, unless callers are identified or a ``policy`` (None: none) says otherwise."""
    if not sections.get("identity"):
        sections = WRITABLE | sections
    if sections.get("policy", {}) is None:
        del sections["policy"]
    service = {
        "port": 0,
        "state": f"sqlite:///{directory / 'state.db'}",
        "results_directory": str(directory / "results"),
        "grace": 0.2,
        **sections.pop("service", {}),
    }
    return parse({"service": service, "resources": resources, **sections}, directory, {})


@pytest.fixture
def serve(tmp_path: Path, book: str) -> Iterator[Serve]:
    """Starts a service: keyword arguments are sections of its configuration, ``http`` the server's parser."""
    with ExitStack() as stack:

        def start(http: str | None = None, **sections: Any) -> Background:
            resources = {"book": {"url": book}, **sections.pop("resources", {})}
            return stack.enter_context(background(configured(tmp_path, resources, **sections), http))

        yield start


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, book: str) -> Iterator[Background]:
    """One service for the tests of a module that do not change its configuration."""
    with background(configured(tmp_path_factory.mktemp("service"), {"book": {"url": book}})) as running:
        yield running


@pytest.fixture
def client(shared: Background) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared.url, timeout=60) as made:
        yield made


@pytest.fixture
def anybody(shared: Background) -> Iterator[httpx.Client]:
    """Its sessions are ended: jobs that fill streams have places."""
    with httpx.Client(base_url=shared.url, timeout=60) as client:
        yield client
        for each in shared.service.sessions.all():
            client.delete(f"/sessions/{each.id}")


@pytest.fixture(params=["identity", "zstd"])
def book_resource(request: pytest.FixtureRequest, shared: Background) -> Iterator[Resource]:
    resource = dai.connect(f"{shared.url}/book", compression=request.param)
    yield resource
    resource.service.close()
