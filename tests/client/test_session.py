import re

import pyarrow as pa
import pytest

from dai.client import Service, Session
from dai.client.service import Resource
from dai.client.testing import Request, Scripted, ScriptedServer
from dai.errors import BackPressureError, BusyError, ConflictError, DataError, StatementError
from dai.formats import media_type
from tests.client.replies import TABLE, arrow_bytes, pieces, problem, said


class Streams:
    """A service with one session: what was pushed can be pulled."""

    def __init__(self, blocks: list[bytes] | None = None) -> None:
        self.blocks = blocks or []
        self.media_type = media_type("arrow")
        self.last = False
        self.ended = False

    def __call__(self, request: Request) -> Scripted:
        if request.method == "POST":
            return said({"id": "s1"}, 201)
        if request.method == "DELETE":
            self.ended = True
            return Scripted(204)
        number = int(re.search(r"/sessions/s1/streams/[^/]+/blocks/(\d+)", request.target)[1])
        if request.method == "PUT":
            assert number == len(self.blocks)
            self.blocks.append(request.body)
            self.media_type = request.headers["content-type"]
            self.last = "last=true" in request.target
            return Scripted(204)
        if number >= len(self.blocks):
            return Scripted(204)
        return Scripted(200, self.blocks[number], {"Content-Type": self.media_type})


def session_of(server: ScriptedServer) -> Session:
    return Resource(Service(server.url), "data", {}).session(timeout=60)


def test_pulling_blocks() -> None:
    streams = Streams([b"a", b"bc", b""])
    with ScriptedServer(streams) as server:
        with session_of(server) as session:
            assert session.id == "s1"
            assert list(session.pull("out")) == [b"a", b"bc", b""]
            assert list(session.pull("out", start=1)) == [b"bc", b""]
        assert streams.ended
        assert server.connections == 1


def test_pulled_blocks_are_a_result() -> None:
    with ScriptedServer(Streams(pieces(arrow_bytes(), 100))) as server, session_of(server) as session:
        result = session.pull("out").result(progress=False)
        assert result.arrow().equals(TABLE)
        assert result.received == len(arrow_bytes())


def test_pulled_blocks_may_be_large() -> None:
    table = pa.table({"n": list(range(1000))})
    data = arrow_bytes(table, 500)
    with ScriptedServer(Streams(pieces(data, 3000))) as server, session_of(server) as session:
        assert session.pull("out").result(progress=False).arrow().equals(table)


def test_a_lost_block_is_asked_for_again() -> None:
    lost = Scripted(status=0, broken=True)
    block = Scripted(200, b"block", {"Content-Type": "text/csv"})
    with ScriptedServer(said({"id": "s1"}), lost, block, Scripted(204)) as server:
        assert list(session_of(server).pull("out")) == [b"block"]
        numbers = [each.target.partition("?")[0].rpartition("/")[2] for each in server.requests[1:]]
        assert numbers == ["0", "0", "1"]


def test_a_block_that_is_not_there_yet_is_asked_for_again() -> None:
    with ScriptedServer(said({"id": "s1"}), Scripted(202), Scripted(202), Scripted(200, b"x"), Scripted(204)) as server:
        assert list(session_of(server).pull("out")) == [b"x"]


def test_the_error_of_the_producer_is_raised() -> None:
    failed = problem(400, type="sql-error", detail="division by zero")
    with ScriptedServer(said({"id": "s1"}), Scripted(200, b"x"), failed) as server:
        pull = session_of(server).pull("out")
        assert pull.block() == b"x"
        with pytest.raises(StatementError, match="division by zero"):
            pull.block()


@pytest.mark.parametrize("given", [TABLE, TABLE.to_batches(), TABLE.to_reader(), iter(TABLE.to_batches())])
def test_pushing_tuples(given: object) -> None:
    streams = Streams()
    with ScriptedServer(streams) as server, session_of(server) as session:
        assert session.push("in", given, format="arrow", blocksize=10) == len(streams.blocks)
        assert streams.last
        assert pa.ipc.open_stream(b"".join(streams.blocks)).read_all().equals(TABLE)


