"""Sources that hang, talk nonsense or have changed since the plan was made."""

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from dai.client import Options
from dai.errors import CancelledError, DaiError
from dai.streams.cancellation import Cancellation
from dqp.catalog.sources.service import ServiceSource
from dqp.coordinator import Coordinator
from tests.faults.federation import Side, ask, federation, soon
from tests.processes import until

pytestmark = pytest.mark.usefixtures("temporary")
SOURCE = {"dialect": "postgresql", "product": "PostgreSQL", "name": "odd", "kind": "database", "activities": []}
COLUMNS = [{"name": "id", "type": "int4", "arrow": "int32", "nullable": False}]
TABLE = {
    "name": "t",
    "schema": None,
    "kind": "table",
    "columns": COLUMNS,
    "primary_key": ["id"],
    "foreign_keys": [],
    "indexes": [],
    "rows": 5,
}


class Odd(http.server.BaseHTTPRequestHandler):
    """Describes a table as a data service does; ``answer`` is what it does about a query."""

    answer: Callable[["Odd"], None]

    def do_GET(self) -> None:
        described = {"/resources/odd": SOURCE, "/resources/odd/schema": {"tables": [TABLE]}}
        actual = described.get(self.path, {"rows": 5, "size_bytes": 100, "columns": {}})
        self.reply(json.dumps(actual).encode(), "application/json")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).answer(self)

    def reply(self, content: bytes, media_type: str) -> None:
        self.send_response(200)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody wants to know."""


@pytest.fixture
def odd() -> Iterator[Callable[[Callable[[Odd], None]], str]]:
    """Starts a service that answers queries as it is told; its resource's URL."""
    servers = []

    def start(answer: Callable[[Odd], None]) -> str:
        handler = type("Told", (Odd,), {"answer": answer})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/resources/odd"

    yield start
    for each in servers:
        each.shutdown()
        each.server_close()


def refused(coordinator: Coordinator, sql: str) -> DaiError:
    with pytest.raises(DaiError) as caught:
        soon(lambda: ask(coordinator, sql))
    assert "odd" in caught.value.detail
    return caught.value


ARROW = "application/vnd.apache.arrow.stream"
JOINED = "select b.id from pg.big b join odd.t o on b.id = o.id"


@pytest.mark.parametrize("sql", ["select * from odd.t", JOINED])
@pytest.mark.parametrize(
    ("media_type", "content"),
    [
        (ARROW, b""),
        (ARROW, b"<html>no</html>"),
        (ARROW, b"\xff\xff\xff\xff\x10\x00\x00\x00garbage!garbage!"),
        ("text/html", b"<html>no</html>"),
        ("application/json", b"[1]"),
    ],
)
def test_garbage(
    sides: Mapping[str, Side],
    odd: Callable[[Callable[[Odd], None]], str],
    sql: str,
    content: bytes,
    media_type: str,
) -> None:
    url = odd(lambda request: request.reply(content, media_type))
    with federation({"odd": url, "pg": sides["pg"].url}) as coordinator:
        refused(coordinator, sql)
        assert soon(lambda: ask(coordinator, "select count(*) as n from pg.small")).to_pydict() == {"n": [1000]}
    until(lambda: sides["pg"].idle)


def test_a_source_that_hangs_is_given_up(
    sides: Mapping[str, Side], odd: Callable[[Callable[[Odd], None]], str]
) -> None:
    released = threading.Event()

    def hang(_: Odd) -> None:
        released.wait(600)

    url = odd(hang)
    with federation({"odd": url, "pg": sides["pg"].url}) as coordinator:
        sources: dict[str, object] = coordinator.catalog.sources  # type: ignore[assignment]
        sources["odd"] = ServiceSource("odd", url, options=Options(read=0.5))
        assert "in time" in str(refused(coordinator, JOINED))
        until(lambda: sides["pg"].idle)
        released.set()


def test_a_source_that_hangs_can_be_cancelled(
    sides: Mapping[str, Side], odd: Callable[[Callable[[Odd], None]], str]
) -> None:
    asked, released = threading.Event(), threading.Event()

    def hang(_: Odd) -> None:
        asked.set()
        released.wait(600)

    with federation({"odd": odd(hang), "pg": sides["pg"].url}) as coordinator:
        cancellation = Cancellation()

        def cancel() -> None:
            asked.wait(60)
            cancellation.cancel()

        threading.Thread(target=cancel).start()
        with pytest.raises(CancelledError):
            soon(lambda: ask(coordinator, JOINED, cancellation))
        until(lambda: sides["pg"].idle)
        released.set()


def test_a_service_that_hangs_from_the_start(sides: Mapping[str, Side]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/resources/odd"
        with federation({"odd": url, "pg": sides["pg"].url}) as coordinator:
            refused(coordinator, "select * from odd.t")
            assert soon(lambda: ask(coordinator, "select count(*) as n from pg.small")).to_pydict() == {"n": [1000]}


@pytest.mark.parametrize(
    ("change", "back", "right"),
    [
        ("drop column name", "add column name varchar(20) default 'again'", None),
        ("rename column name to title", "rename column title to name", None),
        ("alter column name type char(12)", "alter column name type varchar(20)", 999),
        ("add column more int", "drop column more", 999),
    ],
)
def test_a_schema_that_changed_after_planning(
    sides: Mapping[str, Side], change: str, back: str, right: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dqp.catalog.reflection.FRESH_SECONDS", 0.0)
    pg = sides["pg"].database
    pg.run("create table changing as select id, name::varchar(20) as name from small")
    sql = "select c.id, c.name from pg.changing c join maria.small s on c.id = s.id where s.id < 1000"
    try:
        with federation({alias: each.url for alias, each in sides.items()}) as coordinator:
            assert ask(coordinator, sql).num_rows == 999
            pg.run(f"alter table changing {change}")
            if right is None:
                with pytest.raises(DaiError, match="name"):
                    soon(lambda: ask(coordinator, sql))
            else:
                assert soon(lambda: ask(coordinator, sql)).num_rows == right
            until(lambda: all(each.idle for each in sides.values()))
            pg.run(f"alter table changing {back}")
            assert soon(lambda: ask(coordinator, sql)).num_rows == 999
    finally:
        pg.run("drop table changing")
