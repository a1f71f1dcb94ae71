"""The dialects of SQL that sources speak, by name, and what planning needs to know of one before it writes a statement.

The classes are in ``dqp.sql.dialects``, which stands above this package: the table holds their names and loads a class
when it is first used. All constants of a dialect are in its class; one that is not in the table has those of
``DialectProperties``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from dai.errors import DaiError
from dai.plugins import Table

MOST_LISTED = 1_000
"""Most keys that are written as a list: with so many, every source compares a row fast."""


@dataclass(frozen=True)
class Costs:
    """Seconds, measured. ``row`` and ``byte``: what fetching takes from the start of the statement's answer to batches
    in the evaluator, through a data service on the same machine; ``scan``: a row that the source reads without
    returning it; ``filter``: a condition for such a row; ``work``: a row that a join or an aggregate in the source
    processes; ``probe``: a row that a join with small tables processes, in a statement that returns few rows (0: as
    ``work``). ``value``: an operation or a function for a row of an aggregate; ``division``: what a division takes
    beyond that; ``distinct``: a row of an aggregate with DISTINCT; ``sort``: a row that is sorted; ``spill``: a row
    that is grouped where the groups exceed the memory; ``group``: a group; ``sorted``: a row and key where groups are
    made by sorting (0: by a hash table, a row takes ``work``); ``ordered``: one whose rows come in the order of an
    index; ``memory``: bytes of groups that fit in memory; ``pair``: two rows that are compared in a join without an
    equality, or for a subquery; ``index``: a row found by an index (0: tables are read); ``near``: one of many that are
    found one after the other in a table that stands in that order (0: as ``index``); ``seek``: what the database
    expects for such a row, which decides between the index and the table (0: what it takes). Where there are no hash
    joins, ``lookup``: a row whose partner is looked up in an index; ``compared``: two rows that are compared because
    there is no index (0: the database makes one). ``listed``: a step of looking for a row in a list of keys without an
    index, of which there are log2(keys). ``table_key``: a key of a query-scoped table, from here to the source's hash
    table (docs/decisions/0015; None: it takes no such tables); ``table_row``: to look for a row in a large table of
    keys; ``table_found``: a row of the result of a statement with such a table, beyond ``row``."""

    row: float
    byte: float
    scan: float
    work: float
    filter: float = 0.0
    value: float = 1.5e-7
    division: float = 0.0
    distinct: float = 2.2e-7
    sort: float = 3e-7
    spill: float = 1.5e-7
    group: float = 2e-7
    sorted: float = 0.0
    ordered: float = 4e-8
    memory: float = 16e6
    pair: float = 3e-8
    index: float = 2e-6
    near: float = 0.0
    seek: float = 0.0
    probe: float = 0.0
    lookup: float = 0.0
    compared: float = 0.0
    listed: float = 0.0
    table_key: float | None = None
    table_row: float = 0.0
    table_found: float = 0.0


class DialectProperties:
    """The properties of a dialect; these defaults are those of one that was never measured."""

    COSTS: ClassVar[Costs] = Costs(
        row=5e-8, byte=6e-9, scan=1.9e-7, work=1.2e-7, spill=2.5e-6, group=2e-6, lookup=2e-6, compared=3.5e-8
    )
    MOST_NUMBERS: ClassVar[int] = MOST_LISTED
    """Most whole numbers that are written as a list: more where the database looks them up in a hash table, a sorted
    list or a tree."""
    SINGLE_THREADED: ClassVar[bool] = False
    """Whether the database runs a statement in one thread."""
    ANY_INDEX: ClassVar[bool] = False
    """Whether the database joins by an index where there is one, however many rows that finds for each value, and gets
    each of them from another place."""
    MERGED_TYPES: ClassVar[tuple[str, ...]] = ()
    """Prefixes of DuckDB type names: of these types the database may hold several values that become one value here."""
    LOOSE: ClassVar[bool] = False
    """Whether a column's type is decided by its values."""
    TEXT_NUMBERS: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the database's type names whose numbers arrive as texts, because no DECIMAL holds them all."""

    @staticmethod
    def explained(error: DaiError, sql: str) -> DaiError | None:
        """The error in the words of the dialect, if what the dialect itself wrote into the statement caused it."""
        return None


DIALECTS = Table(
    "dialect",
    "dqp.dialects",
    {
        "postgresql": "dqp.sql.dialects.postgresql:PostgreSQL",
        "postgres": "dqp.sql.dialects.postgresql:PostgreSQL",
        "mariadb": "dqp.sql.dialects.mariadb:MariaDB",
        "mysql": "dqp.sql.dialects.mariadb:MySQL",
        "sqlite": "dqp.sql.dialects.sqlite:SQLite",
        "duckdb": "dqp.sql.dialects.duckdb:DuckDB",
    },
)
"""By the name that a driver or an SQLAlchemy URL gives to its dialect."""

_NAMES = {"postgres": {"": "postgresql"}, "mysql": {"MySQL": "mysql", "": "mariadb"}}
"""Where a driver gives its dialect another name: the name here, by the prefix of the product's name."""


def dialect_of(driver: str, product: Callable[[], str]) -> str:
    """The dialect's name here, of the name that a driver gives it and the product that answers."""
    names = _NAMES.get(driver, {"": driver})
    return names[""] if len(names) == 1 else next(name for begin, name in names.items() if product().startswith(begin))


@cache
def properties(dialect: str) -> type[DialectProperties]:
    """The class of a dialect; ``DialectProperties`` for one that is not in the table."""
    known: type[DialectProperties] = DIALECTS.get(dialect, DialectProperties)
    return known


def explained(error: DaiError, sql: str) -> DaiError:
    """The error of a statement in the words of the dialect that caused it; unchanged if no dialect did."""
    known: set[type[DialectProperties]] = set(DIALECTS.values())
    for each in known:
        if (better := each.explained(error, sql)) is not None:
            better.__cause__ = error
            return better
    return error
