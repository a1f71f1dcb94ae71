"""The first rows of a result, for people: in HTML and as text."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from dai.client.results.table import lines

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_ROWS, SHOWN_COLUMNS, SHOWN_CHARACTERS = 10, 20, 60


def printed(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> list[str]:
    """Names and rows as the lines of an aligned table."""
    if not len(schema):
        return []
    right = [place for place, field in enumerate(schema) if _is_number(field.type)]
    cells = [[cell_text(value) for value in row] for row in rows]
    return list(lines([cell_text(name) for name in schema.names], cells, right=right))


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def drawn(schema: pa.Schema, batches: list[pa.RecordBatch], note: str) -> str:
    """Names, types and the first rows in HTML, and the note below them."""
    head = "".join(
        f"<th>{html.escape(field.name)}<br><small>{html.escape(str(field.type))}</small></th>"
        for field in list(schema)[:SHOWN_COLUMNS]
    )
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell_text(value))}</td>" for value in row[:SHOWN_COLUMNS]) + "</tr>"
        for row in first_rows(batches, SHOWN_ROWS)
    )
    more = f"; {SHOWN_COLUMNS} columns shown" if len(schema) > SHOWN_COLUMNS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{note}{more}</p>"


def first_rows(batches: list[pa.RecordBatch], count: int) -> list[tuple[Any, ...]]:
    """The first ``count`` rows as Python values."""
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        part = batch.slice(0, count - len(rows))
        columns = [column.to_pylist() for column in part.columns]
        rows.extend(zip(*columns, strict=True) if columns else [()] * part.num_rows)
        if len(rows) >= count:
            break
    return rows


def cell_text(value: Any) -> str:
    """A value in a cell: short, on one line."""
    if value is None:
        return "NULL"
    text = value.hex(" ") if isinstance(value, bytes) else str(value)
    if type(value).__name__ == "MonthDayNano":
        text = _interval(*value)
    text = "".join(character if character.isprintable() else " " for character in text[: SHOWN_CHARACTERS + 1])
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """As DuckDB writes it: ``1 month 2 days 03:00:00.5``."""
    counted = ((months, "month"), (days, "day"))
    parts = [f"{count} {unit}{'' if abs(count) == 1 else 's'}" for count, unit in counted if count]
    if nanoseconds or not parts:
        seconds, rest = divmod(abs(nanoseconds), 10**9)
        fraction = f".{rest:09}".rstrip("0").rstrip(".")
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"
        parts.append(f"-{clock}" if nanoseconds < 0 else clock)
    return " ".join(parts)