def test_pushing_bytes() -> None:
    streams = Streams()
    with ScriptedServer(streams) as server, session_of(server) as session:
        assert session.push("in", [b"a", b"b"], format="csv", last=False) == 2
        assert not streams.last
        assert session.push("in", b"c", format="csv", first=2) == 3
        assert streams.blocks == [b"a", b"b", b"c"]
        assert streams.last
        assert streams.media_type == "text/csv"
        for wrong in (7, [7]):
            with pytest.raises(DataError, match="Blocks must be"):
                session.push("in", wrong)


def test_pushing_nothing_ends_the_stream() -> None:
    streams = Streams()
    with ScriptedServer(streams) as server, session_of(server) as session:
        session.push("in", [])
        assert streams.blocks == [b""]
        assert streams.last


@pytest.mark.parametrize(("status", "code"), [(429, "back-pressure"), (503, "busy")])
def test_a_push_waits_until_there_is_room(status: int, code: str) -> None:
    full = problem(status, type=code, detail="There is no room.", retry_after=0)
    with ScriptedServer(said({"id": "s1"}), *[full] * 8, Scripted(204)) as server:
        assert session_of(server).push("in", b"a") == 1
        assert [each.body for each in server.requests[1:]] == [b"a"] * 9


def test_a_push_into_a_service_that_stays_full_gives_up() -> None:
    full = problem(503, type="busy", detail="There is no room in the service.", retry_after=1)
    with (
        ScriptedServer(said({"id": "s1"}), lambda _: full) as server,
        pytest.raises(BusyError, match="no room in the service"),
    ):
        session_of(server).push("in", b"a", patience=0.05)


@pytest.mark.parametrize(
    ("streams", "said_of_it"),
    [
        (
            [("nope", "input", 2, 2), ("in", "input", 0, 0), ("out", "output", 0, 0)],
            r"^Nobody reads the stream 'nope' of this session; is there an inputStream of that name\?\n.*in .*out",
        ),
        ([("nope", "input", 2, 2)], r"(?s)^Nobody reads.*no other stream"),
        ([("nope", "input", 5, 2)], r"(?s)^The reader of the stream 'nope' made no room.*after 3 blocks.*patience="),
    ],
)
def test_a_push_that_nobody_reads_gives_up(streams: list[tuple], said_of_it: str) -> None:
    members = ("name", "direction", "next", "blocks")
    described = {"id": "s1", "streams": [dict(zip(members, each, strict=True)) for each in streams]}
    full = problem(429, type="back-pressure", detail="The stream is full.", retry_after=1)

    def answer(request: Request) -> Scripted:
        return full if request.method == "PUT" else said(described)

    with ScriptedServer(said({"id": "s1"}), answer) as server:
        with pytest.raises(BackPressureError, match=said_of_it):
            session_of(server).push("nope", b"a", patience=0.05)
        assert server.requests[1].target.endswith("/blocks/0?last=true&wait=0")
        assert server.requests[-1].target == "/sessions/s1"


def test_a_block_out_of_order_is_told() -> None:
    conflict = problem(409, type="conflict", detail="Block 3 is expected.", expected=3)
    with (
        ScriptedServer(said({"id": "s1"}), conflict, Scripted(204)) as server,
        session_of(server) as session,
        pytest.raises(ConflictError, match="3 is expected"),
    ):
        session.push("in", b"a")


def test_the_first_failure_counts() -> None:
    broken = problem(500, type="internal", detail="It broke.")
    with ScriptedServer(said({"id": "s1"}), broken) as server, pytest.raises(ZeroDivisionError), session_of(server):
        _ = 1 / 0


def test_a_session_that_somebody_else_made_is_not_ended() -> None:
    streams = Streams([b"a"])
    with ScriptedServer(streams) as server:
        with Resource(Service(server.url), "data", {}).session(id="s1") as session:
            assert list(session.pull("out")) == [b"a"]
        assert not streams.ended
