"""A document and the first blocks of its stream by one request."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote

from dai.client.documents import as_bytes
from dai.client.http.transport import Reply, Transport
from dai.client.streams.pull import Pull, flowing
from dai.client.streams.session import Performing, Session
from dai.errors import ParameterError

_UNKNOWN = "There is no parameter 'pull' here."
"""The error of an older service."""


def pull_at_once(
    resource: Performing, transport: Transport, path: str, document: Any, stream: str, blocksize: int | None
) -> Pull:
    """``path``: of the resource. The session of the stream ends with the pull, which does not wait for that: where the
    service does not hear of it, it ends by its time-out."""
    body, options = as_bytes(document), f"&blocksize={blocksize}" if blocksize else ""
    headers = {"Content-Type": "application/xml", "Accept": flowing(transport)}
    try:
        reply = transport.send("POST", f"{path}/perform?pull={quote(stream, safe='')}{options}", body, headers)
    except ParameterError as error:
        if error.detail != _UNKNOWN:
            raise
        session = Session.create(resource, transport)
        try:
            resource.perform(body, session=session.id, blocksize=blocksize).check()
        except BaseException:
            session.close()
            raise
        return _pull(session, stream)
    return _pull(Session(resource, transport, reply.headers["x-dai-session"]), stream, reply)


def _pull(session: Session, stream: str, begun: Reply | None = None) -> Pull:
    def owing(_: object) -> None:
        """The last block is not acknowledged: the session ends."""

    ending = partial(session.transport.tell, "DELETE", session.path)
    return Pull(session.transport, session.stream_path(stream), owing=owing, begun=begun, ending=ending)
