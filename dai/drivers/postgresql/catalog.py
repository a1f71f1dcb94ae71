"""Tables from PostgreSQL's catalogue, all in one round trip."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa

from dai.drivers.postgresql.read import Descriptions
from dai.drivers.postgresql.types import NUMERIC, Wanted, decimal_bounds
from dai.drivers.postgresql.wire import Parameters, one_round_trip
from dai.drivers.tables import (
    COMMON,
    COMMON_LENGTH,
    Column,
    ColumnStatistics,
    ForeignKey,
    Index,
    Statistics,
    TableInfo,
)
from dai.errors import NotFoundError
from dai.plugins import nearest
from dai.streams.stream import PRECISION, TYPE_NAME

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

Row = tuple[str | None, ...]

_CHOSEN = """
WITH chosen AS (
  SELECT c.oid, n.nspname, c.relname, c.relkind, c.reltuples,
    c.relkind = 'r' AND c.relhassubclass AS parent  -- has rows of heirs, which its keys and NOT NULL do not bind
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    AND n.nspname !~ '^pg_(toast|temp)' AND (c.relname LIKE $1 OR n.nspname || '.' || c.relname LIKE $1)
)"""
_TABLES = f"""{_CHOSEN}
SELECT oid, nspname, relname, CASE WHEN relkind IN ('v', 'm') THEN 'view' ELSE 'table' END,
  CASE WHEN reltuples >= 0 AND relkind <> 'v' THEN reltuples::bigint END, obj_description(oid, 'pg_class')
FROM chosen ORDER BY nspname, relname"""
_COLUMNS = f"""{_CHOSEN}
SELECT t.oid, a.attname, a.atttypid, a.atttypmod, a.attnotnull AND NOT t.parent, pg_get_expr(d.adbin, d.adrelid),
  a.attidentity, col_description(t.oid, a.attnum),
  CASE WHEN to_jsonb(o) ->> 'collisdeterministic' = 'false' THEN o.collname END
FROM chosen t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = t.oid AND d.adnum = a.attnum AND a.attgenerated = ''
LEFT JOIN pg_catalog.pg_collation o ON o.oid = a.attcollation
ORDER BY t.oid, a.attnum"""
_KEYS = f"""{_CHOSEN}
SELECT t.oid, k.conname, k.contype, f.relname, fn.nspname, a.attname, fa.attname
FROM chosen t JOIN pg_catalog.pg_constraint k ON k.conrelid = t.oid AND k.contype IN ('p', 'f')
  AND NOT (k.contype = 'p' AND t.parent)
CROSS JOIN LATERAL unnest(k.conkey, k.confkey) WITH ORDINALITY AS u(own, other, place)
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum = u.own
LEFT JOIN pg_catalog.pg_class f ON f.oid = k.confrelid LEFT JOIN pg_catalog.pg_namespace fn ON fn.oid = f.relnamespace
LEFT JOIN pg_catalog.pg_attribute fa ON fa.attrelid = f.oid AND fa.attnum = u.other
ORDER BY t.oid, k.conname, u.place"""
_INDEXES = f"""{_CHOSEN}
SELECT t.oid, i.relname, x.indisunique AND x.indisvalid AND x.indpred IS NULL AND NOT t.parent,
  pg_get_indexdef(x.indexrelid, place, true), a.attname
FROM chosen t JOIN pg_catalog.pg_index x ON x.indrelid = t.oid JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
CROSS JOIN LATERAL generate_series(1, x.indnkeyatts) AS place
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum = x.indkey[place - 1] AND a.attnum > 0
ORDER BY t.oid, i.relname, place"""

FUNCTION_NAMES = """
SELECT DISTINCT proname::text AS name, proname::text, proname::text FROM pg_catalog.pg_proc p
WHERE pg_function_is_visible(oid) AND proname !~ '^(pg_|_)' AND prorettype <> 'trigger'::regtype
  AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_operator o WHERE o.oprcode = p.oid)
