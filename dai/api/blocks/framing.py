"""Blocks of a session's stream as frames: payloads for readers that have the context, whole documents for others.

A stream's static part is put into the context store when its first frames leave. Only readers that
need it there wait for that. If the store cannot take it, the rows leave as whole documents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from starlette.requests import Request

from dai.api.requests.head import listed
from dai.api.requests.negotiation import best
from dai.api.service import Service
from dai.errors import DaiError
from dai.formats import form_of, format_named
from dai.formats.frames import (
    DCZ,
    LARGE,
    MEDIA_TYPE,
    MOST_STATIC,
    Asked,
    Frame,
    accepts_dcz,
    context_of,
    dictionary_coded,
    framed,
    payloads_of,
    requested,
)
from dai.security.identity import Caller
from dai.service.sessions import Session
from dai.streams.mailbox import Mailbox
from dai.streams.stream import Block

_NOTHING_SAID = Asked()
MOST_REPEATED = 8 << 20
"""Bytes of static parts in an answer of whole documents; with more of them only its first block is one."""


def has_context(mailbox: Mailbox) -> bool:
    """The documents of the stream have a static part that may travel by itself."""
    form = form_of(mailbox.media_type) if 0 < len(mailbox.static) <= MOST_STATIC else None
    return form is not None and format_named(form).tail is not None


def wants_frames(accept: str | None, mailbox: Mailbox) -> bool:
    """As Accept says; where it leaves both, as the document said that fills the stream."""
    if accept is None and not mailbox.framed:
        return False
    own = mailbox.media_type
    offers = (MEDIA_TYPE, own) if mailbox.framed else (own, MEDIA_TYPE)
    return best(accept, offers) == MEDIA_TYPE and has_context(mailbox)


def wants_flow(accept: str | None, mailbox: Mailbox) -> bool:
    """Whether frames are to leave as their blocks are made."""
    said = requested(accept) if accept is not None else None
    return said is not None and said[0].flow and wants_frames(accept, mailbox)


async def framed_blocks(
    service: Service,
    session: Session,
    mailbox: Mailbox,
    number: int,
    blocks: Sequence[Block],
    accept: str | None,
    *,
    begun: bool = False,
) -> bytes:
    """The frames of the blocks from ``number`` on. A block is a whole document unless the reader names the context, has
    got it with the first frame of those that it asks for, or the stream was opened for payloads and this is not its
    first block. ``begun``: other frames of the same answer have left."""
    said = requested(accept) if accept is not None else None
    wanted = said[0] if said is not None else _NOTHING_SAID
    static = mailbox.static
    context = context_of(static)
    has = begun or wanted.context == context
    promised = mailbox.framed and wanted.context is None
    stored = begun or await published(service, session, mailbox, wait=promised)
    packed = wanted.compressed and (has or (said is not None and len(blocks) > 1))

    once = said is not None or len(static) * len(blocks) > MOST_REPEATED

    def frame(at: int, block: Block) -> Frame:
        knows = has or (once and at > number)
        whole = not (knows or (promised and stored and at))
        return framed(context, session.id, at, block, static, whole=whole, compressed=packed and knows)

    def frames() -> bytes:
        return b"".join(part for at, block in enumerate(blocks, number) for part in frame(at, block).parts())

    if packed and sum(map(len, blocks)) > LARGE:
        return await asyncio.get_running_loop().run_in_executor(service.files, frames)
    return frames()


async def published(service: Service, session: Session, mailbox: Mailbox, *, wait: bool = True) -> bool:
    """Puts the context of a stream into the store, for the owner of the session. Whether it is there."""
    try:
        publishing = service.contexts.publish(mailbox.static, mailbox.media_type, Caller(session.owner or ""))
        if publishing is not None and wait:
            await asyncio.wrap_future(publishing)
        elif publishing is not None:
            publishing.add_done_callback(_heard)
    except DaiError:
        return False
    return True


async def dictionary_coded_blocks(
    service: Service, request: Request, mailbox: Mailbox, body: bytes
) -> tuple[bytes, dict[str, str]]:
    """The blocks for a reader who has their context as a dictionary (RFC 9842), with what the head of the answer says;
    as they are for others."""
    available = request.headers.get("available-dictionary")
    if available is None or not has_context(mailbox):
        return body, {}
    vary = {"vary": "Accept-Encoding, Available-Dictionary"}
    static, codings = mailbox.static, listed(request, "accept-encoding") or ""
    if not accepts_dcz(codings, available, context_of(static)):
        return body, vary
    if len(body) > LARGE:
        loop = asyncio.get_running_loop()
        body = await loop.run_in_executor(service.files, dictionary_coded, body, static)
    else:
        body = dictionary_coded(body, static)
    return body, {"content-encoding": DCZ, **vary}


async def read_frames(
    service: Service, body: bytes, static: bytes, number: int, most: int
) -> tuple[list[tuple[bytes, int]], bytes]:
    """As ``payloads_of``, off the event loop where that takes long."""
    if len(body) > LARGE:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(service.files, payloads_of, body, static, number, most)
    return payloads_of(body, static, number, most)


def _heard(done: Future[Any]) -> None:
    """The rows leave in any case."""
    if not done.cancelled():
        done.exception()
