"""WebRowSet, the XML of JSR 114, which scientists' Java programs read: the service's default format.

Arrow kernels write it from batches (``encode``, ``rows``) and read it where the text is as our encoder writes it
(``decode``); from the first other row on lxml reads it (``reader``). ``types`` has the types of column-definitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dai.errors import DataError
from dai.formats.webrowset import decode as webrowset_decode
from dai.formats.webrowset import encode as webrowset_encode
from dai.streams.stream import Block, Stream


class WebRowSet:
    """Rows as XML, each value with a tag; types of java.sql; see schemas/webrowset.xsd."""

    def encode(
        self,
        stream: Stream,
        blocksize: int | None = None,
        *,
        pieces: bool = False,
        on_invalid: str = "error",
        command: str | None = None,
        table_name: str | None = None,
    ) -> Iterator[Block]:
        """Blocks are slices of the text of whole batches, so their size costs next to nothing. With ``pieces`` a block
        may leave in several Blocks of about PIECE_BYTES, the last of which may have no rows.

        ``on_invalid``: "error" or "replace", what becomes of characters that XML cannot carry (U+FFFD).
        ``command`` and ``table_name`` are written to the properties; nothing else of the source is.

        Raises EncodingError naming the column, and the row for a value, that cannot travel.
        """
        if on_invalid not in ("error", "replace"):
            raise DataError(f"on_invalid is 'error' or 'replace', not {on_invalid!r}.")
        properties = {"command": command, "table-name": table_name}
        return webrowset_encode.encoded(stream, blocksize, pieces, on_invalid, properties)

    def decode(self, chunks: Iterable[bytes]) -> Stream:
        """The rows of any legal WebRowSet as they stand after the changes it describes: currentRow, insertRow and
        modifyRow with their new values (updateValue; the JDK writes updateRow), not deleteRow, nor a modifyRow without
        an updateValue: the JDK writes that for a row that was inserted and deleted. Values that the JDK leaves out
        (binary, NVARCHAR, OTHER …) are NULL. Reads up to the first row at once. Closing the stream closes ``chunks``.
        Holds about a megabyte of text, or one row.

        Raises TruncatedError where the bytes end before the document, DataError naming the row for XML that is not well
        formed or no WebRowSet, for rows of the wrong length and values that do not fit their column, and for any DTD.
        """
        return webrowset_decode.decoded(chunks)
