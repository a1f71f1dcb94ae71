"""A kept result read to its end although connections are lost: what is missing is asked for as a byte range."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from dai.client.http.body import PIECE
from dai.client.http.transport import Reply, Transport
from dai.errors import DaiError, TruncatedError, UnreachableError

SLICE = 1 << 20
"""Bytes read between two points from which reading can go on."""


def resumable(reply: Reply) -> bool:
    """The service serves ranges of this, can tell whether it is still the same, and sends the bytes as they are."""
    headers = reply.headers
    return (
        headers.get("accept-ranges", "").lower() == "bytes"
        and headers.get("etag", "").startswith('"')
        and headers.get("content-encoding", "identity") == "identity"
    )


class Resumed:
    """A source that outlives its connection. Gives up after ``retries`` losses without a byte between them."""

    def __init__(self, transport: Transport, path: str, headers: Mapping[str, str], reply: Reply) -> None:
        self._transport, self._path = transport, path
        self._headers = {**headers, "Accept-Encoding": "identity", "If-Range": reply.headers["etag"]}
        self._body = reply.body
        self._losses = 0
        self.received = 0

    def read1(self, size: int = PIECE) -> bytes:
        while True:
            try:
                piece = self._body.read1(size)
            except (TruncatedError, UnreachableError) as lost:
                self._go_on(lost)
                continue
            self._arrived(len(piece))
            return piece

    def readinto(self, buffer: memoryview) -> int:
        count = 0
        while count < len(buffer):
            part = buffer[count : count + SLICE]
            try:
                read = self._body.readinto(part)
            except (TruncatedError, UnreachableError) as lost:
                # What the slice got is asked for again.
                self._go_on(lost)
                continue
            self._arrived(read)
            count += read
            if read < len(part):
                break
        return count

    def _arrived(self, count: int) -> None:
        self.received += count
        if count:
            self._losses = 0

    def _go_on(self, lost: DaiError) -> None:
        options = self._transport.options
        if self._losses >= options.retries:
            raise lost
        time.sleep(options.backoff * 2**self._losses)
        self._losses += 1
        reply = self._transport.send("GET", self._path, headers={**self._headers, "Range": f"bytes={self.received}-"})
        begins = re.match(r"bytes (\d+)-", reply.headers.get("content-range", ""))
        if reply.status != 206 or begins is None or int(begins[1]) != self.received:
            # It has changed meanwhile: the parts would not fit together.
            reply.body.close()
            raise lost
        self._body = reply.body

    def close(self) -> None:
        self._body.close()
