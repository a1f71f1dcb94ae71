"""SQLAlchemy's types of columns, and the values that the DB-API gives as values of these types."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
from sqlalchemy import types
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.dialects.sqlite import base as sqlite

Process = Callable[[Any], Any]


def _is(coltype: Any, fits: Callable[[pa.DataType], bool]) -> bool:
    """Whether the column of a result, whose Arrow type the DB-API says, has the wanted values already."""
    return isinstance(coltype, pa.DataType) and fits(coltype)


class Numbers:
    """Decimals travel as they are, in both directions."""

    asdecimal: bool
    _effective_decimal_return_scale: int

    def bind_processor(self, dialect: Any) -> None:
        return None

    def result_processor(self, dialect: Any, coltype: Any) -> Process | None:
        if _is(coltype, pa.types.is_decimal if self.asdecimal else pa.types.is_floating):
            return None
        if not self.asdecimal:
            return lambda value: None if value is None else float(value)
        digits = f".{self._effective_decimal_return_scale}f"

        def decimal(value: Any) -> Decimal | None:
            if value is None or isinstance(value, Decimal):
                return value
            return Decimal(format(value, digits) if isinstance(value, float) else value)

        return decimal


class Numeric(Numbers, types.Numeric):  # type: ignore[type-arg]
    pass


class Float(Numbers, types.Float):  # type: ignore[type-arg]
    pass


class Uuid(types.Uuid):  # type: ignore[type-arg]
    """The service gives texts."""

    def bind_processor(self, dialect: Any) -> Any:
        if dialect.supports_native_uuid and self.native_uuid:
            return lambda value: None if value is None else str(value)
        return super().bind_processor(dialect)

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        if dialect.supports_native_uuid and self.native_uuid:
            return (lambda value: None if value is None else UUID(value)) if self.as_uuid else None
        return super().result_processor(dialect, coltype)


def _passing(process: Process | None, ready: bool, *known: type) -> Process | None:
    """``process`` for what is not one of the ``known`` types already; none where the whole column is ``ready``."""
    if process is None or ready:
        return None
    return lambda value: value if value is None or isinstance(value, known) else process(value)


class SQLiteDate(sqlite.DATE):
    """A column that says its type comes as dates, what is computed as text."""

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return _passing(super().result_processor(dialect, coltype), _is(coltype, pa.types.is_date), datetime.date)


class SQLiteTime(sqlite.TIME):
    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return _passing(super().result_processor(dialect, coltype), _is(coltype, pa.types.is_time), datetime.time)


class SQLiteDateTime(sqlite.DATETIME):
    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        return _passing(
            super().result_processor(dialect, coltype), _is(coltype, pa.types.is_timestamp), datetime.datetime
        )


class MySQLDateTime(types.DateTime):
    """TIMESTAMP of MariaDB is a moment in UTC, whatever the session's zone was."""

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        if self.timezone or (_is(coltype, pa.types.is_timestamp) and coltype.tz is None):
            return None
        return lambda value: None if value is None else value.replace(tzinfo=None)


class Interval(postgresql.INTERVAL):
    """A month is 30 days, as psycopg has it."""

    render_bind_cast = True

    @classmethod
    def adapt_emulated_to_native(cls, interval: Any, **kw: Any) -> Interval:
        return cls(precision=interval.second_precision)

    def bind_processor(self, dialect: Any) -> Process:
        def text(value: Any) -> Any:
            if not isinstance(value, datetime.timedelta):
                return value
            return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"

        return text

    def result_processor(self, dialect: Any, coltype: Any) -> Process:
        def delta(value: Any) -> Any:
            if value is None or isinstance(value, datetime.timedelta):
                return value
            days = value.months * 30 + value.days
            return datetime.timedelta(days=days, microseconds=value.nanoseconds // 1000)

        return delta


class Array(postgresql.ARRAY):  # type: ignore[type-arg]
    """Values are written as PostgreSQL's text of an array."""

    render_bind_cast = True

    def bind_processor(self, dialect: Any) -> Process:
        return lambda value: None if value is None else _array_text(value)


def _array_text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple | set):
        return "{" + ",".join(map(_array_text, value)) + "}"
    if isinstance(value, bool):
        return "t" if value else "f"
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _cast(kind: Any) -> Any:
    """The type, whose parameters say in the SQL of what type they are: they travel as text, or as JSON."""
    return type(kind.__name__, (kind,), {"render_bind_cast": True, "__module__": __name__})


