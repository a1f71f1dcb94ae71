"""``SHOW TABLES``, ``DESCRIBE`` and ``SUMMARIZE``: what a federation says about its tables and columns.

DuckDB itself would describe the validator's empty tables. ``DESCRIBE t`` and ``SUMMARIZE t`` stand for the query
``FROM t``, written so that no position in the text changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dai.drivers.duckdb.syntax import SYNTAX
from dai.drivers.sql.lexer import keyword, tokens
from dai.errors import DaiError, StatementError
from dai.streams.meaning import Meaning
from dqp.algebra import types
from dqp.algebra.operators import quoted
from dqp.algebra.table import Table
from dqp.catalog.catalog import Catalog
from dqp.catalog.validator import path_of

Shape = Sequence[tuple[str, str]]
_WORDS = ("SHOW", "DESCRIBE", "DESC", "SUMMARIZE")
_SHOWN_ELSEWHERE = frozenset({"TABLES", "DATABASES", "SCHEMAS", "COLUMNS", "CREATE", "INDEX", "INDEXES", "CATALOGS"})
"""Words that other products take after SHOW; only ``SHOW TABLES`` is known here."""
_QUERIES = frozenset({"SELECT", "WITH", "FROM", "VALUES", "(", "PIVOT", "UNPIVOT"})
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
_LISTED = pa.list_(pa.string())
TABLES = pa.schema(
    [
        ("source", pa.string()),
        ("table", pa.string()),
        ("rows", pa.int64()),
        ("columns", _LISTED),
        ("types", _LISTED),
        ("comment", pa.string()),
        ("comments", _LISTED),
        ("units", _LISTED),
        ("ucds", _LISTED),
        ("quantities", _LISTED),
        ("origin", pa.string()),
    ]
)
"""The columns of ``SHOW TABLES``. ``rows`` is an estimate, NULL where the source has none; ``types`` and the columns
after ``comment`` are lists with an element for each of ``columns``. ``origin``: that of a source that a registry
names."""


@dataclass(frozen=True)
class Command:
    """``word``: SHOW (all tables), DESCRIBE or SUMMARIZE. ``query``: what is described, as long as the text up to its
    end; ``path``: the parts of its name where that is a table."""

    word: str
    query: str = ""
    path: tuple[str, ...] = ()


def command(sql: str) -> Command | None:
    """None for a query. StatementError where what is to be described does not follow."""
    if keyword(sql, SYNTAX) not in _WORDS:
        return None
    words = [each for each in tokens(sql, SYNTAX) if each.kind != "comment"]
    while words and sql[words[-1].start : words[-1].end] == ";":
        words.pop()
    texts = [sql[start:end].upper() for _, start, end in words[:4]]
    word = {"DESC": "DESCRIBE"}.get(texts[0], texts[0])
    if texts[1:] in (["TABLES"], ["ALL", "TABLES"]) or (len(texts) == 1 and word != "SUMMARIZE"):
        return Command("SHOW")
    if len(texts) == 1:
        raise StatementError("SUMMARIZE needs a table or a query.", sql=sql, position=words[0].end)
    if word == "SHOW" and texts[1] in _SHOWN_ELSEWHERE:
        raise StatementError(
            f"SHOW {' '.join(texts[1:3])} is not known.",
            sql=sql,
            position=words[1].start + 1,
            hint="SHOW TABLES lists the tables of all sources, DESCRIBE source.table the columns of one.",
        )
    first = words[2] if texts[1] == "TABLE" and len(words) > 2 else words[1]
    start, end = first.start, words[-1].end
    word = "DESCRIBE" if word == "SHOW" else word
    if sql[first.start : first.end].upper() in _QUERIES:
        return Command(word, " " * start + sql[start:end])
    return Command(word, "FROM".ljust(start) + sql[start:end], tuple(path_of(sql[start:end])))


def with_source(catalog: Catalog, command: Command) -> Command | None:
    """The path with its source, for a table that is named without one; None for any other path, or unless exactly one
    source has the table."""
    if len(command.path) != 1 or command.query.partition("FROM")[2].strip().strip('"') != command.path[0]:
        return None
    name = command.path[0].casefold()
    called = [each for each in catalog.tables() if each.name.casefold() == name]
    if len(called) != 1 or name in map(str.casefold, (*catalog.views, *catalog.uploads.tables)):
        return None
    path = tuple(filter(None, (called[0].source, called[0].schema, called[0].name)))
    return Command(command.word, f"FROM {'.'.join(map(quoted, path))}", path)


def tables(catalog: Catalog) -> pa.Table:
    """Every table of every source that answers, logical tables, whose comment says at which copies they are read, the
    views and the uploads; the last two have no source."""
    rows = []
    for each in catalog.tables():
        named = [(column.name, column.type.lower(), column.meaning) for column in each.columns]
        rows.append(_row(each.source, _name(each), _rows(each), named, each.comment, catalog.origin(each.source)))
    for alias, name, table, copies in catalog.logical_tables():
        named = [(column.name, column.type.lower(), column.meaning) for column in table.columns]
        rows.append(_row(alias, name, _rows(table), named, copies))
    for view, shape in catalog.shapes_of_views().items():
        rows.append(_row(None, view, None, [(name, type.lower(), Meaning()) for name, type in shape]))
    for upload, loaded in catalog.uploads.tables.items():
        columns = [
            (each.name, types.duckdb_type(each.type).lower(), Meaning.of(each.metadata)) for each in loaded.schema
        ]
        rows.append(_row(None, upload, loaded.num_rows, columns))
    return pa.Table.from_pylist(rows, TABLES)


def _rows(table: Table) -> int | None:
    return int(table.rows) if table.counted else None


def _name(table: Table) -> str:
    return table.name if table.schema is None else f"{table.schema}.{table.name}"


def _row(
    source: str | None,
    name: str,
    rows: int | None,
    columns: Sequence[tuple[str, str, Meaning]],
    comment: str | None = None,
    origin: str | None = None,
) -> dict[str, Any]:
    names, kinds, meanings = zip(*columns, strict=True) if columns else ((), (), ())
    meant = ([getattr(each, word) for each in meanings] for word in ("description", "unit", "ucd", "quantity"))
    values = (source, name, rows, names, kinds, comment, *meant, origin)
    return dict(zip(TABLES.names, values, strict=True))


def described(catalog: Catalog, path: Sequence[str], shape: Shape) -> pa.Table:
    """The columns of a table or a query."""
    table = _table(catalog, path)
    known = {} if table is None else {each.name: each for each in table.columns}
    keys = set(table.keys[0]) if table is not None and table.keys else set()
    rows: dict[str, list[str | None]] = {
        "column_name": [name for name, _ in shape],
        "column_type": [type for _, type in shape],
        "null": ["YES" if name not in known or known[name].nullable else "NO" for name, _ in shape],
        "key": ["PRI" if name in keys else None for name, _ in shape],
        "source_type": [known[name].source_type if name in known else None for name, _ in shape],
        "comment": [known[name].comment if name in known else None for name, _ in shape],
        **{
            word: [getattr(known[name].meaning, word) if name in known else None for name, _ in shape]
            for word in ("unit", "ucd", "quantity")
        },
    }
    return pa.table({name: pa.array(values, pa.string()) for name, values in rows.items()})


def _table(catalog: Catalog, path: Sequence[str]) -> Table | None:
    """The source's table of that name; None for a view, an upload or a query."""
    if not 0 < len(path) <= 3:
        return None
    try:
        alias, schema, name = (path[0] if len(path) > 1 else None), (path[1] if len(path) == 3 else None), path[-1]
        return catalog.table(alias, name, schema)
    except DaiError:
        return None


