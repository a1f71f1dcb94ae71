"""What a source is. Any number of threads may use one at the same time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dai.drivers import NO_TABLES
from dai.drivers.tables import Statistics, TableInfo
from dai.errors import DeniedError, UnauthenticatedError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.errors import NoTokenError


class Source(ABC):
    """A source. ``alias`` is its name in SQL; ``address`` is for messages and evaluators and has no secret. A replica
    has an alias that SQL cannot write; ``replica_of`` is the alias of the source whose tables it has.

    Every call raises the driver's errors, and UnreachableError if the service does not answer.
    """

    alias: str
    address: str
    replica_of: str | None = None

    @property
    @abstractmethod
    def dialect(self) -> str:
        """``postgresql``, ``mariadb``, ``mysql``, ``sqlite``, ``duckdb`` or another of SQLAlchemy's names. Asks the
        source once."""

    @abstractmethod
    def tables(self) -> tuple[TableInfo, ...]:
        """The source's tables at this moment."""

    @abstractmethod
    def statistics(self, table: str) -> Statistics:
        """The database's own statistics of ``table`` or ``schema.table``."""

    @abstractmethod
    def fingerprint(self, *, fresh: bool = False) -> str:
        """A text that changes when the tables change; cheap. ``fresh``: the source must not answer from its cache."""

    @abstractmethod
    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        """The tuples of a query in the source's dialect, as ``dai.drivers.Driver.query``. The source has accepted the
        query when this returns; closing the stream or cancelling stops the statement in the database."""

    def takes_tables(self) -> bool:
        """Whether a query may have query-scoped tables. Asks the source once."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Frees idle connections."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.alias} at {self.address}>"


@contextmanager
def refusing(alias: str) -> Iterator[None]:
    """What a source does not allow the caller is the caller's matter, and says which source that is."""
    try:
        yield
    except NoTokenError:
        raise
    except (UnauthenticatedError, DeniedError) as error:
        raise DeniedError(
            f"The source {alias!r} refuses your request: {error.detail}",
            hint="The federation sends your credentials to this source; ask its operator to grant you access.",
            source=alias,
        ) from error


def fingerprint_of(tables: Sequence[TableInfo]) -> str:
    """A text that changes when the tables change, but not with their row estimates. Comparable within this process."""
    return f"{hash(tuple(replace(each, rows=None) for each in tables)):x}"
