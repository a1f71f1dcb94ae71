"""The streams of a session, which a client or another service pulls from and pushes into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from dai.errors import ClosedError, DaiError, InternalError
from dai.perform.activity import ANY, Activity, Context, Input, Output, attribute, input, output
from dai.streams.stream import ByteStream


@dataclass(frozen=True, kw_only=True)
class OutputStream(Activity):
    """Offers a document as a stream of the session, with the name of this activity; clients pull its blocks.

    The activity waits for a slow reader. If the reader ends the stream, the activities connected to it stop.
    ``representation``: with ``payload``, readers who do not ask for the document get frames without the static part.
    """

    example: ClassVar[str] = """
        <outputStream name="results">
          <fromLocal from="document"/>
        </outputStream>"""
    role: ClassVar[str | None] = ANY

    source: Input[ByteStream] = input("fromLocal")
    representation: Literal["document", "payload"] = attribute(default="document")

    def run(self, context: Context) -> None:
        mailbox = context.session.output(self.name)
        mailbox.framed = self.representation == "payload"
        try:
            source = context.bytes(self.source)
            mailbox.media_type = source.media_type
            mailbox.fill(source, context.cancellation)
        except DaiError as error:
            mailbox.fail(error)
            raise
        except BaseException:
            mailbox.fail(InternalError("The service failed while it wrote this stream."))
            raise


@dataclass(frozen=True, kw_only=True)
class InputStream(Activity):
    """Reads a stream of the session, with the name of this activity; clients push its blocks.

    A push waits for slow readers; after the end of the request it is refused.
    """

    example: ClassVar[str] = """
        <inputStream name="upload">
          <toLocal name="uploaded"/>
        </inputStream>"""
    tabular: ClassVar[Literal["no"]] = "no"
    role: ClassVar[str | None] = ANY

    result: Output[ByteStream] = output("toLocal")

    def run(self, context: Context) -> ByteStream:
        mailbox = context.session.input(self.name)

        def close() -> None:
            if not mailbox.drained:
                mailbox.discard(ClosedError("The request that read this stream has ended."))

        return ByteStream("application/octet-stream", mailbox.blocks(context.cancellation), close)