def summary_query(query: str, shape: Shape) -> str:
    """One row with five figures for each column, which sources compute where their dialects can."""
    items = ["count(*)"]
    for number, (_, type) in enumerate(shape):
        column = f"c{number}"
        plain = not type.endswith("]") and not type.startswith(("STRUCT", "MAP", "UNION"))
        low, high = (f"CAST({each}({column}) AS VARCHAR)" if plain else "NULL" for each in ("min", "max"))
        mean = f"CAST(avg({column}) AS DOUBLE)" if type.startswith(_NUMBERS) and plain else "CAST(NULL AS DOUBLE)"
        items += [f"count({column})", f"count(DISTINCT {column})" if plain else "NULL", low, high, mean]
    names = ", ".join(f"c{number}" for number in range(len(shape)))
    listed = ", ".join(f"{each} AS f{number}" for number, each in enumerate(items))
    return f"SELECT {listed} FROM ({query}\n) AS summarized({names})"


def summary(figures: Iterable[Any], shape: Shape) -> pa.Table:
    """A row for each column, from the row of ``summary_query``."""
    every = list(figures)
    count, rest = int(every[0]), every[1:]
    rows: list[Mapping[str, Any]] = []
    for number, (name, type) in enumerate(shape):
        known, distinct, low, high, mean = rest[5 * number : 5 * number + 5]
        rows.append(
            {
                "column_name": name,
                "column_type": type,
                "min": low,
                "max": high,
                "distinct": distinct,
                "avg": mean,
                "count": count,
                "null_percentage": 100.0 * (count - known) / count if count else None,
            }
        )
    text, number_, share = pa.string(), pa.int64(), pa.float64()
    kinds = (text, text, text, text, number_, share, number_, share)
    names = ("column_name", "column_type", "min", "max", "distinct", "avg", "count", "null_percentage")
    return pa.Table.from_pylist(rows, pa.schema(list(zip(names, kinds, strict=True))))