SERVED: Mapping[Any, Any] = {types.Numeric: Numeric, types.Float: Float, types.Uuid: Uuid}
POSTGRESQL: Mapping[Any, Any] = {
    **{kind: _cast(implementation) for kind, implementation in SERVED.items()},
    **{
        kind: _cast(kind)
        for kind in (
            *(types.Integer, types.SmallInteger, types.BigInteger, types.Boolean),
            *(types.Date, types.Time, types.DateTime, types.LargeBinary),
        )
    },
    types.Interval: Interval,
    postgresql.INTERVAL: Interval,
    types.ARRAY: Array,
}
SQLITE: Mapping[Any, Any] = {
    **SERVED,
    types.Date: SQLiteDate,
    types.Time: SQLiteTime,
    types.DateTime: SQLiteDateTime,
}
MYSQL: Mapping[Any, Any] = {**SERVED, types.DateTime: MySQLDateTime}

# --- reflected types ---

_POSTGRESQL: Mapping[str, Any] = {
    "int2": types.SMALLINT,
    "int4": types.INTEGER,
    "int8": types.BIGINT,
    "float4": types.REAL,
    "float8": postgresql.DOUBLE_PRECISION,
    "bool": types.BOOLEAN,
    "varchar": types.VARCHAR,
    "bpchar": types.CHAR,
    "bytea": postgresql.BYTEA,
    "varbit": postgresql.BIT,
}
_ARROW: tuple[tuple[str, Any], ...] = (
    ("bool", types.BOOLEAN),
    ("int8", types.SMALLINT),
    ("int16", types.SMALLINT),
    ("int32", types.INTEGER),
    ("int64", types.BIGINT),
    ("uint8", types.SMALLINT),
    ("uint16", types.INTEGER),
    ("uint32", types.BIGINT),
    ("uint64", types.NUMERIC),
    ("float", types.REAL),
    ("double", types.DOUBLE),
    ("decimal", types.NUMERIC),
    ("date", types.DATE),
    ("time64", types.TIME),
    ("timestamp", types.TIMESTAMP),
    ("binary", types.LargeBinary),
    ("duration", types.Interval),
    ("month_day", types.Interval),
)
"""By the beginning of the Arrow type's name; texts are what is left."""


def type_of(column: Mapping[str, Any], dialect: Any) -> Any:
    """SQLAlchemy's type of a column that the service describes."""
    name, arrow = str(column["type"]), str(column["arrow"])
    if dialect.name == "sqlite":
        size = [each for each in (column["length"] or column["precision"], column["scale"]) if each is not None]
        declared = f"{name}({','.join(map(str, size))})" if size else name
        return dialect._resolve_type_affinity(declared.upper())
    if arrow.startswith("list<") and dialect.name != "mysql":
        inner = arrow.removeprefix("list<").removesuffix(">").partition(": ")[2].removesuffix(" not null")
        bare = {**column, "arrow": inner, "type": name.removesuffix("[]").removeprefix("_")}
        return postgresql.ARRAY(type_of(bare, dialect))
    word = name.removesuffix(" unsigned").removesuffix(" zerofill")
    if dialect.name == "postgresql":
        kind = _POSTGRESQL.get(word) or dialect.ischema_names.get(word)
        if word in ("timestamp", "timestamptz", "time", "timetz"):
            family = postgresql.TIMESTAMP if word.startswith("timestamp") else postgresql.TIME
            return family(timezone=word.endswith("tz"), precision=column["precision"])
    elif dialect.name in ("mysql", "mariadb"):
        kind = dialect.ischema_names.get(word)
    else:
        kind = None
    if kind is None:
        kind = next((kind for beginning, kind in _ARROW if arrow.startswith(beginning)), types.VARCHAR)
        if kind is types.TIMESTAMP:
            return kind(timezone="tz=" in arrow)
    return _sized(kind, column, name)


def _sized(kind: Any, column: Mapping[str, Any], name: str) -> Any:
    if issubclass(kind, types.String) and column["length"] is not None:
        return kind(column["length"])
    if issubclass(kind, types.Numeric) and not issubclass(kind, types.Float) and column["precision"] is not None:
        return kind(column["precision"], column["scale"])
    if name.endswith("unsigned") and issubclass(kind, mysql.INTEGER | mysql.BIGINT | mysql.SMALLINT | mysql.TINYINT):
        return kind(unsigned=True)
    if issubclass(kind, mysql.VARCHAR | types.VARBINARY | types.BINARY):
        return kind(column["length"] or 255) if issubclass(kind, mysql.VARCHAR) else kind(column["length"])
    return kind()