UNION SELECT n, n, n FROM unnest(ARRAY['coalesce', 'nullif', 'greatest', 'least', 'extract', 'cast']) AS g (n)
UNION SELECT n, n, 'coalesce' FROM unnest(ARRAY['ifnull', 'nvl', 'isnull']) AS o (n)
ORDER BY name"""
"""As ``TABLE_NAMES``: functions that are called by name, those of the grammar, and what others call them."""
TABLE_NAMES = """
SELECT CASE WHEN $1 THEN n.nspname || '.' ELSE '' END || c.relname,
  CASE WHEN $1 OR NOT v.visible THEN n.nspname || '.' ELSE '' END || c.relname,
  CASE WHEN $1 OR NOT v.visible THEN quote_ident(n.nspname) || '.' ELSE '' END || quote_ident(c.relname)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (SELECT pg_catalog.pg_table_is_visible(c.oid) AS visible) v
WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
  AND n.nspname !~ '^pg_(toast|temp)'
ORDER BY v.visible, c.oid LIMIT 10000"""
"""Each table by the name it may have been misspelt from (with its schema if so asked), with the name that finds it, and
that name as SQL writes it. Those of the search path come last."""


def _rows(result: PGresult) -> list[Row]:
    cells = [
        [None if (cell := result.get_value(row, column)) is None else cell.decode() for column in range(result.nfields)]
        for row in range(result.ntuples)
    ]
    return [tuple(each) for each in cells]


def tables(connection: psycopg.Connection[Any], pattern: str, descriptions: Descriptions) -> tuple[TableInfo, ...]:
    """See ``Driver.tables``."""
    parameters = Parameters((pattern.encode(),), (25,))
    results = one_round_trip(connection, [(sql.encode(), parameters) for sql in (_TABLES, _COLUMNS, _KEYS, _INDEXES)])
    table_rows, column_rows, key_rows, index_rows = (_rows(result) for result in results)
    wanted = tuple(Wanted(str(row[1]), int(str(row[2])), int(str(row[3]))) for row in column_rows)
    fields = [each.field for each in descriptions.shapes(connection, wanted, transaction=True)]
    columns: dict[str | None, list[Column]] = defaultdict(list)
    for row, column, field in zip(column_rows, wanted, fields, strict=True):
        columns[row[0]].append(_column(row, column, field))
    keys: dict[str | None, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in key_rows:
        keys[row[0]][str(row[1])].append(row)
    indexes: dict[str | None, dict[tuple[str, bool], list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in index_rows:
        indexes[row[0]][str(row[1]), row[2] == "t"].append(str(row[4] or row[3]))
    return tuple(
        TableInfo(
            name=str(name),
            schema=schema,
            kind=str(kind),
            columns=tuple(columns[oid]),
            primary_key=tuple(str(row[5]) for rows in keys[oid].values() for row in rows if row[2] == "p"),
            foreign_keys=tuple(_foreign_key(key, rows) for key, rows in keys[oid].items() if rows[0][2] == "f"),
            indexes=tuple(Index(index, tuple(names), unique) for (index, unique), names in indexes[oid].items()),
            rows=None if estimate is None else int(estimate),
            comment=comment,
        )
        for oid, schema, name, kind, estimate, comment in table_rows
    )


def _foreign_key(name: str, rows: list[Row]) -> ForeignKey:
    return ForeignKey(
        columns=tuple(str(row[5]) for row in rows),
        table=str(rows[0][3]),
        referred_columns=tuple(str(row[6]) for row in rows),
        schema=rows[0][4],
        name=name,
    )


def _column(row: Row, column: Wanted, field: Any) -> Column:
    type_name = field.metadata[TYPE_NAME].decode()
    precision = scale = length = None
    declared = field.metadata.get(PRECISION)
    bounds = decimal_bounds(column.typmod) if column.oid == NUMERIC else None
    if bounds is not None:
        precision, scale = bounds
    elif pa.types.is_decimal(field.type):  # of a domain
        precision, scale = field.type.precision, field.type.scale
    elif declared is not None and type_name in ("varchar", "bpchar"):
        length = int(declared)
    elif declared is not None:
        precision = int(declared)
    default = row[5]
    return Column(
        name=column.name,
        type=type_name,
        arrow=str(field.type),
        nullable=row[4] != "t",
        default=default,
        precision=precision,
        scale=scale,
        length=length,
        autoincrement=bool(row[6]) or (default or "").startswith("nextval("),
        comment=row[7],
        collation=row[8],
    )


_SIZE = b"""
SELECT CASE WHEN c.reltuples >= 0 THEN c.reltuples::bigint END, pg_table_size(c.oid), n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm')
  AND CASE WHEN $1 = '' THEN c.relname = $2 AND pg_table_is_visible(c.oid) ELSE n.nspname = $1 AND c.relname = $2 END"""
_STATISTICS = b"""
SELECT s.attname, CASE WHEN s.n_distinct >= 0 THEN s.n_distinct ELSE -s.n_distinct * greatest(c.reltuples, 0) END,
  s.null_frac, s.avg_width, coalesce(n.low, d.low, b.bounds[1]),
  coalesce(n.high, d.high, b.bounds[array_upper(b.bounds, 1)]), s.correlation,
  (SELECT json_agg(json_build_array(v, f)) FROM unnest(b.common, s.most_common_freqs) AS t(v, f)
   WHERE f >= $3::float8 AND length(v) <= $4::integer AND a.atttypid <> 1042)
