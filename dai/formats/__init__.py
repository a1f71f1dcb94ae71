"""Result formats: record batches to blocks of bytes and back.

An encoder takes batches and yields ``Block`` s; the concatenation of the blocks is the document, and for text
formats it does not depend on the block size. A decoder takes any iterable of byte chunks and gives a ``Stream``.
Neither holds more than one block. Adding a format is one module and one line here; the conformance tests run over
the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol, runtime_checkable

from dai.errors import NotAcceptableError
from dai.plugins import Table
from dai.streams.stream import Encoder, Stream

PIECE_BYTES = 1 << 22
"""A block larger than this may leave a synchronous response in pieces of about this many bytes."""


@runtime_checkable
class Format(Encoder, Protocol):
    """Stateless; one instance serves all requests.

    ``encode`` takes over ``stream`` (closing its generator closes it) and yields blocks of exactly ``blocksize`` rows,
    the last one shorter, or of a size it thinks best (None). A stream without rows gives one block: a whole, empty
    document. Raises EncodingError naming column and row for a value that cannot travel.
    ``decode`` reads what anybody else's encoder may have written, raises DataError saying where it stopped, and
    TruncatedError where the bytes end before the document does. Encoder options are keyword arguments with defaults.
    """

    suffix: ClassVar[str]

    def decode(self, chunks: Iterable[bytes]) -> Stream: ...


FORMATS = Table(
    "format",
    "dai.formats",
    {
        "webrowset": "dai.formats.webrowset:WebRowSet",
        "csv": "dai.formats.csv:Csv",
        "arrow": "dai.formats.arrow:Arrow",
        "parquet": "dai.formats.parquet:Parquet",
        "json": "dai.formats.json:JsonLines",
    },
)

_instances: dict[str, Format] = {}


def format_named(name: str) -> Format:
    """The format of that name; NotAcceptableError names the known ones."""
    if name not in FORMATS:
        raise NotAcceptableError(f"There is no format {name!r}.", hint=f"Known: {', '.join(FORMATS)}.")
    if name not in _instances:
        _instances[name] = FORMATS[name]()
    return _instances[name]
