"""Result formats: record batches to blocks of bytes and back.

An encoder takes batches and yields ``Block`` s; the concatenation of the blocks is the document, and for text
formats it does not depend on the block size. A decoder takes any iterable of byte chunks and gives a ``Stream``.
Neither holds more than one block. Adding a format is one module and one line here: negotiation, the client, the
suffixes of files and the conformance tests go by the table. A package from elsewhere names a ``Format`` of its own as
an entry point of the group ``dai.formats``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from dai.errors import DataError, NotAcceptableError
from dai.plugins import Table, nearest

if TYPE_CHECKING:
    from dai.streams.stream import Block, Stream

PIECE_BYTES = 1 << 22
"""A block larger than this may leave a synchronous response in pieces of about this many bytes."""


class Codec(Protocol):
    """Stateless; one instance serves all requests.

    ``encode`` takes over ``stream`` (closing its generator closes it) and yields blocks of exactly ``blocksize`` rows,
    the last one shorter, or of a size it thinks best (None). A stream without rows gives one block: a whole, empty
    document. Raises EncodingError naming column and row for a value that cannot travel.
    ``decode`` reads what anybody else's encoder may have written, raises DataError saying where it stopped, and
    TruncatedError where the bytes end before the document does. Options are keyword arguments with defaults.
    """

    def encode(self, stream: Stream, blocksize: int | None = None, **options: Any) -> Iterator[Block]: ...

    def decode(self, chunks: Iterable[bytes], **options: Any) -> Stream: ...


@dataclass(frozen=True)
class Format:
    """A format as everybody sees it; its codec is loaded when it is first needed, so that a client that saves a result
    as it comes loads nothing. ``suffixes`` of files; ``signature``: how documents begin, four bytes at most (behind a
    byte order mark and space where they are text); ``aliases``: media types that stand for it in ``Accept``."""

    name: str
    media_type: str
    suffixes: tuple[str, ...]
    code: str
    """``module:Class`` of the codec."""
    binary: bool = False
    signature: bytes = b""
    aliases: tuple[str, ...] = ()
    tail: bytes | None = None
    """The end of every document of a format whose static part may be sent by itself (``dai.formats.frames``)."""

    @cached_property
    def codec(self) -> Codec:
        module, _, attribute = self.code.partition(":")
        codec: Codec = getattr(import_module(module), attribute)()
        return codec

    def encode(self, stream: Stream, blocksize: int | None = None, **options: Any) -> Iterator[Block]:
        if blocksize is not None and blocksize < 1:
            raise DataError(f"A block has at least one row, not {blocksize}.")
        return self.codec.encode(stream, blocksize, **options)

    def decode(self, chunks: Iterable[bytes], **options: Any) -> Stream:
        return self.codec.decode(chunks, **options)


_OWN = (
    Format(
        "arrow",
        "application/vnd.apache.arrow.stream",
        (".arrows", ".arrow"),
        "dai.formats.arrow:Arrow",
        binary=True,
        signature=b"\xff\xff\xff\xff",
        tail=b"\xff\xff\xff\xff\x00\x00\x00\x00",
    ),
    Format(
        "webrowset",
        "application/vnd.webrowset+xml",
        (".xml",),
        "dai.formats.webrowset:WebRowSet",
        signature=b"<",
        tail=b"</data>\n</webRowSet>",
    ),
    Format("csv", "text/csv", (".csv",), "dai.formats.csv:Csv"),
    Format(
        "parquet",
        "application/vnd.apache.parquet",
        (".parquet",),
        "dai.formats.parquet:Parquet",
        binary=True,
        signature=b"PAR1",
    ),
    Format(
        "json",
        "application/x-ndjson",
        (".jsonl", ".json", ".ndjson"),
        "dai.formats.json:JsonLines",
        signature=b"{",
        aliases=("application/ndjson", "application/jsonl"),
    ),
    Format(
        "votable",
        "application/x-votable+xml",
        (".vot", ".votable"),
        "dai.formats.votable:VOTable",
        signature=b"<VOT",
    ),
    Format("json-array", "application/json", (), "dai.formats.json.array:JsonArray", signature=b"["),
)
FORMATS = Table("format", "dai.formats", {each.name: each for each in _OWN})
"""In the order of preference where a client accepts several alike: Arrow first."""
UNSIGNED = "csv"
"""The format of bytes that begin like no other format."""


def format_named(name: str) -> Format:
    """The format of that name; NotAcceptableError suggests the nearest known one."""
    if name not in FORMATS:
        raise NotAcceptableError(f"There is no format {name!r}.", hint=nearest(name, list(FORMATS)))
    known: Format = FORMATS[name]
    return known


def media_type(name: str) -> str:
    """Of the format of that name; NotAcceptableError as of ``format_named``."""
    return format_named(name).media_type


def form_of(media_type: str) -> str | None:
    """The name of the format of a media type; None where it is no format's."""
    return next((each.name for each in FORMATS.values() if media_type in (each.media_type, *each.aliases)), None)


def suffixes() -> dict[str, str]:
    """The names of the formats by the suffixes of files."""
    return {suffix: each.name for each in FORMATS.values() for suffix in each.suffixes}


def recognised(first: bytes) -> str:
    """The name of the format of a document that begins so."""
    text = first.lstrip(b"\xef\xbb\xbf \t\r\n")
    signed = [each for each in FORMATS.values() if each.signature]
    begun = [each for each in signed if (first if each.binary else text).startswith(each.signature)]
    return max(begun, key=lambda each: len(each.signature)).name if begun else UNSIGNED
