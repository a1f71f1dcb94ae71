"""The session's ends: what a client or another service pulls from and pushes into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from dai.errors import ClosedError, DaiError, InternalError
from dai.perform.activity import Activity, Context, Input, Output, input, output
from dai.streams.stream import ByteStream


@dataclass(frozen=True, kw_only=True)
class OutputStream(Activity):
    """A stream of the session, by this activity's name, from which blocks are pulled.

    The producer is held while the reader is behind; when the reader goes away for good the pipeline is stopped.
    """

    example: ClassVar[str] = """
        <outputStream name="results">
          <fromLocal from="document"/>
        </outputStream>"""

    source: Input[ByteStream] = input("fromLocal")

    def run(self, context: Context) -> None:
        mailbox = context.session.output(self.name)
        try:
            source = context.bytes(self.source)
            mailbox.media_type = source.media_type
            mailbox.fill(source, context.cancellation)
        except DaiError as error:
            mailbox.fail(error)
            raise
        except BaseException:
            mailbox.fail(InternalError("The service failed while it made this stream."))
            raise


@dataclass(frozen=True, kw_only=True)
class InputStream(Activity):
    """A stream of the session, by this activity's name, into which blocks are pushed.

    Who pushes is held while the pipeline is behind, and refused once the request has ended.
    """

    example: ClassVar[str] = """
        <inputStream name="upload">
          <toLocal name="uploaded"/>
        </inputStream>"""
    tabular: ClassVar[Literal["no"]] = "no"

    result: Output[ByteStream] = output("toLocal")

    def run(self, context: Context) -> ByteStream:
        mailbox = context.session.input(self.name)

        def close() -> None:
            if not mailbox.drained:
                mailbox.discard(ClosedError("The request that read this stream has ended."))

        return ByteStream("application/octet-stream", mailbox.blocks(context.cancellation), close)
