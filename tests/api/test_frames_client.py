"""Frames, read by the client: rows once, whatever breaks off."""

from functools import partial
from itertools import cycle
from typing import Any

import pyarrow as pa
import pytest
from starlette.types import Receive, Scope, Send

from dai.api.blocks import pulling
from dai.api.blocks.flowing import Flowing
from dai.client import Resource
from dai.client.streams import pull
from dai.errors import DaiError, DataError, TruncatedError
from dai.formats import format_named
from dai.formats.frames import MEDIA_TYPE, Frame
from tests.api.conftest import FAILS_LATE, streamed
from tests.api.framed import ARROW, CSV, PAYLOAD, SQL
from tests.processes import until


def joined(resource: Resource, session: str) -> bool:
    """The stream has a block that one may join after."""
    return any(each["next"] > 0 for each in resource.service.get(f"/sessions/{session}")["streams"])


@pytest.mark.parametrize("document", [streamed(SQL), ARROW, CSV, PAYLOAD])
def test_the_client_reads_frames_by_itself(
    book_resource: Resource, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[str | None] = []
    send = type(book_resource.service.transport).send

    def sent(self: Any, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        reply = send(self, method, path, *arguments, **options)
        if "/blocks/" in path and reply.status == 200:
            kinds.append(reply.media_type)
        return reply

    monkeypatch.setattr(type(book_resource.service.transport), "send", sent)
    for start in (0, 1):
        kinds.clear()
        with book_resource.session() as session:
            book_resource.perform(document, session=session.id, blocksize=10).check()
            if start and document == CSV:
                continue
            until(partial(joined, book_resource, session.id))
            pull = session.pull("out", start=start)
            batches = list(pull.result())
            assert pull.next == 25
        table = pa.Table.from_batches(batches)
        numbers = [int(each) for each in table.column("i").to_pylist()]
        assert numbers == list(range(start * 10, 250))
        assert set(kinds) == {"text/csv" if document == CSV else MEDIA_TYPE}
        if document == ARROW:
            assert [each.num_rows for each in batches] == [10] * (25 - start), "block by block"
        assert len(kinds) < 25 or document == CSV


@pytest.mark.parametrize("document", [streamed(SQL), ARROW])
def test_behind_a_full_answer_the_next_one_is_on_its_way(
    book_resource: Resource, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: list[int] = []
    ask = pull.Pull._ask

    def asked(pulling: pull.Pull, behind: int) -> Any:
        reply = ask(pulling, behind)
        if behind:
            ahead.append(behind)
            # what is being decoded is not acknowledged by that
            address = f"{pulling._path}/blocks/{pulling.next - behind}?behind={behind}"
            with book_resource.service.transport.send("GET", address).body as body:
                assert body.read_all()
        return reply

    monkeypatch.setattr(pull, "REQUEST_BYTES", 2000)
    monkeypatch.setattr(pull.Pull, "_ask", asked)
    with book_resource.session() as session:
        book_resource.perform(document, session=session.id, blocksize=10).check()
        assert session.pull("out").result().arrow().column("i").to_pylist() == list(range(250))
    assert ahead


def check_each_row_comes_once(resource: Resource, document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several answers."""
    monkeypatch.setattr(pull, "REQUEST_BYTES", 3000)
    monkeypatch.setattr(pulling, "FIRST", pulling.FIRST.model_copy(update={"size": 3000}))
    with resource.pull(document, "out", blocksize=10) as result:
        assert result.arrow().column("i").to_pylist() == list(range(250))
    with resource.session() as session:
        session.perform(document, blocksize=10)
        pulled = session.pull("out")
        assert pulled.result().arrow().column("i").to_pylist() == list(range(250))
        assert pulled.next == 25


@pytest.mark.parametrize("document", [streamed(SQL), ARROW])
@pytest.mark.parametrize("bytes_before", [0, 1, 70, 1_000, 20_000])
def test_what_did_not_arrive_of_an_answer_is_asked_for_again(
    book_resource: Resource, document: str, bytes_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second answer breaks off behind so many bytes."""

    async def cut(response: Flowing, scope: Scope, receive: Receive, send: Send) -> None:
        sent = 0

        async def some(message: Any) -> None:
            nonlocal sent
            body = message.get("body", b"")
            if cuts and sent + len(body) > bytes_before:
                await send({**message, "body": bytes(body[: bytes_before - sent]), "more_body": True})
                raise TruncatedError("The connection is cut.")
            sent += len(body)
            await send(message)

        cuts = next(cutting)
        await call(response, scope, receive, some)

    call, cutting = Flowing.__call__, cycle([True, False])
    monkeypatch.setattr(Flowing, "__call__", cut)
    check_each_row_comes_once(book_resource, document, monkeypatch)


def test_an_answer_that_always_breaks_off_is_a_failure(
    book_resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> bytes:
        raise TruncatedError("The connection is cut.")

    monkeypatch.setattr("dai.api.blocks.flowing.framed_blocks", broken)
    with book_resource.session() as session:
        session.perform(streamed(SQL))
        with pytest.raises(TruncatedError):
            session.pull("out").result().arrow()


@pytest.mark.parametrize("document", [streamed(SQL), ARROW, PAYLOAD])
def test_a_service_from_before_that_knows_no_flow(
    book_resource: Resource, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dai.api.blocks.pulling.wants_flow", lambda *_: False)
    check_each_row_comes_once(book_resource, document, monkeypatch)


def test_the_client_pulls_documents_where_it_is_told_how_many(book_resource: Resource) -> None:
    with book_resource.session() as session:
        book_resource.perform(PAYLOAD, session=session.id, blocksize=10).check()
        blocks = list(session.pull("out"))
        assert len(blocks) == 25
        assert format_named("webrowset").decode(blocks).table().num_rows == 250
    with book_resource.session() as session:
        book_resource.perform(PAYLOAD, session=session.id, blocksize=10).check()
        assert session.pull("out", 10).result().arrow().num_rows == 250


@pytest.mark.parametrize("document", [streamed(SQL), ARROW, CSV])
def test_the_last_block_is_acknowledged_unless_the_session_ends(book_resource: Resource, document: str) -> None:
    def held() -> list[int]:
        return [each["blocks"] for each in book_resource.service.get(f"/sessions/{session.id}")["streams"]]

    with book_resource.session() as session:
        book_resource.perform(document, session=session.id).check()
        # done before it is read, so that the last block is known to be the last
        until(lambda: book_resource.service.get(f"/sessions/{session.id}")["streams"][0]["ended"])
        assert session.pull("out").result().arrow().num_rows == 250
        assert held() == [1], "nobody asked for a block after it"
        session.pull("another")
        assert held() == [0]


def test_an_empty_stream(book_resource: Resource) -> None:
    with book_resource.session() as session:
        book_resource.perform(streamed("select i, s from numbers where i < 0"), session=session.id).check()
        table = session.pull("out").result().arrow()
    assert (table.num_rows, table.column_names) == (0, ["i", "s"])


def test_a_failure_on_the_way_is_raised(book_resource: Resource) -> None:
    with book_resource.session() as session:
        book_resource.perform(streamed(FAILS_LATE), session=session.id, blocksize=10_000)
        until(partial(joined, book_resource, session.id))
        with pytest.raises(DaiError, match="overflow"):
            session.pull("out").result().arrow()


def test_a_block_with_another_number_is_refused(book_resource: Resource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dai.api.blocks.framing.framed", lambda *_, **__: Frame("0" * 64, "s", 7, 0, b"x", 1))
    with book_resource.session() as session:
        book_resource.perform(streamed(SQL), session=session.id).check()
        with pytest.raises(DataError, match="block 7 came"):
            session.pull("out").result().arrow()