FROM pg_catalog.pg_stats s JOIN pg_catalog.pg_namespace m ON m.nspname = s.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = m.oid AND c.relname = s.tablename
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = s.attname
CROSS JOIN LATERAL (SELECT s.histogram_bounds::text::text[] AS bounds, s.most_common_vals::text::text[] AS common) AS b
CROSS JOIN LATERAL (SELECT min(v::numeric)::text AS low, max(v::numeric)::text AS high
  FROM unnest(b.bounds || b.common) AS t(v)
  WHERE a.atttypid IN (20, 21, 23, 1700) AND v ~ '^-?[0-9]+([.][0-9]+)?$') AS n
CROSS JOIN LATERAL (SELECT min(v::date)::text AS low, max(v::date)::text AS high
  FROM unnest(b.bounds || b.common) AS t(v)
  WHERE a.atttypid = 1082 AND v ~ '^[0-9]{4}-') AS d
WHERE s.tablename = $2 AND CASE WHEN $1 = '' THEN pg_table_is_visible(c.oid) ELSE m.nspname = $1 END"""
# The histogram leaves out the most common values, which may be the lowest or the highest, or all there are.
_NAMES = b"SELECT relname FROM pg_catalog.pg_class WHERE relkind IN ('r', 'p', 'f', 'v', 'm') AND relnamespace <> 11"


def statistics(connection: psycopg.Connection[Any], table: str) -> Statistics:
    """See ``Driver.statistics``."""
    schema, _, name = table.rpartition(".")
    named, types = (schema.encode(), name.encode()), (25, 25)
    common = Parameters((*named, str(COMMON).encode(), str(COMMON_LENGTH).encode()), (*types, 25, 25))
    size, columns, names = one_round_trip(
        connection, [(_SIZE, Parameters(named, types)), (_STATISTICS, common), (_NAMES, Parameters())]
    )
    sizes = _rows(size)
    if not sizes:
        known = [str(row[0]) for row in _rows(names)]
        raise NotFoundError(f"There is no table {table!r}.", hint=nearest(name, known) if known else None)
    rows, bytes_, _, _ = sizes[0]
    return Statistics(
        rows=None if rows is None else int(rows),
        size_bytes=None if bytes_ is None else int(bytes_),
        columns={
            str(column): ColumnStatistics(
                _number(distinct), _number(nulls), low, high, _number(width), _number(correlation), _common(often)
            )
            for column, distinct, nulls, width, low, high, correlation, often in _rows(columns)
        },
    )


def _common(text: str | None) -> tuple[tuple[str, float], ...]:
    return () if text is None else tuple((value, part) for value, part in json.loads(text))


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
