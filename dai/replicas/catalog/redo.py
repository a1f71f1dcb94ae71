"""The redo log of a catalog in SQLite: large changes that are durable and not committed yet.

A thousand names in no order change two thousand pages of the catalog, which a commit writes and syncs: a hundred times
what the names take. Here they are appended, and synced; the catalog commits many such changes at once. Each has a
number. The catalog knows, in its own transaction, up to which it has them: what comes after that number is carried out
again when it is opened, in order, and what does not is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from dai.replicas.catalog.database import Connection, Row

Changed = tuple[str, Sequence[Row]]
"""A statement and its values."""


class Redo:
    """In a database of its own, which ``connection`` is to."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._done = connection, 0
        connection.control("create table if not exists dai_redo (number integer primary key, changes blob not null)")

    def append(self, number: int, changes: Sequence[Changed]) -> None:
        """On the disk when it returns."""
        with self._connection.transaction():
            self._connection.control("delete from dai_redo where number <= ?", self._done)
            self._connection.control("insert into dai_redo (number, changes) values (?, ?)", number, _bytes(changes))

    def after(self, number: int) -> Iterator[tuple[int, list[Changed]]]:
        for at, changes in self._connection.all(
            "select number, changes from dai_redo where number > ? order by number", number
        ):
            yield at, [(statement, [tuple(row) for row in rows]) for statement, rows in orjson.loads(changes)]

    def committed(self, number: int) -> None:
        """The catalog has the changes up to this; they are deleted when others are appended."""
        self._done = number

    def close(self) -> None:
        self._connection.close()


def _bytes(changes: Sequence[Changed]) -> bytes:
    return orjson.dumps(changes)
